"""Values of a few kilobytes that would become gigabytes: lists of items with many fields."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.arrow.arrays import MAX_CELLS, widest_item, width
from pulsar_spark.schema.codec import Decoded, decoder_of
from pulsar_spark.schema.table.record_batches import (
    MAX_BYTES,
    MAX_ROWS,
    PERMISSIVE,
    Projection,
    RecordBatchBuilder,
)
from tests.schema.table.entries import TOPIC

WIDE = 400
ITEMS = MAX_CELLS // WIDE + 1


def info(tree: Any, kind: int = pb.Schema.Avro) -> SchemaInfo:
    return SchemaInfo(kind, "", json.dumps(tree).encode())


def record(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    named = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": name, "fields": named}


def wide(count: int = WIDE) -> dict[str, Any]:
    kind = ["null", "long"] if count == WIDE else "long"
    return record("W", {f"f{number}": kind for number in range(count)})


def zigzag(number: int) -> bytes:
    rest, out = number << 1, bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*out, rest])


def decode(writer: SchemaInfo, reader: SchemaInfo, values: Sequence[bytes]) -> Decoded:
    return decoder_of(writer, reader, ["a", "b"]).decode(pa.array(list(values), pa.binary()))


def check(writer: SchemaInfo, reader: SchemaInfo, good: bytes, bad: bytes, again: int) -> None:
    """Fail unless `bad` is rejected and does not affect valid values."""
    found = decode(writer, reader, [good] * again + [bad] + [good] * again)
    assert [item.row for item in found.bad] == [again]
    assert f"more than {MAX_CELLS} fields" in found.bad[0].reason
    assert found.columns[1].to_pylist() == [7] * again + [None] + [7] * again


@pytest.mark.fault(113)
@pytest.mark.parametrize("again", [1, 400])
def test_lists_of_unions_with_very_many_members_do_not_decode(again: int) -> None:
    members = [record(f"A{number}", {}) for number in range(WIDE)]
    schema = info(record("R", {"a": {"type": "array", "items": members}, "b": "int"}))
    bad = zigzag(ITEMS) + b"\2" * ITEMS + b"\0" + zigzag(7)
    check(schema, schema, b"\2\2\0" + zigzag(7), bad, again)


@pytest.mark.fault(113)
def test_nor_do_lists_within_lists_that_hold_as_much_together() -> None:
    members = [record(f"A{number}", {}) for number in range(WIDE)]
    inner = {"type": "array", "items": members}
    schema = info(record("R", {"a": {"type": "array", "items": inner}, "b": "int"}))
    part = zigzag(ITEMS // 100 + 1) + b"\2" * (ITEMS // 100 + 1) + b"\0"
    bad = zigzag(100) + part * 100 + b"\0" + zigzag(7)
    check(schema, schema, b"\2\2\2\0\0" + zigzag(7), bad, 400)


@pytest.mark.fault(113)
@pytest.mark.parametrize("kind", ["array", "map"])
def test_nor_do_lists_of_records_that_got_many_fields_later(kind: str) -> None:
    within = {"array": "items", "map": "values"}[kind]
    later = wide()
    for field in later["fields"]:
        field["default"] = None
    written, read = (
        info(record("R", {"a": {"type": kind, within: item}, "b": "int"}))
        for item in (record("W", {"x": "boolean"}), later)
    )
    item = b"\1" if kind == "array" else b"\2k\1"
    bad = zigzag(ITEMS) + item * ITEMS + b"\0" + zigzag(7)
    check(written, read, zigzag(1) + item + b"\0" + zigzag(7), bad, 1)


@pytest.mark.fault(113)
def test_items_that_take_no_bytes_count_as_many_as_they_have_fields() -> None:
    later = wide()
    for field in later["fields"]:
        field["default"] = None
    written, read = (
        info(record("R", {"a": {"type": "array", "items": item}, "b": "int"}))
        for item in (record("W", {}), later)
    )
    good, bad = (zigzag(count) + b"\0" + zigzag(7) for count in (2, 3))
    found = decode(written, read, [good, bad])
    assert [item.row for item in found.bad] == [1]
    assert "take no bytes" in found.bad[0].reason


@pytest.mark.fault(113)
@pytest.mark.parametrize("item", [b"{}", b"null", b' { "z":null } '])
@pytest.mark.parametrize("again", [1, 40])
def test_lists_of_json_objects_with_very_many_fields_do_not_decode(item: bytes, again: int) -> None:
    tree = record("R", {"a": {"type": "array", "items": wide()}, "b": "int"})
    schema = info(tree, pb.Schema.Json)
    bad = b'{"b":7,"a":[' + b",".join([item] * ITEMS) + b"]}"
    check(schema, schema, b'{"b":7,"a":[{}]}', bad, again)


@pytest.mark.fault(113)
def test_nor_do_maps_of_them_that_are_null() -> None:
    schema = info(record("R", {"a": {"type": "map", "values": wide()}, "b": "int"}), pb.Schema.Json)
    pairs = b",".join(b'"%d":null' % number for number in range(ITEMS))
    check(schema, schema, b'{"b":7,"a":{"k":{}}}', b'{"b":7,"a":{' + pairs + b"}}", 1)


@pytest.mark.fault(113)
def test_json_of_as_many_bytes_that_holds_less_decodes() -> None:
    tree = record("R", {"a": {"type": "array", "items": wide()}, "b": "int", "t": "string"})
    schema = info(tree, pb.Schema.Json)
    item = json.dumps({f"f{number}": None for number in range(50)}).encode()
    text = json.dumps("{[null,null]}" * ITEMS).encode()
    for value in (
        b'{"b":7,"a":[' + b",".join([item] * 5000) + b"]}",
        b'{"b":7,"t":' + text + b',"a":[{"f0":1}]}',
    ):
        found = decode(schema, schema, [value])
        assert not found.bad
        assert found.columns[1].to_pylist() == [7]


@pytest.mark.fault(113)
def test_record_batches_are_smaller_where_their_columns_are_very_many() -> None:
    def bounds(fields: dict[str, Any]) -> tuple[int, int]:
        schema = info(record("R", fields))
        columns = pa.schema([])
        builder = RecordBatchBuilder(
            columns, Projection(tuple(fields), schema, PERMISSIVE), TOPIC, 3
        )
        options = builder.block_options(None, 1000)
        assert options is not None
        return options.max_rows, options.max_bytes

    assert bounds({"a": "int", "b": {"type": "array", "items": "long"}}) == (MAX_ROWS, MAX_BYTES)
    ten = {"type": "array", "items": wide(10)}
    assert bounds({"a": ten}) == (MAX_ROWS, MAX_BYTES)
    rows, size = bounds({"a": wide(15_000)})
    assert rows * 15_000 <= 2 * MAX_CELLS
    assert size == MAX_BYTES
    rows, size = bounds({"a": {"type": "array", "items": wide(15_000)}})
    assert (rows, size * 15_000 <= 2 * MAX_CELLS) == (MAX_ROWS, True)


def test_widths_of_types() -> None:
    point = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.int32()))])
    assert width(pa.int32()) == 1
    assert width(pa.struct([])) == 1
    assert width(pa.struct([("p", point), ("q", point)])) == 4
    assert widest_item(point) == 1
    assert widest_item(pa.int32()) == 0
    assert widest_item(pa.list_(pa.list_(point))) == 2
    assert widest_item(pa.map_(pa.string(), point)) == 3


MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 18}
LONG = 2_000_000


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
LISTS = {kind: {"type": "array", "items": kind} for kind in ("int", "string", "bytes")}


# No clock needed: in quadratic time each of these would take hours.
@pytest.mark.fault(113)
@pytest.mark.parametrize(
    "kind, start, repeated, end",
    [
        (MONEY, '"', "9", 'x"'),
        (MONEY, '"', "9", '..."'),
        (MONEY, "", "9", ".x"),
        (MONEY, "0.", "0", "1e99999999999"),
        (MONEY, "0e", "9", ""),
        ("long", "", "9", ".0"),
        ("double", "0.", "9", "x"),
        (MILLIS, '"', "2", '"'),
        ({"type": "int", "logicalType": "date"}, '"2024-01-01', "-01", '"'),
        (LISTS["string"], '["', '\\"', ""),
        (LISTS["bytes"], '["', "=", '"]'),
        (LISTS["int"], "[", ",", "]"),
        ("string", "[", " ", "x"),
    ],
)
def test_no_text_takes_long_to_be_no_value(kind: Any, start: str, repeated: str, end: str) -> None:
    schema = info(record("R", {"a": kind, "b": "int"}), pb.Schema.Json)
    text = f'{{"b":7,"a":{start}{repeated * LONG}{end}}}'
    found = decode(schema, schema, [text.encode(), b'{"b":7}'])
    assert [item.row for item in found.bad] == [0]
    assert found.columns[1].to_pylist() == [None, 7]


@pytest.mark.fault(113)
def test_a_long_text_of_braces_and_quotes_is_counted_once() -> None:
    tree = record("R", {"a": {"type": "array", "items": wide()}, "b": "int"})
    schema = info(tree, pb.Schema.Json)
    for text in (b'"' + b'\\"' * LONG, b'"\\' * LONG, b'"\xff' * LONG):
        found = decode(schema, schema, [b'{"b":7,"a":' + text + b"}"])
        assert [item.row for item in found.bad] == [0]
