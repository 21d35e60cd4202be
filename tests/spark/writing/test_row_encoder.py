"""Rows become payloads and keys."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from pulsar_spark.errors import InvalidRow, SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo, join_key_value
from pulsar_spark.schema.codec import record_definition
from pulsar_spark.spark.writing.columns import plan_columns
from pulsar_spark.spark.writing.row_encoder import EncodedRows, RowEncoder

STRING = SchemaInfo(pb.Schema.String, "String")
INT32 = SchemaInfo(pb.Schema.Int32, "INT32")
TIME = SchemaInfo(pb.Schema.LocalTime, "LocalTime")
ONE, MINUS = b"\0\0\0\1", b"\xff\xff\xff\xff"


def encode(
    schema: SchemaInfo | None, columns: dict[str, tuple[DataType, pa.Array]], **options: Any
) -> EncodedRows:
    frame = StructType()
    for name, (kind, _) in columns.items():
        frame.add(name, kind)
    planned = plan_columns(frame, topic_given=True, value_format="auto")
    batch = pa.RecordBatch.from_pydict({name: array for name, (_, array) in columns.items()})
    return RowEncoder(planned, schema, **options).encode(batch, lambda row: 100 + row)


def test_null_is_a_null_value() -> None:
    found = encode(INT32, {"value": (IntegerType(), pa.array([1, None, -1], pa.int32()))})
    assert found == EncodedRows([ONE, None, MINUS])
    everything = encode(INT32, {"value": (IntegerType(), pa.nulls(2, pa.int32()))})
    assert everything.payloads == [None, None]
    text = encode(STRING, {"value": (StringType(), pa.array(["a", None], pa.large_string()))})
    assert text.payloads == [b"a", None]


KEYED: dict[str, tuple[DataType, pa.Array]] = {
    "__key": (IntegerType(), pa.array([1, None, 1, None], pa.int32())),
    "value": (StringType(), pa.array(["a", "b", None, None])),
}


def test_typed_keys_go_with_the_message_or_into_it() -> None:
    separated = encode(join_key_value(INT32, STRING, separated=True), KEYED)
    assert separated.payloads == [b"a", b"b", None, None]
    assert separated.keys == [ONE, None, ONE, None]
    assert separated.null_keys == [False, True, False, True]
    inline = encode(join_key_value(INT32, STRING, separated=False), KEYED)
    size = b"\0\0\0\4"
    assert inline.keys is None
    assert list(inline.payloads) == [
        size + ONE + b"\0\0\0\1a",
        MINUS + b"\0\0\0\1b",
        size + ONE + MINUS,
        MINUS + MINUS,
    ]


def test_a_frame_without_keys_writes_null_ones() -> None:
    columns = {"value": KEYED["value"]}
    separated = encode(join_key_value(INT32, STRING, separated=True), columns)
    assert separated.keys == [None] * 4
    assert separated.null_keys == [True] * 4


@pytest.mark.fault(77)
def test_what_does_not_fit_in_keys_and_in_values_is_listed_together() -> None:
    schema = record_definition(pb.Schema.Avro, pa.schema([pa.field("a", pa.int32())]), "r", None)
    pair = join_key_value(schema, schema, separated=True)
    struct = StructType().add("b", IntegerType())
    with pytest.raises(SchemaMismatch) as caught:
        encode(pair, {"__key": (struct, pa.nulls(1)), "c": (StringType(), pa.nulls(1))})
    of_key, of_value = caught.value.what.split("; the DataFrame")
    assert of_key.startswith("__key: ")
    assert "b is not in" in of_key
    assert "c is not in" in of_value
    with pytest.raises(SchemaMismatch, match=r"fields a, but the column is string\. Make it a"):
        encode(pair, {"__key": (StringType(), pa.nulls(1)), "a": (IntegerType(), pa.nulls(1))})


def test_a_value_that_the_schema_does_not_hold_is_named_by_its_row_in_the_task() -> None:
    times = pa.array([None, 5, None, -7], pa.int64())
    with pytest.raises(InvalidRow, match="row 103 "):
        encode(TIME, {"value": (LongType(), times)})
    required = b'{"type":"record","name":"r","fields":[{"name":"a","type":"long"},' + (
        b'{"name":"b","type":["null","long"]}]}'
    )
    rows: Any = {
        "a": (LongType(), pa.array([1, None, None], pa.int64())),
        "b": (LongType(), times[:3]),
    }
    for kind in (pb.Schema.Avro, pb.Schema.Json):
        with pytest.raises(InvalidRow, match="row 101 cannot be written: the field a"):
            encode(SchemaInfo(kind, "r", required), rows)
    native = b'{"name":"r","type":"record","fields":[{"name":"a","type":"long"}]}'
    pair = join_key_value(SchemaInfo(pb.Schema.Avro, "r", native), STRING, separated=False)
    struct = StructType().add("a", LongType())
    keys = pa.StructArray.from_arrays([pa.array([None, 1], pa.int64())], names=["a"])
    with pytest.raises(InvalidRow, match="row 100 cannot be written: __key: the field a"):
        encode(pair, {"__key": (struct, keys), "v": (StringType(), pa.array(["x", "y"]))})


@pytest.mark.parametrize("kind", [pb.Schema.Avro, pb.Schema.Json])
def test_a_value_that_is_no_record_is_named_by_its_column(kind: int) -> None:
    enum = SchemaInfo(kind, "e", b'{"type":"enum","name":"E","symbols":["A","B"]}')
    values = pa.array(["A", "C"])
    with pytest.raises(InvalidRow, match=r"row 101 cannot be written: the field v: it is"):
        encode(enum, {"v": (StringType(), values)})


NOT_TEXT = pa.array([b"a", b"\xffA", None]).view(pa.string())


@pytest.mark.parametrize("kind", [pb.Schema.Avro, pb.Schema.Json])
@pytest.mark.parametrize(
    "array,column",
    [
        (NOT_TEXT, StringType()),
        (pa.StructArray.from_arrays([NOT_TEXT], names=["t"]), StructType().add("t", StringType())),
        (pa.ListArray.from_arrays([0, 1, 2, 3], NOT_TEXT), ArrayType(StringType())),
        (
            pa.MapArray.from_arrays([0, 1, 2, 2], NOT_TEXT[:2], NOT_TEXT[:2]),
            MapType(StringType(), StringType()),
        ),
    ],
    ids=["text", "in a struct", "in an array", "in a map"],
)
def test_text_that_is_not_utf8_is_refused_by_its_row(
    kind: int, array: pa.Array, column: DataType
) -> None:
    fields = pa.schema([pa.field("a", array.type)])
    schema = record_definition(kind, fields, "r", None)
    with pytest.raises(InvalidRow, match=r"row 101 .* the field a: it has text that is not UTF-8"):
        encode(schema, {"a": (column, array)})
    assert encode(schema, {"a": (column, array.slice(0, 1))}).payloads[0] is not None


def test_only_the_bytes_of_a_string_that_is_a_value_by_itself_are_text() -> None:
    with pytest.raises(InvalidRow, match=r"row 101 .* the field value: it has text that is not"):
        encode(STRING, {"value": (StringType(), NOT_TEXT)})
    pair = join_key_value(STRING, STRING, separated=True)
    with pytest.raises(InvalidRow, match=r"row 101 .* __key: the field __key: it has text"):
        encode(pair, {"__key": (StringType(), NOT_TEXT), "value": (StringType(), pa.nulls(3))})
    raw = encode(None, {"value": (BinaryType(), NOT_TEXT.view(pa.binary()))})
    assert list(raw.payloads) == [b"a", b"\xffA", None]


def test_the_fields_of_one_struct_can_be_the_record() -> None:
    record = b'{"type":"record","name":"r","fields":[{"name":"a","type":["null","int"]}]}'
    kind = StructType().add("a", IntegerType())
    inner = pa.array([1, None, None], pa.int32())
    mask = pa.array([False, False, True])
    structs = pa.StructArray.from_arrays([inner], names=["a"], mask=mask)
    info = SchemaInfo(pb.Schema.Avro, "r", record)
    found = encode(info, {"value": (kind, structs)}, unwraps=True)
    assert found.payloads == [b"\x02\x02", b"\0", None]
    flat = encode(info, {"a": (IntegerType(), inner)})
    assert flat.payloads == [b"\x02\x02", None, None]
