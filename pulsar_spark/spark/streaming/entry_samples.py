"""Samples of a backlog's entries: where to take them, and statistics of earlier entries.

Caps and lag are both computed from them, because without the admin API a broker only tells the
first entry at or after a position.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from pulsar_spark.engine.consumers.probe import FoundEntry

_REMEMBERED = 4096


def strata(low: int, high: int, count: int, rng: random.Random) -> list[tuple[int, int]]:
    """Return a random number in each of `count` equal parts of [low, high), with the part's width.

    Random, because entry sizes can be periodic.
    """
    edges = [low + (high - low) * number // max(count, 1) for number in range(count + 1)]
    return [(rng.randrange(part, behind), behind - part) for part, behind in pairwise(edges)]


def rising(index: int, entries: Iterable[FoundEntry]) -> list[FoundEntry]:
    """Return the first entries, as far as their indexes go on from an earlier one.

    A broker that stamped none for a while may have started again.
    """
    found: list[FoundEntry] = []
    for entry in entries:
        if entry.index is None or entry.index < index:
            break
        index = entry.index
        found.append(entry)
    return found


@dataclass(slots=True)
class EntryStatistics:
    """Statistics of a topic partition's earlier entries: their messages and sizes.

    `largest` and `largest_size` are of entries that are not forgotten. Old entries are forgotten
    slowly. So a sample of only small entries is not taken as typical.
    """

    count: float = 0.0
    messages: float = 0.0
    squares: float = 0.0
    size: float = 0.0
    largest: int = 0
    largest_size: int = 0
    _recent: tuple[int, int] = (0, 0)

    def add(self, messages: int, size: int) -> None:
        """Add one entry."""
        if self.count >= _REMEMBERED:
            for name in ("count", "messages", "squares", "size"):
                setattr(self, name, getattr(self, name) / 2)
            (self.largest, self.largest_size), self._recent = self._recent, (0, 0)
        self.count += 1
        self.messages += messages
        self.squares += messages * messages
        self.size += size
        self.largest = max(self.largest, messages)
        self.largest_size = max(self.largest_size, size)
        self._recent = max(self._recent[0], messages), max(self._recent[1], size)

    @property
    def mean(self) -> float:
        """Mean number of messages per entry."""
        return self.messages / self.count if self.count else 1.0

    @property
    def mean_size(self) -> float:
        """Mean size of an entry, in bytes; 0 if none was seen."""
        return self.size / self.count if self.count else 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation of the number of messages."""
        if not self.count:
            return 0.0
        return math.sqrt(max(self.squares / self.count - self.mean**2, 0.0))
