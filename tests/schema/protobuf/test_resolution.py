"""Values of one schema version are read as another's by field numbers, or not at all."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.protobuf import codec
from pulsar_spark.schema.protobuf.types import Type, type_name
from tests.schema.protobuf.cases import SCALARS, add, add_map, class_of, info_of, new_file

REPEATED = Type.LABEL_REPEATED


def single(kind: int, name: str = "a", **more: Any) -> FileDescriptorProto:
    file = new_file()
    add(file.message_type.add(name="M"), name, 1, kind, **more)
    return file


def read(writer: FileDescriptorProto, reader: FileDescriptorProto, message: Any) -> list[Any]:
    names = codec.arrow_schema(info_of(reader)).names
    decoder = codec.decoder(info_of(writer), info_of(reader), names)
    decoded = decoder.decode(pa.array([message.SerializeToString()], pa.binary()))
    assert not decoded.bad
    return [column.to_pylist()[0] for column in decoded.columns]


@pytest.mark.fault(64)
def test_fields_are_known_by_number_and_those_of_one_side_are_absent_or_passed_over() -> None:
    old, new = new_file(), new_file()
    message = old.message_type.add(name="M")
    add(message, "a", 1, Type.TYPE_INT32)
    add(message, "gone", 2, Type.TYPE_STRING)
    message = new.message_type.add(name="M")
    add(message, "renamed", 1, Type.TYPE_INT32)
    add(message, "added", 3, Type.TYPE_STRING)
    assert read(old, new, class_of(old)(a=5, gone="x")) == [5, ""]
    assert read(new, old, class_of(new)(renamed=5, added="x")) == [5, ""]


# Values that show whether a type reads what another one wrote.
SAMPLES: dict[int, Any] = {
    Type.TYPE_BOOL: True,
    Type.TYPE_STRING: "text",
    Type.TYPE_BYTES: b"text",
    Type.TYPE_FLOAT: 1.5,
    Type.TYPE_DOUBLE: 1.5,
    Type.TYPE_UINT32: 2**32 - 1,
    Type.TYPE_FIXED32: 2**32 - 1,
    Type.TYPE_UINT64: 2**64 - 1,
    Type.TYPE_FIXED64: 2**64 - 1,
    Type.TYPE_INT32: -(2**31),
    Type.TYPE_SINT32: -(2**31),
    Type.TYPE_SFIXED32: -(2**31),
}


@pytest.mark.fault(64)
@pytest.mark.parametrize("writer", SCALARS, ids=type_name)
@pytest.mark.parametrize("reader", SCALARS, ids=type_name)
def test_a_number_of_two_types_gives_the_value_or_an_error(writer: int, reader: int) -> None:
    written = SAMPLES.get(writer, -(2**63))
    message = class_of(single(writer))(a=written)
    try:
        (found,) = read(single(writer), single(reader), message)
    except SchemaMismatch as raised:
        assert writer != reader
        error = str(raised)
    else:
        # A string has the same bytes as text and as bytes.
        assert as_bytes(found) == as_bytes(written)
        return
    assert f"a is {type_name(reader)}, and was written as {type_name(writer)}" in error


def as_bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def test_pairs_that_are_read() -> None:
    pairs = [
        (Type.TYPE_INT32, Type.TYPE_INT64),
        (Type.TYPE_UINT32, Type.TYPE_UINT64),
        (Type.TYPE_SINT32, Type.TYPE_SINT64),
        (Type.TYPE_BOOL, Type.TYPE_INT32),
        (Type.TYPE_STRING, Type.TYPE_BYTES),
    ]
    for writer, reader in pairs:
        codec.decoder(info_of(single(writer)), info_of(single(reader)), ["a"])


@pytest.mark.fault(64)
def test_text_from_bytes_must_be_utf_8() -> None:
    decoder = codec.decoder(
        info_of(single(Type.TYPE_BYTES)), info_of(single(Type.TYPE_STRING)), ["a"]
    )
    decoded = decoder.decode(pa.array([b"\x0a\x01\xff", b"\x0a\x01a"], pa.binary()))
    assert decoded.columns[0].to_pylist() == [None, "a"]
    assert [(bad.row, bad.field) for bad in decoded.bad] == [(0, "a")]


def test_one_value_becomes_a_list_of_it_and_no_list_becomes_one_value() -> None:
    one = single(Type.TYPE_INT32)
    many = single(Type.TYPE_INT32, label=REPEATED)
    assert read(one, many, class_of(one)(a=5)) == [[5]]
    with pytest.raises(SchemaMismatch, match="was written as repeated int32"):
        codec.decoder(info_of(many), info_of(one), ["a"])


@pytest.mark.fault(64)
def test_only_columns_that_are_asked_for_must_fit_and_all_mismatches_are_named() -> None:
    def file(kind: int, inner: int) -> FileDescriptorProto:
        made = new_file()
        add(made.message_type.add(name="N"), "x", 1, inner)
        message = made.message_type.add(name="M")
        add(message, "a", 1, kind)
        add(message, "b", 2, Type.TYPE_INT32)
        add(message, "n", 3, Type.TYPE_MESSAGE, type_name=".t.N", label=REPEATED)
        add_map(message, "t.M", "m", 4, Type.TYPE_INT32, Type.TYPE_MESSAGE, ".t.N")
        return made

    old, new = file(Type.TYPE_STRING, Type.TYPE_DOUBLE), file(Type.TYPE_INT32, Type.TYPE_INT32)
    codec.decoder(info_of(old), info_of(new), ["b"])
    with pytest.raises(SchemaMismatch) as raised:
        codec.decoder(info_of(old), info_of(new), ["m", "n", "a"])
    assert "a is int32, and was written as string" in str(raised.value)
    assert "m.value.x is int32, and was written as double" in str(raised.value)


def test_names_that_only_the_writer_knows_are_used() -> None:
    def file(*names: str) -> FileDescriptorProto:
        made = single(Type.TYPE_ENUM, type_name=".t.E")
        enum = made.enum_type.add(name="E")
        for number, name in enumerate(names):
            enum.value.add(name=name, number=number)
        return made

    old, new = file("A", "B"), file("A", "BETA", "C")
    assert read(new, old, class_of(new)(a=2)) == ["C"]
    assert read(new, old, class_of(new)(a=1)) == ["B"]
    assert read(old, new, class_of(old)(a=1)) == ["BETA"]


def test_a_message_is_no_group_and_no_map() -> None:
    def file(**more: Any) -> FileDescriptorProto:
        made = new_file(syntax="proto2")
        add(made.message_type.add(name="N"), "key", 1, Type.TYPE_INT32)
        add(made.message_type.add(name="M"), "a", 1, more.pop("kind"), type_name=".t.N", **more)
        return made

    message, group = file(kind=Type.TYPE_MESSAGE), file(kind=Type.TYPE_GROUP)
    with pytest.raises(SchemaMismatch):
        codec.decoder(info_of(message), info_of(group), ["a"])
    mapped = new_file(syntax="proto2")
    added = mapped.message_type.add(name="M")
    add_map(added, "t.M", "a", 1, Type.TYPE_INT32, Type.TYPE_INT32)
    many = file(kind=Type.TYPE_MESSAGE, label=REPEATED)
    with pytest.raises(SchemaMismatch):
        codec.decoder(info_of(many), info_of(mapped), ["a"])


WHOLE = ("Timestamp", "Duration", "Struct", "Value", "Int64Value")


@pytest.mark.fault(64)
@pytest.mark.parametrize("writer", [*WHOLE, ""])
@pytest.mark.parametrize("reader", [*WHOLE, ""])
def test_a_message_with_a_column_of_its_own_is_read_as_that_alone(writer: str, reader: str) -> None:
    def file(name: str) -> FileDescriptorProto:
        made = new_file()
        add(made.message_type.add(name="N"), "seconds", 1, Type.TYPE_INT64)
        kind = f".google.protobuf.{name}" if name else ".t.N"
        add(made.message_type.add(name="M"), "a", 1, Type.TYPE_MESSAGE, type_name=kind)
        return made

    # A message of one's own can have the same fields, but those of JSON.
    fits = writer == reader or (
        "" in (writer, reader) and not {writer, reader} & {"Struct", "Value"}
    )
    infos = info_of(file(writer)), info_of(file(reader))
    if fits:
        codec.decoder(*infos, ["a"])
    else:
        with pytest.raises(SchemaMismatch, match=r"^values of .*: a is .*, and was written as "):
            codec.decoder(*infos, ["a"])


@pytest.mark.fault(64)
def test_a_writer_of_another_kind_of_schema_is_refused() -> None:
    reader = info_of(single(Type.TYPE_INT32))
    with pytest.raises(SchemaMismatch, match="AVRO does not define a protobuf"):
        codec.decoder(SchemaInfo(pb.Schema.Avro, "", b"{}"), reader, ["a"])
    with pytest.raises(SchemaMismatch, match=r"t\.M has no field b"):
        codec.decoder(reader, reader, ["a", "b"])
