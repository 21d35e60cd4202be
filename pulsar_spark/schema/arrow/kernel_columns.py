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


def columns_of(schema: pa.Schema, message: ArrowBuffer) -> list[pa.Array]:
    """Return the columns in a message of Arrow's IPC format."""
    batch = pa.ipc.read_record_batch(arrow_buffer(message), schema)
    return batch.columns  # type: ignore[no-any-return]


def arrow_buffer(data: ArrowBuffer) -> pa.Buffer:
    """Return an implementation's buffer as Arrow's, without a copy."""
    if isinstance(data, bytes | array):
        return pa.py_buffer(data)
    return pa.foreign_buffer(data.address, data.size, data)
