"""The entries of one topic, in ledgers: what BookKeeper keeps for a real broker.

A place is (ledger id, entry id). Entry ids restart at 0 in each ledger; ledger ids only grow. An id
may have no entry (transaction markers, compaction): such gaps are stored as None.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.message_id import EARLIEST, LATEST

Place = tuple[int, int]

NOWHERE: Place = (-1, -1)
EARLIEST_PLACE: Place = (EARLIEST.ledger_id, EARLIEST.entry_id)
LATEST_PLACE: Place = (LATEST.ledger_id, LATEST.entry_id)


@dataclass(eq=False, slots=True)
class Entry:
    """One stored entry: a single message or a batch, as its producer sent it.

    `data` is what follows the SEND command: checksum, metadata and payload. `messages` is the
    batch's size, 0 for an unbatched message. `index` is the topic's message index of the entry's
    last message. `txn` is the transaction of its SEND, which hides it while that is open,
    `written_in` the one in its metadata, which drops it if that is aborted.
    """

    data: Buffer
    messages: int
    publish_time: int
    deliver_at: int
    txn: TxnId | None = None
    written_in: TxnId | None = None
    place: Place = NOWHERE
    index: int = 0
    broker_timestamp: int = 0
    broker_metadata: bytes | None = None
    slot: int | None = None

    @property
    def count(self) -> int:
        """Messages in the entry, at least 1."""
        return self.messages or 1

    @property
    def last_batch_index(self) -> int:
        """The last index in the batch, -1 for an unbatched message."""
        return self.messages - 1


@dataclass(eq=False, slots=True)
class Ledger:
    """A ledger: entries from id `base` on, of which `live` still exist."""

    ledger_id: int
    base: int = 0
    entries: list[Entry | None] = field(default_factory=list)
    live: int = 0

    @property
    def next_id(self) -> int:
        """The next entry's id."""
        return self.base + len(self.entries)

    def from_entry(self, entry_id: int) -> int:
        """The index in `entries` of the first entry with at least this id."""
        return min(max(entry_id - self.base, 0), len(self.entries))

    def live_from(self, entry_id: int) -> int:
        """The number of entries with at least this id."""
        start = self.from_entry(entry_id)
        if self.live == len(self.entries):
            return self.live - start
        return sum(entry is not None for entry in self.entries[start:])


@dataclass(slots=True)
class Usage:
    """The size in bytes of all entries that a broker retains."""

    stored_bytes: int = 0


class EntryLog:
    """The ledgers of a topic, oldest first; the last one is open.

    `new_ledger_id` returns ids that grow across the broker, `max_entries` is a ledger's maximum,
    `usage` counts stored bytes.
    """

    def __init__(
        self, new_ledger_id: Callable[[], int], max_entries: int, usage: Usage | None = None
    ) -> None:
        self._usage = usage or Usage()
        self._new_ledger_id = new_ledger_id
        self._max_entries = max_entries
        self._ledgers = [Ledger(new_ledger_id())]
        self._ids = [self._ledgers[0].ledger_id]
        # The last id of the last ledger that was deleted, until the topic is loaded without it.
        self._deleted: Place | None = None
        self.size = 0
        self.messages = 0

    @property
    def entries(self) -> int:
        """The number of retained entries."""
        return sum(ledger.live for ledger in self._ledgers)

    @property
    def ledger_ids(self) -> tuple[int, ...]:
        """The ids of the retained ledgers, the open one last."""
        return tuple(self._ids)

    def append(self, entry: Entry) -> Place:
        """Store an entry at the end, and set its place and index."""
        ledger = self._open()
        entry.place = (ledger.ledger_id, ledger.next_id)
        self.messages += entry.count
        entry.index = self.messages - 1
        ledger.entries.append(entry)
        ledger.live += 1
        self.size += len(entry.data)
        self._usage.stored_bytes += len(entry.data)
        return entry.place

    def skip(self, count: int) -> None:
        """Use up entry ids without storing anything, as transaction markers do for readers."""
        for _ in range(count):
            self._open().entries.append(None)

    def roll(self) -> None:
        """Close the open ledger and open a new one; an unused ledger is replaced."""
        if not self._ledgers[-1].next_id:
            self._ledgers.pop()
            self._ids.pop()
        self._ledgers.append(Ledger(self._new_ledger_id()))
        self._ids.append(self._ledgers[-1].ledger_id)

    def reload(self) -> None:
        """Begin a new ledger, as a broker that loads the topic; it knows only what is stored."""
        self._deleted = None
        self.roll()

    def _open(self) -> Ledger:
        if self._ledgers[-1].next_id >= self._max_entries:
            self.roll()
        return self._ledgers[-1]

    def first_place(self) -> Place:
        """The place before which nothing is retained."""
        ledger = self._ledgers[0]
        return ledger.ledger_id, ledger.base

    def end_place(self) -> Place:
        """The next entry's place, unless the ledger is full."""
        ledger = self._ledgers[-1]
        return ledger.ledger_id, ledger.next_id

    def last(self, wanted: Callable[[Entry], bool] | None = None) -> Entry | None:
        """The last retained entry that is wanted."""
        for ledger in reversed(self._ledgers):
            for entry in reversed(ledger.entries):
                if entry is not None and (wanted is None or wanted(entry)):
                    return entry
        return None

    def get(self, place: Place) -> Entry | None:
        """The entry at exactly this place, if it is retained."""
        index = bisect_left(self._ids, place[0])
        if index == len(self._ids) or self._ids[index] != place[0]:
            return None
        ledger = self._ledgers[index]
        offset = place[1] - ledger.base
        return ledger.entries[offset] if 0 <= offset < len(ledger.entries) else None

    def walk(self, place: Place) -> Iterator[Entry]:
        """The entries at and after a place, oldest first."""
        ledger_id, entry_id = place
        for ledger in self._ledgers[bisect_left(self._ids, ledger_id) :]:
            start = ledger.from_entry(entry_id) if ledger.ledger_id == ledger_id else 0
            for index in range(start, len(ledger.entries)):
                if (entry := ledger.entries[index]) is not None:
                    yield entry

    def next_at(self, place: Place) -> Entry | None:
        """The first entry at or after a place."""
        return next(self.walk(place), None)

    def count_from(self, place: Place) -> int:
        """The number of entries at and after a place."""
        first = bisect_left(self._ids, place[0])
        total = 0
        for ledger in self._ledgers[first:]:
            same = ledger.ledger_id == place[0]
            total += ledger.live_from(place[1]) if same else ledger.live
        return total

    def place_before(self, place: Place) -> Place:
        """The id before a place, perhaps in an earlier ledger; entry -1 if there is none."""
        ledger_id, entry_id = place
        index = bisect_left(self._ids, ledger_id)
        if index < len(self._ids) and self._ids[index] == ledger_id:
            before = min(entry_id, self._ledgers[index].next_id) - 1
            if before >= 0:
                return ledger_id, before
        for ledger in reversed(self._ledgers[:index]):
            if ledger.next_id:
                return ledger.ledger_id, ledger.next_id - 1
        if self._deleted is not None and place == self.end_place() and index == 0:
            return self._deleted
        return ledger_id, -1

    def first_published_at(self, timestamp: int) -> Place:
        """The place of the first entry published at `timestamp` (ms) or later.

        Searched by bisection, as in a real broker, so it is exact only if times are ordered. If
        entries have the broker's own time, that one counts.
        """
        entries = list(self.walk(self.first_place()))
        found = bisect_left(entries, timestamp, key=lambda e: e.broker_timestamp or e.publish_time)
        return entries[found].place if found < len(entries) else self.end_place()

    def closed_ledgers(self) -> Iterator[tuple[Place, int, int]]:
        """Of each closed ledger, oldest first: its end, its size, its last publish time in ms."""
        for ledger, following in pairwise(self._ledgers):
            entries = [entry for entry in ledger.entries if entry is not None]
            last = entries[-1].publish_time if entries else 0
            size = sum(len(entry.data) for entry in entries)
            yield (following.ledger_id, 0), size, last

    def trim(self, before: Place) -> int:
        """Drop the entries before a place; return the freed bytes.

        The open ledger stays, so entry ids continue; empty closed ledgers disappear.
        """
        freed = 0
        while len(self._ledgers) > 1 and self._ids[0] < before[0]:
            freed += self._cut(self._ledgers[0], self._ledgers[0].next_id)
            self._delete_oldest()
        oldest = self._ledgers[0]
        if oldest.ledger_id < before[0]:
            freed += self._cut(oldest, oldest.next_id)
        elif oldest.ledger_id == before[0]:
            freed += self._cut(oldest, before[1])
        if len(self._ledgers) > 1 and not oldest.entries:
            self._delete_oldest()
        self.size -= freed
        self._usage.stored_bytes -= freed
        return freed

    def _delete_oldest(self) -> None:
        ledger = self._ledgers.pop(0)
        del self._ids[0]
        if ledger.next_id:
            self._deleted = ledger.ledger_id, ledger.next_id - 1

    def discard(self) -> None:
        """Free all memory; the log cannot be used any more."""
        self._usage.stored_bytes -= self.size
        self.size = 0
        self._ledgers = [Ledger(self._ids[-1])]
        self._ids = [self._ledgers[0].ledger_id]

    @staticmethod
    def _cut(ledger: Ledger, entry_id: int) -> int:
        count = ledger.from_entry(entry_id)
        gone = [entry for entry in ledger.entries[:count] if entry is not None]
        del ledger.entries[:count]
        ledger.base += count
        ledger.live -= len(gone)
        return sum(len(entry.data) for entry in gone)
