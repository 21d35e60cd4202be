"""Python values to bytes and back: equal to fastavro's, with errors that name the field."""

from __future__ import annotations

import enum
import io
import json
import time as clock
from dataclasses import replace
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.codec import Mismatch, Undecodable
from pulsar_spark.schema.python_values import PythonDecoder, PythonEncoder

FIELDS: list[dict[str, Any]] = [
    {"name": "flag", "type": "boolean"},
    {"name": "small", "type": "int"},
    {"name": "large", "type": "long"},
    {"name": "ratio", "type": "float"},
    {"name": "exact", "type": "double"},
    {"name": "raw", "type": "bytes"},
    {"name": "text", "type": "string"},
    {"name": "maybe", "type": ["null", "string"], "default": None},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "counts", "type": {"type": "map", "values": "long"}},
    {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}},
    {"name": "four", "type": {"type": "fixed", "name": "Four", "size": 4}},
    {"name": "either", "type": ["null", "long", "string", "boolean"]},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "millis", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
    {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
    {"name": "tick", "type": {"type": "int", "logicalType": "time-millis"}},
    {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
    {
        "name": "price",
        "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
    },
    {
        "name": "inner",
        "type": {
            "type": "record",
            "name": "Inner",
            "fields": [
                {"name": "n", "type": "int"},
                {"name": "times", "type": {"type": "array", "items": {
                    "type": "long", "logicalType": "time-micros"}}},
            ],
        },
    },
]  # fmt: skip
DEFINITION = {"type": "record", "name": "All", "fields": FIELDS}
VALUE: dict[str, Any] = {
    "flag": True,
    "small": -5,
    "large": 2**62,
    "ratio": 1.5,
    "exact": 0.1,
    "raw": b"\x00\xff",
    "text": "grün",
    "maybe": None,
    "tags": ["a", ""],
    "counts": {"x": 1},
    "color": "GREEN",
    "four": b"abcd",
    "either": "word",
    "day": date(2024, 2, 29),
    "at": datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=timezone.utc),
    "millis": datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=timezone.utc),
    "local": datetime(2024, 2, 29, 1, 2, 3, 4),
    "clock": time(23, 59, 59, 999999),
    "tick": time(1, 2, 3, 4000),
    "id": UUID(int=5),
    "price": Decimal("-12.30"),
    "inner": {"n": 1, "times": [time(0, 0, 0, 1)]},
}


def avro(definition: Any) -> SchemaInfo:
    return SchemaInfo(pb.Schema.Avro, "AVRO", json.dumps(definition).encode())


def json_schema(definition: Any) -> SchemaInfo:
    return SchemaInfo(pb.Schema.Json, "JSON", json.dumps(definition).encode())


def record(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields]}


def decode(writer: SchemaInfo, reader: SchemaInfo, *payloads: bytes | None) -> list[Any]:
    return PythonDecoder(writer, reader).decode(pa.array(payloads, pa.binary()))


def written_by_fastavro(value: Any, definition: Any = DEFINITION) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(definition), value)
    return out.getvalue()


def test_bytes_are_those_of_the_official_clients_codec() -> None:
    assert PythonEncoder(avro(DEFINITION)).encode(VALUE) == written_by_fastavro(VALUE)


def test_values_are_those_of_the_official_clients_codec() -> None:
    payload = written_by_fastavro(VALUE)
    official = fastavro.schemaless_reader(
        io.BytesIO(payload), fastavro.parse_schema(DEFINITION), None
    )
    (found,) = decode(avro(DEFINITION), avro(DEFINITION), payload)
    assert found == official == VALUE
    assert {name: type(each) for name, each in found.items()} == {
        name: type(each) for name, each in VALUE.items()
    }


@pytest.mark.parametrize("make", [avro, json_schema])
def test_what_is_written_is_read_again(make: Any) -> None:
    info = make(DEFINITION)
    payload = PythonEncoder(info).encode(VALUE)
    assert decode(info, info, payload, None, payload) == [VALUE, None, VALUE]


@pytest.mark.parametrize(
    "kind,value",
    [
        (pb.Schema.String, "ü"),
        (pb.Schema.Bool, True),
        (pb.Schema.Int8, -128),
        (pb.Schema.Int16, 258),
        (pb.Schema.Int32, -2),
        (pb.Schema.Int64, 2**40),
        (pb.Schema.Float, 1.5),
        (pb.Schema.Double, -0.1),
        (pb.Schema.Date, date(2024, 2, 29)),
        (pb.Schema.LocalDate, date(2024, 2, 29)),
        (pb.Schema.Time, time(1, 2, 3, 4000)),
        (pb.Schema.LocalTime, time(13, 14, 15, 16)),
        (pb.Schema.Timestamp, datetime(2023, 11, 14, 22, 13, 20, tzinfo=timezone.utc)),
        (pb.Schema.Instant, datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=timezone.utc)),
        (pb.Schema.LocalDateTime, datetime(2023, 11, 14, 22, 13, 20, 123456)),
    ],
)
def test_primitives_are_read_as_they_were_written(kind: int, value: Any) -> None:
    info = SchemaInfo(kind)
    found = decode(info, info, PythonEncoder(info).encode(value), None)
    assert found == [value, None]
    assert type(found[0]) is type(value)


def test_a_moment_in_another_zone_is_the_same_moment() -> None:
    info = avro(record(("at", {"type": "long", "logicalType": "timestamp-millis"})))
    encoder = PythonEncoder(info)
    there = datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert encoder.encode({"at": there}) == encoder.encode({"at": 1704067200000})


MOMENT = ("at", {"type": "long", "logicalType": "timestamp-micros"})


@pytest.mark.parametrize("hours", [14, 5, 0, -5, -14])
@pytest.mark.parametrize("edge", [datetime.min, datetime.max])
def test_moments_at_the_ends_of_pythons_calendar_are_written(edge: datetime, hours: int) -> None:
    value = edge.replace(tzinfo=timezone(timedelta(hours=hours)))
    written = PythonEncoder(avro(record(MOMENT))).encode({"at": value})
    found: Any = fastavro.schemaless_reader(io.BytesIO(written), record(("at", "long")), None)
    assert found["at"] == (value - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(
        microseconds=1
    )


def test_a_moment_that_the_machines_zone_has_not_is_an_error_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = PythonEncoder(avro(record(MOMENT)))
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    clock.tzset()
    try:
        with pytest.raises(Mismatch, match="which is no time in UTC"):
            encoder.encode({"at": datetime.min})
    finally:
        monkeypatch.undo()
        clock.tzset()


def test_text_is_no_default_of_a_list() -> None:
    tree = record(("id", "int"), ("f", ["null", {"type": "array", "items": "string"}, "string"]))
    tree["fields"][1]["default"] = "abc"
    schema = avro(tree)
    assert decode(schema, schema, PythonEncoder(schema).encode({"id": 1})) == [
        {"id": 1, "f": "abc"}
    ]


def test_enums_of_python_and_records_of_the_official_client_are_taken() -> None:
    schema = pytest.importorskip("pulsar.schema")

    class Color(enum.Enum):
        RED = 1
        GREEN = 2

    class Row(schema.Record):  # type: ignore[name-defined,misc]
        a = schema.String()
        color = Color

    info = avro(Row.schema())
    payload = PythonEncoder(info).encode(Row(a="x", color=Color.GREEN))
    assert decode(info, info, payload) == [{"a": "x", "color": "GREEN"}]


def test_fields_that_are_left_out_get_their_defaults() -> None:
    definition = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "n", "type": "int", "default": 7},
            {"name": "raw", "type": "bytes", "default": "\u00ff"},
            {"name": "inner", "type": record(("x", ["null", "int"]), ("y", "string")),
             "default": {"x": None, "y": "d"}},
            {"name": "maybe", "type": ["null", "string"]},
            {"name": "price", "default": "\u0001",
             "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}},
        ],
    }  # fmt: skip
    definition["fields"][2]["type"]["name"] = "Inner"  # type: ignore[index]
    info = avro(definition)
    assert decode(info, info, PythonEncoder(info).encode({})) == [
        {"n": 7, "raw": b"\xff", "inner": {"x": None, "y": "d"}, "maybe": None,
         "price": Decimal("0.1")}
    ]  # fmt: skip


@pytest.mark.parametrize(
    "definition,value,field,reason",
    [
        (record(("a", "int")), {}, "a", "missing"),
        (record(("a", "int")), {"a": 1, "b": 2}, "b", "no such field"),
        (record(("a", "int")), {"a": "1"}, "a", "of the type str, not an int"),
        (record(("a", "int")), {"a": True}, "a", "not an int"),
        (record(("a", "int")), {"a": 2**31}, "a", "32 bits"),
        (record(("a", "int")), {"a": None}, "a", "None"),
        (record(("a", "int")), [1], "", "not a dict"),
        (record(("a", "float")), {"a": 1e39}, "a", "32 bits"),
        (record(("a", "double")), {"a": 10**400}, "a", "a double"),
        (record(("a", "string")), {"a": "\ud800"}, "a", "UTF-8"),
        (record(("a", "string")), {"a": b"x"}, "a", "not a str"),
        (record(("a", "bytes")), {"a": "x"}, "a", "not bytes"),
        (record(("a", ["int", "string"])), {"a": 1.5}, "a", "none of the union"),
        (record(("a", ["int", "string"])), {"a": None}, "a", "null"),
        (record(("a", {"type": "array", "items": "int"})), {"a": [1, "x"]}, "a[1]", "not an int"),
        (record(("a", {"type": "map", "values": "int"})), {"a": {"k": ""}}, "a{'k'}", "an int"),
        (record(("a", {"type": "map", "values": "int"})), {"a": {5: 1}}, "a{5}", "not a str"),
        (record(("a", {"type": "enum", "name": "E", "symbols": ["X"]})), {"a": "Y"}, "a", "X"),
        (record(("a", {"type": "fixed", "name": "F", "size": 2})), {"a": b"x"}, "a", "2 bytes"),
        (record(("a", record(("b", "int")) | {"name": "I"})), {"a": {"b": ""}}, "a.b", "an int"),
        (record(("a", {"type": "int", "logicalType": "date"})), {"a": "x"}, "a", "not a date"),
        (
            record(("a", {"type": "long", "logicalType": "local-timestamp-micros"})),
            {"a": datetime(2024, 1, 1, tzinfo=timezone.utc)},
            "a",
            "a zone",
        ),
        (
            record(("a", {"type": "long", "logicalType": "time-micros"})),
            {"a": 86_400_000_000},
            "a",
            "time of day",
        ),
        (
            record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1})),
            {"a": Decimal("1.23")},
            "a",
            "decimal",
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [avro, json_schema], ids=["avro", "json"])
def test_what_does_not_fit_is_named_with_its_field(
    make: Any, definition: Any, value: Any, field: str, reason: str
) -> None:
    with pytest.raises(Mismatch, match=reason) as caught:
        PythonEncoder(make(definition)).encode(value)
    assert caught.value.field == field


def test_a_union_takes_whole_numbers_as_such() -> None:
    info = avro(record(("a", ["double", "long", "string"])))
    payloads = [PythonEncoder(info).encode({"a": each}) for each in (5, 2.5, "x")]
    found = [row["a"] for row in decode(info, info, *payloads)]
    assert found == [5, 2.5, "x"]
    assert [type(each) for each in found] == [int, float, str]


def test_a_value_of_another_version_is_resolved_to_the_readers() -> None:
    old = avro(record(("a", "int"), ("gone", "string")))
    new = avro(
        {
            "type": "record",
            "name": "R",
            "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "int", "default": 3}],
        }
    )
    assert decode(old, new, PythonEncoder(old).encode({"a": 1, "gone": ""})) == [{"a": 1, "b": 3}]


def test_one_bad_value_does_not_spoil_the_others() -> None:
    info = avro(record(("a", "int"), ("b", "string")))
    good = PythonEncoder(info).encode({"a": 1, "b": "x"})
    first, bad, last = decode(info, info, good, good[:-1], good)
    assert first == last == {"a": 1, "b": "x"}
    assert isinstance(bad, Undecodable)
    assert bad.field == "b"


def test_a_time_that_python_cannot_hold_is_bad_by_itself() -> None:
    info = avro(record(("at", {"type": "long", "logicalType": "timestamp-millis"})))
    encoder = PythonEncoder(info)
    far, near = encoder.encode({"at": 2**50}), encoder.encode({"at": 0})
    bad, good = decode(info, info, far, near)
    assert isinstance(bad, Undecodable)
    assert bad.field == "at"
    assert good == {"at": datetime(1970, 1, 1, tzinfo=timezone.utc)}


def test_javas_own_classes_are_text_with_their_json() -> None:
    year = {"type": "record", "name": "Year", "namespace": "java.time", "fields": []}
    schema = json_schema(record(("y", ["null", year])))
    schema = replace(schema, properties={"__jsr310ConversionEnabled": "false"})
    for text, value in ((b'{"y":2024}', {"y": "2024"}), (b'{"y":null}', {"y": None})):
        assert decode(schema, schema, text) == [value]
        assert PythonEncoder(schema).encode(value) == text


def test_values_of_protobuf_are_not_made_of_dicts() -> None:
    with pytest.raises(SchemaMismatch, match="PROTOBUF"):
        PythonEncoder(SchemaInfo(pb.Schema.ProtobufNative, "p", b"{}"))


@pytest.mark.parametrize("kind", [pb.Schema.Avro, pb.Schema.Json])
def test_types_that_columns_hold_encoded_are_refused_where_there_is_no_python_type(
    kind: int,
) -> None:
    def info(field: Any) -> SchemaInfo:
        tree = {"type": "record", "name": "R", "fields": [{"name": "f", "type": field}]}
        return SchemaInfo(kind, "", json.dumps(tree).encode())

    recursive = info({"type": "array", "items": "R"})
    for use in (PythonEncoder, lambda found: PythonDecoder(found, found)):
        with pytest.raises(SchemaMismatch, match=r"'R' contains itself, in the field f\[\]"):
            use(recursive)
    wide = info({"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2})
    written = b'{"f":1.25}'
    if kind == pb.Schema.Avro:
        written = PythonEncoder(wide).encode({"f": Decimal("1.25")})
        assert written == b"\2\x7d"
    with pytest.raises(SchemaMismatch, match="the field f is a decimal of 50 digits"):
        PythonDecoder(wide, wide)
    narrow = info({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2})
    found = PythonDecoder(wide, narrow).decode(pa.array([written]))
    assert found == [{"f": Decimal("1.25")}]
