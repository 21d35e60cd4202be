"""The client's own schemas: bytes as they are, and text."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_spark.client.schema import BytesSchema, StringSchema, check_schema
from pulsar_spark.errors import InvalidRow, UnsupportedFeature
from pulsar_spark.protocol import pulsar_api_pb2 as pb


def test_bytes_are_what_they_are_and_no_schema_is_told() -> None:
    schema = BytesSchema()
    assert schema.decode(schema.encode(b"\x00\xff")) == b"\x00\xff"
    assert schema.schema_info() is None


def test_text_is_utf8() -> None:
    schema = StringSchema()
    assert schema.encode("ü") == b"\xc3\xbc"
    assert schema.decode(b"\xc3\xbc") == "ü"
    info = schema.schema_info()
    assert info is not None
    assert info.to_pb().type == pb.Schema.String


@pytest.mark.parametrize(
    "schema,value",
    [
        (BytesSchema(), "text"),
        (BytesSchema(), 5),
        (StringSchema(), b"x"),
        (StringSchema(), "\ud800"),
    ],
)
def test_a_value_of_another_type_is_refused(schema: Any, value: Any) -> None:
    with pytest.raises(InvalidRow):
        schema.encode(value)


def test_other_schemas_are_said_not_to_be_built_yet() -> None:
    assert isinstance(check_schema(None), BytesSchema)
    schema = StringSchema()
    assert check_schema(schema) is schema
    with pytest.raises(UnsupportedFeature, match="object"):
        check_schema(object())
