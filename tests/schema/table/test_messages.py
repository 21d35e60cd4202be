"""Record batches of blocks equal those of opened entries, whatever is between blocks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.engine.codecs import decompress
from pulsar_spark.engine.consumers.entries import EntryDecoder
from pulsar_spark.engine.consumers.reader import take_opened
from pulsar_spark.errors import CorruptMessage
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import FULL, SLOW
from pulsar_spark.protocol.frames import MessageBlock
from pulsar_spark.protocol.implementation import make_decoder
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.table import names
from pulsar_spark.schema.table.metadata_columns import SOURCES
from pulsar_spark.schema.table.record_batches import (
    DROPMALFORMED,
    Projection,
    PublishTimes,
    RecordBatchBuilder,
)
from tests.protocol.block_streams import PARTITION, TIME, TOPIC, entry, frames, metadata

ALL = {
    names.VALUE: pa.binary(),
    names.TOPIC: pa.string(),
    names.PARTITION: pa.int32(),
    **{name: kind for name, (_, kind) in SOURCES.items()},
}
INT32 = SchemaInfo(pb.Schema.Int32, "INT32")
INT64 = SchemaInfo(pb.Schema.Int64, "INT64")
OLD, NEW = b"\0" * 8, b"\0" * 7 + b"\1"


def builder(
    columns: dict[str, pa.DataType], *, max_rows: int = 10_000, **projection: Any
) -> RecordBatchBuilder:
    return RecordBatchBuilder(
        pa.schema(columns),
        Projection(tuple(columns), **projection),
        TOPIC,
        PARTITION,
        {OLD: INT32, NEW: INT64}.__getitem__,
        max_rows=max_rows,
    )


def of_entries(target: RecordBatchBuilder, stream: bytes) -> Iterator[pa.RecordBatch]:
    """Open all entries."""
    opener = EntryDecoder(TOPIC, EARLIEST_POSITION, None, 1 << 20)
    decoder = make_decoder(target.block_options(None, 1 << 20), decompress)
    for frame in MessageBlock(3, stream, 0, len(stream), 0).frames():
        if (found := opener.decode(frame)) is not None:
            for columns in take_opened(found, EARLIEST_POSITION, decoder):
                yield from target.build(columns)
    if (last := decoder.take()) is not None:
        yield from target.build(last)


def of_blocks(target: RecordBatchBuilder, stream: bytes) -> Iterator[pa.RecordBatch]:
    """Take a stream in blocks, and open rare entries."""
    decoder = make_decoder(target.block_options(None, 1 << 20), decompress)
    opener = EntryDecoder(TOPIC, EARLIEST_POSITION, None, 1 << 20)
    at, position = 0, EARLIEST_POSITION[:]
    while at < len(stream):
        at, status, _, position = decoder.decode(stream, at, len(stream), position)
        if status == FULL and (columns := decoder.take()) is not None:
            yield from target.build(columns)
        if status == SLOW:
            frame, at = MessageBlock(3, stream, at, len(stream), 0).frame(at)
            opener.position = EARLIEST_POSITION
            if (found := opener.decode(frame)) is not None:
                for columns in take_opened(found, Position(*position), decoder):
                    yield from target.build(columns)
            position = opener.position
    if (last := decoder.take()) is not None:
        yield from target.build(last)


def table(batches: Iterator[pa.RecordBatch], columns: dict[str, pa.DataType]) -> pa.Table:
    return pa.Table.from_batches(list(batches), pa.schema(columns)).combine_chunks()


def stream_of(seed: int, entries: int = 120) -> bytes:
    """Return batches and single messages, some of them rare."""
    rng = random.Random(seed)
    found: list[bytes] = []
    for entry_id in range(entries):
        common: dict[str, Any] = {"publish_time": TIME + entry_id}
        if rng.random() < 0.2:
            common["schema_version"] = rng.choice([OLD, NEW])
        if rng.random() < 0.2:
            common["properties"] = [("a", str(entry_id)), ("b", "")]
        if rng.random() < 0.15:
            # A decoder leaves it to be opened.
            common["ack_set"] = [-1]
        if rng.random() < 0.5:
            found.append(entry(entry_id, rng.randbytes(5), partition_key="k", **common))
            continue
        variants: list[dict[str, Any]] = [{}, {"partition_key": "k"}, {"event_time": TIME}]
        count = rng.randrange(1, 8)
        messages = [
            metadata(
                rng.choice([b"", b"xyz", None]),
                **rng.choice(variants),
            )
            for _ in range(count)
        ]
        found.append(entry(entry_id, messages, **common))
    return b"".join(found)


@pytest.mark.parametrize("max_rows", [1, 7, 10_000])
@pytest.mark.parametrize("seed", range(3))
def test_blocks_give_the_rows_of_entries(seed: int, max_rows: int) -> None:
    stream = stream_of(seed)
    batches = list(of_blocks(builder(ALL, max_rows=max_rows), stream))
    assert all(batch.num_rows <= max_rows for batch in batches)
    assert table(iter(batches), ALL).equals(table(of_entries(builder(ALL), stream), ALL))


@pytest.mark.parametrize("name", ALL)
def test_each_column_alone_equals_the_column_of_entries(name: str) -> None:
    stream, columns = stream_of(9), {name: ALL[name]}
    assert table(of_blocks(builder(columns), stream), columns).equals(
        table(of_entries(builder(columns), stream), columns)
    )


def test_rows_are_filtered_by_the_time_of_their_entries() -> None:
    stream = stream_of(4)
    wanted = PublishTimes(TIME + 30, TIME + 60)
    found = table(of_blocks(builder(ALL, times=wanted), stream), ALL)
    assert found.num_rows
    assert found.equals(table(of_entries(builder(ALL, times=wanted), stream), ALL))


def test_what_is_larger_than_a_decoder_decompresses_is_opened_for_it() -> None:
    large = entry(0, b"v" * 50_000, codec=pb.LZ4)
    decoder = make_decoder(builder(ALL).block_options(None, 1000), decompress)
    assert decoder.decode(large, 0, len(large), EARLIEST_POSITION)[1] == SLOW
    opener = EntryDecoder(TOPIC, EARLIEST_POSITION, None, 1 << 20)
    opened = opener.decode(MessageBlock(3, large, 0, len(large), 0).frame(0)[0])
    assert opened is not None
    assert list(take_opened(opened, EARLIEST_POSITION, decoder)) == []
    taken = decoder.take()
    assert taken is not None
    (batch,) = builder(ALL).build(taken)
    assert batch.column(0).to_pylist() == [b"v" * 50_000]


# --- values of a schema -------------------------------------------------------------------


def numbers(*values: tuple[bytes, bytes]) -> bytes:
    return b"".join(
        entry(number, value, schema_version=version) if version else entry(number, value)
        for number, (value, version) in enumerate(values)
    )


def typed(stream: bytes, mode: str = "FAILFAST") -> tuple[Sequence[Any], RecordBatchBuilder]:
    columns = {"value": pa.int64(), "__entryId": pa.int64()}
    target = builder(columns, schema=INT64, mode=mode)
    return table(of_blocks(target, stream), columns).to_pylist(), target


def test_each_message_is_decoded_with_the_version_it_was_written_with() -> None:
    values = [
        ((5).to_bytes(4, "big"), OLD),
        ((6).to_bytes(8, "big"), NEW),
        ((7).to_bytes(8, "big"), b""),
        ((8).to_bytes(4, "big"), OLD),
    ]
    assert [row["value"] for row in typed(numbers(*values * 5))[0]] == [5, 6, 7, 8] * 5


def test_a_value_that_does_not_decode_is_named_by_its_message() -> None:
    with pytest.raises(CorruptMessage) as caught:
        typed(numbers((bytes(8), NEW), (bytes(3), NEW)))
    assert caught.value.message_id == f"77:1:{PARTITION}:-1"


def test_rows_that_do_not_decode_can_be_dropped() -> None:
    rows, target = typed(numbers((bytes(8), NEW), (bytes(3), NEW), (bytes(8), NEW)), DROPMALFORMED)
    assert [row["__entryId"] for row in rows] == [0, 2]
    assert target.dropped == 1


def test_the_streams_of_these_tests_have_rare_entries_among_the_others() -> None:
    stream = stream_of(0)
    options = builder(ALL).block_options(None, 1 << 20)
    assert options is not None
    decoder = make_decoder(options, decompress)
    for frame in frames(stream):
        decoder.decode(frame, 0, len(frame), EARLIEST_POSITION)
    assert 5 < decoder.slow_frames < 60
