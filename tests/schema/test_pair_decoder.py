"""Messages of KEY_VALUE topics."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import BYTES, SchemaInfo, join_key_value
from pulsar_spark.schema.codec import Undecodable, typed_columns
from pulsar_spark.schema.key_value import PairDecoder

NONE = SchemaInfo(BYTES)
STRING = SchemaInfo(pb.Schema.String, "String")
INT32 = SchemaInfo(pb.Schema.Int32, "INT32")
RECORD = SchemaInfo(
    pb.Schema.Json,
    "r",
    b'{"type":"record","name":"r","fields":[{"name":"a","type":["null","int"]},'
    b'{"name":"b","type":["null","string"]}]}',
)


def pair(key: bytes | None, value: bytes | None) -> bytes:
    return b"".join(
        struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
        for part in (key, value)
    )


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def test_inline_and_separated_give_the_same() -> None:
    one = struct.pack(">i", 1)
    inline = join_key_value(INT32, STRING, separated=False)
    found = PairDecoder(inline, inline, ["value", "__key"]).decode(
        binary(pair(one, b"a"), pair(None, None), None), None
    )
    assert [column.to_pylist() for column in found.columns] == [["a", None, None], [1, None, None]]
    separated = join_key_value(INT32, STRING, separated=True)
    found = PairDecoder(separated, separated, ["__key", "value"]).decode(
        binary(b"a", None, None), binary(one, None, None)
    )
    assert [column.to_pylist() for column in found.columns] == [[1, None, None], ["a", None, None]]


def test_records_as_keys_are_structs() -> None:
    info = join_key_value(RECORD, NONE, separated=True)
    keys = binary(b'{"a":1,"b":"x"}', None, b'{"a":"?"}', b"{}")
    found = PairDecoder(info, info, ["__key"]).decode(binary(b"", b"", b"", b""), keys)
    assert found.columns[0].to_pylist() == [
        {"a": 1, "b": "x"},
        None,
        None,
        {"a": None, "b": None},
    ]
    assert [(item.row, item.field) for item in found.bad] == [(2, "__key.a")]


def test_a_row_with_several_errors_is_reported_once() -> None:
    info = join_key_value(INT32, INT32, separated=False)
    found = PairDecoder(info, info, ["value", "__key"]).decode(
        binary(b"?", pair(b"?", b"?"), pair(b"?", None)), None
    )
    assert [item.row for item in found.bad] == [0, 1, 2]
    assert found.bad[2].field == "__key"
    assert all(isinstance(item, Undecodable) for item in found.bad)


@pytest.mark.fault(64)
def test_another_schema_is_no_pair() -> None:
    info = join_key_value(INT32, INT32, separated=False)
    with pytest.raises(SchemaMismatch, match="INT32, the query has KEY_VALUE"):
        PairDecoder(INT32, info, ["value"])


@pytest.mark.parametrize("kind", [pb.Schema.Json, pb.Schema.Avro])
def test_keys_are_records_however_their_definition_says_so(kind: int) -> None:
    wrapped = SchemaInfo(kind, "r", b'{"type":' + RECORD.schema_data + b"}")
    info = join_key_value(wrapped, STRING, separated=False)
    fields = pa.struct([("a", pa.int32()), ("b", pa.string())])
    assert typed_columns(info).key == fields
    key = b'{"a":1,"b":"x"}' if kind == pb.Schema.Json else b"\2\2\2\2x"
    found = PairDecoder(info, info, ["__key"]).decode(binary(pair(key, b"v")), None)
    assert not found.bad
    assert found.columns[0].to_pylist() == [{"a": 1, "b": "x"}]
