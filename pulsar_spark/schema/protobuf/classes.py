"""Message classes for reading: the schema's own numbers in descriptors that are made here.

They hold only the fields that are asked for, under names that no method has. All are proto2, which
is the same on the wire. Strings are bytes (Arrow checks UTF-8, and no text is made), enums are
numbers (unknown ones stay), entries of maps are messages (their order stays). A field that can be
absent has a random default, so that `HasField` need only be asked where this is found.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from google.protobuf import descriptor_pool, message_factory, struct_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

from pulsar_spark.schema.protobuf.types import Field, Message, Presence, Shape, Type

_PACKAGE = "columns"
_READ_AS: dict[int, int] = {Type.TYPE_STRING: Type.TYPE_BYTES, Type.TYPE_ENUM: Type.TYPE_INT32}
_BATCH = "Batch"
_ROWS = 1

FRAME_TAG = bytes([_ROWS << 3 | 2])
"""What stands before the length and the bytes of each row in a batch."""


def attribute(field: Field) -> str:
    """Return the name that a field has in the classes of this module."""
    return f"f{field.number}"


def batch_class(message: Message, fields: Sequence[Field]) -> Any:
    """Return the class of a batch: it has `rows`, messages with these fields of `message`."""
    file = FileDescriptorProto(
        name="columns.proto",
        package=_PACKAGE,
        syntax="proto2",
        dependency=[struct_pb2.DESCRIPTOR.name],
    )
    builder = _Builder(file)
    # What is set later ends what is set in the same oneof, asked for or not.
    oneofs = {field.oneof for field in fields if field.oneof}
    asked_for = {field.number for field in fields}
    others = [
        each for each in message.fields if each.oneof in oneofs and each.number not in asked_for
    ]
    row = builder.add(fields, others)
    batch = file.message_type.add(name=_BATCH)
    batch.field.add(
        name="rows",
        number=_ROWS,
        label=Type.LABEL_REPEATED,
        type=Type.TYPE_MESSAGE,
        type_name=f".{_PACKAGE}.{row}",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{_BATCH}"))


class _Builder:
    """Adds messages to a file, each once."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._names: dict[int, str] = {}

    def add(self, fields: Sequence[Field], only_noticed: Sequence[Field] = ()) -> str:
        """Add a message with these fields, and those that need not be understood."""
        # Messages are held by their fields, so that no other tuple takes the identity.
        known = self._names.get(id(fields))
        if known is not None:
            return known
        name = f"M{len(self._names)}"
        self._names[id(fields)] = name
        proto = DescriptorProto(name=name)
        for field in fields:
            self._add_field(proto, field)
        for field in only_noticed:
            self._add_field(proto, _noticed(field))
        _add_oneofs(proto, [*fields, *only_noticed])
        self._file.message_type.append(proto)
        return name

    def _add_field(self, proto: DescriptorProto, field: Field) -> None:
        kind = _READ_AS.get(field.type, field.type)
        label = Type.LABEL_REPEATED if field.repeated else Type.LABEL_OPTIONAL
        added = proto.field.add(name=attribute(field), number=field.number, type=kind, label=label)
        if field.message is not None:
            added.type_name = self._message_name(field.message)
        elif not field.repeated:
            default = _default(kind, field)
            if default is not None:
                added.default_value = default

    def _message_name(self, message: Message) -> str:
        if message.shape is Shape.JSON:
            return f".{message.name}"
        return f".{_PACKAGE}.{self.add(message.fields)}"


def _noticed(field: Field) -> Field:
    if field.type != Type.TYPE_MESSAGE:
        return field
    return replace(field, type=Type.TYPE_BYTES, message=None)


def _add_oneofs(proto: DescriptorProto, fields: Sequence[Field]) -> None:
    """Add the oneofs of fields, which the message has in this order."""
    indexes: dict[str, int] = {}
    for added, field in zip(proto.field, fields, strict=True):
        if field.oneof:
            if field.oneof not in indexes:
                indexes[field.oneof] = len(indexes)
                # Names of oneofs and fields must differ; the fields' are those of `attribute`.
                proto.oneof_decl.add(name=f"one_of_{field.oneof}")
            added.oneof_index = indexes[field.oneof]


def _default(kind: int, field: Field) -> str | None:
    """Return the default as descriptors spell it."""
    value: Any = field.default if field.presence is Presence.IMPLICIT else _random(kind)
    if value is None:
        return None
    if kind == Type.TYPE_BYTES:
        data = value if isinstance(value, bytes) else value.encode()
        return "".join(f"\\{byte:03o}" for byte in data)
    if kind == Type.TYPE_BOOL:
        return "true" if value else "false"
    return repr(value)


def _random(kind: int) -> Any:
    if kind == Type.TYPE_BOOL:
        return None
    if kind == Type.TYPE_BYTES:
        return secrets.token_bytes(16)
    if kind == Type.TYPE_FLOAT:
        return float(secrets.randbits(24))
    if kind == Type.TYPE_DOUBLE:
        return float(secrets.randbits(53))
    # At least 31 bits, which all types of integers hold.
    wide = kind in (Type.TYPE_INT64, Type.TYPE_SINT64, Type.TYPE_SFIXED64)
    wide = wide or kind in (Type.TYPE_UINT64, Type.TYPE_FIXED64)
    return secrets.randbits(62 if wide else 31)
