"""One thread on which users' callbacks run, in order, so that they may block."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable

from pulsar_spark.engine.retry import Deadline
from pulsar_spark.errors import OperationTimeout

logger = logging.getLogger(__name__)


class CallbackThread:
    """Runs what it is given one after the other; its thread starts with the first callback.

    Receipts must not wait for users' code, which may itself wait for a receipt. What callbacks
    raise is logged.
    """

    def __init__(self, name: str = "pulsar-spark-callbacks") -> None:
        self._name = name
        self._pid = os.getpid()
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def run(self, callback: Callable[[], object]) -> None:
        """Run a callback after those that were given before. Never blocks."""
        self._queue.put(callback)
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                    self._thread.start()

    def drain(self, deadline: Deadline) -> None:
        """Return when all callbacks that were given before have run.

        Does nothing on the thread itself. Raises OperationTimeout at the deadline.
        """
        if self._thread is None or threading.current_thread() is self._thread:
            return
        done = threading.Event()
        self._queue.put(done.set)
        if not done.wait(min(deadline.remaining(), threading.TIMEOUT_MAX)):
            raise OperationTimeout(
                "callbacks of sends have not returned in time",
                "A callback must not wait for what only a later callback can bring.",
            )

    def close(self, timeout: float = 5.0) -> None:
        """Let the thread end after what was given before, and wait some seconds for it."""
        thread = self._thread
        if thread is None or os.getpid() != self._pid:
            return
        self._queue.put(None)
        if threading.current_thread() is not thread:
            thread.join(timeout)

    def _work(self) -> None:
        while (callback := self._queue.get()) is not None:
            try:
                callback()
            except Exception:
                logger.exception("the callback of a send failed")
