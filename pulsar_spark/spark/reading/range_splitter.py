"""Splits a topic partition's range into several with about the same number of entries.

It only needs the broker's answer to "what is the first entry at or after this position?": after a
ledger's last entry that is the next ledger's first one. All ranges are asked about at once, in
rounds. Counts are estimates; the splits are always exact.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pulsar_spark.protocol.message_id import Position

Question = tuple[str, Position]
Ask = Callable[[Sequence[Question]], Sequence[Position | None]]
"""Answers for each topic and position: where is the first entry at or after it, if any?"""

# No ledger has this many entries, and arithmetic on it cannot overflow.
BEYOND_LEDGER = 2**31
_FIRST_STEP = 1024
# Ledger sizes are estimated to this fraction: the splits need not be equal.
_PRECISION = 16
_MAX_LEDGERS = 5000


@dataclass(slots=True)
class LedgerSize:
    """Entries `first` … of a ledger: at least `low`, less than `high` (0: unknown)."""

    ledger_id: int
    first: int
    low: int = 1
    high: int = 0

    @property
    def known(self) -> bool:
        """Whether the number of entries is known well enough for splitting."""
        return bool(self.high) and self.high - self.low <= 1 + self.low // _PRECISION

    @property
    def exact(self) -> bool:
        """Whether `low` is the exact number of entries."""
        return bool(self.high) and self.high - self.low <= 1

    def next_probe(self) -> Position:
        """Return the next position to ask about; any answer narrows the range."""
        count = (self.low + self.high) // 2 - 1 if self.high else max(2 * self.low, _FIRST_STEP)
        return Position(self.ledger_id, self.first + count)

    def learn(self, probe: Position, answer: Position | None) -> None:
        """Learn from the answer for `probe`: the first entry at or after it."""
        if answer is not None and answer.ledger_id == self.ledger_id and answer >= probe:
            self.low = answer.entry_id - self.first + 1
            # A changing topic can contradict itself, and a broker can answer anything.
            if self.high or self.low > BEYOND_LEDGER:
                self.high = max(self.high, self.low + 1)
        else:
            self.high = max(probe.entry_id - self.first, self.low) + 1


@dataclass(slots=True)
class _Range:
    topic: str
    start: Position
    end: Position
    ledgers: list[LedgerSize] = field(default_factory=list)
    parts: int = 1
    complete: bool = False

    @property
    def entries(self) -> int:
        return sum(ledger.low for ledger in self.ledgers)

    def question(self) -> Question:
        """Return the question that finds the range's next ledger."""
        if not self.ledgers:
            return self.topic, self.start
        return self.topic, Position(self.ledgers[-1].ledger_id, BEYOND_LEDGER)

    def learn(self, answer: Position | None) -> None:
        """Learn the first entry of the next ledger, or that the range has no more."""
        if answer is None or answer >= self.end or len(self.ledgers) >= _MAX_LEDGERS:
            self.complete = True
            return
        if self.ledgers and answer.ledger_id <= self.ledgers[-1].ledger_id:
            # Never repeat a question whose answer makes no progress.
            self.complete = True
            return
        ledger = LedgerSize(answer.ledger_id, answer.entry_id)
        self.ledgers.append(ledger)
        if answer.ledger_id == self.end.ledger_id:
            # The range's end in the last ledger is known without asking.
            behind = self.end.entry_id + (1 if self.end.batch_index else 0)
            ledger.low, ledger.high = max(behind - ledger.first, 1), behind - ledger.first + 1
            self.complete = True

    def pieces(self) -> list[tuple[Position, Position]]:
        cuts = [self.start]
        for part in range(1, self.parts):
            cut = self._position_of(self.entries * part // self.parts)
            if cuts[-1] < cut < self.end:
                cuts.append(cut)
        cuts.append(self.end)
        return list(pairwise(cuts))

    def _position_of(self, entry: int) -> Position:
        for ledger in self.ledgers:
            if entry < ledger.low:
                return Position(ledger.ledger_id, ledger.first + entry)
            entry -= ledger.low
        return self.end


def split_ranges(
    ranges: Sequence[tuple[str, Position, Position]],
    parts_each: int,
    parts_in_all: int,
    ask: Ask,
) -> list[list[tuple[Position, Position]]]:
    """Return the splits [start, end) of each range (topic, start, end), in order.

    Each range is split into `parts_each`; the largest are split further until there are
    `parts_in_all`, as far as there are entries. The splits of a range add up to the range.
    """
    all_ranges = [_Range(topic, start, end) for topic, start, end in ranges]
    if parts_each <= 1 and parts_in_all <= len(all_ranges):
        return [[(found.start, found.end)] for found in all_ranges]
    _find_ledgers(all_ranges, ask)
    _count_entries(all_ranges, ask)
    _share_parts(all_ranges, parts_each, parts_in_all)
    return [found.pieces() for found in all_ranges]


def _find_ledgers(ranges: Sequence[_Range], ask: Ask) -> None:
    while open_ranges := [found for found in ranges if not found.complete]:
        answers = ask([found.question() for found in open_ranges])
        for found, answer in zip(open_ranges, answers, strict=True):
            found.learn(answer)


def _count_entries(ranges: Sequence[_Range], ask: Ask) -> None:
    unknown = [
        (found.topic, ledger) for found in ranges for ledger in found.ledgers if not ledger.known
    ]
    while unknown:
        probes = [(topic, ledger.next_probe()) for topic, ledger in unknown]
        for (_, ledger), (_, probe), answer in zip(unknown, probes, ask(probes), strict=True):
            ledger.learn(probe, answer)
        unknown = [(topic, ledger) for topic, ledger in unknown if not ledger.known]


def _share_parts(ranges: Sequence[_Range], parts_each: int, parts_in_all: int) -> None:
    for found in ranges:
        found.parts = max(min(parts_each, found.entries), 1)
    missing = parts_in_all - sum(found.parts for found in ranges)
    # The range with the most entries per split comes first.
    heap = [(-found.entries / found.parts, index) for index, found in enumerate(ranges)]
    heapq.heapify(heap)
    while missing > 0 and heap:
        _, index = heapq.heappop(heap)
        found = ranges[index]
        if found.parts < found.entries:
            found.parts += 1
            missing -= 1
            heapq.heappush(heap, (-found.entries / found.parts, index))
