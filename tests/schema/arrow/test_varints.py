"""Base-128 integers of a column equal those that are written one by one."""

from __future__ import annotations

import pyarrow as pa
import pytest
from google.protobuf import wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.schema.arrow.varints import varint, varints, zigzag

UINT64 = st.integers(0, 2**64 - 1) | st.integers(0, 20_000)
EDGES = [0, 1, 127, 128, 16_383, 16_384, 2**21, 2**28, 2**63 - 1, 2**63, 2**64 - 1]


def protobuf_varint(number: int) -> bytes:
    data: bytes = wrappers_pb2.UInt64Value(value=number).SerializeToString()
    return data[1:] or b"\0"


@given(UINT64)
def test_one_number(number: int) -> None:
    assert varint(number) == protobuf_varint(number)


@given(st.lists(UINT64))
def test_numbers(numbers: list[int]) -> None:
    check(numbers)


@pytest.mark.parametrize("count", range(len(EDGES) + 1))
def test_numbers_up_to_each_length(count: int) -> None:
    check(EDGES[:count])
    check(EDGES[:count][::-1])


def check(numbers: list[int]) -> None:
    # A slice, like the columns of batches.
    found = varints(pa.array([5, *numbers, 5], pa.uint64()).slice(1, len(numbers)))
    found.validate(full=True)
    assert found.to_pylist() == [protobuf_varint(number) for number in numbers]


@pytest.mark.parametrize("value,data", [(0, "00"), (-1, "01"), (1, "02"), (-65, "8101")])
def test_one_number_with_a_sign(value: int, data: str) -> None:
    assert zigzag(value).hex() == data
