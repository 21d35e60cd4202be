"""Lookups: the broker of a topic, its partitions, and its last message.

Every question is an operation, asked of one topic or of thousands at once, and repeated while an
error can pass. How it is asked is up to the `LookupService` that the service URL calls for. None
but `attach_once` creates a topic, unless told to.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from pulsar_spark.engine.connections.addresses import BrokerAddress
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.consumers.consumer_session import (
    ConsumerSession,
    SubscribeRequest,
    unique_name,
)
from pulsar_spark.engine.operations import Operation, run, run_many
from pulsar_spark.engine.retry import Deadline, retrying
from pulsar_spark.errors import (
    InvalidTopicName,
    PulsarError,
    RemoteProtocolError,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import LATEST_POSITION, MessageIdAdv
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.protocol.topic_name import TopicName

if TYPE_CHECKING:
    from pulsar_spark.engine.context import ConnectionPool

T = TypeVar("T")

PERSISTENT = pb.CommandGetTopicsOfNamespace.PERSISTENT
ANY_DOMAIN = pb.CommandGetTopicsOfNamespace.ALL

MAX_PARTITIONS = 100_000
"""No broker is believed that claims more: each partition costs it and us a consumer."""


class RegisteredSchema(NamedTuple):
    """A schema of the brokers' registry, and its version."""

    schema: SchemaInfo
    version: bytes


class LookupService(Protocol):
    """Service discovery in one attempt each: by the binary protocol, or by REST."""

    def broker(self, topic: str, deadline: Deadline) -> Operation[BrokerAddress]:
        """Return an operation that finds the broker of a topic partition."""

    def partitions(self, topic: str, deadline: Deadline, *, create: bool = False) -> Operation[int]:
        """Return an operation that learns a topic's number of partitions, 0 for one without.

        Unless `create` is set nothing is created, and a missing topic is TopicNotFound.
        """

    def topics(self, namespace: str, deadline: Deadline, mode: int) -> Operation[list[str]]:
        """Return an operation that lists a namespace's topics as `topic_names` does.

        `mode` is one of CommandGetTopicsOfNamespace.Mode.
        """

    def schema(
        self, topic: str, version: bytes | None, deadline: Deadline
    ) -> Operation[RegisteredSchema | None]:
        """Return an operation that asks for a version of a topic's schema, or for the latest."""

    def close(self) -> None:
        """Give back what is held; operations that still wait fail."""


class Lookup:
    """Asks the brokers of a pool. Holds no state of its own; thread-safe.

    Single questions raise the broker's error, ConnectError or OperationTimeout, with the topic;
    those about many topics return a dict in which such an error stands in the place of a result.
    Each topic has the operation timeout from the moment it is asked about.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self.pool = pool
        self._service = pool.lookup_service
        self._timeout = pool.options.operation_timeout

    # --- brokers ------------------------------------------------------------------------------

    def broker(self, topic: str) -> BrokerAddress:
        """Return the broker that serves a topic partition."""
        return self.ask(topic, self.broker_operation)

    def connection(self, topic: str) -> ClientConnection:
        """Return a connection to the broker that serves a topic partition."""
        return self.ask(topic, self.connection_operation)

    def connection_operation(self, topic: str, deadline: Deadline) -> Operation[ClientConnection]:
        """Return an operation for one attempt to find and to connect to a topic's broker."""
        address = yield from self.broker_operation(topic, deadline)
        connection: ClientConnection = yield self.pool.get_async(address)
        return connection

    def broker_operation(self, topic: str, deadline: Deadline) -> Operation[BrokerAddress]:
        """Return an operation for one attempt to find the broker of a topic partition."""
        return self._service.broker(topic, deadline)

    # --- topics -------------------------------------------------------------------------------

    def partitions(self, topic: str) -> int:
        """Return the number of partitions, 0 for a topic without; raises TopicNotFound.

        A topic that is not partitioned and does not exist is always told from one that does,
        also by brokers that cannot be asked without creating the topic: there, the topics of
        the namespace are listed first, which may need a permission of its own.
        """
        return self.ask(topic, self.partitions_operation)

    def partitions_many(self, topics: Iterable[str]) -> dict[str, int | PulsarError]:
        """As `partitions`, for many topics at once."""
        return self.ask_many(topics, self.partitions_operation)

    def partitions_operation(
        self, topic: str, deadline: Deadline, *, create: bool = False
    ) -> Operation[int]:
        """Return an operation for one attempt to learn a topic's number of partitions.

        With `create` a topic that does not exist is created, where the broker's policy is so.
        """
        count = yield from self._service.partitions(topic, deadline, create=create)
        if not 0 <= count <= MAX_PARTITIONS:
            raise RemoteProtocolError(f"the broker claims that the topic has {count} partitions")
        return count

    def topics_of_namespace(self, namespace: str, pattern: str | None = None) -> list[str]:
        """Return the full names of the persistent topics of ``tenant/namespace``, sorted.

        Partitions are brought back to the topic they belong to. `pattern` is a regular
        expression that must match the whole name. System topics are among them.
        """
        names = run(
            lambda deadline: retrying(lambda end: self.topics_operation(namespace, end), deadline),
            self._timeout,
        )
        if pattern is None:
            return names
        matches = re.compile(pattern).fullmatch
        return [name for name in names if matches(name)]

    def topics_operation(
        self, namespace: str, deadline: Deadline, mode: int = PERSISTENT
    ) -> Operation[list[str]]:
        """Return an operation for one attempt to list a namespace's topics."""
        return self._service.topics(namespace, deadline, mode)

    def schema_operation(
        self, topic: str, version: bytes | None, deadline: Deadline
    ) -> Operation[RegisteredSchema | None]:
        """Return an operation for one attempt to get a version of a topic's schema.

        Without `version` it is the latest; None if there is no such schema.
        """
        return self._service.schema(topic, version, deadline)

    # --- ends ---------------------------------------------------------------------------------

    def last_message_id(self, topic: str) -> MessageIdAdv:
        """Return the last message of a topic partition that can be read; -1:-1 if none."""
        return self.ask(topic, self.last_message_id_operation)

    def last_message_ids(
        self, topics: Iterable[str], *, read_compacted: bool = False
    ) -> dict[str, MessageIdAdv | PulsarError]:
        """As `last_message_id`, for many topic partitions at once, compacted or as they are."""
        return self.ask_many(
            topics,
            lambda topic, deadline: self.last_message_id_operation(
                topic, deadline, read_compacted=read_compacted
            ),
        )

    def last_message_id_operation(
        self, topic: str, deadline: Deadline, *, read_compacted: bool = False
    ) -> Operation[MessageIdAdv]:
        """Return an operation for one attempt to learn the last message of a topic partition."""
        connection = yield from self.connection_operation(topic, deadline)
        visit = SubscribeRequest(
            topic,
            unique_name("pulsar-spark-probe"),
            LATEST_POSITION,
            read_compacted=read_compacted,
        )
        with ConsumerSession(connection, visit) as session:
            yield from session.subscribe(deadline)
            answer: pb.CommandGetLastMessageIdResponse = yield session.last_message_id(deadline)
            last = MessageIdAdv.from_pb(answer.last_message_id)
            if last.entry_id < 0:
                yield from session.confirm(deadline)
        return last

    # --- asking -------------------------------------------------------------------------------

    def ask(self, topic: str, attempt: Callable[[str, Deadline], Operation[T]]) -> T:
        """Make attempts at a question about a topic until one is answered."""
        result = self.ask_many([topic], attempt)[topic]
        if isinstance(result, PulsarError):
            raise result
        return result

    def ask_many(
        self, topics: Iterable[str], attempt: Callable[[str, Deadline], Operation[T]]
    ) -> dict[str, T | PulsarError]:
        """As `ask`, about many topics at once."""
        names = list(dict.fromkeys(topics))

        def factory(topic: str) -> Callable[[Deadline], Operation[T]]:
            return lambda deadline: retrying(lambda end: attempt(topic, end), deadline)

        results = run_many([factory(name) for name in names], self._timeout)
        return {
            name: result.with_context(topic=name) if isinstance(result, PulsarError) else result
            for name, result in zip(names, results, strict=True)
        }


def topic_names(named: Iterable[str]) -> list[str]:
    """Return the topics that a broker lists, sorted; partitions as the topic they belong to."""
    names: set[str] = set()
    for name in named:
        # A topic with a name that nobody could ask for hides no other.
        with contextlib.suppress(InvalidTopicName):
            names.add(str(TopicName.parse(name).partitioned))
    return sorted(names)


def too_many_redirects(limit: int) -> RemoteProtocolError:
    """Return the error of a lookup that is sent from one broker to the next."""
    return RemoteProtocolError(
        f"the lookup met too many redirects ({limit})",
        "Check the advertised addresses of the brokers.",
    )


def attach_once(lookup: Lookup, topic: str, deadline: Deadline) -> Operation[None]:
    """Return an operation that attaches to a topic, which may create it, and leaves.

    The subscription is not durable, so nothing but the topic stays.
    """
    connection = yield from lookup.connection_operation(topic, deadline)
    visit = SubscribeRequest(
        topic, unique_name("pulsar-spark-visitor"), LATEST_POSITION, create=True
    )
    with ConsumerSession(connection, visit) as session:
        yield from session.subscribe(deadline)
        if (answer := session.close()) is not None:
            yield answer
