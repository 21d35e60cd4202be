"""One value at a time → bytes of an AVRO topic, for clients without Spark.

Avro 1.12 specification, Binary Encoding. Values have the form of the columns' cells
(`python_values.converter`), and have been checked against the definition.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from struct import Struct
from typing import Any, TypeAlias
from uuid import UUID

from pulsar_spark.schema.arrow.varints import zigzag
from pulsar_spark.schema.avro.definition import (
    Array,
    Enum,
    Fixed,
    Logical,
    Map,
    Node,
    Primitive,
    Record,
    UnionOf,
    is_null,
)
from pulsar_spark.schema.avro.resolution import units
from pulsar_spark.schema.avro.types import (
    NOT_A_UUID,
    TOO_LATE,
    UUID_TEXT,
    WRONG_DURATION,
    WRONG_SIZE,
    day_of,
    sole_type,
)
from pulsar_spark.schema.codec import Mismatch

WriteValue: TypeAlias = Callable[[Any], bytes]
"""Returns a value's bytes; raises Mismatch for one that the type cannot hold."""

_FLOAT, _DOUBLE, _DURATION = Struct("<f"), Struct("<d"), Struct("<3I")
_UUID = re.compile(UUID_TEXT.replace(r"\z", r"\Z"))


def value_writer(node: Node) -> WriteValue:
    """Return the function that writes values of a type."""
    match node:
        case Record():
            return _record(node)
        case Array():
            return _blocks(value_writer(node.items), "[]")
        case Map():
            return _blocks(_pair(value_writer(node.values)), "{}")
        case Enum():
            numbers = {symbol: zigzag(number) for number, symbol in enumerate(node.symbols)}
            return numbers.__getitem__
        case UnionOf():
            return _union(node)
    assert isinstance(node, Primitive | Fixed)
    return _leaf(node)


def _record(node: Record) -> WriteValue:
    fields = [(field.name, value_writer(field.type)) for field in node.fields]

    def write(value: dict[str, Any]) -> bytes:
        parts = []
        current = ""
        try:
            for current, write_field in fields:
                parts.append(write_field(value[current]))
        except Mismatch as mismatch:
            raise mismatch.within(current) from None
        return b"".join(parts)

    return write


def _blocks(write_item: WriteValue, step: str) -> WriteValue:
    def write(items: list[Any]) -> bytes:
        if not items:
            return b"\0"
        try:
            return b"".join([zigzag(len(items)), *map(write_item, items), b"\0"])
        except Mismatch as mismatch:
            raise mismatch.within(step) from None

    return write


def _pair(write_value: WriteValue) -> WriteValue:
    return lambda pair: _sized(pair[0].encode()) + write_value(pair[1])


def _union(node: UnionOf) -> WriteValue:
    """Values are those of its only type, or name their member, as columns do."""
    places = [place for place, member in enumerate(node.members) if not is_null(member)]
    null = next((zigzag(at) for at, member in enumerate(node.members) if is_null(member)), b"")
    sole = sole_type(node)
    if sole is not None and not is_null(sole):
        own = next(place for place in places if node.members[place] == sole)
        number, write_sole = zigzag(own), value_writer(sole)
        return lambda value: null if value is None else number + write_sole(value)
    writers = {
        f"member{number}": (zigzag(place), value_writer(node.members[place]))
        for number, place in enumerate(places)
    }

    def write(value: dict[str, Any] | None) -> bytes:
        if value is None:
            return null
        ((name, own),) = value.items()
        number, write_member = writers[name]
        try:
            return number + write_member(own)
        except Mismatch as mismatch:
            raise mismatch.within(name) from None

    return write


# --- types without parts ----------------------------------------------------------------------


def _sized(data: bytes) -> bytes:
    return zigzag(len(data)) + data


def _leaf(node: Primitive | Fixed) -> WriteValue:
    logical = node.logical
    name = "" if logical is None else logical.name
    if name == "decimal" and logical is not None:
        return _decimal(logical, node.size if isinstance(node, Fixed) else None)
    if isinstance(node, Fixed):
        if name == "uuid":
            return _uuid
        return _duration if name == "duration" else _fixed(node.size)
    if name == "uuid":
        return _uuid_text
    if name == "date":
        return lambda value: zigzag(day_of(value))
    return _PRIMITIVES[node.kind] if logical is None else _scaled(logical)


def _null(value: None) -> bytes:
    return b""


_PRIMITIVES: dict[str, WriteValue] = {
    "null": _null,
    "boolean": lambda value: b"\1" if value else b"\0",
    "int": zigzag,
    "long": zigzag,
    "float": _FLOAT.pack,
    "double": _DOUBLE.pack,
    "bytes": _sized,
    "string": lambda value: _sized(value.encode()),
}


def _scaled(logical: Logical) -> WriteValue:
    """Write times in the type's unit; finer parts are rounded towards the past."""
    factor, divisor = units(logical)

    def write(value: int) -> bytes:
        scaled = value * divisor // factor
        if not -(2**63) <= scaled < 2**63:
            raise Mismatch(TOO_LATE)
        return zigzag(scaled)

    return write


def _fixed(size: int) -> WriteValue:
    def write(value: bytes) -> bytes:
        if len(value) != size:
            raise Mismatch(WRONG_SIZE.format(size))
        return value

    return write


def _uuid(value: str) -> bytes:
    try:
        return UUID(value).bytes
    except ValueError:
        raise Mismatch(NOT_A_UUID) from None


def _uuid_text(value: str) -> bytes:
    if _UUID.match(value) is None:
        raise Mismatch(NOT_A_UUID)
    return _sized(value.encode())


def _duration(value: dict[str, int]) -> bytes:
    parts = [value[name] for name in ("months", "days", "milliseconds")]
    if not all(0 <= part < 2**32 for part in parts):
        raise Mismatch(WRONG_DURATION)
    return _DURATION.pack(*parts)


def _decimal(logical: Logical, size: int | None) -> WriteValue:
    def write(value: Decimal) -> bytes:
        sign, digits, _ = value.as_tuple()
        number = int("".join(map(str, digits))) * (-1 if sign else 1)
        if size is None:
            bits = (number if number >= 0 else ~number).bit_length()
            return _sized(number.to_bytes(bits // 8 + 1, "big", signed=True))
        try:
            return number.to_bytes(size, "big", signed=True)
        except OverflowError:
            fits = f"decimal({logical.precision},{logical.scale})"
            raise Mismatch(f"{fits} of {size} bytes does not hold it") from None

    return write
