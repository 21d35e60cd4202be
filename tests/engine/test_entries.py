from __future__ import annotations

from typing import Any

import pytest

from pulsar_spark.engine.codecs import compress
from pulsar_spark.engine.consumers.entries import EntryDecoder
from pulsar_spark.errors import (
    ChecksumMismatch,
    CorruptBatch,
    CorruptMessage,
    DecompressionError,
    EncryptedMessage,
    UnsupportedCodec,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import Frame, ReceivedEntry
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from tests.engine.topics import batch_body, stored_entry

TOPIC = "persistent://public/default/t-partition-4"
LIMIT = 64 * 1024 * 1024


def message(entry: bytes, ledger_id: int = 5, entry_id: int = 7) -> Frame:
    message_id = pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id, partition=4)
    command = pb.CommandMessage(consumer_id=1, message_id=message_id, redelivery_count=2)
    base = pb.BaseCommand(type=pb.BaseCommand.MESSAGE, message=command)
    return Frame(base, memoryview(entry))


def batch(count: int, **fields: Any) -> bytes:
    body = batch_body([b"%d" % index for index in range(count)])
    return stored_entry(body, num_messages_in_batch=count, **fields)


def decoder(
    start: Position = EARLIEST_POSITION, end: Position | None = None, limit: int = LIMIT
) -> EntryDecoder:
    return EntryDecoder(TOPIC, start, end, limit)


def decoded(entry: bytes, **arguments: Any) -> ReceivedEntry:
    found = decoder(**arguments).decode(message(entry))
    assert found is not None
    return found


def test_a_plain_message_is_its_payload() -> None:
    entry = decoded(stored_entry(b"value", partition_key="k"))
    assert bytes(entry.payload) == b"value"
    assert (entry.ledger_id, entry.entry_id, entry.partition) == (5, 7, 4)
    assert (entry.wanted, entry.is_batch) == (range(1), False)
    assert (entry.topic, entry.redelivery_count) == (TOPIC, 2)
    assert entry.metadata.partition_key == "k"
    assert entry.broker_entry_metadata is None
    assert entry.size == len(stored_entry(b"value", partition_key="k"))


def test_a_batch_of_one_is_a_batch() -> None:
    entry = decoded(batch(1))
    assert entry.is_batch
    assert entry.wanted == range(1)


@pytest.mark.parametrize("codec", [pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY])
def test_payloads_are_decompressed(codec: int) -> None:
    body = batch_body([b"x" * 1000] * 10)
    entry = decoded(
        stored_entry(
            bytes(compress(codec, body)),
            num_messages_in_batch=10,
            compression=codec,
            uncompressed_size=len(body),
        )
    )
    assert bytes(entry.payload) == body
    assert entry.size < len(body)


@pytest.mark.fault(32, 33)
def test_an_entry_without_checksum_and_one_with_broker_metadata_are_read() -> None:
    assert bytes(decoded(stored_entry(b"old", checksum=False)).payload) == b"old"
    stamp = pb.BrokerEntryMetadata(broker_timestamp=9, index=3).SerializeToString()
    stamped = b"\x0e\x02" + len(stamp).to_bytes(4, "big") + stamp + stored_entry(b"new")
    entry = decoded(stamped)
    assert bytes(entry.payload) == b"new"
    assert entry.broker_entry_metadata is not None
    assert entry.broker_entry_metadata.index == 3


def damaged(entry: bytes, position: int) -> bytes:
    return entry[:position] + bytes([entry[position] ^ 1]) + entry[position + 1 :]


@pytest.mark.fault(32, 33, 36, 37, 38, 40)
@pytest.mark.parametrize(
    "entry, kind",
    [
        (damaged(stored_entry(b"value"), -1), ChecksumMismatch),
        (stored_entry(b"value")[:8], CorruptMessage),
        (b"", CorruptMessage),
        (stored_entry(b"", num_messages_in_batch=0), CorruptBatch),
        (stored_entry(b"", num_messages_in_batch=-1), CorruptBatch),
        (stored_entry(b"x", compression=pb.LZ4, uncompressed_size=100), DecompressionError),
        (
            stored_entry(b"x", compression=pb.ZLIB, uncompressed_size=2**32 - 1),
            DecompressionError,
        ),
        (
            stored_entry(b"", encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")]),
            EncryptedMessage,
        ),
    ],
)
def test_what_cannot_be_read_is_named_and_not_passed_by(
    entry: bytes, kind: type[CorruptMessage]
) -> None:
    reader = decoder()
    for _ in range(2):
        with pytest.raises(kind) as caught:
            reader.decode(message(entry))
        assert caught.value.topic == TOPIC
        assert caught.value.message_id == "5:7"
        assert reader.position == EARLIEST_POSITION


@pytest.mark.fault(38)
def test_a_codec_that_nobody_knows_is_no_plain_payload() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    raw = metadata.SerializeToString() + b"\x40\x63"
    entry = len(raw).to_bytes(4, "big") + raw + b"value"
    with pytest.raises(UnsupportedCodec, match="codec 99"):
        decoder().decode(message(entry))


@pytest.mark.fault(37)
def test_the_limit_bounds_what_is_decompressed() -> None:
    body = bytes(10_000)
    entry = stored_entry(
        bytes(compress(pb.ZLIB, body)), compression=pb.ZLIB, uncompressed_size=len(body)
    )
    assert len(decoded(entry, limit=10_000).payload) == 10_000
    with pytest.raises(DecompressionError):
        decoded(entry, limit=9_999)


@pytest.mark.fault(62)
@pytest.mark.parametrize(
    "start, end, expected",
    [
        (EARLIEST_POSITION, None, range(10)),
        (Position(5, 7), None, range(10)),
        (Position(5, 7, 4), None, range(4, 10)),
        (Position(5, 7, 9), None, range(9, 10)),
        (Position(5, 7, 10), None, None),
        (Position(5, 8), None, None),
        (EARLIEST_POSITION, Position(5, 7), None),
        (EARLIEST_POSITION, Position(5, 7, 1), range(1)),
        (EARLIEST_POSITION, Position(5, 7, 10), range(10)),
        (EARLIEST_POSITION, Position(5, 7, 99), range(10)),
        (EARLIEST_POSITION, Position(5, 8), range(10)),
        (EARLIEST_POSITION, Position(4, 99), None),
        (Position(5, 7, 2), Position(5, 7, 5), range(2, 5)),
        (Position(5, 6, 2), Position(6, 0, 5), range(10)),
    ],
)
def test_a_range_cuts_a_batch_at_its_indexes(
    start: Position, end: Position | None, expected: range | None
) -> None:
    entry = decoder(start, end).decode(message(batch(10)))
    if expected is None:
        assert entry is None
    else:
        assert entry is not None
        assert entry.wanted == expected


@pytest.mark.fault(62)
@pytest.mark.parametrize("start, wanted", [(0, True), (1, False), (7, False)])
def test_a_plain_message_has_the_index_zero(start: int, wanted: bool) -> None:
    entry = decoder(Position(5, 7, start)).decode(message(stored_entry(b"x")))
    assert (entry is not None) is wanted


def test_the_position_moves_behind_each_entry() -> None:
    reader = decoder(Position(5, 7, 3))
    reader.decode(message(batch(10)))
    assert reader.position == Position(5, 8)
    reader.decode(message(batch(10), 6, 0))
    assert reader.position == Position(6, 1)


def test_entries_that_come_again_are_dropped_and_still_cost_permits() -> None:
    reader = decoder(Position(5, 8))
    assert reader.decode(message(batch(10))) is None
    assert reader.messages == 10
    assert reader.decode(message(stored_entry(b"x"))) is None
    assert reader.messages == 1
    assert reader.decode(message(b"damaged")) is None
    assert reader.messages == 1
    assert reader.position == Position(5, 8)


@pytest.mark.fault(61)
@pytest.mark.parametrize(
    "end, entry_id, finished",
    [
        (Position(5, 8), 7, True),
        (Position(5, 7, 10), 7, True),
        (Position(5, 7, 3), 7, True),
        (Position(5, 9), 7, False),
        (Position(5, 9), 9, True),
        (Position(5, 9, 1), 9, True),
        (Position(6, 0), 7, False),
    ],
)
def test_the_end_is_found_by_comparing(end: Position, entry_id: int, finished: bool) -> None:
    reader = decoder(end=end)
    reader.decode(message(batch(10), 5, entry_id))
    assert reader.finished is finished


@pytest.mark.parametrize("end", [Position(5, 7), Position(5, 6), EARLIEST_POSITION])
def test_an_empty_range_is_finished_at_once(end: Position) -> None:
    assert decoder(Position(5, 7), end).finished


def test_markers_are_passed_by() -> None:
    reader = decoder()
    assert reader.decode(message(stored_entry(b"", marker_type=20))) is None
    assert reader.position == Position(5, 8)


def test_a_null_value_is_a_message() -> None:
    entry = decoded(stored_entry(b"", null_value=True))
    assert entry.metadata.null_value
