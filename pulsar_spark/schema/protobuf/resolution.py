"""Compatibility of a schema's versions: whether values of one can be read as the other's.

Protobuf identifies fields by number. A value is read with the reader's descriptor: fields that the
reader lacks are ignored, fields that the writer lacks are absent. If a number has two types,
reading often gives a wrong value instead of an error, so only pairs of types are accepted for which
every value is read as it was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.codec import Losses
from pulsar_spark.schema.protobuf.types import (
    RAW_REMEDY,
    EnumType,
    Form,
    MessageField,
    MessageType,
    Type,
    type_name,
)

_INTO_LONG = frozenset((Type.TYPE_INT32, Type.TYPE_UINT32, Type.TYPE_BOOL, Type.TYPE_ENUM))
_SAFE: dict[int, frozenset[int]] = {
    Type.TYPE_INT64: _INTO_LONG,
    Type.TYPE_UINT64: frozenset((Type.TYPE_UINT32, Type.TYPE_BOOL)),
    Type.TYPE_INT32: frozenset((Type.TYPE_BOOL, Type.TYPE_ENUM)),
    Type.TYPE_UINT32: frozenset((Type.TYPE_BOOL,)),
    Type.TYPE_ENUM: frozenset((Type.TYPE_INT32,)),
    Type.TYPE_SINT64: frozenset((Type.TYPE_SINT32,)),
    # Readers refuse text that is not UTF-8.
    Type.TYPE_STRING: frozenset((Type.TYPE_BYTES,)),
    Type.TYPE_BYTES: frozenset((Type.TYPE_STRING,)),
}


def resolved(writer: MessageType, fields: Sequence[MessageField]) -> list[MessageField]:
    """Return the reader's `fields` for reading values of `writer`.

    Adds the writer's own enum names. Raises SchemaMismatch that lists each field whose number has
    another type in the writer.
    """
    resolver = _Resolver()
    found = resolver.fields(writer, fields, ())
    if resolver.mismatches:
        raise SchemaMismatch(
            "values of an older or newer version of the protobuf schema cannot be resolved to the "
            f"query's: {'; '.join(resolver.mismatches)}",
            f"Select other columns, or drop these messages. {RAW_REMEDY}",
        )
    return found


def losses_of(writer: MessageType, fields: Sequence[MessageField]) -> Losses:
    """Return what values of `writer` lose that are read into the reader's `fields`.

    Raises as `resolved`.
    """
    resolved(writer, fields)
    return Losses(left_out=tuple(_left_out(writer.fields, fields, "")))


def _left_out(
    written: Sequence[MessageField], wanted: Sequence[MessageField], prefix: str
) -> Iterator[str]:
    known = {each.number: each for each in wanted}
    for field in written:
        reader = known.get(field.number)
        if reader is None:
            yield prefix + field.name
        elif field.message and reader.message and reader.message.form is not Form.BYTES:
            # What stays encoded has all of its fields.
            fields = field.message.fields, reader.message.fields
            yield from _left_out(*fields, f"{prefix}{reader.name}.")


class _Resolver:
    """Compares the fields of two versions, and collects those that do not match."""

    def __init__(self) -> None:
        self.mismatches: list[str] = []
        # Schemas have one object per message: the same two are compared once.
        self._known: dict[tuple[int, int], MessageType] = {}

    def fields(
        self, writer: MessageType, fields: Sequence[MessageField], path: tuple[str, ...]
    ) -> list[MessageField]:
        """Return the reader's fields, with what they need of the writer's."""
        written = {each.number: each for each in writer.fields}
        return [
            self._field(written[each.number], each, (*path, each.name))
            if each.number in written
            else each
            for each in fields
        ]

    def _field(
        self, writer: MessageField, reader: MessageField, path: tuple[str, ...]
    ) -> MessageField:
        if not _fits(writer, reader):
            self.mismatches.append(
                f"{'.'.join(path)} is {_name(reader)}, and was written as {_name(writer)}"
            )
        elif reader.message is not None and writer.message is not None:
            return replace(reader, message=self._message(writer.message, reader.message, path))
        elif reader.enum is not None and writer.enum is not None:
            return replace(reader, enum=_enum(writer.enum, reader.enum))
        return reader

    def _message(
        self, writer: MessageType, reader: MessageType, path: tuple[str, ...]
    ) -> MessageType:
        key = (id(writer), id(reader))
        if key not in self._known:
            fields = tuple(self.fields(writer, reader.fields, path))
            self._known[key] = replace(reader, fields=fields)
        return self._known[key]


def _fits(writer: MessageField, reader: MessageField) -> bool:
    if writer.repeated and not reader.repeated:
        return False
    if reader.message is not None and writer.message is not None:
        return writer.type == reader.type and _are_alike(writer.message, reader.message)
    return writer.type == reader.type or writer.type in _SAFE.get(reader.type, ())


def _are_alike(writer: MessageType, reader: MessageType) -> bool:
    """Whether the fields of one mean what those of the other do, as far as they are the same."""
    if reader.form is Form.BYTES:
        return not writer.is_entry
    if writer.form is Form.BYTES and writer.name:
        # It is recursive there, and its fields are not known here.
        return False
    # JSON's have no fields here, which could be compared.
    if Form.JSON in (writer.form, reader.form):
        return writer.name == reader.name
    has_meaning = {writer.form, reader.form} - {Form.STRUCT, Form.EMPTY, Form.BYTES}
    return len(has_meaning) < 2 and writer.is_entry == reader.is_entry


def _name(field: MessageField) -> str:
    name = type_name(field.type)
    if field.message is not None:
        name = field.message.name
    return f"repeated {name}" if field.repeated else name


def _enum(writer: EnumType, reader: EnumType) -> EnumType:
    return replace(reader, names={**writer.names, **reader.names})
