"""Columns matched with a protobuf message: which fit, and how each is written as a field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.protobuf.types import (
    Form,
    MessageField,
    MessageType,
    Presence,
    Type,
    column_type,
    message_type,
    single_type,
)

OF_ONE_FIELD = (Form.WRAPPER, Form.FIELD_MASK)
"""Forms whose column is that of their only field."""
_WHOLE = (Form.EMPTY, Form.JSON, Form.BYTES)
_TIMES = (Form.TIMESTAMP, Form.DURATION)


@dataclass(frozen=True, slots=True)
class WriteField:
    """Writes the column at a place among the message's columns as a field.

    `type` is the type of one value. `parts` are a message's own fields by number: of a struct or of
    a map's entry those with columns, of a wrapper its only one.
    """

    field: MessageField
    place: int
    type: pa.DataType
    path: str
    parts: tuple[WriteField, ...] = ()


def plan_for_columns(message: MessageType, columns: pa.Schema) -> tuple[WriteField, ...]:
    """Return how to write rows of columns as messages, by the fields' numbers.

    Raises SchemaMismatch that lists all mismatched columns.
    """
    mismatches: list[str] = []
    found = _fields(message, list(columns), "", mismatches)
    if mismatches:
        raise SchemaMismatch(
            f"the columns do not match the topic's protobuf message {message.name}: "
            f"{'; '.join(mismatches)}",
            "Select, cast or add columns.",
        )
    return found


def _fields(
    message: MessageType, columns: Sequence[pa.Field], path: str, mismatches: list[str]
) -> tuple[WriteField, ...]:
    given = {column.name: index for index, column in enumerate(columns)}
    if len(given) < len(columns):
        mismatches.append(f"{path or 'the frame'} has two columns of one name (rename one)")
    known = {field.name for field in message.fields}
    mismatches += [
        f"{_at(path, n)} is not in the schema (drop it)" for n in given if n not in known
    ]
    found = []
    for field in sorted(message.fields, key=lambda each: each.number):
        here = _at(path, field.name)
        index = given.get(field.name)
        if index is not None:
            found.append(_field(field, index, columns[index].type, here, mismatches))
        elif field.presence is Presence.REQUIRED:
            mismatches.append(f"{here} is missing, and the schema requires it (add it)")
        elif field.presence is Presence.IMPLICIT and not field.repeated:
            mismatches.append(
                f"{here} is missing, and the schema does not allow null there (add it)"
            )
    return tuple(found)


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _field(
    field: MessageField, place: int, kind: pa.DataType, path: str, mismatches: list[str]
) -> WriteField:
    """Return how to write a column as a field; add mismatches."""
    message = field.message
    is_map = message is not None and message.is_entry
    wrong = f"{path} is {kind}, and the schema has {column_type(field)} (cast it)"
    if field.repeated and not (pa.types.is_map(kind) if is_map else pa.types.is_list(kind)):
        mismatches.append(wrong)
        return WriteField(field, place, kind, path)
    if is_map and message is not None:
        sides = zip(message.fields, (kind.key_type, kind.item_type), strict=True)
        parts = [
            _field(side, at, each, f"{path}.{name}", mismatches)
            for at, ((side, each), name) in enumerate(zip(sides, ("key", "value"), strict=True))
        ]
        return WriteField(field, place, kind, path, tuple(parts))
    one = kind.value_type if field.repeated else kind
    if message is not None:
        return WriteField(field, place, one, path, _parts(field, message, one, path, mismatches))
    if not accepts(field, one):
        mismatches.append(_mismatch_within(field, one, path) if field.repeated else wrong)
    return WriteField(field, place, one, path)


def _parts(
    field: MessageField, message: MessageType, kind: pa.DataType, path: str, mismatches: list[str]
) -> tuple[WriteField, ...]:
    """Return how to write the fields of a type's values as messages."""
    if message.form is Form.STRUCT and pa.types.is_struct(kind):
        return _fields(message, list(kind), path, mismatches)
    if message.form in OF_ONE_FIELD:
        return (_field(message.fields[0], 0, kind, path, mismatches),)
    if message.form in _TIMES and _is_time(kind, message_type(message)):
        by_number = enumerate(sorted(message.fields, key=lambda each: each.number))
        return tuple(WriteField(each, at, single_type(each), path) for at, each in by_number)
    if not (message.form in _WHOLE and kind == message_type(message)):
        mismatches.append(_mismatch_within(field, kind, path))
    return ()


def _is_time(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether columns have the time type of a message; time zones do not matter."""
    if pa.types.is_timestamp(wanted):
        return bool(pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz is not None)
    return bool(kind == wanted)


def _mismatch_within(field: MessageField, kind: pa.DataType, path: str) -> str:
    """Return the mismatch of a single value of a field."""
    where = f"the element of {path}" if field.repeated else path
    return f"{where} is {kind}, and the schema has {single_type(field)} (cast it)"


def accepts(field: MessageField, kind: pa.DataType) -> bool:
    """Whether columns of a type can be written as a scalar field's values."""
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
    return bool(types.is_signed_integer(kind) or (types.is_decimal128(kind) and kind.scale == 0))
