"""Columns of values converted one by one equal those that pyarrow makes itself."""

from __future__ import annotations

import json
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.schema.arrow.arrays import build_array
from pulsar_spark.schema.avro.definition import parse_definition
from pulsar_spark.schema.json.types import Dialect, shape_of
from tests.schema.json.cases import logical, nullable, record

CASES: list[tuple[Any, list[Any], list[Any]]] = [
    ("null", [None, None], [None, None]),
    ("boolean", [True, None, False], [True, None, False]),
    ("int", [1, None], [1, None]),
    ("float", [struct.pack("f", 0.5), None], [0.5, None]),
    ("string", [b"\xc3\xa9", None], ["é", None]),
    ("bytes", [b"\xff", None], [b"\xff", None]),
    (
        logical("bytes", "decimal", precision=38, scale=2),
        [-1, None, 10**38 - 1],
        [Decimal("-0.01"), None, Decimal("9" * 36 + ".99")],
    ),
    (
        {"type": "array", "items": nullable("long")},
        [[1, None], None, [], [2]],
        [[1, None], None, [], [2]],
    ),
    (
        {"type": "map", "values": "boolean"},
        [[(b"a", True)], None, [], [(b"b", None)]],
        [[("a", True)], None, [], [("b", None)]],
    ),
    (
        record([("a", "int"), ("b", "string")]),
        [(1, b"x"), None, (None, None)],
        [{"a": 1, "b": "x"}, None, {"a": None, "b": None}],
    ),
    (
        ["int", "string"],
        [(1, None), (None, b"x"), None],
        [{"member0": 1, "member1": None}, {"member0": None, "member1": "x"}, None],
    ),
    (record([]), [(), None], [{}, None]),
]


@pytest.mark.parametrize("kind,values,wanted", CASES)
def test_columns(kind: Any, values: list[Any], wanted: list[Any]) -> None:
    node = parse_definition(json.dumps(kind).encode())
    shape = shape_of(node, node, Dialect())
    for count in range(len(values) + 1):
        found = build_array(values[:count], shape.kind)
        found.validate(full=True)
        assert found.equals(pa.array(wanted[:count], shape.kind))
        assert found.to_pylist() == wanted[:count]
