"""What schema a write registers."""

from __future__ import annotations

import pytest

from pulsar_spark.errors import InvalidRow, UnsupportedFeature
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import BYTES, SchemaInfo
from pulsar_spark.spark.write_schemas import schema_to_write

STRING = SchemaInfo(pb.Schema.String, "String")
NONE = SchemaInfo(BYTES)
AVRO = SchemaInfo(pb.Schema.Avro, "r", b"{}")


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
