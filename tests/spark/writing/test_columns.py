"""How the columns of a DataFrame are written."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
    YearMonthIntervalType,
)

from pulsar_spark.errors import InvalidRow, OptionError, PulsarError
from pulsar_spark.spark.columns import read_schema
from pulsar_spark.spark.compat import INTERNAL_STRUCTS, arrow_schema
from pulsar_spark.spark.value_types import ValueType
from pulsar_spark.spark.writing.columns import WRITABLE_COLUMNS, WriteColumns, plan_columns

VALUE = StructField("value", BinaryType())


def plan(*fields: StructField, topic: bool = True, value_format: str = "auto") -> WriteColumns:
    return plan_columns(StructType(list(fields)), topic_given=topic, value_format=value_format)


def test_named_columns_are_found_in_any_case_and_the_value_is_what_is_left() -> None:
    found = plan(
        StructField("__KEY", StringType()),
        StructField("payload", StringType()),
        StructField("__eventTime", LongType()),
        StructField("__topic", StringType()),
    )
    assert found.values == (1,)
    assert found.fields == StructType([StructField("payload", StringType())])
    assert found.key == StructField("__KEY", StringType())
    assert found.position("__key") == 0
    assert found.position("__eventTime") == 2
    assert found.position("__topic") == 3
    assert found.position("__orderingKey") is None


def test_what_was_read_can_be_written_back() -> None:
    found = plan_columns(
        read_schema(ValueType(), include_metadata=True), topic_given=False, value_format="auto"
    )
    assert found.values == (0,)
    assert {name for name, _ in found.by_name} == {
        "__topic",
        "__key",
        "__orderingKey",
        "__eventTime",
        "__messageProperties",
        "__sequenceId",
    }


@pytest.mark.parametrize(
    "name,kind",
    [
        ("__topic", StringType()),
        ("__key", StringType()),
        ("__key", BinaryType()),
        ("__orderingKey", BinaryType()),
        ("__eventTime", TimestampType()),
        ("__eventTime", LongType()),
        ("__messageProperties", MapType(StringType(), StringType())),
        ("__messageProperties", MapType(StringType(), StringType(), False)),
        ("__sequenceId", LongType()),
        ("__deliverAt", TimestampType()),
    ],
)
def test_the_types_of_the_interface_are_taken(name: str, kind: DataType) -> None:
    assert plan(VALUE, StructField(name, kind)).position(name) == 1


@pytest.mark.parametrize(
    "name,kind",
    [
        ("__topic", BinaryType()),
        ("__orderingKey", StringType()),
        ("__eventTime", IntegerType()),
        ("__eventTime", TimestampNTZType()),
        ("__messageProperties", MapType(StringType(), IntegerType())),
        ("__messageProperties", StringType()),
        ("__sequenceId", IntegerType()),
        ("__deliverAt", LongType()),
    ],
)
def test_a_column_of_another_type_is_named(name: str, kind: DataType) -> None:
    with pytest.raises(InvalidRow, match=name) as caught:
        plan(VALUE, StructField(name, kind))
    assert kind.simpleString() in str(caught.value)


@pytest.mark.parametrize(
    "fields,value_format,error,told",
    [
        ([], "auto", InvalidRow, "no column is left"),
        ([StructField("__key", StringType())], "auto", InvalidRow, "no column is left"),
        (
            [VALUE, StructField("other", StringType())],
            "raw",
            InvalidRow,
            "value, other",
        ),
        ([StructField("value", IntegerType())], "raw", InvalidRow, "value is int"),
        ([StructField("value", IntegerType())], "string", InvalidRow, "value is int"),
        (
            [VALUE, StructField("VALUE", StringType())],
            "auto",
            InvalidRow,
            "only in case",
        ),
        ([VALUE, StructField("__key", IntegerType())], "raw", InvalidRow, "__key is int"),
        ([StructField("value", StringType())], "raw", InvalidRow, "Cast it to binary"),
        ([VALUE], "string", InvalidRow, "Cast it to string"),
        (
            [VALUE, StructField("__key", StringType()), StructField("__KEY", StringType())],
            "auto",
            InvalidRow,
            "two columns named __key",
        ),
    ],
)
def test_values_that_cannot_be_written_are_refused(
    fields: list[StructField], value_format: str, error: type[PulsarError], told: str
) -> None:
    with pytest.raises(error) as caught:
        plan(*fields, value_format=value_format)
    assert told in str(caught.value)


def test_several_columns_of_any_type_are_left_to_the_topics_schema() -> None:
    fields = [
        StructField("a", StructType().add("b", IntegerType())),
        StructField("__key", LongType()),
        StructField("c", MapType(StringType(), LongType())),
    ]
    found = plan(*fields)
    assert found.values == (0, 2)
    assert found.fields.names == ["a", "c"]


def test_some_topic_must_be_given() -> None:
    with pytest.raises(OptionError, match="no topic"):
        plan(VALUE, topic=False)
    assert plan(VALUE, StructField("__topic", StringType()), topic=False).values == (0,)


@pytest.mark.fault(98)
def test_the_plan_is_plain_data() -> None:
    found = plan(VALUE, StructField("__key", StringType()))
    assert pickle.loads(pickle.dumps(found)) == found


STRUCTS: Any = INTERNAL_STRUCTS
INTERNAL = [kind() if kind is VariantType else kind(4326) for kind in STRUCTS]


@pytest.mark.fault(136)
@pytest.mark.parametrize("name", ["thing", "__key"])
@pytest.mark.parametrize("kind", [YearMonthIntervalType(), *INTERNAL], ids=str)
def test_a_column_that_only_spark_understands_is_named(kind: DataType, name: str) -> None:
    structs = StructType().add("inside", kind)
    for given, place in (
        (kind, name),
        (structs, rf"{name}\.inside"),
        (ArrayType(structs), rf"{name}\[\]\.inside"),
        (MapType(StringType(), ArrayType(kind)), rf"{name}{{}}\[\]"),
    ):
        with pytest.raises(InvalidRow, match=f"the column {place} is .*{kind.simpleString()[:8]}"):
            plan(StructField("id", LongType()), StructField(name, given))


@pytest.mark.fault(136)
def test_a_column_that_is_nested_too_deep_for_any_schema_is_named() -> None:
    kind: DataType = LongType()
    for level in range(400):
        kind = StructType().add("inside", kind) if level % 2 else ArrayType(kind)
    with pytest.raises(InvalidRow, match=r"the column thing\.inside\[\].* more than 100 levels"):
        plan(VALUE, StructField("thing", kind))


VOID = NullType()


@pytest.mark.fault(136)
def test_void_can_be_null_even_if_spark_says_it_never_is() -> None:
    empty = ArrayType(VOID, False)
    found = plan(
        StructField("nothing", VOID, False),
        StructField("list", ArrayType(empty, False)),
        StructField("pairs", MapType(VOID, VOID, False)),
        StructField("inside", StructType().add("list", empty, False, {"a": 1})),
    )
    assert found.fields == StructType(
        [
            StructField("nothing", VOID),
            StructField("list", ArrayType(ArrayType(VOID), False)),
            StructField("pairs", MapType(StringType(), VOID)),
            StructField("inside", StructType().add("list", ArrayType(VOID), False, {"a": 1})),
        ]
    )
    arrow_schema(found.frame)


def test_a_void_column_is_taken_as_nulls_but_no_topic() -> None:
    for name in WRITABLE_COLUMNS:
        if name != "__topic":
            assert plan(VALUE, StructField(name, VOID)).position(name) == 1
    with pytest.raises(InvalidRow, match="__topic is void"):
        plan(VALUE, StructField("__topic", VOID))


def test_remedies_hold_with_other_settings_of_spark() -> None:
    """With TIMESTAMP_NTZ as its type, and with case-sensitive names."""
    with pytest.raises(InvalidRow, match="Cast it to timestamp_ltz, or"):
        plan(VALUE, StructField("__eventTime", TimestampNTZType()))
    with pytest.raises(InvalidRow, match=r"'Id' and 'ID' differ only .*caseSensitive") as caught:
        plan(StructField("Id", LongType()), StructField("ID", LongType()))
    assert caught.value.remedy == "Rename one of them."
