"""Splits a topic partition's range into several with about the same number of entries.

A broker tells how many entries there are from a position on, and which entry is before it. So the
ledger in which a split falls is searched for by ids, all splits at once: that takes some questions
a split, however many ledgers a range has. Counts can be estimates, as a topic changes meanwhile;
the splits are always exact.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from pulsar_spark.engine.consumers.probe import EntryCount
from pulsar_spark.protocol.message_id import Position

Question = tuple[str, Position]
Ask = Callable[[Sequence[Question]], Sequence[EntryCount]]
"""Answers for each topic and position: which entry is before it, and how many are there from it?"""

# No ledger has this many entries, and arithmetic on it cannot overflow.
_BEYOND_LEDGER = 2**31
# Each second question halves the ids in which a split can be.
_ROUNDS = 64


class _Gap(NamedTuple):
    """Ledgers of which nothing is known, if there are any: ids `first` to `last`.

    The range has `low` entries before them, and `high` with them.
    """

    first: int
    last: int
    low: int
    high: int

    def place(self, entry: int, *, halve: bool) -> Position:
        """Return where to ask for the ledger that may have this entry of the range."""
        share = 0.5 if halve else (entry - self.low) / (self.high - self.low)
        ledger = self.first + int((self.last - self.first) * share)
        return Position(ledger, _BEYOND_LEDGER)


@dataclass(slots=True)
class _Range:
    """A range that is split: it has `entries` from `first` to `end`.

    `first` is its start, or where its topic begins. `cuts` are where a number of its entries end,
    as far as these are found. `gaps` are where the others are, in order.
    """

    topic: str
    start: Position
    end: Position
    first: Position
    parts: int = 1
    entries: int = 0
    gaps: list[_Gap] = field(default_factory=list)
    cuts: dict[int, Position] = field(default_factory=dict)

    @property
    def _stop(self) -> int:
        """The id behind the last entry, in the last ledger."""
        return self.end.entry_id + (1 if self.end.batch_index else 0)

    @property
    def is_in_one_ledger(self) -> bool:
        return self.first.ledger_id == self.end.ledger_id

    def count(self, start: EntryCount | None = None, end: EntryCount | None = None) -> None:
        """Learn how many entries there are, in several ledgers by the answers for both ends."""
        if start is None or end is None:
            self.entries = max(self._stop - max(self.first.entry_id, 0), 1)
            return
        self.entries = max(start.entries - end.entries, 0)
        # Behind the last ledger's beginning, ids tell where an entry is.
        before = max(self.entries - self._stop, 0)
        first = self.first.ledger_id
        if first < 0 and start.before is not None:
            # The broker names the first ledger, but no entry of it.
            first = start.before.ledger_id
        if before and first < self.end.ledger_id:
            self.gaps = [_Gap(max(first, 0), self.end.ledger_id - 1, 0, before)]

    def targets(self) -> list[int]:
        """Return the numbers of entries at which the range is cut."""
        return [self.entries * part // self.parts for part in range(1, self.parts)]

    def cut_last_ledger(self) -> None:
        """Cut where the ids of the last ledger tell it, and forget gaps without a cut."""
        low = self.gaps[-1].high if self.gaps else 0
        for target in self.targets():
            if target > low or not self.gaps:
                self.cuts[target] = Position(
                    self.end.ledger_id, self._stop - (self.entries - target)
                )
        self._keep_gaps(self.gaps)

    def places(self, *, halve: bool) -> list[Position]:
        """Return where to ask in the next round."""
        places = (
            gap.place(target, halve=halve)
            for target in self.targets()
            if target not in self.cuts and (gap := self._gap_of(target)) is not None
        )
        return list(dict.fromkeys(places))

    def _gap_of(self, target: int) -> _Gap | None:
        index = bisect_left(self.gaps, target, key=lambda gap: gap.high)
        found = self.gaps[index] if index < len(self.gaps) else None
        return found if found is not None and found.low < target else None

    def learn(self, place: Position, answer: EntryCount, behind: int) -> None:
        """Learn from an answer; `behind` is the number of entries after the range now."""
        index = bisect_left(self.gaps, place.ledger_id, key=lambda gap: gap.last)
        gap = self.gaps[index] if index < len(self.gaps) else None
        if gap is None or place.ledger_id < gap.first:
            return
        high = min(max(self.entries - (answer.entries - behind), gap.low), gap.high)
        found = answer.before
        if found is None or not gap.first <= found.ledger_id <= place.ledger_id:
            # None of these ids is a ledger.
            rest = [gap._replace(first=place.ledger_id + 1)]
        else:
            ids = found.entry_id + 1
            low = min(max(high - ids, gap.low), high)
            for target in self.targets():
                if low < target <= high:
                    self.cuts[target] = Position(found.ledger_id, max(ids - (high - target), 0))
            rest = [
                _Gap(gap.first, found.ledger_id - 1, gap.low, low),
                _Gap(place.ledger_id + 1, gap.last, high, gap.high),
            ]
        self._keep_gaps([*self.gaps[:index], *rest, *self.gaps[index + 1 :]])

    def _keep_gaps(self, gaps: Iterable[_Gap]) -> None:
        wanted = [target for target in self.targets() if target not in self.cuts]
        self.gaps = [
            gap
            for gap in gaps
            if gap.first <= gap.last and any(gap.low < target <= gap.high for target in wanted)
        ]

    def pieces(self) -> list[tuple[Position, Position]]:
        edges = [self.start]
        for _, cut in sorted(self.cuts.items()):
            if edges[-1] < cut < self.end:
                edges.append(cut)
        edges.append(self.end)
        return list(pairwise(edges))


def split_ranges(
    ranges: Sequence[tuple[str, Position, Position, Position | None]],
    parts_each: int,
    parts_in_all: int,
    ask: Ask,
) -> list[list[tuple[Position, Position]]]:
    """Return the splits [start, end) of each range (topic, start, end, first), in order.

    `first` is where a topic begins that is read from its beginning, if that is known.
    Each range is split into `parts_each`; the largest are split further until there are
    `parts_in_all`, as far as there are entries. The splits of a range add up to the range.
    """
    all_ranges = [_Range(topic, start, end, first or start) for topic, start, end, first in ranges]
    if parts_each <= 1 and parts_in_all <= len(all_ranges):
        return [[(found.start, found.end)] for found in all_ranges]
    _count_entries(all_ranges, ask)
    _share_parts(all_ranges, parts_each, parts_in_all)
    _find_cuts([found for found in all_ranges if found.parts > 1], ask)
    return [found.pieces() for found in all_ranges]


def _count_entries(ranges: Sequence[_Range], ask: Ask) -> None:
    asked = [found for found in ranges if not found.is_in_one_ledger]
    for found in ranges:
        if found.is_in_one_ledger:
            found.count()
    questions = [(found.topic, at) for found in asked for at in (found.first, found.end)]
    answers = iter(ask(questions) if questions else ())
    for found in asked:
        found.count(next(answers), next(answers))


def _find_cuts(ranges: Sequence[_Range], ask: Ask) -> None:
    for found in ranges:
        found.cut_last_ledger()
    for number in range(_ROUNDS):
        places = [(found, found.places(halve=number % 2 == 1)) for found in ranges]
        # A topic grows meanwhile: what is after the range is counted at the same time.
        asked = [(found, [*wanted, found.end]) for found, wanted in places if wanted]
        if not asked:
            break
        answers = iter(ask([(found.topic, at) for found, wanted in asked for at in wanted]))
        for found, wanted in asked:
            told = [next(answers) for _ in wanted]
            for place, answer in zip(wanted[:-1], told, strict=False):
                found.learn(place, answer, told[-1].entries)


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
