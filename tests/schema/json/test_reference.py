"""Values one by one: which fit a type, their results, and the errors of others."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.schema.avro.definition import parse_definition
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.json.reference import converter, parse
from pulsar_spark.schema.json.types import Dialect, Shape, shape_of
from tests.schema.json.cases import logical, record


def shape(kind: Any) -> Shape:
    node = parse_definition(json.dumps(kind).encode())
    return shape_of(node, node, Dialect())


def convert(kind: Any, text: str) -> Any:
    return converter(shape(kind))(parse(text.encode()))


DOUBLE = struct.Struct("d").pack
MILLIS = logical("long", "timestamp-millis")
MICROS = logical("long", "timestamp-micros")
NANOS = logical("long", "timestamp-nanos")
LOCAL = logical("long", "local-timestamp-micros")
DECIMAL = logical("bytes", "decimal", precision=5, scale=2)
ENUM = {"type": "enum", "name": "E", "symbols": ["A"]}
LEFT = record([("a", "int")], "Left")
RIGHT = record([("a", "int"), ("b", ["null", "int"])], "Right")

FITTING = [
    ("boolean", "true", True),
    ("boolean", '"true"', True),
    ("boolean", '""', None),
    ("int", "-2147483648", -(2**31)),
    ("int", '"5"', 5),
    ("int", '"5.0"', 5),
    ("int", '""', None),
    ("int", "1.0", 1),
    ("long", "1e3", 1000),
    ("long", "9223372036854775807", 2**63 - 1),
    ("double", "1", DOUBLE(1.0)),
    ("double", '"1.5"', DOUBLE(1.5)),
    ("double", '""', None),
    ("double", '"NaN"', DOUBLE(float("nan"))),
    ("double", "Infinity", DOUBLE(float("inf"))),
    ("double", "1" * 5000, DOUBLE(float("inf"))),
    ("double", "1e400", DOUBLE(float("inf"))),
    ("float", "1e39", struct.pack("f", float("inf"))),
    ("float", "16777217", struct.pack("f", 16777216)),
    ("string", '"\\u00e9"', "é".encode()),
    ("string", "1.50", b"1.50"),
    ("string", "-0", b"-0"),
    ("string", "true", b"true"),
    ("string", '""', b""),
    (ENUM, '"B"', b"B"),
    (ENUM, "7", b"7"),
    ("bytes", '"AP8="', b"\x00\xff"),
    (DECIMAL, "1.5", 150),
    (DECIMAL, '"-1.5"', -150),
    (DECIMAL, '""', None),
    (DECIMAL, "0e-999999", 0),
    (DECIMAL, "999.99", 99_999),
    (logical("int", "date"), '"1969-12-31"', -1),
    (logical("int", "date"), "19782", 19782),
    (MILLIS, "-1", -1000),
    (MICROS, "-1", -1),
    (NANOS, "-1", -1),
    (MILLIS, '"1970-01-02T00:00Z"', 86_400_000_000),
    (MILLIS, '"1969-12-31T23:59:59.999999999-00:30"', 1_799_999_999),
    (LOCAL, '"1970-01-01 00:00:01,5"', 1_500_000),
    (LOCAL, '""', None),
    (logical("int", "time-millis"), "1", 1_000_000),
    (logical("long", "time-micros"), '"00:00:01.000000001"', 1_000_000_001),
    (["int", "string"], '"x"', (None, b"x")),
    (["int", "string"], '"5"', (None, b"5")),
    (["int", "string"], '""', (None, b"")),
    (["null", "long", "double", "string"], "1", (1, None, None)),
    (["null", "long", "double", "string"], "1.0", (None, DOUBLE(1.0), None)),
    (["double", "long", "string"], "1", (None, 1, None)),
    ([LEFT, RIGHT], '{"a":1}', ([1], None)),
    ([LEFT, RIGHT], '{"a":1,"b":2}', (None, [1, 2])),
    ([ENUM, "string"], '"A"', (b"A", None)),
    ([ENUM, "string"], '"B"', (None, b"B")),
    ({"type": "map", "values": "int"}, '{"b":1,"a":null}', [(b"a", None), (b"b", 1)]),
]


@pytest.mark.parametrize("kind,text,wanted", FITTING)
def test_what_fits(kind: Any, text: str, wanted: Any) -> None:
    found = convert(kind, text)
    assert found == wanted
    assert type(found) is type(wanted)


MISFITS = [
    ("boolean", "1"),
    ("boolean", '"True"'),
    ("int", '"1.5"'),
    ("int", '"0x1"'),
    ("int", '" 1"'),
    ("double", '"1."'),
    ("string", "[]"),
    (["int", "string"], "true"),
    ("int", "2147483648"),
    ("int", "1.5"),
    ("int", "true"),
    ("int", "NaN"),
    ("int", "1e99999999999999999999"),
    ("int", "1e999999999"),
    ("long", "9" * 5000),
    ("double", "true"),
    ("double", '"nan"'),
    ("string", '"\\ud800"'),
    ("bytes", '"a"'),
    ("bytes", '"AP8"'),
    ("bytes", "[0,255]"),
    (ENUM, "true"),
    (DECIMAL, "1.005"),
    (DECIMAL, "1000"),
    (DECIMAL, "1e-9"),
    (DECIMAL, "NaN"),
    (DECIMAL, '"x"'),
    (DECIMAL, "1." + "0" * 2000),
    (DECIMAL, "1e999999999999"),
    (logical("int", "date"), '"2024-02-30"'),
    (logical("int", "date"), '"20240229"'),
    (logical("int", "date"), "2147483648"),
    (MILLIS, "9223372036854775807"),
    (MILLIS, '"1700000000000"'),
    (MILLIS, "1.5"),
    (MILLIS, '"2024-02-29"'),
    (MILLIS, '"2024-02-29T24:00:00Z"'),
    (LOCAL, '"2024-02-29T00:00:00Z"'),
    (logical("int", "time-millis"), '"noon"'),
    (["int", "boolean"], '"x"'),
    (LEFT, "[]"),
    ({"type": "array", "items": "int"}, "{}"),
    ({"type": "map", "values": "int"}, "[]"),
    ({"type": "map", "values": "int"}, '{"\\ud800":1}'),
    ("null", "1"),
]


@pytest.mark.parametrize("kind,text", MISFITS)
def test_what_does_not_fit(kind: Any, text: str) -> None:
    with pytest.raises(Mismatch) as caught:
        convert(kind, text)
    assert caught.value.reason.startswith("it ")


@given(st.floats(allow_nan=False))
def test_doubles_are_what_json_reads(value: float) -> None:
    text = json.dumps(value)
    assert convert("double", text) == struct.pack("d", json.loads(text))


@given(st.integers(-(10**6), 10**6), st.integers(-3, 3))
def test_decimals_are_exact_or_refused(digits: int, exponent: int) -> None:
    try:
        found = convert(DECIMAL, f"{digits}e{exponent}")
    except Mismatch:
        scaled = digits * 10 ** (exponent + 3)
        assert scaled % 10 or abs(scaled) >= 10**6
    else:
        assert found * 10 == digits * 10 ** (exponent + 3)


def test_the_path_leads_to_what_does_not_fit() -> None:
    kind = record([("a", {"type": "array", "items": {"type": "map", "values": LEFT}})])
    with pytest.raises(Mismatch) as caught:
        convert(kind, '{"a":[null,{"k":{"a":"x"}}]}')
    assert caught.value.field == "a[1]{'k'}.a"


@pytest.mark.parametrize("value", [b"", b"{", b"{}{}", b"\xff", b"{'a':1}"])
def test_what_is_not_json_is_said_to_be_so(value: bytes) -> None:
    with pytest.raises(Mismatch, match=r"not JSON|not UTF-8"):
        parse(value)
