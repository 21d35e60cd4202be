"""Encoded parts, column by column, are those that protobuf writes one by one."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.schema.protobuf import wire

UINT64 = st.integers(0, 2**64 - 1) | st.integers(0, 20_000)
EDGES = [0, 1, 127, 128, 16_383, 16_384, 2**21, 2**28, 2**63 - 1, 2**63, 2**64 - 1]


def protobuf_varint(number: int) -> bytes:
    data: bytes = wrappers_pb2.UInt64Value(value=number).SerializeToString()
    return data[1:] or b"\0"


@given(UINT64)
def test_one_varint(number: int) -> None:
    assert wire.varint(number) == protobuf_varint(number)


@given(st.lists(UINT64), st.binary(max_size=3))
def test_varints(numbers: list[int], head: bytes) -> None:
    check_varints([*numbers], head)


@pytest.mark.parametrize("count", range(len(EDGES) + 1))
def test_varints_up_to_each_length(count: int) -> None:
    check_varints(EDGES[:count], b"")
    check_varints(EDGES[:count][::-1], b"\x08")


def check_varints(numbers: list[int], head: bytes) -> None:
    # A slice, as columns of batches are.
    array = pa.array([5, *numbers, 5], pa.uint64()).slice(1, len(numbers))
    found = wire.varints(array, head)
    found.validate(full=True)
    assert found.to_pylist() == [head + protobuf_varint(number) for number in numbers]


@pytest.mark.parametrize("kind, code", [(pa.int32(), "i"), (pa.uint64(), "Q"), (pa.float64(), "d")])
def test_numbers_of_a_fixed_width(kind: pa.DataType, code: str) -> None:
    array = pa.array([9, 1, 2, 3], kind).slice(1, 2)
    expected = [b"\x0d" + struct.pack(f"<{code}", number) for number in (1, 2)]
    assert wire.fixed(array, b"\x0d").to_pylist() == expected
    assert wire.fixed(array.slice(0, 0)).to_pylist() == []


@given(st.lists(st.binary(max_size=300)))
def test_delimited_values(values: list[bytes]) -> None:
    found = wire.delimited(pa.array([b"x", *values], pa.binary()).slice(1), b"\x0a")
    assert found.to_pylist() == [b"\x0a" + wire.varint(len(value)) + value for value in values]


@given(st.lists(st.lists(st.binary(max_size=5), max_size=4)))
def test_parts_are_regrouped_without_a_copy(groups: list[list[bytes]]) -> None:
    parts = pa.array([b"before", *(part for group in groups for part in group)], pa.binary()).slice(
        1
    )
    places = wire.positions(pa.array([len(group) for group in groups], pa.int32()))
    found = wire.regrouped(parts, places)
    found.validate(full=True)
    assert found.to_pylist() == [b"".join(group) for group in groups]
    assert not len(parts) or found.buffers()[2].address == parts.buffers()[2].address


def test_flags_are_places_of_one_part_or_none() -> None:
    flags = pa.array([False, True, True, False])
    found = wire.regrouped(pa.array([b"a", b"b"], pa.binary()), wire.positions(flags))
    assert found.to_pylist() == [b"", b"a", b"b", b""]


def test_parts_and_constants_are_joined() -> None:
    array = pa.array([b"a", b""], pa.binary())
    assert wire.joined(wire.constant(b"<"), array, wire.constant(b">")).to_pylist() == [
        b"<a>",
        b"<>",
    ]


@pytest.mark.parametrize(
    "value, kind",
    [(2**64 - 1, pa.uint64()), (-(2**63), pa.int64()), (-(2**31), pa.int32()), (7, pa.uint64())],
)
def test_constants_are_numbers(value: int, kind: Any) -> None:
    found = wire.number(value, kind)
    assert (found.as_py(), found.type) == (value, kind)


def test_tags() -> None:
    assert wire.tag(1, wire.VARINT) == b"\x08"
    assert wire.tag(16, wire.DELIMITED) == b"\x82\x01"
    assert wire.tag(2**29 - 1, wire.END_GROUP) == b"\xfc\xff\xff\xff\x0f"
