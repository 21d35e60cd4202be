"""The schema registry of both brokers."""

from __future__ import annotations

import json
from functools import partial

import pytest

from pulsar_spark.engine.operations import run
from pulsar_spark.errors import (
    ConnectionLost,
    IncompatibleSchema,
    SchemaMismatch,
    TopicNotFound,
)
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.registry import SchemaVersions, latest_schemas
from tests.integration.brokers import Broker
from tests.integration.messages import clustered
from tests.support.schemas import register_schema


def avro(*fields: str, kind: object = ("null", "string")) -> SchemaInfo:
    named = [{"name": name, "type": kind, "default": None} for name in fields]
    record = {"type": "record", "name": "R", "fields": named}
    return SchemaInfo(pb.Schema.Avro, "R", json.dumps(record).encode())


def test_a_schema_is_registered_once_and_had_by_its_version(broker: Broker) -> None:
    topic = broker.create_topic(partitions=2)
    first, second = broker.partitions_of(topic, 2)
    with clustered(broker) as context:
        lookup = context.lookup
        old = register_schema(lookup, first, avro("a"))
        assert register_schema(lookup, second, avro("a")) == old
        new = register_schema(lookup, first, avro("a", "b"))
        assert new > old
        versions = SchemaVersions(lookup, second)
        assert versions(old).schema_data == avro("a").schema_data
        assert versions(new).schema_data == avro("a", "b").schema_data
        latest = latest_schemas(lookup, [topic])[topic]
        assert isinstance(latest, SchemaInfo)
        assert latest.schema_data == avro("a", "b").schema_data


def test_what_cannot_be_registered_is_told_with_its_topic(broker: Broker) -> None:
    topic = broker.create_topic()
    missing = broker.unique_topic()
    with clustered(broker) as context:
        register_schema(context.lookup, topic, avro("a"))
        other = SchemaInfo(pb.Schema.Int32, "INT32")
        with pytest.raises(IncompatibleSchema) as refused:
            register_schema(context.lookup, topic, other)
        assert refused.value.topic == topic
        with pytest.raises(TopicNotFound) as absent:
            register_schema(context.lookup, missing, avro("a"))
        assert absent.value.topic == missing


@pytest.mark.parametrize("version", [b"\x01", bytes(4), bytes(7)])
def test_a_version_that_is_none_is_told_without_the_broker_that_would_end_the_connection(
    broker: Broker, version: bytes
) -> None:
    topic = broker.create_topic()
    with clustered(broker) as context:
        register_schema(context.lookup, topic, avro("a"))
        with pytest.raises(SchemaMismatch, match=rf"version {version.hex()} .* has 8 bytes"):
            SchemaVersions(context.lookup, topic)(version)
        connection = run(partial(context.lookup.connection_operation, topic), 30.0)
        with pytest.raises(ConnectionLost):
            connection.request(
                commands.request(pb.CommandGetSchema, topic=topic, schema_version=version), 30.0
            )
