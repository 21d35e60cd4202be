"""Omitted rows come back as nulls, in their places."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.schema.arrow.arrays import spread, without


@given(st.lists(st.none() | st.text(max_size=3)))
def test_what_was_packed_is_spread_between_nulls_again(values: list[str | None]) -> None:
    column = pa.array(values, pa.string())
    packed = column.drop_null()
    assert spread(packed, column.is_valid()).equals(column)


@given(st.lists(st.tuples(st.none() | st.integers(0, 9), st.booleans())))
def test_rows_become_null_and_others_stay(rows: list[tuple[int | None, bool]]) -> None:
    column = pa.array([value for value, _ in rows], pa.int64())
    found = without(column, [row for row, (_, gone) in enumerate(rows) if gone])
    assert found.to_pylist() == [None if gone else value for value, gone in rows]
