"""Descriptors are read as by protobuf; hostile ones are rejected in bounded time."""

from __future__ import annotations

import time

import pytest
from google.protobuf import descriptor_pb2, struct_pb2
from google.protobuf.descriptor_pb2 import FeatureSet, FileDescriptorProto, FileDescriptorSet

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.protobuf.definition import resolve
from pulsar_spark.schema.protobuf.types import (
    MAX_DEPTH,
    Form,
    MessageField,
    MessageType,
    Presence,
    Type,
)
from tests.schema.protobuf.cases import WELL_KNOWN, add, add_map, new_file

REPEATED = Type.LABEL_REPEATED


def resolved(file: FileDescriptorProto, root: str = "t.M") -> MessageType:
    files = FileDescriptorSet()
    for module in WELL_KNOWN:
        files.file.add().ParseFromString(module.DESCRIPTOR.serialized_pb)
    files.file.append(file)
    return resolve(files, root)


def fields_of(file: FileDescriptorProto) -> dict[str, MessageField]:
    return {field.name: field for field in resolved(file).fields}


def test_presence_in_proto2_is_by_label() -> None:
    file = new_file(syntax="proto2")
    message = file.message_type.add(name="M")
    add(message, "a", 1, Type.TYPE_INT32)
    add(message, "b", 2, Type.TYPE_INT32, label=Type.LABEL_REQUIRED)
    add(message, "c", 3, Type.TYPE_INT32, label=REPEATED)
    fields = fields_of(file)
    assert fields["a"].presence is Presence.EXPLICIT
    assert fields["b"].presence is Presence.REQUIRED
    assert not fields["c"].packed
    message.field[2].options.packed = True
    assert fields_of(file)["c"].packed


def test_a_file_that_names_no_syntax_is_proto2() -> None:
    file = new_file(syntax="")
    add(file.message_type.add(name="M"), "a", 1, Type.TYPE_INT32)
    assert fields_of(file)["a"].presence is Presence.EXPLICIT


def test_presence_in_proto3_is_of_optional_fields_messages_and_oneofs() -> None:
    file = new_file()
    message = file.message_type.add(name="M")
    message.oneof_decl.add(name="choice")
    message.oneof_decl.add(name="_b")
    add(message, "a", 1, Type.TYPE_INT32)
    add(message, "b", 2, Type.TYPE_INT32, proto3_optional=True, oneof_index=1)
    add(message, "c", 3, Type.TYPE_INT32, oneof_index=0)
    add(message, "d", 4, Type.TYPE_MESSAGE, type_name=".google.protobuf.Any")
    add(message, "e", 5, Type.TYPE_INT32, label=REPEATED)
    fields = fields_of(file)
    assert [fields[name].presence for name in "abcd"] == [
        Presence.IMPLICIT,
        Presence.EXPLICIT,
        Presence.EXPLICIT,
        Presence.EXPLICIT,
    ]
    assert [fields[name].oneof for name in "abcd"] == ["", "", "choice", ""]
    assert fields["e"].packed


def test_features_of_editions_count_from_the_nearest_place() -> None:
    file = new_file(syntax="editions")
    file.options.features.field_presence = FeatureSet.IMPLICIT
    file.options.features.message_encoding = FeatureSet.DELIMITED
    file.options.features.repeated_field_encoding = FeatureSet.EXPANDED
    message = file.message_type.add(name="M")
    add(message, "a", 1, Type.TYPE_INT32)
    explicit = add(message, "b", 2, Type.TYPE_INT32)
    explicit.options.features.field_presence = FeatureSet.EXPLICIT
    required = add(message, "c", 3, Type.TYPE_INT32)
    required.options.features.field_presence = FeatureSet.LEGACY_REQUIRED
    add(message, "d", 4, Type.TYPE_MESSAGE, type_name=".google.protobuf.Any")
    add(message, "e", 5, Type.TYPE_INT32, label=REPEATED)
    fields = fields_of(file)
    assert [fields[name].presence for name in "abcd"] == [
        Presence.IMPLICIT,
        Presence.EXPLICIT,
        Presence.REQUIRED,
        Presence.EXPLICIT,
    ]
    assert fields["d"].type == Type.TYPE_GROUP
    assert not fields["e"].packed


@pytest.mark.parametrize(
    "syntax, closed", [("proto2", True), ("proto3", False), ("editions", False)]
)
def test_enums_are_closed_in_proto2(syntax: str, closed: bool) -> None:
    file = new_file(syntax=syntax)
    enum = file.enum_type.add(name="E")
    for name, number in (("A", 0), ("B", 1), ("ALIAS", 1)):
        enum.value.add(name=name, number=number)
    add(file.message_type.add(name="M"), "a", 1, Type.TYPE_ENUM, type_name=".t.E")
    found = fields_of(file)["a"].enum
    assert found is not None
    assert found.closed is closed
    assert found.names == {0: "A", 1: "B"}
    assert found.numbers == {"A": 0, "B": 1, "ALIAS": 1}


@pytest.mark.fault(44)
def test_names_of_enums_have_a_bound() -> None:
    file = new_file()
    file.enum_type.add(name="E").value.add(name="A" * 128, number=0)
    add(file.message_type.add(name="M"), "a", 1, Type.TYPE_ENUM, type_name=".t.E")
    assert fields_of(file)["a"].enum
    file.enum_type[0].value.add(name="B" * 129, number=1)
    with pytest.raises(SchemaMismatch, match=r"enum t\.E with a name too long"):
        resolved(file)


def test_well_known_types_have_their_shapes_where_they_look_like_them() -> None:
    file = new_file()
    message = file.message_type.add(name="M")
    names = ("Timestamp", "Duration", "BytesValue", "FieldMask", "Value", "Any")
    for number, name in enumerate(names, 1):
        add(message, name, number, Type.TYPE_MESSAGE, type_name=f".google.protobuf.{name}")
    shapes = [field.message.form for field in resolved(file).fields if field.message]
    assert shapes == [
        Form.TIMESTAMP,
        Form.DURATION,
        Form.WRAPPER,
        Form.FIELD_MASK,
        Form.JSON,
        Form.STRUCT,
    ]
    own = FileDescriptorProto(name="own.proto", package="google.protobuf", syntax="proto3")
    add(own.message_type.add(name="Timestamp"), "seconds", 1, Type.TYPE_STRING)
    outer = own.message_type.add(name="M")
    add(outer, "a", 1, Type.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    found = resolve(FileDescriptorSet(file=[own]), "google.protobuf.M").fields[0].message
    assert found is not None
    assert found.form is Form.STRUCT


@pytest.mark.parametrize("name", ["Timestamp", "Struct", "Value", "Int64Value"])
def test_as_the_outermost_message_well_known_types_are_records(name: str) -> None:
    found = resolved(new_file(), f"google.protobuf.{name}")
    assert found.form is Form.STRUCT
    assert found.fields


def test_nested_types_are_found_and_have_their_own_rules() -> None:
    file = new_file(syntax="editions")
    message = file.message_type.add(name="M")
    inner = message.nested_type.add(name="Inner")
    inner.options.features.field_presence = FeatureSet.IMPLICIT
    add(inner, "a", 1, Type.TYPE_INT32)
    add(message, "b", 1, Type.TYPE_MESSAGE, type_name=".t.M.Inner")
    assert resolved(file, "t.M.Inner").fields[0].presence is Presence.IMPLICIT
    assert resolved(file).fields[0].presence is Presence.EXPLICIT


# --- what is refused ----------------------------------------------------------------------


@pytest.mark.fault(44)
@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_messages_that_contain_each_other_stay_bytes_within_each_other(
    order: tuple[str, str],
) -> None:
    """Whichever of them comes first."""
    file = new_file()
    for name, other in (("A", "B"), ("B", "A")):
        message = file.message_type.add(name=name)
        add(message, "n", 3, Type.TYPE_INT32)
        add(message, "other", 1, Type.TYPE_MESSAGE, label=REPEATED, type_name=f".t.{other}")
    message = file.message_type.add(name="M")
    for number, name in enumerate(order, 1):
        add(message, name, number, Type.TYPE_MESSAGE, type_name=f".t.{name.upper()}")
    fields = fields_of(file)
    for name, other in (("a", "B"), ("b", "A")):
        found = fields[name].message
        assert found is not None
        assert found.form is Form.STRUCT
        assert found.fields[1].message == MessageType(f"t.{other}", (), Form.BYTES)


@pytest.mark.fault(44)
def test_many_messages_that_contain_each_other_are_found_in_no_time() -> None:
    file = new_file()
    for number in range(300):
        message = file.message_type.add(name=f"N{number}")
        for other in range(300):
            add(message, f"f{other}", other + 1, Type.TYPE_MESSAGE, type_name=f".t.N{other}")
    add(file.message_type.add(name="M"), "n", 1, Type.TYPE_MESSAGE, type_name=".t.N7")
    inner = fields_of(file)["n"].message
    assert inner is not None
    assert {each.message.form for each in inner.fields if each.message} == {Form.BYTES}


@pytest.mark.fault(44)
def test_messages_that_double_at_each_level_are_refused_in_bounded_time() -> None:
    file = new_file()
    for depth in range(60):
        message = file.message_type.add(name=f"N{depth}")
        for number in (1, 2):
            kind = Type.TYPE_MESSAGE if depth else Type.TYPE_INT32
            field = add(message, f"f{number}", number, kind)
            if depth:
                field.type_name = f".t.N{depth - 1}"
    started = time.monotonic()
    with pytest.raises(SchemaMismatch, match="more than 10000 fields"):
        resolved(file, "t.N59")
    assert time.monotonic() - started < 30


@pytest.mark.fault(44)
def test_messages_that_nest_too_deep_are_refused() -> None:
    file = new_file()
    for depth in range(5000):
        message = file.message_type.add(name=f"N{depth}")
        add(message, "n", 1, Type.TYPE_MESSAGE, type_name=f".t.N{depth + 1}")
    with pytest.raises(SchemaMismatch, match=f"deeper than {MAX_DEPTH}"):
        resolved(file, "t.N0")


@pytest.mark.fault(44)
def test_definitions_within_each_other_need_no_stack() -> None:
    file = new_file()
    message = file.message_type.add(name="M")
    name = ".t.M"
    for _ in range(90):
        message = message.nested_type.add(name="N")
        name += ".N"
    add(message, "a", 1, Type.TYPE_INT32)
    assert resolved(file, name).fields[0].name == "a"


def test_types_are_defined_once_and_where_they_are_used() -> None:
    file = new_file()
    message = file.message_type.add(name="M")
    field = add(message, "a", 1, Type.TYPE_MESSAGE, type_name=".t.Nothing")
    with pytest.raises(SchemaMismatch, match=r"not define the message t\.Nothing"):
        resolved(file)
    field.type = Type.TYPE_ENUM
    with pytest.raises(SchemaMismatch, match=r"not define the enum t\.Nothing"):
        resolved(file)
    field.ClearField("type")
    with pytest.raises(SchemaMismatch, match="field a no type"):
        resolved(file)
    file.message_type.add(name="M")
    with pytest.raises(SchemaMismatch, match=r"defines t\.M twice"):
        resolved(file)
    with pytest.raises(SchemaMismatch, match="syntax 'proto9'"):
        resolved(new_file(syntax="proto9"))


@pytest.mark.parametrize("key", [Type.TYPE_DOUBLE, Type.TYPE_BYTES])
def test_maps_have_keys_that_maps_can_have(key: int) -> None:
    file = new_file()
    message = file.message_type.add(name="M")
    add_map(message, "t.M", "m", 1, key, Type.TYPE_INT32)
    with pytest.raises(SchemaMismatch, match="entries of the map"):
        resolved(file)


def test_a_map_is_repeated() -> None:
    file = new_file()
    message = file.message_type.add(name="M")
    add_map(message, "t.M", "m", 1, Type.TYPE_INT32, Type.TYPE_INT32)
    message.field[0].label = Type.LABEL_OPTIONAL
    with pytest.raises(SchemaMismatch, match="not repeated"):
        resolved(file)


def test_values_of_maps_are_never_absent() -> None:
    file = new_file(syntax="proto2")
    enum = file.enum_type.add(name="E")
    enum.value.add(name="FIRST", number=5)
    message = file.message_type.add(name="M")
    add_map(message, "t.M", "m", 1, Type.TYPE_INT32, Type.TYPE_ENUM, ".t.E")
    entry = resolved(file).fields[0].message
    assert entry is not None
    assert entry.is_entry
    assert [field.presence for field in entry.fields] == [Presence.IMPLICIT] * 2
    assert [field.default for field in entry.fields] == [0, 5]


def test_unknown_features_and_options_do_no_harm() -> None:
    file = new_file(syntax="editions")
    file.edition = descriptor_pb2.EDITION_MAX
    file.options.java_package = "a.b"
    add(file.message_type.add(name="M"), "a", 1, Type.TYPE_INT32)
    assert fields_of(file)["a"].presence is Presence.EXPLICIT
    assert struct_pb2.DESCRIPTOR.name in file.dependency
