"""The rows of a soak: numbered for each key, and checked when they arrive."""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_spark.protocol.message_id import MessageIdAdv

KEYS = 64

_PROBLEMS_SHOWN = 20


def key_of(number: int) -> str:
    """Return the name of a key."""
    return f"key-{number}"


KEY_NUMBERS = {key_of(number).encode(): number for number in range(KEYS)}


def value_of(number: int) -> bytes:
    """Return the value of a key's row with this number."""
    return b"%016d" % number


def rows_of_key(rows: int, key: int) -> int:
    """Return how many of `rows` rows a key has."""
    return rows // KEYS + (key < rows % KEYS)


class Checker:
    """Checks that each key's rows come once and in order. Errors are in `problems`."""

    def __init__(self) -> None:
        self.rows = 0
        self.problems: list[str] = []
        self.wrong = 0
        """How many places are wrong, also those that are not among the problems told."""
        self._next = [0] * KEYS

    def add(
        self, keys: Sequence[bytes], values: Sequence[bytes], ids: Sequence[bytes], batch: int
    ) -> None:
        """Add the rows of a micro-batch, with their message ids."""
        upcoming = self._next
        for row, (key, value) in enumerate(zip(keys, values, strict=True)):
            found, place = int(value), KEY_NUMBERS[key]
            if found != upcoming[place]:
                kind = "again or too late" if found < upcoming[place] else "too early"
                where = MessageIdAdv.deserialize(ids[row])
                self.tell(
                    f"batch {batch}, {key.decode()}: {found} comes {kind}, "
                    f"{upcoming[place]} is next; its message id is {where}"
                )
            upcoming[place] = max(upcoming[place], found + 1)
        self.rows += len(values)

    def end(self, rows: int) -> None:
        """Check that all of `rows` rows came."""
        if self.rows != rows:
            self.tell(f"{self.rows} rows came of {rows}")
        for key, found in enumerate(self._next):
            expected = rows_of_key(rows, key)
            if found != expected:
                self.tell(f"{key_of(key)} ends at {found} of {expected}")

    def tell(self, problem: str) -> None:
        """Record a problem."""
        self.wrong += 1
        if len(self.problems) < _PROBLEMS_SHOWN:
            self.problems.append(problem)
