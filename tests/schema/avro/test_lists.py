"""Lists that grow item by item, and values that are spread over rows."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from pulsar_spark.schema.arrow.arithmetic import number, numbers
from pulsar_spark.schema.arrow.arrays import merged
from pulsar_spark.schema.avro.reading import GrowingLists, Lists, Rows


def rows(count: int) -> Rows:
    return Rows(numbers(count), pa.array([1000] * count, pa.int64()), numbers(count))


def grow(counts: list[int]) -> tuple[GrowingLists, list[list[tuple[int, int]]]]:
    """Read lists whose items contain their row and their index."""
    lists = GrowingLists(rows(len(counts)), pa.array(counts, pa.int64()))
    kind = pa.struct([("row", pa.int64()), ("step", pa.int64())])
    step = 0
    while lists.rows is not None:
        items = [{"row": row, "step": step} for row in lists.rows.rows.to_pylist()]
        lists.rows.advance(number(2))
        lists.add(pa.array(items, kind))
        step += 1
    places, taken = lists.ended()
    flat = Lists(taken, lists.items()).array(pa.list_(kind))
    flat.validate(full=True)
    assert places.to_pylist() == [row + 2 * size for row, size in enumerate(taken.to_pylist())]
    found = [[(item["row"], item["step"]) for item in one] for one in flat.to_pylist()]
    return lists, found


@pytest.mark.parametrize("most", [1, 3, 9])
def test_items_come_to_their_lists_in_order(most: int) -> None:
    rng = Random(most)
    counts = [rng.randint(1, most) for _ in range(600)]
    lists, found = grow(counts)
    given_up = set(lists.abandoned.rows.to_pylist()) if lists.abandoned is not None else set()
    assert len(given_up) < 256
    for row, (items, count) in enumerate(zip(found, counts, strict=True)):
        size = len(items) if row in given_up else count
        assert items == [(row, step) for step in range(size)]


def test_few_long_lists_are_abandoned() -> None:
    lists, found = grow([2] * 500 + [100_000])
    assert lists.abandoned is not None
    assert lists.abandoned.rows.to_pylist() == [500]
    assert [len(items) for items in found[:500]] == [2] * 500
    assert len(found[500]) < 10


def test_repeated_keys_are_found() -> None:
    kind = pa.struct([("key", pa.string()), ("value", pa.int32())])
    keys = ["a", "b", "a", "a", "b", "b"]
    items = pa.array([{"key": key, "value": 1} for key in keys], kind)
    counts = pa.array([2, 0, 1, 3], pa.int64())
    repeated = Lists(counts, items).repeated_keys()
    assert repeated is not None
    assert repeated.to_pylist() == [3]
    assert Lists(pa.array([2, 1], pa.int64()), items.slice(0, 3)).repeated_keys() is None
    assert Lists(pa.array([0], pa.int64()), items.slice(0, 0)).repeated_keys() is None


def test_places_do_not_go_beyond_their_limits() -> None:
    some = Rows(pa.array([1, 5]), pa.array([4, 6]), numbers(2))
    some.advance(pa.array([2, 2**60]))
    assert some.places.to_pylist() == [3, 6]
    assert len(some.select(pa.array([False, True]))) == 1


@pytest.mark.parametrize("kind", [pa.int64(), pa.bool_(), pa.string(), pa.list_(pa.int32())])
def test_values_are_spread_over_rows(kind: pa.DataType) -> None:
    first = pa.array([None, None], pa.null()).cast(kind)
    where = pa.array([False, True, False, True])
    other = pa.array([True, False, False, False])
    assert merged([], 4, kind).null_count == 4
    assert len(merged([(where, first)], 4, kind)) == 4
    both = merged([(where, first), (other, first.slice(1))], 4, kind)
    assert both.type == kind
    assert len(both) == 4


def test_spread_values_lie_where_they_belong() -> None:
    where, other = pa.array([False, True, False, True]), pa.array([True, False, False, False])
    parts = [(where, pa.array(["a", "b"])), (other, pa.array(["c"]))]
    assert merged(parts, 4, pa.string()).to_pylist() == ["c", "a", None, "b"]
    numbers_only = [(where, pa.array([1, 2]))]
    assert merged(numbers_only, 4, pa.int64()).to_pylist() == [None, 1, None, 2]
