"""Schemas of values, as far as the client itself needs them: bytes and text."""

from __future__ import annotations

from typing import Any, Protocol

from pulsar_spark.errors import InvalidRow, UnsupportedFeature
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo


class Schema(Protocol):
    """Turns values into bytes and back."""

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value; raises InvalidRow for one that the schema does not take."""

    def decode(self, data: bytes) -> Any:
        """Return the value that bytes stand for."""

    def schema_info(self) -> SchemaInfo | None:
        """Return what the broker is told of the schema, None for plain bytes."""


class BytesSchema:
    """Values are bytes; the broker is told of no schema."""

    def encode(self, value: Any) -> bytes:
        """Return `value`, which must be bytes."""
        if not isinstance(value, bytes):
            raise InvalidRow(f"a value is {type(value).__name__}, the schema takes bytes")
        return value

    def decode(self, data: bytes) -> bytes:
        """Return `data`."""
        return data

    def schema_info(self) -> SchemaInfo | None:
        """Return None."""
        return None


class StringSchema:
    """Values are text in UTF-8."""

    def encode(self, value: Any) -> bytes:
        """Return the UTF-8 of `value`, which must be text."""
        if not isinstance(value, str):
            raise InvalidRow(f"a value is {type(value).__name__}, the schema takes str")
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise InvalidRow("a value is text that UTF-8 cannot express") from None

    def decode(self, data: bytes) -> str:
        """Return the text; raises UnicodeDecodeError if it is none."""
        return data.decode()

    def schema_info(self) -> SchemaInfo | None:
        """Return the STRING schema under the name that official clients give it."""
        return SchemaInfo(pb.Schema.String, "String", b"", {})


def check_schema(schema: Any) -> Schema:
    """Return a schema of a user, BytesSchema for None; raises UnsupportedFeature."""
    if schema is None:
        return BytesSchema()
    if not isinstance(schema, BytesSchema | StringSchema):
        raise UnsupportedFeature(
            f"schemas of the type {type(schema).__name__} are not supported yet",
            "Use BytesSchema or StringSchema, and encode values yourself.",
        )
    return schema
