"""The receiver queue: what a broker delivers to one consumer of a reader, in bounded memory.

Brokers count permits in messages, but memory is counted in bytes. So the message size is estimated
from what arrives, and permits follow it: hundreds of thousands for small messages in large
batches, a handful for large ones.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias

from google.protobuf.message import Message

from pulsar_spark.engine.connections.handlers import topic_migrated
from pulsar_spark.engine.memory import ReceiverBudget
from pulsar_spark.engine.options import ReaderOptions
from pulsar_spark.errors import PulsarError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import MessageBlock

BLOCK_OVERHEAD = 1024
"""Memory that a block costs besides its own."""

GATHERED = 256 * 1024
"""So many bytes are worth a read of their own; socket buffers hold more."""

GATHERED_SLOWLY = 768 * 1024
"""The same where bytes come slowly.

Measured: a backlog of small entries then costs a fifth less CPU in pure Python. Where entries come
faster, waiting for so many costs more speed than it saves CPU.
"""

_ENOUGH = 64 * 1024
"""With so many bytes in front of a new block, the reading thread has something to do meanwhile."""

_MANY_ENTRIES = 16
"""Blocks of fewer entries are not worth waiting for: it is the small ones that come piecemeal."""

_SETTLED = 1024 * 1024
"""A reader that has had fewer bytes may need only a few more, which should not wait.

How slowly they come is judged by so many, too.
"""

_SLOW = 48_000_000
"""Bytes a second: brokers send small entries more slowly from storage, and faster from memory."""


@dataclass(frozen=True, slots=True)
class Ended:
    """This consumer delivers nothing more.

    `error` is a lost connection's; `moved_to` is the broker's command that closed the consumer;
    with `overrun` the reader closed it, because more arrived than fits into memory.
    """

    error: PulsarError | None = None
    moved_to: pb.CommandCloseConsumer | None = None
    overrun: bool = False


@dataclass(frozen=True, slots=True)
class LastId:
    """The answer to GET_LAST_MESSAGE_ID, in order with the entries."""

    answer: Future[Any]


Item: TypeAlias = MessageBlock | Ended | LastId


class ReceiverQueue:
    """A ConsumerHandler that queues undecoded blocks for the reading thread.

    The queue never exceeds its share of the budget, except for a single larger block. If more
    arrives, it calls `stop` on the receive thread to close the consumer and drops what follows;
    queued blocks stay, and `Ended` comes after them. `on_ready` is called after each item.
    """

    def __init__(
        self,
        budget: ReceiverBudget,
        stop: Callable[[], None],
        on_ready: Callable[[], object] | None = None,
    ) -> None:
        self._budget = budget
        self._stop = stop
        self._on_ready = on_ready
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._coming = 0
        self._pace = _Pace()
        # Bytes put and taken; each is written by one thread only.
        self._put = 0
        self._taken = 0
        self._ended = False

    @property
    def queued_bytes(self) -> int:
        """Bytes of the blocks in the queue."""
        return self._put - self._taken

    @property
    def empty(self) -> bool:
        """Whether `get` would have to wait."""
        return self._items.empty()

    def get(self, timeout: float) -> Item | None:
        """Return the next item, None if none comes within `timeout` seconds."""
        try:
            if timeout <= 0:
                item = self._items.get_nowait()
            else:
                item = self._items.get(timeout=min(timeout, threading.TIMEOUT_MAX))
        except queue.Empty:
            return None
        if isinstance(item, MessageBlock):
            self._taken += memory_of(item)
        return item

    def expect(self, coming: int) -> None:
        """Tell how many bytes of what is stored can come without further permits, at most.

        That includes what has come since. Without it nothing waits: the next message may be new.
        """
        self._coming = coming

    def put_last_id(self, answer: Future[Any]) -> None:
        """Queue the answer to a question for the last message."""
        self._add(LastId(answer))

    def _add(self, item: Item) -> None:
        self._items.put(item)
        if self._on_ready is not None:
            self._on_ready()

    def on_messages(self, block: MessageBlock) -> int:
        """Queue a block, or end if there is no room for it.

        In a range that is stored, for more of which the broker has permits, the next one can wait
        while the reading thread has others in front of it, and always if the range is long.
        """
        if self._ended:
            return 0
        block = block.alone()
        size = memory_of(block)
        queued = self._put - self._taken
        if queued and queued + size > self._budget.share:
            self._end(Ended(overrun=True))
            self._stop()
            return 0
        self._put += size
        self._add(block)
        self._pace.add(size)
        wanted = GATHERED_SLOWLY if self._pace.is_slow else GATHERED
        can_wait = block.count >= _MANY_ENTRIES if queued >= _ENOUGH else self._put >= _SETTLED
        return wanted if can_wait and self._coming >= 2 * wanted else 0

    def on_close(self, command: pb.CommandCloseConsumer) -> None:
        """End: the broker closed the consumer."""
        self._end(Ended(moved_to=command))

    def on_command(self, body: Message) -> None:
        """End if the topic moved to another cluster; ignore other commands."""
        if isinstance(body, pb.CommandTopicMigrated):
            self._end(Ended(error=topic_migrated()))

    def on_disconnect(self, error: PulsarError) -> None:
        """End: the connection is lost."""
        self._end(Ended(error=error))

    def _end(self, item: Ended) -> None:
        if not self._ended:
            self._ended = True
            self._add(item)


class _Pace:
    """Whether bytes come slowly; for the receive thread."""

    def __init__(self) -> None:
        self.is_slow = False
        self._bytes = 0
        self._since = time.monotonic()

    def add(self, size: int) -> None:
        """So many bytes have come."""
        self._bytes += size
        if self._bytes >= _SETTLED:
            now = time.monotonic()
            self.is_slow = self._bytes < _SLOW * (now - self._since)
            self._bytes, self._since = 0, now


def memory_of(block: MessageBlock) -> int:
    """Return the bytes of memory that a queued block costs."""
    return len(block.data) + BLOCK_OVERHEAD


# Request half of the memory: entry sizes vary, and brokers may exceed permits a little.
_FILL = 0.5
# The estimate rises at once and falls slowly: larger entries than expected are the risk.
_DECAY = 0.98
_MAX_PERMITS = 5_000_000


class Permits:
    """The permits of a reader's consumer; for the reading thread.

    Before the first message, each is assumed to be as large as the broker allows, or `expected`
    bytes.
    """

    def __init__(
        self,
        options: ReaderOptions,
        budget: ReceiverBudget,
        expected: int | None = None,
    ) -> None:
        self._options = options
        self._budget = budget
        self._max_message_size = 0
        self._expected = expected
        self._bytes_per_message: float | None = None
        self.outstanding = 0
        """Messages that may still arrive, or have arrived and were not consumed.

        Below 0 if the broker has exceeded its permits.
        """

    def begin(self, max_message_size: int) -> int:
        """Return the initial permits of a new consumer."""
        self._max_message_size = max_message_size
        self.outstanding = self._target()
        return self.outstanding

    def consumed(self, messages: int, size: int) -> int:
        """Messages were consumed; return how many permits to give now, often 0."""
        self.observe(messages, size)
        self.outstanding -= messages
        target = self._target()
        if self.outstanding > target // 2:
            return 0
        permits = min(target - self.outstanding, _MAX_PERMITS)
        self.outstanding += permits
        return permits

    def observe(self, messages: int, size: int) -> None:
        """Update the estimated message size."""
        each = (size + BLOCK_OVERHEAD) / messages
        known = self._bytes_per_message
        self._bytes_per_message = each if known is None else max(each, known * _DECAY)

    def _target(self) -> int:
        options = self._options
        each = self._bytes_per_message
        if each is None:
            expected = self._max_message_size if self._expected is None else self._expected
            first = self._budget.share // (expected + BLOCK_OVERHEAD)
            return max(1, min(first, options.receiver_queue_size))
        target = max(1, min(int(self._budget.share * _FILL / each), _MAX_PERMITS))
        return target if options.auto_scale else min(target, options.receiver_queue_size)
