"""The inbox of a consumer: messages from all of its topic partitions."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from pulsar_spark.engine.consumers.delivery import Delivery, MessageSource
from pulsar_spark.engine.deadline import Deadline, wait_until
from pulsar_spark.errors import ClosedError, PulsarError

# How many messages are taken from one consumer before the next one's turn.
_TURN = 100


class Inbox:
    """Which consumers have messages, in turn, and who waits for them.

    `on_ready` is called, on any thread, when there is a message or an error. Only one thread at a
    time may take messages; everything else is thread-safe.
    """

    def __init__(self, on_ready: Callable[[], None] | None = None) -> None:
        self._on_ready = on_ready
        self._came = threading.Condition()
        # The following are guarded by _came.
        self._ready: deque[MessageSource] = deque()
        self._queued: set[MessageSource] = set()
        self._error: PulsarError | None = None
        self._waiting = 0
        self._wakes = 0
        # Used by the taking thread only: whose turn it is, and for how many more messages.
        self._turn: MessageSource | None = None
        self._left = 0

    def put(self, consumer: MessageSource) -> None:
        """A consumer has messages."""
        with self._came:
            if consumer not in self._queued:
                self._queued.add(consumer)
                self._ready.append(consumer)
                if self._waiting:
                    self._came.notify()
        if self._on_ready is not None:
            self._on_ready()

    def fail(self, error: PulsarError) -> None:
        """Set a permanent error, which everybody gets."""
        with self._came:
            self._error = self._error or error
            self._came.notify_all()
        if self._on_ready is not None:
            self._on_ready()

    def close(self, what: str = "consumer") -> None:
        """The consumer, or what else it is called, is closed; tell everybody."""
        with self._came:
            self._error = ClosedError(f"the {what} is closed")
            self._turn = None
            self._ready.clear()
            self._queued.clear()
            self._came.notify_all()

    def wake(self) -> None:
        """Wake another waiting thread: there are more messages."""
        if self._waiting:
            with self._came:
                self._wakes += 1
                self._came.notify()

    def wait(self, deadline: Deadline) -> bool:
        """Wait until there may be a message; false at the deadline."""
        with self._came:
            wakes = self._wakes
            self._waiting += 1
            try:
                return wait_until(
                    self._came,
                    lambda: self._has_some() or self._error or self._wakes != wakes,
                    deadline,
                )
            finally:
                self._waiting -= 1

    @property
    def over(self) -> bool:
        """Whether nothing is left but the permanent error."""
        return self._error is not None and not self._has_some()

    def check(self) -> None:
        """Raise the permanent error, if there is one."""
        if (error := self._error) is not None:
            raise error.with_context() from error.__cause__

    def next(self) -> Delivery | None:
        """Return the next delivery, from the consumers in turn, None if there is none.

        Raises the permanent error, or an unreadable entry's.
        """
        while (consumer := self._turn or self._next_turn()) is not None:
            try:
                delivery = consumer.take()
            except PulsarError:
                self._end_turn(consumer)
                raise
            if delivery is None:
                # If it gets more now, it is queued again.
                self._turn = None
                continue
            self._left -= delivery.cost
            if self._left <= 0:
                self._end_turn(consumer)
            return delivery
        self.check()
        return None

    def _next_turn(self) -> MessageSource | None:
        with self._came:
            if not self._ready:
                return None
            consumer = self._ready.popleft()
            self._queued.discard(consumer)
        self._turn, self._left = consumer, _TURN
        return consumer

    def _end_turn(self, consumer: MessageSource) -> None:
        self._turn = None
        with self._came:
            if consumer.has_more and consumer not in self._queued and self._error is None:
                self._queued.add(consumer)
                self._ready.append(consumer)

    def _has_some(self) -> bool:
        turn = self._turn
        return bool(self._ready) or (turn is not None and turn.has_more)
