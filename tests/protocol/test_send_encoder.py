"""SENDs of columns: the bytes that protobuf makes, limits, chunks, and blocks of whole entries."""

from __future__ import annotations

import itertools
import random
from array import array
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.engine.codecs import compress, decompress
from pulsar_spark.errors import LocalProtocolError, MessageTooLarge
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.batches import message_key, unpack_batch
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.outgoing_messages import MessageFields, OutgoingMessages
from pulsar_spark.protocol.send_encoder import (
    BLOCK_BYTES,
    LARGE_ENTRY,
    SendEncoder,
    SendLimits,
    block_of,
    encode_entry,
    messages_of,
)
from pulsar_spark.schema.arrow.byte_column import byte_values
from tests.outgoing import messages_in, single
from tests.protocol.batch_bodies import encode_batch
from tests.protocol.entries import NOW, expected_frame, parse_frame
from tests.protocol.implementations import Implementation
from tests.protocol.test_outgoing_messages import in_batches

TXN = TxnId(3, 2**40)


def random_message(number: int) -> MessageFields:
    """Return a message with some of all that a batch can have."""
    rng = random.Random(number)
    size = rng.choice([0, 1, 5, 127, 128, 300, 20_000])
    message = MessageFields(None if number % 7 == 0 else rng.randbytes(size), properties=[])
    if number % 2:
        message.key = "k\u00e9" * rng.choice([0, 1, 100])
        message.key_is_base64 = bool(number % 3)
    if number % 5 == 1:
        message.ordering_key = rng.randbytes(number)
    if number % 3 == 1:
        message.properties = [("name", "v" * number), ("name", ""), ("\u20ac", "\u20ac")]
    message.event_time = rng.choice([0, 1, 2**41, 2**63 - 1])
    message.null_key = number % 11 == 0
    return message


def plain_message(number: int) -> MessageFields:
    return MessageFields(random_message(number).payload or b"")


def keyed_message(number: int) -> MessageFields:
    return MessageFields(random_message(number).payload or b"", "k" * (number % 5 * 50))


KINDS = {"plain": plain_message, "keys": keyed_message, "all fields": random_message}


def encoded(
    encoder: SendEncoder, columns: OutgoingMessages, first: int, per_entry: int, **more: Any
) -> tuple[bytes, list[int]]:
    ids = first if columns.sequence_ids is None else columns.sequence_ids
    buffers, ends = encoder.encode(
        columns.payloads, columns.keys, columns.fields, ids, NOW, per_entry, **more
    )
    return b"".join(buffers), list(ends)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", [pb.NONE, pb.LZ4])
@pytest.mark.parametrize("version, txn", [(b"", None), (bytes(7) + b"\x05", None), (b"v", TXN)])
@pytest.mark.parametrize("per_entry", [1, 2, 10, 36, 1000])
def test_columns_become_the_very_bytes_that_protobuf_makes(
    impl: Implementation, kind: str, codec: int, version: bytes, txn: TxnId | None, per_entry: int
) -> None:
    producer = 300, "prod-\u00e9"
    encoder = impl.encoder(*producer, version, codec, txn)
    messages = [KINDS[kind](number) for number in range(37)]
    columns = OutgoingMessages.of(messages)
    # The ids get one more digit within the column.
    for first in (0, 100, 127, 16_380, 2**40, 2**62):
        frames = [
            expected_frame(
                messages[start : start + per_entry],
                first + start,
                producer=producer,
                codec=codec,
                version=version,
                txn=txn,
            )
            for start in range(0, 37, per_entry)
        ]
        data, ends = encoded(encoder, columns, first, per_entry)
        assert data == b"".join(frames)
        assert ends == list(itertools.accumulate(map(len, frames)))


def test_a_message_of_its_own_has_what_no_batch_has(impl: Implementation) -> None:
    message = random_message(31)
    message.deliver_at, message.replicate_to, message.txn = 5678, ("r1", "r2"), TXN
    found, _ = encoded(impl.encoder(3, "p", b"v"), OutgoingMessages.of([message]), 7, 1)
    assert found == expected_frame([message], 7, version=b"v")


@pytest.mark.parametrize("by_highest", [False, True])
@pytest.mark.parametrize("per_entry", [1, 3])
def test_messages_can_have_their_own_sequence_ids(
    impl: Implementation, per_entry: int, by_highest: bool
) -> None:
    ids = [5, 10, 300, 2**40, 2**63 - 1]
    messages = [MessageFields(b"v", "k", sequence_id=own) for own in ids]
    found, _ = encoded(
        impl.encoder(3, "p"), OutgoingMessages.of(messages), 0, per_entry, by_highest=by_highest
    )
    parts = (messages[start : start + per_entry] for start in range(0, 5, per_entry))
    assert found == b"".join(expected_frame(part, 0, by_highest=by_highest) for part in parts)


@given(st.lists(in_batches, min_size=2, max_size=20), st.integers(0, 2**40))
def test_what_is_written_is_read_back(
    impl: Implementation, messages: list[MessageFields], first: int
) -> None:
    count = len(messages)
    data, _ = encoded(impl.encoder(3, "p"), OutgoingMessages.of(messages), first, count)
    assert data == expected_frame(messages, first)
    _, _, payload = parse_frame(data)
    batch = unpack_batch(payload, count)
    assert batch.metadata() == unpack_batch(encode_batch(messages, first), count).metadata()
    assert batch.values() == [message.payload for message in messages]


def test_bytes_keys_are_written_with_their_mark(impl: Implementation) -> None:
    messages = [MessageFields(b"x", "AAH+", key_is_base64=True)] * 2
    data, _ = encoded(impl.encoder(3, "p"), OutgoingMessages.of(messages), 0, 2)
    _, _, payload = parse_frame(data)
    assert message_key(unpack_batch(payload, 2).metadata_of(0)) == b"\x00\x01\xfe"


@pytest.mark.parametrize("codec", [pb.NONE, pb.LZ4])
@pytest.mark.parametrize("count", [1, 2])
def test_a_large_payload_is_not_copied(impl: Implementation, codec: int, count: int) -> None:
    rng = random.Random(count)
    messages = [MessageFields(rng.randbytes(LARGE_ENTRY)) for _ in range(count)]
    columns = OutgoingMessages.of(messages)
    buffers, ends = impl.encoder(3, "p", codec=codec).encode(
        columns.payloads, None, None, 7, NOW, count
    )
    assert len(buffers) == 2
    assert b"".join(buffers) == expected_frame(messages, 7, codec=codec)
    assert list(ends) == [sum(map(len, buffers))]
    if (codec, count) == (pb.NONE, 1):
        assert buffers[1] is messages[0].payload


# --- what cannot be sent ----------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["payload", "fields"])
@pytest.mark.parametrize("per_entry", [1, 10])
def test_only_keys_may_be_missing(impl: Implementation, per_entry: int, missing: str) -> None:
    payloads: list[Any] = [b"v"] * 10
    fields: list[Any] = [b"\x60\x05"] * 10
    {"payload": payloads, "fields": fields}[missing][5] = None
    with pytest.raises(TypeError):
        impl.encoder(3, "p").encode(payloads, None, fields, 0, NOW, per_entry)


@pytest.mark.parametrize("keys, fields", [([b"k"], None), (None, [b""] * 3)])
def test_columns_of_other_lengths_are_refused(
    impl: Implementation, keys: list[bytes | None] | None, fields: list[bytes] | None
) -> None:
    with pytest.raises(ValueError, match="equal length"):
        impl.encoder(3, "p").encode([b"v"] * 2, keys, fields, 0, NOW, 1)


@pytest.mark.parametrize(
    "count, ids",
    [
        (0, 0),
        (0, []),
        (1, -1),
        (1, 2**63),
        (2, 2**63 - 1),
        (1, 2**64),
        (2, [5]),
        (2, [5, 5]),
        (2, [5, 4]),
        (2, [5, -1]),
        (2, [5, 2**63]),
    ],
    ids=str,
)
def test_ids_that_messages_cannot_have_are_refused(
    impl: Implementation, count: int, ids: int | list[int]
) -> None:
    with pytest.raises((ValueError, OverflowError)):
        impl.encoder(3, "p").encode([b"v"] * count, None, None, ids, NOW, 10)


class _Damaged:
    """What looks like a column, but has edges that are not in its bytes."""

    def __init__(self, edges: list[int]) -> None:
        self.edges = memoryview(array("q", edges))

    def joined(self) -> bytes:
        return b"abc"


@pytest.mark.parametrize("edges", [[], [0, 4], [0, 2, 1], [5, 9], [-(2**63), 2**63 - 1]], ids=str)
def test_edges_that_are_not_in_their_column_are_refused(
    impl: Implementation, edges: list[int]
) -> None:
    column: Any = _Damaged(edges)
    # Only the compiled implementation reads buffers.
    with pytest.raises(TypeError if impl.name == "python" else ValueError):
        impl.encoder(3, "p").encode(column, None, None, 0, NOW, 1)


@pytest.mark.parametrize("codec", [pb.NONE, pb.LZ4])
@pytest.mark.parametrize("per_entry", [1, 4, 1000])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_columns_in_buffers_make_the_bytes_that_lists_make(
    impl: Implementation, codec: int, per_entry: int, count: int, kind: pa.DataType
) -> None:
    messages = OutgoingMessages.of([random_message(2 * number + 1) for number in range(40)])
    lists = (messages.payloads, messages.keys, messages.fields)[:count]

    def in_buffer(values: Any) -> Any:
        return byte_values(pa.array([b"skipped", *values], kind))[1:]

    encoder = impl.encoder(3, "p", codec=codec)
    found = OutgoingMessages(*map(in_buffer, lists))
    expected = OutgoingMessages(*lists)  # type: ignore[arg-type]
    assert encoded(encoder, found, 100, per_entry) == encoded(encoder, expected, 100, per_entry)


def test_the_metadata_of_an_entry_is_no_larger_than_its_bound(impl: Implementation) -> None:
    encoder = impl.encoder(2**63, "p" * 300, bytes(8), pb.ZLIB, TxnId(2**64 - 1, 2**64 - 1))
    buffers, _ = encoder.encode([bytes(100)] * 1000, None, None, 2**63 - 2000, 2**50, 1000)
    _, metadata, _ = parse_frame(b"".join(buffers))
    assert len(metadata) <= encoder.overhead


# --- one entry at a time: limits --------------------------------------------------------------


def limits(**changes: Any) -> SendLimits:
    own = SendLimits("p", 3, 1000, topic="t", compress=compress)
    return replace(own, **changes)


def frames_of(messages: OutgoingMessages, own: SendLimits) -> list[bytes]:
    count, frames = encode_entry(messages, 7, own, NOW)
    found = [b"".join(buffers) for buffers in frames]
    assert len(found) == count
    return found


def entry(messages: OutgoingMessages, **changes: Any) -> tuple[bytes, bytes]:
    """Return metadata and payload of an entry in one frame."""
    (frame,) = frames_of(messages, limits(**changes))
    return parse_frame(frame)[1:]


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("codec", [pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY])
def test_an_entry_alone_is_the_same_as_one_of_many(count: int, codec: int) -> None:
    messages = [random_message(number) for number in range(1, 1 + count)]
    own = limits(max_message_size=5 << 20, compression=codec, schema_version=b"v", txn=TXN)
    (frame,) = frames_of(OutgoingMessages.of(messages), own)
    assert frame == expected_frame(messages, 7, codec=codec, version=b"v", txn=TXN)


def test_a_message_carries_all_its_fields_in_its_metadata() -> None:
    own = {"deliver_at": 5678, "replicate_to": ("r1", "r2"), "null_key": True, "txn": TXN}
    message = MessageFields(
        None,
        "AAE=",
        key_is_base64=True,
        ordering_key=b"\x00\xff",
        properties=[("a", "1"), ("a", "2"), ("", "")],
        event_time=1234,
        **own,  # type: ignore[arg-type]
    )
    (frame,) = frames_of(OutgoingMessages.of([message]), limits(schema_version=b"version"))
    command, metadata, payload = parse_frame(frame)
    found = pb.MessageMetadata.FromString(metadata)
    assert (found.producer_name, found.sequence_id, found.publish_time) == ("p", 7, NOW)
    assert (found.partition_key, found.partition_key_b64_encoded) == ("AAE=", True)
    assert found.ordering_key == b"\x00\xff"
    pairs = [(pair.key, pair.value) for pair in found.properties]
    assert pairs == [("a", "1"), ("a", "2"), ("", "")]
    assert (found.event_time, found.deliver_at_time) == (1234, 5678)
    assert list(found.replicate_to) == ["r1", "r2"]
    assert (found.null_value, found.null_partition_key) == (True, True)
    assert found.schema_version == b"version"
    assert (found.txnid_most_bits, found.txnid_least_bits) == (TXN.most_bits, TXN.least_bits)
    assert not found.HasField("num_messages_in_batch")
    send = command.send
    assert (send.producer_id, send.sequence_id) == (3, 7)
    assert (send.txnid_most_bits, send.txnid_least_bits) == (TXN.most_bits, TXN.least_bits)
    assert not send.HasField("highest_sequence_id")
    assert payload == b""


def test_ids_that_no_messages_can_have_are_a_protocol_error() -> None:
    with pytest.raises(LocalProtocolError, match="no sequence ids"):
        encode_entry(single(b""), 2**63, limits(), NOW)


@pytest.mark.fault(86)
def test_the_largest_message_fits_and_one_byte_more_does_not() -> None:
    room = 1000 - len(entry(single(b""))[0])
    entry(single(bytes(room)))
    with pytest.raises(MessageTooLarge, match="1001 bytes") as raised:
        entry(single(bytes(room + 1)))
    assert raised.value.topic == "t"


@pytest.mark.fault(86)
@pytest.mark.parametrize("field", ["key", "ordering_key", "properties"])
def test_keys_and_properties_count(field: str) -> None:
    def message(size: int) -> OutgoingMessages:
        if field == "properties":
            return single(b"", properties=[("name", "v" * size)])
        return (
            single(b"", key="k" * size) if field == "key" else single(b"", ordering_key=b"k" * size)
        )

    fixed = len(entry(message(500))[0]) - 500
    entry(message(1000 - fixed))
    with pytest.raises(MessageTooLarge, match=r"1001 bytes \(1001 of them metadata"):
        entry(message(1001 - fixed))


@pytest.mark.fault(86)
def test_a_batch_is_held_against_the_same_limit() -> None:
    with pytest.raises(MessageTooLarge, match="a batch of 4 messages"):
        entry(OutgoingMessages([bytes(250)] * 4), chunking=True)


@pytest.mark.fault(86)
def test_what_counts_is_the_compressed_size() -> None:
    assert len(entry(single(bytes(5000)), compression=pb.ZLIB)[1]) < 1000


# --- chunks -----------------------------------------------------------------------------------


@pytest.mark.fault(86)
@pytest.mark.parametrize("size", [990, 1000, 1001, 5000, 12_345])
def test_chunks_repeat_the_metadata_and_make_up_the_payload(size: int) -> None:
    payload = bytes(number % 251 for number in range(size))
    message = single(payload, key="k", properties=[("a", "b")])
    frames = frames_of(message, limits(chunking=True))
    assert len(frames) > 1
    found = []
    for number, frame in enumerate(frames):
        command, metadata_bytes, part = parse_frame(frame)
        metadata = pb.MessageMetadata.FromString(metadata_bytes)
        assert len(metadata_bytes) + len(part) <= 1000
        assert (metadata.uuid, metadata.chunk_id) == ("p-7", number)
        assert metadata.num_chunks_from_msg == len(frames)
        assert metadata.total_chunk_msg_size == size
        assert (metadata.partition_key, len(metadata.properties)) == ("k", 1)
        assert command.send.is_chunk
        assert command.send.sequence_id == metadata.sequence_id == 7
        found.append(part)
    assert b"".join(found) == payload


@pytest.mark.fault(86)
def test_a_message_that_fits_is_not_cut() -> None:
    metadata, _ = entry(single(bytes(900)), chunking=True)
    assert not pb.MessageMetadata.FromString(metadata).HasField("uuid")


def test_chunks_can_be_asked_to_be_smaller() -> None:
    few = limits(chunking=True, chunk_size=100)
    sizes = [len(parse_frame(frame)[2]) for frame in frames_of(single(bytes(2000)), few)]
    assert sizes == [100] * 20
    # Also if the broker would accept the whole message, as in the Java client.
    assert len(frames_of(single(bytes(300)), few)) == 3
    assert len(frames_of(single(bytes(100)), few)) == 1
    assert len(frames_of(single(bytes(300)), limits(chunk_size=100))) == 1


def test_a_message_in_chunks_is_compressed_as_a_whole() -> None:
    payload = random.Random(1).randbytes(3000) + bytes(3000)
    frames = frames_of(single(payload), limits(chunking=True, compression=pb.ZLIB))
    parsed = [parse_frame(frame) for frame in frames]
    joined = b"".join(part for _, _, part in parsed)
    metadata = pb.MessageMetadata.FromString(parsed[0][1])
    assert metadata.uncompressed_size == 6000
    assert metadata.total_chunk_msg_size == len(joined)
    assert decompress(pb.ZLIB, joined, 6000, 10_000) == payload


@pytest.mark.fault(86)
def test_metadata_that_leaves_no_room_for_a_chunk_is_an_error() -> None:
    with pytest.raises(MessageTooLarge):
        frames_of(single(b"x", key="k" * 1000), limits(chunking=True))


@pytest.mark.fault(106)
def test_a_chunk_is_no_view_that_keeps_the_whole_message() -> None:
    _, frames = encode_entry(single(bytes(5000)), 7, limits(chunking=True), NOW)
    for buffers in frames:
        assert all(isinstance(buffer, bytes) for buffer in buffers)
        assert sum(map(len, buffers)) < 1100


# --- batches taken apart ----------------------------------------------------------------------


@pytest.mark.parametrize("codec", [pb.NONE, pb.LZ4])
@pytest.mark.parametrize("by_highest", [False, True])
def test_a_batch_can_be_taken_apart(impl: Implementation, codec: int, by_highest: bool) -> None:
    messages = [random_message(number) for number in range(20)]
    columns = OutgoingMessages.of(messages)
    data, _ = encoded(impl.encoder(3, "p", codec=codec), columns, 100, 20, by_highest=by_highest)
    found, is_by_highest = messages_of(data, decompress)
    expected = [replace(message, sequence_id=100 + n) for n, message in enumerate(messages)]
    assert messages_in(found) == expected
    assert is_by_highest is by_highest


# --- blocks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("per_entry", [1, 3, 10])
@pytest.mark.parametrize("keyed", [False, True])
def test_blocks_make_up_a_column_in_whole_entries_within_bounds(
    per_entry: int, keyed: bool
) -> None:
    rng = random.Random(per_entry)
    sizes = [rng.choice([0, 10, 100, 5_000, LARGE_ENTRY, 3 * BLOCK_BYTES]) for _ in range(500)]
    payloads = [bytes(size) for size in [*sizes, *[100] * 5000]]
    keys = [bytes(20)] * len(payloads) if keyed else None
    in_buffers = OutgoingMessages(_in_a_buffer(payloads), keys and _in_a_buffer(keys))
    start, blocks = 0, 0
    while start < len(payloads):
        stop, largest = block_of(OutgoingMessages(payloads, keys), per_entry, start, 2000)
        assert (stop, largest) == block_of(in_buffers, per_entry, start, 2000)
        entries = [
            sum(map(len, payloads[at : min(at + per_entry, stop)]))
            for at in range(start, stop, per_entry)
        ]
        assert stop == len(payloads) or (stop - start) % per_entry == 0
        assert stop - start <= 2000
        assert max(entries) <= largest
        assert len(entries) == 1 or (largest < LARGE_ENTRY and sum(entries) <= BLOCK_BYTES)
        start, blocks = stop, blocks + 1
    # Large ones are alone, small ones together.
    assert blocks < 500


def _in_a_buffer(values: list[bytes]) -> Any:
    return byte_values(pa.array(values, pa.binary()))


def test_small_messages_before_a_large_one_make_a_block() -> None:
    messages = OutgoingMessages([b"x"] * 100 + [bytes(LARGE_ENTRY)] + [b"x"] * 100)
    assert block_of(messages, 1, 0, 2000)[0] == 100
    assert block_of(messages, 1, 100, 2000)[0] == 101
    assert block_of(messages, 1, 101, 2000)[0] == 201
