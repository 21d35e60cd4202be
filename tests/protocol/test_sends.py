"""SENDs: metadata, size limits and chunks."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pulsar_spark.engine.codecs import compress, decompress
from pulsar_spark.errors import InvalidRow, MessageTooLarge
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.frame_parts import parse_payload
from pulsar_spark.protocol.frames import FrameDecoder
from pulsar_spark.protocol.sends import (
    EncodedSend,
    OutgoingEntry,
    SendLimits,
    encode_entry,
)

NOW = 1_763_700_000_123


def limits(**changes: Any) -> SendLimits:
    values: dict[str, Any] = {
        "producer_name": "p",
        "producer_id": 3,
        "max_message_size": 1000,
        "topic": "t",
        "compress": compress,
    }
    return SendLimits(**{**values, **changes})


class Parsed:
    """A SEND, parsed as by a broker, and its EncodedSend."""

    def __init__(self, send: EncodedSend) -> None:
        self.size = send.size
        self.sequence_id = send.sequence_id
        self.highest_sequence_id = send.highest_sequence_id
        self.num_messages = send.num_messages
        self.chunk = send.chunk
        self.is_last = send.is_last
        self.command, self.metadata, self.payload = parse_frame(b"".join(send.buffers))


def parse_frame(data: bytes) -> tuple[pb.BaseCommand, bytes, bytes]:
    decoder = FrameDecoder()
    decoder.receive_data(data)
    frame = decoder.next_frame()
    assert frame is not None
    assert decoder.buffered == 0
    parts = parse_payload(frame.payload)
    assert parts.checksum is not None
    return frame.command, bytes(parts.metadata_bytes), bytes(parts.payload)


def encode_all(entry: OutgoingEntry, limits: SendLimits) -> list[Parsed]:
    return [Parsed(send) for send in encode_entry(entry, 7, limits, NOW)]


def encode(entry: OutgoingEntry, first: int = 7, **changes: Any) -> Parsed:
    (send,) = encode_entry(entry, first, limits(**changes), NOW)
    return Parsed(send)


def metadata(send: Parsed) -> pb.MessageMetadata:
    return pb.MessageMetadata.FromString(send.metadata)


def message(payload: bytes = b"x", **fields: Any) -> OutgoingEntry:
    return OutgoingEntry(lambda _: payload, **fields)


def test_a_message_carries_all_its_fields_in_its_metadata() -> None:
    send = encode(
        message(
            b"payload",
            partition_key="AAE=",
            key_is_base64=True,
            ordering_key=b"\x00\xff",
            properties=[("a", "1"), ("a", "2"), ("", "")],
            event_time=1234,
            deliver_at=5678,
            replicate_to=("r1", "r2"),
        )
    )
    found = metadata(send)
    assert (found.producer_name, found.sequence_id) == ("p", 7)
    assert found.publish_time == NOW
    assert (found.partition_key, found.partition_key_b64_encoded) == ("AAE=", True)
    assert found.ordering_key == b"\x00\xff"
    assert [(pair.key, pair.value) for pair in found.properties] == [
        ("a", "1"),
        ("a", "2"),
        ("", ""),
    ]
    assert (found.event_time, found.deliver_at_time) == (1234, 5678)
    assert list(found.replicate_to) == ["r1", "r2"]
    assert not found.HasField("num_messages_in_batch")
    assert not found.HasField("compression")
    assert send.payload == b"payload"
    assert send.command.send.producer_id == 3
    assert not send.command.send.HasField("highest_sequence_id")


@pytest.mark.fault(95)
@pytest.mark.parametrize("key", ["", "\x00", "😀", "k" * 500])
def test_any_text_is_a_key(key: str) -> None:
    found = metadata(encode(message(partition_key=key)))
    assert found.HasField("partition_key")
    assert found.partition_key == key


@pytest.mark.fault(95)
def test_no_key_and_no_time_are_not_set() -> None:
    found = metadata(encode(message()))
    for name in ("partition_key", "ordering_key", "event_time", "deliver_at_time", "null_value"):
        assert not found.HasField(name)


@pytest.mark.fault(95)
def test_null_values_and_null_keys_are_marked() -> None:
    found = metadata(encode(message(b"", null_value=True, null_key=True)))
    assert found.null_value
    assert found.null_partition_key
    assert not metadata(encode(message(b""))).null_value


@pytest.mark.fault(95)
@pytest.mark.parametrize(
    "fields",
    [
        {"partition_key": "\ud800"},
        {"properties": [("a", "\udfff")]},
        {"event_time": -1},
        {"event_time": 2**64},
        {"deliver_at": 2**63},
    ],
)
def test_what_cannot_be_expressed_is_an_error_of_the_row(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRow, match="cannot be sent"):
        encode(message(**fields))


def test_a_batch_says_how_many_it_holds_and_its_ids() -> None:
    send = encode(OutgoingEntry(lambda first: b"%d" % first, 5, partition_key="first"))
    found = metadata(send)
    assert (found.num_messages_in_batch, found.sequence_id, found.highest_sequence_id) == (5, 7, 11)
    assert found.partition_key == "first"
    command = send.command.send
    assert (command.num_messages, command.sequence_id, command.highest_sequence_id) == (5, 7, 11)
    assert send.payload == b"7"
    assert (send.num_messages, send.highest_sequence_id) == (5, 11)


def test_a_batch_of_one_is_still_a_batch() -> None:
    assert metadata(encode(OutgoingEntry(lambda _: b"", 1))).HasField("num_messages_in_batch")


def test_ids_of_the_caller_are_taken_over() -> None:
    send = encode(OutgoingEntry(lambda _: b"", 3, sequence_ids=(10, 50)), first=10)
    assert (send.sequence_id, send.highest_sequence_id) == (10, 50)


@pytest.mark.parametrize("codec", [pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY])
def test_the_whole_body_is_compressed_and_its_size_told(codec: int) -> None:
    body = b"abcdef" * 50
    send = encode(OutgoingEntry(lambda _: body, 50), compression=codec)
    found = metadata(send)
    assert found.compression == codec
    assert found.uncompressed_size == len(body)
    assert len(send.payload) < len(body)
    assert bytes(decompress(codec, send.payload, len(body), 10_000)) == body


def test_an_empty_payload_is_not_compressed() -> None:
    send = encode(message(b""), compression=pb.LZ4)
    assert not metadata(send).HasField("compression")
    assert send.payload == b""


def test_the_schema_version_is_the_producers_unless_the_entry_has_its_own() -> None:
    assert not metadata(encode(message())).HasField("schema_version")
    own = b"\x00" * 7 + b"\x02"
    assert metadata(encode(message(), schema_version=b"v")).schema_version == b"v"
    found = metadata(encode(message(schema_version=own), schema_version=b"v"))
    assert found.schema_version == own


def test_a_transaction_is_named_in_command_and_metadata() -> None:
    send = encode(message(txn=TxnId(2, 9)))
    found = metadata(send)
    assert (found.txnid_most_bits, found.txnid_least_bits) == (2, 9)
    command = send.command.send
    assert (command.txnid_most_bits, command.txnid_least_bits) == (2, 9)


# --- limits ---------------------------------------------------------------------------------


def overhead(**fields: Any) -> int:
    return len(encode(message(b"", **fields)).metadata)


@pytest.mark.fault(86)
def test_the_largest_message_fits_and_one_byte_more_does_not() -> None:
    room = 1000 - overhead()
    assert encode(message(bytes(room))).size == 1000
    with pytest.raises(MessageTooLarge, match="1001 bytes") as raised:
        encode(message(bytes(room + 1)))
    assert raised.value.topic == "t"


@pytest.mark.fault(86)
@pytest.mark.parametrize("field", ["partition_key", "ordering_key", "properties"])
def test_keys_and_properties_count(field: str) -> None:
    def fields(size: int) -> dict[str, Any]:
        if field == "properties":
            return {field: [("name", "v" * size)]}
        return {field: "k" * size if field == "partition_key" else b"k" * size}

    fixed = overhead(**fields(500)) - 500
    assert encode(message(b"", **fields(1000 - fixed))).size == 1000
    with pytest.raises(MessageTooLarge, match=r"1001 bytes \(1001 of them metadata"):
        encode(message(b"", **fields(1001 - fixed)))


@pytest.mark.fault(86)
def test_a_batch_is_held_against_the_same_limit() -> None:
    with pytest.raises(MessageTooLarge, match="a batch of 4 messages"):
        encode(OutgoingEntry(lambda _: bytes(1000), 4), chunking=True)


@pytest.mark.fault(86)
def test_what_counts_is_the_compressed_size() -> None:
    assert encode(message(bytes(5000)), compression=pb.ZLIB).size < 1000


# --- chunks ---------------------------------------------------------------------------------


@pytest.mark.fault(86)
@pytest.mark.parametrize("size", [990, 1000, 1001, 5000, 12_345])
def test_chunks_repeat_the_metadata_and_make_up_the_payload(size: int) -> None:
    payload = bytes(number % 251 for number in range(size))
    calls: list[object] = []
    entry = message(
        payload,
        partition_key="k",
        properties=[("a", "b")],
        callback=lambda error, message_id: calls.append(None),
    )
    sends = encode_all(entry, limits(chunking=True))
    assert len(sends) > 1
    assert b"".join(bytes(send.payload) for send in sends) == payload
    for number, send in enumerate(sends):
        found = metadata(send)
        assert send.size <= 1000
        assert (found.uuid, found.chunk_id) == ("p-7", number)
        assert found.num_chunks_from_msg == len(sends)
        assert found.total_chunk_msg_size == size
        assert (found.partition_key, len(found.properties), found.sequence_id) == ("k", 1, 7)
        assert send.command.send.is_chunk
        assert send.command.send.sequence_id == send.highest_sequence_id == 7
        assert send.chunk == number
        last = number == len(sends) - 1
        assert send.is_last == last
        assert send.num_messages == (1 if last else 0)


@pytest.mark.fault(86)
def test_a_message_that_fits_is_not_cut() -> None:
    (send,) = encode_all(message(bytes(900)), limits(chunking=True))
    assert not metadata(send).HasField("uuid")
    assert send.chunk is None


def test_chunks_can_be_asked_to_be_smaller() -> None:
    sends = encode_all(message(bytes(2000)), limits(chunking=True, chunk_size=100))
    assert {len(send.payload) for send in sends} == {100}
    assert len(sends) == 20
    # Also if the broker would accept the whole message, as in the Java client.
    assert len(encode_all(message(bytes(300)), limits(chunking=True, chunk_size=100))) == 3
    for size, few in ((100, limits(chunking=True, chunk_size=100)), (300, limits(chunk_size=100))):
        (whole,) = encode_all(message(bytes(size)), few)
        assert whole.chunk is None


def test_a_message_in_chunks_is_compressed_as_a_whole() -> None:
    payload = random.Random(1).randbytes(3000) + bytes(3000)
    sends = encode_all(message(payload), limits(chunking=True, compression=pb.ZLIB))
    joined = b"".join(bytes(send.payload) for send in sends)
    found = metadata(sends[0])
    assert found.uncompressed_size == 6000
    assert found.total_chunk_msg_size == len(joined)
    assert decompress(pb.ZLIB, joined, 6000, 10_000) == payload


@pytest.mark.fault(86)
def test_metadata_that_leaves_no_room_for_a_chunk_is_an_error() -> None:
    with pytest.raises(MessageTooLarge):
        encode_all(message(b"x", partition_key="k" * 1000), limits(chunking=True))


@pytest.mark.fault(106)
def test_a_chunk_is_no_view_that_keeps_the_whole_message() -> None:
    for send in encode_entry(message(bytes(5000)), 7, limits(chunking=True), NOW):
        assert all(isinstance(buffer, bytes) for buffer in send.buffers)
        assert sum(map(len, send.buffers)) < 1100
