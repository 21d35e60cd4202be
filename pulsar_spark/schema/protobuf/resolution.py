"""Compatibility of a schema's versions: whether values of one can be read as the other's.

Protobuf knows fields by number. A value is read with the reader's descriptor: a field that the
reader does not know is passed over, one that the writer did not know is absent. Where a number is
of two types, reading would often give something, and something wrong; only the pairs of types are
accepted where every value comes out as it was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.protobuf.types import (
    RAW_REMEDY,
    EnumType,
    Field,
    Message,
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
    # Text that is not UTF-8 is refused where it is met.
    Type.TYPE_STRING: frozenset((Type.TYPE_BYTES,)),
    Type.TYPE_BYTES: frozenset((Type.TYPE_STRING,)),
}


def resolved(writer: Message, fields: Sequence[Field]) -> list[Field]:
    """Return the reader's `fields` as values of `writer` are to be read with.

    The names that only the writer has for numbers of enums are added. Raises SchemaMismatch, which
    names each field whose number the writer uses for another type.
    """
    misfits: list[str] = []
    found = _fields(writer, fields, (), misfits, {})
    if misfits:
        raise SchemaMismatch(
            "values of an older or newer version of the protobuf schema cannot be resolved to the "
            f"query's: {'; '.join(misfits)}",
            f"Select other columns, or drop these messages. {RAW_REMEDY}",
        )
    return found


_Known = dict[tuple[int, int], Message]


def _fields(
    writer: Message,
    fields: Sequence[Field],
    path: tuple[str, ...],
    misfits: list[str],
    known: _Known,
) -> list[Field]:
    written = {each.number: each for each in writer.fields}
    return [
        _field(written[each.number], each, (*path, each.name), misfits, known)
        if each.number in written
        else each
        for each in fields
    ]


def _field(
    writer: Field, reader: Field, path: tuple[str, ...], misfits: list[str], known: _Known
) -> Field:
    if not _fits(writer, reader):
        misfits.append(f"{'.'.join(path)} is {_name(reader)}, and was written as {_name(writer)}")
    elif reader.message is not None and writer.message is not None:
        message = _message(writer.message, reader.message, path, misfits, known)
        return replace(reader, message=message)
    elif reader.enum is not None and writer.enum is not None:
        return replace(reader, enum=_enum(writer.enum, reader.enum))
    return reader


def _message(
    writer: Message, reader: Message, path: tuple[str, ...], misfits: list[str], known: _Known
) -> Message:
    # Schemas hold one object per message; what is compared already is not compared again.
    key = (id(writer), id(reader))
    if key not in known:
        fields = tuple(_fields(writer, reader.fields, path, misfits, known))
        known[key] = replace(reader, fields=fields)
    return known[key]


def _fits(writer: Field, reader: Field) -> bool:
    if writer.repeated and not reader.repeated:
        return False
    if reader.message is not None and writer.message is not None:
        maps = reader.message.is_entry, writer.message.is_entry
        return writer.type == reader.type and maps[0] == maps[1]
    return writer.type == reader.type or writer.type in _SAFE.get(reader.type, ())


def _name(field: Field) -> str:
    name = type_name(field.type)
    if field.message is not None:
        name = field.message.name
    return f"repeated {name}" if field.repeated else name


def _enum(writer: EnumType, reader: EnumType) -> EnumType:
    return replace(reader, names={**writer.names, **reader.names})
