"""What a process keeps of its tasks for the next ones, within bounds."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Values by key: at most `most`, whose sizes together are at most `most_size`.

    A full cache begins anew, so those that fit are all kept, in whatever order they are used. One
    that is larger than all may be is kept alone, so that it is not made for each use.
    Guarded by the interpreter: what threads lose is only made again.
    """

    def __init__(self, most: int, most_size: int) -> None:
        self._most = most
        self._most_size = most_size
        self._kept: dict[K, V] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K) -> V | None:
        """Return a value, None if it is not there."""
        return self._kept.get(key)

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value that is not there yet."""
        if len(self._kept) >= self._most or self._size + size > self._most_size:
            self.clear()
        self._size += size
        self._kept[key] = value

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()
        self._size = 0
