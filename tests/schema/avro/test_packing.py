"""Numbers, texts and lists as bytes, for many values at once."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.schema.avro import packing
from pulsar_spark.schema.avro.definition import zigzag

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(
    st.lists(INT64)
    | st.lists(st.integers(-64, 63))
    | st.lists(st.integers(-(2**55), 2**55 - 1))
    | st.lists(st.sampled_from([-(2**63), 2**63 - 1, 2**55, -(2**55) - 1, 2**62, -1, 0]))
)
def test_numbers(values: list[int]) -> None:
    parts = packing.varints(pa.array(values, pa.int64()))
    for part in parts:
        part.validate(full=True)
    found = packing.joined(parts, len(values))
    assert found.to_pylist() == [zigzag(value) for value in values]


@given(st.lists(st.text(max_size=100)))
def test_texts(values: list[str]) -> None:
    found = packing.joined(packing.texts(pa.array(values, pa.string())), len(values))
    wanted = [value.encode() for value in values]
    assert found.to_pylist() == [zigzag(len(value)) + value for value in wanted]


@given(st.lists(st.lists(st.binary(max_size=5), max_size=5)))
def test_blocks(values: list[list[bytes]]) -> None:
    sizes = pa.array([len(value) for value in values], pa.int64())
    items = pa.array([item for value in values for item in value], pa.binary())
    found = packing.joined(packing.blocks(sizes, items), len(values))
    wanted = [zigzag(len(v)) + b"".join(v) + (b"\0" if v else b"") for v in values]
    assert found.to_pylist() == wanted


def test_what_is_the_same_in_each_row() -> None:
    assert packing.joined([], 2).to_pylist() == [b"", b""]
    assert packing.joined([packing.constant(b"x")], 2).to_pylist() == [b"x", b"x"]
    mixed = packing.joined([packing.constant(b"x"), pa.array([b"a", b"b"])], 2)
    assert mixed.to_pylist() == [b"xa", b"xb"]


def test_fixed_sizes_and_truth_values() -> None:
    data = pa.py_buffer(b"abcdef")
    assert packing.fixed_sized(data, 3, 2).to_pylist() == [b"abc", b"def"]
    assert packing.fixed_sized(data, 0, 2).to_pylist() == [b"", b""]
    assert packing.booleans(pa.array([True, False])).to_pylist() == [b"\1", b"\0"]
