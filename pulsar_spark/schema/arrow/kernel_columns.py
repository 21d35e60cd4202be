"""Arrow's arrays that the compiled kernel makes of typed values, and makes typed values of."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pulsar_spark.protocol.blocks import ArrowBuffer
from pulsar_spark.schema.arrow.arrays import as_words, integers, pair_type

_INT64 = pa.int64()
_NOTHING = pa.py_buffer(b"")


def read_in_kernel(
    kernel: Any, schema: pa.Schema, raw: pa.Array, versions: pa.Array | None
) -> tuple[list[pa.Array], list[int]]:
    """Return the columns of a binary array, and the rows that a decoder of the kernel refused.

    The array is not empty. `versions` are the numbers of the values' plans, as int32.
    """
    _, offsets, data = raw.buffers()
    edges = memoryview(offsets).cast("i")[raw.offset : raw.offset + len(raw) + 1]
    message, refused = kernel.decode(
        (data or _NOTHING)[edges[0] : edges[-1]].to_pybytes(),
        edges,
        _bytes_of(raw.is_valid()) if raw.null_count else None,
        None if versions is None else _bytes_of(versions),
    )
    return columns_of(schema, message), refused


def write_in_kernel(kernel: Any, columns: pa.RecordBatch) -> tuple[pa.Array, list[int]]:
    """Return the values of rows, and the rows that an encoder of the kernel refused.

    The types are those of the encoder.
    """
    offsets, data, refused = kernel.encode(columns.serialize().to_pybytes())
    buffers = [None, arrow_buffer(offsets), arrow_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), columns.num_rows, buffers), refused


def with_rows(
    columns: Sequence[pa.Array], count: int, rows: Sequence[int], others: Sequence[pa.Array]
) -> list[pa.Array]:
    """Return columns of `count` rows that have the values of others in these rows."""
    places = list(range(count))
    for place, row in enumerate(rows, count):
        places[row] = place
    order = integers(places, _INT64)
    return [
        pa.concat_arrays([column, other]).take(order)
        for column, other in zip(columns, others, strict=True)
    ]


def _bytes_of(numbers: pa.Array) -> bytes:
    """Return numbers below 256, or truth values, as bytes."""
    return as_words(numbers.cast(pa.uint8()), "B").tobytes()


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
