"""Binary arrays as columns of byte strings."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest

from pulsar_spark.protocol.byte_column import ByteColumn, edges_of, sizes_of
from pulsar_spark.schema.arrow.byte_column import byte_values, without_nulls

VALUES = [b"", b"a", b"", b"bc" * 100, b"d", b""]
BINARY = pa.binary()
KINDS = pytest.mark.parametrize("kind", [BINARY, pa.large_binary()], ids=str)


def column(values: list[bytes], kind: pa.DataType = BINARY, skipped: int = 0) -> ByteColumn:
    """Return values behind others in the same buffers."""
    found = byte_values(pa.array([b"skipped"] * skipped + values, kind).slice(skipped))
    assert isinstance(found, ByteColumn)
    return found


@KINDS
@pytest.mark.parametrize("skipped", [0, 2])
def test_a_column_is_the_sequence_of_its_values(kind: pa.DataType, skipped: int) -> None:
    found = column(VALUES, kind, skipped)
    assert (list(found), len(found)) == (VALUES, 6)
    assert [found[index] for index in range(-6, 6)] == VALUES * 2
    for part in (slice(1, 4), slice(2, None), slice(-3, -1), slice(0, 99), slice(None, None, 2)):
        assert list(found[part]) == VALUES[part]
        assert list(found[1:][part]) == VALUES[1:][part]
    assert list(found[4:2]) == []
    assert found.take([5, 3, 3]) == [VALUES[5], VALUES[3], VALUES[3]]
    assert found.take([]) == []
    assert b"d" in found
    assert b"e" not in found
    assert None not in found
    with pytest.raises(IndexError):
        found[6]


@KINDS
def test_edges_cut_the_joined_bytes_into_the_values(kind: pa.DataType) -> None:
    for found in (column(VALUES, kind), column(VALUES, kind, 3), column(VALUES, kind, 3)[0:]):
        for part in (found, found[2:5], found[3:3]):
            assert isinstance(part, ByteColumn)
            edges, data = part.edges.tolist(), part.joined()
            cuts = [edge - edges[0] for edge in edges]
            assert [data[a:b] for a, b in pairwise(cuts)] == list(part)
            assert cuts[-1] == len(data)


@KINDS
def test_sizes_and_edges_are_those_of_lists(kind: pa.DataType) -> None:
    beside = [b"k" * number for number in range(6)]
    columns, others = column(VALUES, kind, 2)[1:], column(beside, skipped=1)[1:]
    assert isinstance(columns, ByteColumn)
    assert sizes_of(columns) == sizes_of(VALUES[1:])
    wanted = edges_of([VALUES[1:], beside[1:]])
    for edges in (
        edges_of([columns, others]),
        edges_of([columns, beside[1:]]),
        edges_of([VALUES[1:], others]),
    ):
        assert [edge - edges[0] for edge in edges] == wanted
    wanted = edges_of([VALUES[1:], beside[1:], VALUES[1:]])
    for edges in edges_of([columns, others, columns]), edges_of([columns, beside[1:], columns]):
        assert [edge - edges[0] for edge in edges] == wanted
    assert [edge - columns.edges[0] for edge in edges_of([columns])] == edges_of([VALUES[1:]])


def test_a_missing_value_has_no_bytes() -> None:
    assert edges_of([[b"ab", b"c", b""], [None, b"def", None]]) == [0, 2, 6, 6]


def test_values_with_a_null_and_no_values_are_a_list() -> None:
    assert byte_values(pa.array([b"a", None], pa.binary())) == [b"a", None]
    assert byte_values(pa.array([], pa.binary())) == []


def test_values_that_are_all_empty_are_a_column() -> None:
    found = column([b"", b""])
    assert (list(found), found.joined()) == ([b"", b""], b"")


def test_nulls_are_replaced_and_marked() -> None:
    values, nulls = without_nulls([b"a", None, b""])
    assert values == [b"a", b"", b""]
    assert nulls is not None
    assert nulls.to_pylist() == [False, True, False]


def test_a_column_without_nulls_is_left_as_it_is() -> None:
    for values in (column(VALUES), VALUES):
        assert without_nulls(values) == (values, None)
