"""Avro types in Arrow are those that Spark's conversion produces and accepts."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.arrow.arrays import usual_type
from pulsar_spark.schema.avro.definition import parse_definition
from pulsar_spark.schema.avro.types import arrow_columns, arrow_type
from pulsar_spark.spark import compat


def arrow(tree: Any, **more: Any) -> pa.DataType:
    return arrow_type(parse_definition(json.dumps(tree).encode()), "f", **more)


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def fixed(size: int, name: str, **more: Any) -> dict[str, Any]:
    return {"name": "F", "size": size, **logical("fixed", name, **more)}


UTC = pa.timestamp("us", tz="UTC")
LOCAL = pa.timestamp("us")


@pytest.mark.parametrize(
    "tree,expected",
    [
        ("null", pa.null()),
        ("boolean", pa.bool_()),
        ("int", pa.int32()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("bytes", pa.binary()),
        ("string", pa.string()),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.string()),
        ({"type": "fixed", "name": "F", "size": 3}, pa.binary()),
        (logical("int", "date"), pa.date32()),
        (logical("int", "time-millis"), pa.int64()),
        (logical("long", "time-micros"), pa.int64()),
        (logical("long", "timestamp-millis"), UTC),
        (logical("long", "timestamp-micros"), UTC),
        (logical("long", "timestamp-nanos"), UTC),
        (logical("long", "local-timestamp-millis"), LOCAL),
        (logical("long", "local-timestamp-micros"), LOCAL),
        (logical("long", "local-timestamp-nanos"), LOCAL),
        (logical("string", "uuid"), pa.string()),
        (fixed(16, "uuid"), pa.string()),
        (logical("bytes", "decimal", precision=38, scale=3), pa.decimal128(38, 3)),
        (fixed(5, "decimal", precision=11), pa.decimal128(11, 0)),
        (["null", "int"], pa.int32()),
        (["int"], pa.int32()),
        (["null"], pa.null()),
        (["long", "null", "int"], pa.int64()),
        (["float", "double"], pa.float64()),
        (
            ["null", "int", "string"],
            pa.struct([("member0", pa.int32()), ("member1", pa.string())]),
        ),
        (
            [logical("int", "date"), "long"],
            pa.struct([("member0", pa.date32()), ("member1", pa.int64())]),
        ),
    ],
)
def test_types(tree: Any, expected: pa.DataType) -> None:
    assert arrow(tree) == expected


def test_nested_types_are_null_where_the_schema_says_so() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": ["null", "int"]}]}
    tree = {"type": "array", "items": {"type": "map", "values": inner}}
    strict = arrow(tree)
    assert not strict.value_field.nullable
    assert not strict.value_type.item_field.nullable
    assert strict.value_type.item_type.field(0).nullable
    loose = arrow(tree, all_nullable=True)
    assert loose.value_field.nullable
    assert loose.value_type.item_field.nullable


def test_the_types_are_those_that_spark_makes_itself() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "string"}]}
    tree = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": {"type": "array", "items": ["null", "int"]}},
            {"name": "b", "type": {"type": "array", "items": "string"}},
            {"name": "c", "type": {"type": "map", "values": inner}},
            {"name": "d", "type": fixed(12, "duration")},
            {"name": "e", "type": logical("long", "timestamp-millis")},
            {"name": "f", "type": logical("bytes", "decimal", precision=10, scale=2)},
            {"name": "g", "type": ["int", "string"]},
        ],
    }
    columns = arrow_columns(parse_definition(json.dumps(tree).encode()))
    assert compat.arrow_schema(from_arrow_schema(columns)) == columns
    assert all(field.nullable for field in columns)


def test_what_is_no_record_is_one_column() -> None:
    assert arrow_columns(parse_definition(b'"string"')) == pa.schema([("value", pa.string())])


def test_decimals_that_spark_does_not_have_are_opaque_or_refused_with_their_path() -> None:
    tree = {"type": "array", "items": logical("bytes", "decimal", precision=39)}
    node = parse_definition(json.dumps(tree).encode(), opaque=False)
    with pytest.raises(SchemaMismatch, match=r"the field f\[\] is a decimal of 39 digits"):
        arrow_type(node, "f")
    assert arrow(tree) == pa.binary()


def test_types_with_large_offsets_become_the_usual_ones() -> None:
    large = pa.struct([("a", pa.large_list(pa.large_string())), ("b", pa.large_binary())])
    usual = pa.struct([("a", pa.list_(pa.string())), ("b", pa.binary())])
    maps = [pa.map_(pa.large_string(), large), pa.map_(pa.string(), usual)]
    assert [usual_type(kind) for kind in (large, *maps, pa.int32())] == [
        usual,
        maps[1],
        maps[1],
        pa.int32(),
    ]
