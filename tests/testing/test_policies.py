"""Policies that an embedded broker enforces; integration/test_policies.py compares both brokers."""

from __future__ import annotations

import pytest

from pulsar_spark.client import PulsarClient
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ClientOptions, ProducerOptions
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.errors import NotAllowed, TopicNotFound
from pulsar_spark.testing import EmbeddedBroker, TopicPolicies


def test_policies_of_a_topic_are_those_of_its_partitions(broker: EmbeddedBroker) -> None:
    broker.create_topic("p", partitions=2)
    broker.create_topic("other")
    broker.set_policies("p", TopicPolicies(max_subscriptions=1))
    with PulsarClient(broker.service_url) as client:
        client.subscribe("p-partition-1", "s").close()
        client.subscribe("p-partition-1", "s")
        with pytest.raises(NotAllowed, match="maxSubscriptionsPerTopic"):
            client.subscribe("p-partition-1", "t")
        client.subscribe("p-partition-0", "t")
        for name in "st":
            client.subscribe("other", name)
        broker.set_policies("p", TopicPolicies())
        client.subscribe("p-partition-1", "t")


def test_a_producers_initial_subscription_obeys_the_policies(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    with ClientContext(ClientOptions(broker.service_url)) as context:

        def open_with(name: str) -> None:
            options = ProducerOptions(initial_subscription=name)
            producer = TopicProducer(context, "t", options)
            producer.open()
            producer.close()

        open_with("there")
        for policies, named in (
            (TopicPolicies(auto_subscription_creation=False), "autoSubscriptionCreation"),
            (TopicPolicies(max_subscriptions=1), "maxSubscriptionsPerTopic"),
        ):
            broker.set_policies("t", policies)
            open_with("there")
            with pytest.raises(NotAllowed, match=named):
                open_with("new")
    assert set(broker.subscriptions("t")) == {"there"}


def test_unknown_types_and_topics_are_errors(broker: EmbeddedBroker) -> None:
    with pytest.raises(ValueError, match="Sharded"):
        TopicPolicies(subscription_types=("Sharded",))
    with pytest.raises(TopicNotFound):
        broker.set_policies("missing", TopicPolicies())
