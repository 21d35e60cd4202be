"""The schema with which rows are written."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import fastavro
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pulsar_spark.errors import InvalidRow, SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import BYTES, SchemaInfo, join_key_value
from pulsar_spark.spark.writing import schemas
from pulsar_spark.spark.writing.columns import WriteColumns, plan_columns
from pulsar_spark.spark.writing.schemas import SchemaChoice, Target, target_for

TOPIC = "persistent://public/default/orders-2"
STRING = SchemaInfo(pb.Schema.String, "String")
INT32 = SchemaInfo(pb.Schema.Int32, "INT32")
NONE = SchemaInfo(BYTES)


def frame(value_format: str = "auto", **columns: DataType) -> WriteColumns:
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    return plan_columns(schema, topic_given=True, value_format=value_format)


def target(current: SchemaInfo | None, value_format: str = "auto", **columns: DataType) -> Target:
    choice = SchemaChoice(value_format)
    return target_for(TOPIC, current, frame(value_format, **columns), choice)


def test_what_was_decided_for_one_topic_is_not_taken_for_another_with_other_columns() -> None:
    def fields(info: SchemaInfo | None) -> list[str]:
        assert info is not None
        return [each["name"] for each in json.loads(info.schema_data)["fields"]]

    first = target(None, "avro", a=LongType()).schema
    for _ in range(2):
        assert fields(target(None, "avro", a=LongType()).schema) == ["a"]
        assert fields(target(first, "avro", a=LongType(), b=LongType()).schema) == ["a", "b"]
        with pytest.raises(SchemaMismatch):
            target(first, a=LongType(), b=LongType())
        assert target(first, "raw", a=BinaryType()).schema is None
        assert target(INT32, a=IntegerType()).schema == INT32
    assert first is not None
    for name, version in (("one", b"1"), ("two", b"2")):
        told = replace(first, name=name, found_as=(name, version))
        found = target(told, a=LongType())
        assert found.schema is not None
        assert (found.schema.name, found.current) == (name, version)


def test_columns_of_other_types_or_places_have_another_digest() -> None:
    same = [frame(a=LongType(), b=StringType()) for _ in range(2)]
    others = [
        frame(b=StringType(), a=LongType()),
        frame(a=LongType(), b=LongType()),
        frame(a=LongType(), b=StringType(), __key=StringType()),
        frame(__key=StringType(), a=LongType(), b=StringType()),
    ]
    assert len({each.digest for each in same}) == 1
    assert len({each.digest for each in (same[0], *others)}) == 5
    assert pickle.loads(pickle.dumps(same[0])).digest == same[0].digest


@pytest.mark.parametrize(
    "kind,registered",
    [
        (StringType(), pb.Schema.String),
        (BooleanType(), pb.Schema.Bool),
        (ByteType(), pb.Schema.Int8),
        (ShortType(), pb.Schema.Int16),
        (IntegerType(), pb.Schema.Int32),
        (LongType(), pb.Schema.Int64),
        (FloatType(), pb.Schema.Float),
        (DoubleType(), pb.Schema.Double),
        (DateType(), pb.Schema.LocalDate),
        (TimestampType(), pb.Schema.Instant),
        (TimestampNTZType(), pb.Schema.LocalDateTime),
    ],
)
def test_one_column_is_a_primitive_on_a_topic_without_schema(
    kind: DataType, registered: int
) -> None:
    for current in (None, NONE):
        found = target(current, value=kind).schema
        assert found is not None
        assert found.type == registered


@pytest.mark.parametrize(
    "columns, places",
    [
        ({"value": NullType()}, "value"),
        ({"a": LongType(), "b": NullType()}, "b"),
        ({"a": ArrayType(NullType()), "m": MapType(StringType(), NullType())}, r"a\[\], m\{\}"),
        ({"s": StructType().add("x", NullType()).add("y", LongType())}, r"s\.x"),
    ],
)
def test_a_new_schema_is_not_made_of_void_columns(
    columns: dict[str, DataType], places: str
) -> None:
    for value_format in ("auto", "avro", "json"):
        with pytest.raises(SchemaMismatch, match=f"void .*: {places}"):
            target(None, value_format, **columns)


def test_a_topics_schema_takes_void_columns_as_nulls_and_gets_none_added() -> None:
    current = target(None, a=StringType(), b=LongType()).schema
    assert target(current, a=NullType(), b=LongType()).schema == current
    with pytest.raises(SchemaMismatch, match=r"void .*: c"):
        target(current, "avro", a=StringType(), c=NullType())


@pytest.mark.parametrize(
    "current,value_format,kind",
    [(None, "auto", BinaryType()), (NONE, "auto", BinaryType()), (STRING, "raw", BinaryType())],
)
def test_bytes_register_nothing(
    current: SchemaInfo | None, value_format: str, kind: DataType
) -> None:
    assert target(current, value_format, value=kind) == Target()


def test_the_topics_schema_is_adopted() -> None:
    assert target(STRING, x=StringType()) == Target(STRING)
    assert target(STRING, "string", x=StringType()) == Target(STRING)
    assert target(INT32, x=IntegerType()) == Target(INT32)
    assert target(None, "string", x=StringType()).schema == STRING


@pytest.mark.fault(64)
@pytest.mark.parametrize(
    "current,value_format,kind,told",
    [
        (STRING, "auto", BinaryType(), "STRING"),
        (INT32, "auto", LongType(), "INT32"),
        (INT32, "string", StringType(), "valueFormat=string"),
        (SchemaInfo(pb.Schema.External), "auto", StringType(), "EXTERNAL"),
    ],
)
def test_a_column_that_does_not_fit_the_topics_schema_is_refused(
    current: SchemaInfo, value_format: str, kind: DataType, told: str
) -> None:
    with pytest.raises(SchemaMismatch, match=told) as caught:
        target(current, value_format, value=kind)
    assert caught.value.topic == TOPIC
    assert caught.value.remedy


def record(*names: str, **layout: Any) -> bytes:
    fields = [{"name": name, "type": ["null", "string"], "default": None} for name in names]
    tree = {"type": "record", "name": "Order", "namespace": "com.example", "fields": fields}
    return json.dumps(tree, **layout).encode()


@pytest.mark.parametrize("kind,name", [(pb.Schema.Avro, "avro"), (pb.Schema.Json, "json")])
@pytest.mark.parametrize("layout", [{"indent": 1}, {"separators": (",", ":")}])
def test_new_columns_come_behind_the_topics_own_fields(
    kind: int, name: str, layout: dict[str, Any]
) -> None:
    current = SchemaInfo(kind, "o", record("a", "b", **layout), {"__java": "x"})
    columns: Any = {"C": StringType(), "B": StringType(), "a": StringType()}
    with pytest.raises(SchemaMismatch, match="C is not in the topic's schema") as caught:
        target(current, **columns)
    assert f"valueFormat={name}" in caught.value.remedy
    found = target(current, name, **columns).schema
    assert found is not None
    assert found.schema_data == record("a", "b", "C", **layout)
    assert found.properties == current.properties
    assert target(current, name, a=StringType()) == Target(current)
    string = SchemaInfo(pb.Schema.String, "String")
    pair = join_key_value(string, current, separated=True)
    assert target(pair, name, **columns).schema == join_key_value(string, found, separated=True)


@pytest.mark.parametrize("name", ["com.acme.Order", "Outer$Order", "Größe", "Order"])
@pytest.mark.parametrize("value_format", ["avro", "json"])
def test_new_columns_go_to_records_of_any_name(name: str, value_format: str) -> None:
    known = {"type": "record", "name": "Order_t", "fields": [{"name": "i", "type": "int"}]}
    definition = {
        "type": "record",
        "name": name,
        "fields": [{"name": "old", "type": ["null", {"type": "array", "items": known}]}],
    }
    kind = pb.Schema.Avro if value_format == "avro" else pb.Schema.Json
    current = SchemaInfo(kind, "", json.dumps(definition).encode())
    added = {"t": StructType().add("x", IntegerType()), "u": StringType()}
    found = target(current, value_format, **added).schema
    assert found is not None
    evolved = json.loads(found.schema_data)
    assert (evolved["name"], evolved["fields"][0]) == (name, definition["fields"][0])
    assert evolved["fields"][1]["type"][1]["name"] != "Order_t"
    if name in ("com.acme.Order", "Order"):
        fastavro.parse_schema(evolved)


@pytest.mark.parametrize("kind,value_format", [(pb.Schema.Avro, "avro"), (pb.Schema.Json, "json")])
def test_new_columns_go_to_a_record_that_stands_in_the_place_of_a_type(
    kind: int, value_format: str
) -> None:
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    current = SchemaInfo(kind, "r", json.dumps({"type": {"type": record}}).encode())
    made = target(current, value_format, a=IntegerType(), b=StringType()).schema
    assert made is not None
    fields = json.loads(made.schema_data)["type"]["type"]["fields"]
    assert [field["name"] for field in fields] == ["a", "b"]


@pytest.mark.parametrize("kind", [pb.Schema.Avro, pb.Schema.Json])
@pytest.mark.parametrize(
    "definition, columns, adds",
    [
        (record("a"), {"a": StringType(), "b": StringType()}, True),
        (record("a"), {"s": StructType().add("a", StringType()).add("b", StringType())}, True),
        (record("a"), {"a": LongType()}, False),
        (record("x").replace(b'"string"', record("a")), {"x": StringType()}, False),
        (b'{"type":"array","items":"int"}', {"value": StringType()}, False),
    ],
)
def test_only_who_has_a_new_column_is_told_what_adds_columns(
    kind: int, definition: bytes, columns: dict[str, DataType], adds: bool
) -> None:
    value = SchemaInfo(kind, "o", definition)
    for current in (value, join_key_value(STRING, value, separated=True)):
        with pytest.raises(SchemaMismatch) as caught:
            target(current, "auto", **columns)
        assert ("adds columns" in str(caught.value)) == adds


def test_one_struct_is_a_record_unless_the_record_has_a_field_of_that_name() -> None:
    current = SchemaInfo(pb.Schema.Avro, "o", record("a", "b"))
    struct = StructType().add("a", StringType())
    assert target(current, value=struct) == Target(current, unwraps=True)
    nested = SchemaInfo(pb.Schema.Avro, "o", record("x").replace(b'"string"', record("a")))
    assert target(nested, X=struct) == Target(nested)
    made = target(None, anything=struct)
    assert made.unwraps
    assert made.schema is not None
    definition = json.loads(made.schema.schema_data)
    assert definition["name"] == "topLevelRecord"
    assert [field["name"] for field in definition["fields"]] == ["a"]


@pytest.mark.parametrize(
    "name, meant", [("key", "__key"), ("__keys", "__key"), ("__evenTime", "__eventTime")]
)
def test_a_field_of_a_new_schema_that_was_probably_meant_for_more_is_told_once(
    name: str, meant: str, caplog: pytest.LogCaptureFixture
) -> None:
    columns: dict[str, Any] = {name: StringType(), "value": StringType()}
    current = target(None, **columns).schema
    target(None, **columns)
    told = f"The column {name} becomes a field of the topic's new schema"
    assert caplog.text.count(told) == 1
    assert f"columns such as {meant}." in caplog.text
    schemas._warn_of_field.cache_clear()
    # Where somebody wants this field there is nothing to tell, nor beside the column itself.
    target(current, **columns)
    if name == "key":
        target(None, **columns, __key=StringType())
    assert caplog.text.count(told) == 1


def test_what_has_no_primitive_is_a_record_of_one_field() -> None:
    found = target(None, tags=ArrayType(StringType())).schema
    assert found is not None
    (field,) = json.loads(found.schema_data)["fields"]
    assert (field["name"], field["type"][0], field["default"]) == ("tags", "null", None)


def test_fields_of_schemas_that_are_made_can_be_null_whatever_spark_knows() -> None:
    schema = StructType().add("a", LongType(), nullable=False).add("b", LongType())
    columns = plan_columns(schema, topic_given=True, value_format="json")
    choice = SchemaChoice("json", "Order", "com.example")
    found = target_for(TOPIC, None, columns, choice).schema
    assert found is not None
    definition = json.loads(found.schema_data)
    assert (definition["name"], definition["namespace"]) == ("Order", "com.example")
    assert [field["type"] for field in definition["fields"]] == [["null", "long"]] * 2


def test_so_can_those_of_structs_wherever_they_lie() -> None:
    inner = StructType().add("i", IntegerType(), nullable=False)
    for kind in (
        StructType().add("s", inner, nullable=False),
        ArrayType(StructType().add("s", inner, nullable=False), containsNull=False),
        MapType(StringType(), StructType().add("s", inner), valueContainsNull=False),
    ):
        for value_format in ("avro", "json"):
            schema = target(None, value_format, a=kind, b=kind).schema
            assert schema is not None
            (first, _) = json.loads(schema.schema_data)["fields"]
            found = first["type"][1]
            found = found.get("items") or found.get("values") or found
            (struct,) = found["fields"]
            assert struct["type"][0] == "null"
            assert struct["type"][1]["fields"] == [
                {"name": "i", "type": ["null", "int"], "default": None}
            ]


@pytest.mark.parametrize("value_format", ["auto", "string"])
def test_keys_of_any_type_are_for_topics_with_such_keys(value_format: str) -> None:
    pair = join_key_value(INT32, STRING, separated=True)
    assert target(pair, value_format, __key=IntegerType(), value=StringType()) == Target(pair)
    assert target(pair, value_format, value=StringType()) == Target(pair)
    with pytest.raises(SchemaMismatch, match="INT32"):
        target(pair, value_format, __key=StringType(), value=StringType())
    for current in (None, STRING):
        with pytest.raises(InvalidRow, match="__key is int"):
            target(current, value_format, __key=IntegerType(), value=StringType())


@pytest.mark.fault(98)
def test_a_target_is_plain_data() -> None:
    found = target(SchemaInfo(pb.Schema.String, "String", b"", {"a": "b"}), x=StringType())
    assert pickle.loads(pickle.dumps(found)) == found
