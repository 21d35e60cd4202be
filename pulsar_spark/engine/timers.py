"""Timers: callbacks at given times, on one thread that never waits.

Deadlines of operations and sends, pauses between attempts and due batches all use their client
context's timers. A callback must be quick and must not wait; anything that waits is an operation
(see `operations`).
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

from pulsar_spark.errors import ClosedError
from pulsar_spark.logs import get_logger

logger = get_logger(__name__)

IDLE_SECONDS = 5.0
"""The thread ends after this long without a timer."""

_MANY_CANCELLED = 64


class Timer:
    """A scheduled call. It is forgotten once it was made, cancelled or dropped."""

    __slots__ = ("_dropped", "_function", "_owner", "due")

    def __init__(
        self,
        owner: Timers,
        due: float,
        function: Callable[[], object],
        dropped: Callable[[], object] | None,
    ) -> None:
        self.due = due
        self._owner = owner
        self._function: Callable[[], object] | None = function
        self._dropped = dropped

    @property
    def waits(self) -> bool:
        """Whether the call is still to be made."""
        return self._function is not None

    def cancel(self) -> None:
        """Prevent the call, unless it has started."""
        if self.take() is not None:
            self._owner.on_cancelled()

    def take(self, *, dropped: bool = False) -> Callable[[], object] | None:
        """Return the function to call, once, and drop all references."""
        function, self._function = self._function, None
        told, self._dropped = self._dropped, None
        return told if dropped else function


class Timers:
    """Calls functions at given times, on one daemon thread that exists while needed.

    Calls due at the same time are made in the order of scheduling; their errors are logged. `close`
    drops pending calls. Not for use in a forked child.
    """

    def __init__(self, name: str = "pulsar-spark-timers") -> None:
        self._name = name
        self._numbers = itertools.count()
        # The following are guarded by _wakeup.
        self._wakeup = threading.Condition()
        self._heap: list[tuple[float, int, Timer]] = []
        self._cancelled = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    def after(
        self,
        delay: float,
        function: Callable[[], object],
        dropped: Callable[[], object] | None = None,
    ) -> Timer:
        """Call `function`, which must be quick, after `delay` seconds; raises ClosedError.

        If the timers close first, `dropped` is called instead.
        """
        timer = Timer(self, time.monotonic() + max(delay, 0.0), function, dropped)
        with self._wakeup:
            if self._closed:
                raise ClosedError("the client is closed")
            entry = (timer.due, next(self._numbers), timer)
            heapq.heappush(self._heap, entry)
            if self._thread is None:
                self._start_thread(entry)
            elif self._heap[0] is entry:
                self._wakeup.notify()
        return timer

    def close(self, timeout: float = 5.0) -> None:
        """Drop the timers, and wait up to `timeout` seconds for a running call."""
        with self._wakeup:
            self._closed = True
            dropped = [timer for _, _, timer in sorted(self._heap)]
            self._heap.clear()
            thread = self._thread
            self._wakeup.notify()
        for timer in dropped:
            _call(timer.take(dropped=True))
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    @property
    def waiting(self) -> int:
        """The number of pending calls."""
        with self._wakeup:
            return sum(timer.waits for _, _, timer in self._heap)

    def on_cancelled(self) -> None:
        """Remove cancelled timers before they are the majority."""
        with self._wakeup:
            self._cancelled += 1
            if self._cancelled > max(_MANY_CANCELLED, len(self._heap) // 2):
                self._heap = [entry for entry in self._heap if entry[2].waits]
                heapq.heapify(self._heap)
                self._cancelled = 0

    def _start_thread(self, entry: tuple[float, int, Timer]) -> None:
        self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        try:
            self._thread.start()
        except BaseException:
            # The next caller tries again; this one gets the error.
            self._thread = None
            self._heap.remove(entry)
            heapq.heapify(self._heap)
            raise

    def _work(self) -> None:
        while (timer := self._next()) is not None:
            _call(timer.take())

    def _next(self) -> Timer | None:
        """Wait for the next due timer; None if the thread should end."""
        idle_until = time.monotonic() + IDLE_SECONDS
        with self._wakeup:
            while not self._closed:
                now = time.monotonic()
                if self._heap and self._heap[0][0] <= now:
                    return heapq.heappop(self._heap)[2]
                if not self._heap and now >= idle_until:
                    break
                until = self._heap[0][0] if self._heap else idle_until
                self._wakeup.wait(min(until - now, threading.TIMEOUT_MAX))
            self._thread = None
            return None


def _call(function: Callable[[], object] | None) -> None:
    if function is None:
        return
    try:
        function()
    except Exception:
        logger.exception("what a timer of the client called has failed")
