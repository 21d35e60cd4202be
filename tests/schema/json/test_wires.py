"""Columns that Arrow read are converted to their shapes, at any offset."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.schema.avro.definition import parse_definition
from pulsar_spark.schema.json.arrow_reader import ObjectReader, Refused, finish
from pulsar_spark.schema.json.types import Dialect, Shape, shape_of
from tests.schema.json.cases import logical, nullable, plain, record

TIMES = [
    ("timestamp-millis", [-1, None, 5], [-1000, None, 5000]),
    ("timestamp-micros", [-1, None, 5], [-1, None, 5]),
    ("timestamp-nanos", [-1, None, 1999], [-1, None, 1]),
    ("local-timestamp-millis", [-1, None, 5], [-1000, None, 5000]),
    ("time-micros", [0, None, 5], [0, None, 5000]),
]


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def shape(kind: Any) -> Shape:
    node = parse_definition(json.dumps(kind).encode())
    return shape_of(node, node, Dialect())


@pytest.mark.parametrize("name,read,wanted", TIMES)
def test_times_in_their_unit_alone_and_in_records_and_arrays(
    name: str, read: list[Any], wanted: list[Any]
) -> None:
    kind = nullable(logical("long", name))
    for inner, wrap in (
        (kind, lambda value: value),
        (record([("a", kind)]), lambda value: {"a": value}),
        ({"type": "array", "items": kind}, lambda value: [value, value]),
        (
            {"type": "array", "items": record([("a", {"type": "array", "items": kind})])},
            lambda value: None if value is None else [{"a": [value]}, None, {"a": None}],
        ),
    ):
        found = shape(inner)
        wire = pa.array([*map(wrap, read), None], found.wire)
        for start in range(len(read)):
            column = finish(wire.slice(start), found)
            column.validate(full=True)
            assert column.type == found.kind
            assert plain(column) == [*map(wrap, wanted[start:]), None]


def test_times_beyond_64_bits_are_refused() -> None:
    found = shape(logical("long", "timestamp-millis"))
    with pytest.raises(Refused):
        finish(pa.array([2**62], pa.int64()), found)


def test_the_error_names_the_row_whose_value_cannot_be_stored() -> None:
    moments = array(logical("long", "timestamp-millis"))
    rows = [[1], None, [], [2, 3], [4, 2**62], [5], [2**62]]
    with pytest.raises(Refused) as caught:
        finish(pa.array(rows, shape(moments).wire), shape(moments))
    assert caught.value.row == 4


def test_decimals_of_more_digits_than_the_type_has_are_refused() -> None:
    decimal = nullable(logical("bytes", "decimal", precision=4, scale=2))
    reader = ObjectReader({"x": shape(decimal).wire, "y": shape(array(decimal)).wire})
    for number, fits in (("99.99", True), ("-1e1", True), ("100", False), ("-1e2", False)):
        rows = pa.array([b'{"x": %b, "y": [null, %b]}' % ((number.encode(),) * 2), b"{}"])
        for column, kind in zip(reader.read(rows), (decimal, array(decimal)), strict=True):
            if fits:
                finish(column, shape(kind)).validate(full=True)
            else:
                with pytest.raises(Refused):
                    finish(column, shape(kind))


def test_base64_becomes_bytes() -> None:
    found = shape("bytes")
    column = finish(pa.array(["AP8=", None, ""]), found)
    assert column.equals(pa.array([b"\x00\xff", None, b""], pa.binary()))
    for text in ("a", "AP8", "A*==", "é"):
        with pytest.raises(Refused):
            finish(pa.array([text]), found)


def test_floats_are_the_nearest_there_is() -> None:
    column = finish(pa.array([0.1, 1e39, None], pa.float64()), shape("float"))
    assert column.equals(pa.array([0.1, float("inf"), None], pa.float32()))
