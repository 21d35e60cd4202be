"""Entries that the user was given and has not settled yet.

An entry is settled when it is acknowledged. One that is negatively acknowledged, or that is not
acknowledged within the options' timeout, is due for redelivery; of a chunked message, all entries.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future

from pulsar_spark.engine.consumers.acknowledgments import AckTracker, EntryKey, EntryOrder
from pulsar_spark.engine.options import ConsumerOptions
from pulsar_spark.engine.timers import Timer, Timers
from pulsar_spark.errors import ClosedError
from pulsar_spark.protocol.message_id import MessageIdAdv, Position

# Chunked messages whose chunk ids are remembered.
_MAX_CHUNKED = 10_000
# Entries due in the same tick are redelivered together. A tick is this part of the delay, within
# these bounds in seconds.
_TICKS = 10
_LEAST_TICK = 0.01
_MOST_TICK = 1.0


class OutstandingEntries:
    """The outstanding entries of one consumer. Thread-safe.

    `on_due` is called on the timers' thread, with entries that must be redelivered. `on_settled` is
    called with each entry that is acknowledged itself, not with all before another.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        timers: Timers,
        acks: AckTracker,
        on_due: Callable[[list[EntryKey]], None],
        on_settled: Callable[[EntryKey], None] | None,
    ) -> None:
        self._options = options
        self._acks = acks
        self._on_settled = on_settled
        backoff = options.nack_backoff
        soonest = options.nack_delay if backoff is None else backoff.first
        self._nacked = DueEntries(timers, soonest, on_due)
        self._unacked = DueEntries(timers, options.ack_timeout, on_due)
        self._lock = threading.Lock()
        # The entries of each chunked message, by its last chunk; guarded by _lock.
        self._chunks: OrderedDict[EntryKey, tuple[EntryKey, ...]] = OrderedDict()

    def chunked(self, key: EntryKey, ids: Iterable[MessageIdAdv]) -> None:
        """The message that ends with the entry `key` consists of these chunks."""
        with self._lock:
            self._chunks[key] = tuple((found.ledger_id, found.entry_id) for found in ids)
            if len(self._chunks) > _MAX_CHUNKED:
                self._chunks.popitem(last=False)

    def entries_of(self, key: EntryKey) -> tuple[EntryKey, ...]:
        """Return the entries of a message: all chunks of a chunked one."""
        return self._chunks.get(key, (key,))

    def given(self, key: EntryKey) -> None:
        """The user was given a message of an entry: its timeout for acknowledging begins."""
        if self._options.ack_timeout and key not in self._nacked:
            self._unacked.put(key, self._options.ack_timeout)

    def acknowledge(
        self, message_id: MessageIdAdv, properties: Mapping[str, int] | None
    ) -> Future[None] | None:
        """Acknowledge a message; raises and returns as `AckTracker.acknowledge`."""
        key = (message_id.ledger_id, message_id.entry_id)
        chunks = self.entries_of(key) if self._chunks else ()
        done, receipt = self._acks.acknowledge(message_id, chunks, properties)
        if done:
            self._settle(key)
        return receipt

    def acknowledge_upto(
        self, message_id: MessageIdAdv, properties: Mapping[str, int] | None
    ) -> Future[None] | None:
        """Acknowledge a message and all before it; as `AckTracker.acknowledge_upto`."""
        done, receipt = self._acks.acknowledge_upto(message_id, properties)
        position = Position(message_id.ledger_id, message_id.entry_id)
        self._unacked.discard_before(position)
        self._nacked.discard_before(position)
        if done:
            self._settle(position[:2])
        return receipt

    def acknowledged_in_transaction(self, message_id: MessageIdAdv, *, cumulative: bool) -> None:
        """A message was acknowledged in a transaction; as `AckTracker`'s method of that name.

        With the last one of its entry, this is not due any more: an abort redelivers it.
        """
        if self._acks.acknowledged_in_transaction(message_id, cumulative=cumulative):
            key = (message_id.ledger_id, message_id.entry_id)
            self._unacked.discard(key)
            self._nacked.discard(key)

    def refuse(self, key: EntryKey, redeliveries: int) -> None:
        """An entry is negatively acknowledged: it is due after the delay in the options."""
        backoff = self._options.nack_backoff
        delay = self._options.nack_delay if backoff is None else backoff.delay(redeliveries)
        self._unacked.discard(key)
        self._nacked.put(key, delay)

    def unreadable(self, key: EntryKey) -> None:
        """An entry cannot be given to the user: it is due after the timeout."""
        if self._options.ack_timeout:
            self._unacked.put(key, self._options.ack_timeout)

    def redelivered(self) -> None:
        """All entries will be redelivered: none is due any more."""
        self._unacked.clear()
        self._nacked.clear()

    def clear(self) -> None:
        """Forget all entries, and acknowledgements that were not sent."""
        self._acks.clear()
        self.redelivered()
        with self._lock:
            self._chunks.clear()

    def close(self) -> None:
        """Send pending acknowledgements; no entry is due any more."""
        self._acks.close()
        self._unacked.close()
        self._nacked.close()

    def _settle(self, key: EntryKey) -> None:
        if len(self._unacked):
            self._unacked.discard(key)
        if len(self._nacked):
            self._nacked.discard(key)
        if self._on_settled is not None:
            self._on_settled(key)
        if self._chunks:
            with self._lock:
                self._chunks.pop(key, None)


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
        self._order = EntryOrder(self._ticks)
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
            is_new = key not in self._ticks
            self._discard(key)
            self._ticks[key] = tick
            if is_new:
                self._order.add(key)
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
            for key in self._order.take_before(position):
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
