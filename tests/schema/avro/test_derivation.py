"""Definitions for new topics: types of columns, and the brokers' rules."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.schema.avro import codec as avro_codec
from pulsar_spark.schema.avro.types import json_definition, record_definition
from tests.schema.avro.random_values import decoded

POINT = pa.struct([pa.field("x", pa.int32(), False), pa.field("y", pa.int32())])
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        ("name", pa.string()),
        ("point", POINT),
        ("points", pa.list_(pa.field("element", POINT, False))),
        ("tags", pa.map_(pa.string(), pa.string())),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("time", pa.time64("ns")),
        ("nothing", pa.null()),
    ]
)


def define(columns: pa.Schema, name: str = "Order", namespace: str = "org.example") -> Any:
    return json.loads(record_definition(columns, name, namespace))


def test_columns_become_fields_that_are_null_by_default() -> None:
    found = define(COLUMNS)
    assert (found["name"], found["namespace"]) == ("Order", "org.example")
    fields = {field["name"]: field for field in found["fields"]}
    assert fields["id"] == {"name": "id", "type": "long"}
    assert fields["name"] == {"name": "name", "type": ["null", "string"], "default": None}
    assert fields["tags"]["type"] == ["null", {"type": "map", "values": ["null", "string"]}]
    assert fields["at"]["type"][1]["logicalType"] == "timestamp-micros"
    assert fields["nothing"] == {"name": "nothing", "type": "null", "default": None}


def test_nested_records_have_names_of_their_own() -> None:
    found = define(COLUMNS)
    fields = {field["name"]: field["type"] for field in found["fields"]}
    assert fields["point"][1]["name"] == "Order_point"
    assert fields["points"][1]["items"]["name"] == "Order_points"
    columns = pa.schema([("a_b", POINT), ("a", pa.struct([("b", POINT)]))])
    assert fastavro.parse_schema(define(columns))


def test_fastavro_takes_the_definition_and_the_values() -> None:
    info = avro_codec.definition(COLUMNS, "Order", "org.example")
    assert info.type == pb.Schema.Avro
    fastavro.parse_schema(json.loads(info.schema_data))
    row: dict[str, Any] = {
        "id": 5, "name": "x", "point": {"x": 1, "y": None}, "points": [{"x": 1, "y": 2}],
        "tags": [("a", "b")], "price": None, "day": None, "at": None, "local": None,
        "time": None, "nothing": None,
    }  # fmt: skip
    empty = dict.fromkeys(row) | {"id": 6}
    batch = pa.RecordBatch.from_pylist([row, empty], schema=COLUMNS)
    data = avro_codec.encoder(info, COLUMNS).encode(batch).to_pylist()
    assert decoded(json.loads(info.schema_data), data) == [row, empty]


def test_the_columns_that_are_read_back_are_those_that_were_written() -> None:
    columns = pa.schema([field for field in COLUMNS if field.name != "time"])
    back = avro_codec.arrow_schema(avro_codec.definition(columns, "Order"))
    assert back.types == columns.types


def test_without_a_namespace_the_name_stands_alone() -> None:
    assert "namespace" not in define(COLUMNS, namespace="")


@pytest.mark.parametrize(
    "columns,what,remedy",
    [
        (pa.schema([("a b", pa.int32())]), "the column 'a b' has a name", "rename"),
        (pa.schema([("a", pa.struct([("1", pa.int32())]))]), "the column 'a.1' has a", "rename"),
        (pa.schema([("a", pa.int32()), ("a", pa.int32())]), "two columns 'a'", "rename"),
        (pa.schema([("a", pa.duration("us"))]), r"'a' is duration\[us\], which Avro has", "Cast"),
        (pa.schema([("a", pa.map_(pa.int32(), pa.int32()))]), "which Avro has no type", "Cast"),
        (pa.schema([("a", pa.decimal128(3, -2))]), "which Avro has no type for", "Cast"),
    ],
)
def test_what_avro_does_not_have_is_refused(columns: pa.Schema, what: str, remedy: str) -> None:
    with pytest.raises(SchemaMismatch, match=what) as caught:
        define(columns)
    assert remedy in str(caught.value.remedy)


def test_names_that_are_none_are_refused() -> None:
    with pytest.raises(
        SchemaMismatch,
        match=r"'a-b' is not a valid name .*'c d' is not a valid namespace",
    ) as caught:
        define(COLUMNS, "a-b", "c d")
    assert "set schema.name and schema.namespace" in str(caught.value.remedy)
    assert "rename" not in str(caught.value.remedy)


def test_only_options_that_help_are_named() -> None:
    with pytest.raises(SchemaMismatch) as caught:
        define(pa.schema([("a b", pa.int32())]))
    assert "rename columns with withColumnRenamed" in str(caught.value.remedy)
    assert "schema.name" not in str(caught.value.remedy)


def test_names_that_are_too_long_are_called_so() -> None:
    fits = pa.schema([("x" * 1000, pa.struct([("y" * 1000, pa.struct([("z", pa.int32())]))]))])
    avro_codec.encoder(avro_codec.definition(fits, "R", "n" * 400), fits)
    long = pa.schema([("x" * 1001, pa.int32())])
    told = r"column whose name has more than 1000 characters, x{80}…"
    for make in (define, json_definition):
        with pytest.raises(SchemaMismatch, match=told) as caught:
            make(long)
        assert "damaged" not in str(caught.value)


def test_columns_that_are_nested_too_deep_say_so_and_are_not_called_damaged() -> None:
    kind = pa.int32()
    for _ in range(23):
        kind = pa.struct([("f", kind)])
    fits = pa.schema([("v", kind)])
    avro_codec.encoder(avro_codec.definition(fits, "R"), fits)
    deeper = pa.schema([("v", pa.struct([("f", kind)]))])
    told = r"v\.f\..* more than 48 levels deep.* 23 structs fit"
    with pytest.raises(SchemaMismatch, match=told) as raised:
        avro_codec.encoder(avro_codec.definition(deeper, "R"), deeper)
    assert "damaged" not in str(raised.value)
