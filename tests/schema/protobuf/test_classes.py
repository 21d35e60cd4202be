"""Classes for reading contain only the requested fields."""

from __future__ import annotations

from pulsar_spark.schema.protobuf.definition import parse
from pulsar_spark.schema.protobuf.reference import FRAME_TAG, attribute, batch_class
from pulsar_spark.schema.protobuf.types import Type
from tests.schema.protobuf.cases import add, info_of, new_file


def test_fields_are_those_that_are_asked_for_and_others_of_their_oneof() -> None:
    file = new_file()
    message = file.message_type.add(name="M")
    message.oneof_decl.add(name="choice")
    add(message, "a", 1, Type.TYPE_INT32)
    add(message, "b", 2, Type.TYPE_STRING, oneof_index=0)
    add(message, "c", 3, Type.TYPE_MESSAGE, type_name=".google.protobuf.Any", oneof_index=0)
    add(message, "d", 4, Type.TYPE_INT32)
    found = parse(info_of(file))
    row = batch_class(found, [found.fields[1]]).DESCRIPTOR.fields_by_name["rows"].message_type
    assert [field.name for field in row.fields] == ["f2", "f3"]
    assert row.fields_by_name["f3"].message_type is None
    assert [len(oneof.fields) for oneof in row.oneofs] == [2]
    assert attribute(found.fields[1]) == "f2"


def test_rows_are_framed_as_the_batch_has_them() -> None:
    file = new_file()
    add(file.message_type.add(name="M"), "a", 1, Type.TYPE_INT32)
    found = parse(info_of(file))
    batch = batch_class(found, found.fields).FromString(FRAME_TAG + b"\x02\x08\x05")
    assert [row.f1 for row in batch.rows] == [5]


def test_each_class_has_markers_of_its_own() -> None:
    file = new_file(syntax="proto2")
    add(file.message_type.add(name="M"), "a", 1, Type.TYPE_INT64)
    found = parse(info_of(file))
    markers = {batch_class(found, found.fields)().rows.add().f1 for _ in range(5)}
    assert len(markers) == 5
