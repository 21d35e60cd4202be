"""The Arrow types that protobuf's fields have as columns.

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
| Any, and all others | struct of their fields |

All are nullable but for the keys of maps, as Spark's own file formats have it.
"""

from __future__ import annotations

import pyarrow as pa

from pulsar_spark.schema.protobuf.types import Field, Message, Shape, Type

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


def columns_of(message: Message) -> pa.Schema:
    """Return the columns of an outermost message."""
    return pa.schema([pa.field(field.name, column_type(field)) for field in message.fields])


def column_type(field: Field) -> pa.DataType:
    """Return the type of a field's column: a list or a map if it is repeated."""
    if not field.repeated:
        return single_type(field)
    if field.message is not None and field.message.is_entry:
        key, value = field.message.fields
        return pa.map_(
            pa.field("key", single_type(key), nullable=False), pa.field("value", single_type(value))
        )
    return pa.list_(pa.field("element", single_type(field)))


def single_type(field: Field) -> pa.DataType:
    """Return the type of one value of a field."""
    return _SCALARS[field.type] if field.message is None else message_type(field.message)


def message_type(message: Message) -> pa.DataType:
    """Return the type of a message within another."""
    match message.shape:
        case Shape.EMPTY:
            return pa.bool_()
        case Shape.TIMESTAMP:
            return pa.timestamp("us", tz="UTC")
        case Shape.DURATION:
            return pa.duration("us")
        case Shape.JSON:
            return pa.string()
        case Shape.WRAPPER | Shape.FIELD_MASK:
            return column_type(message.fields[0])
    return pa.struct([pa.field(each.name, column_type(each)) for each in message.fields])
