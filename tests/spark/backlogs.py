"""Backlogs in memory, for tests of admission: entries in ledgers, and answers like a broker's."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from pulsar_spark.engine.consumers.probe import FoundEntry
from pulsar_spark.protocol.message_id import Position


class Backlog:
    """Entries of one topic partition, by their numbers of messages; 0 is an id without an entry.

    A ledger has `per_ledger` ids; a message has `size` bytes.
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
        self._before = [0]
        index = 0
        place = Position(1, 0)
        for number, messages in enumerate(entries):
            ledger = 1 + 3 * (number // per_ledger)
            place = Position(ledger, number % per_ledger)
            if messages:
                index += messages
                self._keys.append(place)
                self._messages.append(messages)
                self._indexes.append(index - 1)
                self._before.append(index)
        self.end = (
            Position(self._keys[-1].ledger_id, self._keys[-1].entry_id + 1) if self._keys else place
        )
        self.asked = 0

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
