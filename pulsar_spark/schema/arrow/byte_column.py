"""Arrow's binary arrays as columns of messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.protocol.byte_column import ByteColumn
from pulsar_spark.schema.arrow.arrays import booleans, integers

_INT64 = pa.int64()


def byte_values(column: pa.Array) -> Sequence[bytes | None]:
    """Return the values of a binary array, as a ByteColumn if none is null."""
    if column.null_count or not len(column):
        return column.to_pylist()  # type: ignore[no-any-return]
    _, offsets, data = column.buffers()
    edges = memoryview(offsets)
    edges = edges.cast("q") if pa.types.is_large_binary(column.type) else edges.cast("i")
    start, end = column.offset, column.offset + len(column)
    return _ArrowByteColumn(
        column, memoryview(b"" if data is None else data), edges[start : end + 1]
    )


def without_nulls(
    values: Sequence[bytes | None],
) -> tuple[Sequence[bytes], pa.BooleanArray | None]:
    """Return values with empty ones in place of nulls, and where those are, None if nowhere."""
    if None not in values:
        return values, None  # type: ignore[return-value]
    return [value or b"" for value in values], booleans([value is None for value in values])


class _ArrowByteColumn(ByteColumn):
    """The values of a binary or large binary array, its data and edges."""

    __slots__ = ("_data", "_edges", "_values")

    def __init__(self, values: pa.Array, data: memoryview, edges: memoryview[int]) -> None:
        self._values = values
        self._data = data
        self._edges = edges

    @property
    def edges(self) -> memoryview[int]:
        return self._edges

    def edges_with(self, others: Sequence[ByteColumn]) -> memoryview[int]:
        edges = _numbers(self._edges)
        for other in others:
            edges = pc.add(edges, _numbers(other.edges))
        return memoryview(edges.buffers()[1]).cast("q")[: len(edges)]

    def joined(self) -> bytes:
        return self._data[self._edges[0] : self._edges[-1]].tobytes()

    def take(self, rows: Sequence[int]) -> list[bytes]:
        return self._values.take(integers(rows, _INT64)).to_pylist()  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self._edges) - 1

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._values.to_pylist())

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(index, int):
            return self._values[index].as_py()  # type: ignore[no-any-return]
        start, stop, step = index.indices(len(self))
        if step != 1:
            return self.take(range(start, stop, step))
        values = self._values.slice(start, max(stop - start, 0))
        return _ArrowByteColumn(values, self._data, self._edges[start : max(start, stop) + 1])


def _numbers(edges: memoryview[int]) -> pa.Array:
    kind = pa.int64() if edges.itemsize == 8 else pa.int32()
    return pa.Array.from_buffers(kind, len(edges), [None, pa.py_buffer(edges)]).cast(_INT64)
