"""The definition of a topic's schema, in the form for Spark's own functions."""

from __future__ import annotations

import json

import pytest

import pulsar_spark
from pulsar_spark.errors import OptionError, SchemaMismatch, TopicNotFound
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


@pytest.mark.parametrize(
    "kind, what",
    [
        (None, "the topic has no schema"),
        (SchemaInfo(pb.Schema.String, "String"), "type STRING, which has no definition in text"),
        (
            join_key_value(AVRO, SchemaInfo(pb.Schema.Int64, "Int64"), separated=False),
            "type INT64, which has no definition in text",
        ),
    ],
)
def test_a_topic_without_a_definition_is_an_error_that_says_why(
    broker: EmbeddedBroker, kind: SchemaInfo | None, what: str
) -> None:
    broker.create_topic("t")
    if kind is not None:
        set_schema(broker, "t", kind)
    with pytest.raises(SchemaMismatch) as caught:
        definition(broker)
    assert caught.value.what.endswith(what)
    assert ("definition in text" in caught.value.what) == (kind is not None)


def test_a_topic_that_does_not_exist_is_told_as_by_a_read(broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 2)
    with pytest.raises(TopicNotFound, match="Did you mean 'orders'"):
        definition(broker, "order")
    with pytest.raises(TopicNotFound, match="not this partition"):
        definition(broker, "orders-partition-2")


def test_wrong_options_are_errors(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    with pytest.raises(OptionError, match="cannot be used together"):
        definition(broker, topicsPattern="t.*")
    with pytest.raises(OptionError, match="is not an option"):
        definition(broker, colour="blue")
