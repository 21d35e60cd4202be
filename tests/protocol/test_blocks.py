"""Decoding in blocks: both implementations give what entries opened one by one give."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any

import pytest

from pulsar_spark.engine.codecs import decompress
from pulsar_spark.errors import DecompressionError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import DONE, FULL, SLOW
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, MessageIdAdv, Position
from tests.protocol import block_mutations, golden
from tests.protocol.block_streams import (
    COLUMNS,
    LEDGER,
    LIMIT,
    PARTITION,
    TIME,
    USUAL,
    arrays,
    blockwise,
    entry,
    frames,
    metadata,
    opened,
    options,
)
from tests.protocol.implementations import Implementation

# --- scanning -----------------------------------------------------------------------------


def test_frames_of_one_consumer_are_found_up_to_one_of_another(impl: Implementation) -> None:
    mine = [entry(number, b"x" * number, consumer_id=300) for number in range(5)]
    other = entry(9, b"", consumer_id=301)
    data = b"".join([b"before", *mine, other, other])
    end = len(data) - 2 * len(other)
    assert impl.scan_messages(data, 6, LIMIT)[:3] == (end, 300, 5)
    assert impl.scan_messages(data, end, LIMIT)[:3] == (len(data), 301, 2)
    assert impl.scan_messages(data, len(data), LIMIT) == (len(data), -1, 0, len(data))


def test_where_the_last_frame_starts_is_found(impl: Implementation) -> None:
    mine = [entry(number, bytes(10 * number)) for number in range(3)]
    data = b"".join([b"before", *mine, entry(9, b"", consumer_id=4)])
    starts = list(accumulate(map(len, mine), initial=6))
    for stop, last in zip(starts[1:], starts, strict=False):
        assert impl.scan_messages(data[:stop], 6, LIMIT)[3] == last


def test_a_frame_that_is_cut_is_not_found(impl: Implementation) -> None:
    first, second = entry(0, b"abc"), entry(1, b"def")
    data = first + second
    for stop in range(len(data)):
        found = impl.scan_messages(data[:stop], 0, LIMIT)[:3]
        assert found == ((len(first), 3, 1) if stop >= len(first) else (0, -1, 0))


def test_a_frame_above_the_limit_is_not_found(impl: Implementation) -> None:
    small, large = entry(0, b""), entry(1, bytes(100))
    data = small + large
    assert impl.scan_messages(data, 0, len(large) - 4)[:3] == (len(data), 3, 2)
    assert impl.scan_messages(data, 0, len(large) - 5)[:3] == (len(small), 3, 1)
    assert impl.scan_messages(large, 0, len(large) - 5) == (0, -1, 0, 0)


def test_another_command_or_layout_is_not_found(impl: Implementation) -> None:
    usual = entry(0, b"abc")
    ping = bytes.fromhex("000000090000000508129201 00".replace(" ", ""))
    assert impl.scan_messages(ping, 0, LIMIT) == (0, -1, 0, 0)
    assert impl.scan_messages(usual + ping, 0, LIMIT)[:3] == (len(usual), 3, 1)
    for at in (4, 5, 6, 7, 8, 9, 10, 11, 12):
        changed = bytearray(usual)
        changed[at] ^= 0x81
        assert impl.scan_messages(bytes(changed), 0, LIMIT) == (0, -1, 0, 0), at
    assert impl.scan_messages(b"", 0, LIMIT) == (0, -1, 0, 0)
    assert impl.scan_messages(bytes(40), 0, LIMIT) == (0, -1, 0, 0)
    assert impl.scan_messages(b"\xff" * 40, 0, LIMIT) == (0, -1, 0, 0)


def receipt(producer_id: int, sequence_id: int, *rest: int | None, **fields: int) -> bytes:
    ledger_id, entry_id, highest = rest
    command = pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT)
    found = command.send_receipt
    found.producer_id, found.sequence_id = producer_id, sequence_id
    found.message_id.ledgerId, found.message_id.entryId = ledger_id or 0, entry_id or 0
    for name, value in fields.items():
        setattr(found.message_id, name, value)
    if highest is not None:
        found.highest_sequence_id = highest
    data = command.SerializeToString()
    return (len(data) + 4).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data


def test_receipts_of_one_producer_are_found_with_their_numbers(impl: Implementation) -> None:
    none = 2**64 - 1
    parts = [
        receipt(200, 0, 5, 0, none),
        receipt(200, 127, 5, 127, 0),
        receipt(200, 128, 5, 128, 227),
        receipt(200, 2**40, 2**50, 2**33, None),
        receipt(200, 5, none, none, none),
        receipt(200, 6, 5, 6, none, partition=-1),
    ]
    data = b"".join([*parts, receipt(201, 7, 1, 1, None)])
    end, producer_id, found = impl.scan_receipts(data, 0, LIMIT)
    assert (end, producer_id) == (sum(map(len, parts)), 200)
    assert found.typecode == "q"
    assert list(found) == [
        *(0, 0, 5, 0),
        *(127, 127, 5, 127),
        *(128, 227, 5, 128),
        *(2**40, 2**40, 2**50, 2**33),
        *(5, 5, -1, -1),
        *(6, 6, 5, 6),
    ]
    assert impl.scan_receipts(data, end, LIMIT)[:2] == (len(data), 201)


def test_what_is_no_usual_receipt_is_not_found(impl: Implementation) -> None:
    usual = receipt(1, 2, 3, 4, 5)
    for stop in range(len(usual)):
        end, producer_id, found = impl.scan_receipts(usual[:stop], 0, LIMIT)
        assert (end, producer_id, len(found)) == (0, -1, 0)
    for at in range(12):
        changed = bytearray(usual)
        changed[at] ^= 0x81
        assert impl.scan_receipts(bytes(changed), 0, LIMIT)[1] == -1, at
    assert impl.scan_receipts(usual + entry(0, b""), 0, LIMIT)[:2] == (len(usual), 1)


@pytest.mark.parametrize("seed", range(3))
def test_receipts_of_any_bytes_are_what_protobuf_reads(impl: Implementation, seed: int) -> None:
    rng = random.Random(seed)
    numbers = [0, 1, 127, 128, 2**40, 2**63, 2**64 - 1]
    taken = 0
    for _ in range(3000):
        choice = [rng.choice(numbers) for _ in range(4)]
        partition = rng.choice([-1, 0, 3])
        data = bytearray(receipt(rng.choice([1, 300]), *choice, partition=partition))
        for _ in range(rng.choice([0, 1, 2])):
            data[rng.randrange(13, len(data))] = rng.choice(b"\0\1\x7f\x80\xff\x08\x10\x18\x1a\x20")
        end, producer_id, found = impl.scan_receipts(bytes(data), 0, LIMIT)
        if end:
            taken += 1
            command = pb.BaseCommand.FromString(bytes(data[8:]))
            read = command.send_receipt
            signed = [
                number - 2**64 if number > 2**63 - 1 else number
                for number in (
                    read.sequence_id,
                    read.highest_sequence_id,
                    read.message_id.ledgerId,
                    read.message_id.entryId,
                )
            ]
            signed[1] = signed[0] if signed[1] == -1 else max(signed[:2])
            assert (end, producer_id, list(found)) == (len(data), read.producer_id, signed)
    assert taken > 1000


@pytest.mark.parametrize("name", golden.names())
def test_recorded_conversations_are_scanned(impl: Implementation, name: str) -> None:
    for connection in golden.manifest(name)["connections"]:
        data = golden.stream(connection, "broker")
        at = 0
        for part in frames(data):
            kind = part[9]
            end, consumer_id, count, *_ = impl.scan_messages(data, at, 1 << 24)
            assert (count > 0) == (kind == pb.BaseCommand.MESSAGE)
            assert consumer_id == (part[13] if count else -1)
            end, producer_id, found = impl.scan_receipts(data, at, 1 << 24)
            assert (len(found) > 0) == (kind == pb.BaseCommand.SEND_RECEIPT)
            assert producer_id == (part[13] if found else -1)
            assert end >= at
            at += len(part)


# --- the usual shapes, of which none may need to be opened ----------------------------

BATCH = [metadata(b"a"), metadata(b""), metadata(b"c" * 300)]
PROPERTIES = [("a", "1"), ("ü", "\0"), ("a", "2"), ("", "")]


def batch(count: int, size: int = 5, **fields: Any) -> list[Any]:
    return [metadata(bytes([65 + i % 26]) * size, sequence_id=i, **fields) for i in range(count)]


SHAPES: dict[str, list[bytes]] = {
    "message": [entry(0, b"one"), entry(1, b"")],
    "null": [entry(0, None), entry(1, None, partition_key="k")],
    "key": [entry(0, b"v", partition_key="k"), entry(1, b"v", partition_key="")],
    "long key": [entry(0, b"v", partition_key="k" * 300)],
    "key of bytes": [
        entry(0, b"v", partition_key="/w==", partition_key_b64_encoded=True),
        entry(1, b"v", partition_key="", partition_key_b64_encoded=True),
    ],
    "payload like a key": [entry(0, b"2\x03abc"), entry(1, b"2"), entry(2, b"2\xff")],
    "uncompressed size": [
        entry(number, bytes(number), uncompressed_size=number) for number in range(300)
    ],
    "properties": [
        entry(0, b"v", properties=PROPERTIES),
        entry(1, b"v"),
        entry(2, b"v", properties=PROPERTIES, partition_key="k"),
        entry(3, b"v", properties=[("x" * 200, "y" * 20_000)]),
    ],
    "event time": [
        entry(0, b"v", event_time=1500),
        entry(1, b"v"),
        entry(2, b"v", event_time=253_402_300_799_999),
        entry(3, b"v", event_time=253_402_300_800_000),
        entry(4, b"v", event_time=1_790_000_000_000_000),
        entry(5, b"v", event_time=2**63 - 1),
        entry(
            6,
            [
                metadata(b"a", event_time=time, **more)
                for time in (2**63 - 1, 253_402_300_799_999, 253_402_300_800_000, 0, 1)
                for more in ({}, {"properties": PROPERTIES}, {"ordering_key": b"o"})
            ],
        ),
        entry(7, [metadata(b"a", event_time=1_790_000_000_000_000)] * 300, codec=pb.LZ4),
    ],
    "publish time": [
        entry(0, b"v", publish_time=0),
        entry(1, b"v", publish_time=253_402_300_799_999),
        entry(2, b"v", publish_time=253_402_300_800_000),
    ],
    "ordering key": [entry(0, b"v", ordering_key=b"\xff"), entry(1, b"v", ordering_key=b"")],
    "schema version": [
        entry(0, b"v", schema_version=bytes(8)),
        entry(1, b"v", schema_version=bytes(8)),
        entry(2, b"v", schema_version=b"\0" * 7 + b"\1"),
        entry(3, BATCH, schema_version=b"\0" * 7 + b"\1"),
        entry(4, b"v"),
    ],
    "replicated": [entry(0, b"v", replicated_from="r", replicate_to=["a", "b"]), entry(1, b"v")],
    "passed on": [
        entry(
            0,
            b"v",
            deliver_at_time=5,
            txnid_least_bits=3,
            txnid_most_bits=4,
            highest_sequence_id=9,
            null_partition_key=True,
        )
    ],
    "redelivered": [
        entry(0, b"v", redelivery_count=3),
        entry(1, b"v", consumer_epoch=0),
        entry(2, b"v", redelivery_count=2**31),
    ],
    "compacted": [
        entry(0, [metadata(b"", compacted_out=True), metadata(b"b")]),
        entry(
            1,
            [
                metadata(b"v" * size, compacted_out=size % 3 == 0, partition_key=str(size))
                for size in range(20)
            ],
            index=30,
        ),
    ],
    "many properties": [entry(0, b"v", properties=[(str(i % 700), str(i)) for i in range(999)])],
    "large numbers": [
        entry(0, b"v", sequence_id=2**64 - 1, event_time=2**64 - 1),
        entry(1, BATCH, sequence_id=2**64 - 2, publish_time=2**64 - 1, index=2**64 - 1),
    ],
    "partitions": [entry(0, b"v", partition=None), entry(1, b"v", partition=7)],
    "index": [
        entry(0, b"v", index=4),
        entry(1, BATCH, index=7, broker_timestamp=TIME),
        entry(2, b"v", broker_timestamp=TIME),
        entry(3, b"v"),
    ],
    "batch": [entry(0, BATCH), entry(1, BATCH[:1])],
    "batch with keys": [entry(0, batch(5, partition_key="k", partition_key_b64_encoded=False))],
    "batch with all": [
        entry(
            0,
            [
                metadata(b"a", properties=PROPERTIES, partition_key="/w==", event_time=5),
                metadata(None, partition_key_b64_encoded=True, partition_key="/w==", sequence_id=7),
                metadata(b"c", ordering_key=b"o", null_partition_key=True),
                metadata(b"", properties=[("k", "v")]),
            ],
            highest_sequence_id=3,
            partition_key="not the messages'",
        )
    ],
    "large batch": [entry(0, batch(2000)), entry(1, batch(130, 7)), entry(2, batch(16))],
    "LZ4": [
        entry(0, batch(100, 50), codec=pb.LZ4),
        entry(1, b"v" * 500, codec=pb.LZ4, partition_key="k"),
        entry(2, batch(3), codec=pb.LZ4),
        entry(3, " ".join(map(str, range(5000))).encode(), codec=pb.LZ4),
    ],
    "other codecs": [
        entry(number, batch(20, 50), codec=codec)
        for number, codec in enumerate([pb.ZLIB, pb.ZSTD, pb.SNAPPY])
    ],
    "ledgers": [
        entry(number, b"v", ledger_id=ledger_id)
        for ledger_id in (5, 127, 128, 2**40, 2**63 - 1)
        for number in (0, 127, 128, 16_384)
    ],
    "producers taking turns": [
        entry(
            number,
            b"v" * number,
            producer_name=f"p-{number % 3}" * (1 + number % 3),
            publish_time=TIME + number // 5,
            sequence_id=number * 100,
        )
        for number in range(300)
    ],
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("columns", [COLUMNS, USUAL, {"value"}, set()], ids=len)
def test_usual_entries_are_taken_in_blocks(
    impl: Implementation, name: str, columns: Iterable[str]
) -> None:
    stream = SHAPES[name]
    found = impl.read(*stream, columns=columns)
    assert not found.slow
    assert not found.errors
    assert found.messages >= len(stream)
    assert all(impl.read(part, columns=columns).rows() for part in stream if columns)


@pytest.mark.parametrize("column", sorted(COLUMNS))
def test_each_column_can_be_read_alone(impl: Implementation, column: str) -> None:
    for stream in SHAPES.values():
        assert not impl.read(*stream, columns={column}).slow


def test_rows_hold_what_messages_say(impl: Implementation) -> None:
    found = impl.read(*SHAPES["batch with all"], entry(1, b"v", partition_key="k"))
    assert found.column("value") == [b"a", None, b"c", b"", b"v"]
    assert found.column("key") == [b"/w==", b"\xff", None, None, b"k"]
    assert found.column("properties")[0] == [("a", "2"), ("ü", "\0"), ("", "")]
    assert found.column("message_id") == [
        *(MessageIdAdv(LEDGER, 0, PARTITION, index, 4).serialize() for index in range(4)),
        MessageIdAdv(LEDGER, 1, PARTITION).serialize(),
    ]
    assert found.column("sequence_id") == [0, 7, 2, 3, 1]
    assert found.column("batch_index") == [0, 1, 2, 3, -1]
    assert found.column("size") == [1, 0, 1, 0, 1]
    assert found.position == Position(LEDGER, 2, 0)
    assert found.messages == 5


def test_runs_of_one_schema_version_are_reported(impl: Implementation) -> None:
    data = b"".join(SHAPES["schema version"])
    decoder = impl.make(options({"value"}), lambda *_: b"")
    assert decoder.decode(data, 0, len(data), EARLIEST_POSITION)[1] == DONE
    columns = decoder.take()
    assert columns is not None
    one = b"\0" * 7 + b"\1"
    versions, starts, numbers = columns.version_runs
    assert versions == [bytes(8), one, b""]
    assert (list(array("i", starts)), list(array("i", numbers))) == ([0, 2, 6], [0, 1, 2])
    assert decoder.take() is None


def test_a_row_is_located(impl: Implementation) -> None:
    data = entry(4, b"v") + entry(5, BATCH) + entry(6, b"v")
    decoder = impl.make(options({"value"}), lambda *_: b"")
    decoder.decode(data, 0, len(data), Position(LEDGER, 5, 1))
    columns = decoder.take()
    assert columns is not None
    assert [columns.locate(row) for row in range(3)] == [
        (LEDGER, 5, 1, 3),
        (LEDGER, 5, 2, 3),
        (LEDGER, 6, -1, 0),
    ]
    for row in (-1, 3):
        with pytest.raises(IndexError):
            columns.locate(row)


KEY: dict[str, Any] = {"partition_key": "YWJj"}
MARKED: dict[str, Any] = {**KEY, "partition_key_b64_encoded": True}
FAR = 253_402_300_799_999


@pytest.mark.parametrize(
    "data, is_exact",
    [
        (entry(0, b"v", **KEY, event_time=FAR, properties=[("a", "b")]), True),
        (entry(0, b"v", **KEY, partition_key_b64_encoded=False), True),
        (entry(0, [metadata(b"v", **KEY, event_time=FAR)] * 3, codec=pb.LZ4), True),
        (entry(0, [metadata(b"\x30\x01\x88\x01\x01", **KEY)] * 3), True),
        (entry(0, b"v", **MARKED), False),
        (entry(0, b"v") + entry(1, b"v", event_time=FAR + 1), False),
        (entry(0, [metadata(b"v", **KEY), metadata(b"v", **MARKED)]), False),
        (entry(0, [metadata(b"v", **MARKED)] * 3, codec=pb.LZ4), False),
        (entry(0, [metadata(b"v")] * 3 + [metadata(b"v", event_time=FAR + 1)]), False),
        (entry(0, [metadata(b"v")] * 50_001 + [metadata(b"v", **MARKED)]), False),
    ],
    ids=[
        "alone",
        "not marked",
        "compressed",
        "like marks",
        "marked alone",
        "far alone",
        "marked in a batch",
        "marked and compressed",
        "far in a batch",
        "marked in a large batch",
    ],
)
def test_columns_say_whether_keys_and_event_times_are_as_they_were_sent(
    impl: Implementation, data: bytes, is_exact: bool
) -> None:
    decoder = impl.make(options(USUAL, max_rows=100_000), decompress)
    for stream, expected in ((data, is_exact), (entry(2, b"next", **KEY), True)):
        assert decoder.decode(stream, 0, len(stream), EARLIEST_POSITION)[1] == DONE
        columns = decoder.take()
        assert columns is not None
        assert columns.is_exact is expected


# --- frames that are opened first ----------------------------------------------------------

UNUSUAL: dict[str, bytes] = {
    "marker": entry(1, b"", marker_type=10),
    "encrypted": entry(1, b"v", encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")]),
    "chunk": entry(1, b"v", uuid="u", num_chunks_from_msg=2, total_chunk_msg_size=2, chunk_id=0),
    "acknowledged in part": entry(1, BATCH, ack_set=[5]),
    "unknown codec": entry(1, b"v", uncompressed_size=1).replace(b"\x48\x01", b"\x40\x09"),
    "damaged LZ4": entry(1, b"v" * 100, codec=pb.LZ4, uncompressed_size=99),
    "too large": entry(1, bytes(1000), codec=pb.LZ4, uncompressed_size=LIMIT + 1),
    "not base64": entry(1, b"v", partition_key="@", partition_key_b64_encoded=True),
    "not base64 in a batch": entry(
        1, [metadata(b"v", partition_key="@", partition_key_b64_encoded=True)]
    ),
    "empty batch": entry(1, b"", num_messages_in_batch=0),
    "negative batch": entry(1, b"", num_messages_in_batch=-1),
    "batch with a message more": entry(1, BATCH, num_messages_in_batch=4),
    "batch with a message less": entry(1, BATCH, num_messages_in_batch=2),
    "huge batch": entry(1, BATCH, num_messages_in_batch=2**31 - 1),
    "entry of 64 bits": entry(2**64 - 1, b"v", ledger_id=LEDGER - 1),
    "entry of 63 bits": entry(2**63 - 1, b"v", ledger_id=LEDGER - 1),
}

# The reference takes them, the kernel does not.
NOT_TEXT: dict[str, bytes] = {
    "origin that is not UTF-8": entry(1, b"v", replicated_from="??").replace(b"??", b"\xff?"),
    "property that is not UTF-8": entry(1, b"v", properties=[("a", "??")]).replace(b"??", b"\xff?"),
}


@pytest.mark.parametrize("name", NOT_TEXT)
def test_what_is_not_text_has_replacement_characters(impl: Implementation, name: str) -> None:
    found = impl.read(block_mutations.checked(NOT_TEXT[name]))
    (row,) = found.rows()
    assert "\ufffd?" in (row["replicated_from"], *dict(row["properties"]).values())


@pytest.mark.parametrize("name", UNUSUAL)
def test_other_entries_are_opened_first(impl: Implementation, name: str) -> None:
    # Changed frames get a new checksum.
    found = impl.read(
        entry(0, b"before", ledger_id=LEDGER - 1),
        block_mutations.checked(UNUSUAL[name]),
        entry(2, b"behind"),
    )
    assert len(found.slow) == 1
    assert found.column("value")[0] == b"before"
    assert found.column("value")[-1] == b"behind"


def test_only_what_is_decompressed_has_a_limit(impl: Implementation) -> None:
    assert not impl.read(entry(0, bytes(5000)), entry(1, batch(9, 900)), max_payload=100).slow


def test_a_wrong_checksum_is_an_error_of_its_entry(impl: Implementation) -> None:
    for content in (b"v", BATCH):
        damaged = bytearray(entry(1, content))
        damaged[-1] ^= 1
        found = impl.read(entry(0, b"v"), bytes(damaged), entry(2, b"v"))
        assert [error[1] for error in found.errors] == ["ChecksumMismatch"]
        assert len(found.rows()) == 2


def test_a_codec_that_cannot_is_for_the_opener_but_an_interrupt_is_not(
    impl: Implementation,
) -> None:
    data = entry(0, b"before") + entry(1, batch(20), codec=pb.ZLIB)

    def refuse(*_: Any) -> bytes:
        raise DecompressionError("no")

    def interrupt(*_: Any) -> bytes:
        raise KeyboardInterrupt

    decoder = impl.make(options({"value"}), refuse)
    done = decoder.decode(data, 0, len(data), EARLIEST_POSITION)
    assert (done.status, decoder.rows, decoder.slow_frames) == (SLOW, 1, 1)
    assert done.position == (LEDGER, 1, 0)
    with pytest.raises(KeyboardInterrupt):
        impl.make(options({"value"}), interrupt).decode(data, 0, len(data), EARLIEST_POSITION)


def test_decoders_in_several_threads_do_not_disturb_each_other(impl: Implementation) -> None:
    data = b"".join(SHAPES["producers taking turns"] * 20)
    wanted = options(USUAL)
    expected = blockwise(impl.make, data, wanted)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: blockwise(impl.make, data, wanted), range(8)):
            found.same_as(expected)


# --- ranges -------------------------------------------------------------------------------

STREAM = [
    entry(0, b"0"),
    entry(1, BATCH),
    entry(2, b"2"),
    entry(3, BATCH, codec=pb.LZ4),
    entry(4, b"4"),
]


@pytest.mark.parametrize("start", range(6))
@pytest.mark.parametrize("stop", range(6))
@pytest.mark.parametrize("first,last", [(0, 0), (1, 2), (3, 1), (4, 0)])
def test_a_range_begins_and_ends_where_it_should(
    impl: Implementation, start: int, stop: int, first: int, last: int
) -> None:
    end = (LEDGER, stop, last)
    found = impl.read(*STREAM, start=Position(LEDGER, start, first), end=end)
    assert not found.slow


def test_a_range_ends_in_a_ledger_that_is_gone(impl: Implementation) -> None:
    found = impl.read(*STREAM, entry(0, b"", ledger_id=80), end=(79, 5, 0))
    assert found.ended
    assert len(found.rows()) == 9
    assert impl.read(*STREAM, end=(LEDGER - 1, 9, 0)).rows() == []


def test_entries_before_the_position_are_passed_by_whatever_is_in_them(
    impl: Implementation,
) -> None:
    damaged = bytearray(entry(0, b"abc"))
    damaged[-1] ^= 1
    found = impl.read(bytes(damaged), entry(1, BATCH), entry(2, b"v"), start=Position(LEDGER, 2))
    assert found.messages == 5
    assert not found.errors
    assert not found.slow


@pytest.mark.parametrize("low,high", [(None, TIME), (TIME, None), (TIME + 1, TIME + 2), (5, 5)])
def test_entries_of_other_times_give_no_rows_but_cost_permits(
    impl: Implementation, low: int | None, high: int | None
) -> None:
    contents: list[Any] = [b"v", BATCH, b"v"]
    stream = [
        entry(number, content, publish_time=TIME + number, codec=codec)
        for number, content in enumerate(contents)
        for codec in (pb.NONE, pb.LZ4)
    ]
    found = impl.read(*stream, published_from=low, published_before=high)
    assert not found.slow
    # Each entry came twice, and is skipped the second time.
    assert found.messages == 10


# --- bounds -------------------------------------------------------------------------------


@pytest.mark.parametrize("max_rows", [1, 2, 7, 100])
@pytest.mark.parametrize("name", ["large batch", "producers taking turns", "LZ4", "batch with all"])
def test_no_more_rows_than_are_wanted(impl: Implementation, name: str, max_rows: int) -> None:
    if max_rows == 1 and name == "large batch":
        max_rows = 3
    found = impl.read(*SHAPES[name], max_rows=max_rows, columns=USUAL)
    assert not found.slow
    assert max(found.sizes) <= max_rows
    assert sum(found.sizes) == len(found.rows())


def test_no_more_bytes_than_are_wanted(impl: Implementation) -> None:
    stream = [entry(number, batch(50, 100)) for number in range(10)]
    stream += [entry(10, bytes(9000)), entry(11, bytes(10)), entry(12, bytes(5000))]
    found = impl.read(*stream, max_bytes=2000)
    assert not found.slow
    assert max(found.sizes) <= 2000 // 100
    assert found.sizes[-3:] == [1, 1, 1]
    whole = impl.read(*stream, max_bytes=7000)
    assert whole.sizes[:10] == [50] * 10


SHARED: dict[str, Any] = {"schema_version": b"v", "producer_name": "p", "replicated_from": "r"}


@pytest.mark.fault(91)
@pytest.mark.parametrize("size", [100, 4000, 50_000])
@pytest.mark.parametrize("codec", [pb.NONE, pb.LZ4])
@pytest.mark.parametrize("column", SHARED)
def test_what_a_batch_shares_counts_for_each_of_its_messages(
    impl: Implementation, column: str, codec: int, size: int
) -> None:
    text = SHARED[column] * size
    found = impl.read(
        *[entry(number, batch(100), codec=codec, **{column: text}) for number in range(3)],
        columns={"value", column},
        max_bytes=20_000,
    )
    assert len(found.rows()) == 300
    # Python leaves long names to the opener.
    if not found.slow:
        assert max(found.sizes) == max(min(20_000 // (size + 13), 100), 1)


def test_what_a_batch_shares_does_not_count_unless_its_column_is_wanted(
    impl: Implementation,
) -> None:
    texts: dict[str, Any] = {name: 100 * text for name, text in SHARED.items()}
    found = impl.read(entry(0, batch(100), **texts), columns={"value"}, max_bytes=2000)
    assert found.sizes == [100]


@pytest.mark.parametrize("size", [8, 500, 5000])
def test_schema_versions_of_batches_alike_count_for_each_message(
    impl: Implementation, size: int
) -> None:
    stream = [entry(number, batch(10), schema_version=b"v" * size) for number in range(200, 250)]
    found = impl.read(*stream, columns=USUAL | {"schema_version"}, max_bytes=20_000)
    assert not found.slow
    assert len(found.rows()) == 500
    assert max(found.sizes) * size <= 20_000
    assert size > 8 or len(found.sizes) == 1


@pytest.mark.fault(92)
def test_a_batch_that_is_taken_in_parts_is_decompressed_once(impl: Implementation) -> None:
    calls: list[int] = []

    def count(*args: Any) -> Any:
        calls.append(1)
        return decompress(*args)

    data = entry(0, batch(1000), codec=pb.ZSTD)
    decoder = impl.make(options(USUAL, max_rows=10), count)
    at, status, rows, position = 0, FULL, 0, (-1, -1, 0)
    while status == FULL:
        at, status, _, position = decoder.decode(data, at, len(data), position)
        rows += decoder.rows
        assert decoder.take() is not None
    assert (rows, len(calls)) == (1000, 1)


def test_a_full_decoder_continues_where_it_stopped(impl: Implementation) -> None:
    data = b"".join(STREAM)
    decoder = impl.make(options(max_rows=2, columns={"value"}), lambda *_: b"")
    at, status, messages, position = decoder.decode(data, 0, len(data), EARLIEST_POSITION)
    assert (status, messages, position) == (FULL, 1, (LEDGER, 1, 0))
    assert (decoder.rows, at) == (1, len(STREAM[0]))
    assert decoder.take() is not None
    at, status, messages, position = decoder.decode(data, at, len(data), position)
    assert (status, messages, position) == (FULL, 0, (LEDGER, 1, 2))
    # Nothing more is decoded until the rows are taken.
    assert decoder.decode(data, at, len(data), position)[1] == FULL
    assert decoder.rows == 2


# --- messages that are laid out alike ----------------------------------------------------

ALIKE = [
    entry(number, b"v" * (number % 7), partition_key="key", publish_time=TIME + number)
    for number in range(300, 350)
]
_NAME_AT = ALIKE[0].index(b"standalone")
_SIZE_AT = _NAME_AT - 6
_TIME_AT = _NAME_AT + len("standalone-0-28") + 4
_KEY_SIZE_AT = ALIKE[0].index(b"\x32\x03key") + 1


def _changed(at: int, value: int) -> bytes:
    data = bytearray(ALIKE[25])
    data[at] = value
    return block_mutations.checked(bytes(data), _SIZE_AT)


DIFFERENT = {
    "metadata that is longer than the frame": _changed(_SIZE_AT + 3, 100),
    "metadata that is shorter than its key": _changed(_SIZE_AT + 3, 30),
    "a key that is longer than the metadata": _changed(_KEY_SIZE_AT, 4),
    "a key that is longer than the frame": _changed(_KEY_SIZE_AT, 120),
    "a key that is shorter": _changed(_KEY_SIZE_AT, 2),
    "a key without bytes": entry(325, b"v", partition_key="", publish_time=TIME),
    "a long key": entry(325, b"v", partition_key="k" * 200, publish_time=TIME),
    "no key": entry(325, b"v", publish_time=TIME),
    "a number with fewer digits": _changed(_TIME_AT + 1, 5),
    "a number with more digits": _changed(_TIME_AT + 5, 0x85),
    "another time": entry(325, b"v", partition_key="key", publish_time=2**41),
    "a time after the last one": entry(325, b"v", partition_key="key", publish_time=2**48),
    "another ledger": entry(325, b"v", partition_key="key", ledger_id=LEDGER + 1),
    "a gap": entry(327, b"v", partition_key="key", publish_time=TIME),
    "a large payload": entry(325, bytes(5000), partition_key="key", publish_time=TIME),
    "too large a payload": entry(325, bytes(7000), partition_key="key", publish_time=TIME),
    "a batch": entry(325, [metadata(b"v")], partition_key="key", publish_time=TIME),
    "properties": entry(325, b"v", partition_key="key", properties=[("a", "b")]),
    "a schema version": entry(325, b"v", partition_key="key", schema_version=b"v"),
    "a damaged frame": ALIKE[25][:-1] + b"x",
}


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.parametrize("others", [[], ALIKE[26:]], ids=["last", "amid"])
def test_one_message_of_many_that_are_alike_may_differ(
    impl: Implementation, name: str, others: list[bytes]
) -> None:
    impl.read(*ALIKE[:25], DIFFERENT[name], *others, columns=USUAL, max_payload=6000)


def test_messages_that_are_alike_but_for_their_properties_keep_them(impl: Implementation) -> None:
    frames = [
        entry(number, b"v", publish_time=TIME, properties=[("a", str(number % 3))])
        for number in range(300, 350)
    ]
    impl.read(*frames, columns=USUAL)


def test_messages_keep_what_belongs_to_each_of_them(impl: Implementation) -> None:
    sent: list[dict[str, Any]] = [
        {
            "value": b"v" * number,
            "partition_key": "k" * (number % 5),
            "properties": [("number", str(number)), ("source", "web")][: number % 3],
            "event_time": TIME + number,
        }
        for number in range(300)
    ]
    frames = []
    for number, message in enumerate(sent):
        fields = dict(message)
        frames.append(entry(number, fields.pop("value"), **fields))
    found = impl.read(*frames, columns=USUAL)
    assert found.column("value") == [message["value"] for message in sent]
    assert found.column("key") == [message["partition_key"].encode() for message in sent]
    assert found.column("properties") == [message["properties"] for message in sent]
    times = [time.timestamp() for time in found.column("event_time")]
    assert times == [message["event_time"] / 1000 for message in sent]


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("name", ["not base64", "unknown codec"])
def test_of_many_messages_only_an_unusual_one_is_left(
    impl: Implementation, name: str, mixed: bool
) -> None:
    def message(number: int) -> bytes:
        fields: dict[str, Any] = {"partition_key": "L2s=", "partition_key_b64_encoded": True}
        if mixed and number % 2:
            fields = {}
        return entry(number, b"v", properties=[("a", "b")], **fields)

    frames = [message(number) for number in range(60)]
    frames[30] = block_mutations.checked(UNUSUAL[name].replace(b"\x10\x01", b"\x10\x1e"))
    assert len(impl.read(*frames, columns=USUAL).slow) == 1


@pytest.mark.parametrize("batched", [False, True])
def test_each_message_keeps_how_often_it_was_delivered(impl: Implementation, batched: bool) -> None:
    frames = [
        entry(number, batch(3) if batched else b"v", redelivery_count=3 if number < 30 else 5)
        for number in range(60)
    ]
    columns = USUAL | {"redelivery_count"}
    for parts in ([frames], [frames[:30], frames[30:]]):
        decoder = impl.make(options(columns), lambda *_: b"")
        position: tuple[int, int, int] = EARLIEST_POSITION
        for part in parts:
            data = b"".join(part)
            _, status, _, position = decoder.decode(data, 0, len(data), position)
            assert status == DONE
        taken = decoder.take()
        assert taken is not None
        counts = array("i", bytes(taken.columns["redelivery_count"][1]))
        each = 3 if batched else 1
        assert list(counts) == [3] * 30 * each + [5] * 30 * each


def test_columns_keep_their_values_while_later_ones_are_made(impl: Implementation) -> None:
    kept, expected = [], []
    decoder = impl.make(options(COLUMNS), lambda *_: b"")
    for number in range(12):
        # In turn columns that are large, small, and dropped before the next ones are made.
        count = 5 if number % 3 == 1 else 2500
        frames = [
            entry(
                at,
                f"value {number} {at}".encode(),
                properties=[("name", f"{number} {at}"), ("other", "x")],
                partition_key=f"key {number} {at}",
                schema_version=b"%08d" % number,
                replicated_from=f"cluster {number}",
                ordering_key=b"%d" % at,
                event_time=number + 1,
            )
            for at in range(count)
        ]
        data = b"".join(frames)
        assert decoder.decode(data, 0, len(data), EARLIEST_POSITION).status == DONE
        columns = decoder.take()
        assert columns is not None
        if number % 3 < 2:
            kept.append(arrays(columns, COLUMNS))
            expected.append(opened(data, options(COLUMNS)).table())
    del columns, decoder
    for found, wanted in zip(kept, expected, strict=True):
        assert {name: found[name] for name in wanted} == wanted


ALIKE_BATCHES = [
    entry(
        number,
        batch(3 + number // 340, 10 + number // 330, partition_key="key"),
        partition_key="key",
        publish_time=TIME + number,
    )
    for number in range(300, 350)
]


def _batch_with(*others: tuple[pb.SingleMessageMetadata, bytes], **fields: Any) -> bytes:
    content = [*batch(3 - len(others), 10, partition_key="key"), *others]
    return entry(325, content, **{"partition_key": "key", "publish_time": TIME, **fields})


DIFFERENT_BATCHES = {
    "more messages": _batch_with(*batch(4, 10)),
    "messages of other sizes": _batch_with(metadata(b"longer than others", sequence_id=2)),
    "no keys": _batch_with(*batch(3, 10)),
    "a null value": _batch_with(metadata(None, partition_key="key", sequence_id=2)),
    "a key of bytes": _batch_with(metadata(partition_key="/w==", partition_key_b64_encoded=True)),
    "properties": _batch_with(metadata(b"v", properties=PROPERTIES), metadata(b"v", event_time=5)),
    "a message that was compacted": _batch_with(metadata(compacted_out=True)),
    "properties of the entry": _batch_with(properties=[("a", "b")]),
    "a schema version": _batch_with(schema_version=b"v"),
    "a codec": _batch_with(codec=pb.LZ4),
    "no batch": entry(325, b"v", partition_key="key", publish_time=TIME),
    "fewer messages than it claims": _batch_with(num_messages_in_batch=4),
    "more messages than it claims": _batch_with(num_messages_in_batch=2),
    "too large a batch": _batch_with(metadata(bytes(13_000))),
    "a gap": ALIKE_BATCHES[28],
}


@pytest.mark.parametrize("name", DIFFERENT_BATCHES)
@pytest.mark.parametrize("others", [[], ALIKE_BATCHES[26:]], ids=["last", "amid"])
def test_one_batch_of_many_that_are_alike_may_differ(
    impl: Implementation, name: str, others: list[bytes]
) -> None:
    frames = [*ALIKE_BATCHES[:25], DIFFERENT_BATCHES[name], *others]
    impl.read(*frames, columns=USUAL, max_payload=15_000)


def test_of_batches_alike_each_must_have_its_messages(
    impl: Implementation,
) -> None:
    fields: dict[str, Any] = {"partition_key": "key", "publish_time": TIME}
    three = batch(3, 10, partition_key="key")
    fewer = entry(325, three[:2], num_messages_in_batch=3, **fields)
    more = entry(326, [*three, *three[:1]], num_messages_in_batch=3, **fields)
    assert len(impl.read(*ALIKE_BATCHES[:25], fewer, more, columns=USUAL).errors) == 2


def test_of_many_batches_alike_only_the_wanted_ones_are_taken(impl: Implementation) -> None:
    total = 40 * 3 + 10 * 4
    assert impl.read(*ALIKE_BATCHES, columns=USUAL).sizes == [total]
    rows = [len(impl.read(*ALIKE_BATCHES, columns=USUAL, max_rows=size).rows()) for size in (2, 70)]
    assert rows == [total, total]
    assert len(impl.read(*ALIKE_BATCHES, columns=USUAL, max_bytes=2000).rows()) == total
    end = (LEDGER, 330, 1)
    assert len(impl.read(*ALIKE_BATCHES, columns=USUAL, end=end).rows()) == 30 * 3 + 1
    start = Position(LEDGER, 330, 2)
    assert len(impl.read(*ALIKE_BATCHES, columns=USUAL, start=start).rows()) == total - 30 * 3 - 2


def test_of_many_frames_alike_only_the_wanted_ones_are_taken(impl: Implementation) -> None:
    assert impl.read(*ALIKE, columns=USUAL).sizes == [50]
    assert impl.read(*ALIKE, columns=USUAL, max_rows=20).sizes == [20, 20, 10]
    bytes_of_all = sum(len(data) - _SIZE_AT - 4 for data in ALIKE)
    first, *_ = impl.read(*ALIKE, columns=USUAL, max_bytes=bytes_of_all // 2).sizes
    assert 20 <= first <= 25
    end = (LEDGER, 340, 0)
    assert impl.read(*ALIKE, columns=USUAL, end=end).column("value")[-1] == b"v" * (339 % 7)
    start = Position(LEDGER, 330, 0)
    assert len(impl.read(*ALIKE, columns=USUAL, start=start).rows()) == 20


# --- any bytes ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_any_bytes_give_what_the_opener_gives(impl: Implementation, seed: int) -> None:
    block_mutations.compare(impl.make, random.Random(seed), frames=8000)


@pytest.mark.parametrize("seed", range(2))
def test_messages_that_are_alike_give_what_the_opener_gives(
    impl: Implementation, seed: int
) -> None:
    block_mutations.compare_alike(impl.make, random.Random(seed), streams=150)


def test_damaged_lz4_blocks_give_what_the_opener_gives(impl: Implementation) -> None:
    left, taken = block_mutations.compare_compressed(impl.make, random.Random(5), entries=1500)
    assert left == 0
    # Most damage only changes literals, which no decoder can tell.
    assert taken > 1000


@pytest.mark.slow
def test_thousands_of_streams_that_are_alike_give_what_the_opener_gives(
    impl: Implementation,
) -> None:
    block_mutations.compare_alike(impl.make, random.Random(78), streams=2000)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_million_damaged_frames_give_what_the_opener_gives(impl: Implementation) -> None:
    # The rest of a million is for the compiled one, in which damage could do more harm.
    count = 1_000_000 if impl.name == "native" else 100_000
    block_mutations.compare(impl.make, random.Random(77), frames=count)


@pytest.mark.parametrize("name", golden.names())
def test_recorded_entries_give_what_the_opener_gives(impl: Implementation, name: str) -> None:
    for connection in golden.manifest(name)["connections"]:
        data = golden.stream(connection, "broker")
        found = [part for part in frames(data) if part[9] == pb.BaseCommand.MESSAGE]
        impl.read(*found, max_payload=1 << 24)
