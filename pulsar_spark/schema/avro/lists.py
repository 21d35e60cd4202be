"""Lists of Avro in columns: the first items of all values, then the second ones, and so on.

A step with few values costs as much as one with hundreds, so that values whose lists are much
longer than the others' are left to those who read values one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.schema.avro.arrays import list_array
from pulsar_spark.schema.avro.vectors import ONE, ZERO, number, numbers, zeros

_INT64 = pa.int64()

# With this many values a step pays off by itself; below, it has to against reading them one by
# one. The costs are in items that are read so.
_ENOUGH = 256
_COST_OF_STEP = 240
_COST_OF_VALUE = 20


class Rows:
    """Values that are being read: their places, one byte beyond their ends, and their rows.

    A place that would lie farther than that stays there: the value is found to be too short when
    all of it has been read, and until then no place is in another value's bytes.
    """

    __slots__ = ("limits", "places", "rows")

    def __init__(self, places: pa.Array, limits: pa.Array, rows: pa.Array) -> None:
        self.places = places
        self.limits = limits
        self.rows = rows

    def __len__(self) -> int:
        return len(self.places)

    def advance(self, sizes: pa.Array | pa.Scalar) -> None:
        """Move on by so many bytes, none of them less than 0."""
        self.places = pc.min_element_wise(pc.add(self.places, sizes), self.limits)

    def select(self, chosen: pa.Array) -> Rows:
        """Return those where `chosen` is true, to go on with them."""
        return Rows(*(item.filter(chosen) for item in (self.places, self.limits, self.rows)))


@dataclass(frozen=True, slots=True)
class Lists:
    """How many items each list has, and the items of all of them."""

    counts: pa.Array
    items: pa.Array

    def array(self, kind: pa.DataType) -> pa.Array:
        """Return an array of lists, or of maps where the items are pairs."""
        return list_array(self._offsets(), self.items, kind, len(self.counts))

    def repeated_keys(self) -> pa.Array | None:
        """Return the places of maps that have a key more than once, None if none has."""
        keys = self.items.field(0) if len(self.items) else self.items
        if len(keys) < 2:
            return None
        lists = list_array(self._offsets(), keys, pa.list_(keys.type), len(self.counts))
        words = keys.dictionary_encode()
        size = number(len(words.dictionary))
        owners = pc.list_parent_indices(lists).cast(_INT64)
        pairs = pc.add(pc.multiply(owners, size), words.indices.cast(_INT64))
        if pc.count_distinct(pairs).as_py() == len(pairs):
            return None
        counted = pairs.value_counts()
        several = counted.field(0).filter(pc.greater(counted.field(1), ONE))
        return pc.divide(several, size)

    def _offsets(self) -> pa.Buffer:
        ends = pc.cumulative_sum(self.counts)
        return pa.concat_arrays([zeros(1), ends]).cast(pa.int32()).buffers()[1]


class GrowingLists:
    """Collects items: `rows` are the values whose next item is to be read, None at the end.

    `left` is how many items each of the values given has, at least one. `abandoned` are values
    whose last items are not to be read.
    """

    def __init__(self, rows: Rows, left: pa.Array) -> None:
        self.rows: Rows | None = rows
        self.abandoned: Rows | None = None
        self._left = left
        self._index = numbers(len(left))
        # Where each item belongs; of the values that are done: which, where they ended, and
        # after how many items.
        self._target = pc.subtract(pc.cumulative_sum(left), left)
        self._step = 0
        self._parts: list[pa.Array] = []
        self._targets: list[pa.Array] = []
        self._done: list[pa.Array] = []
        self._places: list[pa.Array] = []
        self._taken: list[pa.Array] = []

    def add(self, items: pa.Array | None) -> None:
        """Take the items of `rows`, which have moved on behind them."""
        assert self.rows is not None
        if items is not None:
            self._parts.append(items)
            self._targets.append(self._target)
        self._step += 1
        self._left = pc.subtract(self._left, ONE)
        self._target = pc.add(self._target, ONE)
        more = pc.greater(self._left, ZERO)
        going_on = pc.sum(more).as_py()
        if going_on < len(self.rows):
            self._end(self.rows.places.filter(done := pc.invert(more)), self._index.filter(done))
            self.rows = self.rows.select(more) if going_on else None
            self._left, self._target, self._index = (
                item.filter(more) for item in (self._left, self._target, self._index)
            )
        if self.rows is not None and not self._pays_off(len(self.rows)):
            self._end(self.rows.places, self._index)
            self.abandoned, self.rows = self.rows, None

    def _end(self, places: pa.Array, index: pa.Array) -> None:
        self._places.append(places)
        self._done.append(index)
        self._taken.append(pc.add(zeros(len(index)), number(self._step)))

    def _pays_off(self, count: int) -> bool:
        if count >= _ENOUGH:
            return True
        longest, together = pc.max(self._left).as_py(), pc.sum(self._left).as_py()
        return bool(longest * _COST_OF_STEP < count * _COST_OF_VALUE + together)

    def ended(self) -> tuple[pa.Array, pa.Array]:
        """Return where each of the values ended, and how many items it has."""
        if len(self._done) == 1:
            return self._places[0], self._taken[0]
        order = pc.sort_indices(pa.concat_arrays(self._done))
        return tuple(pa.concat_arrays(part).take(order) for part in (self._places, self._taken))

    def items(self) -> pa.Array:
        """Return the items of all values, value by value."""
        if len(self._parts) == 1:
            return self._parts[0]
        order = pc.sort_indices(pa.concat_arrays(self._targets))
        return pa.concat_arrays(self._parts).take(order)


def spread(parts: list[tuple[pa.Array, pa.Array]], count: int, kind: pa.DataType) -> pa.Array:
    """Return an array that has the values of each part where it says, and null elsewhere.

    A part is where its values belong, as truth values, and the values.
    """
    if not parts:
        return pa.nulls(count, kind)
    if len(parts) == 1 and pa.types.is_primitive(kind) and not pa.types.is_boolean(kind):
        return pc.replace_with_mask(pa.nulls(count, kind), *parts[0])
    index = pa.nulls(count, _INT64)
    before = 0
    for where, values in parts:
        places = pc.add(pc.cumulative_sum(where.cast(_INT64)), number(before - 1))
        index = pc.if_else(where, places, index)
        before += len(values)
    return pa.concat_arrays([values for _, values in parts]).take(index)
