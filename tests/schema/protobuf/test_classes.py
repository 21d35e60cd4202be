"""Classes for reading contain only the requested fields."""

from __future__ import annotations

from pulsar_spark.schema.protobuf.definition import parse
from pulsar_spark.schema.protobuf.reference import message_class
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
    row = message_class(found, [found.fields[1]]).DESCRIPTOR
    assert [field.name for field in row.fields] == ["f2", "f3"]
    assert row.fields_by_name["f3"].message_type is None
    assert [len(oneof.fields) for oneof in row.oneofs] == [2]
