"""The memory limits of one client: what its producers and its receiver queues may hold."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Protocol

from pulsar_spark.engine.deadline import Deadline, at_a_time
from pulsar_spark.errors import ClosedError, ProducerQueueFull
from pulsar_spark.protocol.chunks import ChunkMemory

# A sender that waits this long for memory has the batches of all producers sent.
_PATIENCE = 0.05
# The queue of a reader that fetches chunks gets this part of the budget.
_FETCHING_PART = 8
# Whoever waits to fetch chunks looks so often whether it was closed.
_SLICE = 0.2
# How much freed memory a process keeps at most.
_KEPT_BYTES = 32 * 1024 * 1024


@cache
def keep_freed_memory() -> None:
    """Have the C library keep some freed memory for what is received next, in the whole process.

    glibc gives memory back to the kernel beyond twice the largest block that was freed so far, and
    this block, which is never touched, costs nothing. Without it, what each read and each record
    batch need are fresh pages: a tenth of the CPU of reading messages of 1 KB. But all that the
    process frees in blocks of up to half of this size stays with it longer, so only processes that
    belong to Spark's tasks and those whose user wants it do so.
    """
    # A limit on address space (spark.executor.pyspark.memory) can leave no room for it.
    with suppress(MemoryError):
        bytes(_KEPT_BYTES // 2)


class Flushable(Protocol):
    """Reserves memory for unsent messages, and can be asked to send them."""

    def trigger_flush(self) -> None:
        """Send everything as soon as possible, without blocking. Called on any thread."""


class ProducerBudget:
    """Bytes that a client's producers share for their unacknowledged messages.

    A message larger than the whole budget is accepted if nothing else is pending. Waiting senders
    continue at a low mark, so that not every receipt wakes them.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._freed = threading.Condition()
        # The following are guarded by _freed.
        self.used = 0
        """Bytes that are reserved now."""
        self._wake_at = -1
        self._waiting = 0
        self._flushables: weakref.WeakSet[Flushable] = weakref.WeakSet()

    def add(self, flushable: Flushable) -> None:
        """Register someone whose messages are sent when memory is short."""
        with self._freed:
            self._flushables.add(flushable)

    def try_reserve(self, size: int) -> bool:
        """Reserve bytes if there is room, without waiting."""
        with self._freed:
            if self.used and self.used + size > self.limit:
                return False
            self.used += size
            return True

    def full(self, topic: str) -> ProducerQueueFull:
        """Return the error of whoever finds no room, and does not wait for it."""
        return ProducerQueueFull(
            f"the messages that wait for a receipt fill the client's memory ({self.limit} bytes)",
            "Wait for some of them.",
            topic=topic,
        )

    def reserve(self, size: int, deadline: float, given_up: Callable[[], bool]) -> bool:
        """Wait for room for `size` bytes, until `deadline` (monotonic clock).

        Returns False if there was none, or if `given_up()` became true; whoever makes it true calls
        `wake`.
        """
        flushed = False
        while True:
            with self._freed:
                while self.used and self.used + size > self.limit:
                    remaining = deadline - time.monotonic()
                    if remaining <= 0 or given_up():
                        return False
                    if not self._wait(size, at_a_time(remaining), flushed):
                        break
                else:
                    self.used += size
                    return True
                flushables = list(self._flushables)
            # Receipts alone may not free enough: unsent batches must be sent.
            flushed = True
            for flushable in flushables:
                flushable.trigger_flush()

    def _wait(self, size: int, seconds: float, flushed: bool) -> bool:
        """Wait for room; return False when it is time to have others send."""
        low = max(min(self.limit - size, self.limit * 3 // 4), 0)
        self._wake_at = max(self._wake_at, low)
        self._waiting += 1
        woken = self._freed.wait(seconds if flushed else min(seconds, _PATIENCE))
        self._waiting -= 1
        if not self._waiting:
            self._wake_at = -1
        return woken or flushed

    def release(self, size: int) -> None:
        """Release reserved bytes; a negative size reserves more, even without room."""
        with self._freed:
            self.used -= size
            if self._waiting and self.used <= self._wake_at:
                self._freed.notify_all()

    def wake(self) -> None:
        """Let all waiting senders check whether to give up."""
        with self._freed:
            self._freed.notify_all()


class ReceiverBudget:
    """Bytes that a client's receiver queues and incomplete messages may hold. Thread-safe.

    Queues have equal shares. A share shrinks when others join; a queue that is now too full
    requests no more. Incomplete chunked messages, in `chunks`, may have half of the budget, which
    the queues then lack: what was requested for them still fits. One message alone may have all of
    it. Chunks that did not fit are fetched again, one message at a time.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.chunks = ChunkMemory(self._most_chunks, threading.Lock())
        self._fetching = threading.Lock()
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._members = 0

    @property
    def share(self) -> int:
        """The size of one share in bytes."""
        left = self.total - min(self.chunks.held, self._most_chunks())
        return max(left // max(self._members, 1), 1)

    def _most_chunks(self) -> int:
        return self.total // 2

    @contextmanager
    def fetching(
        self, is_closed: Callable[[], bool], seconds: float | None = None
    ) -> Iterator[ReceiverBudget]:
        """Wait for the turn to fetch one message's chunks; yield the budget of their queue.

        Raises OperationTimeout after `seconds`, ClosedError if `is_closed`.
        """
        deadline = Deadline(seconds)
        while not self._fetching.acquire(timeout=min(deadline.remaining(), _SLICE)):
            if is_closed():
                raise ClosedError("the consumer is closed")
            deadline.check("the fetching of other chunked messages")
        try:
            size = self.total // _FETCHING_PART
            with self.chunks.reserved(size):
                yield ReceiverBudget(max(size, 1))
        finally:
            self._fetching.release()

    def join(self) -> None:
        """Take a share, until `leave`."""
        with self._lock:
            self._members += 1

    def leave(self) -> None:
        """Give a share back to the others."""
        with self._lock:
            self._members -= 1
