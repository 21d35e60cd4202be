"""Arrow arrays of any type of Avro's, from plain values, put together from buffers.

Values are None, bool, int (of dates, times and timestamps: what Arrow stores; of decimals: without
their point), float, bytes (of text: its UTF-8), lists of items, lists of pairs for maps, and lists
of fields for structs.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

from pulsar_spark.schema.arrow.arrays import binaries, booleans, integers


def build_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return an array of the type `kind`."""
    if pa.types.is_nested(kind):
        return _nested(values, kind)
    if pa.types.is_null(kind):
        return pa.nulls(len(values), kind)
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return binaries(values, kind)
    data: Any
    if pa.types.is_boolean(kind):
        data = booleans([bool(value) for value in values]).buffers()[1]
    elif pa.types.is_floating(kind):
        data = array("f" if kind.bit_width == 32 else "d", [value or 0.0 for value in values])
    elif pa.types.is_decimal(kind):
        data = b"".join([(value or 0).to_bytes(16, "little", signed=True) for value in values])
    else:
        return integers(values, kind)
    return pa.Array.from_buffers(kind, len(values), [validity(values), pa.py_buffer(data)])


def validity(values: Sequence[Any]) -> pa.Buffer | None:
    """Return the bits that say which values are there, None if all are."""
    if None not in values:
        return None
    return booleans([value is not None for value in values]).buffers()[1]


def struct_array(
    count: int, children: Sequence[pa.Array], kind: pa.DataType, present: pa.Buffer | None = None
) -> pa.Array:
    """Return an array of structs of `children`; there can be none of them."""
    return pa.Array.from_buffers(kind, count, [present], children=list(children))


def list_array(
    offsets: pa.Buffer,
    items: pa.Array,
    kind: pa.DataType,
    count: int,
    present: pa.Buffer | None = None,
) -> pa.Array:
    """Return an array of lists or, from pairs, of maps."""
    return pa.Array.from_buffers(kind, count, [present, offsets], children=[items])


def pair_type(kind: pa.DataType) -> pa.DataType:
    """Return the struct that the entries of a map are."""
    return pa.struct([kind.key_field, kind.item_field])


def _nested(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    present = validity(values)
    if pa.types.is_struct(kind):
        missing = [None] * kind.num_fields
        rows = [missing if value is None else value for value in values]
        fields = list(kind)
        columns = [
            build_array([row[place] for row in rows], field.type)
            for place, field in enumerate(fields)
        ]
        return struct_array(len(values), columns, kind, present)
    lengths = (0 if value is None else len(value) for value in values)
    offsets = pa.py_buffer(array("i", accumulate(lengths, initial=0)))
    flat = [item for value in values if value is not None for item in value]
    inner = pair_type(kind) if pa.types.is_map(kind) else kind.value_type
    return list_array(offsets, build_array(flat, inner), kind, len(values), present)
