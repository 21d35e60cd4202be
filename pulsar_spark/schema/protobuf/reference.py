"""Protobuf values one by one: parsed by protobuf itself, then taken from its message.

The plain reference of the kernel's decoder (`native/src/protobuf.rs`), which it also tells what is
wrong with a value and where. Values have the form that `arrow/arrays` accepts.

An empty message takes two bytes in a value. With a hundred fields it takes a kilobyte in protobuf's
objects and in columns, so a value of a few megabytes could use all memory. The messages of values
that are long enough for this are counted before protobuf parses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from struct import Struct
from typing import Any, TypeAlias

from google.protobuf import descriptor_pool, message_factory, struct_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.arrow.arrays import MAX_CELLS
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.protobuf.types import (
    RAW_REMEDY,
    Form,
    MessageField,
    MessageType,
    Presence,
    Type,
)
from pulsar_spark.schema.protobuf.well_known import duration, json_text, timestamp
from pulsar_spark.schema.protobuf.wire import (
    DELIMITED,
    END_GROUP,
    FIXED32,
    FIXED64,
    START_GROUP,
    VARINT,
)

Convert: TypeAlias = Callable[[Any], Any]
"""Converts what protobuf has for a field, or raises Mismatch."""

# Protobuf's implementation in Python raises errors that the one in C does not: for deep nesting and
# for text that is not UTF-8.
_PARSE_ERRORS = (DecodeError, RecursionError, ValueError)
# Protobuf's classes have at most 64 KiB of fields, of up to 16 bytes each.
_MOST_FIELDS = 2000


def reader_of(
    message: MessageType, fields: Sequence[MessageField]
) -> Callable[[bytes], Sequence[Any]]:
    """Return the function that reads these fields of `message` from a value.

    As in protobuf, unknown fields are ignored, and a field with another wire type than the
    descriptor's is unknown. Raises Mismatch for bytes that are no message, for text that is not
    UTF-8 and for invalid times; SchemaMismatch for a message within that has more fields than
    protobuf's classes can have.
    """
    check = limit(fields)
    parts = [fields[at : at + _MOST_FIELDS] for at in range(0, len(fields), _MOST_FIELDS)] or [()]
    readers = [(message_class(message, part).FromString, _struct(part)) for part in parts]

    def read_value(value: bytes) -> Sequence[Any]:
        check(value)
        found: list[Any] = []
        for parse, read in readers:
            try:
                parsed = parse(value)
            except _PARSE_ERRORS:
                raise Mismatch("the bytes are not a protobuf message of this schema") from None
            found += read(parsed)
        return found

    return read_value


def _struct(fields: Sequence[MessageField], path: str = "") -> Callable[[Any], list[Any]]:
    """Return the function that reads these fields of a message, which is at `path`."""
    steps = []
    for field in fields:
        nullable = field.presence is not Presence.IMPLICIT
        convert = _field(field, f"{path}.{field.name}" if path else field.name)
        steps.append((_attribute(field), nullable, convert))

    def read(message: Any) -> list[Any]:
        found: list[Any] = []
        for name, nullable, convert in steps:
            if nullable and not message.HasField(name):
                found.append(None)
            elif convert is None:
                found.append(getattr(message, name))
            else:
                found.append(convert(getattr(message, name)))
        return found

    return read


def _field(field: MessageField, path: str) -> Convert | None:
    """Return the conversion of a field; None for what needs none."""
    if field.message is None:
        convert = _scalar(field, path)
    elif field.message.is_entry:
        return _map(field.message, path)
    else:
        convert = _message(field.message, path)
    if not field.repeated:
        return convert
    if convert is None:
        return lambda found: found[:]
    return lambda found: [convert(each) for each in _items(found)]


# Protobuf keeps a table of all message objects by address, whose entries collide if there are many.
_MOST_AT_ONCE = 256


def _items(found: Any) -> Iterable[Any]:
    """Return the items of protobuf's list: all at once if they are few, which is faster."""
    items: Iterable[Any] = found[:] if len(found) <= _MOST_AT_ONCE else found
    return items


def _map(entry: MessageType, path: str) -> Convert:
    """Of entries with the same key the last one counts, in its place."""
    read_key, read_value = (
        _field(field, f"{path}.{field.name}") or _unchanged for field in entry.fields
    )

    def convert(entries: Any) -> list[tuple[Any, Any]]:
        found: dict[Any, Any] = {}
        for each in reversed(entries):
            key = read_key(each.f1)
            if key not in found:
                found[key] = read_value(each.f2)
        return list(found.items())[::-1]

    return convert


def _message(message: MessageType, path: str) -> Convert:
    whole = _WHOLE.get(message.form)
    if whole is not None:
        return lambda found: whole(found, path)
    read = _struct(message.fields, path)
    if message.form is Form.STRUCT:
        return read
    return lambda found: read(found)[0]


_WHOLE: dict[Form, Callable[[Any, str], Any]] = {
    Form.EMPTY: lambda found, path: True,
    Form.BYTES: lambda found, path: found.SerializeToString(deterministic=True),
    Form.JSON: json_text,
    Form.TIMESTAMP: lambda found, path: timestamp(found.f1, found.f2, path),
    Form.DURATION: lambda found, path: duration(found.f1, found.f2, path),
}
"""Messages that are not read field by field."""


# --- scalars ------------------------------------------------------------------------------

_BITS: dict[int, Struct] = {Type.TYPE_FLOAT: Struct("<I"), Type.TYPE_DOUBLE: Struct("<Q")}


def _scalar(field: MessageField, path: str) -> Convert | None:
    if field.type == Type.TYPE_STRING:
        return _text(path)
    if field.enum is not None:
        names = {number: name.encode() for number, name in field.enum.names.items()}
        return lambda number: names[number] if number in names else str(number).encode()
    return _BITS[field.type].pack if field.type in _BITS else None


def _unchanged(value: Any) -> Any:
    return value


def _text(path: str) -> Convert:
    def convert(value: bytes) -> bytes:
        if not value.isascii():
            try:
                value.decode()
            except UnicodeDecodeError:
                raise Mismatch("the text is not UTF-8", path) from None
        return value

    return convert


# --- message classes: the schema's field numbers in our own descriptors -----------------------
#
# They have only the requested fields, under names that no method has. All are proto2, which has the
# same wire format and tells what is absent. Strings are bytes (no text objects are made), enums are
# numbers (unknown ones are kept, except by closed enums in oneofs), floats are their bits (Python's
# floats do not keep those of every NaN), map entries are messages (their order is kept).

_READ_AS: dict[int, int] = {
    Type.TYPE_STRING: Type.TYPE_BYTES,
    Type.TYPE_ENUM: Type.TYPE_INT32,
    Type.TYPE_FLOAT: Type.TYPE_FIXED32,
    Type.TYPE_DOUBLE: Type.TYPE_FIXED64,
}
_ROW = "Row"


def message_class(message: MessageType, fields: Sequence[MessageField]) -> Any:
    """Return a class for these fields of `message`."""
    file = FileDescriptorProto(
        name="columns.proto", syntax="proto2", dependency=[struct_pb2.DESCRIPTOR.name]
    )
    others = map(_noticed, others_of_oneofs(message, fields))
    _add_fields(file.message_type.add(name=_ROW), [*fields, *others], f".{_ROW}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    try:
        pool.AddSerializedFile(file.SerializeToString())
    except TypeError:
        raise SchemaMismatch(
            f"the protobuf message {message.name}, or one within it, has more fields than protobuf "
            "can read",
            f"Select other columns. {RAW_REMEDY}",
        ) from None
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(_ROW))


def others_of_oneofs(message: MessageType, fields: Sequence[MessageField]) -> list[MessageField]:
    """Return the other members of the fields' oneofs: a later one clears an earlier one."""
    oneofs = {field.oneof for field in fields if field.oneof}
    asked_for = {field.number for field in fields}
    return [
        each for each in message.fields if each.oneof in oneofs and each.number not in asked_for
    ]


def _noticed(field: MessageField) -> MessageField:
    """Return a field with the same wire type whose content does not matter."""
    if field.message is None:
        return field
    if field.type == Type.TYPE_GROUP:
        return replace(field, message=replace(field.message, fields=()))
    return replace(field, type=Type.TYPE_BYTES, message=None)


def _add_fields(proto: DescriptorProto, fields: Iterable[MessageField], scope: str) -> None:
    """Add fields to the message with the full name `scope`, which gets their messages, too."""
    oneofs: dict[str, int] = {}
    for field in fields:
        added = proto.field.add(
            name=_attribute(field),
            number=field.number,
            type=_READ_AS.get(field.type, field.type),
            label=Type.LABEL_REPEATED if field.repeated else Type.LABEL_OPTIONAL,
        )
        if field.message is not None and field.message.form is Form.JSON:
            added.type_name = f".{field.message.name}"
        elif field.message is not None:
            inner = proto.nested_type.add(name=f"M{field.number}")
            added.type_name = f"{scope}.{inner.name}"
            _add_fields(inner, field.message.fields, added.type_name)
        if field.enum is not None and is_closed_member(field):
            enum = proto.enum_type.add(name=f"E{field.number}")
            for place, number in enumerate(field.enum.names):
                enum.value.add(name=f"V{field.number}_{place}", number=number)
            added.type, added.type_name = Type.TYPE_ENUM, f"{scope}.{enum.name}"
        if field.default:
            added.default_value = str(field.default)
        if field.oneof:
            added.oneof_index = oneofs.setdefault(field.oneof, len(oneofs))
    for index in range(len(oneofs)):
        proto.oneof_decl.add(name=f"oneof{index}")


def is_closed_member(field: MessageField) -> bool:
    """Whether it is a member of a oneof that a number without a name does not set.

    To protobuf such a number is an unknown field, and another member stays.
    """
    return bool(field.oneof) and field.enum is not None and field.enum.closed


def _attribute(field: MessageField) -> str:
    return f"f{field.number}"


# --- limits of messages ---------------------------------------------------------------------

# An empty message needs a byte for the tag and one for the length.
_SMALLEST = 2
_SIZES = {FIXED64: 8, FIXED32: 4}
_LONGEST = 70

_Messages = dict[int, "tuple[int, _Messages]"]
"""By tag, the messages in a message: as how many fields each counts, and the messages in it."""


def limit(fields: Sequence[MessageField]) -> Callable[[bytes], None]:
    """Return a function that raises Mismatch for a value whose messages have too many fields."""
    messages = _messages(fields)
    harmless = _SMALLEST * MAX_CELLS // max(_widest(messages), 1)

    def check(value: bytes) -> None:
        if len(value) > harmless and _count(value, messages) > MAX_CELLS:
            raise Mismatch(f"its messages have more than {MAX_CELLS} fields")

    return check


def _messages(fields: Sequence[MessageField]) -> _Messages:
    found: _Messages = {}
    for field in fields:
        if field.message is not None:
            wire_type = START_GROUP if field.type == Type.TYPE_GROUP else DELIMITED
            # Protobuf makes a new message of a oneof whenever the member changes.
            cells = field.message.leaves if field.repeated or field.oneof else 0
            found[field.number << 3 | wire_type] = cells, _messages(field.message.fields)
    return found


def _widest(messages: _Messages) -> int:
    return max((max(cells, _widest(inner)) for cells, inner in messages.values()), default=0)


def _count(value: bytes, messages: _Messages) -> int:
    """Return the number of fields of the messages up to where the bytes are malformed."""
    cells = pos = 0
    levels = [(messages, len(value))]
    try:
        while levels and cells <= MAX_CELLS:
            known, end = levels[-1]
            if pos >= end:
                levels.pop()
                continue
            tag, pos = _varint(value, pos)
            wire_type = tag & 7
            own, inner = known.get(tag, (0, {}))
            cells += own
            if wire_type == DELIMITED:
                size, pos = _varint(value, pos)
                if inner:
                    levels.append((inner, pos + size))
                else:
                    pos += size
            elif wire_type == START_GROUP:
                levels.append((inner, end))
            elif wire_type == END_GROUP:
                levels.pop()
            elif wire_type == VARINT:
                _, pos = _varint(value, pos)
            else:
                pos += _SIZES[wire_type]
    except (IndexError, KeyError):
        pass
    return cells


def _varint(value: bytes, pos: int) -> tuple[int, int]:
    """Return a number and where it ends."""
    number = 0
    for shift in range(0, _LONGEST, 7):
        byte = value[pos]
        pos += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, pos
    raise IndexError
