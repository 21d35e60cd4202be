"""Listeners, numbers and notes of the whole broker."""

from __future__ import annotations

from collections.abc import Callable

from pulsar_spark.testing import EmbeddedBroker
from tests.testing.wire_client import WireClient

Dial = Callable[..., WireClient]


def test_connections_are_numbered(broker: EmbeddedBroker, dial: Dial) -> None:
    for number in (1, 2, 3):
        dial(broker).request("LOOKUP", topic="t")
        assert broker.faults.log("LOOKUP")[-1].connection == number
    assert broker.connections == 3


def test_ports_of_its_own_are_never_given_to_clients(broker: EmbeddedBroker) -> None:
    assert 20_000 <= broker.port < 32_000


def test_listening_twice_changes_nothing(broker: EmbeddedBroker, dial: Dial) -> None:
    port = broker.port
    broker.faults.accept()
    broker.faults.refuse()
    broker.faults.refuse()
    broker.faults.accept()
    assert broker.port == port
    assert dial(broker).request("LOOKUP", topic="t")


def test_many_connections_at_once(broker: EmbeddedBroker, dial: Dial) -> None:
    clients = [dial(broker, handshake=False) for _ in range(200)]
    for client in clients:
        client.send("CONNECT", client_version="x", protocol_version=21)
    for client in clients:
        client.expect("CONNECTED")
    assert broker.connections == 200
