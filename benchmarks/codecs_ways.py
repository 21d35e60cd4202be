"""What the codecs of all formats are compared with: the obvious way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

ROWS_PER_BATCH = 10_000


@dataclass(frozen=True)
class Way:
    """One direction of one format: two functions with the same result."""

    title: str
    obvious: Callable[[], object]
    ours: Callable[[], object]
