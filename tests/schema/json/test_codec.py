"""JSON topics both ways: we read what other clients write, and they read what we write."""

from __future__ import annotations

import json
import math
import pickle
import random
import subprocess
import sys
from dataclasses import replace
from enum import Enum
from typing import Any

import pulsar.schema as official
import pyarrow as pa
import pytest

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.json import codec as json_codec
from tests.schema.json.cases import (
    expected,
    info,
    logical,
    nullable,
    plain,
    random_record,
    random_text,
    record,
    same,
)


def decode(schema: SchemaInfo, *values: bytes | None) -> list[dict[str, Any]]:
    columns = json_codec.arrow_schema(schema)
    found = json_codec.decoder(schema, schema, columns.names).decode(pa.array(values, pa.binary()))
    assert not found.bad
    assert [column.type for column in found.columns] == columns.types
    table = pa.Table.from_arrays(list(found.columns), names=columns.names)
    return list(table.to_pylist())


def encode(schema: SchemaInfo, rows: list[dict[str, Any]]) -> list[Any]:
    columns = json_codec.arrow_schema(schema)
    batch = pa.RecordBatch.from_pylist(rows, schema=columns)
    return [json.loads(v) for v in json_codec.encoder(schema, columns).encode(batch).to_pylist()]


# --- the official clients -----------------------------------------------------------------


class Color(Enum):
    red = "RED"
    blue = "BLUE"


class Inner(official.Record):  # type: ignore[misc]
    city = official.String()


class Reading(official.Record):  # type: ignore[misc]
    id = official.Long(required=True)
    name = official.String()
    ratio = official.Double()
    small = official.Float()
    ok = official.Boolean()
    count = official.Integer()
    data = official.Bytes()
    color = Color
    tags = official.Array(official.String())
    numbers = official.Map(official.Long())
    inner = Inner()


OFFICIAL = official.JsonSchema(Reading)
OFFICIAL_INFO = SchemaInfo(pb.Schema.Json, "JSON", OFFICIAL.schema_info().schema().encode())


def test_values_of_the_official_python_client_are_read() -> None:
    value = Reading(
        id=2**60,
        name="é\n",
        ratio=0.1,
        small=0.5,
        ok=True,
        count=-7,
        data=b"text",
        color=Color.blue,
        tags=["a", "b"],
        numbers={"k": 1},
        inner=Inner(city="Köln"),
    )
    assert decode(OFFICIAL_INFO, OFFICIAL.encode(value)) == [
        {
            "id": 2**60,
            "name": "é\n",
            "ratio": 0.1,
            "small": 0.5,
            "ok": True,
            "count": -7,
            "data": b"text",
            "color": "BLUE",
            "tags": ["a", "b"],
            "numbers": [("k", 1)],
            "inner": {"city": "Köln"},
        }
    ]


def test_the_official_python_client_reads_what_is_written() -> None:
    row = {
        "id": -1,
        "name": 'q"\\',
        "ratio": 1.0,
        "small": 0.5,
        "ok": False,
        "count": 3,
        "data": b"bytes",
        "color": "red",
        "tags": ["x"],
        "numbers": [("k", 2)],
        "inner": {"city": None},
    }
    columns = json_codec.arrow_schema(OFFICIAL_INFO)
    batch = pa.RecordBatch.from_pylist([row], schema=columns)
    written = json_codec.encoder(OFFICIAL_INFO, columns).encode(batch)
    found = OFFICIAL.decode(written[0].as_py())
    assert (found.id, found.name, found.ratio, found.ok) == (-1, 'q"\\', 1.0, False)
    assert (found.data, found.color, found.tags) == (b"bytes", Color.red, ["x"])
    assert found.numbers == {"k": 2}
    assert found.inner.city is None


class Level(Enum):
    low = 1
    high = 5


class Sensor(official.Record):  # type: ignore[misc]
    value = official.Double()
    level = official.CustomEnum(Level)


def test_what_the_official_python_client_wrote_can_be_written_back() -> None:
    client = official.JsonSchema(Sensor)
    schema = SchemaInfo(pb.Schema.Json, "JSON", client.schema_info().schema().encode())
    columns = json_codec.arrow_schema(schema)
    given = [Sensor(value=math.nan, level=Level.high), Sensor(value=-math.inf, level=Level.low)]
    raw = pa.array([client.encode(each) for each in given], pa.binary())
    read = json_codec.decoder(schema, schema, columns.names).decode(raw).columns
    batch = pa.RecordBatch.from_arrays(list(read), schema=columns)
    assert batch.column("level").to_pylist() == ["5", "1"]
    written = json_codec.encoder(schema, columns).encode(batch).to_pylist()
    first, second = (client.decode(value) for value in written)
    assert math.isnan(first.value)
    assert (second.value, first.level, second.level) == (-math.inf, Level.high, Level.low)


def java_map(key: Any, value: Any) -> dict[str, Any]:
    """Return what Avro's reflection makes of a map whose keys are not strings."""
    pair = record([("key", key), ("value", value)], "org.apache.avro.reflect.PairIntegerString")
    return {"type": "array", "items": pair, "java-class": "java.util.Map"}


CHARACTER = {"type": "int", "java-class": "java.lang.Character"}


def test_maps_with_other_keys_than_text_are_objects_as_java_writes_them() -> None:
    symbols = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
    schema = info(
        record(
            [
                ("m", nullable(java_map("int", nullable("long")))),
                ("e", nullable(java_map(symbols, "string"))),
            ]
        )
    )
    values = [
        {"m": {"-1": 5, "2": None}, "e": {"B": 'q"'}},
        {"m": {}, "e": None},
        {"m": None, "e": {"A": "x", "B": "y"}},
    ]
    rows = decode(schema, *[json.dumps(value).encode() for value in values])
    assert rows[0] == {
        "m": [{"key": -1, "value": 5}, {"key": 2, "value": None}],
        "e": [{"key": "B", "value": 'q"'}],
    }
    assert [row["m"] for row in rows[1:]] == [[], None]
    assert encode(schema, rows) == values
    # An array of pairs is what the definition says.
    assert decode(schema, b'{"m":[{"key":3,"value":4}]}')[0]["m"] == [{"key": 3, "value": 4}]
    columns = json_codec.arrow_schema(schema)
    bad = json_codec.decoder(schema, schema, ["m"]).decode(pa.array([b'{"m":{"x":1}}'])).bad
    assert [(item.field, item.reason) for item in bad] == [
        ("m{'x'}", "it is a string where the schema has an integer")
    ]
    nothing = pa.RecordBatch.from_pylist([{"m": [None], "e": None}], schema=columns)
    with pytest.raises(Mismatch, match=r"m\[\]\.key: it is null"):
        json_codec.encoder(schema, columns).encode(nothing)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("key", [record([("a", "int")], "K"), java_map("int", "int")])
def test_objects_and_arrays_are_not_written_as_keys(key: Any) -> None:
    schema = info(record([("m", java_map(key, "int"))]))
    columns = json_codec.arrow_schema(schema)
    found = {"a": 1} if key["type"] == "record" else [{"key": 1, "value": 2}]
    batch = pa.RecordBatch.from_pylist([{"m": [{"key": found, "value": 1}]}], schema=columns)
    with pytest.raises(Mismatch, match="m: a key is an object or an array"):
        json_codec.encoder(schema, columns).encode(batch)


def test_characters_of_java_are_text() -> None:
    schema = info(record([("c", CHARACTER), ("d", nullable(CHARACTER))]))
    rows: list[dict[str, Any]] = [{"c": "x", "d": "5"}, {"c": "\u00e9", "d": None}]
    assert decode(schema, *[json.dumps(row).encode() for row in rows]) == rows
    assert encode(schema, rows) == rows


JAVA = {"__jsr310ConversionEnabled": "false", "__alwaysAllowNull": "true"}


def java_class(name: str) -> dict[str, Any]:
    """Return what Avro's reflection makes of a class of Java's own."""
    namespace, _, own = name.rpartition(".")
    return {"type": "record", "name": own, "namespace": namespace, "fields": []}


UTC_MICROS = pa.timestamp("us", "UTC")
CHARS = {"type": "array", "items": CHARACTER, "java-class": "[C"}
# A field's type, what Java writes there, the column, and what is written to the field.
JAVA_CLASSES: list[tuple[Any, str, pa.DataType, Any, str]] = [
    (
        java_class("java.time.OffsetDateTime"), "1709194272.000001999",
        UTC_MICROS, 1_709_194_272_000_001, '"2024-02-29T08:11:12.000001Z"',
    ),
    (
        java_class("java.time.ZonedDateTime"), "0.0",
        UTC_MICROS, 0, '"1970-01-01T00:00:00.000000Z"',
    ),
    (
        java_class("java.sql.Date"), "1709194272123",
        UTC_MICROS, 1_709_194_272_123_000, '"2024-02-29T08:11:12.123000Z"',
    ),
    (CHARS, '"ab"', pa.string(), "ab", '"ab"'),
    *(
        (java_class(name), text, pa.string(), text, text)
        for name, text in (
            ("java.time.Duration", "1.500000000"),
            ("java.time.Year", "2024"),
            ("java.time.Period", '"P3D"'),
            ("java.time.YearMonth", "[2024,2]"),
            ("java.util.OptionalInt", "5"),
            ("java.util.concurrent.atomic.AtomicInteger", "5"),
            ("java.util.Locale", '"en_US"'),
            ("java.lang.Class", '"java.lang.String"'),
            ("java.lang.Object", '{"any":[1.50,"x"]}'),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("kind,text,column,cell,written", JAVA_CLASSES)
@pytest.mark.usefixtures("way")
def test_fields_of_javas_own_classes_are_what_java_writes_there(
    kind: Any, text: str, column: pa.DataType, cell: Any, written: str
) -> None:
    within = nullable({"type": "array", "items": nullable(kind)})
    definition = record([("id", "int"), ("f", nullable(kind)), ("in", within)])
    schema = replace(info(definition), properties=JAVA)
    columns = json_codec.arrow_schema(schema)
    assert columns.types == [pa.int32(), column, pa.list_(column)]
    values = [f'{{"id":1,"f":{text},"in":[{text},null]}}'.encode(), b'{"id":2,"f":null}']
    decoder = json_codec.decoder(schema, schema, columns.names)
    found = decoder.decode(pa.array(values, pa.binary()))
    assert not found.bad
    assert [plain(each) for each in found.columns] == [[1, 2], [cell, None], [[cell, None], None]]
    batch = pa.RecordBatch.from_arrays(list(found.columns), schema=columns)
    assert json_codec.encoder(schema, columns).encode(batch).to_pylist() == [
        f'{{"id":1,"f":{written},"in":[{written},null]}}'.encode(),
        b'{"id":2,"f":null,"in":null}',
    ]


@pytest.mark.parametrize(
    "name,properties",
    [("java.time.Year", {}), ("my.Marker", JAVA), ("javax.Marker", JAVA), ("javan.X", JAVA)],
)
def test_other_records_without_fields_are_structs_without_fields(
    name: str, properties: dict[str, str]
) -> None:
    schema = replace(info(record([("f", java_class(name))])), properties=properties)
    assert json_codec.arrow_schema(schema).types == [pa.struct([])]
    assert decode(schema, b'{"f":{}}') == [{"f": {}}]


# A schema that the Java client 4.0.8 registered, and a value that it wrote.
JAVA_INFO = SchemaInfo(
    pb.Schema.Json,
    "",
    b'{"type":"record","name":"P","namespace":"J","fields":[{"name":"bd","type":["null",{"type":'
    b'"string","java-class":"java.math.BigDecimal"}],"default":null},{"name":"by","type":["null",'
    b'{"type":"bytes","java-class":"[B"}],"default":null},{"name":"c","type":["null",{"type":"enum"'
    b',"name":"C","symbols":["RED","GREEN"]}],"default":null},{"name":"date","type":["null",{"type":'
    b'"record","name":"Date","namespace":"java.util","fields":[]}],"default":null},{"name":"f","type'
    b'":"float"},{"name":"in","type":["null",{"type":"long","logicalType":"timestamp-micros"}],"def'
    b'ault":null},{"name":"inf","type":"double"},{"name":"ld","type":["null",{"type":"int","logical'
    b'Type":"date"}],"default":null},{"name":"ldt","type":["null",{"type":"long","logicalType":"loca'
    b'l-timestamp-millis"}],"default":null},{"name":"lt","type":["null",{"type":"int","logicalType":'
    b'"time-millis"}],"default":null},{"name":"m","type":["null",{"type":"map","values":"long"}],"de'
    b'fault":null},{"name":"n","type":["null","boolean"],"default":null},{"name":"nan","type":"double'
    b'"},{"name":"u","type":["null",{"type":"string","logicalType":"uuid"}],"default":null}]}',
    JAVA,
)
JAVA_VALUE = (
    b'{"ld":[2024,2,29],"lt":[13,14,15,16000000],"ldt":[2024,2,29,13,14,15,123456789],"in":17000000'
    b'00.123456789,"date":1700000000123,"bd":12345678901234567890.123456789,"by":"AP8=","nan":"NaN",'
    b'"inf":"-Infinity","f":1.1,"c":"GREEN","m":{"k":1},"u":"00000000-0000-0001-0000-000000000002"}'
)
LOCAL = 1_709_212_455_123_456


def java_columns(*values: bytes) -> dict[str, list[Any]]:
    columns = json_codec.arrow_schema(JAVA_INFO)
    decoder = json_codec.decoder(JAVA_INFO, JAVA_INFO, columns.names)
    found = decoder.decode(pa.array(values, pa.binary()))
    assert not found.bad
    return {n: plain(column) for n, column in zip(columns.names, found.columns, strict=True)}


def test_values_of_the_java_client_are_read() -> None:
    found = java_columns(JAVA_VALUE)
    assert math.isnan(found.pop("nan")[0])
    assert found.pop("f")[0] == pytest.approx(1.1)
    assert found == {
        "bd": ["12345678901234567890.123456789"],
        "by": [b"\x00\xff"],
        "c": ["GREEN"],
        "date": [1_700_000_000_123_000],
        "in": [1_700_000_000_123_456],
        "inf": [-math.inf],
        "ld": [19_782],
        "ldt": [LOCAL],
        "lt": [47_655_016_000_000],
        "m": [[("k", 1)]],
        "n": [None],
        "u": ["00000000-0000-0001-0000-000000000002"],
    }


def test_the_java_client_is_written_what_it_reads() -> None:
    columns = json_codec.arrow_schema(JAVA_INFO)
    decoder = json_codec.decoder(JAVA_INFO, JAVA_INFO, columns.names)
    read = decoder.decode(pa.array([JAVA_VALUE], pa.binary())).columns
    batch = pa.RecordBatch.from_arrays(list(read), schema=columns)
    value = json_codec.encoder(JAVA_INFO, columns).encode(batch)[0].as_py()
    written = json.loads(value)
    times = [written[name] for name in ("date", "in", "ld", "ldt", "lt")]
    assert times == [
        "2023-11-14T22:13:20.123000Z",
        "2023-11-14T22:13:20.123456Z",
        "2024-02-29",
        "2024-02-29T13:14:15.123456",
        "13:14:15.016000000",
    ]
    found = java_columns(value)
    assert found["in"] == [1_700_000_000_123_456]
    assert (found["ld"], found["ldt"], found["lt"]) == ([19_782], [LOCAL], [47_655_016_000_000])


def test_times_that_iso_text_cannot_say_are_not_written_for_java() -> None:
    columns = pa.schema([json_codec.arrow_schema(JAVA_INFO).field("in")])
    late = pa.array([10**18], pa.int64()).view(columns.types[0])
    definition = record([("in", logical("long", "timestamp-micros"))])
    java = SchemaInfo(pb.Schema.Json, "", info(definition).schema_data, JAVA_INFO.properties)
    batch = pa.RecordBatch.from_arrays([late], schema=columns)
    with pytest.raises(Mismatch, match="years 0 to 9999"):
        json_codec.encoder(java, columns).encode(batch)


def test_bytes_are_base64_unless_the_python_client_defined_the_schema() -> None:
    definition = record([("b", "bytes")])
    assert decode(info(definition), b'{"b":"aGk="}') == [{"b": b"hi"}]
    assert encode(info(definition), [{"b": b"hi"}]) == [{"b": "aGk="}]
    assert decode(info(definition, indent=1), b'{"b":"aGk="}') == [{"b": b"aGk="}]
    assert encode(info(definition, indent=1), [{"b": b"hi"}]) == [{"b": "hi"}]


def test_what_jackson_makes_of_numbers_and_times() -> None:
    schema = info(
        record(
            [
                ("nan", "double"),
                ("huge", logical("bytes", "decimal", precision=38, scale=10)),
                ("day", logical("int", "date")),
                ("at", logical("long", "timestamp-millis")),
                ("iso", logical("long", "timestamp-micros")),
                ("time", logical("int", "time-millis")),
                ("local", logical("long", "local-timestamp-micros")),
            ]
        )
    )
    value = (
        b'{"nan":"-Infinity","huge":1234567890123456789012345678.0123456789,"day":19782,'
        b'"at":-1,"iso":"2024-02-29T00:00:00.123+01:00","time":1,"local":"1969-12-31 23:59:59.5"}'
    )
    (found,) = decode(schema, value)
    assert found["nan"] == float("-inf")
    assert str(found["huge"]) == "1234567890123456789012345678.0123456789"
    assert found["day"].isoformat() == "2024-02-29"
    assert found["at"].isoformat() == "1969-12-31T23:59:59.999000+00:00"
    assert found["iso"].isoformat() == "2024-02-28T23:00:00.123000+00:00"
    assert found["time"] == 1_000_000
    assert found["local"].isoformat() == "1969-12-31T23:59:59.500000"
    (again,) = encode(schema, [found])
    assert again["nan"] == "-Infinity"
    assert (again["day"], again["at"], again["time"], again["local"]) == (19782, -1, 1, -500_000)


# --- schemas ------------------------------------------------------------------------------


def test_a_json_schema_document_of_an_old_client_is_refused_with_what_to_do() -> None:
    old = info({"type": "object", "id": "urn:x", "properties": {"a": {"type": "integer"}}})
    for use in (
        lambda: json_codec.arrow_schema(old),
        lambda: json_codec.decoder(old, old, []),
        lambda: json_codec.encoder(old, pa.schema([])),
    ):
        with pytest.raises(SchemaMismatch, match=r"JSON Schema document.*valueFormat=raw"):
            use()


def test_values_of_a_version_with_a_json_schema_document_are_read_as_the_record() -> None:
    old = info({"type": "object", "properties": {"a": {"type": "integer"}}})
    new = info(record([("a", "int")]))
    found = json_codec.decoder(old, new, ["a"]).decode(pa.array([b'{"a":1}'], pa.binary()))
    assert found.columns[0].to_pylist() == [1]


def test_times_are_in_the_unit_of_the_version_they_were_written_with() -> None:
    millis = info(record([("at", logical("long", "timestamp-millis")), ("old", "int")]))
    micros = info(record([("at", logical("long", "timestamp-micros")), ("new", nullable("int"))]))
    decoder = json_codec.decoder(millis, micros, ["new", "at"])
    new, at = decoder.decode(pa.array([b'{"at":5,"old":1}'], pa.binary())).columns
    assert new.to_pylist() == [None]
    assert plain(at) == [5000]


def test_a_schema_of_another_type_and_an_unknown_field_are_refused() -> None:
    schema = info(record([("a", "int")]))
    avro = SchemaInfo(pb.Schema.Avro, "", schema.schema_data)
    with pytest.raises(SchemaMismatch, match="type AVRO, not JSON"):
        json_codec.decoder(avro, schema, ["a"])
    with pytest.raises(SchemaMismatch, match="no field 'b'"):
        json_codec.decoder(schema, schema, ["b"])


@pytest.mark.fault(44)
def test_hostile_definitions_are_refused() -> None:
    for data in (b"[" * 100_000, b"{", b'{"type":"record"}'):
        with pytest.raises(SchemaMismatch):
            json_codec.arrow_schema(SchemaInfo(pb.Schema.Json, "", data))


def test_a_value_that_is_no_record_is_one_column() -> None:
    schema = info({"type": "array", "items": "long"})
    rows = decode(schema, b"[1,2]", None, b" [] ", b"null")
    assert rows == [{"value": [1, 2]}, {"value": None}, {"value": []}, {"value": None}]
    columns = json_codec.arrow_schema(schema)
    batch = pa.RecordBatch.from_pylist([{"value": [1, 2]}, {"value": []}], schema=columns)
    written = json_codec.encoder(schema, columns).encode(batch)
    assert written.to_pylist() == [b"[1,2]", b"[]"]


def test_a_definition_is_registered_for_columns() -> None:
    columns = pa.schema([("a", pa.int64()), ("m", pa.map_(pa.string(), pa.float64()))])
    schema = json_codec.definition(columns, "Reading", "com.example")
    assert (schema.type, schema.name) == (pb.Schema.Json, "Reading")
    assert json.loads(schema.schema_data)["namespace"] == "com.example"
    assert json_codec.arrow_schema(schema).types == columns.types
    assert encode(schema, [{"a": 1, "m": {"k": 0.5}}]) == [{"a": 1, "m": {"k": 0.5}}]


def test_the_error_lists_every_mismatch() -> None:
    schema = info(record([("a", "int"), ("b", "string"), ("c", "double")]))
    columns = pa.schema([("a", pa.string()), ("b", pa.string()), ("x", pa.int64())])
    with pytest.raises(SchemaMismatch) as caught:
        json_codec.encoder(schema, columns)
    text = str(caught.value)
    for part in ("a is string", "cast it to int", "c is missing", "x is not in the topic's"):
        assert part in text


def test_a_null_where_the_schema_has_none_names_row_and_field() -> None:
    schema = info(record([("a", record([("b", "int")], "A"))]))
    rows = [{"a": {"b": 1}}] * 5 + [{"a": {"b": None}}] * 2
    with pytest.raises(Mismatch, match=r"row 5: a\.b: it is null"):
        encode(schema, rows)


def test_encoders_travel_to_workers() -> None:
    schema = info(record([("a", nullable("int"))]))
    columns = json_codec.arrow_schema(schema)
    encoder = pickle.loads(pickle.dumps(json_codec.encoder(schema, columns)))
    batch = pa.RecordBatch.from_pylist([{"a": 1}, {}], schema=columns)
    assert encoder.encode(batch).to_pylist() == [b'{"a":1}', b'{"a":null}']


# --- at large -----------------------------------------------------------------------------

BULK = record(
    [
        ("id", "long"),
        ("name", nullable("string")),
        ("ratio", nullable("double")),
        ("count", "int"),
        ("ok", "boolean"),
        ("at", nullable(logical("long", "timestamp-millis"))),
        ("tags", {"type": "array", "items": "string"}),
        ("labels", nullable({"type": "map", "values": "long"})),
        ("place", nullable(record([("x", "double"), ("y", nullable("int"))], "P"))),
        ("day", logical("int", "date")),
    ]
)


def bulk_row(rng: random.Random) -> dict[str, Any]:
    return {
        "id": rng.getrandbits(62),
        "name": rng.choice(["a", 'b"', "{}", "é", "x\ny", None]),
        "ratio": rng.choice([rng.uniform(-1e6, 1e6), 1.0, None]),
        "count": rng.randrange(10**6),
        "ok": rng.random() < 0.5,
        "at": rng.choice([rng.randrange(10**13), None]),
        "tags": rng.choices(["t", "}", "u v"], k=rng.randrange(3)),
        "labels": rng.choice([{"a": 1}, {"a": 2, "b": 3}, {}, None]),
        "place": rng.choice([{"x": rng.random(), "y": 1}, {"x": 0.5, "y": None}, None]),
        "day": rng.randrange(-10_000, 10_000),
    }


@pytest.mark.parametrize("seed", range(10))
def test_ten_thousand_records_read_as_json_reads_them_and_written_again(seed: int) -> None:
    rng = random.Random(seed)
    rows = [bulk_row(rng) for _ in range(10_000)]
    values = [
        json.dumps(row, indent=1 if seed % 2 else None, ensure_ascii=seed % 3 == 0).encode()
        for row in rows
    ]
    schema = info(BULK)
    columns = json_codec.arrow_schema(schema)
    decoder = json_codec.decoder(schema, schema, columns.names)
    decoded = decoder.decode(pa.array(values, pa.binary()))
    assert not decoded.bad
    batch = pa.RecordBatch.from_arrays(list(decoded.columns), schema=columns)
    for row, back in zip(rows, batch.to_pylist(), strict=True):
        back["labels"] = None if back["labels"] is None else dict(back["labels"])
        back["at"] = None if back["at"] is None else round(back["at"].timestamp() * 1000)
        back["day"] = back["day"].toordinal() - 719_163
        assert back == row
    written = json_codec.encoder(schema, columns).encode(batch).to_pylist()
    assert list(map(json.loads, written)) == rows


@pytest.mark.parametrize("seed", range(150))
def test_columns_of_random_types_are_written_as_json_reads_them(seed: int) -> None:
    rng = random.Random(seed)
    definition = random_record(rng, unusual=False)
    schema = info(definition)
    columns = json_codec.arrow_schema(schema)
    values = [random_text(rng, definition, unusual=False).encode() for _ in range(60)]
    decoder = json_codec.decoder(schema, schema, columns.names)
    decoded = decoder.decode(pa.array(values, pa.binary()))
    assert not decoded.bad
    # Slices: the rows before them must not be written.
    batch = pa.RecordBatch.from_arrays(list(decoded.columns), schema=columns).slice(seed % 7)
    written = json_codec.encoder(schema, columns).encode(batch)
    written.validate(full=True)
    parts = [plain(column) for column in batch.columns]
    for value, *row in zip(written.to_pylist(), *parts, strict=True):
        assert same(expected(definition, value), dict(zip(columns.names, row, strict=True)))


def test_neither_pandas_nor_threads_come_with_it() -> None:
    code = """
import json, sys, threading
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.json import codec as json_codec
from pulsar_spark.schema.arrow.arrays import binaries
import pyarrow as pa
fields = [{"name": "a", "type": ["null", "int"]},
          {"name": "m", "type": {"type": "map", "values": "string"}}]
data = json.dumps({"type": "record", "name": "R", "fields": fields}).encode()
info = SchemaInfo(pb.Schema.Json, "", data)
decoder = json_codec.decoder(info, info, ["a", "m"])
found = decoder.decode(binaries([b'{"a":1,"m":{"k":"v"}}', b"{", None]))
batch = pa.RecordBatch.from_arrays(found.columns, schema=json_codec.arrow_schema(info))
json_codec.encoder(info, batch.schema).encode(batch.slice(0, 1))
print("pandas" in sys.modules, threading.active_count())
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.split() == ["False", "1"]
