"""Columns of a read and projections onto them."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pulsar_spark.errors import OptionError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo, join_key_value
from pulsar_spark.schema.table import record_batches
from pulsar_spark.schema.table.record_batches import DROPMALFORMED, FAILFAST, PERMISSIVE
from pulsar_spark.spark.columns import project, read_schema
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


@pytest.mark.parametrize("names", [("value", "value"), ("value", "Value"), ("__key", "__KEY")])
def test_a_column_that_is_requested_twice_is_an_error(names: tuple[str, str]) -> None:
    schema = StructType([StructField(name, BinaryType()) for name in names])
    twice = f"has the column '{names[1]}' twice"
    with pytest.raises(OptionError, match=twice):
        project(schema, ValueType(), CORRUPT, FAILFAST)
    with pytest.raises(OptionError, match=twice):
        project(schema, None, CORRUPT, FAILFAST)


def test_a_request_of_no_column_is_an_error() -> None:
    with pytest.raises(OptionError, match="the schema has no columns"):
        project(StructType(), ValueType(), CORRUPT, FAILFAST)


def test_a_projection_takes_columns_in_any_order_and_case() -> None:
    schema = (
        StructType()
        .add("__publishtime", TimestampType())
        .add("VALUE", BinaryType())
        .add("__ledgerId", LongType())
    )
    assert project(schema, ValueType(), CORRUPT, FAILFAST) == (
        "__publishTime",
        "value",
        "__ledgerId",
    )


def test_the_inferred_schema_is_a_projection_too() -> None:
    schema = read_schema(ValueType(), include_metadata=True)
    assert project(schema, ValueType(), CORRUPT, FAILFAST) == tuple(schema.fieldNames())


def test_whether_values_of_the_properties_may_be_null_makes_no_difference() -> None:
    schema = StructType().add("__messageProperties", MapType(StringType(), StringType(), False))
    assert project(schema, ValueType(), CORRUPT, FAILFAST) == ("__messageProperties",)


def test_the_column_of_corrupt_records_is_string_or_binary() -> None:
    for kind in (StringType(), BinaryType()):
        found = project(StructType().add(CORRUPT, kind), ValueType(), CORRUPT, FAILFAST)
        assert found == (record_batches.CORRUPT,)
    with pytest.raises(OptionError, match=CORRUPT):
        project(StructType().add(CORRUPT, IntegerType()), ValueType(), CORRUPT, FAILFAST)
    with pytest.raises(OptionError, match="columnNameOfCorruptRecord"):
        project(StructType().add("value", BinaryType()), ValueType(), "Value", PERMISSIVE)


@pytest.mark.fault(99)
@pytest.mark.parametrize(
    "field,told",
    [
        (StructField("value", StringType()), "'value' is string, but this read returns binary"),
        (StructField("__topic", BinaryType()), "'__topic' is binary, but this read returns string"),
        (
            StructField("__publishTime", LongType()),
            "'__publishTime' is bigint, but this read returns timestamp",
        ),
        (StructField("__publishTime", TimestampNTZType()), "Declare it timestamp_ltz."),
        (StructField("__publish_time", TimestampType()), "Did you mean '__publishTime'?"),
        (StructField("colour", StringType()), "It offers: value"),
        (
            StructField("value", BinaryType(), nullable=False),
            "'value' as NOT NULL",
        ),
        (StructField("__eventTime", TimestampType(), nullable=False), "'__eventTime' as NOT NULL"),
    ],
)
def test_a_column_that_does_not_fit_is_named(field: StructField, told: str) -> None:
    with pytest.raises(OptionError) as caught:
        project(StructType([field]), ValueType(), CORRUPT, FAILFAST)
    assert told in str(caught.value)


@pytest.mark.fault(99)
@pytest.mark.parametrize(
    "declared,kind,remedy",
    [
        (BinaryType(), TEXT, "Declare it string, or set valueFormat=raw to get the bytes."),
        (IntegerType(), TEXT, "Declare it string."),
        (StringType(), ValueType(), "Declare it binary, or read text with valueFormat=string."),
    ],
)
def test_the_type_of_values_comes_from_the_topic_or_from_value_format(
    declared: DataType, kind: ValueType, remedy: str
) -> None:
    with pytest.raises(OptionError) as caught:
        project(StructType().add("value", declared), kind, CORRUPT, FAILFAST)
    assert caught.value.what.startswith("your schema (or CREATE TABLE) says that 'value' is ")
    assert caught.value.remedy == remedy


@pytest.mark.fault(99)
def test_what_no_topic_can_offer_is_told_before_the_topics_are_known() -> None:
    unknown = StructType().add("colour", StringType()).add("__KEY", LongType())
    assert project(unknown, None, CORRUPT, FAILFAST) == ("colour", "__key")
    with pytest.raises(OptionError, match="colour"):
        project(unknown, ValueType(), CORRUPT, FAILFAST)
    with pytest.raises(OptionError, match="'__topic' is bigint, but this read returns string"):
        project(StructType().add("__topic", LongType()), None, CORRUPT, FAILFAST)


def avro(*names: str) -> ValueType:
    fields = ",".join(f'{{"name":"{name}","type":"int"}}' for name in names)
    data = f'{{"type":"record","name":"r","fields":[{fields}]}}'
    return ValueType(SchemaInfo(pb.Schema.Avro, "r", data.encode()))


def test_fields_of_records_come_before_the_named_columns() -> None:
    schema = read_schema(avro("b", "a"), include_metadata=False)
    assert fields(schema) == [("b", "int"), ("a", "int"), *DEFAULT[1:]]
    assert all(field.nullable for field in schema.fields)
    asked = StructType().add("A", IntegerType()).add("__topic", StringType())
    assert project(asked, avro("b", "a"), CORRUPT, FAILFAST) == ("a", "__topic")
    with pytest.raises(OptionError, match="'a' is bigint, but this read returns int"):
        project(StructType().add("a", LongType()), avro("b", "a"), CORRUPT, FAILFAST)
    with pytest.raises(OptionError, match="'a' as NOT NULL, but it can be null"):
        project(StructType().add("a", IntegerType(), nullable=False), avro("a"), CORRUPT, FAILFAST)


@pytest.mark.parametrize("kind", [TEXT, ValueType()], ids=["text", "bytes"])
def test_the_column_of_corrupt_records_is_the_last_one_whatever_values_are(kind: ValueType) -> None:
    for metadata in (False, True):
        plain = read_schema(kind, include_metadata=metadata)
        schema = read_schema(kind, include_metadata=metadata, corrupt_column="bad")
        assert fields(schema) == [*fields(plain), ("bad", "binary")]
        assert project(schema, kind, "bad", PERMISSIVE)[-1] == record_batches.CORRUPT
    for name in ("VALUE", "__topic", "__size"):
        with pytest.raises(OptionError, match="columnNameOfCorruptRecord"):
            read_schema(kind, include_metadata=True, corrupt_column=name)


def test_a_field_of_values_is_read_though_it_is_called_like_the_column_of_corrupt_records() -> None:
    kind = avro("a", CORRUPT)
    schema = read_schema(kind, include_metadata=False)
    assert schema.fieldNames()[:2] == ["a", CORRUPT]
    for mode in (FAILFAST, DROPMALFORMED):
        assert project(schema, None, CORRUPT, mode)[1] == CORRUPT
        assert project(schema, kind, CORRUPT, mode)[1] == CORRUPT
        with pytest.raises(OptionError, match="columnNameOfCorruptRecord"):
            project(schema, kind, "__topic", mode)
    with pytest.raises(OptionError, match="Choose another name"):
        project(schema, kind, CORRUPT, PERMISSIVE)
    assert project(schema, kind, "bad", PERMISSIVE)[1] == CORRUPT


@pytest.mark.fault(99)
@pytest.mark.parametrize("names", [("__key",), ("x", "__TOPIC"), ("__size",)])
def test_fields_with_the_name_of_another_column_are_left_out(names: tuple[str, ...]) -> None:
    schema = read_schema(avro(*names), include_metadata=False)
    assert fields(schema) == [(name, "int") for name in names[:-1]] + DEFAULT[1:]
    assert project(schema, avro(*names), CORRUPT, FAILFAST) == tuple(schema.fieldNames())


@pytest.mark.fault(99)
def test_of_fields_that_differ_in_case_only_the_first_is_read() -> None:
    kind = avro("id", "x", "ID")
    schema = read_schema(kind, include_metadata=False)
    assert fields(schema)[:2] == [("id", "int"), ("x", "int")]
    assert project(schema, kind, CORRUPT, FAILFAST) == tuple(schema.fieldNames())
    for name, found in (("id", "id"), ("ID", "ID"), ("Id", "id"), ("X", "x")):
        assert project(StructType().add(name, IntegerType()), kind, CORRUPT, FAILFAST) == (found,)


def test_keys_of_pairs_have_a_type_and_structs_where_they_are_records() -> None:
    record = avro("a").schema
    assert record is not None
    string = SchemaInfo(pb.Schema.String, "String")
    typed = ValueType(join_key_value(string, record, separated=True))
    assert fields(read_schema(typed, include_metadata=False))[:2] == [
        ("a", "int"),
        ("__key", "string"),
    ]
    nested = ValueType(join_key_value(record, string, separated=False))
    schema = read_schema(nested, include_metadata=False)
    assert fields(schema)[:2] == [("value", "string"), ("__key", "struct<a:int>")]
    assert project(schema, nested, CORRUPT, FAILFAST)[:2] == ("value", "__key")
    with pytest.raises(OptionError, match="'__key' is binary, but this read returns string"):
        project(StructType().add("__key", BinaryType()), typed, CORRUPT, FAILFAST)


def test_what_may_be_null_within_a_column_must_be_declared_so() -> None:
    data = b"""{"type":"record","name":"r","fields":[{"name":"a","type":{"type":"array",
        "items":["null",{"type":"record","name":"s","fields":[{"name":"x","type":"int"}]}]}}]}"""
    kind = ValueType(SchemaInfo(pb.Schema.Avro, "r", data))
    inner = StructType().add("x", IntegerType())
    assert project(StructType().add("a", ArrayType(inner)), kind, CORRUPT, FAILFAST) == ("a",)
    with pytest.raises(OptionError, match="'a' is array"):
        project(
            StructType().add("a", ArrayType(inner, containsNull=False)), kind, CORRUPT, FAILFAST
        )
