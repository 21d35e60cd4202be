"""Missing topics are created, and nothing else is left behind."""

from __future__ import annotations

import pytest

from pulsar_spark.client import PulsarClient
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.operations import in_steps
from pulsar_spark.engine.options import ClientOptions, ReaderOptions
from pulsar_spark.errors import TopicNotFound
from pulsar_spark.testing import EmbeddedBroker

TOPIC = "persistent://public/default/new"


def test_a_missing_topic_is_created_and_no_subscription_stays() -> None:
    with EmbeddedBroker() as broker, ClientContext(ClientOptions(broker.service_url)) as context:
        in_steps(context.attaching_once([TOPIC], ReaderOptions()))
        in_steps(context.attaching_once([TOPIC], ReaderOptions()))
        assert TOPIC in broker.topics()
        assert not broker.subscriptions(TOPIC)


def test_where_topics_are_not_created_it_is_said() -> None:
    with (
        EmbeddedBroker(auto_create=False) as broker,
        ClientContext(ClientOptions(broker.service_url)) as context,
        pytest.raises(TopicNotFound, match="public/default/new"),
    ):
        in_steps(context.attaching_once([TOPIC], ReaderOptions()))


def test_a_missing_partition_is_not_put_down_to_a_policy() -> None:
    with EmbeddedBroker(auto_create=False) as broker, PulsarClient(broker.service_url) as client:
        broker.create_topic("t", 2)
        for use in (
            lambda: client.create_producer("t-partition-5"),
            lambda: client.subscribe("t-partition-5", "s"),
        ):
            with pytest.raises(TopicNotFound, match="default/t may have fewer partitions") as told:
                use()
            assert "autoTopicCreation" not in str(told.value)
            assert "get-partitioned-topic-metadata persistent://public/default/t" in str(told.value)
