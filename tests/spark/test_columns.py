"""Columns of a read and projections onto them."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pulsar_spark.errors import OptionError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema import record_batches
from pulsar_spark.spark.columns import check_columns, project, read_schema
from pulsar_spark.spark.value_types import ValueType

CORRUPT = "_corrupt_record"
TEXT = ValueType(SchemaInfo(pb.Schema.String, "String"))


def fields(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


DEFAULT = [
    ("value", "binary"),
    ("__key", "binary"),
    ("__topic", "string"),
    ("__messageId", "binary"),
    ("__publishTime", "timestamp"),
    ("__eventTime", "timestamp"),
    ("__messageProperties", "map<string,string>"),
]
ADDED = [
    ("__partition", "int"),
    ("__ledgerId", "bigint"),
    ("__entryId", "bigint"),
    ("__batchIndex", "int"),
    ("__producerName", "string"),
    ("__sequenceId", "bigint"),
    ("__orderingKey", "binary"),
    ("__schemaVersion", "binary"),
    ("__redeliveryCount", "int"),
    ("__size", "int"),
    ("__index", "bigint"),
    ("__replicatedFrom", "string"),
]


def test_the_columns_are_those_of_the_interface_in_its_order() -> None:
    assert fields(read_schema(ValueType(), include_metadata=False)) == DEFAULT
    assert fields(read_schema(ValueType(), include_metadata=True)) == DEFAULT + ADDED
    assert fields(read_schema(TEXT, include_metadata=False))[0] == ("value", "string")


def test_every_column_is_nullable_as_far_as_spark_knows() -> None:
    schema = read_schema(ValueType(), include_metadata=True)
    assert all(field.nullable for field in schema.fields)


def test_a_projection_takes_columns_in_any_order_and_case() -> None:
    schema = (
        StructType()
        .add("__publishtime", TimestampType())
        .add("VALUE", BinaryType())
        .add("__ledgerId", LongType())
    )
    assert project(schema, ValueType(), CORRUPT) == ("__publishTime", "value", "__ledgerId")


def test_the_inferred_schema_is_a_projection_too() -> None:
    schema = read_schema(ValueType(), include_metadata=True)
    assert project(schema, ValueType(), CORRUPT) == tuple(schema.fieldNames())


def test_whether_values_of_the_properties_may_be_null_makes_no_difference() -> None:
    schema = StructType().add("__messageProperties", MapType(StringType(), StringType(), False))
    assert project(schema, ValueType(), CORRUPT) == ("__messageProperties",)


def test_the_column_of_corrupt_records_is_string_or_binary() -> None:
    for kind in (StringType(), BinaryType()):
        found = project(StructType().add(CORRUPT, kind), ValueType(), CORRUPT)
        assert found == (record_batches.CORRUPT,)
    with pytest.raises(OptionError, match=CORRUPT):
        project(StructType().add(CORRUPT, IntegerType()), ValueType(), CORRUPT)
    with pytest.raises(OptionError, match="columnNameOfCorruptRecord"):
        project(StructType().add("value", BinaryType()), ValueType(), "Value")


@pytest.mark.fault(99)
@pytest.mark.parametrize(
    "field,told",
    [
        (StructField("value", StringType()), "'value' is string, not binary"),
        (StructField("__topic", BinaryType()), "'__topic' is binary, not string"),
        (StructField("__publishTime", LongType()), "'__publishTime' is bigint, not timestamp"),
        (StructField("__publish_time", TimestampType()), "Did you mean '__publishTime'?"),
        (StructField("colour", StringType()), "It offers: value"),
        (StructField("value", BinaryType(), nullable=False), "'value' is never null"),
        (StructField("__eventTime", TimestampType(), nullable=False), "'__eventTime' is never"),
    ],
)
def test_a_column_that_does_not_fit_is_named(field: StructField, told: str) -> None:
    with pytest.raises(OptionError) as caught:
        project(StructType([field]), ValueType(), CORRUPT)
    assert told in str(caught.value)


@pytest.mark.fault(99)
def test_what_no_topic_can_offer_is_told_before_the_topics_are_known() -> None:
    unknown = StructType().add("colour", StringType()).add("__KEY", LongType())
    assert check_columns(unknown, CORRUPT, raw=False) == ("colour", "__key")
    with pytest.raises(OptionError, match="colour"):
        check_columns(unknown, CORRUPT, raw=True)
    with pytest.raises(OptionError, match="'__topic' is bigint, not string"):
        check_columns(StructType().add("__topic", LongType()), CORRUPT, raw=False)
