"""The reader that `PulsarClient.create_reader` returns: the official client's methods."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any

from pulsar_spark.client.arguments import seconds
from pulsar_spark.client.callbacks import call_logged
from pulsar_spark.client.message import Message, MessageId, messages_of
from pulsar_spark.client.values import MessageValues
from pulsar_spark.engine.closing import Closing
from pulsar_spark.engine.consumers.probe import Probe
from pulsar_spark.engine.consumers.reader import EntryReader
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.lookups.topic_discovery import TopicDiscovery
from pulsar_spark.engine.memory import ReceiverBudget
from pulsar_spark.engine.options import ReaderOptions
from pulsar_spark.engine.retry import Deadline
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

# Length of one wait; after each the reader checks whether it was closed.
_SLICE = 0.5
_CLOSE_SECONDS = 1.0
# Memory that a message costs besides its payload.
_MESSAGE_OVERHEAD = 1024

ReaderListener = Callable[["PulsarReader", Message], object]


class PartitionSource:
    """The messages of one topic partition, from a position on. For one thread."""

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        start: Position,
        values: MessageValues,
        options: ReaderOptions,
        budget: ReceiverBudget,
    ) -> None:
        self.topic = topic
        self._values = values
        # The rest of the last entry; messages are created when they are needed.
        self._ready: Iterator[Message] = iter(())
        self._error: PulsarError | None = None
        self._reader = EntryReader(context.pool, topic, start, None, options, budget=budget)

    def next(self, timeout: float) -> Message | None:
        """Return the next message, or None if there is none within `timeout` seconds."""
        if self._error is not None:
            raise self._error
        try:
            while (message := next(self._ready, None)) is None:
                entry = self._reader.next_entry(timeout)
                if entry is None:
                    return None
                self._ready = messages_of(entry, self._values)
            return message
        except CorruptMessage as error:
            self._error = error.with_context(topic=self.topic)
            raise self._error from error.__cause__

    def close(self) -> None:
        """Leave the broker."""
        self._reader.close()

    def begin_close(self) -> Future[Any] | None:
        """As `close`, without waiting: return the future of the broker's answer, if any."""
        return self._reader.begin_close()


class _Merged:
    """The messages of several partitions, each fetched by a thread of its own.

    Messages that nobody has taken yet count against the memory budget, as each queue does.
    """

    def __init__(self, sources: list[PartitionSource], budget: ReceiverBudget) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self._came = threading.Condition(self._lock)
        self._went = threading.Condition(self._lock)
        # The following are guarded by _lock.
        self._messages: deque[Message] = deque()
        self._bytes = 0
        self._error: Exception | None = None
        self._stopped = False
        # Belong to the thread that reads, and to `close`.
        self._sources: list[PartitionSource] = []
        self._threads: list[threading.Thread] = []
        budget.join()
        for source in sources:
            self.add(source)

    def add(self, source: PartitionSource) -> None:
        """Read one more partition; not after `close`."""
        thread = threading.Thread(
            target=self._pump, args=(source,), name=f"pulsar-reader-{source.topic}", daemon=True
        )
        self._sources.append(source)
        self._threads.append(thread)
        thread.start()

    @property
    def held(self) -> int:
        """Bytes of the messages that were not returned yet."""
        return self._bytes

    def next(self, timeout: float) -> Message | None:
        """As `PartitionSource.next`; raises one partition's error at once, and every time."""
        with self._lock:
            self._came.wait_for(lambda: self._messages or self._error or self._stopped, timeout)
            if self._error is not None:
                error = self._error
                raise error.with_context() if isinstance(error, PulsarError) else error
            if not self._messages:
                return None
            message = self._messages.popleft()
            self._bytes -= _size(message)
            self._went.notify_all()
            return message

    def close(self) -> None:
        """Stop all threads, which leave their brokers."""
        with self._lock:
            is_first, self._stopped = not self._stopped, True
            self._came.notify_all()
            self._went.notify_all()
        answers = [source.begin_close() for source in list(self._sources)]
        wait_for([answer for answer in answers if answer is not None], _CLOSE_SECONDS)
        deadline = Deadline(_CLOSE_SECONDS)
        for thread in list(self._threads):
            thread.join(deadline.remaining())
        if is_first:
            self._budget.leave()

    def _pump(self, source: PartitionSource) -> None:
        try:
            while not self._stopped:
                message = source.next(_SLICE)
                if message is not None:
                    self._put(message)
        except Exception as error:
            # Errors of any kind: the reader must learn why its thread ended.
            with self._lock:
                self._error = self._error or error
                self._came.notify_all()
        finally:
            source.close()

    def _put(self, message: Message) -> None:
        size = _size(message)
        with self._lock:
            self._went.wait_for(
                lambda: (
                    self._stopped or not self._messages or self._bytes + size <= self._budget.share
                )
            )
            self._messages.append(message)
            self._bytes += size
            self._came.notify()


def _size(message: Message) -> int:
    return len(message.data()) + _MESSAGE_OVERHEAD


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
        start: MessageId,
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
        self._listener: threading.Thread | None = None
        # Each partition's last message, when we last asked.
        self._ends: dict[str, wire.MessageIdAdv] = {}
        # Each partition's next position: after the last message that was returned.
        self._positions = self._resolve(start)
        self._source = self._open()

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
        while True:
            self._check_open()
            self._read_found()
            message = self._source.next(min(deadline.remaining(), _SLICE))
            if message is not None:
                found = message.message_id().unwrap()
                self._positions[message.topic_name()] = Position.after(found)
                return message
            if deadline.expired():
                raise OperationTimeout(
                    f"no message arrived within {timeout_millis} ms", topic=self._topic
                )

    def has_message_available(self) -> bool:
        """Whether the topic has a message that `read_next` has not returned yet."""
        self._check_open()
        self._read_found()
        if not self._is_behind():
            # All messages that we knew of are read: only the broker knows of more.
            self._ends = self._last_ids()
        return self._is_behind()

    def seek(self, messageid: MessageId | int) -> None:
        """Continue after a message, or at a publish time in milliseconds since the epoch.

        The message itself comes too if the reader was made with `start_message_id_inclusive`.
        The broker searches as if publish times were ordered.
        """
        self._check_open()
        self._read_found()
        if isinstance(messageid, MessageId):
            positions = self._resolve(messageid)
        elif isinstance(messageid, int):
            positions = self._at_time(messageid)
        else:
            raise OptionError("seek takes a MessageId or a time in milliseconds")
        self._source.close()
        self._positions = positions
        self._ends = {}
        source = self._open()
        with self._lock:
            self._source, closed = source, self._closed
        if closed:
            # Another thread called `close`, which knew the old source only.
            source.close()
            self._check_open()

    def close(self) -> None:
        """Stop reading. May be called twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            source, growth = self._source, self._growth
        if growth is not None:
            growth.close()
        self._on_close(self)
        source.close()
        if self._listener not in (None, threading.current_thread()):
            assert self._listener is not None
            self._listener.join(2 * _SLICE + 1.0)

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
            if not isinstance(self._source, _Merged):
                self._source = _Merged([self._source], self._budget)
            for topic in found:
                self._source.add(self._source_of(topic))

    def listen(self, listener: ReaderListener) -> None:
        """Pass every message to `listener`, on a thread of the reader, until it is closed."""
        name = f"pulsar-listener-{self._topic}"
        self._listener = threading.Thread(target=self._listen, args=(listener,), name=name)
        self._listener.daemon = True
        self._listener.start()

    def _listen(self, listener: ReaderListener) -> None:
        while not self._closed:
            try:
                message = self.read_next(int(_SLICE * 1000))
            except OperationTimeout:
                continue
            except ClosedError:
                return
            except Exception:
                logger.exception("reading %s for a listener has ended", self._topic)
                return
            call_logged(f"the listener of {self._topic}", listener, self, message)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the reader is closed", topic=self._topic)

    # --- positions ----------------------------------------------------------------------------

    def _is_behind(self) -> bool:
        ends = self._ends
        return any(Position.after(ends[topic]) > self._positions[topic] for topic in ends)

    def _open(self) -> PartitionSource | _Merged:
        sources = [self._source_of(topic) for topic in self._positions]
        return sources[0] if len(sources) == 1 else _Merged(sources, self._budget)

    def _source_of(self, topic: str) -> PartitionSource:
        return PartitionSource(
            self._context,
            topic,
            self._positions[topic],
            self._values,
            self._options,
            self._budget,
        )

    def _resolve(self, message_id: MessageId) -> dict[str, Position]:
        wanted = message_id.unwrap()
        if message_id == MessageId.latest:
            # Fix the current end now, so that messages published from now on are not missed.
            last_ids = self._last_ids()
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

    def _at_time(self, time: int) -> dict[str, Position]:
        questions = [(topic, time) for topic in self._partitions]
        answers = Probe(self._context.pool).first_entries_from_time(questions)
        ends = self._last_ids() if None in answers else {}
        positions: dict[str, Position] = {}
        for topic, answer in zip(self._partitions, answers, strict=True):
            if isinstance(answer, PulsarError):
                raise answer
            positions[topic] = Position.after(ends[topic]) if answer is None else answer.start
        return positions

    def _last_ids(self) -> dict[str, wire.MessageIdAdv]:
        found: dict[str, wire.MessageIdAdv] = {}
        answers = self._context.lookup.last_message_ids(
            self._partitions, read_compacted=self._options.read_compacted
        )
        for topic, answer in answers.items():
            if isinstance(answer, PulsarError):
                raise answer
            found[topic] = answer
        return found


# The official client's name.
Reader = PulsarReader
