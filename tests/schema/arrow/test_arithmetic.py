"""Arithmetic on columns gives Python's results."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.schema.arrow.arithmetic import floor_divide, floor_modulo, number, outside

INT64 = st.integers(-(2**63), 2**63 - 1)


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


@given(st.lists(st.none() | INT64), INT64, INT64)
def test_ranges(values: list[int | None], low: int, high: int) -> None:
    array = pa.array(values, pa.int64())
    wanted = [None if value is None else not low <= value <= high for value in values]
    assert outside(array, low, high).to_pylist() == wanted
