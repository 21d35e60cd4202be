"""What readers and producers share for one cluster: connections, timers, memory.

A `ClientContext` of its own ends its connections with it, as a client does. Spark's tasks and plans
use `ClientContext.shared`: a process keeps its connections to a cluster for the next task with
equal options and credentials.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from pulsar_spark.engine.authentication.providers import identity_of, provider_for
from pulsar_spark.engine.closing import Closing
from pulsar_spark.engine.connections.connection import CLOSE_TIMEOUT, ClientConnection
from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.connections.tls import tls_identity
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.forks import fork_count
from pulsar_spark.engine.keeping import Kept
from pulsar_spark.engine.lookups.known_brokers import KnownBrokers
from pulsar_spark.engine.lookups.lookup import Lookup, attach_once
from pulsar_spark.engine.memory import ProducerBudget
from pulsar_spark.engine.operations import Operation, Steps, in_steps, value_of
from pulsar_spark.engine.options import ClientOptions, ReaderOptions
from pulsar_spark.engine.timers import Timers
from pulsar_spark.engine.transactions import Coordinators
from pulsar_spark.errors import ClosedError, PulsarError, TopicNotFound
from pulsar_spark.policies import no_topic
from pulsar_spark.protocol.topic_name import TopicName

IDLE_SECONDS = 60.0
"""Shared connections that were unused for this long, or a quarter longer, are closed."""
KEPT_SECONDS = 10.0
"""A producer that a task has left for the next one is closed after so long.

While it is there, its topic cannot be deleted without force, and nobody gets exclusive access.
"""
_MOST_KEPT = 4000
_MOST_IDLE = 1000


@dataclass(slots=True, eq=False)
class _Shared:
    """A pool, what its users leave for others, and their number."""

    pool: ConnectionPool
    kept: Kept
    users: int = 0

    def let_go(self) -> None:
        """Close it, without waiting: its threads end by themselves."""
        self.pool.close(0.0)


class SharedConnections:
    """A process's pools by options and credentials, which outlive their users.

    Connections are never shared between different credentials: current tokens, even those in
    files, and certificates are compared. Thread-safe; useless in a forked child.
    """

    def __init__(self, timers: Timers | None = None) -> None:
        self._timers = timers or Timers("pulsar-spark-idle")
        self._lock = threading.Lock()
        # The following are guarded by _lock: the pools with users, and those without.
        self._used: dict[tuple[ClientOptions, bytes], _Shared] = {}
        self._idle = Kept(self._timers, IDLE_SECONDS, _MOST_IDLE)

    def acquire(self, options: ClientOptions) -> tuple[ConnectionPool, Kept, Callable[[], None]]:
        """Return a pool, what others left on it, and a function to call once when done with it.

        Raises as `ConnectionPool`, and AuthenticationError or TlsError if credentials or
        certificates cannot be read.
        """
        key = _identity(options)
        with self._lock:
            shared = self._used.get(key) or self._idle.take(key)
            if not isinstance(shared, _Shared):
                kept = Kept(self._timers, KEPT_SECONDS, _MOST_KEPT)
                shared = _Shared(ConnectionPool(options), kept)
                shared.pool.known_brokers = KnownBrokers()
            self._used[key] = shared
            shared.users += 1
        return shared.pool, shared.kept, partial(self._release, key, shared)

    def _release(self, key: tuple[ClientOptions, bytes], shared: _Shared) -> None:
        with self._lock:
            shared.users -= 1
            if not shared.users:
                del self._used[key]
                self._idle.keep(key, shared)

    def close_unused(self) -> None:
        """End all unused connections."""
        for pool in _pools(self._idle.take_all()):
            pool.close()

    @property
    def connections(self) -> list[ClientConnection]:
        """All connections that are open or opening."""
        with self._lock:
            pools = _pools([*self._used.values(), *self._idle])
        return [connection for pool in pools for connection in pool.connections]

    def abandon(self) -> None:
        """In a forked child: close its copies of the parent's sockets, without touching locks."""
        for pool in _pools([*self._used.values(), *self._idle]):
            pool.close()


def _pools(shared: Iterable[object]) -> list[ConnectionPool]:
    return [one.pool for one in shared if isinstance(one, _Shared)]


# Connects to nothing, and starts no thread, before somebody uses it.
_shared = SharedConnections()


def shared_connections() -> SharedConnections:
    """Return this process's shared connections; a forked child has new ones."""
    return _shared


def _after_fork() -> None:
    global _shared
    inherited, _shared = _shared, SharedConnections()
    inherited.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _identity(options: ClientOptions) -> tuple[ClientOptions, bytes]:
    """Return what must be equal for connections to be shared."""
    provider = provider_for(options.auth)
    credentials = identity_of(provider)
    # The digest shows no secret. The memory limit does not concern connections.
    digest = hashlib.sha256(provider.method_name.encode() + b"\0" + credentials).digest()
    return replace(options, memory_limit=1), digest + tls_identity(options)


class Member(Protocol):
    """Something made with a client context that must end with it."""

    def on_client_closed(self) -> None:
        """The client is about to close its connections."""


class ClientContext(Closing):
    """Connections, lookups, timers and the memory budget of a client.

    Connects and starts threads on demand. A context manager; `close` ends everything that was made
    with it. Not for use in a forked child.
    """

    def __init__(
        self,
        options: ClientOptions,
        pool: ConnectionPool | None = None,
        kept: Kept | None = None,
        release: Callable[[], None] | None = None,
    ) -> None:
        """With a `pool` of others, call `release` at the end instead of closing that."""
        self.options = options
        self.pool = pool or ConnectionPool(options)
        self.kept = kept
        """What outlives this context, for others on its connections; None if they end with it."""
        self._release = release
        self.lookup = Lookup(self.pool)
        self.coordinators = Coordinators(self.lookup)
        self.timers = Timers()
        self.budget = ProducerBudget(options.memory_limit)
        self._forks = fork_count()
        self._closed = False
        self._members_lock = threading.Lock()
        # Guarded by _members_lock.
        self._members: weakref.WeakSet[Member] = weakref.WeakSet()

    @classmethod
    def shared(cls, options: ClientOptions) -> ClientContext:
        """Return a context whose connections the process keeps for later users.

        Its `close` ends what was made with it and keeps the connections; they are closed after
        IDLE_SECONDS without users. Raises as `SharedConnections.acquire`.
        """
        return cls(options, *shared_connections().acquire(options))

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or this is a forked child."""
        return self._closed or fork_count() != self._forks

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """End what was made with it, its threads, and its connections unless they are shared.

        Waits up to `timeout` seconds for each connection's thread. May be called twice.
        """
        if fork_count() != self._forks:
            if self._release is None:
                self.pool.close()
            return
        with self._members_lock:
            closed, self._closed = self._closed, True
            members = list(self._members)
        if closed:
            return
        for member in members:
            member.on_client_closed()
        if self._release is not None:
            self.timers.close()
            self._release()
            return
        # Closing a connection frees the operations that wait for its broker.
        self.pool.close(timeout)
        self.timers.close()

    def switch_to(self, options: ClientOptions) -> None:
        """Use the cluster of these options from now on; raises as `ConnectionPool.switch_to`."""
        self.pool.switch_to(options)
        self.options = options

    def add(self, member: Member) -> None:
        """Register `member`, to be told when the client closes; raises ClosedError."""
        with self._members_lock:
            if self._closed:
                raise ClosedError("the client is closed")
            self._members.add(member)

    def partitions_for_writing(self, topic: str) -> int:
        """Return a topic's number of partitions, 0 if not partitioned.

        A missing topic is created if the broker's policy allows; otherwise this returns 0, and
        opening a producer raises the error.
        """
        return value_of(self.partitions_for_writing_many([topic])[topic])

    def asking_partitions(self, topic: str) -> Steps[int]:
        """Return steps that ask as `partitions_for_writing`, but raise TopicNotFound.

        A broker that says so would not create the topic for a producer or consumer either.
        """
        found = (yield from self._asking_partitions([topic]))[topic]
        if isinstance(found, TopicNotFound):
            parsed = TopicName.parse(topic)
            name = str(parsed)
            why, remedy = no_topic(str(parsed.partitioned), name)
            raise TopicNotFound(
                f"{found.what}; {why}", remedy, topic=name, broker=found.broker
            ) from found
        return value_of(found)

    def partitions_for_writing_many(self, topics: Iterable[str]) -> dict[str, int | PulsarError]:
        """As `partitions_for_writing`, for many topics at once; returns errors in their place."""
        counts = in_steps(self._asking_partitions(topics))
        return {
            topic: 0 if isinstance(found, TopicNotFound) else found
            for topic, found in counts.items()
        }

    def _asking_partitions(self, topics: Iterable[str]) -> Steps[dict[str, int | PulsarError]]:
        def attempt(topic: str, deadline: Deadline) -> Operation[int]:
            name = str(TopicName.parse(topic))
            return self.lookup.partitions_operation(name, deadline, create=True)

        counts: dict[str, int | PulsarError] = dict.fromkeys(topics, 0)
        whole = [topic for topic in counts if TopicName.parse(topic).partition_index < 0]
        for topic, found in (yield from self.lookup.asking_many(whole, attempt)).items():
            counts[topic] = found
        return counts

    def attaching_once(self, topics: Iterable[str], options: ReaderOptions) -> Steps[None]:
        """Return steps that attach to topic partitions as a reader, and leave.

        That may create missing ones. They raise TopicNotFound if the broker does not allow it, and
        its other errors.
        """
        attempt = partial(attach_once, self.lookup, options)
        for found in (yield from self.lookup.asking_many(topics, attempt)).values():
            value_of(found)
