"""DataFrames written to AVRO topics: which columns fit, and the checks of rows."""

from __future__ import annotations

import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.avro import codec as avro_codec
from pulsar_spark.schema.codec import Mismatch
from tests.schema.avro.random_values import decoded, info

pytestmark = pytest.mark.usefixtures("way")

UTC = pa.timestamp("us", tz="UTC")
LOCAL = pa.timestamp("us")
FIXED = {"type": "fixed", "name": "F", "size": 2}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


def record(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields)}


def of(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def batch(kind: pa.DataType, *values: Any, name: str = "f") -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, kind)], names=[name])


def written(kind: Any, arrow: pa.DataType, *values: Any) -> list[Any]:
    """Write values as a field of this type, and return those that fastavro reads."""
    tree = record(of("f", kind))
    rows = batch(arrow, *values)
    data = avro_codec.encoder(info(tree), rows.schema).encode(rows)
    data.validate(full=True)
    return [row["f"] for row in decoded(tree, data.to_pylist())]


@pytest.mark.parametrize(
    "kind,arrow,value",
    [
        ("int", pa.int8(), 7),
        ("int", pa.int16(), -300),
        ("long", pa.int32(), 2**31 - 1),
        ("long", pa.int64(), -(2**63)),
        ("float", pa.int16(), 3.0),
        ("double", pa.int32(), -5.0),
        ("double", pa.float32(), 0.5),
        (["null", "long"], pa.int32(), 5),
        (["int", "long", "null"], pa.int64(), 2**40),
        (["float", "double"], pa.float32(), 0.25),
        (ENUM, pa.string(), "B"),
        (FIXED, pa.binary(), b"ab"),
        (["null", FIXED], pa.binary(), b"ab"),
    ],
)
def test_smaller_types_fit_larger_ones(kind: Any, arrow: pa.DataType, value: Any) -> None:
    assert written(kind, arrow, value, value) == [value, value]


def test_nulls_are_written_where_the_schema_has_null() -> None:
    assert written(["null", "string"], pa.string(), "a", None, "b") == ["a", None, "b"]
    assert written(["string", "null"], pa.string(), None, "a") == [None, "a"]
    assert written(["string", "null"], pa.null(), None, None) == [None, None]
    assert written("null", pa.null(), None) == [None]


def test_of_a_union_the_columns_own_type_is_taken() -> None:
    def taken(kind: Any, arrow: pa.DataType, value: Any) -> Any:
        (found,) = written(kind, arrow, value)
        return {name: each for name, each in found.items() if each is not None}

    for text in ("A", "C"):
        assert taken(["null", ENUM, "string"], pa.string(), text) == {"member1": text}
    assert taken(["null", "double", "long"], pa.int32(), 5) == {"member1": 5}
    assert taken(["double", "string", "long"], pa.int64(), 2**60) == {"member2": 2**60}
    assert taken(["string", "double"], pa.int32(), 5) == {"member1": 5.0}


def test_a_column_can_be_one_type_of_a_union() -> None:
    kind = ["null", "int", "string"]
    assert written(kind, pa.string(), "a", None) == [{"member0": None, "member1": "a"}, None]
    assert written(["int", "string"], pa.string(), "a") == [{"member0": None, "member1": "a"}]


def test_timestamps_lose_what_lies_below_the_unit_towards_the_past() -> None:
    tree = record(of("f", logical("long", "timestamp-millis")))
    rows = batch(pa.int64(), 1999, -1)
    rows = pa.RecordBatch.from_arrays([rows.column(0).view(UTC)], names=["f"])
    data = avro_codec.encoder(info(tree), rows.schema).encode(rows)
    assert data.to_pylist() == [b"\x02", b"\x01"]


def test_times_of_day_are_nanoseconds() -> None:
    kind = logical("int", "time-millis")
    assert written(kind, pa.int64(), 1_999_999) == [1_000_000]
    assert written(kind, pa.time64("ns"), 3_000_000) == [3_000_000]


def test_decimals_take_the_fewest_bytes() -> None:
    kind = logical("bytes", "decimal", precision=9, scale=2)
    tree = record(of("f", kind))
    values = [Decimal(text) for text in ("0", "1.27", "1.28", "-1.28", "-1.29", "9999999.99")]
    rows = batch(pa.decimal128(9, 2), *values)
    data = avro_codec.encoder(info(tree), rows.schema).encode(rows).to_pylist()
    assert [item[0] >> 1 for item in data] == [1, 1, 2, 1, 2, 4]
    assert [row["f"] for row in decoded(tree, data)] == values


def test_decimals_of_another_scale_fit_if_nothing_is_lost() -> None:
    kind = logical("bytes", "decimal", precision=6, scale=1)
    assert written(kind, pa.decimal128(10, 3), Decimal("1.500")) == [Decimal("1.5")]
    with pytest.raises(Mismatch, match=r"row 1: f: it does not fit decimal\(6,1\)"):
        written(kind, pa.decimal128(10, 3), Decimal("1.5"), Decimal("1.55"))


def test_fields_that_are_not_in_the_frame_get_their_defaults_or_null() -> None:
    tree = record(
        of("a", "int"), of("b", "string", default="x"), of("c", ["null", "int"], default=None),
        of("d", ["string", "null"]),
    )  # fmt: skip
    rows = batch(pa.int32(), 1, 2, name="a")
    data = avro_codec.encoder(info(tree), rows.schema).encode(rows).to_pylist()
    assert decoded(tree, data) == [{"a": n, "b": "x", "c": None, "d": None} for n in (1, 2)]


def test_columns_are_found_by_name() -> None:
    tree = record(of("a", "int"), of("b", "string"))
    rows = pa.RecordBatch.from_pydict({"b": ["x"], "a": pa.array([5], pa.int32())})
    data = avro_codec.encoder(info(tree), rows.schema).encode(rows).to_pylist()
    assert decoded(tree, data) == [{"a": 5, "b": "x"}]


def test_what_is_no_record_is_written_from_one_column() -> None:
    rows = batch(pa.int32(), 1, 2, name="anything")
    assert avro_codec.encoder(info("long"), rows.schema).encode(rows).to_pylist() == [b"\2", b"\4"]
    two = pa.schema([("a", pa.int32()), ("b", pa.int32())])
    with pytest.raises(SchemaMismatch, match="from one column, and there are 2"):
        avro_codec.encoder(info("long"), two)


def test_slices_and_no_rows_are_written() -> None:
    tree = record(of("a", {"type": "array", "items": ["null", "double"]}), of("b", "boolean"))
    rows = pa.RecordBatch.from_pydict(
        {"a": [[1.0], [], [2.0, None], [4.0]], "b": [True, False, True, False]}
    )
    encoder = avro_codec.encoder(info(tree), rows.schema)
    data = encoder.encode(rows.slice(1, 2)).to_pylist()
    assert decoded(tree, data) == rows.slice(1, 2).to_pylist()
    assert encoder.encode(rows.slice(0, 0)).to_pylist() == []


def test_every_mismatch_is_listed_with_what_to_do() -> None:
    inner = {"type": "record", "name": "I", "fields": [of("x", "int"), of("y", "int")]}
    tree = record(
        of("a", "int"),
        of("b", "string"),
        of("c", logical("long", "timestamp-micros")),
        of("d", {"type": "array", "items": inner}),
        of("e", logical("bytes", "decimal", precision=5, scale=1)),
        of("f", ["null", "int", "string"]),
        of("g", "long"),
        of("h", ENUM),
        of("i", {"type": "map", "values": "long"}),
    )
    columns = pa.schema(
        [
            ("a", pa.int64()),
            ("b", pa.binary()),
            ("c", LOCAL),
            ("d", pa.list_(pa.struct([("x", pa.string()), ("z", pa.int32())]))),
            ("e", pa.float64()),
            ("f", pa.float64()),
            ("h", pa.int32()),
            ("i", pa.map_(pa.int32(), pa.int64())),
            ("other", pa.int32()),
        ]
    )
    with pytest.raises(SchemaMismatch) as caught:
        avro_codec.encoder(info(tree), columns)
    text = str(caught.value)
    for part in (
        "a is bigint, the topic's schema has int: cast it to int",
        "b is binary, the topic's schema has string: cast it to string",
        "c is timestamp_ntz, the topic's schema has timestamp-micros: cast it to timestamp_ltz",
        "d[].x is string, the topic's schema has int: cast it to int",
        "d[].y is missing, and has no default: add it as int",
        "d[].z is not in the topic's schema: drop it",
        "e is double, the topic's schema has decimal: cast it to decimal(5,1)",
        "f is double, the topic's schema has one of null, int, string: make it one of these, or "
        "a struct of member0, member1",
        "g is missing, and has no default: add it as long",
        "h is int, the topic's schema has enum: cast it to string",
        "i is map<int32, int64>, the topic's schema has map: give a map with string keys",
        "other is not in the topic's schema: drop it, or add it to the schema",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    "kind,arrow,values,reason",
    [
        ("int", pa.int32(), [1, None], "f: it is null"),
        (["int", "string"], pa.int32(), [1, None], "f: it is null"),
        (ENUM, pa.string(), ["A", "C"], "not one of the enum's symbols: A, B"),
        (["null", ENUM], pa.string(), [None, "C"], "not one of the enum's symbols: A, B"),
        (FIXED, pa.binary(), [b"ab", b"abc"], "does not have the 2 bytes"),
        (logical("int", "time-millis"), pa.int64(), [0, -1], "not a time of day"),
        (logical("long", "timestamp-nanos"), UTC, [0, 2**60], "beyond what 64 bits hold"),
        (
            {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"},
            pa.string(),
            ["0" * 32, "x"],
            "it is not a UUID",
        ),
        (
            ["null", logical("string", "uuid")],
            pa.string(),
            ["6f1f2a52-9d0e-4B4C-a0cb-0e4b8e1d0000", "6f1f2a52-9d0e-4b4c-a0cb-0e4b8e1d0000 ", None],
            "it is not a UUID",
        ),
        (
            {"type": "array", "items": "int"},
            pa.list_(pa.int32()),
            [[1, 2], [3, None]],
            r"f\[\]: it is null",
        ),
        (
            {"type": "map", "values": ENUM},
            pa.map_(pa.string(), pa.string()),
            [[], [("a", "C")]],
            "f{}: it is not one of",
        ),
        (
            record(of("x", "int")) | {"name": "I"},
            pa.struct([("x", pa.int32())]),
            [{"x": 1}, {"x": None}],
            "f.x: it is null",
        ),
        (
            ["int", "string"],
            pa.struct([("member0", pa.int32()), ("member1", pa.string())]),
            [{"member0": 1}, {"member0": 1, "member1": "a"}],
            "more than one member",
        ),
        (
            ["int", "string"],
            pa.struct([("member0", pa.int32()), ("member1", pa.string())]),
            [{"member0": 1}, {}],
            "no member of the union is set",
        ),
        (
            ["int", ENUM],
            pa.struct([("member0", pa.int32()), ("member1", pa.string())]),
            [{"member0": 1}, {"member1": "C"}],
            "f.member1: it is not one of",
        ),
        (
            {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"},
            pa.struct([(n, pa.int64()) for n in ("months", "days", "milliseconds")]),
            [{"months": 1}, {"months": -1}],
            "a part of the duration",
        ),
    ],
)
def test_a_row_that_does_not_fit_is_named(
    kind: Any, arrow: pa.DataType, values: list[Any], reason: str
) -> None:
    with pytest.raises(Mismatch, match=f"row 1: .*{reason}"):
        written(kind, arrow, *values)


def test_an_encoder_can_be_pickled() -> None:
    rows = batch(pa.int32(), 3)
    encoder = avro_codec.encoder(info(record(of("f", "int"))), rows.schema)
    assert pickle.loads(pickle.dumps(encoder)).encode(rows).to_pylist() == [b"\6"]


def test_types_with_large_offsets_are_taken_like_the_usual_ones() -> None:
    tree = record(of("a", "string"), of("b", {"type": "array", "items": ["null", "bytes"]}))
    columns = pa.schema([("a", pa.large_string()), ("b", pa.large_list(pa.large_binary()))])
    rows = pa.RecordBatch.from_pylist([{"a": "x", "b": [b"y", None]}], schema=columns)
    data = avro_codec.encoder(info(tree), columns).encode(rows).to_pylist()
    assert decoded(tree, data) == rows.to_pylist()
    assert avro_codec.definition(columns, "R").schema_data == (
        avro_codec.definition(
            pa.schema([("a", pa.string()), ("b", pa.list_(pa.binary()))]), "R"
        ).schema_data
    )
