"""Attaches to a topic's broker, and again after each loss: one way for all that do.

Producers, consumers, durable subscriptions and readers attach alike. An attempt finds the topic's
broker (once the one that the last broker named, otherwise by a lookup), registers there, and
resumes. After a loss, attempts follow with growing pauses until one succeeds, or fails for good:
`retry.can_pass` has the table of that. Attempts are operations, so thousands can attach at once
without a thread for each. Subclasses are the hooks: what is registered, and how it goes on then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, NoReturn, TypeVar

from pulsar_spark.engine.connections.addresses import BrokerAddress
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.operations import Operation, OperationFactory, Within, start
from pulsar_spark.engine.retry import Backoff, after_attempts, can_pass
from pulsar_spark.engine.timers import Timers
from pulsar_spark.errors import (
    AuthenticationError,
    BrokerError,
    ClosedError,
    ConnectionLost,
    ConsumerBusy,
    OperationTimeout,
    ProducerBusy,
    PulsarError,
)
from pulsar_spark.logs import get_logger

logger = get_logger(__name__)

S = TypeVar("S")
T = TypeVar("T")

BUSY_SECONDS = 15.0
"""Wait this long for a name in use: it may be ours, on a connection that the broker still keeps."""

_MAX_BUSY_PAUSE = 1.0
# So much time is left for the answer to the last attempt.
_ANSWER_SECONDS = 0.5
# A broker forgets the non-durable subscription of `durable_exists` only after it has
# answered that the consumer is closed.
_NON_DURABLE = "NonDurable subscription with the same name"

FOREVER = 10 * 365 * 86_400.0
"""Seconds for what has no end of its own."""

# How long an attempt may take, however short the operation timeout is: with several service hosts,
# each may take the connection timeout.
_PATIENCE = 15.0
_MAX_PAUSE = 30.0
# No pause is longer than this part of the time left, so that a broker that is back late is found.
_PART_OF_TIME_LEFT = 0.25
_LEAST_PAUSE = 0.1


class Attaching(Generic[S]):
    """Has, one after the other, sessions `S` at the broker of a topic partition. Thread-safe.

    With `lives` it is a client's, which goes on wherever it may be accepted later, once it was;
    see `can_pass`. Without `timers` nothing attaches it in the background.
    """

    # What it is, and what it does at the broker, in logs and errors.
    _what = "consumer"
    _verb = "subscribe"

    def __init__(
        self,
        pool: ConnectionPool,
        topic: str,
        timers: Timers | None = None,
        *,
        lives: bool = False,
        max_pause: float = _MAX_PAUSE,
    ) -> None:
        self.topic = topic
        self._pool = pool
        self._lookup = Lookup(pool)
        self._timers = timers
        self._lives = lives
        self._backoff = Backoff(maximum=max_pause)
        self._attachments = 0
        self._is_first = True
        # Whether the last attempt reached the topic's broker.
        self._is_connected = False
        self._lock = threading.Lock()
        # The following are guarded by _lock: the attempt that is under way, the broker to which
        # the topic moved, and why it was lost.
        self._attempt: Future[S] | None = None
        self._moved_to: BrokerAddress | None = None
        self._loss: PulsarError | None = None
        self._reattaching = False
        self._pauses: set[Future[None]] = set()
        self._closed = False
        pool.add(self)

    @property
    def was_attached(self) -> bool:
        """Whether there is or was a session."""
        return self._attachments > 0

    @property
    def attached(self) -> bool:
        """Whether there is a session, as far as is known."""
        raise NotImplementedError

    # --- hooks --------------------------------------------------------------------------------

    def _current(self) -> S | None:
        """Return the session that makes another attempt unnecessary; _lock is held."""
        return None

    def _register(self, connection: ClientConnection, deadline: Deadline) -> Operation[S]:
        """Return an operation that begins a session; one attempt."""
        raise NotImplementedError

    def _resume(self, session: S) -> None:
        """Go on with a new session; raises why it is lost already."""
        raise NotImplementedError

    def _come_back(self, deadline: Deadline) -> Operation[Any]:
        """Return an operation that attaches after a loss; one attempt."""
        return self.attach_operation(deadline)

    def _may_be_own(self) -> bool:
        """Whether it may be this one's own earlier session that holds its name."""
        return True

    def _time_left(self) -> float:
        """Return the seconds in which another attempt is of use."""
        return float("inf")

    def _on_trouble(self, error: PulsarError) -> None:
        """An attempt or session has failed, and another attempt follows."""

    def _on_ended(self, error: PulsarError) -> None:
        """There will be no further session, but for those who ask for one."""
        logger.error("%s: cannot %s again: %s", self.topic, self._verb, error.what)

    def can_pass(self, error: PulsarError) -> bool:
        """Whether another attempt may succeed, as `retry.can_pass`."""
        # Who is not let in would not be later: only the user gives other credentials.
        is_login = isinstance(error, AuthenticationError) and not self._is_connected
        return can_pass(error, lives=self._lives and self.was_attached and not is_login)

    # --- attaching ----------------------------------------------------------------------------

    def attach_operation(self, deadline: Deadline) -> Operation[S]:
        """Return an operation that attaches, unless that is done; one attempt, shared by all."""
        with self._lock:
            self._check_open()
            session = self._current()
            if session is not None:
                return session
            other = self._attempt
            mine: Future[S] = Future()
            if other is None:
                mine.set_running_or_notify_cancel()
                self._attempt = mine
        if other is not None:
            shared: S = yield other
            return shared
        try:
            session = yield from self._attach(deadline)
        except BaseException as error:
            self._attempt = None
            mine.set_exception(error if isinstance(error, PulsarError) else self._lost())
            raise
        self._attempt = None
        mine.set_result(session)
        return session

    def _attach(self, deadline: Deadline) -> Operation[S]:
        self._is_connected = False
        known = self._known_broker()
        if known is not None:
            try:
                there: ClientConnection = yield self._pool.get_async(known)
                # If it hangs, the topic may have moved: that leaves time for the lookup.
                half = Deadline(deadline.remaining() / 2)
                return (yield from self._attach_at(there, half))
            except PulsarError as error:
                if not can_pass(error):
                    raise
                logger.info(
                    "%s: looking up the broker, as it may have moved: %s", self.topic, error
                )
        connection = yield from self._find(deadline)
        return (yield from self._attach_at(connection, deadline))

    def _attach_at(self, connection: ClientConnection, deadline: Deadline) -> Operation[S]:
        known = self._pool.known_brokers
        self._is_connected = True
        if known is not None:
            # Until it has accepted this one, nobody else need try it.
            known.forget(self.topic)
        session = yield from self._register(connection, deadline)
        if known is not None:
            known.note(self.topic, connection.address)
        self._attachments += 1
        self._resume(session)
        return session

    def _known_broker(self) -> BrokerAddress | None:
        """Return the broker that others know, if they are connected to it, for the first attempt.

        Whatever was lost before may have moved.
        """
        is_first, self._is_first = self._is_first, False
        known = self._pool.known_brokers
        if known is None or not is_first or (address := known.broker_of(self.topic)) is None:
            return None
        is_connected = any(each.address == address for each in self._pool.connections)
        return address if is_connected else None

    def _find(self, deadline: Deadline) -> Operation[ClientConnection]:
        with self._lock:
            moved_to, self._moved_to = self._moved_to, None
        if moved_to is None:
            return (yield from self._lookup.connection_operation(self.topic, deadline))
        connection: ClientConnection = yield self._pool.get_async(moved_to)
        return connection

    def _while_busy(self, register: Callable[[], Operation[T]], deadline: Deadline) -> Operation[T]:
        """Return an operation that registers, again for some seconds if its name is in use."""
        waits, backoff = Deadline(BUSY_SECONDS), Backoff(maximum=_MAX_BUSY_PAUSE)
        while True:
            try:
                return (yield from register())
            except BrokerError as error:
                left = min(waits.remaining(), deadline.remaining() - _ANSWER_SECONDS)
                if left <= 0 or not (_is_busy(error) and self._may_be_own()):
                    raise
            yield from self._wait(min(backoff.next(), left))

    def _attempts(
        self,
        attempt: OperationFactory[Any],
        deadline: Deadline,
        error: PulsarError | None = None,
    ) -> Operation[None]:
        """Return an operation that attaches, with any number of attempts until the deadline.

        `error` is why there is no session any more. Raises what is final.
        """
        number, before = 0, None
        while True:
            if error is not None:
                pause = self._pause(error, min(self._time_left(), deadline.remaining()))
                if pause >= deadline.remaining():
                    self._end_late(error, number, before, deadline)
                if number:
                    self._log_refusal(error)
                yield from self._wait(pause)
                if before is None or not isinstance(error, OperationTimeout):
                    # That there was no answer in time says less than an answer before.
                    before = error
            limit = max(self._pool.options.operation_timeout, _PATIENCE)
            try:
                yield from attempt(Deadline(min(limit, deadline.remaining())))
                return
            except PulsarError as trouble:
                error = trouble.with_context(topic=self.topic)
                number += 1

    def _end_late(
        self, error: PulsarError, attempts: int, before: PulsarError | None, deadline: Deadline
    ) -> NoReturn:
        """Raise the error of attempts that had no success in time."""
        raise after_attempts(error, attempts, before) from error

    def _log_refusal(self, error: PulsarError) -> None:
        # What only a client waits for is for somebody to change.
        level = logging.INFO if can_pass(error) else logging.WARNING
        again = " again" if self.was_attached else ""
        logger.log(level, "%s: cannot %s%s yet: %s", self.topic, self._verb, again, error.what)

    def _pause(self, error: PulsarError, time_left: float) -> float:
        """Return how long to wait before another attempt; raises an error that is final."""
        if not self.can_pass(error):
            raise error
        self._on_trouble(error)
        delay = self._backoff.next()
        if self._moved_to is not None:
            return 0.0
        return min(delay, max(time_left * _PART_OF_TIME_LEFT, _LEAST_PAUSE))

    def _wait(self, seconds: float) -> Operation[None]:
        """Return an operation that pauses; raises ClosedError after `_stop`."""
        pause: Future[None] = Future()
        with self._lock:
            self._check_open()
            self._pauses.add(pause)
        try:
            with suppress(OperationTimeout):
                yield Within(pause, seconds)
        finally:
            self._pauses.discard(pause)
        self._check_open()

    def hurry(self) -> None:
        """Make the next attempt now, and look the broker up for it: the cluster is another one."""
        with self._lock:
            self._moved_to = None
            self._backoff.reset()
            pauses, self._pauses = self._pauses, set()
        for pause in pauses:
            pause.set_result(None)

    # --- in the background --------------------------------------------------------------------

    def _reattach(self, error: PulsarError | None = None) -> None:
        """Attach again after a loss, because of `error`; waits for nothing."""
        assert self._timers is not None
        with self._lock:
            self._loss = error = error or self._lost()
            if self._closed or self._reattaching:
                return
            self._reattaching = True
        again = start(
            lambda deadline: self._attempts(self._come_back, deadline, error),
            FOREVER,
            self._timers,
        )
        again.add_done_callback(self._on_reattached)

    def _on_reattached(self, again: Future[None]) -> None:
        with self._lock:
            self._reattaching = False
        error = None if again.cancelled() else again.exception()
        if self._closed:
            return
        if error is None:
            if not self.attached:
                # It was lost again before this was stored.
                self._reattach(self._loss)
            return
        if not isinstance(error, PulsarError):
            logger.error("%s: attaching has failed", self.topic, exc_info=error)
            error = ConnectionLost(f"an internal error, see the log: {error!r}")
        self._on_ended(error.with_context(topic=self.topic))

    # --- the end ------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Make no further attempt; those that pause end."""
        with self._lock:
            self._closed = True
            pauses, self._pauses = self._pauses, set()
        for pause in pauses:
            pause.set_result(None)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the {self._what} is closed", topic=self.topic)

    def _lost(self) -> PulsarError:
        return ConnectionLost(f"the broker closed the {self._what}", topic=self.topic)


def _is_busy(error: PulsarError) -> bool:
    return isinstance(error, ConsumerBusy | ProducerBusy) or _NON_DURABLE in error.what
