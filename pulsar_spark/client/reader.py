"""The reader that `PulsarClient.create_reader` returns: the official client's methods."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from pulsar_spark.client.arguments import publish_time, seconds
from pulsar_spark.client.callbacks import CallbackThread
from pulsar_spark.client.exceptions import interruptible
from pulsar_spark.client.incoming import IncomingMessages
from pulsar_spark.client.listening import Listening
from pulsar_spark.client.message import Message, MessageId
from pulsar_spark.client.values import MessageValues
from pulsar_spark.engine.closing import Closing, weakly
from pulsar_spark.engine.consumers.acknowledgments import EntryKey
from pulsar_spark.engine.consumers.delivery import Delivery
from pulsar_spark.engine.consumers.inbox import Inbox
from pulsar_spark.engine.consumers.probe import Probe
from pulsar_spark.engine.consumers.reader import EntryReader
from pulsar_spark.engine.consumers.reader_feed import Drive, SwitchedCluster
from pulsar_spark.engine.consumers.rows import MOST_ROWS, ReceivedRows, RowDecoder
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.lookups.topic_discovery import TopicDiscovery
from pulsar_spark.engine.memory import ReceiverBudget
from pulsar_spark.engine.operations import Steps, in_steps, settled, value_of
from pulsar_spark.engine.options import ReaderOptions
from pulsar_spark.engine.retry import Backoff, can_pass
from pulsar_spark.engine.timers import Timer
from pulsar_spark.errors import (
    ClosedError,
    OperationTimeout,
    OptionError,
    PulsarError,
)
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, MessageIdAdv, Position
from pulsar_spark.protocol.topic_name import TopicName

logger = get_logger(__name__)

T = TypeVar("T")

_CLOSE_SECONDS = 1.0
_MAX_PAUSE = 5.0

ReaderListener = Callable[["PulsarReader", Message], object]


class PartitionSource:
    """The messages of one topic partition, from a position on, for an inbox.

    Whoever takes from the inbox drives it; any thread may call `begin_close`. `cluster` is that of
    the position: in another one it reads from the beginning.
    """

    tracks_messages = False

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        start: Position,
        cluster: int,
        options: ReaderOptions,
        budget: ReceiverBudget,
        inbox: Inbox,
    ) -> None:
        self.topic = topic
        self.generation = 0
        self.has_more = True
        self.ended = False
        """Whether an error has ended it that nothing can lead past."""
        self.end: Position | None = None
        """Behind the topic partition's last message, when that was last asked."""
        self._context = context
        self._options = options
        self._budget = budget
        self._inbox = inbox
        partition = TopicName.parse(topic).partition_index
        self._rows = RowDecoder(topic, partition, MOST_ROWS, max(budget.total, 1))
        # Pauses after errors that can pass.
        self._backoff = Backoff(maximum=_MAX_PAUSE)
        # Looks again though nothing came.
        self._timer: Timer | None = None
        # Since when nothing was there.
        self._empty_since: float | None = None
        self._reader = self._reader_from(start)
        if cluster != context.pool.cluster:
            self._begin_again()
        inbox.put(self)

    def _reader_from(self, start: Position) -> EntryReader:
        drive = Drive(self._context.timers, weakly(self._on_ready))
        return EntryReader(
            self._context.pool,
            self.topic,
            start,
            None,
            self._options,
            budget=self._budget,
            drive=drive,
        )

    def _on_ready(self) -> None:
        self._inbox.put(self)

    def _begin_again(self) -> None:
        logger.warning(
            "%s: the client uses another cluster now, where the topic is read from its beginning",
            self.topic,
        )
        self._reader.begin_close()
        self._reader = self._reader_from(EARLIEST_POSITION)
        self.end = None
        if self.generation:
            # Another thread has closed the one before.
            self._reader.begin_close()

    @property
    def is_behind(self) -> bool:
        """Whether it is not read to the end that is known."""
        return self.end is not None and self.end > self._reader.position

    def take(self) -> Delivery | None:
        """Take the next messages, None if there are none now.

        Goes on behind an entry that cannot be read, and tries again after an error that can pass;
        raises any other error again and again.
        """
        if self._empty_since is not None:
            self._reader.waited(time.monotonic() - self._empty_since)
            self._empty_since = None
        try:
            return self._take()
        except PulsarError as error:
            self.has_more = self._reader.skip()
            if self.generation:
                return None
            self.ended = not self.has_more
            if self.has_more and can_pass(error, lives=True):
                self.has_more = False
                self._look_again_in(self._backoff.next())
            raise

    def _take(self) -> Delivery | None:
        while not self.generation:
            try:
                found = self._reader.next_rows(self._rows, 0)
            except SwitchedCluster:
                self._begin_again()
                continue
            self.has_more = found is not None
            if self.has_more:
                self._backoff.reset()
            if isinstance(found, ReceivedRows):
                return Delivery(self, found, 0, 0, found.rows, found.held)
            if found is not None:
                return Delivery(self, found, -1, 0, max(len(found.wanted), 1), len(found.payload))
            if (seconds := self._reader.ready_in()) > 0:
                self._look_again_in(seconds)
                break
        return None

    def track(self, message_id: MessageIdAdv) -> None:
        """Nobody acknowledges messages."""

    def finish(self, delivery: Delivery) -> None:
        """Permits were given back when the messages were taken."""

    def discard(self, key: EntryKey, error: PulsarError) -> None:
        """Nobody acknowledges messages."""

    def _look_again_in(self, seconds: float) -> None:
        now = self._empty_since = time.monotonic()
        timer = self._timer
        # A time that is too early costs a look, so a later one replaces it only then.
        if seconds < math.inf and not (timer and timer.waits and timer.due <= now + seconds):
            self._stop_timer()
            self._timer = self._context.timers.after(seconds, self._on_ready)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def begin_close(self) -> Future[Any] | None:
        """Leave the broker, without waiting: return the future of its answer, if any."""
        self.generation = 1
        self._stop_timer()
        return self._reader.begin_close()


class PulsarReader(Closing):
    """Reads a topic, with all of its partitions, from a position on. Made by `create_reader`.

    Messages of one partition come in order. For one thread at a time; another thread may call
    `close`, which ends a waiting `read_next`.
    """

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        partitions: list[str],
        values: MessageValues,
        options: ReaderOptions,
        budget: ReceiverBudget,
        *,
        inclusive: bool,
        on_close: Callable[[PulsarReader], None],
    ) -> None:
        self._context = context
        self._topic = topic
        self._options = options
        self._budget = budget
        self._inclusive = inclusive
        self._on_close = on_close
        # Told when there may be a message, and at the end.
        self._wake: Callable[[], None] | None = None
        self._inbox = Inbox(weakly(self._on_ready))
        self._incoming = IncomingMessages(self._inbox, values, None, discard_corrupt=False)
        self._listening: Listening | None = None
        self._listener_thread = CallbackThread(f"pulsar-listener-{topic}")
        self._growth: TopicDiscovery | None = None
        self._lock = threading.Lock()
        # The following are guarded by _lock.
        self._closed = False
        self._partitions = partitions
        self._sources: dict[str, PartitionSource] = {}
        # What is raised until `seek` leads past it.
        self._error: Exception | None = None

    def _starting(self, start: MessageId) -> Steps[None]:
        """Return steps that begin to read after a message, or with it if the reader says so."""
        cluster = self._context.pool.cluster
        self._open((yield from self._resolving(start)), cluster)

    def topic(self) -> str:
        """The full name of the topic."""
        return self._topic

    def is_connected(self) -> bool:
        """Whether the reader is open; it reconnects automatically."""
        return not self._closed and not self._context.closed

    def read_next(self, timeout_millis: int | None = None) -> Message:
        """Return the next message; wait for it, at most `timeout_millis`.

        Raises OperationTimeout if no message arrived, CorruptMessage for one that cannot be read,
        ClosedError after `close`, the broker's error, and OptionError for a reader with a listener.
        """
        if self._listening is not None:
            raise OptionError("a reader with a reader_listener cannot call read_next")
        deadline = Deadline(seconds(timeout_millis))
        while (message := self._try_read()) is None:
            if not self._wait(deadline) and deadline.expired():
                raise OperationTimeout(
                    f"no message arrived within {timeout_millis} ms", topic=self._topic
                )
        return message

    @interruptible
    def _wait(self, deadline: Deadline) -> bool:
        return self._inbox.wait(deadline)

    def _wake_with(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, on any thread, when `_try_read` may return or raise something."""
        self._wake = wake

    def _on_ready(self) -> None:
        if self._wake is not None:
            self._wake()
        if self._listening is not None:
            self._listening.on_ready()

    def _try_read(self) -> Message | None:
        """Return the next message, None if there is none now. Raises as `read_next`."""
        return self._look(self._incoming.next)

    def _look(self, look: Callable[[], T]) -> T:
        """Look for a message; an error that cannot pass stays until `seek`, whatever it is."""
        self._check_open()
        if (known := self._error) is not None:
            raise known.with_context() if isinstance(known, PulsarError) else known
        try:
            return look()
        except Exception as error:
            if not self._may_pass(error):
                self._error = error
            raise

    def _may_pass(self, error: Exception) -> bool:
        """Whether an error is raised once, and what is read then can go on."""
        ended = any(source.ended for source in list(self._sources.values()))
        return isinstance(error, PulsarError) and can_pass(error, lives=True) and not ended

    @interruptible
    def has_message_available(self) -> bool:
        """Whether the topic has a message that `read_next` has not returned yet.

        Waits until the topic is read to its end, or to the next message: what it ends with may be a
        part of a message that its producer has not finished. Raises OperationTimeout, and the
        broker's error.
        """
        self._check_open()
        deadline = self._new_deadline()
        if self._comes(deadline):
            return True
        in_steps(self._asking_ends())
        return self._comes(deadline)

    def read_current(self) -> Iterator[Message]:
        """Yield what the topic has now, and what comes before that is read; not what comes later.

        Waits and raises as `has_message_available`, for each message.
        """
        with interruptible:
            asks = True
            while asks:
                in_steps(self._asking_ends())
                while self._reads_current() and self._comes(self._new_deadline()):
                    yield self.read_next()
                # Of another cluster, or a new partition.
                asks = any(source.end is None for source in list(self._sources.values()))
            self._check_open()

    def _reads_current(self) -> bool:
        """Whether something may be unread of what was there when the ends were asked."""
        return self._incoming.has_taken or self._is_behind()

    def _comes(self, deadline: Deadline) -> bool:
        """Whether there is a message; waits for it while a partition is not read to its end."""
        while not self._finds_message():
            if not self._is_behind():
                return False
            deadline.check("reading to the end of the topic")
            self._inbox.wait(deadline)
        return True

    def _new_deadline(self) -> Deadline:
        return Deadline(self._context.options.operation_timeout)

    def _asking_ends(self) -> Steps[None]:
        """Return steps that ask for the topic's end: all that is known is read."""
        ends = yield from self._asking_last_ids()
        for topic, source in list(self._sources.items()):
            if topic in ends:
                source.end = Position.after(ends[topic])

    def _finds_message(self) -> bool:
        """Whether `read_next` would return at once, be it with an error that stays."""
        try:
            return self._look(self._incoming.has_next)
        except PulsarError as error:
            if isinstance(error, ClosedError) or self._may_pass(error):
                raise
            return True

    @interruptible
    def seek(self, messageid: MessageId | int) -> None:
        """Continue after a message, or at a publish time in milliseconds since the epoch.

        The message itself comes too if the reader was made with `start_message_id_inclusive`.
        The broker searches as if publish times were ordered.
        """
        in_steps(self._seeking(messageid))

    def _seeking(self, messageid: MessageId | int) -> Steps[None]:
        """Return the steps of `seek`."""
        self._check_open()
        cluster = self._context.pool.cluster
        if isinstance(messageid, MessageId):
            positions = yield from self._resolving(messageid)
        else:
            positions = yield from self._asking_time(publish_time(messageid))
        leaving = self._leave()
        self._open(positions, cluster)
        yield from settled(leaving, _CLOSE_SECONDS)

    @interruptible
    def close(self) -> None:
        """Stop reading. May be called twice."""
        in_steps(self._closing())

    def _closing(self) -> Steps[None]:
        """Return the steps of `close`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._growth is not None:
            self._growth.close()
        self._on_close(self)
        self._inbox.close("reader")
        if self._listening is not None:
            self._listening.close()
        # Whatever interrupts the wait, the thread of the listener ends.
        try:
            yield from settled(self._leave(), _CLOSE_SECONDS)
        finally:
            self._listener_thread.close(_CLOSE_SECONDS)

    def follow(self, growth: TopicDiscovery | None) -> None:
        """Be told of new partitions by `growth`, which is closed with the reader."""
        self._growth = growth

    def on_topics(self, found: set[str]) -> None:
        """Read new partitions from their beginning; for discoveries, on any thread."""
        with self._lock:
            new = sorted(found.difference(self._partitions))
            # A topic that was made anew without partitions is another one.
            new = [name for name in new if TopicName.parse(name).partition_index >= 0]
            self._partitions = [*self._partitions, *new]
            self._add_sources({}, self._context.pool.cluster)

    def listen(self, listener: ReaderListener) -> None:
        """Pass every message to `listener`, on a thread of the reader, until it is closed.

        What cannot be read is logged and left out: a listener cannot seek past it.
        """
        self._listening = Listening(
            self._topic, self._incoming, partial(listener, self), self._listener_thread
        )
        self._listening.on_ready()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the reader is closed", topic=self._topic)

    # --- positions ----------------------------------------------------------------------------

    def _is_behind(self) -> bool:
        """Whether a partition is not read to the end that we know of."""
        return any(source.is_behind for source in list(self._sources.values()))

    def _open(self, positions: dict[str, Position], cluster: int) -> None:
        """Read all partitions from these positions of a cluster on."""
        with self._lock:
            self._check_open()
            self._error = None
            self._add_sources(positions, cluster)

    def _add_sources(self, positions: dict[str, Position], cluster: int) -> None:
        """Read the partitions that are not read yet; new ones from the beginning. Under _lock."""
        for topic in () if self._closed else self._partitions:
            if topic not in self._sources:
                self._sources[topic] = PartitionSource(
                    self._context,
                    topic,
                    positions.get(topic, EARLIEST_POSITION),
                    cluster,
                    self._options,
                    self._budget,
                    self._inbox,
                )

    def _leave(self) -> list[Future[Any] | None]:
        """Leave the brokers, without waiting; return their answers."""
        with self._lock:
            sources, self._sources = self._sources, {}
        return [source.begin_close() for source in sources.values()]

    def _resolving(self, message_id: MessageId) -> Steps[dict[str, Position]]:
        wanted = message_id.unwrap()
        if message_id == MessageId.latest:
            # Fix the current end now, so that messages published from now on are not missed.
            last_ids = yield from self._asking_last_ids()
            step = Position.before if self._inclusive else Position.after
            return {topic: step(last) for topic, last in last_ids.items()}
        if message_id == MessageId.earliest:
            return dict.fromkeys(self._partitions, EARLIEST_POSITION)
        if len(self._partitions) > 1 and wanted.partition >= 0:
            raise OptionError(
                "a message id names one partition, and the topic has several",
                "Make a reader of that partition, or begin at earliest, latest or a time.",
                topic=self._topic,
            )
        position = Position.before(wanted) if self._inclusive else Position.after(wanted)
        return dict.fromkeys(self._partitions, position)

    def _asking_time(self, time: int) -> Steps[dict[str, Position]]:
        questions = [(topic, time) for topic in self._partitions]
        answers = yield from Probe(self._context.pool).asking_from_time(questions)
        ends = (yield from self._asking_last_ids()) if None in answers else {}
        positions: dict[str, Position] = {}
        for topic, answer in zip(self._partitions, answers, strict=True):
            found = value_of(answer)
            positions[topic] = Position.after(ends[topic]) if found is None else found.start
        return positions

    def _asking_last_ids(self) -> Steps[dict[str, MessageIdAdv]]:
        answers = yield from self._context.lookup.asking_last_message_ids(
            self._partitions, read_compacted=self._options.read_compacted
        )
        return {topic: value_of(answer) for topic, answer in answers.items()}


# The official client's name.
Reader = PulsarReader
