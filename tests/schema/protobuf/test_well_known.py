"""Invalid times, invalid JSON, and what is truncated."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2

from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.arrow.varints import varint
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.protobuf import codec
from pulsar_spark.schema.protobuf.types import Type
from pulsar_spark.schema.protobuf.well_known import (
    FIRST_SECOND,
    LAST_DURATION,
    LAST_SECOND,
    duration,
    json_message,
    split_duration,
    split_timestamp,
    timestamp,
)
from tests.schema.kernel import choose
from tests.schema.protobuf.cases import add, info_of, new_file

STAMP, SPAN = pa.timestamp("us", tz="UTC"), pa.duration("us")


def info(name: str) -> SchemaInfo:
    file = new_file()
    message = file.message_type.add(name="M")
    add(message, "a", 1, Type.TYPE_MESSAGE, type_name=f".google.protobuf.{name}")
    return info_of(file)


def framed(value: Any) -> bytes:
    data: bytes = value.SerializeToString()
    return b"\n" + varint(len(data)) + data


def micros(array: pa.Array) -> list[int | None]:
    found: list[int | None] = array.view(pa.int64()).to_pylist()
    return found


@pytest.mark.fault(94)
def test_times_outside_the_years_1_to_9999_are_errors() -> None:
    pairs = [
        (0, 0),
        (FIRST_SECOND, 0),
        (LAST_SECOND, 999_999_999),
        (-1, 999_999_999),
        (FIRST_SECOND - 1, 0),
        (LAST_SECOND + 1, 0),
        (2**63 - 1, 0),
        (-(2**63), 0),
        (0, -1),
        (0, 10**9),
        (0, -(2**31)),
    ]
    values = [framed(timestamp_pb2.Timestamp(seconds=s, nanos=n)) for s, n in pairs]
    own = info("Timestamp")
    decoded = codec.decoder(own, own, ["a"]).decode(pa.array(values, pa.binary()))
    assert micros(decoded.columns[0]) == [
        0,
        FIRST_SECOND * 10**6,
        LAST_SECOND * 10**6 + 999_999,
        -1,
        *[None] * 7,
    ]
    assert [(bad.row, bad.field) for bad in decoded.bad] == [(row, "a") for row in range(4, 11)]
    assert "years 1 to 9999" in decoded.bad[0].reason


@pytest.mark.fault(94)
def test_spans_have_one_sign_and_a_bound() -> None:
    pairs = [
        (0, 0),
        (1, 1999),
        (-1, -1999),
        (0, -1000),
        (LAST_DURATION, 999_999_999),
        (1, -1),
        (-1, 1),
        (LAST_DURATION + 1, 0),
        (-(2**63), 0),
        (0, 10**9),
    ]
    values = [framed(duration_pb2.Duration(seconds=s, nanos=n)) for s, n in pairs]
    own = info("Duration")
    decoded = codec.decoder(own, own, ["a"]).decode(pa.array(values, pa.binary()))
    assert micros(decoded.columns[0]) == [
        0,
        1_000_001,
        -1_000_001,
        -1,
        LAST_DURATION * 10**6 + 999_999,
        *[None] * 5,
    ]
    assert [bad.row for bad in decoded.bad] == [5, 6, 7, 8, 9]


def test_what_is_split_is_put_together_again() -> None:
    numbers = [0, 1, -1, 999_999, -999_999, 10**6, -(10**6), FIRST_SECOND * 10**6, 10**15 + 7]
    for number in numbers:
        seconds, nanos = split_timestamp(number, "", "")
        assert 0 <= nanos < 10**9
        assert timestamp(seconds, nanos, "") == number
        seconds, nanos = split_duration(number, "", "")
        assert seconds * nanos >= 0
        assert duration(seconds, nanos, "") == number


@pytest.mark.fault(94)
@pytest.mark.parametrize("number", [FIRST_SECOND * 10**6 - 1, (LAST_SECOND + 1) * 10**6, 2**63 - 1])
def test_times_that_protobuf_has_not_are_not_written(number: int) -> None:
    columns = pa.schema([pa.field("a", STAMP)])
    batch = pa.record_batch([pa.array([0, None, number], STAMP)], schema=columns)
    with pytest.raises(Mismatch, match="row 2: a: it is"):
        codec.encoder(info("Timestamp"), columns).encode(batch)


_LONGEST = (LAST_DURATION + 1) * 10**6 - 1


@pytest.mark.parametrize("kernel", [True, False])
def test_the_longest_spans_that_are_read_are_written(
    kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, kernel=kernel)
    spans = [
        duration_pb2.Duration(seconds=sign * LAST_DURATION, nanos=sign * nanos)
        for sign in (1, -1)
        for nanos in (0, 500_000_000, 999_999_000)
    ]
    values = pa.array(map(framed, spans), pa.binary())
    own = info("Duration")
    decoded = codec.decoder(own, own, ["a"]).decode(values)
    assert micros(decoded.columns[0])[2::3] == [_LONGEST, -_LONGEST]
    batch = pa.record_batch(list(decoded.columns), names=["a"])
    assert codec.encoder(own, batch.schema).encode(batch).equals(values)


@pytest.mark.fault(94)
@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("number", [_LONGEST + 1, -_LONGEST - 1, -(2**63)])
def test_longer_spans_are_not_written(
    number: int, kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, kernel=kernel)
    batch = pa.record_batch([pa.array([0, None, number], SPAN)], names=["a"])
    with pytest.raises(Mismatch, match=f"row 2: a: it is {number} microseconds"):
        codec.encoder(info("Duration"), batch.schema).encode(batch)


def test_json_is_read_and_written() -> None:
    text = '{"a":[1.5,"ż",null,true,{"b":{}}]}'
    own = info("Struct")
    columns = codec.arrow_schema(own)
    batch = pa.record_batch([pa.array([text, None, "{}"])], schema=columns)
    values = codec.encoder(own, columns).encode(batch)
    assert codec.decoder(own, own, ["a"]).decode(values).columns[0].to_pylist() == [
        text,
        None,
        "{}",
    ]


def test_the_keys_of_json_are_in_order_whatever_protobufs_order_is() -> None:
    own = info("Struct")
    value = struct_pb2.Struct()
    value.update({name: {"y": 1, "x": 2} for name in "hgfedcba"})
    text = codec.decoder(own, own, ["a"]).decode(pa.array([framed(value)])).columns[0][0].as_py()
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    assert list(json.loads(text)) == list("abcdefgh")


@pytest.mark.fault(44)
@pytest.mark.parametrize(
    "name, text",
    [
        ("Struct", ""),
        ("Struct", "[1]"),
        ("Struct", "{"),
        ("ListValue", "{}"),
        ("Value", "[" * 5000),
        ("Struct", '{"a":' * 5000),
    ],
)
def test_invalid_json_is_not_written(name: str, text: str) -> None:
    columns = pa.schema([pa.field("a", pa.string())])
    batch = pa.record_batch([pa.array([None, text])], schema=columns)
    encoder = codec.encoder(info(name), columns)
    with pytest.raises(
        Mismatch, match=f"row 1: .*: it is not the JSON of a google.protobuf.{name}"
    ):
        encoder.encode(batch)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_struct_with_a_number_that_json_has_not_is_bad(number: float) -> None:
    own = info("Value")
    value = framed(struct_pb2.Value(number_value=number))
    decoded = codec.decoder(own, own, ["a"]).decode(pa.array([value, b""], pa.binary()))
    assert decoded.columns[0].to_pylist() == [None, None]
    assert [(bad.row, bad.field) for bad in decoded.bad] == [(0, "a")]


def test_json_is_written_as_the_same_bytes_in_each_process() -> None:
    keys = [f"key {number}" for number in range(30)]
    text = json.dumps(dict.fromkeys(keys, 1.0))
    whole = struct_pb2.Struct()
    whole.update(dict.fromkeys(reversed(keys), 1.0))
    wanted = whole.SerializeToString(deterministic=True)
    assert json_message("google.protobuf.Struct", text.encode(), "a", "") == wanted
