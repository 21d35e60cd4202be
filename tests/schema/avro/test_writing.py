"""Writers of columns: bytes that fastavro reads, and the place of mismatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.schema.arrow.varints import zigzag
from pulsar_spark.schema.avro import writing
from pulsar_spark.schema.avro.writing import Write, required
from pulsar_spark.schema.codec import Mismatch
from tests.schema.avro.random_values import encoded

INTS = pa.int32()


@pytest.mark.parametrize(
    "tree,write,kind,values",
    [
        ("long", writing.write_long, pa.int16(), [1, -300]),
        ("boolean", writing.write_boolean, pa.bool_(), [True, False]),
        ("float", writing.write_floating(pa.float32()), pa.float32(), [0.5, -1.0]),
        ("double", writing.write_floating(pa.float64()), INTS, [1, -300]),
        ("string", writing.write_text, pa.string(), ["a", "Zürich", ""]),
        ("bytes", writing.write_text, pa.binary(), [b"\xff", b""]),
        ("null", writing.write_null, pa.null(), [None, None]),
        (["null", "int"], writing.write_nullable(0, 1, writing.write_long), INTS, [1, None, 3]),
        (["int", "null"], writing.write_nullable(1, 0, writing.write_long), INTS, [None, 2]),
        (
            {"type": "array", "items": "int"},
            writing.write_array(writing.write_long),
            pa.list_(INTS),
            [[1, 2], [], [300]],
        ),
        (
            {"type": "map", "values": "int"},
            writing.write_map(writing.write_long),
            pa.map_(pa.string(), INTS),
            [{"a": 1, "b": 2}, {}],
        ),
    ],
)
def test_columns_are_written_as_fastavro_does(
    tree: Any, write: Write, kind: pa.DataType, values: Sequence[Any]
) -> None:
    given = [list(v.items()) if isinstance(v, dict) else v for v in values]
    column = pa.array(given, kind)
    assert write(column).to_pylist() == encoded(tree, values)
    # A part of a column has an offset.
    assert write(column.slice(1)).to_pylist() == encoded(tree, values[1:])
    assert write(column.slice(0, 0)).to_pylist() == []


def test_a_mismatch_has_the_index_of_its_row() -> None:
    ints = required(writing.write_long)
    lists = writing.write_nullable(0, 1, writing.write_array(ints))
    column = pa.array([[1, 2], None, [], [3, 4], [5, None]], pa.list_(INTS))
    with pytest.raises(Mismatch) as caught:
        lists(column)
    assert (caught.value.row, caught.value.field) == (4, "[]")
    with pytest.raises(Mismatch) as caught:
        lists(column.slice(2))
    assert caught.value.row == 2


def test_fields_that_are_missing_are_written_as_they_are_given() -> None:
    write = writing.write_record([("a", 0, writing.write_long), b"\2x"])
    column = pa.array([{"a": 1}, {"a": 2}], pa.struct([("a", INTS)]))
    assert write(column).to_pylist() == [b"\2\2x", b"\4\2x"]
    assert writing.write_record([])(column).to_pylist() == [b"", b""]


@given(st.lists(st.text(max_size=100)))
def test_texts(values: list[str]) -> None:
    found = writing.write_text(pa.array(values, pa.string()))
    wanted = [value.encode() for value in values]
    assert found.to_pylist() == [zigzag(len(value)) + value for value in wanted]


@given(st.lists(st.lists(st.binary(max_size=5), max_size=5)))
def test_lists(values: list[list[bytes]]) -> None:
    found = writing.write_array(lambda items: items)(pa.array(values, pa.list_(pa.binary())))
    wanted = [zigzag(len(v)) + b"".join(v) + (b"\0" if v else b"") for v in values]
    assert found.to_pylist() == wanted
