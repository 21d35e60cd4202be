"""Questions that are answered while the test waits."""

from __future__ import annotations

from pulsar_spark.engine.connections.addresses import BrokerAddress
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.operations import run
from pulsar_spark.engine.producers.producer_session import Identity, ProducerSession
from pulsar_spark.protocol import pulsar_api_pb2 as pb


def broker_of(lookup: Lookup, topic: str) -> BrokerAddress:
    """Return the broker that serves a topic partition."""
    return lookup.ask(topic, lookup.broker_operation)


def connection_of(lookup: Lookup, topic: str) -> ClientConnection:
    """Return a connection to the broker that serves a topic partition."""
    return lookup.ask(topic, lookup.connection_operation)


def register(
    session: ProducerSession, identity: Identity, timeout: float = 5
) -> pb.CommandProducerSuccess:
    """Register a producer, and return the broker's answer."""
    return run(lambda _: session.open_operation(identity, timeout), 2 * timeout)
