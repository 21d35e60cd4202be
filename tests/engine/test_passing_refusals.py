"""Temporary errors of brokers: every kind of request is retried, on the same connection."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_spark.client import MessageId, PulsarClient
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ClientOptions, ProducerOptions
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.errors import AuthorizationError, PulsarError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.registry import latest_schemas
from pulsar_spark.testing import EmbeddedBroker
from tests.support.schemas import register_schema

TOPIC = "persistent://public/default/t"
INT32 = SchemaInfo(pb.Schema.Int32, "INT32")

ACTIONS: dict[str, Callable[[ClientContext], object]] = {
    "PARTITIONED_METADATA": lambda context: context.lookup.partitions(TOPIC),
    "GET_TOPICS_OF_NAMESPACE": lambda context: context.lookup.topics_of_namespace("public/default"),
    "SUBSCRIBE": lambda context: context.lookup.last_message_id(TOPIC),
    "GET_LAST_MESSAGE_ID": lambda context: context.lookup.last_message_id(TOPIC),
    "GET_SCHEMA": lambda context: latest_schemas(context.lookup, [TOPIC])[TOPIC],
    "GET_OR_CREATE_SCHEMA": lambda context: register_schema(context.lookup, TOPIC, INT32),
    "PRODUCER": lambda context: TopicProducer(context, TOPIC, ProducerOptions()).open(),
}


@pytest.mark.fault(18, 19)
@pytest.mark.parametrize("command", ACTIONS)
@pytest.mark.parametrize(
    "code", ["ServiceNotReady", "MetadataError", "PersistenceError", "TooManyRequests"]
)
def test_a_refusal_that_can_pass_costs_one_more_attempt_and_no_connection(
    command: str, code: str
) -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        broker.faults.error(command, code)
        with ClientContext(ClientOptions(broker.service_url)) as context:
            found = ACTIONS[command](context)
            assert not isinstance(found, PulsarError)
            assert broker.faults.seen("CONNECT") == 1
        assert broker.internal_errors == ()


@pytest.mark.fault(46)
@pytest.mark.parametrize("command", ACTIONS)
def test_a_refusal_for_good_is_one_attempt_that_names_the_topic(command: str) -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        broker.faults.error(command, "AuthorizationError", "not for you", times=None)
        with ClientContext(ClientOptions(broker.service_url)) as context:
            try:
                found = ACTIONS[command](context)
            except PulsarError as error:
                found = error
            assert isinstance(found, AuthorizationError)
            assert "not for you" in str(found)
            assert broker.faults.seen(command) == 1
            if command != "GET_TOPICS_OF_NAMESPACE":
                assert found.topic == TOPIC


@pytest.mark.fault(20)
@pytest.mark.parametrize("url", ["pulsar://other:6650", None])
def test_a_reader_whose_topic_went_to_another_cluster_is_told_at_once(url: str | None) -> None:
    with EmbeddedBroker() as broker, PulsarClient(broker.service_url) as client:
        broker.create_topic(TOPIC)
        client.create_producer(TOPIC).send(b"x")
        reader = client.create_reader(TOPIC, MessageId.earliest)
        assert reader.read_next(20_000).data() == b"x"
        assert broker.faults.migrate(TOPIC, url) == 2
        with pytest.raises(PulsarError, match="migrated to another cluster") as caught:
            reader.read_next(60_000)
        assert "service.url" in str(caught.value)
