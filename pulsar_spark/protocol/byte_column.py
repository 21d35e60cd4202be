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
    def edges_with(self, others: Sequence[ByteColumn]) -> memoryview[int]:
        """Return the edges of values that are each followed by the other columns' of their row."""

    @abstractmethod
    def joined(self) -> bytes:
        """Return the values' bytes, from the first edge to the last."""

    @abstractmethod
    def take(self, rows: Sequence[int]) -> list[bytes]:
        """Return some of the values."""

    def __contains__(self, value: object) -> bool:
        return isinstance(value, bytes) and super().__contains__(value)


def edges_of(columns: Sequence[Sequence[bytes | None]]) -> Sequence[int]:
    """Return where rows would start one behind the other, and where the last one ends.

    Each has its values of all columns; None has no bytes. The first need not start at 0.
    """
    first, *others = columns
    if isinstance(first, ByteColumn) and all(isinstance(other, ByteColumn) for other in others):
        return first.edges_with(others) if others else first.edges  # type: ignore[arg-type]
    sizes = sizes_of(first)
    for other in others:
        sizes = list(map(add, sizes, sizes_of(other)))
    return list(accumulate(sizes, initial=0))


def sizes_of(column: Sequence[bytes | None]) -> list[int]:
    """Return the sizes of a column's values in bytes."""
    if isinstance(column, ByteColumn):
        edges = column.edges.tolist()
        return list(map(sub, edges[1:], edges))
    if None in column:
        return [len(value or b"") for value in column]
    return list(map(len, column))  # type: ignore[arg-type]
