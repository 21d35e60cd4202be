"""The value columns of each schema."""

from __future__ import annotations

import json
import logging
import pickle

import pytest

from pulsar_spark.errors import OptionError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import BYTES, SchemaInfo, join_key_value
from pulsar_spark.spark.value_types import ValueType, value_type

STRING = SchemaInfo(pb.Schema.String, "String")
NONE = SchemaInfo(BYTES)
AVRO = SchemaInfo(pb.Schema.Avro, "r", b"{}")
OTHER_AVRO = SchemaInfo(pb.Schema.Avro, "r", b"{ }")
LATER = SchemaInfo(99, "x")


def test_values_are_bytes_or_what_their_schema_says() -> None:
    assert ValueType().fields.simpleString() == "struct<value:binary>"
    assert ValueType(STRING).fields.simpleString() == "struct<value:string>"
    assert ValueType(STRING).key_type is None


@pytest.mark.fault(98)
def test_what_values_are_is_plain_data() -> None:
    kind = ValueType(SchemaInfo(pb.Schema.String, "String", b"x", {"a": "b"}))
    assert pickle.loads(pickle.dumps(kind)) == kind


@pytest.mark.parametrize(
    "schemas,decoded",
    [([None], None), ([NONE, None], None), ([STRING, STRING], STRING), ([], None)],
)
def test_equal_schemas_decide_on_the_values(
    schemas: list[SchemaInfo | None], decoded: SchemaInfo | None
) -> None:
    by_topic = {f"t{number}": schema for number, schema in enumerate(schemas)}
    assert value_type(by_topic, allow_different=False) == ValueType(decoded)


@pytest.mark.fault(64)
def test_a_schema_that_is_not_decoded_gives_bytes_and_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert value_type({"t": LATER, "u": LATER}, allow_different=False) == ValueType()
    assert len(caplog.records) == 1
    assert LATER.type_name in caplog.text
    assert "valueFormat=raw" in caplog.text


def test_fields_that_are_no_columns_are_told_in_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = ["id", "__Key", "ID", "inner"]
    inner = {"type": "record", "name": "I", "fields": [{"name": "__key", "type": "int"}]}
    fields = [{"name": name, "type": inner if name == "inner" else "int"} for name in names]
    definition = json.dumps({"type": "record", "name": "R", "fields": fields}).encode()
    schema = SchemaInfo(pb.Schema.Avro, "", definition)
    for found in (schema, join_key_value(schema, schema, separated=False)):
        caplog.clear()
        kind = value_type({"t": found}, allow_different=False)
        assert kind.fields.simpleString() == "struct<id:int,inner:struct<__key:int>>"
        (told,) = caplog.messages
        assert told == (
            "Fields of the schema of t are no columns: '__Key', because every read has a column of "
            "that name; 'ID', because it differs from 'id' only in case."
        )
    assert kind.key_type is not None
    assert kind.key_type.names == ["id", "__Key", "ID", "inner"]  # type: ignore[attr-defined]


@pytest.mark.fault(64)
def test_different_schemas_are_told_with_their_topics() -> None:
    schemas = {"a": AVRO, "b": OTHER_AVRO, **{f"t{number}": STRING for number in range(9)}}
    with pytest.raises(OptionError, match="allowDifferentTopicSchemas=true") as caught:
        value_type(schemas, allow_different=False)
    assert "AVRO: a" in str(caught.value)
    assert "STRING: t0, t1, t2 and 6 more" in str(caught.value)
    assert value_type(schemas, allow_different=True) == ValueType()
