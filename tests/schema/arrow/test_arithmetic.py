"""Arithmetic on columns gives Python's results."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.schema.arrow.arithmetic import (
    floor_divide,
    floor_modulo,
    number,
    numbers,
    outside,
    scaled,
    zeros,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
MANY = 40_000


@pytest.mark.parametrize(
    "value, kind",
    [(2**64 - 1, pa.uint64()), (-(2**63), pa.int64()), (-(2**31), pa.int32()), (7, pa.uint64())],
)
def test_scalars(value: int, kind: Any) -> None:
    found = number(value, kind)
    assert (found.as_py(), found.type) == (value, kind)


@given(st.lists(INT64 | st.integers(-3, 3)), st.sampled_from([1, 2, 1000, 86_400_000]))
def test_division_rounds_down(values: list[int], divisor: int) -> None:
    array = pa.array(values, pa.int64())
    assert floor_divide(array, divisor).to_pylist() == [value // divisor for value in values]
    assert floor_modulo(array, divisor).to_pylist() == [value % divisor for value in values]


def test_other_units_hold_what_64_bits_hold() -> None:
    values = pa.array([-1, 2**60, None], pa.int64())
    assert scaled(values, 1, 1000).to_pylist() == [-1, 2**60 // 1000, None]
    assert scaled(values, 4, 1).to_pylist() == [-4, 2**62, None]
    assert scaled(values, 1, 1) is values
    with pytest.raises(pa.ArrowInvalid):
        scaled(values, 1000, 1)


@given(st.lists(st.none() | INT64), INT64, INT64)
def test_ranges(values: list[int | None], low: int, high: int) -> None:
    array = pa.array(values, pa.int64())
    wanted = [None if value is None else not low <= value <= high for value in values]
    assert outside(array, low, high).to_pylist() == wanted


@pytest.mark.parametrize("count", [0, 1, 5, MANY])
def test_numbers_in_a_row(count: int) -> None:
    assert numbers(count).to_pylist() == list(range(count))
    assert zeros(count).to_pylist() == [0] * count
