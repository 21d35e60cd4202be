"""Values read in columns: only unusual rows are left to the careful path."""

from __future__ import annotations

import json
import struct
from itertools import accumulate
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pulsar_spark.schema.arrow.arithmetic import zeros
from pulsar_spark.schema.arrow.varints import zigzag
from pulsar_spark.schema.avro.definition import parse_definition
from pulsar_spark.schema.avro.reading import ColumnReader
from pulsar_spark.schema.avro.resolution import resolve_columns
from pulsar_spark.schema.avro.types import arrow_columns
from pulsar_spark.schema.avro.vectors import Window


def read(tree: Any, data: list[bytes]) -> tuple[list[Any], list[int]]:
    node = parse_definition(json.dumps(tree).encode())
    plan = resolve_columns(node, node, arrow_columns(node))
    edges = list(accumulate((len(item) for item in data), initial=0))
    reader = ColumnReader(Window(pa.py_buffer(b"".join(data))), zeros(len(data)))
    starts, ends = pa.array(edges[:-1], pa.int64()), pa.array(edges[1:], pa.int64())
    found = reader.read_values(plan, starts, ends)
    found.validate(full=True)
    return found.field(0).to_pylist(), reader.given_up


@pytest.mark.parametrize(
    "tree,good,value,odd",
    [
        ("long", zigzag(7), 7, b""),
        ("long", zigzag(2**62), 2**62, b"\x80" * 10),
        ("int", zigzag(7), 7, zigzag(2**40)),
        ("boolean", b"\1", True, b"\3"),
        ("double", b"\0" * 8, 0.0, b"\0" * 5),
        ("string", zigzag(1) + b"a", "a", zigzag(2**50) + b"a"),
        ("string", zigzag(1) + b"a", "a", zigzag(1) + b"\xff"),
        ("bytes", zigzag(0), b"", zigzag(-1)),
        (["null", "long"], zigzag(1) + zigzag(5), 5, zigzag(5)),
        ({"type": "array", "items": "long"}, zigzag(1) + b"\2\0", [1], zigzag(1) + b"\2"),
        ({"type": "array", "items": "long"}, b"\0", [], zigzag(-1) + b"\2\2\0"),
        ({"type": "array", "items": "double"}, b"\2" + bytes(8) + b"\0", [0.0], b"\4" + bytes(8)),
        ({"type": "array", "items": "float"}, b"\2" + bytes(4) + b"\0", [0.0], b"\2" + bytes(4)),
        ({"type": "map", "values": "long"}, b"\2\2a\2\0", [("a", 1)], b"\4\2a\2\2a\4\0"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\0", "A", zigzag(1)),
    ],
)
def test_what_is_odd_is_given_up(tree: Any, good: bytes, value: Any, odd: bytes) -> None:
    found, given_up = read(tree, [good, odd, good, good, odd])
    assert given_up == [1, 4]
    assert [found[row] for row in (0, 2, 3)] == [value] * 3


def test_a_value_that_takes_bytes_of_the_next_one_is_given_up() -> None:
    _, given_up = read("double", [b"\0" * 7, b"\0" * 9, b"\0" * 8])
    assert given_up == [0, 1]


@pytest.mark.parametrize("kind,code", [("float", "f"), ("double", "d")])
def test_lists_of_floats_keep_each_bit_whatever_their_lengths(kind: str, code: str) -> None:
    rng = Random(5)
    lists = [rng.randbytes(struct.calcsize(code) * rng.choice((0, 1, 2, 700))) for _ in range(50)]
    sizes = [len(data) // struct.calcsize(code) for data in lists]
    values = [
        zigzag(size) + data + (b"\0" if size else b"")
        for size, data in zip(sizes, lists, strict=True)
    ]
    node = parse_definition(json.dumps({"type": "array", "items": kind}).encode())
    plan = resolve_columns(node, node, arrow_columns(node))
    edges = list(accumulate(map(len, values), initial=0))
    reader = ColumnReader(Window(pa.py_buffer(b"".join(values))), zeros(len(values)))
    starts, ends = pa.array(edges[:-1], pa.int64()), pa.array(edges[1:], pa.int64())
    found = reader.read_values(plan, starts, ends).field(0)
    assert not reader.given_up
    assert pc.list_value_length(found).to_pylist() == sizes
    assert found.values.buffers()[1].to_pybytes()[: len(b"".join(lists))] == b"".join(lists)
