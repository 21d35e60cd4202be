"""Decimals of at most 64 bits: their bytes, as columns."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.schema.avro import decimals

INT64 = st.integers(-(2**63), 2**63 - 1)
ANY_SIZE = st.integers(1, 63).flatmap(lambda bits: st.integers(-(2**bits), 2**bits - 1))


def least(value: int) -> int:
    return (value if value >= 0 else ~value).bit_length() // 8 + 1


@given(st.lists(ANY_SIZE | st.sampled_from([-(2**63), 2**63 - 1, 127, 128, -128, -129])))
def test_numbers_become_as_few_bytes_as_they_take_and_back(values: list[int]) -> None:
    given_numbers = pa.array(values, pa.int64())
    sizes = decimals.sizes_of(given_numbers)
    assert sizes.to_pylist() == [least(value) for value in values]
    words = decimals.to_words(given_numbers, sizes)
    found = [
        (word & 2**64 - 1).to_bytes(8, "little")[:size]
        for word, size in zip(words.to_pylist(), sizes.to_pylist(), strict=True)
    ]
    assert found == [value.to_bytes(least(value), "big", signed=True) for value in values]
    assert decimals.swapped(decimals.swapped(given_numbers)).to_pylist() == values


@given(st.lists(INT64), st.integers(1, 30))
def test_numbers_of_too_many_digits_are_found(values: list[int], digits: int) -> None:
    found = decimals.beyond(pa.array(values, pa.int64()), digits)
    assert found.to_pylist() == [abs(value) >= 10**digits for value in values]


@given(st.lists(st.integers(-(10**18) + 1, 10**18 - 1)))
def test_decimals_are_numbers_with_a_point(values: list[int]) -> None:
    kind = pa.decimal128(18, 4)
    found = pa.array([Decimal(value).scaleb(-4) for value in values], kind)
    assert decimals.without_points(found).to_pylist() == values
    assert decimals.without_points(found.slice(1)).to_pylist() == values[1:]
