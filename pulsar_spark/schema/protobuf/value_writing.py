"""One row at a time → bytes of a protobuf message: the reference, and the way without the kernel.

Values are cells, in the form of `arrays.cells_of`. A message's fields are written in the order of
their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, TypeAlias

import pyarrow as pa
from google.protobuf import empty_pb2
from google.protobuf.message import DecodeError

from pulsar_spark.schema.arrow.varints import varint, zigzag
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.protobuf.fitting import OF_ONE_FIELD, WriteField
from pulsar_spark.schema.protobuf.types import (
    UNSIGNED,
    EnumType,
    Form,
    MessageField,
    Presence,
    Type,
    type_name,
)
from pulsar_spark.schema.protobuf.well_known import json_message, split_duration, split_timestamp
from pulsar_spark.schema.protobuf.wire import (
    DELIMITED,
    END_GROUP,
    FIXED32,
    FIXED64,
    START_GROUP,
    VARINT,
    tag,
)

Write: TypeAlias = Callable[[Any], bytes]
"""Returns a value's bytes; raises Mismatch for one that the field cannot hold."""

_FILL = "Fill it, for example with coalesce, or drop it."
_CHANGE = "Change the value or drop the row."
_JSON_REMEDY = "Write JSON as RFC 8259 has it: an object for a Struct, an array for a ListValue."


def message_writer(parts: Sequence[WriteField], path: str = "") -> Write:
    """Return the function that writes a message, given the cells of its columns."""
    writers = [(part.place, field_writer(part)) for part in parts]
    oneofs: dict[str, list[WriteField]] = {}
    for part in parts:
        if part.field.oneof:
            oneofs.setdefault(part.field.oneof, []).append(part)
    several = {name: members for name, members in oneofs.items() if len(members) > 1}

    def write(cells: Sequence[Any]) -> bytes:
        for name, members in several.items():
            _check_oneof(f"{path}.{name}" if path else name, members, cells)
        return b"".join([write_field(cells[place]) for place, write_field in writers])

    return write


def _check_oneof(path: str, members: Sequence[WriteField], cells: Sequence[Any]) -> None:
    there = [part.field.name for part in members if cells[part.place] is not None]
    if len(there) > 1:
        reason = f"it has more than one member: {', '.join(there)}"
        raise Mismatch(reason, path, remedy="Set all but one of them to null.")


def field_writer(part: WriteField) -> Write:
    """Return the function that writes a column's cell as the records of a field."""
    field = part.field
    if field.repeated:
        return _map(part) if field.message and field.message.is_entry else _list(part)
    if field.message is not None and field.message.form is Form.EMPTY:
        present = _frame(field)(b"")
        return lambda value: present if value else b""
    if field.message is None:
        wire_type, write = scalar(part)
        head = tag(field.number, wire_type)
        # With a default other than zero, zero must be written.
        omits_zero = field.presence is Presence.IMPLICIT and not field.default
        nullable = field.presence is Presence.EXPLICIT
        null = "it is null, and the schema does not allow null there"
    else:
        head, write, omits_zero = b"", _record(part), False
        nullable = field.presence is not Presence.REQUIRED
        null = "it is null, and the schema requires it"

    def write_single(value: Any) -> bytes:
        if value is None:
            if nullable:
                return b""
            raise Mismatch(null, part.path, remedy=_FILL)
        data = write(value)
        # All values but zero, and no text but the empty one, have some bit set.
        return b"" if omits_zero and not any(data) else head + data

    return write_single


def _record(part: WriteField) -> Write:
    """Return the function that makes a record of a value that becomes a message."""
    frame, write = _frame(part.field), _message(part)
    return lambda value: frame(write(value))


def _sized(data: bytes) -> bytes:
    return varint(len(data)) + data


def _frame(field: MessageField) -> Write:
    """Return the function that makes a record of a message."""
    if field.type == Type.TYPE_GROUP:
        start, end = tag(field.number, START_GROUP), tag(field.number, END_GROUP)
        return lambda message: start + message + end
    head = tag(field.number, DELIMITED)
    return lambda message: head + varint(len(message)) + message


def _list(part: WriteField) -> Write:
    field = part.field
    packed = tag(field.number, DELIMITED) if field.message is None and field.packed else None
    if field.message is not None:
        write = _record(part)
    else:
        wire_type, write_scalar = scalar(part)
        head = b"" if packed else tag(field.number, wire_type)
        write = lambda value: head + write_scalar(value)  # noqa: E731

    def write_list(items: list[Any] | None) -> bytes:
        if items is None:
            reason = "it is null, and protobuf has no lists that are null"
            raise Mismatch(reason, part.path, remedy=_FILL)
        if None in items:
            raise Mismatch("it has an element that is null", part.path, remedy=_FILL)
        data = b"".join(map(write, items))
        return packed + _sized(data) if packed and data else data

    return write_list


def _map(part: WriteField) -> Write:
    key, value = map(field_writer, part.parts)
    frame = _frame(part.field)

    def write(pairs: list[Any] | None) -> bytes:
        if pairs is None:
            reason = "it is null, and protobuf has no maps that are null"
            raise Mismatch(reason, part.path, remedy=_FILL)
        if any(each is None for _, each in pairs):
            raise Mismatch("it has a value that is null", part.path, remedy=_FILL)
        return b"".join([frame(key(name) + value(each)) for name, each in pairs])

    return write


# --- messages -----------------------------------------------------------------------------


def _message(part: WriteField) -> Write:
    """Return the function that writes a value as a message."""
    message, path = part.field.message, part.path
    assert message is not None
    if message.form in OF_ONE_FIELD:
        return field_writer(part.parts[0])
    if message.form in _SPLIT:
        split, write = _SPLIT[message.form], message_writer(part.parts)
        return lambda value: write(split(value, path, _CHANGE))
    match message.form:
        case Form.EMPTY:
            return lambda value: b""
        case Form.JSON:
            return lambda value: json_message(message.name, value, path, _JSON_REMEDY)
        case Form.BYTES:
            return lambda value: _checked(value, path)
    return message_writer(part.parts, path)


_SPLIT = {Form.TIMESTAMP: split_timestamp, Form.DURATION: split_duration}


def _checked(value: bytes, path: str) -> bytes:
    try:
        empty_pb2.Empty.FromString(value)
    except (DecodeError, RecursionError):
        raise Mismatch("it is not a protobuf message", path, remedy=_CHANGE) from None
    return value


# --- scalars ------------------------------------------------------------------------------

ZIGZAG = frozenset((Type.TYPE_SINT32, Type.TYPE_SINT64))
FIXED: dict[int, str] = {
    Type.TYPE_FIXED32: "<I",
    Type.TYPE_SFIXED32: "<i",
    Type.TYPE_FIXED64: "<Q",
    Type.TYPE_SFIXED64: "<q",
}
"""Integers of a fixed width, as `struct` has them."""
_LONG = frozenset(
    (
        Type.TYPE_INT64,
        Type.TYPE_SINT64,
        Type.TYPE_SFIXED64,
        Type.TYPE_UINT64,
        Type.TYPE_FIXED64,
    )
)
_FLOAT, _DOUBLE = Struct("<f"), Struct("<d")


def scalar(part: WriteField) -> tuple[int, Write]:
    """Return a scalar's wire type, and the function that writes its values behind the tag."""
    kind, enum = part.field.type, part.field.enum
    if enum is not None:
        return VARINT, _enum(enum, part.path)
    if kind in (Type.TYPE_STRING, Type.TYPE_BYTES):
        return DELIMITED, _sized
    if kind == Type.TYPE_BOOL:
        return VARINT, lambda value: b"\1" if value else b"\0"
    if kind == Type.TYPE_FLOAT:
        return FIXED32, bytes
    if kind == Type.TYPE_DOUBLE:
        return FIXED64, _widened if pa.types.is_float32(part.type) else bytes
    return _integer(kind, part.path)


def _widened(value: bytes) -> bytes:
    return _DOUBLE.pack(*_FLOAT.unpack(value))


def _integer(kind: int, path: str) -> tuple[int, Write]:
    low, high = integer_range(kind)
    if kind in FIXED:
        wire_type, pack = (FIXED64 if kind in _LONG else FIXED32), Struct(FIXED[kind]).pack
    else:
        wire_type, pack = VARINT, (zigzag if kind in ZIGZAG else _signed)

    def write(value: int) -> bytes:
        if not low <= value <= high:
            reason = (
                f"it is {value}, and the schema's {type_name(kind)} ranges from {low} to {high}"
            )
            raise Mismatch(reason, path, remedy=_CHANGE)
        return pack(value)

    return wire_type, write


def integer_range(kind: int) -> tuple[int, int]:
    """Return the least and the largest number of an integer type."""
    bits = 64 if kind in _LONG else 32
    return (0, 2**bits - 1) if kind in UNSIGNED else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _signed(value: int) -> bytes:
    # Negative numbers have all 64 bits, whatever their type: Encoding, Signed Integers.
    return varint(value & 2**64 - 1)


def _enum(enum: EnumType, path: str) -> Write:
    def write(name: bytes) -> bytes:
        number = _number_of(enum, name.decode(errors="replace"))
        if number is None:
            shown = name.decode(errors="replace")[:100]
            raise Mismatch(
                f"it is {shown!r}, which is not a symbol of the enum",
                path,
                remedy=f"It has {', '.join(list(enum.numbers)[:50])}.",
            )
        return _signed(number)

    return write


def _number_of(enum: EnumType, name: str) -> int | None:
    if name in enum.numbers:
        return enum.numbers[name]
    # Numbers without a name are read as text, and written from it if the enum is open.
    digits = name.removeprefix("-")
    if enum.closed or not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
        return None
    value = int(name)
    return value if -(2**31) <= value < 2**31 else None
