"""Runs users' callbacks in order on one thread, so that they may block."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import Any

from pulsar_spark.engine.deadline import Deadline, result_within, wait_until
from pulsar_spark.engine.forks import fork_count
from pulsar_spark.errors import OperationTimeout, ProducerQueueFull
from pulsar_spark.logs import get_logger

logger = get_logger(__name__)

MAX_WAITING = 50_000
"""Maximum number of queued callbacks; then the sender waits."""


def call_logged(what: str, function: Callable[..., object], *arguments: Any) -> None:
    """Call a user's function on a thread of the client; what it raises, SystemExit too, is logged.

    `what` names it in the log.
    """
    try:
        function(*arguments)
    except BaseException:
        logger.exception("%s failed", what)


class CallbackThread:
    """Runs callbacks one after the other. Its thread starts with the first one.

    Receipts must not wait for users' code, which may itself wait for a receipt. So `run` accepts
    every callback, and `wait_for_room` makes senders wait instead. Callbacks that come after
    `close` run as well, on a thread that ends behind them. Exceptions of callbacks are logged.
    """

    def __init__(self, name: str = "pulsar-spark-callbacks") -> None:
        self._name = name
        self._forks = fork_count()
        self._queue: queue.SimpleQueue[tuple[Callable[[], object], int] | None]
        self._queue = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        # The following are guarded by _lock. Behind `close`, a thread finds one None in the queue.
        self._thread: threading.Thread | None = None
        self._closed = False
        self._senders = 0
        self._waiting = 0

    def wait_for_room(self, seconds: float) -> None:
        """Wait until callbacks that are slower than their sends have caught up.

        Returns at once on the callback thread. Raises ProducerQueueFull after `seconds`.
        """
        if self._waiting < MAX_WAITING or self._elsewhere():
            return
        deadline = Deadline(seconds)
        with self._room:
            self._senders += 1
            try:
                if not wait_until(self._room, lambda: self._waiting < MAX_WAITING, deadline):
                    raise ProducerQueueFull(
                        f"{MAX_WAITING} callbacks of sends are queued",
                        "Make callbacks faster, or move their work to threads of your own.",
                    )
            finally:
                self._senders -= 1

    def run(self, function: Callable[[], object], callbacks: int = 1) -> None:
        """Queue a function that calls `callbacks` callbacks, in order. Never blocks."""
        with self._lock:
            self._waiting += callbacks
            self._queue.put((function, callbacks))
            if self._thread is None:
                self._start()

    def drain(self, deadline: Deadline) -> None:
        """Wait until all callbacks queued so far have run.

        Returns at once on the callback thread, and in a forked child, which has no such thread.
        Raises OperationTimeout at the deadline.
        """
        if (done := self.reached()) is None:
            return
        try:
            result_within(done, deadline.remaining())
        except FutureTimeout:
            raise OperationTimeout(
                "callbacks of sends have not returned in time",
                "A callback must not wait for a later callback.",
            ) from None

    def reached(self) -> Future[None] | None:
        """Return a future that is done when all callbacks queued so far have run.

        None if nobody can wait for it, as for `drain`.
        """
        if self._elsewhere() or (self._thread is None and self._queue.empty()):
            return None
        done: Future[None] = Future()
        self.run(partial(done.set_result, None))
        return done

    def close(self, timeout: float = 5.0) -> None:
        """Run the queued callbacks, then end the thread; wait at most `timeout` seconds for it."""
        if fork_count() != self._forks:
            return
        with self._lock:
            thread, before, self._closed = self._thread, self._closed, True
            if thread is not None and not before:
                self._queue.put(None)
        if thread is not None and threading.current_thread() is not thread:
            thread.join(timeout)

    def _elsewhere(self) -> bool:
        return fork_count() != self._forks or threading.current_thread() is self._thread

    def _start(self) -> None:
        """Start the thread. `_lock` is held."""
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        # If no thread can be started now, the next callback tries again.
        thread.start()
        self._thread = thread
        if self._closed:
            self._queue.put(None)

    def _work(self) -> None:
        while (found := self._queue.get()) is not None:
            self._call(*found)
            # While it waits, the thread keeps nothing of what it has called.
            del found
        with self._lock, contextlib.suppress(RuntimeError):
            self._thread = None
            # `close` waits for this thread, and not for what has come behind the end.
            if not self._queue.empty():
                self._start()

    def _call(self, function: Callable[[], object], callbacks: int) -> None:
        with self._room:
            self._waiting -= callbacks
            if self._senders and self._waiting <= MAX_WAITING // 2:
                self._room.notify_all()
        call_logged("a callback of the user", function)
