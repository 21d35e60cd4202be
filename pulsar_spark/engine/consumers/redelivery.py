"""When messages are due for redelivery: negatively acknowledged ones, and unacknowledged ones."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable

from pulsar_spark.engine.consumers.acknowledgments import EntryKey
from pulsar_spark.engine.timers import Timer, Timers
from pulsar_spark.errors import ClosedError
from pulsar_spark.protocol.message_id import Position

_TICKS = 10
_LEAST_TICK = 0.01
_MOST_TICK = 1.0


class DueEntries:
    """Entries, each due at its own time; entries that are due together are passed together.

    `on_due` is called on the timers' thread and must be quick. An entry may be late by a tenth of
    `delay`, or by a second. Thread-safe.
    """

    def __init__(
        self, timers: Timers, delay: float, on_due: Callable[[list[EntryKey]], None]
    ) -> None:
        self._timers = timers
        self._tick = min(max(delay / _TICKS, _LEAST_TICK), _MOST_TICK)
        self._on_due = on_due
        self._lock = threading.Lock()
        # The following are guarded by _lock. Ticks, and the entries that are due at each:
        self._ticks: dict[EntryKey, int] = {}
        self._entries: dict[int, dict[EntryKey, None]] = {}
        self._timer: Timer | None = None
        self._timer_at = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._ticks)

    def __contains__(self, key: EntryKey) -> bool:
        return key in self._ticks

    def put(self, key: EntryKey, delay: float) -> None:
        """Make an entry due in `delay` seconds; replaces its earlier time."""
        tick = math.ceil((time.monotonic() + delay) / self._tick)
        with self._lock:
            if self._closed:
                return
            self._discard(key)
            self._ticks[key] = tick
            self._entries.setdefault(tick, {})[key] = None
            if self._timer is None or tick < self._timer_at:
                self._arm(tick)

    def discard(self, key: EntryKey) -> None:
        """Forget an entry."""
        with self._lock:
            self._discard(key)

    def discard_before(self, position: Position) -> None:
        """Forget all entries before a position."""
        with self._lock:
            for key in [key for key in self._ticks if key < position[:2]]:
                self._discard(key)

    def clear(self) -> None:
        """Forget all entries."""
        with self._lock:
            self._ticks.clear()
            self._entries.clear()
            self._disarm()

    def close(self) -> None:
        """Forget all entries, and accept no more."""
        self._closed = True
        self.clear()

    def _discard(self, key: EntryKey) -> None:
        tick = self._ticks.pop(key, None)
        if tick is not None:
            entries = self._entries[tick]
            del entries[key]
            if not entries:
                del self._entries[tick]

    def _arm(self, tick: int) -> None:
        self._disarm()
        self._timer_at = tick
        with contextlib.suppress(ClosedError):
            self._timer = self._timers.after(tick * self._tick - time.monotonic(), self._fire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        now = math.floor(time.monotonic() / self._tick)
        due: list[EntryKey] = []
        with self._lock:
            self._timer = None
            for tick in sorted(tick for tick in self._entries if tick <= now):
                due += self._entries[tick]
            for key in due:
                self._discard(key)
            if self._entries:
                self._arm(min(self._entries))
        if due:
            self._on_due(due)
