"""Columns as Arrow reads them from JSON → the columns of their shapes."""

from __future__ import annotations

from base64 import b64decode
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.schema.arrow.arrays import binaries, integers
from pulsar_spark.schema.json.types import Rule, Shape


def finish(column: pa.Array, shape: Shape) -> pa.Array:
    """Return a column of the type of its shape, from one of its wire type.

    Raises ArrowInvalid if a value has none in that type.
    """
    if _is_finished(shape):
        return column
    return _finish_parts(column, shape) if shape.parts else _finish_leaf(column, shape)


def _finish_leaf(column: pa.Array, shape: Shape) -> pa.Array:
    match shape.rule:
        case Rule.MOMENT | Rule.TIME:
            return _scaled(column, shape).view(shape.kind)
        case Rule.DECIMAL:
            return _in_precision(column)
        case Rule.BASE64:
            return _decoded(column)
    assert shape.rule is Rule.FLOAT
    return column.cast(shape.kind, safe=False)


def _finish_parts(column: pa.Array, shape: Shape) -> pa.Array:
    if shape.rule is Rule.RECORD:
        parts = [finish(column.field(i), part) for i, part in enumerate(shape.parts)]
        mask = column.is_null() if column.null_count else None
        fields = [shape.kind.field(i) for i in range(shape.kind.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=mask)
    assert shape.rule is Rule.ARRAY
    return pa.Array.from_buffers(
        shape.kind,
        len(column),
        column.buffers()[:2],
        column.null_count,
        column.offset,
        children=[finish(column.values, shape.parts[0])],
    )


def _is_finished(shape: Shape) -> bool:
    if shape.parts:
        return all(map(_is_finished, shape.parts))
    if shape.rule is Rule.DECIMAL:
        return False
    return shape.wire == shape.kind and shape.times == shape.divided == 1


def _in_precision(column: pa.Array) -> pa.Array:
    # Arrow's reader counts the digits that are written, before it brings them to the scale.
    kind = column.type
    limit = Decimal(10) ** (kind.precision - kind.scale)
    ends = pc.min_max(column).as_py()
    if any(end is not None and abs(end) >= limit for end in ends.values()):
        raise pa.ArrowInvalid("a decimal has too many digits")
    return column


def _scaled(column: pa.Array, shape: Shape) -> pa.Array:
    if shape.times > 1:
        return pc.multiply_checked(column, integers([shape.times], pa.int64())[0])
    if shape.divided == 1:
        return column
    # Towards the past, also before 1970; Arrow's division cuts off towards zero.
    divisor = integers([shape.divided], pa.int64())[0]
    quotient = pc.divide(column, divisor)
    back = pc.multiply(quotient, divisor)
    return pc.subtract(quotient, pc.greater(back, column).cast(pa.int64()))


def _decoded(column: pa.Array) -> pa.Array:
    try:
        return binaries(
            [
                None if text is None else b64decode(text, validate=True)
                for text in column.to_pylist()
            ]
        )
    except ValueError:
        raise pa.ArrowInvalid("a string is not base64") from None
