"""The tree of a protobuf schema as plain data, and its Arrow types.

| protobuf | column |
|---|---|
| int32, sint32, sfixed32 | int |
| uint32, fixed32, int64, sint64, sfixed64 | long |
| uint64, fixed64 | decimal(20, 0) |
| float, double, bool, string, bytes | the same |
| enum | string, its name; a number without one as text |
| message, group | struct; boolean, true where it is there, if the message has no fields |
| repeated, map | array, map |
| Timestamp, Duration | timestamp, day-time interval: microseconds, what is finer is cut off |
| DoubleValue … BytesValue | the type within, null where absent |
| Struct, Value, ListValue | string, their JSON |
| FieldMask | array of strings |
| a message within itself (recursive) | binary, its bytes |
| Any, and all others | struct of their fields |

All are nullable except map keys, as in Spark's own file formats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum as PythonEnum

import pyarrow as pa
from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from pulsar_spark.errors import SchemaMismatch

Type = FieldDescriptorProto

RAW_REMEDY = "Read it with valueFormat=raw, which gives each value's bytes."

MAX_DEPTH = 64
"""Maximum nesting of messages."""
MAX_LEAVES = 10_000
"""Maximum number of fields of a schema and all nested messages, counting each column."""

_LAST_NUMBER = 2**29 - 1

STRINGS = frozenset((Type.TYPE_STRING, Type.TYPE_BYTES))
MESSAGES = frozenset((Type.TYPE_MESSAGE, Type.TYPE_GROUP))
UNSIGNED = frozenset((Type.TYPE_UINT32, Type.TYPE_FIXED32, Type.TYPE_UINT64, Type.TYPE_FIXED64))


class Presence(PythonEnum):
    """What an absent field means."""

    EXPLICIT = "null"
    IMPLICIT = "its default"
    REQUIRED = "an error for those who write"


class Form(PythonEnum):
    """What column a message becomes."""

    STRUCT = "its fields"
    EMPTY = "true where it is there, as it has no fields"
    TIMESTAMP = "google.protobuf.Timestamp"
    DURATION = "google.protobuf.Duration"
    WRAPPER = "the field of a google.protobuf wrapper"
    JSON = "google.protobuf.Struct, Value and ListValue"
    FIELD_MASK = "google.protobuf.FieldMask"
    BYTES = "its bytes, as it is recursive, or the schema does not say what is in it"


@dataclass(frozen=True, slots=True)
class EnumType:
    """An enum; a number's first name counts. Closed enums have no other numbers."""

    names: Mapping[int, str]
    numbers: Mapping[str, int]
    closed: bool


@dataclass(frozen=True, slots=True)
class MessageField:
    """A field; `type` is a number of FieldDescriptorProto.Type, `oneof` is "" outside of one.

    A map is a repeated field whose message has `is_entry`. `default` is the number of an enum that
    is absent in a map's entry; everywhere else it is null, 0 or empty.
    """

    number: int
    name: str
    type: int
    presence: Presence = Presence.EXPLICIT
    repeated: bool = False
    packed: bool = False
    oneof: str = ""
    message: MessageType | None = None
    enum: EnumType | None = None
    default: int = 0


@dataclass(frozen=True, slots=True)
class MessageType:
    """A message type; `leaves` is the number of fields, nested ones included."""

    name: str
    fields: tuple[MessageField, ...]
    form: Form = Form.STRUCT
    is_entry: bool = False
    leaves: int = field(default=0, compare=False)


def type_name(kind: int) -> str:
    """Return a scalar type as .proto files spell it."""
    return Type.Type.DESCRIPTOR.values_by_number[kind].name.removeprefix("TYPE_").lower()


def damaged(what: str) -> SchemaMismatch:
    """Return the error for an incomplete or invalid definition."""
    return SchemaMismatch(f"the topic's protobuf schema {what}", RAW_REMEDY)


def check_number(number: int, name: str) -> int:
    """Return a field's number. Raises SchemaMismatch if it is invalid."""
    if not name or not 1 <= number <= _LAST_NUMBER or 19_000 <= number <= 19_999:
        raise damaged(f"gives the field {name!r} the number {number}")
    return number


def check_unique(name: str, fields: Sequence[MessageField]) -> None:
    """Raise SchemaMismatch if two fields of a message share a name or a number."""
    for attribute in ("name", "number"):
        if len({getattr(each, attribute) for each in fields}) < len(fields):
            raise damaged(f"has a message {name} with two fields of one {attribute}")


_SCALARS: dict[int, pa.DataType] = {
    Type.TYPE_INT32: pa.int32(),
    Type.TYPE_SINT32: pa.int32(),
    Type.TYPE_SFIXED32: pa.int32(),
    Type.TYPE_UINT32: pa.int64(),
    Type.TYPE_FIXED32: pa.int64(),
    Type.TYPE_INT64: pa.int64(),
    Type.TYPE_SINT64: pa.int64(),
    Type.TYPE_SFIXED64: pa.int64(),
    Type.TYPE_UINT64: pa.decimal128(20, 0),
    Type.TYPE_FIXED64: pa.decimal128(20, 0),
    Type.TYPE_FLOAT: pa.float32(),
    Type.TYPE_DOUBLE: pa.float64(),
    Type.TYPE_BOOL: pa.bool_(),
    Type.TYPE_STRING: pa.string(),
    Type.TYPE_ENUM: pa.string(),
    Type.TYPE_BYTES: pa.binary(),
}


_SHAPES = {
    Form.EMPTY: pa.bool_(),
    Form.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Form.DURATION: pa.duration("us"),
    Form.JSON: pa.string(),
    Form.BYTES: pa.binary(),
}


def arrow_columns(message: MessageType) -> pa.Schema:
    """Return the columns of an outermost message."""
    return pa.schema([pa.field(field.name, column_type(field)) for field in message.fields])


def column_type(field: MessageField) -> pa.DataType:
    """Return the type of a field's column: a list or a map if it is repeated."""
    if not field.repeated:
        return single_type(field)
    if field.message is not None and field.message.is_entry:
        key, value = field.message.fields
        return pa.map_(
            pa.field("key", single_type(key), nullable=False), pa.field("value", single_type(value))
        )
    return pa.list_(pa.field("element", single_type(field)))


def single_type(field: MessageField) -> pa.DataType:
    """Return the type of one value of a field."""
    return _SCALARS[field.type] if field.message is None else message_type(field.message)


def message_type(message: MessageType) -> pa.DataType:
    """Return the type of a message within another."""
    if message.form in _SHAPES:
        return _SHAPES[message.form]
    if message.form in (Form.WRAPPER, Form.FIELD_MASK):
        return column_type(message.fields[0])
    return pa.struct([pa.field(each.name, column_type(each)) for each in message.fields])
