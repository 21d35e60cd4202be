"""Samples of a backlog's entries: where they are taken, and what entries were like so far.

Caps and lag are both told from them, since a broker without its admin port tells nothing but the
first entry at or behind a position.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import pairwise

_REMEMBERED = 4096


def strata(low: int, high: int, count: int, rng: random.Random) -> list[tuple[int, int]]:
    """Return a number from each of `count` equal parts of [low, high), with the part's width.

    Anywhere in its part: entries can come in a rhythm.
    """
    edges = [low + (high - low) * number // max(count, 1) for number in range(count + 1)]
    return [(rng.randrange(part, behind), behind - part) for part, behind in pairwise(edges)]


@dataclass(slots=True)
class Experience:
    """What the entries of a topic partition were like so far: mean and spread of their messages.

    Old entries are forgotten slowly. It keeps a sample that happens to hold small entries only
    from being taken for all.
    """

    count: float = 0.0
    messages: float = 0.0
    squares: float = 0.0

    def add(self, messages: int) -> None:
        """Take note of one entry."""
        if self.count >= _REMEMBERED:
            for name in ("count", "messages", "squares"):
                setattr(self, name, getattr(self, name) / 2)
        self.count += 1
        self.messages += messages
        self.squares += messages * messages

    @property
    def mean(self) -> float:
        """Messages of an entry."""
        return self.messages / self.count if self.count else 1.0

    @property
    def deviation(self) -> float:
        """Their standard deviation."""
        if not self.count:
            return 0.0
        return math.sqrt(max(self.squares / self.count - self.mean**2, 0.0))
