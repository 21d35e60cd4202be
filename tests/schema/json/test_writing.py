"""The text of each kind of value is JSON that Jackson and Python's clients read back."""

from __future__ import annotations

import json
import math
import random
import struct
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.avro.definition import Record, RecordField, parse_definition
from pulsar_spark.schema.avro.types import arrow_type
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.column_encoder import ColumnEncoder, WritingPlan
from pulsar_spark.schema.json import codec as json_codec
from pulsar_spark.schema.json.types import Dialect
from pulsar_spark.schema.json.value_writing import row_writer
from pulsar_spark.schema.json.writing import text_plan
from pulsar_spark.schema.python_values import PythonEncoder
from tests.schema.bits import assert_same_bits
from tests.schema.json.cases import info, logical, nullable, record
from tests.schema.kernel import choose
from tests.schema.random_columns import outcome

JAVA, PYTHON = Dialect(), Dialect(is_python=True)


def write(kind: Any, column: pa.Array, dialect: Dialect = JAVA) -> list[Any]:
    """Return the texts of a field, which the kernel and the reference write alike."""
    node = Record("R", (RecordField("f", parse_definition(json.dumps(kind).encode())),))
    batch = pa.RecordBatch.from_arrays([column], names=["f"])
    plan = WritingPlan("json", text_plan(node, batch.schema, dialect), row_writer)
    found = []
    for kernel in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            choose(patch, kernel=kernel)
            found.append(outcome(ColumnEncoder(batch.schema, plan), batch))
    assert found[0] == found[1]
    if isinstance(found[0], tuple):
        row, field, reason = found[0]
        raise Mismatch(reason, field, row)
    assert all(text.startswith(b'{"f":') for text in found[0])
    texts = [text[5:-1].decode() for text in found[0]]
    return [None if text == "null" else text for text in texts]


def write_all(kind: Any, values: list[Any], dialect: Dialect = JAVA) -> list[Any]:
    node = parse_definition(json.dumps(kind).encode())
    return write(kind, pa.array(values, arrow_type(node, all_nullable=True)), dialect)


@pytest.mark.parametrize("values", [pa.array(["x"]), pa.array([True]), pa.array([[1]])])
def test_only_null_is_written_where_the_schema_allows_only_null(values: pa.Array) -> None:
    assert write("null", pa.nulls(2, values.type)) == [None, None]
    assert write("null", pa.nulls(1)) == [None]
    with pytest.raises(Mismatch, match="allows only null there"):
        write("null", values)


@given(st.lists(st.none() | st.text()))
def test_strings_are_quoted(values: list[str | None]) -> None:
    found = write(nullable("string"), pa.array(values, pa.string()))
    assert [text if text is None else json.loads(text) for text in found] == values


@given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False)))
def test_doubles_are_read_back_to_the_last_bit(values: list[float | None]) -> None:
    found = write_all(nullable("double"), values)
    assert [text if text is None else float(json.loads(text)) for text in found] == values


def test_what_is_no_number_is_a_text_as_jackson_writes_it() -> None:
    values = [math.nan, math.inf, -math.inf, 1.5, None]
    wanted = ['"NaN"', '"Infinity"', '"-Infinity"', "1.5", None]
    assert write_all(nullable("double"), values) == wanted
    assert write_all(nullable("float"), values) == wanted


WRITTEN: list[tuple[Any, list[Any], list[Any]]] = [
    ("boolean", [True, False], ["true", "false"]),
    ("long", [-(2**63), 7], [str(-(2**63)), "7"]),
    (logical("bytes", "decimal", precision=20, scale=3), [Decimal("-1.5")], ["-1.500"]),
    ("bytes", [b"\x00\xff", b""], ['"AP8="', '""']),
    ({"type": "fixed", "name": "F", "size": 2}, [b"ab"], ['"YWI="']),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, ["B", "A"], ['"B"', '"A"']),
    ({"type": "array", "items": nullable("int")}, [[1, None], []], ["[1,null]", "[]"]),
    ({"type": "map", "values": "int"}, [[('k"', 1), ("l", 2)], []], ['{"k\\"":1,"l":2}', "{}"]),
    (record([("a", "int"), ("b", "string")]), [{"a": 1, "b": "x"}], ['{"a":1,"b":"x"}']),
    (record([]), [{}, {}], ["{}", "{}"]),
    (["int", "string"], [{"member0": 1}, {"member1": "x"}], ["1", '"x"']),
]


@pytest.mark.parametrize("kind,values,wanted", WRITTEN)
def test_values_alone_and_among_nulls(kind: Any, values: list[Any], wanted: list[Any]) -> None:
    assert write_all(kind, values) == wanted
    several = [*kind, "null"] if isinstance(kind, list) else nullable(kind)
    assert write_all(several, [None, *values, None]) == [None, *wanted, None]
    assert write_all(kind, []) == []


TIMES = [
    ("timestamp-millis", pa.timestamp("us", "UTC"), [-1, 1999], ["-1", "1"]),
    ("timestamp-micros", pa.timestamp("us", "UTC"), [-1, 1999], ["-1", "1999"]),
    ("timestamp-nanos", pa.timestamp("us", "UTC"), [-1, 1999], ["-1000", "1999000"]),
    ("local-timestamp-millis", pa.timestamp("us"), [-1000, 1000], ["-1", "1"]),
    ("time-micros", pa.int64(), [0, 1999], ["0", "1"]),
]


@pytest.mark.parametrize("name,kind,values,wanted", TIMES)
def test_times_are_cut_off_towards_the_past(
    name: str, kind: pa.DataType, values: list[int], wanted: list[str]
) -> None:
    assert write(logical("long", name), pa.array(values, kind)) == wanted


def test_smaller_types_are_widened() -> None:
    assert write("long", pa.array([1], pa.int8())) == ["1"]
    assert write("double", pa.array([0.5], pa.float32())) == ["0.5"]
    decimals = pa.array([Decimal("1.50")], pa.decimal128(5, 2))
    assert write(logical("bytes", "decimal", precision=5, scale=1), decimals) == ["1.5"]


def test_uuids_are_texts_from_whatever_they_come() -> None:
    uuid = UUID(int=7)
    assert write(logical("string", "uuid"), pa.array([str(uuid)])) == [f'"{uuid}"']
    fixed = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    assert write(fixed, pa.array([uuid.bytes, None]).drop_null()) == [f'"{uuid}"']


def test_texts_that_are_no_uuid_are_refused() -> None:
    for kind in (
        logical("string", "uuid"),
        {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"},
    ):
        for text in ("", "x", f"{UUID(int=7)}\n"):
            with pytest.raises(match="it is not a UUID"):
                write(kind, pa.array([str(UUID(int=7)), text]))


def test_durations_are_objects() -> None:
    kind = {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}
    row = {"months": 1, "days": 2, "milliseconds": 3}
    assert list(map(json.loads, write_all(kind, [row]))) == [row]
    with pytest.raises(SchemaMismatch, match="f is binary"):
        write(kind, pa.array([b""]))


def test_bytes_of_the_python_client_are_text() -> None:
    assert write_all("bytes", ["é".encode()], PYTHON) == ['"é"']
    with pytest.raises(match="not UTF-8"):
        write_all("bytes", [b"\xff"], PYTHON)


def test_a_column_that_is_one_of_a_unions_types_by_itself() -> None:
    assert write(["int", "string", "null"], pa.array(["x", None])) == ['"x"', None]
    assert write(["null", "int", "string"], pa.nulls(2)) == [None, None]
    assert write(["boolean", "long"], pa.array([1], pa.int32())) == ["1"]
    symbols = {"type": "enum", "name": "E", "symbols": ["A"]}
    assert write([symbols, "string"], pa.array(["A", "C"])) == ['"A"', '"C"']
    assert write(["double", "long"], pa.array([1], pa.int32())) == ["1"]


UNFIT: list[tuple[Any, pa.Array]] = [
    ("int", pa.array([None], pa.int32())),
    ({"type": "array", "items": "int"}, pa.array([[1, None]], pa.list_(pa.int32()))),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.array(["A", "B"])),
    ({"type": "fixed", "name": "F", "size": 2}, pa.array([b"abc"])),
    (logical("long", "time-micros"), pa.array([-1], pa.int64())),
    (logical("long", "time-micros"), pa.array([86_400 * 10**9], pa.int64())),
    (logical("long", "timestamp-nanos"), pa.array([2**62]).view(pa.timestamp("us", "UTC"))),
    (logical("bytes", "decimal", precision=3, scale=1), pa.array([Decimal("1.55")])),
    (logical("bytes", "decimal", precision=3, scale=1), pa.array([Decimal("100.5")])),
    (["int", "string"], pa.array([{"member0": 1, "member1": "x"}])),
    (["int", "string"], pa.array([{"member0": None, "member1": "x"}, {}])),
]


@pytest.mark.parametrize("kind,column", UNFIT)
def test_what_the_schema_does_not_hold(kind: Any, column: pa.Array) -> None:
    if pa.types.is_struct(column.type):
        column = column.cast(pa.struct([("member0", pa.int32()), ("member1", pa.string())]))
    with pytest.raises(Mismatch) as caught:
        write(kind, column)
    assert caught.value.field.startswith("f")


def test_what_lies_in_nulls_is_not_looked_at() -> None:
    child = pa.array([None, 1], pa.int32())
    column = pa.StructArray.from_arrays([child], names=["a"], mask=pa.array([True, False]))
    assert write(nullable(record([("a", "int")])), column) == [None, '{"a":1}']
    lists = pa.ListArray.from_arrays([0, None, 2], pa.array([1, None], pa.int32()))
    assert write(nullable({"type": "array", "items": nullable("int")}), lists) == ["[1,null]", None]


@pytest.mark.fault(114)
@pytest.mark.parametrize("kind, code", [("float", "f"), ("double", "d")])
def test_floats_are_written_such_that_others_read_them_to_the_bit(kind: str, code: str) -> None:
    rng = random.Random(code)
    size = struct.calcsize(code)
    random_floats = [struct.unpack(code, rng.randbytes(size))[0] for _ in range(2000)]
    given = [-0.0, 0.0, 1.0, 0.1, *(number for number in random_floats if math.isfinite(number))]
    schema = info(record([("f", nullable(kind))]))
    columns = json_codec.arrow_schema(schema)
    column = pa.array([*given, None], columns.field("f").type)
    batch = pa.RecordBatch.from_arrays([column], schema=columns)
    written = json_codec.encoder(schema, columns).encode(batch)
    found = [json.loads(value)["f"] for value in written.to_pylist()]
    assert found[-1] is None
    for number, text in zip(column.drop_null().to_pylist(), found, strict=False):
        assert struct.pack(code, float(text)) == struct.pack(code, number)
    assert isinstance(found[0], float)
    assert_same_bits(json_codec.decoder(schema, schema, ["f"]).decode(written).columns[0], column)


def _left_out(always_allow_null: str) -> SchemaInfo:
    inner = record([("a", "int"), ("b", "string")], "Inner")
    fields: dict[str, Any] = {
        "id": "long",
        "name": "string",
        "inner": inner,
        "inners": {"type": "array", "items": "Inner"},
        "map": {"type": "map", "values": "Inner"},
        "either": ["int", "string"],
    }
    properties = {"__alwaysAllowNull": always_allow_null, "__jsr310ConversionEnabled": "false"}
    return replace(info(record([*fields.items()])), properties=properties)


WITHOUT = [
    b'{"id":1,"name":",","inner":{"b":"x"},"inners":[{"a":1},{}],"map":{"k":{}},"either":5}',
    b'{"inner":{},"inners":[]}',
    b"{}",
    b'{"name":"last","either":"x"}',
]


def test_fields_that_java_left_out_are_left_out_again() -> None:
    schema = _left_out("false")
    columns = json_codec.arrow_schema(schema)
    decoder = json_codec.decoder(schema, schema, columns.names)
    decoded = decoder.decode(pa.array([*WITHOUT, None], pa.binary()))
    assert not decoded.bad
    batch = pa.RecordBatch.from_arrays(list(decoded.columns), schema=columns)
    # A message without a value has no row of its own here.
    found = json_codec.encoder(schema, columns).encode(batch).to_pylist()
    assert found == [*WITHOUT, b"{}"]
    rows = batch.to_pylist(maps_as_pydicts="strict")[: len(WITHOUT)]
    for row in rows:
        if row["either"] is not None:
            (row["either"],) = (each for each in row["either"].values() if each is not None)
    encoder = PythonEncoder(schema)
    assert [encoder.encode(row) for row in rows] == WITHOUT
    assert encoder.encode({"name": "last", "either": "x"}) == WITHOUT[-1]
    # Columns that a DataFrame does not have are left out, too.
    some = batch.select(["name", "either"])
    assert json_codec.encoder(schema, some.schema).encode(some).to_pylist()[-2] == WITHOUT[-1]


def test_other_schemas_still_refuse_null_where_they_do_not_allow_it() -> None:
    schema = _left_out("true")
    columns = pa.schema([("id", pa.int64()), ("name", pa.string())])
    batch = pa.RecordBatch.from_pylist([{"id": 1, "name": None}], schema=columns)
    with pytest.raises(SchemaMismatch, match="inner"):
        json_codec.encoder(schema, columns)
    own = replace(info(record([("id", "long"), ("name", "string")])), properties=schema.properties)
    with pytest.raises(Mismatch, match="name: it is null"):
        json_codec.encoder(own, columns).encode(batch)
