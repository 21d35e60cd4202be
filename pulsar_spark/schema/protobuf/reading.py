"""Plans for protobuf values: how the kernel and the reference read them into columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pulsar_spark.schema.column_decoder import Read
from pulsar_spark.schema.protobuf.reference import is_closed_member, others_of_oneofs, reader_of
from pulsar_spark.schema.protobuf.types import (
    EnumType,
    Form,
    MessageField,
    MessageType,
    Presence,
    Type,
)


@dataclass(frozen=True)
class ProtobufPlan:
    """Reads values of a message into the columns of these fields."""

    message: MessageType
    fields: Sequence[MessageField]

    def reader(self) -> Read:
        """Return the function that reads one value."""
        return reader_of(self.message, self.fields)

    def described(self) -> tuple[Any, ...]:
        """Return the plan as the kernel takes it: the fields, and the names of all enums."""
        plans = _Plans()
        described = plans.fields(self.fields, others_of_oneofs(self.message, self.fields))
        return "message", described, plans.enums


_INTO: dict[int, tuple[str, str]] = {
    Type.TYPE_INT32: ("varint", "int"),
    Type.TYPE_SINT32: ("varint", "zigzag int"),
    Type.TYPE_SFIXED32: ("fixed32", "int"),
    Type.TYPE_UINT32: ("varint", "unsigned"),
    Type.TYPE_FIXED32: ("fixed32", "unsigned"),
    Type.TYPE_INT64: ("varint", "long"),
    Type.TYPE_SINT64: ("varint", "zigzag long"),
    Type.TYPE_SFIXED64: ("fixed64", "long"),
    Type.TYPE_UINT64: ("varint", "decimal"),
    Type.TYPE_FIXED64: ("fixed64", "decimal"),
    Type.TYPE_FLOAT: ("fixed32", "int"),
    Type.TYPE_DOUBLE: ("fixed64", "long"),
    Type.TYPE_BOOL: ("varint", "truth"),
    Type.TYPE_ENUM: ("varint", ""),
}
"""How numbers are written, and what they become."""

_FORMS = {
    Form.STRUCT: "struct",
    Form.EMPTY: "truth",
    Form.TIMESTAMP: "timestamp",
    Form.DURATION: "duration",
    Form.WRAPPER: "field",
    Form.FIELD_MASK: "field",
    Form.BYTES: "bytes",
}
_OF_FIELDS = (Form.STRUCT, Form.WRAPPER, Form.FIELD_MASK)


class _Plans:
    """Describes messages; an enum only once, since many fields can have the same large one."""

    def __init__(self) -> None:
        self.enums: list[list[tuple[int, bytes]]] = []
        self._known: dict[int, int] = {}

    def fields(
        self, fields: Sequence[MessageField], only_noticed: Sequence[MessageField] = ()
    ) -> list[tuple[Any, ...]]:
        oneofs: dict[str, int] = {}
        # The kernel clears the other members whatever the number of a closed enum is. It refuses
        # values that have one, or what one without a column could have cleared.
        closed = {each.oneof for each in only_noticed if is_closed_member(each)}
        found = []
        for place, field in enumerate([*fields, *only_noticed]):
            oneof = oneofs.setdefault(field.oneof, len(oneofs)) if field.oneof else None
            nullable = field.presence is not Presence.IMPLICIT
            is_refused = field.oneof in closed or is_closed_member(field)
            is_read = place < len(fields) and not is_refused
            value = self._value(field) if is_read else _noticed(field)
            if value is None and place < len(fields):
                value = ("refused",)
            if value is not None:
                found.append((field.number, field.repeated, oneof, nullable, value))
        return found

    def _value(self, field: MessageField) -> tuple[Any, ...]:
        message = field.message
        if field.type == Type.TYPE_GROUP or (message and message.form is Form.JSON):
            return ("refused",)
        if message is not None:
            has_fields = message.is_entry or message.form in _OF_FIELDS
            inner = self.fields(message.fields) if has_fields else []
            form = "pair" if message.is_entry else _FORMS[message.form]
            return "message", form, inner, message.leaves
        if field.type in (Type.TYPE_STRING, Type.TYPE_BYTES):
            return ("text" if field.type == Type.TYPE_STRING else "bytes",)
        written, into = _INTO[field.type]
        what = into if field.enum is None else self._enum(field.enum)
        return "number", written, what, field.default & 2**64 - 1

    def _enum(self, enum: EnumType) -> int:
        names = enum.names
        if id(names) not in self._known:
            self._known[id(names)] = len(self.enums)
            self.enums.append(sorted((number, name.encode()) for number, name in names.items()))
        return self._known[id(names)]


def _noticed(field: MessageField) -> tuple[Any, ...] | None:
    """Return how a field is written, None for groups, which are all refused.

    The kernel passes over it if it has no column, and otherwise refuses the value.
    """
    if field.type == Type.TYPE_GROUP:
        return None
    return "noticed", _INTO[field.type][0] if field.type in _INTO else "delimited"
