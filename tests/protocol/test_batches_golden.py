"""Recorded payloads decompress, assemble and unpack to the content of their manifests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pulsar_spark.engine.codecs import decompress
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.batches import UnpackedBatch, unpack_batch
from pulsar_spark.protocol.chunks import AssembledMessage, ChunkAssembler
from pulsar_spark.protocol.compression import codec_of
from pulsar_spark.protocol.frame_parts import ReceivedEntry, parse_payload
from pulsar_spark.protocol.message_id import MessageIdAdv
from tests.protocol import golden
from tests.support.frames import SingleFrames

LIMIT = 16 * 1024 * 1024

Recorded = tuple[pb.BaseCommand, ReceivedEntry, golden.Manifest]


def messages(name: str) -> Iterator[Recorded]:
    """Every SEND and MESSAGE of a capture with its entry in the manifest."""
    manifest = golden.manifest(name)
    for connection in manifest["connections"]:
        for side in golden.SIDES:
            decoder = SingleFrames()
            decoder.receive_data(golden.stream(connection, side))
            for recorded in golden.frames(manifest, connection["id"], side):
                frame = decoder.next_frame()
                assert frame is not None
                if "message" in recorded:
                    yield frame.command, parse_payload(frame.payload), recorded["message"]


CHUNKED = [
    name for name in golden.names() if '"chunk_id"' in (golden.FOLDER / f"{name}.json").read_text()
]


def plain_payload(parts: ReceivedEntry) -> bytes:
    size = parts.metadata.uncompressed_size
    return bytes(decompress(codec_of(parts.metadata), parts.payload, size, LIMIT))


@pytest.mark.skipif(
    "PULSAR_SPARK_GOLDEN" in os.environ, reason="another folder may hold other recordings"
)
def test_there_are_recordings_of_every_codec_and_of_chunks() -> None:
    codecs = {codec_of(p.metadata) for name in golden.names() for _, p, _ in messages(name)}
    assert codecs == set(pb.CompressionType.values())
    assert len(CHUNKED) >= 3


@pytest.mark.parametrize("name", golden.names())
def test_recorded_payloads_are_what_the_manifest_says(name: str) -> None:
    for _, parts, expected in messages(name):
        # Chunks are checked together below; encrypted payloads are not checked here.
        if parts.metadata.HasField("chunk_id") or parts.metadata.encryption_keys:
            continue
        body = plain_payload(parts)
        golden.check_payload(body, expected.get("plain_payload") or expected["payload"])
        is_batch = parts.metadata.HasField("num_messages_in_batch")
        assert is_batch == ("entries" in expected)
        if is_batch:
            check_batch(body, expected["entries"])


def check_batch(body: bytes, expected: list[golden.Manifest]) -> None:
    batch = unpack_batch(body, len(expected))
    check_against(batch, expected)


def check_against(batch: UnpackedBatch, expected: list[golden.Manifest]) -> None:
    metadata = batch.metadata()
    for index, entry in enumerate(expected):
        golden.check_payload(batch.payload(index), entry["payload"])
        golden.check_message(metadata[index], entry["metadata"])
        fields = entry["metadata"]
        assert metadata[index].null_value == fields.get("null_value", False)
        assert (index in batch.compacted) == fields.get("compacted_out", False)


@pytest.mark.parametrize("name", CHUNKED)
def test_recorded_chunks_come_together(name: str) -> None:
    received = received_messages(golden.manifest(name))
    assembler = ChunkAssembler()
    complete = []
    for command, parts, _ in messages(name):
        if command.type == pb.BaseCommand.MESSAGE and parts.metadata.HasField("chunk_id"):
            message_id = MessageIdAdv.from_pb(command.message.message_id)
            result = assembler.add(parts.metadata, message_id, parts.payload)
            assert result.discarded == []
            if result.message is not None:
                complete.append((result.message, parts.metadata))
    assert complete
    assert assembler.pending == 0
    for message, metadata in complete:
        check_assembled(message, metadata, received[message.chunk_ids[-1].entry_id])


def received_messages(manifest: golden.Manifest) -> dict[int, golden.Manifest]:
    """The messages outside of batches that the recorded client received, by entry id."""
    found: dict[int, golden.Manifest] = {}
    for step in manifest["steps"]:
        if step["op"] in ("receive", "read"):
            results = step["result"] if isinstance(step["result"], list) else [step["result"]]
            found |= {m["message_id"]["entryId"]: m for m in results}
    return found


def check_assembled(
    message: AssembledMessage, metadata: pb.MessageMetadata, expected: golden.Manifest
) -> None:
    body = decompress(codec_of(metadata), message.payload, metadata.uncompressed_size, LIMIT)
    golden.check_payload(bytes(body), expected["payload"])
    assert len(message.chunk_ids) == metadata.num_chunks_from_msg
    first = message.chunk_ids[0]
    # The Python client does not show it.
    shown = expected["message_id"].get("first_chunk_message_id")
    if shown is not None:
        assert (first.ledger_id, first.entry_id) == (shown["ledgerId"], shown["entryId"])
