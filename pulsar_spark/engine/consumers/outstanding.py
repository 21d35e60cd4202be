"""Entries that the user was given and has not settled yet.

An entry is settled when it is acknowledged. One that is negatively acknowledged, or that is not
acknowledged within the options' timeout, is due for redelivery; of a chunked message, all entries.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future

from pulsar_spark.engine.consumers.acknowledgments import AckTracker, EntryKey
from pulsar_spark.engine.consumers.redelivery import DueEntries
from pulsar_spark.engine.options import ConsumerOptions
from pulsar_spark.engine.timers import Timers
from pulsar_spark.protocol.message_id import MessageIdAdv, Position

# Chunked messages whose chunk ids are remembered.
_MAX_CHUNKED = 10_000


class OutstandingEntries:
    """The outstanding entries of one consumer. Thread-safe.

    `on_due` is called on the timers' thread, with entries that must be redelivered. `on_settled` is
    called with each entry that is acknowledged alone, not with all before another.
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
        receipt = self._acks.acknowledge_upto(message_id, properties)
        position = Position(message_id.ledger_id, message_id.entry_id)
        if message_id.batch_index + 1 >= message_id.batch_size:
            position = Position(message_id.ledger_id, message_id.entry_id + 1)
        self._unacked.discard_before(position)
        self._nacked.discard_before(position)
        return receipt

    def acknowledged_in_transaction(self, key: EntryKey) -> None:
        """An entry was acknowledged in a transaction: if that is aborted, it is redelivered."""
        self._unacked.discard(key)

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
