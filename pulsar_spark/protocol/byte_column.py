"""A column of byte strings in one buffer, as Arrow has them: what an encoder reads without copies.

Lists of byte strings serve wherever a ByteColumn does.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from operator import add, sub


class ByteColumn(Sequence[bytes]):
    """Byte strings that follow each other in one buffer, none of them null.

    A range of them is another ByteColumn of the same buffer. Iterating makes all values at once.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def edges(self) -> memoryview[int]:
        """Where each value starts in the buffer, and where the last one ends.

        Numbers of 32 or 64 bits.
        """

    @abstractmethod
    def edges_with(self, other: ByteColumn) -> memoryview[int]:
        """Return the edges of values that are each followed by the other column's of their row."""

    @abstractmethod
    def joined(self) -> bytes:
        """Return the values' bytes, from the first edge to the last."""

    @abstractmethod
    def take(self, rows: Sequence[int]) -> list[bytes]:
        """Return some of the values."""

    def __contains__(self, value: object) -> bool:
        return isinstance(value, bytes) and super().__contains__(value)


def edges_of(column: Sequence[bytes], beside: Sequence[bytes] | None) -> Sequence[int]:
    """Return where values would start one behind the other, and where the last one ends.

    Each is followed by that of its row in the column `beside`. The first need not start at 0.
    Raises TypeError for a list with None.
    """
    if isinstance(column, ByteColumn):
        if beside is None:
            return column.edges
        if isinstance(beside, ByteColumn):
            return column.edges_with(beside)
    sizes = sizes_of(column)
    if beside is not None:
        sizes = list(map(add, sizes, sizes_of(beside)))
    return list(accumulate(sizes, initial=0))


def sizes_of(column: Sequence[bytes]) -> list[int]:
    """Return the sizes of a column's values in bytes."""
    if isinstance(column, ByteColumn):
        edges = column.edges.tolist()
        return list(map(sub, edges[1:], edges))
    return list(map(len, column))
