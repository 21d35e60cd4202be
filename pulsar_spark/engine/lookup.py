"""Questions about topics: which broker serves them, how many partitions, where they end.

Pulsar binary protocol, "Service discovery". Every question is an operation, asked of one topic or
of thousands at once, and repeated while an error can pass. None but `attach_once` creates a topic.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from pulsar_spark.engine.addresses import BrokerAddress, parse_broker_url
from pulsar_spark.engine.connection import ClientConnection
from pulsar_spark.engine.consumer_session import ConsumerSession, SubscribeRequest, unique_name
from pulsar_spark.engine.operations import Operation, run, run_many
from pulsar_spark.engine.retry import Deadline, retrying
from pulsar_spark.errors import (
    InvalidTopicName,
    PulsarError,
    RemoteProtocolError,
    TopicNotFound,
)
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import LATEST_POSITION, MessageIdAdv
from pulsar_spark.protocol.topic_name import TopicName

if TYPE_CHECKING:
    from pulsar_spark.engine.context import ConnectionPool

T = TypeVar("T")

_PERSISTENT = pb.CommandGetTopicsOfNamespace.PERSISTENT
_ANY_DOMAIN = pb.CommandGetTopicsOfNamespace.ALL

_LookupType = pb.CommandLookupTopicResponse

MAX_PARTITIONS = 100_000
"""No broker is believed that claims more: each partition costs it and us a consumer."""

WITHOUT_CREATION = "supports_get_partitioned_metadata_without_auto_creation"
"""Feature of brokers that can be asked for partitions without creating the topic."""


class Lookup:
    """Asks the brokers of a pool. Holds no state of its own; thread-safe.

    Single questions raise the broker's error, ConnectError or OperationTimeout, with the topic;
    those about many topics return a dict in which such an error stands in the place of a result.
    Each topic has the operation timeout from the moment it is asked about.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self.pool = pool
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
        connection = yield from self.pool.service_operation()
        limit = self.pool.options.max_lookup_redirects
        authoritative = False
        for _ in range(limit + 1):
            builder = self._lookup_command(topic, authoritative)
            answer: pb.CommandLookupTopicResponse = yield connection.request_async(
                builder, deadline.attempt(self._timeout)
            )
            host = self._named_host(connection, answer)
            if answer.response == _LookupType.Connect:
                through = connection.address.physical
                physical = through if answer.proxy_through_service_url else host
                return BrokerAddress(host, physical)
            authoritative = answer.authoritative
            connection = yield self.pool.get_async(BrokerAddress(host, host))
        raise RemoteProtocolError(
            f"the lookup met too many redirects ({limit})",
            "Check the advertised addresses of the brokers.",
        )

    def _lookup_command(self, topic: str, authoritative: bool) -> Callable[[int], pb.BaseCommand]:
        listener = self.pool.options.listener_name
        return lambda request_id: commands.lookup(
            topic, request_id, authoritative=authoritative, advertised_listener_name=listener
        )

    def _named_host(
        self, connection: ClientConnection, answer: pb.CommandLookupTopicResponse
    ) -> str:
        if answer.response == _LookupType.Failed:
            raise connection.refusal(0, answer.message)
        tls = self.pool.service_url.tls
        named = answer.brokerServiceUrlTls if tls else answer.brokerServiceUrl
        if not named and (answer.brokerServiceUrl or answer.brokerServiceUrlTls):
            raise RemoteProtocolError(
                f"the lookup named no address {'with' if tls else 'without'} TLS, as service.url "
                "asks for; what is sent never goes from TLS to plain",
                "Have TLS enabled on all brokers (brokerServicePortTls), and their addresses "
                "advertised."
                if tls
                else "Write service.url as pulsar+ssl://host:6651.",
            )
        url = parse_broker_url(named)
        if url.tls != tls:
            raise RemoteProtocolError(
                "the lookup named an address of another scheme than service.url's",
                "Check the advertised addresses of the brokers.",
            )
        return url.hosts[0]

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

    def partitions_operation(self, topic: str, deadline: Deadline) -> Operation[int]:
        """Return an operation for one attempt to learn a topic's number of partitions."""
        connection = yield from self.pool.service_operation()
        if not connection.supports(WITHOUT_CREATION):
            name = TopicName.parse(topic)
            names = yield from self.topics_operation(name.namespace_name, deadline, _ANY_DOMAIN)
            if str(name) not in names and str(name.partitioned) not in names:
                raise TopicNotFound("the topic does not exist")
        return (yield from partition_count(connection, topic, deadline))

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
        self, namespace: str, deadline: Deadline, mode: int = _PERSISTENT
    ) -> Operation[list[str]]:
        """Return an operation for one attempt to list a namespace's topics."""
        connection = yield from self.pool.service_operation()
        answer: pb.CommandGetTopicsOfNamespaceResponse = yield connection.request_async(
            lambda request_id: commands.get_topics_of_namespace(namespace, request_id, mode=mode),
            deadline.attempt(self._timeout),
        )
        names: set[str] = set()
        for name in answer.topics:
            # A topic with a name that nobody could ask for hides no other.
            with contextlib.suppress(InvalidTopicName):
                names.add(str(TopicName.parse(name).partitioned))
        return sorted(names)

    # --- ends ---------------------------------------------------------------------------------

    def last_message_id(self, topic: str) -> MessageIdAdv:
        """Return the last message of a topic partition that can be read; -1:-1 if none."""
        return self.ask(topic, self.last_message_id_operation)

    def last_message_ids(self, topics: Iterable[str]) -> dict[str, MessageIdAdv | PulsarError]:
        """As `last_message_id`, for many topic partitions at once."""
        return self.ask_many(topics, self.last_message_id_operation)

    def last_message_id_operation(self, topic: str, deadline: Deadline) -> Operation[MessageIdAdv]:
        """Return an operation for one attempt to learn the last message of a topic partition."""
        connection = yield from self.connection_operation(topic, deadline)
        visit = SubscribeRequest(topic, unique_name("pulsar-spark-probe"), LATEST_POSITION)
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


def partition_count(
    connection: ClientConnection, topic: str, deadline: Deadline, *, auto_create: bool = False
) -> Operation[int]:
    """Return an operation that asks a connection for a topic's number of partitions."""
    answer: pb.CommandPartitionedTopicMetadataResponse = yield connection.request_async(
        lambda request_id: commands.partitioned_metadata(
            topic, request_id, auto_create=auto_create
        ),
        deadline.attempt(connection.options.operation_timeout),
    )
    if answer.response == pb.CommandPartitionedTopicMetadataResponse.Failed:
        raise connection.refusal(0, answer.message)
    if answer.partitions > MAX_PARTITIONS:
        raise RemoteProtocolError(
            f"the broker claims that the topic has {answer.partitions} partitions",
            broker=connection.address.logical,
        )
    return answer.partitions


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
