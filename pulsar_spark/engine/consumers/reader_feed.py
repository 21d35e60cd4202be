"""The consumer of a reader, which resubscribes after each disconnect until it is closed.

Each session has its own non-durable subscription, which starts at the reader's position and fills a
receiver queue within permits. Whatever ends a session, the next one follows: on the broker that was
named, if any, and with growing pauses while that fails.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from pulsar_spark.engine.attaching import FOREVER, Attaching
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.consumers.consumer_session import (
    ConsumerSession,
    SubscribeRequest,
    unique_name,
)
from pulsar_spark.engine.consumers.receiver_queue import Ended, Permits, ReceiverQueue
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.memory import ReceiverBudget
from pulsar_spark.engine.operations import Operation, OperationFactory, run, start
from pulsar_spark.engine.options import ReaderOptions
from pulsar_spark.engine.timers import Timers
from pulsar_spark.errors import ClosedError, ConnectionLost, ConsumerBusy, PulsarError
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.message_id import LATEST_POSITION, Position

logger = get_logger(__name__)

_MAX_PAUSE = 5.0


T = TypeVar("T")


class SwitchedCluster(ConnectionLost):
    """The client uses another cluster now, where the reader's position means nothing."""


class Drive(NamedTuple):
    """How a reader goes on whose thread must not wait for it: it has others.

    What takes time is done with `timers`. `on_ready` is called, on any thread, when the reader can
    go on. Whoever made it has attached to the topic, so it goes on from its first attempt as after
    a loss.
    """

    timers: Timers
    on_ready: Callable[[], object]

    def start(self, factory: OperationFactory[T], seconds: float) -> Future[T]:
        """Start an operation; its end is told, too."""
        started = start(factory, seconds, self.timers)
        started.add_done_callback(lambda _: self.on_ready())
        return started


def wait_for_end(factory: OperationFactory[T], seconds: float) -> Future[T]:
    """As `Drive.start` for a thread that waits: the operation has ended."""
    ended: Future[T] = Future()
    try:
        ended.set_result(run(factory, seconds))
    except PulsarError as error:
        ended.set_exception(error)
    return ended


class ReaderFeed(Attaching["tuple[ConsumerSession, ReceiverQueue]"]):
    """Has a topic partition delivered to `queue`, session by session.

    `start` is where the last session started, `max_message_size` its broker's limit. For the
    reading thread; any thread may call `close`.
    """

    _what = "reader"

    def __init__(
        self,
        pool: ConnectionPool,
        topic: str,
        options: ReaderOptions,
        budget: ReceiverBudget,
        *,
        is_stored: bool = False,
        drive: Drive | None = None,
    ) -> None:
        """With `is_stored` all wanted messages are in the topic: nobody waits for a new one.

        With `drive`, `subscribe` does not wait, and the reader is a client's.
        """
        lives = drive is not None
        super().__init__(pool, topic, lives=lives, max_pause=_MAX_PAUSE)
        self.start = LATEST_POSITION
        self.max_message_size = 0
        self._options = options
        self._is_stored = is_stored
        if lives:
            self._attachments = 1
        self._on_ready = None if drive is None else drive.on_ready
        self._start = wait_for_end if drive is None else drive.start
        # What subscribes, and was not looked at yet; and where to start.
        self._asked: Future[None] | None = None
        self._position = LATEST_POSITION
        self._name = unique_name(options.subscription_prefix)
        self._sessions = 0
        # That of the position.
        self._cluster = pool.cluster
        self._budget = budget
        self._budget.join()
        self._permits = Permits(options, budget)
        # The following are guarded by _lock.
        self._session: ConsumerSession | None = None
        self._queue: ReceiverQueue | None = None

    @property
    def queue(self) -> ReceiverQueue | None:
        """Deliveries; None while there is no session, or `subscribe` has not told of it yet."""
        return None if self._asked is not None else self._queue

    @property
    def attached(self) -> bool:
        """Whether there is a session, as far as `subscribe` has told."""
        return self.queue is not None

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    # --- subscribe ----------------------------------------------------------------------------

    def subscribe(self, position: Position) -> bool:
        """Start a session at a position, with any number of attempts.

        Returns false while that is under way, if it is driven. Raises permanent errors, and errors
        that lasted for the poll timeout (for the operation timeout, if there was never a session);
        a client's reader goes on for ever.
        """
        if self._asked is None:
            self._position = position
            loss, self._loss = self._loss, None
            self._asked = self._start(
                lambda end: self._attempts(self.attach_operation, end, loss), self._time_limit()
            )
        if not self._asked.done():
            return False
        asked, self._asked = self._asked, None
        asked.result()
        return True

    def begin_operation(self, position: Position, deadline: Deadline) -> Operation[None]:
        """Return an operation that starts the first session; `subscribe` then raises its error."""
        asked: Future[None] = Future()
        self._position = position
        try:
            yield from self._attempts(self.attach_operation, deadline)
        except PulsarError as error:
            asked.set_exception(error)
        else:
            asked.set_result(None)
        self._asked = asked

    @property
    def is_attaching(self) -> bool:
        """Whether `subscribe` can only wait."""
        return self._asked is not None and not self._asked.done()

    def _time_limit(self) -> float:
        """Seconds after which the lack of a session is an error."""
        if not self.was_attached:
            return self._pool.options.operation_timeout
        return FOREVER if self._lives else self._options.poll_timeout

    def can_pass(self, error: PulsarError) -> bool:
        """Whether another attempt may succeed; only a policy can refuse a name of its own."""
        if isinstance(error, SwitchedCluster):
            return False
        return isinstance(error, ConsumerBusy) or super().can_pass(error)

    def _register(
        self, connection: ClientConnection, deadline: Deadline
    ) -> Operation[tuple[ConsumerSession, ReceiverQueue]]:
        self._check_cluster(connection.address.cluster)
        position = self._position
        if position == LATEST_POSITION:
            # From here on "latest" is a fixed position: a reconnect loses nothing.
            last_id = yield from self._lookup.last_message_id_operation(self.topic, deadline)
            position = Position.after(last_id)

        def stop() -> None:
            session.close()

        queue = ReceiverQueue(self._budget, stop, self._on_ready)
        session = ConsumerSession(connection, self._request(position), queue)
        with self._lock:
            self._session = None if self._closed else session
        try:
            self._check_open()
            yield from session.subscribe(deadline)
        except BaseException:
            session.close()
            self.leave()
            raise
        self.start = position
        return session, queue

    def _find(self, deadline: Deadline) -> Operation[ClientConnection]:
        # The topic may not exist there.
        self._check_cluster(self._pool.cluster)
        return (yield from super()._find(deadline))

    def _check_cluster(self, cluster: int) -> None:
        if cluster != self._cluster:
            raise SwitchedCluster("the client has switched to another cluster", topic=self.topic)

    def _request(self, position: Position) -> SubscribeRequest:
        # A new name for each attempt: the broker may still hold a broken connection's consumer.
        self._sessions += 1
        return SubscribeRequest(
            self.topic,
            f"{self._name}-{self._sessions}",
            Position(*position[:2]),
            read_compacted=self._options.read_compacted,
            schema=self._options.schema,
            in_turn=True,
        )

    def _resume(self, session: tuple[ConsumerSession, ReceiverQueue]) -> None:
        begun, queue = session
        self.max_message_size = begun.connection.max_message_size
        try:
            begun.flow(self._permits.begin(self.max_message_size))
        except BaseException:
            self.leave()
            raise
        with self._lock:
            self._queue = None if self._closed else queue

    # --- while subscribed ---------------------------------------------------------------------

    def consumed(self, messages: int, size: int, left: int | None, *, more: bool) -> None:
        """Messages were taken from the queue; gives permits for more if `more` may come.

        `left` bytes or so are left of the range, None if that is unknown.
        """
        permits = self._permits.consumed(messages, size)
        session, queue = self._session, self._queue
        if permits and more and session is not None:
            # If the connection is lost, the queue will say so after its last block.
            with contextlib.suppress(PulsarError):
                session.flow(permits)
        if self._is_stored and queue is not None and messages:
            coming = self._permits.outstanding * size // messages
            # Nothing would end the wait for more bytes than are left.
            coming = coming if left is None else min(coming, left)
            queue.expect(coming if more else 0)

    def on_progress(self) -> None:
        """Requested messages arrived: the next pause starts short again."""
        self._backoff.reset()

    def ask_last_id(self) -> Future[Any] | None:
        """Have the topic's last message id queued; return that answer, None without a session."""
        session, queue = self._session, self._queue
        if session is None or queue is None:
            return None
        deadline = Deadline(self._pool.options.operation_timeout)
        answer = session.last_message_id(deadline)
        answer.add_done_callback(queue.put_last_id)
        return answer

    def is_known(self) -> bool:
        """Whether the broker confirms that it holds the consumer; raises permanent errors."""
        session = self._session
        if session is None:
            return False
        try:
            run(session.confirm, self._pool.options.operation_timeout)
        except PulsarError as error:
            if not self.can_pass(error):
                raise
            return False
        return True

    # --- leave --------------------------------------------------------------------------------

    def leave(self) -> None:
        """End the session, if there is one; another may follow."""
        with self._lock:
            session, self._session = self._session, None
            self._queue = None
        if session is not None:
            session.close()

    def leave_for_another(self) -> None:
        """End the session; the next one begins with the same broker, without a lookup."""
        session = self._session
        self.leave()
        if session is not None:
            self._moved_to = session.connection.address

    def on_ended(self, ended: Ended) -> None:
        """Prepare to resubscribe after a session ended."""
        session = self._session
        if ended.overrun:
            logger.info(
                "%s: the broker sent more than the memory limit allows; subscribing again",
                self.topic,
            )
            self.leave_for_another()
        else:
            self.leave()
        self._loss = ended.error or self._lost()
        if session is not None and ended.moved_to is not None:
            self._moved_to = self._pool.assigned_broker(ended.moved_to, session.connection)

    def close(self) -> Future[Any] | None:
        """End permanently; waiters raise. Returns the future of the broker's answer."""
        with self._lock:
            is_first = not self._closed
            self._closed = True
            session, self._session = self._session, None
            queue, self._queue = self._queue, None
        self._stop()
        if is_first:
            self._budget.leave()
        answer = None if session is None else session.close()
        if queue is not None:
            queue.on_disconnect(ClosedError("the reader is closed"))
        return answer
