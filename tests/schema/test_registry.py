"""Schemas of topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_spark.client.cluster import Cluster
from pulsar_spark.client.options import ClientOptions
from pulsar_spark.errors import AuthorizationError
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.registry import latest_schemas
from pulsar_spark.testing import EmbeddedBroker

T, U = "persistent://public/default/t", "persistent://public/default/u"


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        running.create_topic(T)
        running.create_topic(U)
        yield running


@pytest.fixture
def cluster(broker: EmbeddedBroker) -> Iterator[Cluster]:
    with Cluster(ClientOptions(broker.service_url, operation_timeout=10.0)) as opened:
        yield opened


def register(cluster: Cluster, topic: str, schema: SchemaInfo) -> None:
    connection = cluster.pool.service()
    connection.request(
        lambda request_id: commands.get_or_create_schema(topic, request_id, schema.to_pb())
    )


STRING = SchemaInfo(pb.Schema.String, "String")


def test_the_latest_schema_of_each_topic_is_had(cluster: Cluster) -> None:
    register(cluster, T, STRING)
    found = latest_schemas(cluster.lookup, [T, U])
    assert found[U] is None
    schema = found[T]
    assert isinstance(schema, SchemaInfo)
    assert schema.type == pb.Schema.String


def test_a_topic_that_does_not_exist_has_no_schema(cluster: Cluster) -> None:
    missing = "persistent://public/default/missing"
    assert latest_schemas(cluster.lookup, [missing]) == {missing: None}


def test_a_refusal_stands_in_the_place_of_the_schema(
    broker: EmbeddedBroker, cluster: Cluster
) -> None:
    broker.faults.error("GET_SCHEMA", pb.AuthorizationError)
    (found,) = latest_schemas(cluster.lookup, [T]).values()
    assert isinstance(found, AuthorizationError)
    assert found.topic == T
