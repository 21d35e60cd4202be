"""What Spark's value column holds, decided by the schemas of the topics."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import BinaryType, DataType, StringType

from pulsar_spark.errors import InvalidRow, OptionError, UnsupportedFeature
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import BYTES, PRIMITIVE_NAMES, SchemaInfo

logger = logging.getLogger(__name__)

_SHOWN = 3
_NO_SCHEMA = SchemaInfo(BYTES)
_STRING = SchemaInfo(pb.Schema.String, PRIMITIVE_NAMES[pb.Schema.String])
_RAW = "Write bytes as they are with valueFormat=raw."


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of values: text of a STRING topic, else bytes."""

    text: bool = False

    @property
    def data_type(self) -> DataType:
        """The type of Spark's column."""
        return StringType() if self.text else BinaryType()


def value_type(schemas: Mapping[str, SchemaInfo | None], *, allow_different: bool) -> ValueType:
    """Return the type of the values that are read of topics with these schemas.

    Raises OptionError for topics with different schemas, unless they are allowed: then values
    are bytes. Logs a warning where there is a schema whose values are not decoded.
    """
    by_schema: dict[tuple[int, bytes], tuple[SchemaInfo, list[str]]] = {}
    for topic, found in schemas.items():
        schema = found or _NO_SCHEMA
        by_schema.setdefault((schema.type, schema.schema_data), (schema, []))[1].append(topic)
    if len(by_schema) > 1:
        if not allow_different:
            described = "; ".join(f"{s.type_name}: {_some(t)}" for s, t in by_schema.values())
            raise OptionError(
                f"the topics have different schemas ({described})",
                "Read them apart, or set allowDifferentTopicSchemas=true to read raw values.",
            )
        return ValueType()
    for schema, topics in by_schema.values():
        if schema.type == pb.Schema.String:
            return ValueType(text=True)
        if schema.type != BYTES:
            logger.warning(
                "The schema of %s is %s, which this version does not decode: value holds the "
                "bytes as they are. With valueFormat=raw that is so on purpose.",
                _some(topics),
                schema.type_name,
            )
    return ValueType()


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


def _some(topics: list[str]) -> str:
    more = f" and {len(topics) - _SHOWN} more" if len(topics) > _SHOWN else ""
    return ", ".join(topics[:_SHOWN]) + more
