"""The definition of a topic's schema, in the form for Spark's own functions."""

from __future__ import annotations

import json

import pytest

import pulsar_spark
from pulsar_spark.errors import OptionError, SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo, join_key_value
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import set_schema

RECORD = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'
AVRO = SchemaInfo(pb.Schema.Avro, "Order", RECORD.encode())


def definition(broker: EmbeddedBroker, topic: str = "t", **options: str) -> str:
    return pulsar_spark.topic_schema(topic, {"service.url": broker.service_url, **options})


@pytest.mark.parametrize("kind", [pb.Schema.Avro, pb.Schema.Json])
def test_it_is_that_of_the_newest_version(broker: EmbeddedBroker, kind: int) -> None:
    broker.create_topic("t", 2)
    set_schema(broker, "t", SchemaInfo(kind, "Order", RECORD.encode()))
    newer = json.loads(RECORD)
    newer["fields"].append({"name": "item", "type": ["null", "string"], "default": None})
    set_schema(broker, "t", SchemaInfo(kind, "Order", json.dumps(newer).encode()))
    for topic in ("t", "t-partition-1"):
        assert json.loads(definition(broker, topic)) == newer


def test_a_topic_of_pairs_has_that_of_its_values(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    key = SchemaInfo(pb.Schema.String, "String")
    set_schema(broker, "t", join_key_value(key, AVRO, separated=True))
    assert definition(broker) == RECORD


def test_a_topic_without_a_definition_is_an_error(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    broker.create_topic("text")
    set_schema(broker, "text", SchemaInfo(pb.Schema.String, "String"))
    with pytest.raises(SchemaMismatch, match="no schema"):
        definition(broker)
    with pytest.raises(SchemaMismatch, match="STRING"):
        definition(broker, "text")


def test_wrong_options_are_errors(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    with pytest.raises(OptionError, match="cannot be used together"):
        definition(broker, topicsPattern="t.*")
    with pytest.raises(OptionError, match="is not an option"):
        definition(broker, colour="blue")
