"""Protobuf values → columns: in the kernel by a plan, or by protobuf's own parser.

The compiled kernel reads values into Arrow's buffers. What it refuses, and all values without it,
`protobuf/reference` reads: it knows what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from pulsar_spark.protocol import implementation
from pulsar_spark.schema.arrow.arrays import MAX_CELLS
from pulsar_spark.schema.arrow.kernel_columns import layout
from pulsar_spark.schema.codec import Decoded, decode_by_kernel
from pulsar_spark.schema.protobuf.reference import (
    ReferenceDecoder,
    default_of,
    others_of_oneofs,
)
from pulsar_spark.schema.protobuf.types import (
    EnumType,
    Form,
    MessageField,
    MessageType,
    Presence,
    Type,
    column_type,
)

# The kernel meets the limit of cells only after it has appended as many; the reference counts them
# first. Values with a part of the limit are rare enough to be left to it.
_FEWER = 8


class ProtobufDecoder:
    """Decodes values of a message into these columns of it."""

    def __init__(self, message: MessageType, fields: Sequence[MessageField]) -> None:
        self._message = message
        self._chosen = fields
        self._schema = pa.schema([pa.field(each.name, column_type(each)) for each in fields])

    @cached_property
    def _reference(self) -> ReferenceDecoder:
        return ReferenceDecoder(self._message, self._chosen)

    @cached_property
    def _kernel(self) -> Any:
        if implementation.native is None:
            return None
        plan = _plan(self._message, self._chosen)
        kind = layout(pa.struct(list(self._schema)))
        return implementation.native.ValueDecoder(kind, [plan], MAX_CELLS // _FEWER)

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode a binary array; null is a null value."""
        if self._kernel is None or not len(raw):
            return self._reference.decode(raw)
        return decode_by_kernel(
            self._kernel, self._schema, raw, None, lambda some, _: self._reference.decode(some)
        )


# --- plans for the kernel ---------------------------------------------------------------------

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


def _plan(message: MessageType, fields: Sequence[MessageField]) -> tuple[Any, ...]:
    """Return a message as the kernel takes it: its fields, and the names of all enums."""
    plans = _Plans()
    described = plans.fields(fields, others_of_oneofs(message, fields))
    return "message", described, plans.enums


class _Plans:
    """Describes messages; an enum only once, since many fields can have the same large one."""

    def __init__(self) -> None:
        self.enums: list[list[tuple[int, bytes]]] = []
        self._known: dict[int, int] = {}

    def fields(
        self, fields: Sequence[MessageField], only_noticed: Sequence[MessageField] = ()
    ) -> list[tuple[Any, ...]]:
        oneofs: dict[str, int] = {}
        found = []
        for place, field in enumerate([*fields, *only_noticed]):
            oneof = oneofs.setdefault(field.oneof, len(oneofs)) if field.oneof else None
            nullable = field.presence is not Presence.IMPLICIT
            value = self._value(field) if place < len(fields) else _noticed(field)
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
        default = default_of(field)
        if field.type in (Type.TYPE_STRING, Type.TYPE_BYTES):
            return "text" if field.type == Type.TYPE_STRING else "bytes", default or b""
        written, into = _INTO[field.type]
        number = default or 0
        if into.startswith("zigzag"):
            number = number << 1 ^ number >> 63
        what = into if field.enum is None else self._enum(field.enum)
        return "number", written, what, number & 2**64 - 1

    def _enum(self, enum: EnumType) -> int:
        names = enum.names
        if id(names) not in self._known:
            self._known[id(names)] = len(self.enums)
            self.enums.append(sorted((number, name.encode()) for number, name in names.items()))
        return self._known[id(names)]


def _noticed(field: MessageField) -> tuple[Any, ...] | None:
    """Return how a field without a column is written; None for groups, which are all refused."""
    if field.type == Type.TYPE_GROUP:
        return None
    return "noticed", _INTO[field.type][0] if field.type in _INTO else "delimited"
