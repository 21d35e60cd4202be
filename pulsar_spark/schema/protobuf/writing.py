"""Plans for protobuf values: how the kernel and the reference write them from columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pulsar_spark.schema.arrow.varints import varint
from pulsar_spark.schema.column_encoder import Write
from pulsar_spark.schema.protobuf.fitting import OF_ONE_FIELD, WriteField
from pulsar_spark.schema.protobuf.types import Form, MessageField, Presence, Type
from pulsar_spark.schema.protobuf.value_writing import (
    FIXED,
    ZIGZAG,
    integer_range,
    message_writer,
    scalar,
)
from pulsar_spark.schema.protobuf.wire import DELIMITED, END_GROUP, START_GROUP, tag


@dataclass(frozen=True)
class ProtobufWritingPlan:
    """Writes rows as messages with these fields."""

    fields: Sequence[WriteField]

    def writer(self) -> Write:
        """Return the function that writes one row."""
        return message_writer(self.fields)

    def described(self) -> tuple[Any, ...]:
        """Return the plan as the kernel takes it."""
        return "protobuf", _message(self.fields)


def _message(parts: Sequence[WriteField]) -> tuple[Any, ...]:
    """Return the fields, and the places of each oneof's members."""
    oneofs: dict[str, list[int]] = {}
    for part in parts:
        if part.field.oneof:
            oneofs.setdefault(part.field.oneof, []).append(part.place)
    several = [places for places in oneofs.values() if len(places) > 1]
    return [(part.place, _field(part)) for part in parts], several


def _field(part: WriteField) -> tuple[Any, ...]:
    field = part.field
    if field.message is None:
        wire_type = scalar(part)[0]
        packed = field.repeated and field.packed
        head = tag(field.number, DELIMITED if packed else wire_type)
        # Fields without presence have a value, which is not written if it is zero.
        implicit = field.presence is Presence.IMPLICIT and not field.repeated
        nullable = field.presence is Presence.EXPLICIT
        form = ("packed" if packed else "repeated") if field.repeated else "single"
        return form, head, b"", nullable, implicit and not field.default, _scalar(part)
    head, end = _frame(field)
    nullable = field.presence is not Presence.REQUIRED
    form = "repeated" if field.repeated else "single"
    return form, head, end, nullable, False, _content(part)


def _frame(field: MessageField) -> tuple[bytes, bytes]:
    if field.type == Type.TYPE_GROUP:
        return tag(field.number, START_GROUP), tag(field.number, END_GROUP)
    return tag(field.number, DELIMITED), b""


def _content(part: WriteField) -> tuple[Any, ...]:
    message = part.field.message
    assert message is not None
    if message.form in OF_ONE_FIELD:
        return "field", _field(part.parts[0])
    if message.form in _TIMES:
        seconds, nanos = (tag(each.field.number, 0) for each in part.parts)
        return _TIMES[message.form], seconds, nanos
    match message.form:
        case Form.EMPTY:
            return ("empty",) if part.field.repeated else ("truth",)
        case Form.JSON:
            return ("refused",)
        case Form.BYTES:
            return ("message bytes",)
    fields, oneofs = _message(part.parts)
    if message.is_entry:
        # The key or the value is absent if it is the default, but never null.
        fields = [(place, (*field[:3], False, *field[4:])) for place, field in fields]
    return "message", fields, oneofs


_TIMES = {Form.TIMESTAMP: "timestamp", Form.DURATION: "duration"}


_PLAIN: dict[int, str] = {
    Type.TYPE_BOOL: "boolean",
    Type.TYPE_FLOAT: "float",
    Type.TYPE_DOUBLE: "double",
}


def _scalar(part: WriteField) -> tuple[Any, ...]:
    kind, enum = part.field.type, part.field.enum
    if enum is not None:
        numbers = sorted(enum.numbers.items())
        return "enum", [(name.encode(), varint(n & 2**64 - 1)) for name, n in numbers]
    if kind in (Type.TYPE_STRING, Type.TYPE_BYTES):
        return ("bytes",)
    if kind in _PLAIN:
        return (_PLAIN[kind],)
    low, high = integer_range(kind)
    width = f"fixed{high.bit_length() + (low < 0)}"
    return "whole", width if kind in FIXED else "zigzag" if kind in ZIGZAG else "varint", low, high
