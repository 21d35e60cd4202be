"""Values that are bytes or text."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import BYTES, SchemaInfo
from pulsar_spark.schema.codec import Undecodable, decoder_of
from pulsar_spark.schema.plain_values import arrow_schema, decoder, encoder

NONE = SchemaInfo(BYTES)
STRING = SchemaInfo(pb.Schema.String, "String")
INT32 = SchemaInfo(pb.Schema.Int32, "INT32")


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def test_both_are_one_column() -> None:
    assert arrow_schema(NONE) == pa.schema([("value", pa.binary())])
    assert arrow_schema(STRING) == pa.schema([("value", pa.string())])


def test_bytes_are_given_as_they_are() -> None:
    raw = binary(b"", b"\xff", None)
    found = decoder(NONE, NONE, ["value"]).decode(raw)
    assert found.columns[0].equals(raw)
    assert found.columns[0].buffers()[2].address == raw.buffers()[2].address
    assert not found.bad


def test_text_is_decoded_and_invalid_utf_8_is_an_error() -> None:
    text = decoder(STRING, STRING, ["value"])
    found = text.decode(binary("grün".encode(), None, b""))
    assert found.columns[0].to_pylist() == ["grün", None, ""]
    found = text.decode(binary(b"a", b"\xff", None, b"\x80", b"b"))
    assert found.columns[0].to_pylist() == ["a", None, None, None, "b"]
    assert found.bad == [Undecodable(row, "", "it is not UTF-8") for row in (1, 3)]


@pytest.mark.fault(64)
def test_values_of_another_type_are_refused() -> None:
    with pytest.raises(SchemaMismatch, match="INT32, the query has STRING"):
        decoder_of(INT32, STRING, ["value"])


def test_columns_are_encoded_whatever_their_name() -> None:
    for info, kind in ((NONE, pa.binary()), (STRING, pa.string())):
        columns = pa.record_batch([pa.array(["a", None], kind)], ["x"])
        assert encoder(info, columns.schema).encode(columns).to_pylist() == [b"a", None]


@pytest.mark.fault(64)
def test_columns_that_do_not_fit_are_named() -> None:
    with pytest.raises(SchemaMismatch, match="the column x is int32"):
        encoder(STRING, pa.schema([("x", pa.int32())]))
    with pytest.raises(SchemaMismatch, match="columns x, y"):
        encoder(NONE, pa.schema([("x", pa.binary()), ("y", pa.binary())]))
