"""Columns of values that were converted one by one."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

from pulsar_spark.schema.arrow.arrays import binaries, booleans, integers
from pulsar_spark.schema.json.types import Rule, Shape


def build(values: Sequence[Any], shape: Shape) -> pa.Array:
    """Return a column of what `careful` made of values of a shape, None where null."""
    return _BUILDERS.get(shape.rule, _integers)(values, shape)


def _integers(values: Sequence[Any], shape: Shape) -> pa.Array:
    return integers(values, shape.kind)


def _texts(values: Sequence[Any], shape: Shape) -> pa.Array:
    return binaries(values, shape.kind)


def _nulls(values: Sequence[Any], shape: Shape) -> pa.Array:
    return pa.nulls(len(values))


def _validity(values: Sequence[Any]) -> pa.Buffer | None:
    if None not in values:
        return None
    return booleans([value is not None for value in values]).buffers()[1]


def _with_nulls(kind: pa.DataType, values: Sequence[Any], data: pa.Buffer | None) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [_validity(values), data])


def _booleans(values: Sequence[Any], shape: Shape) -> pa.Array:
    bits = booleans([bool(value) for value in values]).buffers()[1]
    return _with_nulls(shape.kind, values, bits)


def _decimals(values: Sequence[Any], shape: Shape) -> pa.Array:
    digits = b"".join([(value or 0).to_bytes(16, "little", signed=True) for value in values])
    return _with_nulls(shape.kind, values, pa.py_buffer(digits))


def _floats(values: Sequence[Any], shape: Shape) -> pa.Array:
    numbers = array("d", [0.0 if value is None else value for value in values])
    wide = _with_nulls(pa.float64(), values, pa.py_buffer(numbers))
    return wide.cast(shape.kind, safe=False)


def _structs(values: Sequence[Any], shape: Shape) -> pa.Array:
    nothing = (None,) * len(shape.parts)
    by_part = list(zip(*[nothing if v is None else v for v in values], strict=True))
    found = by_part or [()] * len(shape.parts)
    children = [build(items, part) for items, part in zip(found, shape.parts, strict=True)]
    return pa.Array.from_buffers(shape.kind, len(values), [_validity(values)], children=children)


def _arrays(values: Sequence[Any], shape: Shape) -> pa.Array:
    items = [item for value in values if value for item in value]
    return _lists(values, shape.kind, build(items, shape.parts[0]))


def _maps(values: Sequence[Any], shape: Shape) -> pa.Array:
    pairs = [pair for value in values if value for pair in value]
    children = [
        binaries([key for key, _ in pairs], pa.string()),
        build([value for _, value in pairs], shape.parts[0]),
    ]
    entries = pa.struct([shape.kind.key_field, shape.kind.item_field])
    inner = pa.Array.from_buffers(entries, len(pairs), [None], children=children)
    return _lists(values, shape.kind, inner)


def _lists(values: Sequence[Any], kind: pa.DataType, inner: pa.Array) -> pa.Array:
    offsets = array("i", accumulate((len(value or ()) for value in values), initial=0))
    buffers = [_validity(values), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(values), buffers, children=[inner])


_BUILDERS = {
    Rule.NULL: _nulls,
    Rule.BOOLEAN: _booleans,
    Rule.FLOAT: _floats,
    Rule.DECIMAL: _decimals,
    Rule.TEXT: _texts,
    Rule.ENUM: _texts,
    Rule.LOOSE_TEXT: _texts,
    Rule.BASE64: _texts,
    Rule.BYTES: _texts,
    Rule.RECORD: _structs,
    Rule.UNION: _structs,
    Rule.ARRAY: _arrays,
    Rule.MAP: _maps,
}
