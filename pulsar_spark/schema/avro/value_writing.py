"""One value at a time → bytes of an AVRO topic: the reference, and the only way without the kernel.

Avro 1.12 specification, Binary Encoding. Values are cells, in the form of `arrays.cells_of`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa

from pulsar_spark.schema.arrow.varints import zigzag
from pulsar_spark.schema.avro.definition import Enum, Fixed, Logical, Opaque, Primitive
from pulsar_spark.schema.avro.fitting import (
    WriteArray,
    WriteLeaf,
    WriteMap,
    WriteMember,
    WriteNull,
    WritePlan,
    WriteRecord,
    WriteUnion,
)
from pulsar_spark.schema.avro.reference import check_encoding
from pulsar_spark.schema.avro.resolution import units
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

NANOS_PER_DAY = 86_400 * 10**9
"""The first number that is no time of day."""

_FLOAT, _DOUBLE, _DURATION = Struct("<f"), Struct("<d"), Struct("<3I")
_IS_UUID = re.compile(UUID_TEXT.replace(r"\z", r"\Z").encode()).match


def value_writer(plan: WritePlan) -> WriteValue:
    """Return the function that writes values by a plan."""
    match plan:
        case WriteNull():
            return _null
        case WriteMember():
            return _member(plan)
        case WriteUnion():
            return _union(plan)
        case WriteRecord():
            write = _record(plan)
        case WriteArray():
            write = _blocks(value_writer(plan.items), "[]")
        case WriteMap():
            write = _blocks(_pair(value_writer(plan.values)), "{}")
        case WriteLeaf():
            write = _leaf(plan)
    return lambda value: write(value) if value is not None else _refuse_null()


def _refuse_null() -> bytes:
    raise Mismatch(NOT_NULL)


def _null(value: Any) -> bytes:
    if value is not None:
        raise Mismatch(ONLY_NULL)
    return b""


# --- types with parts -------------------------------------------------------------------------


def _record(plan: WriteRecord) -> WriteValue:
    steps: list[tuple[str, int, bytes | WriteValue]] = [
        ("", -1, step) if isinstance(step, bytes) else (step[0], step[1], value_writer(step[2]))
        for step in plan.steps
    ]

    def write(cells: Sequence[Any]) -> bytes:
        parts: list[bytes] = []
        try:
            for _, place, step in steps:
                parts.append(step if isinstance(step, bytes) else step(cells[place]))
        except Mismatch as mismatch:
            raise mismatch.within(steps[len(parts)][0]) from None
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


def _member(plan: WriteMember) -> WriteValue:
    null = None if plan.null_number is None else zigzag(plan.null_number)
    number, write = zigzag(plan.number), value_writer(plan.plan)

    def write_member(value: Any) -> bytes:
        return number + write(value) if value is not None or null is None else null

    return write_member


def _union(plan: WriteUnion) -> WriteValue:
    null = None if plan.null_number is None else zigzag(plan.null_number)
    writers = [(zigzag(number), value_writer(member)) for number, member in plan.members]

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


def _leaf(plan: WriteLeaf) -> WriteValue:
    node, kind = plan.node, plan.type
    match node:
        case Opaque():
            return _opaque(node)
        case Enum():
            return _enum(node.symbols)
        case Fixed():
            return _of_size(node, kind)
    return _primitive(node, kind) if node.logical is None else _logical(node.logical, kind)


def _of_size(node: Fixed, kind: pa.DataType) -> WriteValue:
    logical = node.logical
    if logical is not None and logical.name == "decimal":
        return _decimal(logical, kind.scale, node.size)
    if pa.types.is_string(kind):
        return _uuid
    return _duration if pa.types.is_struct(kind) else _fixed(node.size)


def _logical(logical: Logical, kind: pa.DataType) -> WriteValue:
    if logical.name == "decimal":
        return _decimal(logical, kind.scale)
    if logical.name == "uuid":
        return _uuid_text
    return zigzag if logical.name == "date" else _scaled(logical)


def _primitive(node: Primitive, kind: pa.DataType) -> WriteValue:
    if node.kind in ("int", "long"):
        return zigzag
    if node.kind in ("float", "double"):
        if not pa.types.is_floating(kind):
            return (_FLOAT if node.kind == "float" else _DOUBLE).pack
        is_wider = node.kind == "double" and pa.types.is_float32(kind)
        return _widened if is_wider else bytes
    return _truth if node.kind == "boolean" else _sized


def _truth(value: bool) -> bytes:
    return b"\1" if value else b"\0"


def _widened(value: bytes) -> bytes:
    return _DOUBLE.pack(*_FLOAT.unpack(value))


def _opaque(node: Opaque) -> WriteValue:
    """Values are encoded already."""

    def write(value: bytes) -> bytes:
        try:
            check_encoding(node.type, value)
        except Mismatch as error:
            reason = f"it is no Avro value of the field's type: {error.reason}"
            raise Mismatch(reason) from None
        return value

    return write


def _enum(symbols: Sequence[str]) -> WriteValue:
    numbers = {symbol.encode(): zigzag(number) for number, symbol in enumerate(symbols)}

    def write(value: bytes) -> bytes:
        found = numbers.get(value)
        if found is None:
            raise Mismatch(unknown_symbol(symbols))
        return found

    return write


def _scaled(logical: Logical) -> WriteValue:
    """Write times in the type's unit; finer parts are rounded towards the past."""
    factor, divisor = units(logical)
    is_of_day = logical.name.startswith("time-")

    def write(value: int) -> bytes:
        if is_of_day and not 0 <= value < NANOS_PER_DAY:
            raise Mismatch(NOT_A_TIME)
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


def _decimal(logical: Logical, given_scale: int, size: int | None = None) -> WriteValue:
    bound: int = 10**logical.precision
    factor: int = 10 ** max(logical.scale - given_scale, 0)
    divisor: int = 10 ** max(given_scale - logical.scale, 0)

    def write(value: int) -> bytes:
        found, rest = divmod(value * factor, divisor)
        if rest or not -bound < found < bound:
            raise Mismatch(unfit_decimal(logical.precision, logical.scale))
        bits = (found if found >= 0 else ~found).bit_length()
        if size is None:
            return _sized(found.to_bytes(bits // 8 + 1, "big", signed=True))
        if bits >= 8 * size:
            fits = f"decimal({logical.precision},{logical.scale})"
            raise Mismatch(f"{fits} of {size} bytes does not hold it")
        return found.to_bytes(size, "big", signed=True)

    return write
