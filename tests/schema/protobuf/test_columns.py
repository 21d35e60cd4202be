"""The columns of protobuf's types are those that Spark's own functions make."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from pulsar_spark.schema.protobuf.codec import arrow_schema
from pulsar_spark.schema.protobuf.types import Type
from pulsar_spark.spark import compat
from tests.schema.protobuf.cases import RandomSchema, add, add_map, info_of, new_file

EXPECTED = {
    Type.TYPE_INT32: pa.int32(),
    Type.TYPE_SINT32: pa.int32(),
    Type.TYPE_SFIXED32: pa.int32(),
    Type.TYPE_UINT32: pa.int64(),
    Type.TYPE_FIXED32: pa.int64(),
    Type.TYPE_INT64: pa.int64(),
    Type.TYPE_SINT64: pa.int64(),
    Type.TYPE_SFIXED64: pa.int64(),
    Type.TYPE_UINT64: pa.decimal128(20, 0),
    Type.TYPE_FIXED64: pa.decimal128(20, 0),
    Type.TYPE_FLOAT: pa.float32(),
    Type.TYPE_DOUBLE: pa.float64(),
    Type.TYPE_BOOL: pa.bool_(),
    Type.TYPE_STRING: pa.string(),
    Type.TYPE_BYTES: pa.binary(),
}
STAMP = pa.timestamp("us", tz="UTC")
WELL_KNOWN = {
    "Timestamp": STAMP,
    "Duration": pa.duration("us"),
    "UInt64Value": pa.decimal128(20, 0),
    "StringValue": pa.string(),
    "Struct": pa.string(),
    "ListValue": pa.string(),
    "FieldMask": pa.list_(pa.field("element", pa.string())),
    "Any": pa.struct([pa.field("type_url", pa.string()), pa.field("value", pa.binary())]),
}


@pytest.mark.parametrize("kind, column", EXPECTED.items())
def test_scalars(kind: int, column: pa.DataType) -> None:
    file = new_file()
    message = file.message_type.add(name="M")
    add(message, "a", 1, kind)
    add(message, "b", 2, kind, label=Type.LABEL_REPEATED)
    found = arrow_schema(info_of(file))
    assert found.field("a").type == column
    assert found.field("b").type == pa.list_(pa.field("element", column))
    assert found.field("b").type.value_field.name == "element"


@pytest.mark.parametrize("name, column", WELL_KNOWN.items())
def test_well_known_types(name: str, column: pa.DataType) -> None:
    file = new_file()
    message = file.message_type.add(name="M")
    add(message, "a", 1, Type.TYPE_MESSAGE, type_name=f".google.protobuf.{name}")
    assert arrow_schema(info_of(file)).field("a").type == column


def test_maps_and_messages_without_fields() -> None:
    file = new_file()
    file.message_type.add(name="Empty")
    message = file.message_type.add(name="M")
    add_map(message, "t.M", "m", 1, Type.TYPE_STRING, Type.TYPE_MESSAGE, ".t.Empty")
    found = arrow_schema(info_of(file)).field("m").type
    assert found.key_field == pa.field("key", pa.string(), nullable=False)
    assert found.item_field == pa.field("value", pa.bool_())


@pytest.mark.parametrize("seed", range(5))
def test_spark_makes_the_same_columns_of_them(seed: int) -> None:
    file = RandomSchema(random.Random(seed), "proto3").file()
    found = arrow_schema(info_of(file))
    again = compat.arrow_schema(from_arrow_schema(found))
    assert again == found
    assert str(again) == str(found)
