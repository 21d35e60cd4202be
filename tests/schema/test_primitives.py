"""Primitives of a fixed width match Java's client to the byte, both ways."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema import primitives
from pulsar_spark.schema.codec import Decoded, Mismatch

DAY_NANOS = 86_400_000_000_000
INT64 = st.integers(-(2**63), 2**63 - 1)

UTC_MICROS = pa.timestamp("us", tz="UTC")
LOCAL_MICROS = pa.timestamp("us")


def decode(number: int, values: list[bytes | None]) -> Decoded:
    info = SchemaInfo(number)
    found = primitives.decoder(info, info, ["value"]).decode(pa.array(values, pa.binary()))
    kind = primitives.arrow_schema(info).field("value").type
    for column in found.columns:
        column.validate(full=True)
        assert column.type == kind
        assert len(column) == len(values)
    return found


def numbers(column: pa.Array) -> list[Any]:
    """Return a column's values; dates and times as numbers."""
    if pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    elif pa.types.is_date(column.type):
        column = column.view(pa.int32())
    return list(column.to_pylist())


def decoded(number: int, values: list[bytes | None]) -> list[Any]:
    found = decode(number, values)
    assert not found.bad
    return numbers(found.columns[0])


def encode(number: int, column: pa.Array) -> list[bytes | None]:
    batch = pa.record_batch([column], names=["any"])
    found = primitives.encoder(SchemaInfo(number), batch.schema).encode(batch)
    found.validate(full=True)
    return list(found.to_pylist())


# Values that Java's client wrote, and ours.
JAVA = [
    (pb.Schema.Bool, "01", pa.bool_(), True),
    (pb.Schema.Bool, "00", pa.bool_(), False),
    (pb.Schema.Int8, "ff", pa.int8(), -1),
    (pb.Schema.Int16, "0102", pa.int16(), 258),
    (pb.Schema.Int32, "fffffffe", pa.int32(), -2),
    (pb.Schema.Int64, "0000010000000000", pa.int64(), 2**40),
    (pb.Schema.Float, "3fc00000", pa.float32(), 1.5),
    (pb.Schema.Double, "bfb999999999999a", pa.float64(), -0.1),
    (pb.Schema.Timestamp, "0000018bcfe56800", UTC_MICROS, 1_700_000_000_000_000),
    (pb.Schema.Time, "000000000038cefc", pa.int64(), 3_723_004_000_000),
    (pb.Schema.LocalDate, "0000000000004d46", pa.date32(), 19_782),
    (pb.Schema.LocalTime, "00002b578b58c610", pa.int64(), 47_655_000_000_016),
]


@pytest.mark.parametrize("number,data,kind,value", JAVA)
def test_values_of_javas_client_both_ways(number: int, data: str, kind: Any, value: Any) -> None:
    raw = bytes.fromhex(data)
    assert decoded(number, [raw, None, raw]) == [value, None, value]
    assert encode(number, pa.array([value, None], kind)) == [raw, None]


def test_an_instant_of_javas_client_is_cut_off_to_microseconds() -> None:
    raw = bytes.fromhex("000000006553f100075bcd15")
    assert decoded(pb.Schema.Instant, [raw]) == [1_700_000_000_123_456]
    column = pa.array([1_700_000_000_123_456, -1], UTC_MICROS)
    assert encode(pb.Schema.Instant, column) == [
        struct.pack(">qi", 1_700_000_000, 123_456_000),
        struct.pack(">qi", -1, 999_999_000),
    ]


@given(st.lists(st.none() | INT64))
def test_int64(values: list[int | None]) -> None:
    raw = [None if value is None else struct.pack(">q", value) for value in values]
    assert decoded(pb.Schema.Int64, raw) == values
    assert encode(pb.Schema.Int64, pa.array(values, pa.int64())) == raw


@given(st.lists(st.floats(width=32) | st.none()))
def test_floats_keep_their_bits(values: list[float | None]) -> None:
    raw = [None if value is None else struct.pack(">f", value) for value in values]
    found = decode(pb.Schema.Float, raw).columns[0]
    assert encode(pb.Schema.Float, found) == raw


def fits(micros: int) -> bool:
    return -(2**63) <= micros < 2**63


@pytest.mark.parametrize("edge", [-(2**63), 2**63 - 1])
@pytest.mark.parametrize(
    "kind,column,layout,per_unit",
    [
        (pb.Schema.Instant, pa.timestamp("us", "UTC"), ">qi", 10**6),
        (pb.Schema.LocalDateTime, pa.timestamp("us"), ">qq", 86_400 * 10**6),
        (pb.Schema.Timestamp, pa.timestamp("us", "UTC"), ">q", 1000),
    ],
)
def test_moments_are_exact_to_the_last_microsecond_of_64_bits(
    kind: int, column: pa.DataType, layout: str, per_unit: int, edge: int
) -> None:
    near = [edge + step for step in (-per_unit, -1, 0, 1, per_unit)]
    if kind == pb.Schema.Timestamp:
        near = [micros // 1000 * 1000 for micros in near]
    raw: list[bytes | None] = []
    for micros in near:
        whole, rest = divmod(micros, per_unit)
        raw.append(struct.pack(layout, *(whole, rest * 1000)[: len(layout) - 1]))
    found = decode(kind, raw)
    wanted: list[int | None] = [micros if fits(micros) else None for micros in near]
    assert numbers(found.columns[0]) == wanted
    assert [item.row for item in found.bad] == [i for i, v in enumerate(wanted) if v is None]
    held = pa.array([micros for micros in wanted if micros is not None], pa.int64()).view(column)
    assert encode(kind, held) == [raw[i] for i, micros in enumerate(wanted) if micros is not None]


@given(st.lists(st.tuples(st.integers(-(10**15), 10**15) | INT64, st.integers(-5, 10**9 + 5))))
def test_instants_to_the_microsecond(values: list[tuple[int, int]]) -> None:
    found = decode(pb.Schema.Instant, [struct.pack(">qi", *value) for value in values])
    bad = {item.row for item in found.bad}
    for row, (seconds, nanos) in enumerate(values):
        micros = seconds * 10**6 + nanos // 1000
        wanted = micros if 0 <= nanos < 10**9 and fits(micros) else None
        assert (row in bad) == (wanted is None)
        assert numbers(found.columns[0])[row] == wanted


@given(st.lists(INT64 | st.integers(-(2**31), 2**31 - 1)))
def test_days_that_no_date_holds_are_bad(values: list[int]) -> None:
    found = decode(pb.Schema.LocalDate, [struct.pack(">q", value) for value in values])
    wanted = [value if -(2**31) <= value < 2**31 else None for value in values]
    assert numbers(found.columns[0]) == wanted
    assert [item.row for item in found.bad] == [i for i, v in enumerate(wanted) if v is None]


@given(st.lists(st.integers(-(10**14), 10**14)))
def test_dates_are_the_days_of_moments_in_utc(values: list[int]) -> None:
    found = decoded(pb.Schema.Date, [struct.pack(">q", value) for value in values])
    assert found == [value // 86_400_000 for value in values]
    midnights = encode(pb.Schema.Date, pa.array(found, pa.int32()).view(pa.date32()))
    assert midnights == [struct.pack(">q", value - value % 86_400_000) for value in values]


@given(st.lists(st.integers(-(10**17), 10**17)))
def test_timestamps_are_milliseconds_cut_off_towards_the_past(micros: list[int]) -> None:
    raw = encode(pb.Schema.Timestamp, pa.array(micros, UTC_MICROS))
    assert raw == [struct.pack(">q", value // 1000) for value in micros]
    assert decoded(pb.Schema.Timestamp, raw) == [value // 1000 * 1000 for value in micros]


@pytest.mark.fault(94)
@pytest.mark.parametrize("millis", [0, -1, 253_402_300_800_000, 2**63 - 1, -(2**63)])
def test_times_are_exact_or_bad_at_the_edges(millis: int) -> None:
    found = decode(pb.Schema.Timestamp, [struct.pack(">q", millis)])
    if abs(millis) < 2**53:
        assert numbers(found.columns[0]) == [millis * 1000]
    else:
        assert numbers(found.columns[0]) == [None]
        assert "out of the range" in found.bad[0].reason


@given(st.lists(st.integers(-(10**15), 10**15)))
def test_a_time_is_the_time_of_its_day(values: list[int]) -> None:
    found = decoded(pb.Schema.Time, [struct.pack(">q", value) for value in values])
    assert found == [value % 86_400_000 * 10**6 for value in values]


@given(st.lists(st.tuples(st.integers(-(10**7), 10**7), st.integers(-2, DAY_NANOS + 1))))
def test_local_times_must_be_in_their_day(values: list[tuple[int, int]]) -> None:
    found = decode(pb.Schema.LocalDateTime, [struct.pack(">qq", *value) for value in values])
    wanted = [
        days * 86_400_000_000 + nanos // 1000 if 0 <= nanos < DAY_NANOS else None
        for days, nanos in values
    ]
    assert numbers(found.columns[0]) == wanted
    good = [value for value in wanted if value is not None]
    raw = encode(pb.Schema.LocalDateTime, pa.array(good, LOCAL_MICROS))
    assert raw == [struct.pack(">qq", v // 86_400_000_000, v % 86_400_000_000 * 1000) for v in good]
    times = decode(pb.Schema.LocalTime, [struct.pack(">q", nanos) for _, nanos in values])
    assert numbers(times.columns[0]) == [
        nanos if 0 <= nanos < DAY_NANOS else None for _, nanos in values
    ]


@given(st.data())
def test_values_of_another_width_are_bad_and_others_are_not(data: st.DataObject) -> None:
    number, example, _, value = data.draw(st.sampled_from(JAVA))
    good = bytes.fromhex(example)
    values = data.draw(st.lists(st.none() | st.just(good) | st.binary(max_size=20)))
    rows = [v if v is None or v == good or len(v) != len(good) else good for v in values]
    found = decode(number, rows)
    wanted = [value if v == good else None for v in rows]
    assert numbers(found.columns[0]) == wanted
    assert [item.row for item in found.bad] == [
        i for i, v in enumerate(rows) if v is not None and v != good
    ]
    assert all("bytes" in item.reason for item in found.bad)


def test_slices_are_read_from_where_they_begin() -> None:
    raw = pa.array([struct.pack(">i", n) if n % 3 else None for n in range(50)], pa.binary())
    info = SchemaInfo(pb.Schema.Int32)
    found = primitives.decoder(info, info, ["value"]).decode(raw.slice(7, 20)).columns[0]
    assert found.to_pylist() == [n if n % 3 else None for n in range(7, 27)]
    batch = pa.record_batch([found.slice(3, 5)], names=["value"])
    again = primitives.encoder(info, batch.schema).encode(batch)
    assert again.equals(raw.slice(10, 5))


def test_a_hundred_thousand_values_of_each_type() -> None:
    rng = random.Random(1)
    ints = [rng.randint(-(2**31), 2**31 - 1) for _ in range(100_000)]
    raw = [struct.pack(">i", value) for value in ints]
    assert decoded(pb.Schema.Int32, list(raw)) == ints
    raw = [struct.pack(">d", rng.random()) for _ in range(100_000)]
    assert encode(pb.Schema.Double, decode(pb.Schema.Double, list(raw)).columns[0]) == raw


def test_no_column_is_built_that_is_not_asked_for() -> None:
    info = SchemaInfo(pb.Schema.Int8)
    found = primitives.decoder(info, info, []).decode(pa.array([b"\x01", b""], pa.binary()))
    assert not found.columns
    assert [item.row for item in found.bad] == [1]
    with pytest.raises(SchemaMismatch, match="no column 'other'"):
        primitives.decoder(info, info, ["other"])


def test_older_values_are_widened_where_nothing_is_lost() -> None:
    small, large = SchemaInfo(pb.Schema.Int16), SchemaInfo(pb.Schema.Int64)
    raw = pa.array([b"\x00\x01"], pa.binary())
    found = primitives.decoder(small, large, ["value"]).decode(raw).columns[0]
    assert found.equals(pa.array([1], pa.int64()))
    with pytest.raises(SchemaMismatch, match="written as INT64, and the query reads INT16"):
        primitives.decoder(large, small, ["value"])


def test_columns_that_do_not_fit_are_refused_with_what_to_do() -> None:
    info = SchemaInfo(pb.Schema.Int32)
    with pytest.raises(SchemaMismatch, match=r"'n' is int64\. Cast the column to int"):
        primitives.encoder(info, pa.schema([("n", pa.int64())]))
    with pytest.raises(SchemaMismatch, match="columns to write are: a, b"):
        primitives.encoder(info, pa.schema([("a", pa.int32()), ("b", pa.int32())]))
    stamps = SchemaInfo(pb.Schema.Instant)
    with pytest.raises(SchemaMismatch, match="Cast the column to timestamp_ltz"):
        primitives.encoder(stamps, pa.schema([("n", LOCAL_MICROS)]))
    primitives.encoder(stamps, pa.schema([("n", pa.timestamp("us", tz="Europe/Berlin"))]))


@pytest.mark.parametrize("nanos", [-1, DAY_NANOS])
def test_a_time_of_day_must_be_in_the_day(nanos: int) -> None:
    with pytest.raises(Mismatch, match=f"row 1: value: it is {nanos}, which is not a time of day"):
        encode(pb.Schema.LocalTime, pa.array([0, nanos, None], pa.int64()))


SINGLE = [
    (pa.string(), pb.Schema.String, "String"),
    (pa.bool_(), pb.Schema.Bool, "Boolean"),
    (pa.int32(), pb.Schema.Int32, "INT32"),
    (pa.float64(), pb.Schema.Double, "Double"),
    (pa.date32(), pb.Schema.LocalDate, "LocalDate"),
    (pa.timestamp("us", tz="Asia/Tokyo"), pb.Schema.Instant, "Instant"),
    (LOCAL_MICROS, pb.Schema.LocalDateTime, "LocalDateTime"),
]


@pytest.mark.parametrize("column,number,name", SINGLE)
def test_a_single_column_has_a_primitive(column: pa.DataType, number: int, name: str) -> None:
    found = primitives.schema_for(column)
    assert (found, found.name) == (SchemaInfo(number), name)


def test_a_single_column_that_no_primitive_holds_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="decimal128"):
        primitives.schema_for(pa.decimal128(10, 2))


def test_neither_pandas_nor_numpy_is_imported_for_it() -> None:
    code = """
import sys, struct
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import PRIMITIVE_NAMES, SchemaInfo
from pulsar_spark.schema import primitives
from pulsar_spark.schema.arrow.arrays import binaries
import pyarrow as pa
before = set(sys.modules)
for number in PRIMITIVE_NAMES.keys() - {pb.Schema.String}:
    info = SchemaInfo(number)
    decoder = primitives.decoder(info, info, ["value"])
    for width in (1, 2, 4, 8, 12, 16):
        found = decoder.decode(binaries([bytes(width), None]))
        batch = pa.RecordBatch.from_arrays([found.columns[0]], names=["value"])
        primitives.encoder(info, batch.schema).encode(batch)
print({"pandas", "numpy"} & (set(sys.modules) - before))
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.strip() == "set()"
