"""Defaults of fields: from JSON to the bytes that fastavro writes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.schema.arrow.varints import zigzag
from pulsar_spark.schema.avro.definition import NO_DEFAULT, encode_default, parse_definition
from tests.schema.avro.random_values import encoded

POINT = {
    "type": "record",
    "name": "P",
    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "string", "default": "why"}],
}
FIXED = {"type": "fixed", "name": "F", "size": 2}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


def encode(tree: Any, value: Any) -> bytes | None:
    return encode_default(parse_definition(json.dumps(tree).encode()), value)


@pytest.mark.parametrize(
    "tree,default,value",
    [
        ("null", None, None),
        ("boolean", True, True),
        ("int", -5, -5),
        ("int", 7.0, 7),
        ("long", 2**40, 2**40),
        ("float", 1, 1.0),
        ("double", 0.1, 0.1),
        ("bytes", "\u00ffa", b"\xffa"),
        ("string", "Zürich", "Zürich"),
        (FIXED, "\u0000\u00ff", b"\0\xff"),
        (ENUM, "B", "B"),
        ({"type": "array", "items": "int"}, [1, 2], [1, 2]),
        ({"type": "array", "items": "int"}, [], []),
        ({"type": "map", "values": "int"}, {"a": 1}, {"a": 1}),
        (POINT, {"x": 1}, {"x": 1, "y": "why"}),
        (["null", "int"], None, None),
        (["null", "int"], 3, 3),
        (["string", "null"], None, None),
    ],
)
def test_defaults_are_encoded(tree: Any, default: Any, value: Any) -> None:
    assert encode(tree, default) == encoded(tree, [value])[0]


@pytest.mark.parametrize(
    "tree,default",
    [
        ("null", 0),
        ("boolean", 1),
        ("int", 2**31),
        ("int", True),
        ("int", 0.5),
        ("int", "1"),
        ("long", 2**63),
        ("float", "NaN"),
        ("float", 10**400),
        ("float", 1e300),
        ("bytes", "\u0100"),
        ("string", 1),
        ("string", "\ud800"),
        (FIXED, "a"),
        (ENUM, "C"),
        ({"type": "array", "items": "int"}, ["a"]),
        ({"type": "map", "values": "int"}, [1]),
        (POINT, {}),
        (POINT, None),
        (["int", "string"], None),
        ("int", NO_DEFAULT),
    ],
)
def test_what_is_no_value_of_the_type_has_no_bytes(tree: Any, default: Any) -> None:
    assert encode(tree, default) is None


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_are_written_as_fastavro_does(number: int) -> None:
    assert zigzag(number) == encoded("long", [number])[0]
