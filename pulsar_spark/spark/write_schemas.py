"""What schema a write registers on a topic."""

from __future__ import annotations

from pulsar_spark.errors import InvalidRow, UnsupportedFeature
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import BYTES, PRIMITIVE_NAMES, SchemaInfo

_NO_SCHEMA = SchemaInfo(BYTES)
_STRING = SchemaInfo(pb.Schema.String, PRIMITIVE_NAMES[pb.Schema.String])
_RAW = "Write bytes as they are with valueFormat=raw."


def schema_to_write(
    topic: str, current: SchemaInfo | None, *, text: bool, value_format: str
) -> SchemaInfo | None:
    """Return the schema that a producer registers for a column of text or bytes, None for none.

    `current` is the topic's schema. Raises InvalidRow if the column does not fit it, and
    UnsupportedFeature for a schema whose values are not encoded.
    """
    if value_format == "raw":
        return None
    schema = current or _NO_SCHEMA
    if schema.type == pb.Schema.String:
        if not text:
            raise InvalidRow(
                "the topic's schema is STRING, but the value column is binary",
                f"Cast it to string. {_RAW}",
                topic=topic,
            )
        return _STRING
    if schema.type != BYTES:
        raise UnsupportedFeature(
            f"the topic's schema is {schema.type_name}, which this version does not encode",
            _RAW,
            topic=topic,
        )
    return _STRING if text else None
