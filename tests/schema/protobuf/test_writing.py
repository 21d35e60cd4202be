"""How fields are written (absent, packed, groups), and which nulls are errors."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.column_encoder import ColumnEncoder, WritingPlan
from pulsar_spark.schema.protobuf import codec
from pulsar_spark.schema.protobuf.fitting import plan_for_columns
from pulsar_spark.schema.protobuf.types import Form, MessageField, MessageType, Type
from pulsar_spark.schema.protobuf.value_writing import message_writer
from tests.schema.protobuf.cases import add, add_map, info_of, new_file
from tests.schema.random_columns import outcome

pytestmark = pytest.mark.usefixtures("way")

REPEATED = Type.LABEL_REPEATED
PRESENT = {
    "proto2": {},
    "proto3": {"proto3_optional": True, "oneof_index": 0},
}


def single(kind: int, syntax: str = "proto3", **more: Any) -> FileDescriptorProto:
    file = new_file(syntax=syntax)
    inner = file.message_type.add(name="N")
    add(inner, "x", 1, Type.TYPE_INT32, **PRESENT[syntax])
    if syntax == "proto3":
        inner.oneof_decl.add(name="_x")
    file.message_type.add(name="Empty")
    message = file.message_type.add(name="M")
    if more.get("proto3_optional"):
        message.oneof_decl.add(name="_a")
    add(message, "a", 1, kind, **more)
    return file


def write(file: FileDescriptorProto, values: list[Any]) -> list[bytes]:
    info = info_of(file)
    columns = codec.arrow_schema(info)
    array = pa.array([None, *values, None], columns.field(0).type).slice(1, len(values))
    encoder = codec.encoder(info, columns)
    written = encoder.encode(pa.record_batch([array], schema=columns))
    decoded = codec.decoder(info, info, ["a"]).decode(written)
    assert decoded.columns[0].to_pylist() == values
    found: list[bytes] = written.to_pylist()
    return found


def test_defaults_are_left_out_where_there_is_no_presence() -> None:
    assert write(single(Type.TYPE_INT32), [0, 1]) == [b"", b"\x08\x01"]
    assert write(single(Type.TYPE_STRING), ["", "a"]) == [b"", b"\x0a\x01a"]
    assert write(single(Type.TYPE_BOOL), [False, True]) == [b"", b"\x08\x01"]


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
def test_defaults_are_written_and_nulls_are_absent_where_there_is_presence(syntax: str) -> None:
    more = PRESENT[syntax]
    assert write(single(Type.TYPE_INT32, syntax, **more), [0, None, 1]) == [
        b"\x08\x00",
        b"",
        b"\x08\x01",
    ]
    assert write(single(Type.TYPE_STRING, syntax, **more), ["", None]) == [b"\x0a\x00", b""]
    assert write(single(Type.TYPE_BOOL, syntax, **more), [None, False]) == [b"", b"\x08\x00"]


def test_messages_are_absent_empty_or_there() -> None:
    file = single(Type.TYPE_MESSAGE, type_name=".t.N")
    values = [None, {"x": None}, {"x": 5}]
    assert write(file, values) == [b"", b"\x0a\x00", b"\x0a\x02\x08\x05"]
    file = single(Type.TYPE_MESSAGE, type_name=".t.Empty")
    assert write(file, [True, None]) == [b"\x0a\x00", b""]
    file = single(Type.TYPE_MESSAGE, type_name=".google.protobuf.Int32Value")
    assert write(file, [None, 0, 5]) == [b"", b"\x0a\x00", b"\x0a\x02\x08\x05"]


def test_a_message_without_fields_is_absent_where_the_column_is_false() -> None:
    info = info_of(single(Type.TYPE_MESSAGE, type_name=".t.Empty"))
    columns = codec.arrow_schema(info)
    batch = pa.record_batch([[True, False, None]], schema=columns)
    assert codec.encoder(info, columns).encode(batch).to_pylist() == [b"\x0a\x00", b"", b""]


def test_groups_have_tags_around_them() -> None:
    file = single(Type.TYPE_GROUP, "proto2", type_name=".t.N")
    assert write(file, [{"x": 5}, None]) == [b"\x0b\x08\x05\x0c", b""]
    file = single(Type.TYPE_GROUP, "proto2", type_name=".t.N", label=REPEATED)
    assert write(file, [[{"x": 5}, {"x": None}], []]) == [b"\x0b\x08\x05\x0c\x0b\x0c", b""]


def test_lists_are_packed_as_the_schema_says() -> None:
    values: list[list[int]] = [[1, 300], [], [0]]
    assert write(single(Type.TYPE_INT32, label=REPEATED), values) == [
        b"\x0a\x03\x01\xac\x02",
        b"",
        b"\x0a\x01\x00",
    ]
    assert write(single(Type.TYPE_INT32, "proto2", label=REPEATED), values) == [
        b"\x08\x01\x08\xac\x02",
        b"",
        b"\x08\x00",
    ]
    assert write(single(Type.TYPE_STRING, label=REPEATED), [["a", ""], []]) == [
        b"\x0a\x01a\x0a\x00",
        b"",
    ]


def test_entries_of_maps_leave_out_defaults() -> None:
    file = new_file()
    add_map(file.message_type.add(name="M"), "t.M", "a", 1, Type.TYPE_STRING, Type.TYPE_INT32)
    assert write(file, [[("k", 5), ("", 0)], []]) == [b"\x0a\x05\x0a\x01k\x10\x05\x0a\x00", b""]


@pytest.mark.parametrize(
    "file, values, problem",
    [
        (
            single(Type.TYPE_INT32),
            [1, None],
            "a: it is null, and the schema does not allow null there",
        ),
        (
            single(Type.TYPE_INT32, "proto2", label=Type.LABEL_REQUIRED),
            [1, None],
            "a: it is null, and the schema does not allow null there",
        ),
        (
            single(Type.TYPE_MESSAGE, "proto2", type_name=".t.N", label=Type.LABEL_REQUIRED),
            [{"x": 1}, None],
            "a: it is null, and the schema requires it",
        ),
        (
            single(Type.TYPE_INT32, label=REPEATED),
            [[1], None],
            "a: it is null, and protobuf",
        ),
        (
            single(Type.TYPE_INT32, label=REPEATED),
            [[1, 1], [1, None]],
            "a: it has an element",
        ),
        (
            single(Type.TYPE_MESSAGE, type_name=".t.N", label=REPEATED),
            [[], [{"x": 1}, None]],
            "a: it has an element that is null",
        ),
    ],
)
def test_nulls_that_protobuf_has_not_are_refused_with_their_row(
    file: FileDescriptorProto, values: list[Any], problem: str
) -> None:
    with pytest.raises(Mismatch, match=f"row 1: {problem}") as raised:
        write(file, values)
    assert "coalesce" in raised.value.remedy


@pytest.mark.parametrize("value, field", [(None, "a"), ([("a", None)], "a.value")])
def test_nulls_in_maps_are_refused(value: Any, field: str) -> None:
    file = new_file()
    add_map(file.message_type.add(name="M"), "t.M", "a", 1, Type.TYPE_STRING, Type.TYPE_INT32)
    with pytest.raises(Mismatch, match=f"row 2: {field}: it is null"):
        write(file, [[("a", 1), ("b", 2)], [], value])


def test_an_error_in_a_nested_value_names_its_row() -> None:
    file = new_file()
    inner = file.message_type.add(name="N")
    add(inner, "x", 1, Type.TYPE_UINT32, label=REPEATED)
    message = file.message_type.add(name="M")
    add_map(message, "t.M", "a", 1, Type.TYPE_STRING, Type.TYPE_MESSAGE, ".t.N")
    values = [[], [("a", {"x": [1, 2]}), ("b", {"x": [3]})], [("c", {"x": []}), ("d", {"x": [-1]})]]
    with pytest.raises(Mismatch, match=r"row 2: a\.value\.x: it is -1"):
        write(file, values)


def test_messages_whose_fields_are_not_known_are_checked() -> None:
    message = MessageType("N", (), Form.BYTES)
    field = MessageField(1, "a", Type.TYPE_MESSAGE, message=message)
    columns = pa.schema([("a", pa.binary())])
    for value, is_message in (
        (b"", True), (b"\x08\x01", True), (b"\x0b\x08\x01\x0c", True), (b"\x08", False),
        (b"\x0f", False),
    ):  # fmt: skip
        plan = plan_for_columns(MessageType("M", (field,)), columns)
        encoder = ColumnEncoder(columns, WritingPlan("protobuf", plan, message_writer))
        found = outcome(encoder, pa.RecordBatch.from_arrays([pa.array([value])], schema=columns))
        good = [b"\x0a" + bytes([len(value)]) + value]
        assert found == (good if is_message else (0, "a", "it is not a protobuf message"))
