"""Tests get copies of the broker's state."""

from __future__ import annotations

import dataclasses

import pytest

from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.testing import EmbeddedBroker
from tests.testing.wire_client import WireClient


def test_a_topics_state(broker: EmbeddedBroker, client: WireClient) -> None:
    name = broker.create_topic("p", partitions=2) + "-partition-1"
    client.produce(name)
    ledger = client.publish(b"m").place[0]
    client.publish(b"batch", batch=3)
    view = broker.stats(name)
    assert (view.entries, view.messages_in) == (2, 4)
    assert view.stored_bytes == broker.stored_bytes > 0
    assert view.first == MessageIdAdv(ledger, 0, 1)
    assert view.last == MessageIdAdv(ledger, 1, 1, 2)
    assert view.producers == ("standalone-0-0",)
    assert not view.terminated
    with pytest.raises(dataclasses.FrozenInstanceError):
        view.entries = 7  # type: ignore[misc]


def test_an_empty_topics_state(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    view = broker.stats("t")
    assert (view.entries, view.last, view.subscriptions) == (0, None, ())


def test_a_subscriptions_state(broker: EmbeddedBroker, client: WireClient) -> None:
    client.produce("t")
    ledger = client.publish().place[0]
    for _ in range(3):
        client.publish()
    client.subscribe("t", consumer_name="c")
    messages = client.messages(4)
    client.ack(messages[0], messages[2])
    client.request("CONSUMER_STATS", consumer_id=0)
    view = broker.subscriptions("t")["sub"]
    assert (view.name, view.kind, view.durable) == ("sub", "Exclusive", True)
    assert (view.backlog, view.acked_beyond) == (2, 1)
    assert view.mark_delete == MessageIdAdv(ledger, 0)
    assert view.read_position == MessageIdAdv(ledger, 4)
    (consumer,) = view.consumers
    assert (consumer.name, consumer.connection, consumer.delivered) == ("c", 1, 4)
