"""Backlogs in memory, for tests of admission: entries in ledgers, and answers like a broker's."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from pulsar_spark.engine.consumers.probe import FoundEntry, Look
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position


class Backlog:
    """Entries of one topic partition, by their numbers of messages; 0 is an id without an entry.

    A negative number is of messages that only have an index, as those of an aborted transaction:
    nobody can read them. A ledger has `per_ledger` ids; a message has `size` bytes. `next_index` is
    what the next message gets.
    """

    def __init__(
        self,
        entries: Sequence[int],
        *,
        per_ledger: int = 10**9,
        size: int = 10,
        indexed: bool = False,
        first_time: int = 0,
    ) -> None:
        self.size = size
        self._keys: list[Position] = []
        self._messages: list[int] = []
        self._indexes: list[int] = []
        self._indexed = indexed
        self._first_time = first_time
        self.next_index = 0
        self._before = [0]
        self._per_ledger = per_ledger
        self._ids = 0
        self.end = EARLIEST_POSITION
        self.add(entries)
        self.asked = 0

    def add(self, entries: Sequence[int]) -> None:
        """Append entries."""
        for messages in entries:
            ledger = 1 + 3 * (self._ids // self._per_ledger)
            place = Position(ledger, self._ids % self._per_ledger)
            self._ids += 1
            self.next_index += abs(messages)
            if messages > 0:
                self._keys.append(place)
                self._messages.append(messages)
                self._indexes.append(self.next_index - 1)
                self._before.append(self._before[-1] + messages)
                self.end = Position(place.ledger_id, place.entry_id + 1)
            elif not self._keys:
                self.end = place

    @property
    def last(self) -> int:
        """The number of messages in the last entry."""
        return self._messages[-1] if self._messages else 0

    def ask(self, position: Position) -> FoundEntry | None:
        """Return the first entry at or after a position."""
        self.asked += 1
        number = bisect_left(self._keys, Position(*position[:2]))
        here = number < len(self._keys) and self._keys[number][:2] == position[:2]
        if here and position.batch_index >= self._messages[number]:
            number += 1
        if number >= len(self._keys):
            return None
        key, messages = self._keys[number], self._messages[number]
        place = max(key, position)
        return FoundEntry(
            place,
            Position(key.ledger_id, key.entry_id, messages),
            messages,
            messages * self.size,
            self._first_time + number,
            None,
            self._indexes[number] if self._indexed else None,
        )

    def look(self, look: Look) -> list[FoundEntry]:
        """Return consecutive entries, as a look asks for."""
        found: list[FoundEntry] = []
        messages = size = 0
        place = look.position
        while len(found) < look.entries and messages < look.messages and size < look.size:
            entry = self.ask(place)
            if entry is None:
                break
            self.asked -= bool(found)
            found.append(entry)
            messages, size = messages + entry.remaining, size + entry.size
            place = Position(entry.stop.ledger_id, entry.stop.entry_id + 1)
            if place >= look.end:
                break
        return found

    def count(self, start: Position, end: Position) -> int:
        """Return how many messages are between two positions."""
        return self._rank(end) - self._rank(start)

    def entries_from(self, position: Position) -> int:
        """Return how many entries there are from a position on."""
        return len(self._keys) - bisect_left(self._keys, Position(*position[:2]))

    def _rank(self, position: Position) -> int:
        number = bisect_left(self._keys, Position(*position[:2]))
        inside = 0
        if number < len(self._keys) and self._keys[number][:2] == position[:2]:
            inside = min(position.batch_index, self._messages[number])
        return self._before[number] + inside
