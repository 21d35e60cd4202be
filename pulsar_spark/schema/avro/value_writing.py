"""One value at a time → bytes of an AVRO topic: the reference, and the only way without the kernel.

Avro 1.12 specification, Binary Encoding. Values are cells, in the form of `arrays.cells_of`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any, TypeAlias
from uuid import UUID

from pulsar_spark.schema.arrow.arrays import double_of
from pulsar_spark.schema.arrow.varints import zigzag
from pulsar_spark.schema.avro.definition import Node
from pulsar_spark.schema.avro.fitting import Plan
from pulsar_spark.schema.avro.reference import check_encoding
from pulsar_spark.schema.avro.types import (
    NOT_A_TIME,
    NOT_A_UUID,
    NOT_NULL,
    ONLY_NULL,
    SEVERAL_MEMBERS,
    TOO_LATE,
    UUID_TEXT,
    WITHOUT_MEMBER,
    WRONG_DURATION,
    WRONG_SIZE,
    unfit_decimal,
    unknown_symbol,
)
from pulsar_spark.schema.codec import Mismatch

WriteValue: TypeAlias = Callable[[Any], bytes]
"""Returns a value's bytes; raises Mismatch for one that the type cannot hold."""

_FLOAT, _DOUBLE, _DURATION = Struct("<f"), Struct("<d"), Struct("<3I")
_IS_UUID = re.compile(UUID_TEXT.replace(r"\z", r"\Z").encode()).match


def value_writer(plan: Plan) -> WriteValue:
    """Return the function that writes values by a plan."""
    name, *parts = plan
    write = _PLAIN.get(name) or _MADE[name](*parts)
    if name in ("null", "union"):
        return write
    return lambda value: write(value) if value is not None else _refuse_null()


def _refuse_null() -> bytes:
    raise Mismatch(NOT_NULL)


def _null(value: Any) -> bytes:
    if value is not None:
        raise Mismatch(ONLY_NULL)
    return b""


# --- types with parts -------------------------------------------------------------------------


def _record(steps: Sequence[tuple[int | None, Any, str]]) -> WriteValue:
    """Write fields in order: each from its column, or the bytes of its default."""
    writers: list[tuple[int | None, Any, str]] = [
        (place, how if place is None else value_writer(how), name) for place, how, name in steps
    ]

    def write(cells: Sequence[Any]) -> bytes:
        parts: list[bytes] = []
        try:
            for place, how, _ in writers:
                parts.append(how if place is None else how(cells[place]))
        except Mismatch as mismatch:
            raise mismatch.within(writers[len(parts)][2]) from None
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
    return lambda pair: _sized(pair[0]) + write_value(pair[1])


def _union(null: bytes | None, members: Sequence[tuple[bytes, Plan]], apart: bool) -> WriteValue:
    """Write one type behind its number; types that are `apart` are the columns of a struct."""
    writers = [(number, value_writer(member)) for number, member in members]
    return _member_of(null, writers) if apart else _only(null, *writers[0])


def _only(null: bytes | None, number: bytes, write: WriteValue) -> WriteValue:
    return lambda value: number + write(value) if value is not None or null is None else null


def _member_of(null: bytes | None, writers: Sequence[tuple[bytes, WriteValue]]) -> WriteValue:
    def write(members: Sequence[Any] | None) -> bytes:
        there = [] if members is None else [at for at, m in enumerate(members) if m is not None]
        if len(there) > 1:
            raise Mismatch(SEVERAL_MEMBERS)
        if not there and null is None:
            raise Mismatch(NOT_NULL if members is None else WITHOUT_MEMBER)
        if not there or members is None:
            return null or b""
        (place,) = there
        number, write_own = writers[place]
        try:
            return number + write_own(members[place])
        except Mismatch as mismatch:
            raise mismatch.within(f"member{place}") from None

    return write


# --- types without parts ----------------------------------------------------------------------


def _sized(data: bytes) -> bytes:
    return zigzag(len(data)) + data


def _truth(value: bool) -> bytes:
    return b"\1" if value else b"\0"


def _opaque(node: Node) -> WriteValue:
    """Values are encoded already."""

    def write(value: bytes) -> bytes:
        try:
            check_encoding(node, value)
        except Mismatch as error:
            reason = f"it is no Avro value of the field's type: {error.reason}"
            raise Mismatch(reason) from None
        return value

    return write


def _enum(symbols: Sequence[tuple[bytes, bytes]]) -> WriteValue:
    numbers = dict(symbols)

    def write(value: bytes) -> bytes:
        found = numbers.get(value)
        if found is None:
            raise Mismatch(unknown_symbol([symbol.decode() for symbol in numbers]))
        return found

    return write


def _whole(factor: int, divisor: int, bound: int) -> WriteValue:
    """Write whole numbers in the type's unit; finer parts are rounded towards the past."""

    def write(value: int) -> bytes:
        if bound and not 0 <= value < bound:
            raise Mismatch(NOT_A_TIME)
        scaled = value * factor // divisor
        if not -(2**63) <= scaled < 2**63:
            raise Mismatch(TOO_LATE)
        return zigzag(scaled)

    return zigzag if factor == divisor and not bound else write


def _fixed(size: int) -> WriteValue:
    def write(value: bytes) -> bytes:
        if len(value) != size:
            raise Mismatch(WRONG_SIZE.format(size))
        return value

    return write


def _uuid(value: bytes) -> bytes:
    try:
        return UUID(value.decode()).bytes
    except ValueError:
        raise Mismatch(NOT_A_UUID) from None


def _uuid_text(value: bytes) -> bytes:
    if _IS_UUID(value) is None:
        raise Mismatch(NOT_A_UUID)
    return _sized(value)


def _duration(value: Sequence[int | None]) -> bytes:
    parts = [part or 0 for part in value]
    if not all(0 <= part < 2**32 for part in parts):
        raise Mismatch(WRONG_DURATION)
    return _DURATION.pack(*parts)


def _decimal(finer: int, coarser: int, precision: int, scale: int, size: int | None) -> WriteValue:
    bound: int = 10**precision
    factor: int = 10**finer
    divisor: int = 10**coarser

    def write(value: int) -> bytes:
        found, rest = divmod(value * factor, divisor)
        if rest or not -bound < found < bound:
            raise Mismatch(unfit_decimal(precision, scale))
        bits = (found if found >= 0 else ~found).bit_length()
        if size is None:
            return _sized(found.to_bytes(bits // 8 + 1, "big", signed=True))
        if bits >= 8 * size:
            fits = f"decimal({precision},{scale})"
            raise Mismatch(f"{fits} of {size} bytes does not hold it")
        return found.to_bytes(size, "big", signed=True)

    return write


_PLAIN: Mapping[str, WriteValue] = {
    "null": _null,
    "boolean": _truth,
    "bytes": _sized,
    "uuid": _uuid,
    "uuid text": _uuid_text,
    "duration": _duration,
}
_MADE: Mapping[str, Callable[..., WriteValue]] = {
    "whole": _whole,
    "float": lambda of_point: bytes if of_point else _FLOAT.pack,
    "double": lambda of_point: double_of if of_point else _DOUBLE.pack,
    "fixed": _fixed,
    "enum": _enum,
    "decimal": _decimal,
    "opaque": _opaque,
    "record": _record,
    "array": lambda items: _blocks(value_writer(items), "[]"),
    "map": lambda values: _blocks(_pair(value_writer(values)), "{}"),
    "union": _union,
}
"""How each kind of plan makes the function that writes, of what the plan takes."""
