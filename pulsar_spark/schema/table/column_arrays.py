"""A decoder's columns as Arrow's arrays."""

from __future__ import annotations

import pyarrow as pa

from pulsar_spark.protocol.blocks import BinaryColumn, Columns, FixedColumn
from pulsar_spark.schema.arrow.kernel_columns import arrow_buffer


def array_of(columns: Columns, name: str, kind: pa.DataType) -> pa.Array:
    """Return one of a decoder's columns as an array of its type."""
    found = columns.columns[name]
    if pa.types.is_map(kind):
        offsets, map_keys, items = found
        return pa.MapArray.from_arrays(
            _fixed((None, offsets, 0), pa.int32(), columns.rows + 1),
            _variable(map_keys, pa.string()),
            _variable(items, pa.string()),
        )
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return _variable(found, kind)
    return _fixed(found, kind, columns.rows)


def _variable(column: BinaryColumn, kind: pa.DataType) -> pa.Array:
    validity, offsets, data, nulls = column
    buffers = [_validity(validity), arrow_buffer(offsets), arrow_buffer(data)]
    return pa.Array.from_buffers(kind, buffers[1].size // 4 - 1, buffers, nulls)


def _fixed(column: FixedColumn, kind: pa.DataType, count: int) -> pa.Array:
    validity, data, nulls = column
    return pa.Array.from_buffers(kind, count, [_validity(validity), arrow_buffer(data)], nulls)


def _validity(bits: bytes | None) -> pa.Buffer | None:
    return None if bits is None else pa.py_buffer(bits)
