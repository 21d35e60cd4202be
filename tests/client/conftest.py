"""Embedded and scripted brokers with a client, for tests of `PulsarClient`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_spark.client import PulsarClient
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.producing import TopicScript
from tests.engine.scripted_broker import ScriptedBroker


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
def script() -> TopicScript:
    """The script of the `scripted` broker, and the commands that it received."""
    return TopicScript()


@pytest.fixture
def scripted(script: TopicScript) -> Iterator[PulsarClient]:
    with ScriptedBroker(script) as broker, PulsarClient(f"pulsar://{broker.address}") as made:
        yield made
