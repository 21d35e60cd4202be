"""Which DataFrames fit a schema, and the errors of those that do not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.protobuf import codec
from pulsar_spark.schema.protobuf.types import Type
from tests.schema.protobuf.cases import add, add_map, class_of, info_of, new_file
from tests.schema.protobuf.test_schema import listed

REPEATED = Type.LABEL_REPEATED

FILE = new_file()
_INNER = FILE.message_type.add(name="N")
add(_INNER, "x", 1, Type.TYPE_INT32)
add(_INNER, "y", 2, Type.TYPE_STRING)
FILE.message_type.add(name="Empty")
_OUTER = FILE.message_type.add(name="M")
_OUTER.oneof_decl.add(name="choice")
add(_OUTER, "id", 20, Type.TYPE_INT64)
add(_OUTER, "name", 2, Type.TYPE_STRING)
add(_OUTER, "n", 3, Type.TYPE_MESSAGE, type_name=".t.N")
add(_OUTER, "ns", 4, Type.TYPE_MESSAGE, type_name=".t.N", label=REPEATED)
add_map(_OUTER, "t.M", "m", 5, Type.TYPE_STRING, Type.TYPE_INT32)
add(_OUTER, "left", 6, Type.TYPE_INT32, oneof_index=0)
add(_OUTER, "right", 7, Type.TYPE_MESSAGE, type_name=".t.N", oneof_index=0)
add(_OUTER, "at", 8, Type.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
add(_OUTER, "numbers", 9, Type.TYPE_INT32, label=REPEATED)
add(_OUTER, "ats", 10, Type.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp", label=REPEATED)
add(_OUTER, "wrapped", 11, Type.TYPE_MESSAGE, type_name=".google.protobuf.Int32Value")
add(_OUTER, "empty", 12, Type.TYPE_MESSAGE, type_name=".t.Empty", label=REPEATED)
add(_OUTER, "names", 13, Type.TYPE_STRING, label=REPEATED)
INFO = info_of(FILE)
KIND = class_of(FILE)
NEEDED = [pa.field("id", pa.int64()), pa.field("name", pa.string())]


def mismatches(*columns: pa.Field) -> str:
    with pytest.raises(SchemaMismatch) as raised:
        codec.encoder(INFO, pa.schema(columns))
    return str(raised.value)


def encode(**columns: pa.Array) -> list[Any]:
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    values = codec.encoder(INFO, batch.schema).encode(batch)
    return [KIND.FromString(value) for value in values.to_pylist()]


def test_columns_are_found_by_name_and_those_that_can_be_absent_left_out() -> None:
    found = encode(name=pa.array(["a", "b"]), id=pa.array([1, 2]))
    assert found == [KIND(id=1, name="a"), KIND(id=2, name="b")]


def test_fields_are_written_in_the_order_of_their_numbers() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array(["a"])], names=["id", "name"])
    (value,) = codec.encoder(INFO, batch.schema).encode(batch).to_pylist()
    assert value == KIND(id=1, name="a").SerializeToString()


def test_all_that_does_not_fit_is_said_at_once() -> None:
    text = mismatches(
        pa.field("name", pa.int32()),
        pa.field("other", pa.int32()),
        pa.field("n", pa.struct([pa.field("x", pa.string()), pa.field("z", pa.int32())])),
        pa.field("ns", pa.list_(pa.struct([pa.field("x", pa.int32())]))),
        pa.field("m", pa.map_(pa.int32(), pa.string())),
        pa.field("at", pa.timestamp("us")),
        pa.field("numbers", pa.int32()),
        pa.field("ats", pa.list_(pa.date32())),
        pa.field("names", pa.list_(pa.int32())),
        pa.field("wrapped", pa.string()),
        pa.field("empty", pa.list_(pa.int32())),
    )
    for said in (
        "protobuf message t.M",
        "id is missing, and the schema does not allow null there (add it)",
        "name is int32, and the schema has string (cast it)",
        "other is not in the schema (drop it)",
        "n.x is string, and the schema has int32 (cast it)",
        "n.y is missing",
        "n.z is not in the schema (drop it)",
        "ns.y is missing",
        "m.key is int32, and the schema has string",
        "m.value is string, and the schema has int32",
        "at is timestamp[us], and the schema has timestamp[us, tz=UTC]",
        "numbers is int32, and the schema has list<element: int32>",
        "the element of ats is date32[day], and the schema has timestamp[us, tz=UTC]",
        "the element of names is int32, and the schema has string",
        "wrapped is string, and the schema has int32",
        "the element of empty is int32, and the schema has bool",
    ):
        assert said in text


def test_required_fields_are_there() -> None:
    file = new_file(syntax="proto2")
    add(file.message_type.add(name="M"), "a", 1, Type.TYPE_INT32, label=Type.LABEL_REQUIRED)
    with pytest.raises(SchemaMismatch, match="a is missing, and the schema requires it"):
        codec.encoder(info_of(file), pa.schema([]))


def test_columns_of_one_name_are_refused() -> None:
    assert "two columns of one name" in mismatches(*NEEDED, *NEEDED)


def test_shapes_of_columns_where_others_are_wanted() -> None:
    assert "m is string, and the schema has map" in mismatches(*NEEDED, pa.field("m", pa.string()))
    assert "n is int32, and the schema has struct" in mismatches(*NEEDED, pa.field("n", pa.int32()))


def test_two_members_of_a_oneof_are_refused_with_their_row() -> None:
    right = pa.array([None, None, {"x": 1, "y": ""}])
    base = {"id": pa.array([1, 2, 3]), "name": pa.array(["", "", ""]), "right": right}
    found = encode(**base, left=pa.array([1, None, None], pa.int32()))
    assert [message.WhichOneof("choice") for message in found] == ["left", None, "right"]
    with pytest.raises(
        Mismatch, match=r"row 2: .*choice: it has more than one member: left, right"
    ):
        encode(**base, left=pa.array([1, None, 3], pa.int32()))


def test_any_zone_of_a_timestamp_is_the_same_time() -> None:
    at = pa.array([10**6 + 5], pa.timestamp("us", tz="Europe/Berlin"))
    (found,) = encode(id=pa.array([1]), name=pa.array([""]), at=at)
    assert (found.at.seconds, found.at.nanos) == (1, 5000)


def test_no_rows_are_no_values() -> None:
    columns = codec.arrow_schema(INFO)
    batch = pa.record_batch([pa.array([], kind) for kind in columns.types], schema=columns)
    assert codec.encoder(INFO, columns).encode(batch).to_pylist() == []


def test_a_message_without_fields_has_no_columns() -> None:
    info = info_of(FILE, "Empty")
    assert codec.arrow_schema(info) == pa.schema([])
    batch = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert codec.encoder(info, pa.schema([])).encode(batch).to_pylist() == [b"", b""]


def test_listed_schemas_are_written_and_read() -> None:
    """Schemas of type PROTOBUF; a number with a default other than zero has presence."""
    info = listed(defaults={"number": 1.5})
    columns = codec.arrow_schema(info)
    assert columns.field("kind").type == pa.int32()
    rows = [
        {"text": "a", "number": 0.0, "count": 1, "kind": 3, "many": ["x", ""]},
        {"text": "", "number": None, "count": 0, "kind": 0, "many": []},
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=columns)
    values = codec.encoder(info, columns).encode(batch)
    decoded = codec.decoder(info, info, columns.names).decode(values)
    assert pa.table(list(decoded.columns), schema=columns).to_pylist() == rows
    absent = codec.decoder(info, info, columns.names).decode(pa.array([b""], pa.binary()))
    assert [column.to_pylist()[0] for column in absent.columns] == ["", None, None, 0, []]
