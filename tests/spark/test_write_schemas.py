"""What rows are written as."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pulsar_spark.errors import InvalidRow, SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import BYTES, SchemaInfo, join_key_value
from pulsar_spark.spark.write_columns import WriteColumns, plan_columns
from pulsar_spark.spark.write_schemas import SchemaChoice, Target, target_for

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


def test_keys_of_any_type_are_for_topics_with_such_keys() -> None:
    pair = join_key_value(INT32, STRING, separated=True)
    assert target(pair, __key=IntegerType(), value=StringType()) == Target(pair)
    assert target(pair, value=StringType()) == Target(pair)
    with pytest.raises(SchemaMismatch, match="INT32"):
        target(pair, __key=StringType(), value=StringType())
    for current in (None, STRING):
        with pytest.raises(InvalidRow, match="__key is int"):
            target(current, __key=IntegerType(), value=StringType())


@pytest.mark.fault(98)
def test_a_target_is_plain_data() -> None:
    found = target(SchemaInfo(pb.Schema.String, "String", b"", {"a": "b"}), x=StringType())
    assert pickle.loads(pickle.dumps(found)) == found
