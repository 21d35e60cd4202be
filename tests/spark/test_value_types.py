"""What schemas make of the value column."""

from __future__ import annotations

import logging

import pytest
from pyspark.sql.types import BinaryType, StringType

from pulsar_spark.errors import InvalidRow, OptionError, UnsupportedFeature
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import BYTES, SchemaInfo
from pulsar_spark.spark.value_types import ValueType, schema_to_write, value_type

STRING = SchemaInfo(pb.Schema.String, "String")
NONE = SchemaInfo(BYTES)
AVRO = SchemaInfo(pb.Schema.Avro, "r", b"{}")
OTHER_AVRO = SchemaInfo(pb.Schema.Avro, "r", b"{ }")
LATER = SchemaInfo(99, "x")


def test_text_is_string_and_the_rest_is_binary() -> None:
    assert ValueType(text=True).data_type == StringType()
    assert ValueType().data_type == BinaryType()


@pytest.mark.parametrize(
    "schemas,text",
    [([None], False), ([NONE, None], False), ([STRING, STRING], True), ([], False)],
)
def test_equal_schemas_decide_on_the_values(schemas: list[SchemaInfo | None], text: bool) -> None:
    by_topic = {f"t{number}": schema for number, schema in enumerate(schemas)}
    assert value_type(by_topic, allow_different=False) == ValueType(text)


@pytest.mark.parametrize("schema", [AVRO, LATER])
def test_a_schema_that_is_not_decoded_gives_bytes_and_one_warning(
    schema: SchemaInfo, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert value_type({"t": schema, "u": schema}, allow_different=False) == ValueType()
    assert len(caplog.records) == 1
    assert schema.type_name in caplog.text
    assert "valueFormat=raw" in caplog.text


def test_different_schemas_are_told_with_their_topics() -> None:
    schemas = {"a": AVRO, "b": OTHER_AVRO, **{f"t{number}": STRING for number in range(9)}}
    with pytest.raises(OptionError, match="allowDifferentTopicSchemas=true") as caught:
        value_type(schemas, allow_different=False)
    assert "AVRO: a" in str(caught.value)
    assert "STRING: t0, t1, t2 and 6 more" in str(caught.value)
    assert value_type(schemas, allow_different=True) == ValueType()


@pytest.mark.parametrize(
    "current,text,value_format,registered",
    [
        (None, False, "auto", None),
        (NONE, False, "auto", None),
        (None, True, "auto", STRING),
        (NONE, True, "string", STRING),
        (STRING, True, "auto", STRING),
        (STRING, False, "raw", None),
        (AVRO, False, "raw", None),
    ],
)
def test_a_write_registers_what_its_column_is(
    current: SchemaInfo | None, text: bool, value_format: str, registered: SchemaInfo | None
) -> None:
    found = schema_to_write("t", current, text=text, value_format=value_format)
    assert found == registered


@pytest.mark.fault(64)
def test_a_column_that_does_not_fit_the_topics_schema_is_refused() -> None:
    with pytest.raises(InvalidRow, match="STRING") as caught:
        schema_to_write("t", STRING, text=False, value_format="auto")
    assert caught.value.topic == "t"
    for text in (True, False):
        with pytest.raises(UnsupportedFeature, match="AVRO"):
            schema_to_write("t", AVRO, text=text, value_format="auto")
