"""What lookups ask of a service, which is a broker or the brokers' web service."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import NamedTuple

from pulsar_spark.engine.connections.addresses import BrokerAddress
from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.operations import Operation
from pulsar_spark.errors import BrokerError, BrokerUnreachable, InvalidTopicName, TooManyRequests
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.protocol.topic_name import topic_of

PERSISTENT = pb.CommandGetTopicsOfNamespace.PERSISTENT
ANY_DOMAIN = pb.CommandGetTopicsOfNamespace.ALL
# A topic may have been loaded between two answers.
_REFUSALS = 3


class RegisteredSchema(NamedTuple):
    """A schema in the brokers' registry, with its version."""

    schema: SchemaInfo
    version: bytes


class LookupService:
    """Service discovery, one attempt per operation: binary protocol or REST."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    def broker(self, topic: str, deadline: Deadline) -> Operation[BrokerAddress]:
        """Return an operation that finds the broker of a topic partition.

        Brokers answer about a listener that they do not have as about a topic that is being loaded.
        So they are asked without it, too: raises BrokerUnreachable if only that is answered.
        """
        listener = self._pool.options.listener_name
        for _ in range(_REFUSALS):
            try:
                return (yield from self._broker(topic, deadline, listener))
            except BrokerError as error:
                # A broker that has too much to do may say so to any question.
                passes = error.retryable and not isinstance(error, TooManyRequests)
                if listener is None or not passes:
                    raise
                refusal = error
            # Raises the same if the topic is being loaded.
            yield from self._broker(topic, deadline, None)
        raise BrokerUnreachable(
            f"the brokers do not have the listener {listener!r}: {refusal.what}",
            "Give a name of the brokers' advertisedListeners as pulsar.client.listenerName, or as "
            "listener_name of PulsarClient.",
        ) from refusal

    def _broker(
        self, topic: str, deadline: Deadline, listener: str | None
    ) -> Operation[BrokerAddress]:
        """As `broker`, by the address that a listener has, or any without one."""
        raise NotImplementedError

    def partitions(self, topic: str, deadline: Deadline, *, create: bool = False) -> Operation[int]:
        """Return an operation that gets a topic's number of partitions, 0 if not partitioned.

        With `create` a missing topic may be created; otherwise it is TopicNotFound.
        """
        raise NotImplementedError

    def topics(self, namespace: str, deadline: Deadline, mode: int) -> Operation[list[str]]:
        """Return an operation that lists a namespace's topics as `topic_names` does.

        `mode` is one of CommandGetTopicsOfNamespace.Mode.
        """
        raise NotImplementedError

    def schema(
        self, topic: str, version: bytes | None, deadline: Deadline
    ) -> Operation[RegisteredSchema | None]:
        """Return an operation that gets a version of a topic's schema, or the latest."""
        raise NotImplementedError


def topic_names(named: Iterable[str]) -> list[str]:
    """Return a broker's list of topics, sorted, with partitions replaced by their topic."""
    names: set[str] = set()
    for name in named:
        # Skip invalid names, instead of failing for the others.
        with contextlib.suppress(InvalidTopicName):
            names.add(topic_of(name))
    return sorted(names)
