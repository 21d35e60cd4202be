"""Embedded and scripted brokers with a client, for tests of `PulsarClient`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pulsar_spark.client import PulsarClient
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.producing import TopicScript
from tests.engine.scripted_broker import ScriptedBroker
from tests.engine.topics import add_interleaved


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as made:
        yield made
        assert made.internal_errors == ()


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[PulsarClient]:
    with PulsarClient(broker.service_url) as made:
        yield made


@pytest.fixture
def chunked(broker: EmbeddedBroker, client: PulsarClient) -> str:
    """A topic with 7 messages in each of 6 partitions, more than the client's memory holds.

    Their chunks take turns.
    """
    client._receiver_budget.total = 120_000
    topic = broker.create_topic("chunked", partitions=6)
    for number, name in enumerate(client.get_topic_partitions(topic)):
        sent = [os.urandom(15_000) for _ in range(7)]
        add_interleaved(broker, name, sent, 6000, f"u{number}")
    return topic


@pytest.fixture
def script() -> TopicScript:
    """The script of the `scripted` broker, and the commands that it received."""
    return TopicScript()


@pytest.fixture
def scripted(script: TopicScript) -> Iterator[PulsarClient]:
    with ScriptedBroker(script) as broker, PulsarClient(f"pulsar://{broker.address}") as made:
        yield made
