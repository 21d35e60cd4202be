"""Templates: what was read field by field once cuts other bytes like it in one call.

Consecutive messages of a producer mostly have the same fields, and sizes that repeat. So a template
knows where the values lie in bytes of one size; all between them, tags, names and sizes, must be
equal.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, pairwise
from struct import Struct
from typing import Generic, TypeAlias, TypeVar

K = TypeVar("K")
M = TypeVar("M")

Cut: TypeAlias = "Callable[[bytes, int], tuple[bytes, ...]]"
"""Cuts the bytes from a place on: fixed bytes and values take turns, from fixed bytes on."""

_COST = 256
_MAX_CREDIT = 64 * _COST
_MOST = 1024
# Larger metadata takes its time anyway.
_MAX_LENGTH = 1024


class Templates(dict[K, tuple[int, Cut, tuple[bytes, ...], M]], Generic[K, M]):
    """The last templates: their length, cut, fixed bytes, and what the values mean.

    The key is a likeness: something short in which different messages mostly differ. Making a
    template costs as much as reading ten messages field by field. So where hardly any two messages
    are alike few are made: `credit` counts the messages that were read so.
    """

    def __init__(self) -> None:
        super().__init__()
        self.credit = _MAX_CREDIT

    def may_add(self, data: bytes) -> bool:
        """Count a message that was read field by field; whether it may become a template."""
        self.credit += 1
        return self.credit >= _COST and len(data) <= _MAX_LENGTH

    def add(self, likeness: K, data: bytes, places: list[tuple[int, int]], meaning: M) -> None:
        """Make a template of bytes whose values begin and end at these places."""
        self.credit = min(self.credit, _MAX_CREDIT) - _COST
        if len(self) >= _MOST:
            self.clear()
        edges = [0, *chain.from_iterable(places), len(data)]
        sizes = [stop - start for start, stop in pairwise(edges)]
        cut = Struct("".join(f"{size}s" for size in sizes)).unpack_from
        self[likeness] = len(data), cut, cut(data, 0)[0::2], meaning

    def drop(self, likeness: K) -> None:
        """Forget a template that did not fit, unless another can be made in its place."""
        if self.credit < _COST:
            self.pop(likeness, None)
