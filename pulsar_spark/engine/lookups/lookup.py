"""Lookups: the broker of a topic, its partitions, and its last message.

Each question is an operation about one topic or thousands at once. It is retried while its error is
temporary. The service URL chooses the `LookupService`. Only `attach_once` creates a topic, unless
told otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from pulsar_spark.engine.connections.addresses import BrokerAddress
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.consumers.consumer_session import (
    ConsumerSession,
    SubscribeRequest,
    probe_request,
    unique_name,
    visit,
)
from pulsar_spark.engine.consumers.gaps import cursor_of
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.lookups.binary_lookup import BinaryLookupService
from pulsar_spark.engine.lookups.http_lookup import HttpLookupService
from pulsar_spark.engine.lookups.service import PERSISTENT, LookupService, RegisteredSchema
from pulsar_spark.engine.operations import (
    Operation,
    Steps,
    ask_all,
    asking_all,
    on_thread,
    run,
    value_of,
)
from pulsar_spark.engine.options import ReaderOptions
from pulsar_spark.engine.retry import retried
from pulsar_spark.errors import PulsarError, RemoteProtocolError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import (
    EARLIEST_POSITION,
    LATEST_POSITION,
    MessageIdAdv,
    Position,
)

T = TypeVar("T")

MAX_PARTITIONS = 100_000
"""A larger number is an error: each partition costs the broker and us a consumer."""


class Extent(NamedTuple):
    """Where a topic partition begins and ends.

    `first` is its first entry, or the next one if it is empty; None if the broker does not tell.
    `last` is its last readable message, -1:-1 if there is none.
    """

    first: Position | None
    last: MessageIdAdv

    def stores_from(self, position: Position) -> bool:
        """Whether all entries from a position on are stored, messages or not.

        They can be of aborted transactions. False if the broker does not tell.
        """
        return self.first is not None and self.first[:2] <= position[:2]


class Lookup:
    """Asks a pool's brokers. Has no state; thread-safe.

    Questions about one topic raise the broker's error, ConnectError or OperationTimeout, with the
    topic. Questions about many topics return a dict with such errors in place of results. Each
    topic has the operation timeout from its first request.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self.pool = pool
        self._timeout = pool.options.operation_timeout

    @property
    def _service(self) -> LookupService:
        # The pool's service URL may become that of another cluster.
        http = self.pool.http
        return (
            BinaryLookupService(self.pool) if http is None else HttpLookupService(self.pool, http)
        )

    # --- brokers ------------------------------------------------------------------------------

    def connection_operation(self, topic: str, deadline: Deadline) -> Operation[ClientConnection]:
        """Return an operation that finds and connects to a topic's broker; one attempt."""
        address = yield from self.broker_operation(topic, deadline)
        connection: ClientConnection = yield self.pool.get_async(address)
        return connection

    def broker_operation(self, topic: str, deadline: Deadline) -> Operation[BrokerAddress]:
        """Return an operation that finds a topic partition's broker; one attempt."""
        return self._service.broker(topic, deadline)

    # --- topics -------------------------------------------------------------------------------

    def partitions(self, topic: str) -> int:
        """Return the number of partitions, 0 if not partitioned; raises TopicNotFound.

        A missing topic is always detected. Old brokers cannot be asked without creating it; there,
        the namespace's topics are listed first, which may need another permission.
        """
        return self.ask(topic, self.partitions_operation)

    def partitions_many(self, topics: Iterable[str]) -> dict[str, int | PulsarError]:
        """As `partitions`, for many topics at once."""
        return self.ask_many(topics, self.partitions_operation)

    def partitions_operation(
        self, topic: str, deadline: Deadline, *, create: bool = False
    ) -> Operation[int]:
        """Return an operation that gets a topic's number of partitions; one attempt.

        With `create` a missing topic is created, if the broker's policy allows.
        """
        count = yield from self._service.partitions(topic, deadline, create=create)
        if not 0 <= count <= MAX_PARTITIONS:
            raise RemoteProtocolError(f"the broker claims that the topic has {count} partitions")
        return count

    def topics_of_namespace(self, namespace: str) -> list[str]:
        """Return the full names of the persistent topics of ``tenant/namespace``, sorted.

        Partitions are replaced by their topic. The list contains system topics.
        """
        return run(retried(lambda end: self.topics_operation(namespace, end)), self._timeout)

    def topics_operation(
        self, namespace: str, deadline: Deadline, mode: int = PERSISTENT
    ) -> Operation[list[str]]:
        """Return an operation that lists a namespace's topics; one attempt."""
        return self._service.topics(namespace, deadline, mode)

    def schema_operation(
        self, topic: str, version: bytes | None, deadline: Deadline
    ) -> Operation[RegisteredSchema | None]:
        """Return an operation that gets a version of a topic's schema; one attempt.

        Without `version`, the latest; None if there is no such schema.
        """
        return self._service.schema(topic, version, deadline)

    # --- ends ---------------------------------------------------------------------------------

    def last_message_id(self, topic: str) -> MessageIdAdv:
        """Return a topic partition's last readable message; -1:-1 if none."""
        return self.ask(topic, self.last_message_id_operation)

    def asking_last_message_ids(
        self, topics: Iterable[str], *, read_compacted: bool = False
    ) -> Steps[dict[str, MessageIdAdv | PulsarError]]:
        """As `last_message_id`, for many topic partitions at once, compacted or not, in steps."""
        found = yield from self._asking_extents(topics, read_compacted=read_compacted)
        return {
            topic: extent if isinstance(extent, PulsarError) else extent.last
            for topic, extent in found.items()
        }

    last_message_ids = on_thread(asking_last_message_ids)

    def last_message_id_operation(self, topic: str, deadline: Deadline) -> Operation[MessageIdAdv]:
        """Return an operation that gets a topic partition's last message; one attempt."""
        return (yield from self._extent(topic, deadline)).last

    def _asking_extents(
        self, topics: Iterable[str], *, read_compacted: bool = False
    ) -> Steps[dict[str, Extent | PulsarError]]:
        """Return steps for where topic partitions begin and end, at once; compacted or not."""
        return self.asking_many(topics, partial(self._extent, read_compacted=read_compacted))

    extents = on_thread(_asking_extents)

    def _extent(
        self, topic: str, deadline: Deadline, *, read_compacted: bool = False
    ) -> Operation[Extent]:
        connection = yield from self.connection_operation(topic, deadline)
        wanted = probe_request(topic, EARLIEST_POSITION, read_compacted=read_compacted)
        with ConsumerSession(connection, wanted) as session:
            yield from session.subscribe(deadline)
            answer: pb.CommandGetLastMessageIdResponse = yield session.last_message_id(deadline)
            last = MessageIdAdv.from_pb(answer.last_message_id)
            if last.entry_id < 0:
                yield from session.confirm(deadline)
        first = cursor_of(answer)
        # Such a subscription begins at a ledger's start, unless its cursor was moved; on a topic
        # that was emptied, behind what is gone.
        is_first = first is not None and (first.entry_id == 0 or last.entry_id < 0)
        return Extent(first if is_first else None, last)

    # --- questions ----------------------------------------------------------------------------

    def ask(self, topic: str, attempt: Callable[[str, Deadline], Operation[T]]) -> T:
        """Repeat a question about a topic until it is answered."""
        return value_of(self.ask_many([topic], attempt)[topic])

    def ask_each(
        self, topic: str, attempts: Sequence[Callable[[str, Deadline], Operation[T]]]
    ) -> list[T | PulsarError]:
        """As `ask`, several questions about a topic at once; an error stands for its answer."""
        questions = [(topic, retried(partial(attempt, topic))) for attempt in attempts]
        return ask_all(questions, self._timeout)

    def asking_many(
        self, topics: Iterable[str], attempt: Callable[[str, Deadline], Operation[T]]
    ) -> Steps[dict[str, T | PulsarError]]:
        """As `ask`, about many topics at once, in steps."""
        names = list(dict.fromkeys(topics))
        questions = [(name, retried(partial(attempt, name))) for name in names]
        answers = yield from asking_all(questions, self._timeout)
        return dict(zip(names, answers, strict=True))

    ask_many = on_thread(asking_many)


def attach_once(
    lookup: Lookup, options: ReaderOptions, topic: str, deadline: Deadline
) -> Operation[None]:
    """Return an operation that attaches to a topic as a reader, which may create it, and leaves.

    The subscription is non-durable, so only the topic stays.
    """
    connection = yield from lookup.connection_operation(topic, deadline)
    wanted = SubscribeRequest(
        topic,
        unique_name(options.subscription_prefix),
        LATEST_POSITION,
        read_compacted=options.read_compacted,
        create=True,
        schema=options.schema,
        in_turn=True,
    )
    yield from visit(connection, wanted, deadline)
