"""Decodes the values of AVRO topics: a binary array → columns.

Values are decoded in columns, some thousands at a time; few ones, and those about which something
is odd, one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.schema.avro.arrays import build_array
from pulsar_spark.schema.avro.careful import Malformed, Read, read_value, reader_of
from pulsar_spark.schema.avro.reading import ColumnReader
from pulsar_spark.schema.avro.resolution import Plan
from pulsar_spark.schema.avro.vectors import Window
from pulsar_spark.schema.codec import Decoded, Undecodable

# A window takes eight times the memory of its values; what is larger is not copied like that.
MAX_ROWS = 16_384
MAX_BYTES = 4 * 1024 * 1024
# Fewer values than these are decoded faster one by one.
FEW = 320


class AvroDecoder:
    """Decodes values by a plan whose `type` is a struct of the columns."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._fields = list(plan.type)

    def __reduce__(self) -> tuple[type[AvroDecoder], tuple[Plan]]:
        return AvroDecoder, (self._plan,)

    @cached_property
    def _read(self) -> Read:
        return reader_of(self._plan)

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode a binary array; null is a value that is null."""
        bad: list[Undecodable] = []
        parts = [self._chunk(raw.slice(start, count), start, bad) for start, count in _chunks(raw)]
        columns = [
            _concat([part[place] for part in parts], field.type)
            for place, field in enumerate(self._fields)
        ]
        return Decoded(columns, bad)

    def _chunk(self, raw: pa.Array, first: int, bad: list[Undecodable]) -> Sequence[pa.Array]:
        count = len(raw) - raw.null_count
        size = pc.sum(pc.binary_length(raw)).as_py() or 0
        if count < FEW or size > 2 * MAX_BYTES:
            return self._one_by_one(raw, range(len(raw)), first, bad)
        present = raw.drop_null() if raw.null_count else raw
        columns, given_up = self._in_columns(present)
        if len(present) == len(raw) and not given_up:
            return columns
        rows = _rows_of(raw)
        odd = [rows[place] for place in given_up]
        again = self._one_by_one(raw, odd, first, bad)
        index: list[int | None] = [None] * len(raw)
        for place, row in enumerate(rows):
            index[row] = place
        for place, row in enumerate(odd, len(rows)):
            index[row] = place
        order = build_array(index, pa.int64())
        return [
            pa.concat_arrays([column, other]).take(order)
            for column, other in zip(columns, again, strict=True)
        ]

    def _in_columns(self, raw: pa.Array) -> tuple[Sequence[pa.Array], Sequence[int]]:
        """Decode values none of which is null; the rows that are given up come with them."""
        _, offsets, data = raw.buffers()
        edges = pa.Array.from_buffers(
            pa.int32(), len(raw) + 1, [None, offsets], offset=raw.offset
        ).cast(pa.int64())
        first, last = edges[0].as_py(), edges[-1].as_py()
        edges = pc.subtract(edges, edges[0])
        reader = ColumnReader(Window(data.slice(first, last - first)))
        found = reader.read_values(self._plan, edges.slice(0, len(raw)), edges.slice(1))
        return found.flatten(), reader.given_up

    def _one_by_one(
        self, raw: pa.Array, rows: Sequence[int], first: int, bad: list[Undecodable]
    ) -> Sequence[pa.Array]:
        read = self._read
        missing = [None] * len(self._fields)
        values = []
        some = raw if len(rows) == len(raw) else raw.take(build_array(rows, pa.int64()))
        for row, data in zip(rows, some.to_pylist(), strict=True):
            value = None
            if data is not None:
                try:
                    value = read_value(read, data)
                except Malformed as error:
                    bad.append(Undecodable(first + row, error.field, error.reason))
            values.append(missing if value is None else value)
        columns = zip(*values, strict=True) if values else [()] * len(self._fields)
        return [
            build_array(column, field.type)
            for column, field in zip(columns, self._fields, strict=True)
        ]


def _chunks(raw: pa.Array) -> Iterator[tuple[int, int]]:
    """Yield starts and counts of parts of bounded size."""
    start = 0
    step = MAX_ROWS
    if len(raw):
        average = (pc.sum(pc.binary_length(raw)).as_py() or 0) // len(raw) + 1
        step = max(1, min(MAX_ROWS, MAX_BYTES // average))
    while start < len(raw):
        yield start, min(step, len(raw) - start)
        start += step


def _rows_of(raw: pa.Array) -> list[int]:
    """Return the rows that are not null."""
    if not raw.null_count:
        return list(range(len(raw)))
    found: list[int] = pc.indices_nonzero(raw.is_valid()).to_pylist()
    return found


def _concat(parts: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    if not parts:
        return build_array([], kind)
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
