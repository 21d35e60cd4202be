"""Columns matched with a protobuf message: which fit, and how each is written as a field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.protobuf.types import (
    UNSIGNED,
    Form,
    MessageField,
    MessageType,
    Presence,
    Type,
    column_type,
    message_type,
    single_type,
    type_name,
)
from pulsar_spark.schema.protobuf.wire import (
    DELIMITED,
    END_GROUP,
    FIXED32,
    FIXED64,
    START_GROUP,
    VARINT,
    signed,
    tag,
)

Plan: TypeAlias = tuple[Any, ...]
"""How columns are written as a message, a column as a field, or a value behind its tag.

The kernel (`native/src/value_encoder.rs`) and the reference (`protobuf/value_writing.py`) take it.
"""

_TIMES = {Form.TIMESTAMP: "timestamp", Form.DURATION: "duration"}

_PLAIN: dict[int, tuple[int, Plan]] = {
    Type.TYPE_STRING: (DELIMITED, ("bytes",)),
    Type.TYPE_BYTES: (DELIMITED, ("bytes",)),
    Type.TYPE_BOOL: (VARINT, ("boolean",)),
    Type.TYPE_FLOAT: (FIXED32, ("float",)),
    Type.TYPE_DOUBLE: (FIXED64, ("double",)),
}
_ZIGZAG = frozenset((Type.TYPE_SINT32, Type.TYPE_SINT64))
_FIXED32 = frozenset((Type.TYPE_FIXED32, Type.TYPE_SFIXED32))
_FIXED64 = frozenset((Type.TYPE_FIXED64, Type.TYPE_SFIXED64))
_LONG = _FIXED64 | {Type.TYPE_INT64, Type.TYPE_SINT64, Type.TYPE_UINT64}


def plan_for_columns(message: MessageType, columns: pa.Schema) -> Plan:
    """Return how to write rows of columns as messages.

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
) -> Plan:
    """Return the fields by number, with the places of their columns, and what is in oneofs."""
    given = {column.name: index for index, column in enumerate(columns)}
    if len(given) < len(columns):
        mismatches.append(f"{path or 'the frame'} has two columns of one name (rename one)")
    known = {field.name for field in message.fields}
    mismatches += [
        f"{_at(path, n)} is not in the schema (drop it)" for n in given if n not in known
    ]
    found = []
    oneofs: dict[str, list[int]] = {}
    for field in sorted(message.fields, key=lambda each: each.number):
        here = _at(path, field.name)
        index = given.get(field.name)
        if index is not None:
            plan = _field(field, columns[index].type, here, mismatches)
            found.append((index, plan, field.name))
            if field.oneof:
                oneofs.setdefault(field.oneof, []).append(index)
        elif field.presence is Presence.REQUIRED:
            mismatches.append(f"{here} is missing, and the schema requires it (add it)")
        elif field.presence is Presence.IMPLICIT and not field.repeated:
            mismatches.append(
                f"{here} is missing, and the schema does not allow null there (add it)"
            )
    several = {name: places for name, places in oneofs.items() if len(places) > 1}
    return found, list(several.values()), list(several)


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _field(field: MessageField, kind: pa.DataType, path: str, mismatches: list[str]) -> Plan:
    """Return how to write a column as a field; add mismatches."""
    message = field.message
    is_map = message is not None and message.is_entry
    wrong = f"{path} is {kind}, and the schema has {column_type(field)} (cast it)"
    if field.repeated and not (pa.types.is_map(kind) if is_map else pa.types.is_list(kind)):
        mismatches.append(wrong)
        return ()
    one = kind.value_type if field.repeated and not is_map else kind
    if message is not None:
        form = "repeated" if field.repeated else "single"
        nullable = field.presence is not Presence.REQUIRED
        content = _content(field, message, one, path, mismatches)
        return form, *_frame(field), nullable, False, content
    if not accepts(field, one):
        mismatches.append(_mismatch_within(field, one, path) if field.repeated else wrong)
    wire_type, content = _scalar(field)
    packed = field.repeated and field.packed
    form = ("packed" if packed else "repeated") if field.repeated else "single"
    head = tag(field.number, DELIMITED if packed else wire_type)
    # Fields without presence have a value, which is not written if it is zero. With a default other
    # than zero, it must be.
    omits_zero = field.presence is Presence.IMPLICIT and not field.repeated and not field.default
    return form, head, b"", field.presence is Presence.EXPLICIT, omits_zero, content


def _frame(field: MessageField) -> tuple[bytes, bytes]:
    """Return what is before and behind a message."""
    if field.type == Type.TYPE_GROUP:
        return tag(field.number, START_GROUP), tag(field.number, END_GROUP)
    return tag(field.number, DELIMITED), b""


def _content(
    field: MessageField, message: MessageType, kind: pa.DataType, path: str, mismatches: list[str]
) -> Plan:
    """Return how to write a type's values as messages."""
    if message.is_entry:
        sides = zip(message.fields, (kind.key_type, kind.item_type), strict=True)
        parts = []
        for place, (side, own) in enumerate(sides):
            plan = _field(side, own, f"{path}.{side.name}", mismatches)
            # It is absent if it is the default, but never null.
            parts.append((place, (*plan[:3], False, *plan[4:]), side.name))
        return "message", parts, [], []
    found: Plan = ()
    match message.form:
        case Form.STRUCT if pa.types.is_struct(kind):
            found = "message", *_fields(message, list(kind), path, mismatches)
        case Form.WRAPPER | Form.FIELD_MASK:
            found = "field", _field(message.fields[0], kind, path, mismatches)
        case Form.TIMESTAMP | Form.DURATION if _is_time(kind, message_type(message)):
            numbers = sorted(each.number for each in message.fields)
            found = _TIMES[message.form], *(tag(number, VARINT) for number in numbers)
        case Form.EMPTY | Form.JSON | Form.BYTES if kind == message_type(message):
            found = _whole(field, message)
    if not found:
        mismatches.append(_mismatch_within(field, kind, path))
    return found


def _whole(field: MessageField, message: MessageType) -> Plan:
    """Return how to write a message whose fields are no columns."""
    if message.form is Form.JSON:
        return "json", message.name
    if message.form is Form.BYTES:
        return ("message bytes",)
    return ("empty",) if field.repeated else ("truth",)


def _scalar(field: MessageField) -> tuple[int, Plan]:
    """Return a scalar's wire type, and how its values are written behind the tag."""
    kind, enum = field.type, field.enum
    if enum is not None:
        names = [(name.encode(), signed(number)) for name, number in sorted(enum.numbers.items())]
        return VARINT, ("enum", names, enum)
    if kind in _PLAIN:
        return _PLAIN[kind]
    bits = 64 if kind in _LONG else 32
    low, high = (0, 2**bits - 1) if kind in UNSIGNED else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if kind in _FIXED32 | _FIXED64:
        wire_type, written = (FIXED64 if kind in _FIXED64 else FIXED32), f"fixed{bits}"
    else:
        wire_type, written = VARINT, "zigzag" if kind in _ZIGZAG else "varint"
    return wire_type, ("whole", written, low, high, type_name(kind))


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
