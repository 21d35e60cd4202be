"""One field is removed from every frame, whatever the frame carries; nothing else changes."""

from __future__ import annotations

import pytest

from pulsar_spark.engine.codecs import compress, decompress
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.batches import unpack_batch
from pulsar_spark.protocol.frame_parts import parse_payload
from pulsar_spark.protocol.frames import encode_command, encode_payload_command
from pulsar_spark.protocol.versions import without_checksums
from tests.conformance.taps import Clearing, Seeing
from tests.conformance.wire import Stream
from tests.support.frames import SingleFrames

SEND = commands.send(1, 5, 2)


def batch() -> bytes:
    out = b""
    for value in (b"a", b"bc"):
        single = pb.SingleMessageMetadata(
            payload_size=len(value), partition_key="k", properties=[pb.KeyValue(key="x", value="y")]
        ).SerializeToString()
        out += len(single).to_bytes(4, "big") + single + value
    return out


def entry(codec: int, *, checksum: bool = True) -> bytes:
    body = batch()
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=5,
        publish_time=1,
        num_messages_in_batch=2,
        compression=pb.CompressionType.Name(codec),
        uncompressed_size=len(body),
    )
    parts = encode_payload_command(SEND, metadata.SerializeToString(), compress(codec, body))
    return b"".join(parts) if checksum else without_checksums(b"".join(parts))


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("codec", [pb.NONE, pb.LZ4, pb.ZSTD], ids=["none", "lz4", "zstd"])
def test_a_field_of_messages_in_a_batch_is_cleared(codec: int, checksum: bool) -> None:
    clearing = Clearing("SingleMessageMetadata.partition_key")
    decoder = SingleFrames()
    decoder.receive_data(clearing.edit(entry(codec, checksum=checksum)))
    frame = decoder.next_frame()
    assert frame is not None
    parts = parse_payload(frame.payload)
    size = parts.metadata.uncompressed_size
    body = bytes(decompress(codec, parts.payload, size, 1000))
    found = unpack_batch(body, 2)
    assert [bytes(found.payload(index)) for index in range(2)] == [b"a", b"bc"]
    assert [found.metadata_of(index).HasField("partition_key") for index in range(2)] == [False] * 2
    assert found.metadata_of(1).properties[0].value == "y"
    assert clearing.count == 2


def test_a_required_field_keeps_the_emptiest_value() -> None:
    edited = Clearing("CommandSend.sequence_id").edit(encode_command(SEND))
    assert pb.BaseCommand.FromString(edited[8:]).send == pb.CommandSend(
        producer_id=1, sequence_id=0, num_messages=2
    )


def test_a_frame_without_the_field_stays_as_it_is() -> None:
    frame = entry(pb.ZSTD)
    for field in ("MessageMetadata.uuid", "CommandSend.is_chunk", "CommandAck.properties"):
        clearing = Clearing(field)
        assert clearing.edit(frame) is frame
        assert clearing.count == 0


def test_what_would_be_cleared_is_seen() -> None:
    seeing = Seeing()
    frame = entry(pb.LZ4)
    assert seeing.edit(frame) == frame
    assert {"CommandSend.num_messages", "SingleMessageMetadata.properties", "KeyValue.key"} <= set(
        seeing.seen
    )
    assert "CommandSend.is_chunk" not in seeing.seen


def test_frames_are_edited_wherever_the_stream_is_cut() -> None:
    whole = encode_command(SEND) * 3
    stream = Stream(Clearing("CommandSend.num_messages").edit)
    out = b"".join(stream.feed(whole[at : at + 1]) for at in range(len(whole)))
    assert out == Clearing("CommandSend.num_messages").edit(encode_command(SEND)) * 3
    assert stream.feed(b"GET / HTTP/1.1") == b"GET / HTTP/1.1"
