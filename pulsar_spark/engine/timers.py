"""Jobs that run later, on a few threads that exist only while there is something to do.

Batches that are due, reconnects of producers whose callers are elsewhere, and sends whose time
is up all need a thread of their own. One scheduler serves all producers of a client.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

from pulsar_spark.errors import ClosedError

logger = logging.getLogger(__name__)

MAX_THREADS = 8
"""Jobs may block for a while (a lookup, a connect): so many do at a time, others wait."""

IDLE_SECONDS = 5.0
"""A thread without a job for so long ends."""


class Timer:
    """A scheduled call, to be cancelled where it is not needed any more."""

    __slots__ = ("cancelled", "due", "function")

    def __init__(self, due: float, function: Callable[[], object]) -> None:
        self.due = due
        self.function: Callable[[], object] | None = function
        self.cancelled = False

    def cancel(self) -> None:
        """Keep the job from running, unless it does already."""
        self.cancelled = True
        # What the function refers to must not live until a far due time.
        self.function = None


class Timers:
    """Runs jobs at given times on at most `max_threads` daemon threads.

    Jobs of equal time start in the order in which they were given. An exception of a job is
    logged. `close()` drops what has not started. A scheduler is of no use in a forked child.
    """

    def __init__(self, name: str = "pulsar-spark", max_threads: int = MAX_THREADS) -> None:
        self._name = name
        self._max_threads = max_threads
        self._numbers = itertools.count()
        # The following are guarded by _wakeup.
        self._wakeup = threading.Condition()
        self._jobs: list[tuple[float, int, Timer]] = []
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False

    def call_later(self, delay: float, function: Callable[[], object]) -> Timer:
        """Run `function` in `delay` seconds; raises ClosedError after `close`."""
        timer = Timer(time.monotonic() + max(delay, 0.0), function)
        with self._wakeup:
            if self._closed:
                raise ClosedError("the client is closed")
            heapq.heappush(self._jobs, (timer.due, next(self._numbers), timer))
            if self._idle:
                self._wakeup.notify()
            elif len(self._threads) < self._max_threads:
                self._start_thread()
        return timer

    def close(self, timeout: float = 5.0) -> None:
        """Drop the waiting jobs and wait up to `timeout` seconds for the running ones."""
        deadline = time.monotonic() + timeout
        with self._wakeup:
            self._closed = True
            self._jobs.clear()
            self._wakeup.notify_all()
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0.0))

    @property
    def threads(self) -> int:
        """Threads that exist now."""
        with self._wakeup:
            return len(self._threads)

    def _start_thread(self) -> None:
        number = next(self._numbers)
        thread = threading.Thread(target=self._work, name=f"{self._name}-{number}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _work(self) -> None:
        while (timer := self._next_job()) is not None:
            function, timer.function = timer.function, None
            if function is None:
                continue
            try:
                function()
            except Exception:
                logger.exception("a background job of the client failed")
            # The loop would keep the last job's objects alive while it waits for the next.
            del function, timer

    def _next_job(self) -> Timer | None:
        idle_until = time.monotonic() + IDLE_SECONDS
        with self._wakeup:
            while not self._closed:
                now = time.monotonic()
                while self._jobs and self._jobs[0][2].cancelled:
                    heapq.heappop(self._jobs)
                if self._jobs and self._jobs[0][0] <= now:
                    timer = heapq.heappop(self._jobs)[2]
                    self._pass_on()
                    return timer
                # One thread has to stay while a job waits for its time.
                if now >= idle_until and (not self._jobs or self._idle):
                    break
                until = self._jobs[0][0] if self._jobs else idle_until
                if self._idle:
                    until = min(until, idle_until)
                self._idle += 1
                self._wakeup.wait(max(until - now, 0.001))
                self._idle -= 1
            with contextlib.suppress(KeyError):
                self._threads.remove(threading.current_thread())
            return None

    def _pass_on(self) -> None:
        """Leave a thread behind that sees to the next job while this one runs its own."""
        if not self._jobs:
            return
        if self._idle:
            self._wakeup.notify()
        elif len(self._threads) < self._max_threads:
            self._start_thread()
