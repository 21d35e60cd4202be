"""How each scalar type of protobuf is written: from which columns, in which bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.errors import InvalidRow
from pulsar_spark.schema.arrow.arrays import integers
from pulsar_spark.schema.protobuf import wire
from pulsar_spark.schema.protobuf.types import UNSIGNED, EnumType, Field, Type, type_name

_INT64, _UINT64 = pa.int64(), pa.uint64()
_ZIGZAG = frozenset((Type.TYPE_SINT32, Type.TYPE_SINT64))
_FIXED: dict[int, pa.DataType] = {
    Type.TYPE_FIXED32: pa.uint32(),
    Type.TYPE_SFIXED32: pa.int32(),
    Type.TYPE_FIXED64: pa.uint64(),
    Type.TYPE_SFIXED64: pa.int64(),
}
_SHORT = frozenset(
    (
        Type.TYPE_INT32,
        Type.TYPE_SINT32,
        Type.TYPE_SFIXED32,
        Type.TYPE_UINT32,
        Type.TYPE_FIXED32,
        Type.TYPE_ENUM,
    )
)

Convert = Callable[[pa.Array, str, Callable[[int], int]], pa.Array]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A way to write values, none of them null.

    `convert` gives them the type that is written; it raises InvalidRow for what does not fit, and
    takes a path and what tells the row of a value for that. `encode` gives each value's bytes after
    those given; `not_default` tells which are not zero or empty.
    """

    wire_type: int
    convert: Convert
    encode: Callable[[pa.Array, bytes], pa.Array]
    not_default: Callable[[pa.Array], pa.Array]


def accepts(field: Field, kind: pa.DataType) -> bool:
    """Tell whether columns of a type can be written as a field's values."""
    types = pa.types
    if field.type in (Type.TYPE_STRING, Type.TYPE_ENUM):
        return bool(types.is_string(kind))
    if field.type == Type.TYPE_BYTES:
        return bool(types.is_binary(kind))
    if field.type == Type.TYPE_BOOL:
        return bool(types.is_boolean(kind))
    if field.type == Type.TYPE_FLOAT:
        return bool(types.is_float32(kind))
    if field.type == Type.TYPE_DOUBLE:
        return bool(types.is_float64(kind) or types.is_float32(kind))
    return bool(types.is_integer(kind) or (types.is_decimal128(kind) and kind.scale == 0))


def scalar(field: Field) -> Scalar:
    """Return how a field's values are written."""
    if field.enum is not None:
        return Scalar(wire.VARINT, _enum_numbers(field.enum), _signed_varints, _not_zero)
    if field.type in (Type.TYPE_STRING, Type.TYPE_BYTES):
        return Scalar(wire.DELIMITED, _as_binary, wire.delimited, _not_empty)
    if field.type == Type.TYPE_BOOL:
        return Scalar(wire.VARINT, _unchanged, _truths, _unchanged_flags)
    if field.type in (Type.TYPE_FLOAT, Type.TYPE_DOUBLE):
        single = field.type == Type.TYPE_FLOAT
        kind = pa.float32() if single else pa.float64()
        wire_type = wire.FIXED32 if single else wire.FIXED64
        return Scalar(wire_type, _cast_to(kind), wire.fixed, _not_zero_bits)
    convert = _integers(field.type)
    if field.type in _FIXED:
        wire_type = wire.FIXED32 if field.type in _SHORT else wire.FIXED64
        return Scalar(wire_type, convert, wire.fixed, _not_zero)
    encode = _zigzag_varints if field.type in _ZIGZAG else _signed_varints
    return Scalar(wire.VARINT, convert, encode, _not_zero)


# --- conversions --------------------------------------------------------------------------


def _unchanged(values: pa.Array, path: str, row: Callable[[int], int]) -> pa.Array:
    return values


def _as_binary(values: pa.Array, path: str, row: Callable[[int], int]) -> pa.Array:
    return values.cast(pa.binary())


def _cast_to(kind: pa.DataType) -> Convert:
    return lambda values, path, row: values.cast(kind)


def _integers(kind: int) -> Convert:
    """Return the check and the conversion to integers of a type, with 64 bits unless fixed."""
    bits = 32 if kind in _SHORT else 64
    low, high = (0, 2**bits - 1) if kind in UNSIGNED else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    name = type_name(kind)
    target = _FIXED.get(kind) or (_UINT64 if kind in UNSIGNED else _INT64)

    def convert(values: pa.Array, path: str, row: Callable[[int], int]) -> pa.Array:
        found = pc.min_max(values)
        least, most = found["min"].as_py(), found["max"].as_py()
        if least is not None and (least < low or most > high):
            index, value = next(
                (index, value)
                for index, value in enumerate(values.to_pylist())
                if not low <= value <= high
            )
            raise InvalidRow(
                f"row {row(index)} cannot be written: {path} is {value}, and the schema's {name} "
                f"has {low} to {high}",
                "Change the value or drop the row.",
            )
        return values.cast(target)

    return convert


def _enum_numbers(enum: EnumType) -> Convert:
    def number_of(name: str) -> int | None:
        if name in enum.numbers:
            return enum.numbers[name]
        # Numbers without a name are read as text, and written as it where the enum is open.
        digits = name.removeprefix("-")
        if enum.closed or not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
            return None
        value = int(name)
        return value if -(2**31) <= value < 2**31 else None

    def convert(values: pa.Array, path: str, row: Callable[[int], int]) -> pa.Array:
        found = values.dictionary_encode()
        names = found.dictionary.to_pylist()
        numbers = [number_of(name) for name in names]
        if None in numbers:
            unknown = names[numbers.index(None)]
            index = values.to_pylist().index(unknown)
            raise InvalidRow(
                f"row {row(index)} cannot be written: {path} is {unknown[:100]!r}, which the "
                "schema's enum has not",
                f"It has {', '.join(list(enum.numbers)[:50])}.",
            )
        return integers(numbers, _INT64).take(found.indices)

    return convert


# --- bytes --------------------------------------------------------------------------------


def _signed_varints(values: pa.Array, head: bytes) -> pa.Array:
    # Negative numbers have all 64 bits, whatever their type: Encoding, Signed Integers.
    return wire.varints(values.view(_UINT64), head)


def _zigzag_varints(values: pa.Array, head: bytes) -> pa.Array:
    doubled = pc.shift_left(values, wire.number(1, _INT64))
    # All bits where a number is negative: Arrow's shifts do not go as far as 63.
    signs = pc.negate(pc.less(values, wire.number(0, _INT64)).cast(_INT64))
    return wire.varints(pc.bit_wise_xor(doubled, signs).view(_UINT64), head)


def _truths(values: pa.Array, head: bytes) -> pa.Array:
    return pc.if_else(values, wire.constant(head + b"\x01"), wire.constant(head + b"\x00"))


# --- defaults -----------------------------------------------------------------------------


def _not_zero(values: pa.Array) -> pa.Array:
    zero = pa.Array.from_buffers(values.type, 1, [None, pa.py_buffer(bytes(8))])[0]
    return pc.not_equal(values, zero)


def _not_zero_bits(values: pa.Array) -> pa.Array:
    # -0.0 equals zero, and is another value.
    return _not_zero(values.view(pa.int32() if values.type.bit_width == 32 else _INT64))


def _not_empty(values: pa.Array) -> pa.Array:
    return pc.not_equal(values, wire.constant(b""))


def _unchanged_flags(values: pa.Array) -> pa.Array:
    return values
