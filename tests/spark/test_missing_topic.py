"""A topic that does not exist: the error offers the namespace's topics with a similar name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_spark.engine.context import ClientContext
from pulsar_spark.errors import TopicNotFound
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.spark.missing_topic import with_near_topics
from pulsar_spark.spark.options.read import parse_read_options
from pulsar_spark.spark.reading.planner import Planner
from pulsar_spark.testing import EmbeddedBroker


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        running.create_topic("orders", partitions=2)
        running.create_topic("ordering")
        running.create_topic("payments")
        running.create_topic("__change_events")
        yield running


def told(broker: EmbeddedBroker, topic: str) -> str:
    options = parse_read_options({"service.url": broker.service_url, "topic": topic})
    with (
        ClientContext(options.client) as context,
        pytest.raises(TopicNotFound) as caught,
    ):
        Planner(context, options).topics()
    assert caught.value.topic is not None
    return str(caught.value)


@pytest.mark.parametrize(
    "topic,advice",
    [
        ("order", "Did you mean 'orders' or 'ordering'?"),
        ("ORDERS", "Did you mean 'orders'"),
        ("orders-partition-7", "'orders' exists, but not this partition of it."),
        ("zzz", "has 3 topics, none with a similar name"),
        ("change_events", "none with a similar name"),
        ("public/empty/orders", "has no topics: check tenant and namespace, unless the "),
    ],
)
def test_the_error_is_a_sentence_and_offers_what_is_near(
    broker: EmbeddedBroker, topic: str, advice: str
) -> None:
    text = told(broker, topic)
    name = topic if "/" in topic else f"public/default/{topic}"
    assert text.startswith(f"The topic persistent://{name} does not exist [broker ")
    assert advice in text
    assert text.endswith("Reading never creates a topic.")
    assert text.count(f"persistent://{name}") == 1
    assert "no reason" not in text


def test_a_broker_that_lists_no_topics_changes_nothing_of_the_error(
    broker: EmbeddedBroker,
) -> None:
    broker.faults.error("GET_TOPICS_OF_NAMESPACE", pb.AuthorizationError, "not for you")
    assert "Check the topic's name, tenant and namespace" in told(broker, "order")


def test_a_reason_that_says_more_is_kept(broker: EmbeddedBroker) -> None:
    options = parse_read_options({"service.url": broker.service_url, "topic": "order"})
    error = TopicNotFound("The topic does not exist: Namespace public/default not found")
    with ClientContext(options.client) as context:
        found = with_near_topics(context.lookup, error, "persistent://public/default/order")
    assert "Namespace public/default not found" in str(found)
    assert "'orders'" in str(found)
