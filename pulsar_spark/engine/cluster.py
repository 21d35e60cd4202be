"""What all readers and producers of a process share for one cluster."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType
from typing import Protocol

from pulsar_spark.engine.addresses import BrokerAddress, assigned_broker
from pulsar_spark.engine.backoff import Deadline
from pulsar_spark.engine.connection import ClientConnection
from pulsar_spark.engine.connection_pool import ConnectionPool
from pulsar_spark.engine.inflight_window import MemoryBudget
from pulsar_spark.engine.lookup import Lookup
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.engine.pipeline import Job, retrying, run
from pulsar_spark.engine.scheduler import Scheduler
from pulsar_spark.engine.topic_creation import attach_once
from pulsar_spark.errors import ClosedError, PulsarError, TopicNotFound
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.topic_name import TopicName


class Member(Protocol):
    """What was made with a cluster and must not outlive it."""

    def on_client_closed(self) -> None:
        """The client is about to end its connections."""


class Cluster:
    """Connections, lookups, background threads and the memory for messages under way.

    Nothing is connected, and no thread started, before it is needed. A context manager; `close`
    ends everything that was made with it. Not for use in a forked child.
    """

    def __init__(self, options: ClientOptions) -> None:
        self.options = options
        self.pool = ConnectionPool(options)
        self.lookup = Lookup(self.pool)
        self.scheduler = Scheduler()
        self.budget = MemoryBudget(options.memory_limit)
        self._pid = os.getpid()
        self._closed = False
        self._members_lock = threading.Lock()
        # Guarded by _members_lock.
        self._members: weakref.WeakSet[Member] = weakref.WeakSet()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or the process is another one."""
        return self._closed or os.getpid() != self._pid

    def close(self) -> None:
        """End all connections and background threads. May be called twice."""
        if os.getpid() == self._pid:
            with self._members_lock:
                self._closed = True
                members = list(self._members)
            for member in members:
                member.on_client_closed()
        # Jobs that wait for a broker are freed by the end of its connection.
        self.pool.close()
        if os.getpid() == self._pid:
            self.scheduler.close()

    def add(self, member: Member) -> None:
        """Tell `member` when the client is closed, if it lives till then; raises ClosedError."""
        with self._members_lock:
            if self._closed:
                raise ClosedError("the client is closed")
            self._members.add(member)

    def connection_for(self, topic: str, timeout: float) -> ClientConnection:
        """Return a connection to the broker that serves a topic partition, in one attempt.

        Raises the broker's error, ConnectError or OperationTimeout, with the topic.
        """
        try:
            return run(lambda deadline: self.lookup.connection_job(topic, deadline), timeout)
        except PulsarError as error:
            raise error.with_context(topic=topic) from error.__cause__

    def partitions_for_writing(self, topic: str) -> int:
        """Return the number of partitions of a topic, 0 for one without.

        A topic that does not exist is created if the broker's policy is to do so; otherwise it
        counts as one without partitions, and opening a producer says what is wrong.
        """
        name = TopicName.parse(topic)
        if name.partition_index >= 0:
            return 0

        def attempt(deadline: Deadline) -> Job[int]:
            connection = yield from self.pool.service_job()
            answer: pb.CommandPartitionedTopicMetadataResponse = yield connection.request_async(
                lambda request_id: commands.partitioned_metadata(
                    str(name), request_id, auto_create=True
                ),
                deadline.remaining(),
            )
            return answer.partitions

        try:
            return run(lambda deadline: retrying(attempt, deadline), self.options.operation_timeout)
        except TopicNotFound:
            return 0
        except PulsarError as error:
            raise error.with_context(topic=topic) from error.__cause__

    def create_if_missing(self, topic: str) -> None:
        """Have a topic without partitions created if it is missing and the broker allows it.

        Raises TopicNotFound if it does not, and what else it refuses with.
        """
        timeout = self.options.operation_timeout

        def attempt(deadline: Deadline) -> Job[None]:
            return attach_once(self.lookup, topic, deadline)

        try:
            run(lambda deadline: retrying(attempt, deadline), timeout)
        except PulsarError as error:
            raise error.with_context(topic=topic) from error.__cause__

    def assigned_broker(
        self, command: pb.CommandCloseProducer | pb.CommandCloseConsumer, old: BrokerAddress
    ) -> BrokerAddress | None:
        """Return the broker that one at `old` names when it closes a producer or consumer.

        None where a lookup has to decide; see `addresses.assigned_broker`.
        """
        return assigned_broker(command, old, self.pool.service_url.tls)
