"""The reader that `PulsarClient.create_reader` returns: the official client's methods."""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from pulsar_spark.client.arguments import seconds
from pulsar_spark.client.callbacks import call_logged
from pulsar_spark.client.exceptions import interruptible
from pulsar_spark.client.message import Message, MessageId, messages_of, messages_of_rows
from pulsar_spark.client.values import MessageValues
from pulsar_spark.engine.closing import Closing, weakly
from pulsar_spark.engine.consumers.probe import Probe
from pulsar_spark.engine.consumers.reader import EntryReader
from pulsar_spark.engine.consumers.reader_feed import Drive, SwitchedCluster
from pulsar_spark.engine.consumers.rows import MOST_ROWS, ReceivedRows, RowDecoder
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.deadline import Deadline, wait_until
from pulsar_spark.engine.lookups.topic_discovery import TopicDiscovery
from pulsar_spark.engine.memory import ReceiverBudget
from pulsar_spark.engine.operations import Steps, in_steps, settled
from pulsar_spark.engine.options import ReaderOptions
from pulsar_spark.errors import (
    ClosedError,
    CorruptMessage,
    OperationTimeout,
    OptionError,
    PulsarError,
)
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol import message_id as wire
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.protocol.topic_name import TopicName

logger = get_logger(__name__)

_CLOSE_SECONDS = 1.0
# How many messages come from one partition before the next one's turn.
_TURN = 100

ReaderListener = Callable[["PulsarReader", Message], object]


class PartitionSource:
    """The messages of one topic partition, from a position on. For one thread.

    `on_ready` is called, on any thread, when `next` may return one. `follows` as in `Drive`.
    `look_at` belongs to its owner: when to look at it though nothing came.
    """

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        start: Position,
        values: MessageValues,
        options: ReaderOptions,
        budget: ReceiverBudget,
        on_ready: Callable[[PartitionSource], None],
        *,
        follows: bool = False,
    ) -> None:
        self.topic = topic
        self.look_at = math.inf
        self._values = values
        # What was taken last, and is not returned yet.
        self._ready: Iterator[Message] = iter(())
        partition = TopicName.parse(topic).partition_index
        self._rows = RowDecoder(topic, partition, MOST_ROWS, max(budget.total, 1))
        # Up to when the reader was told how long the thread has waited.
        self._told = 0.0
        self._on_ready = on_ready
        drive = Drive(context.timers, weakly(self._on_reader), follows)
        self._reader = EntryReader(
            context.pool, topic, start, None, options, budget=budget, drive=drive
        )

    def next(self, waited: float) -> Message | None:
        """Return the next message, or None if there is none now.

        `waited` are the seconds that the thread has waited since the start.
        """
        self._reader.waited(waited - self._told)
        self._told = waited
        try:
            while (message := next(self._ready, None)) is None:
                found = self._reader.next_rows(self._rows, 0)
                if isinstance(found, ReceivedRows):
                    self._ready = iter(messages_of_rows(found, self._values))
                elif found is not None:
                    self._ready = messages_of(found, self._values)
                elif self._reader.ready_in() > 0:
                    return None
            return message
        except CorruptMessage as error:
            raise error.with_context(topic=self.topic) from error.__cause__

    @property
    def position(self) -> Position:
        """What is before it was read, whether or not it was a message."""
        return self._reader.position

    def _on_reader(self) -> None:
        self._on_ready(self)

    def ready_in(self) -> float:
        """Seconds after which to call `next` again though nothing comes."""
        return self._reader.ready_in()

    def skip(self) -> bool:
        """Go on behind an entry that `next` could not read; returns whether it can go on."""
        return self._reader.skip()

    def begin_close(self) -> Future[Any] | None:
        """Leave the broker, without waiting: return the future of its answer, if any."""
        return self._reader.begin_close()


class _Sources:
    """The partitions of a reader, which take turns. For one thread; any may `wake` or `close`.

    `on_ready`, if there is one, is told of all that ends a `wait`.
    """

    def __init__(self, on_ready: Callable[[], None] | None = None) -> None:
        self._on_ready = on_ready
        self._came = threading.Condition()
        # The following are guarded by _came: the sources that may have a message, in turn.
        self._ready: OrderedDict[PartitionSource, None] = OrderedDict()
        self._woken = False
        self._closed = False
        # The following belong to the reading thread: the source whose turn it is, and for how many
        # more messages.
        self._sources: list[PartitionSource] = []
        self._turn: PartitionSource | None = None
        self._left = 0
        self._error: Exception | None = None
        # How long it has waited, and a heap of when to look at which source though nothing came.
        self._waited = 0.0
        self._due: list[tuple[float, int, PartitionSource]] = []
        self._numbers = itertools.count()

    def add(self, source: PartitionSource) -> None:
        """Read one more partition; not after `close`."""
        self._sources.append(source)
        self.on_ready(source)

    def on_ready(self, source: PartitionSource) -> None:
        """A source may have a message; on any thread."""
        with self._came:
            self._ready[source] = None
            self._came.notify()
        self._tell()

    def wake(self) -> None:
        """End a wait."""
        with self._came:
            self._woken = True
            self._came.notify()
        self._tell()

    def _tell(self) -> None:
        if self._on_ready is not None:
            self._on_ready()

    def positions(self) -> dict[str, Position]:
        """How far each partition was read."""
        return {source.topic: source.position for source in self._sources}

    def next(self) -> Message | None:
        """Return the next message, or None if there is none now.

        Raises one partition's error at once, and every time.
        """
        if self._error is not None:
            error = self._error
            raise error.with_context() if isinstance(error, PulsarError) else error
        try:
            while (source := self._turn or self._next_turn()) is not None:
                message = source.next(self._waited)
                if message is not None:
                    self._count(source)
                    return message
                self._turn = None
                self._look_later(source)
        except Exception as error:
            # Whatever it is: it must not be taken for the end of the messages.
            self._error = error
            raise
        return None

    def _next_turn(self) -> PartitionSource | None:
        with self._came:
            self._turn = self._ready.popitem(last=False)[0] if self._ready else None
        self._left = _TURN
        return self._turn

    def _count(self, source: PartitionSource) -> None:
        self._left -= 1
        if not self._left:
            self._turn = None
            self.on_ready(source)

    def _look_later(self, source: PartitionSource) -> None:
        # A time that is too early costs a look, so a later one replaces it only then.
        due = time.monotonic() + source.ready_in()
        if due < source.look_at:
            source.look_at = due
            heapq.heappush(self._due, (due, next(self._numbers), source))

    def skip(self) -> bool:
        """Go on behind the entry that the last error is about; returns whether that can be."""
        if self._turn is None or not self._turn.skip():
            return False
        self._error = None
        return True

    def wait(self, deadline: Deadline) -> None:
        """Wait until `next` may return a message, until `wake` or `close`, or the deadline."""
        started = time.monotonic()
        until = Deadline(min(deadline.remaining(), self.due_in()))
        with self._came:
            wait_until(self._came, lambda: self._ready or self._woken or self._closed, until)
        self.waited_since(started)

    def due_in(self) -> float:
        """Seconds after which `next` may return a message though nothing wakes."""
        return max(self._due[0][0] - time.monotonic(), 0.0) if self._due else math.inf

    def waited_since(self, started: float) -> None:
        """The reading thread has waited since then (monotonic clock), until now."""
        with self._came:
            self._woken = False
            now = time.monotonic()
            self._waited += now - started
            while self._due and self._due[0][0] <= now:
                at, _, source = heapq.heappop(self._due)
                if at == source.look_at:
                    source.look_at = math.inf
                    self._ready[source] = None

    def closing(self) -> Steps[None]:
        """Return steps that leave the brokers; a thread that waits is woken."""
        yield from settled(self.leave(), _CLOSE_SECONDS)

    def leave(self) -> list[Future[Any] | None]:
        """Leave the brokers, without waiting; return their answers."""
        with self._came:
            self._closed = True
            self._came.notify_all()
        self._tell()
        return [source.begin_close() for source in list(self._sources)]


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
        self._partitions = partitions
        self._values = values
        self._options = options
        self._budget = budget
        self._inclusive = inclusive
        self._on_close = on_close
        self._lock = threading.Lock()
        # Guarded by _lock, as is the choice of the current source.
        self._closed = False
        self._growth: TopicDiscovery | None = None
        # Partitions that were found, and are not read yet.
        self._found: list[str] = []
        self._listener: ReaderListener | None = None
        self._thread: threading.Thread | None = None
        # Each partition's last message, when we last asked.
        self._ends: dict[str, wire.MessageIdAdv] = {}
        # A message that `has_message_available` has found.
        self._ahead: Message | None = None
        # Told when there may be a message, and at the end.
        self._wake: Callable[[], None] | None = None
        # Where reading of each partition began.
        self._positions: dict[str, Position] = {}
        self._sources = _Sources()

    def _starting(self, start: MessageId) -> Steps[None]:
        """Return steps that begin to read after a message, or with it if the reader says so."""
        cluster = self._context.pool.cluster
        self._positions = yield from self._resolving(start)
        self._sources = self._open()
        if cluster != self._context.pool.cluster:
            self._begin_again()

    def topic(self) -> str:
        """The full name of the topic."""
        return self._topic

    def is_connected(self) -> bool:
        """Whether the reader is open; it reconnects automatically."""
        return not self._closed and not self._context.closed

    def read_next(self, timeout_millis: int | None = None) -> Message:
        """Return the next message; wait for it, at most `timeout_millis`.

        Raises OperationTimeout if no message arrived, CorruptMessage for one that cannot be read,
        ClosedError after `close`, and the broker's error.
        """
        deadline = Deadline(seconds(timeout_millis))
        while (message := self._try_read()) is None:
            if deadline.expired():
                raise OperationTimeout(
                    f"no message arrived within {timeout_millis} ms", topic=self._topic
                )
            with interruptible:
                self._sources.wait(deadline)
        return message

    def _wake_with(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, on any thread, when `_try_read` may return or raise something."""
        self._wake = wake

    def _on_ready(self) -> None:
        if self._wake is not None:
            self._wake()

    def _try_read(self) -> Message | None:
        """Return the next message, None if there is none now. Raises as `read_next`."""
        self._check_open()
        self._read_found()
        message, self._ahead = self._ahead, None
        if message is not None:
            return message
        try:
            return self._sources.next()
        except SwitchedCluster:
            self._begin_again()
        return self._sources.next()

    def _begin_again(self) -> None:
        """Read all partitions from their beginning: positions belong to another cluster."""
        logger.warning(
            "%s: the client uses another cluster now, where the topic is read from its beginning",
            self._topic,
        )
        self._positions = dict.fromkeys(self._partitions, EARLIEST_POSITION)
        self._ends = {}
        sources = self._open(follows=True)
        with self._lock:
            before, self._sources, closed = self._sources, sources, self._closed
        before.leave()
        if closed:
            sources.leave()

    @interruptible
    def has_message_available(self) -> bool:
        """Whether the topic has a message that `read_next` has not returned yet.

        Waits until the topic is read to its end, or to the next message: what it ends with may be a
        part of a message that its producer has not finished. Raises OperationTimeout, and the
        broker's error.
        """
        self._check_open()
        deadline = Deadline(self._context.options.operation_timeout)
        is_fresh = False
        while not self._finds_message():
            if self._is_behind():
                deadline.check("reading to the end of the topic")
                self._sources.wait(deadline)
            elif is_fresh:
                return False
            else:
                in_steps(self._asking_ends())
                is_fresh = True
        return True

    def _asking_ends(self) -> Steps[None]:
        """Return steps that ask for the topic's end: all that is known is read."""
        self._ends = yield from self._asking_last_ids()

    def _finds_message(self) -> bool:
        """Whether `read_next` would return at once, be it with an error."""
        try:
            self._ahead = self._try_read()
        except ClosedError:
            raise
        except PulsarError:
            return True
        return self._ahead is not None

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
        self._read_found()
        cluster = self._context.pool.cluster
        if isinstance(messageid, MessageId):
            positions = yield from self._resolving(messageid)
        elif isinstance(messageid, int):
            positions = yield from self._asking_time(messageid)
        else:
            raise OptionError("seek takes a MessageId or a time in milliseconds")
        yield from self._sources.closing()
        self._positions = positions
        self._ends = {}
        self._ahead = None
        sources = self._open()
        with self._lock:
            self._sources, closed = sources, self._closed
        if cluster != self._context.pool.cluster:
            self._begin_again()
        if closed:
            # Another thread called `close`, which knew the old sources only.
            yield from sources.closing()
            self._check_open()

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
            sources, growth = self._sources, self._growth
        if growth is not None:
            growth.close()
        self._on_close(self)
        yield from sources.closing()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_SECONDS)

    def follow(self, growth: TopicDiscovery | None) -> None:
        """Be told of new partitions by `growth`, which is closed with the reader."""
        self._growth = growth

    def on_topics(self, found: set[str]) -> None:
        """Read new partitions from their beginning; for discoveries, on any thread."""
        with self._lock:
            known = {*self._partitions, *self._found}
            new = sorted(found - known)
            # A topic that was made anew without partitions is another one.
            self._found += [name for name in new if TopicName.parse(name).partition_index >= 0]
            self._sources.wake()

    def _read_found(self) -> None:
        """Begin to read the partitions that were found since the last call."""
        if not self._found:
            return
        with self._lock:
            if self._closed:
                return
            found, self._found = self._found, []
            self._partitions = [*self._partitions, *found]
            self._positions.update(dict.fromkeys(found, EARLIEST_POSITION))
            for topic in found:
                self._sources.add(self._source_of(topic, self._sources))

    def listen(self, listener: ReaderListener) -> None:
        """Pass every message to `listener`, on a thread of the reader, until it is closed."""
        self._listener = listener
        name = f"pulsar-listener-{self._topic}"
        self._thread = threading.Thread(
            target=_listen, args=(weakref.ref(self),), name=name, daemon=True
        )
        self._thread.start()

    def serve(self) -> _Sources | None:
        """Give the listener the messages that are there; return what to wait for, None at the end.

        What cannot be read is logged and left out: a listener cannot seek past it.
        """
        while (listener := self._listener) is not None and not self._closed:
            sources = self._sources
            try:
                message = self._try_read()
            except ClosedError:
                return None
            except Exception as error:
                if not (isinstance(error, PulsarError) and sources.skip()):
                    logger.exception("reading %s for a listener has ended", self._topic)
                    return None
                logger.error(
                    "%s: a message cannot be given to the listener: %s", self._topic, error
                )
                continue
            if message is None:
                return sources
            call_logged(f"the listener of {self._topic}", listener, self, message)
        return None

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the reader is closed", topic=self._topic)

    # --- positions ----------------------------------------------------------------------------

    def _due_in(self) -> float:
        """Seconds after which `_try_read` may return a message though nothing wakes."""
        return self._sources.due_in()

    def _waited_since(self, started: float) -> None:
        """The caller of `_try_read` has waited since then (monotonic clock), until now."""
        self._sources.waited_since(started)

    def _is_behind(self) -> bool:
        """Whether a partition is not read to the end that we know of."""
        read = self._sources.positions()
        return any(Position.after(end) > read[topic] for topic, end in self._ends.items())

    def _open(self, *, follows: bool = False) -> _Sources:
        sources = _Sources(weakly(self._on_ready))
        for topic in self._positions:
            sources.add(self._source_of(topic, sources, follows=follows))
        return sources

    def _source_of(
        self, topic: str, sources: _Sources, *, follows: bool = False
    ) -> PartitionSource:
        return PartitionSource(
            self._context,
            topic,
            self._positions[topic],
            self._values,
            self._options,
            self._budget,
            sources.on_ready,
            follows=follows,
        )

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
            if isinstance(answer, PulsarError):
                raise answer
            positions[topic] = Position.after(ends[topic]) if answer is None else answer.start
        return positions

    def _asking_last_ids(self) -> Steps[dict[str, wire.MessageIdAdv]]:
        found: dict[str, wire.MessageIdAdv] = {}
        answers = yield from self._context.lookup.asking_last_message_ids(
            self._partitions, read_compacted=self._options.read_compacted
        )
        for topic, answer in answers.items():
            if isinstance(answer, PulsarError):
                raise answer
            found[topic] = answer
        return found


def _listen(found: weakref.ref[PulsarReader]) -> None:
    """Serve a reader's listener, without keeping the reader while no message comes."""
    while (reader := found()) is not None and (sources := reader.serve()) is not None:
        del reader
        sources.wait(Deadline(None))


# The official client's name.
Reader = PulsarReader
