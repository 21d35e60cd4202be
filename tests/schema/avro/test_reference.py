"""Values read one by one: the specification's examples, and the paths of errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.schema.avro.definition import parse_definition
from pulsar_spark.schema.avro.reference import (
    Read,
    ValueCursor,
    read_long,
    read_value,
    reader_of,
)
from pulsar_spark.schema.avro.resolution import resolve_columns
from pulsar_spark.schema.avro.types import arrow_columns
from pulsar_spark.schema.codec import Mismatch
from tests.schema.avro.random_values import encoded


def reader(tree: Any) -> Read:
    node = parse_definition(json.dumps(tree).encode())
    return reader_of(resolve_columns(node, node, arrow_columns(node)))


@pytest.mark.parametrize(
    "data,number",
    [
        (b"\0", 0),
        (b"\1", -1),
        (b"\2", 1),
        (b"\x7f", -64),
        (b"\x80\1", 64),
        (b"\xfe" + b"\xff" * 8 + b"\1", 2**63 - 1),
        (b"\xff" * 9 + b"\1", -(2**63)),
    ],
)
def test_numbers_are_read_as_the_specification_writes_them(data: bytes, number: int) -> None:
    cursor = ValueCursor(data + b"rest")
    assert read_long(cursor) == number
    assert cursor.pos == len(data)


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_are_read_as_fastavro_writes_them(number: int) -> None:
    assert read_long(ValueCursor(encoded("long", [number])[0])) == number


def test_records_are_lists_of_their_fields() -> None:
    inner = {"type": "array", "items": {"type": "map", "values": "boolean"}}
    tree = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "string"}, {"name": "b", "type": inner}],
    }
    data = encoded(tree, [{"a": "x", "b": [{"k": True}, {}]}])[0]
    assert read_value(reader(tree), data) == [b"x", [[(b"k", True)], []]]


def test_the_error_has_the_path_of_the_field() -> None:
    leaf = {"type": "record", "name": "L", "fields": [{"name": "x", "type": "int"}]}
    inner = {"type": "array", "items": {"type": "map", "values": ["null", leaf]}}
    tree = {"type": "record", "name": "R", "fields": [{"name": "a", "type": inner}]}
    data = encoded(tree, [{"a": [{"k": {"x": 2**30}}]}])[0]
    with pytest.raises(Mismatch) as caught:
        read_value(reader(tree), data[:7])
    assert caught.value.field == "a[]{}.x"


def test_what_follows_a_value_is_wrong() -> None:
    with pytest.raises(match="2 bytes follow the value"):
        read_value(reader("long"), b"\0\0\0")
