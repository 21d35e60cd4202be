"""An embedded broker and clients for it, for the tests of the embedded broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulsar_spark.testing import EmbeddedBroker
from tests.testing.wire_client import WireClient


@pytest.fixture
def start_broker() -> Iterator[Callable[..., EmbeddedBroker]]:
    """Start embedded brokers with options; at the end none may have had an internal error."""
    brokers: list[EmbeddedBroker] = []

    def start(**options: Any) -> EmbeddedBroker:
        brokers.append(EmbeddedBroker(**options).start())
        return brokers[-1]

    yield start
    errors = [error for broker in brokers for error in broker.internal_errors]
    for broker in brokers:
        broker.stop()
    assert errors == []


@pytest.fixture
def broker(start_broker: Callable[..., EmbeddedBroker]) -> EmbeddedBroker:
    """An embedded broker with default options."""
    return start_broker()


@pytest.fixture
def dial() -> Iterator[Callable[..., WireClient]]:
    """Open connections to a broker: `dial(broker)`, or `dial(broker, handshake=False)`."""
    clients: list[WireClient] = []

    def connect(broker: EmbeddedBroker, **options: Any) -> WireClient:
        clients.append(WireClient(broker.port, **options))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def client(broker: EmbeddedBroker, dial: Callable[..., WireClient]) -> WireClient:
    """A connection to `broker` after its handshake."""
    return dial(broker)
