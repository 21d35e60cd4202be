"""Columns that the compiled kernel makes of typed values, as Arrow's arrays."""

from __future__ import annotations

from array import array
from typing import Any

import pyarrow as pa

from pulsar_spark.protocol.blocks import ArrowBuffer
from pulsar_spark.schema.arrow.arrays import pair_type


def layout(kind: pa.DataType) -> str | tuple[str, Any]:
    """Return a type's layout, by the kernel's names (`native/src/values.rs`)."""
    if pa.types.is_struct(kind):
        return "struct", [layout(field.type) for field in kind]
    if pa.types.is_map(kind):
        return "list", layout(pair_type(kind))
    if pa.types.is_list(kind):
        return "list", layout(kind.value_type)
    flat = {pa.null(): "null", pa.bool_(): "boolean", pa.binary(): "binary", pa.string(): "binary"}
    return flat.get(kind) or f"fixed{kind.bit_width}"


def column_of(kind: pa.DataType, made: tuple[Any, ...]) -> pa.Array:
    """Return the array of a type whose buffers the kernel has made."""
    if pa.types.is_null(kind):
        return pa.nulls(made[0], kind)
    rows, there, nulls, *rest = made
    buffers = [None if there is None else pa.py_buffer(there)]
    children = []
    if pa.types.is_struct(kind):
        children = [column_of(field.type, own) for field, own in zip(kind, rest[0], strict=True)]
    elif pa.types.is_nested(kind):
        inner = pair_type(kind) if pa.types.is_map(kind) else kind.value_type
        buffers.append(arrow_buffer(rest[0]))
        children = [column_of(inner, rest[1])]
    else:
        buffers += map(arrow_buffer, rest)
    return pa.Array.from_buffers(kind, rows, buffers, nulls, children=children or None)


def arrow_buffer(data: ArrowBuffer) -> pa.Buffer:
    """Return an implementation's buffer as Arrow's, without a copy."""
    if isinstance(data, bytes | array):
        return pa.py_buffer(data)
    return pa.foreign_buffer(data.address, data.size, data)
