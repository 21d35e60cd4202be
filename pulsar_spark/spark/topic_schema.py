"""The definition of a topic's schema, for decoding values with Spark's functions."""

from __future__ import annotations

from collections.abc import Mapping

from pulsar_spark.engine.context import ClientContext
from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import RECORD_TYPES, split_key_value
from pulsar_spark.protocol.topic_name import topic_of
from pulsar_spark.schema.registry import latest_schema
from pulsar_spark.spark.options.read import parse_read_options
from pulsar_spark.spark.options.table import Scope
from pulsar_spark.spark.reading.planner import Planner


def topic_schema(topic: str, options: Mapping[str, str]) -> str:
    """Return the definition of the topic's newest schema; for KEY_VALUE topics, of the value.

    Raises SchemaMismatch if there is no schema, or values are not records with a text definition,
    TopicNotFound as a read does, OptionError for invalid options, and the broker's error.
    """
    parsed = parse_read_options({**options, "topic": topic}, Scope.READS)
    (name,) = parsed.topics
    with ClientContext.shared(parsed.client) as context:
        found = latest_schema(context.lookup, name)
        if found is None:
            # A topic that does not exist has none either.
            Planner(context, parsed).topics()
    if found is None:
        raise SchemaMismatch(
            "the topic has no schema",
            "Write the definition yourself, as the topic's producers have it.",
            topic=topic_of(name),
        )
    if found.type == pb.Schema.KeyValue:
        found = split_key_value(found).value
    if found.type not in RECORD_TYPES or found.type == pb.Schema.ProtobufNative:
        raise SchemaMismatch(
            f"the topic's values have a schema of type {found.type_name}, which has no definition "
            "in text",
            "Topics of AVRO, JSON and PROTOBUF have one.",
            topic=topic_of(name),
        )
    return found.schema_data.decode("utf-8", "replace")
