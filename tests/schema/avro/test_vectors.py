"""Numbers and bytes read from many places at once."""

from __future__ import annotations

from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.schema.arrow.arithmetic import numbers, zeros
from pulsar_spark.schema.arrow.varints import zigzag
from pulsar_spark.schema.avro.vectors import Window, halves

INT64 = st.integers(-(2**63), 2**63 - 1)


def places(parts: list[bytes]) -> tuple[Window, pa.Array, pa.Array]:
    edges = list(accumulate((len(part) for part in parts), initial=0))
    window = Window(pa.py_buffer(b"".join(parts)))
    return window, pa.array(edges[:-1], pa.int64()), pa.array(edges[1:], pa.int64())


@given(st.lists(INT64 | st.integers(-100, 100) | st.integers(-(2**56), 2**56), min_size=1))
def test_numbers_of_any_size(values: list[int]) -> None:
    parts = [zigzag(value) for value in values]
    window, starts, _ = places(parts)
    found, sizes, invalid = window.varints(starts)
    assert found.to_pylist() == values
    assert pc.add(zeros(len(parts)), sizes).to_pylist() == [len(part) for part in parts]
    assert invalid is None or not any(invalid.to_pylist())
    again, invalid = window.varint_sizes(starts)
    assert pc.add(zeros(len(parts)), again).to_pylist() == [len(part) for part in parts]
    assert invalid is None or not any(invalid.to_pylist())


@pytest.mark.parametrize(
    "data", [b"\x80" * 10 + b"\1", b"\xff" * 9 + b"\2", b"\x80" * 9 + b"\x81", b"\xff" * 10]
)
def test_numbers_of_more_than_64_bits_are_invalid(data: bytes) -> None:
    window, starts, _ = places([zigzag(5), data, zigzag(2**60)])
    found, _, invalid = window.varints(starts)
    assert invalid is not None
    assert invalid.to_pylist() == [False, True, False]
    assert [found[0].as_py(), found[2].as_py()] == [5, 2**60]


@given(st.lists(st.binary(max_size=30), min_size=1))
def test_slices(parts: list[bytes]) -> None:
    window, starts, ends = places(parts)
    found = window.slices(starts, ends)
    found.validate(full=True)
    assert found.to_pylist() == parts


@given(st.binary(min_size=1, max_size=50))
def test_words_and_bytes_at_any_place_even_at_the_end(data: bytes) -> None:
    window = Window(pa.py_buffer(data))
    everywhere = numbers(len(data) + 2)
    padded = data + bytes(20)
    assert window.bytes_at(everywhere).to_pylist() == list(padded[: len(data) + 2])
    words = [
        int.from_bytes(padded[at : at + 8], "little", signed=True) for at in range(len(data) + 2)
    ]
    assert window.words(everywhere).to_pylist() == words
    low, high = halves(window.words(everywhere))
    assert low.to_pylist() == [word & 0xFFFFFFFF for word in words]
    assert high.to_pylist() == [word >> 32 & 0xFFFFFFFF for word in words]
