"""Values of versions that do not fit the query's columns are never decoded as something else.

A namespace with the strategy ALWAYS_COMPATIBLE lets a topic's schema change its type, and its
messages stay as they were written.
"""

from __future__ import annotations

import itertools
import json
import logging
import struct
from base64 import b64encode
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from pulsar_spark.errors import CorruptMessage, SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import BYTES, SchemaInfo, join_key_value
from pulsar_spark.schema.codec import typed_columns
from pulsar_spark.schema.table.names import KEY
from pulsar_spark.schema.table.record_batches import (
    CORRUPT,
    DROPMALFORMED,
    FAILFAST,
    PERMISSIVE,
    Projection,
    RecordBatchBuilder,
)
from tests.schema.protobuf.cases import add, info_of, new_file
from tests.schema.table.entries import TOPIC, batch, batches_of, message, single

RECORD = json.dumps(
    {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "int"]}]}
).encode()


def native() -> SchemaInfo:
    file = new_file()
    add(file.message_type.add(name="M"), "a", 1, FieldDescriptorProto.TYPE_INT32)
    return info_of(file)


AVRO = SchemaInfo(pb.Schema.Avro, "R", RECORD)
JSON = SchemaInfo(pb.Schema.Json, "R", RECORD)
STRING = SchemaInfo(pb.Schema.String)
KINDS: dict[str, SchemaInfo] = {
    "AVRO": AVRO,
    "JSON": JSON,
    "PROTOBUF_NATIVE": native(),
    "INT32": SchemaInfo(pb.Schema.Int32),
    "STRING": STRING,
    "BYTES": SchemaInfo(BYTES),
    "INSTANT": SchemaInfo(pb.Schema.Instant),
    "KEY_VALUE": join_key_value(STRING, AVRO, separated=False),
}
UNDECODED = {"EXTERNAL": SchemaInfo(pb.Schema.External), "schema type 77": SchemaInfo(77)}
OLD, NEW = (number.to_bytes(8, "big") for number in (3, 4))
# Bytes that are valid as several types: an Avro union, JSON, protobuf or text.
PAYLOADS = (b"\2\6", b'{"a":7}', b"\x08\x07", b"\0", b"", b"\0\0\0\7", b"{}")


def build(
    reader: SchemaInfo, writers: dict[bytes, SchemaInfo], mode: str, *entries: Any
) -> list[dict[str, Any]]:
    """Return rows of the query's columns, with those of values that do not decode."""
    found = typed_columns(reader)
    columns = [*found.fields.names, CORRUPT]
    types = [*found.fields.types, pa.binary()]
    if found.key is not None:
        columns, types = [KEY, *columns], [found.key, *types]
    target = RecordBatchBuilder(
        pa.schema(list(zip(columns, types, strict=True))),
        Projection(tuple(columns), reader, mode),
        TOPIC,
        3,
        writers.__getitem__,
    )
    return [row for part in batches_of(target, *entries) for row in part.to_pylist()]


PAIRS = [
    (written, read)
    for written, read in itertools.product(KINDS.keys() | UNDECODED.keys(), KINDS)
    if written != read
]


@pytest.mark.fault(64)
@pytest.mark.parametrize("written, read", sorted(PAIRS))
def test_no_value_is_decoded_as_another_type_than_it_was_written_with(
    written: str, read: str
) -> None:
    versions = {OLD: {**KINDS, **UNDECODED}[written], NEW: KINDS[read]}
    for number, payload in enumerate(PAYLOADS):
        entry = single(payload, schema_version=OLD, entry_id=number)
        with pytest.raises(SchemaMismatch) as caught:
            build(KINDS[read], versions, FAILFAST, entry)
        assert {"version 3", written, read} <= set(named(str(caught.value), written, read))
        assert caught.value.topic == TOPIC
        assert caught.value.message_id == f"7:{number}:3:-1"
        (row,) = build(KINDS[read], versions, PERMISSIVE, entry)
        assert row == {**dict.fromkeys(row), CORRUPT: payload}
        assert build(KINDS[read], versions, DROPMALFORMED, entry) == []


def named(text: str, *types: str) -> list[str]:
    return [word for word in ("version 3", *types) if word in text]


MIXED = (
    batch([message(b"\2\2"), message(b"\2\4")], schema_version=NEW),
    batch([message(b'{"a":0}'), message(None), message(b"\2\6")], schema_version=OLD, entry_id=1),
    batch([message(b"\2\x08")], schema_version=NEW, entry_id=2),
)
VERSIONS = {OLD: JSON, NEW: AVRO}


@pytest.mark.fault(64)
def test_the_other_versions_of_the_topic_are_read_on() -> None:
    found = build(AVRO, VERSIONS, PERMISSIVE, *MIXED)
    assert [row["a"] for row in found] == [1, 2, None, None, None, 4]
    assert [row[CORRUPT] for row in found] == [None, None, b'{"a":0}', None, b"\2\6", None]
    assert [row["a"] for row in build(AVRO, VERSIONS, DROPMALFORMED, *MIXED)] == [1, 2, None, 4]


@pytest.mark.fault(64)
def test_what_is_dropped_for_its_type_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        build(AVRO, VERSIONS, DROPMALFORMED, *MIXED)
    assert "2 values" in caplog.text
    assert "JSON" in caplog.text


@pytest.mark.fault(64)
def test_null_values_are_null_whatever_they_were_written_with() -> None:
    nothing = batch([message(None), message(None)], schema_version=OLD)
    assert [row["a"] for row in build(AVRO, VERSIONS, FAILFAST, nothing)] == [None, None]


@pytest.mark.fault(64)
def test_the_parts_of_pairs_are_checked_too() -> None:
    reader = join_key_value(AVRO, AVRO, separated=False)
    for parts in ((JSON, AVRO), (AVRO, JSON)):
        versions = {OLD: join_key_value(*parts, separated=False)}
        pair = b"\0\0\0\2\2\6" * 2
        with pytest.raises(SchemaMismatch, match=r"version 3.*JSON.*AVRO"):
            build(reader, versions, FAILFAST, single(pair, schema_version=OLD))


TEXT = json.dumps(
    {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
).encode()
PAIR = SchemaInfo(pb.Schema.Int32), AVRO
OTHER = SchemaInfo(pb.Schema.Avro, "R", TEXT)


def pairs(separated: bool, key: bytes, *values: bytes | None) -> list[Any]:
    """Return entries of pairs with the old version."""
    found = []
    for number, value in enumerate(values):
        fields: dict[str, Any] = {"schema_version": OLD, "entry_id": number}
        if separated:
            fields |= {"partition_key": b64encode(key).decode(), "partition_key_b64_encoded": True}
            found.append(single(value, **fields))
        else:
            parts = [(len(part), part) if part is not None else (-1, b"") for part in (key, value)]
            payload = b"".join(struct.pack(">i", size) + part for size, part in parts)
            found.append(single(payload, **fields))
    return found


@pytest.mark.fault(64)
@pytest.mark.parametrize("separated", [False, True])
def test_where_values_cannot_be_resolved_keys_and_tombstones_can(separated: bool) -> None:
    reader = join_key_value(*PAIR, separated=separated)
    versions = {OLD: join_key_value(PAIR[0], OTHER, separated=separated)}
    tombstone, value = pairs(separated, b"\0\0\0\7", None, b"\2x")
    for mode in (FAILFAST, PERMISSIVE, DROPMALFORMED):
        assert build(reader, versions, mode, tombstone) == [{KEY: 7, "a": None, CORRUPT: None}]
    (row,) = build(reader, versions, PERMISSIVE, value)
    assert (row[KEY], row["a"]) == (7, None)
    assert row[CORRUPT].endswith(b"\2x")
    assert build(reader, versions, DROPMALFORMED, value) == []
    with pytest.raises(SchemaMismatch, match=r"version 3.*the field a was written as string"):
        build(reader, versions, FAILFAST, value)


@pytest.mark.fault(64)
@pytest.mark.parametrize("separated", [False, True])
def test_where_keys_cannot_be_resolved_values_can(separated: bool) -> None:
    reader = join_key_value(*PAIR, separated=separated)
    versions = {OLD: join_key_value(STRING, AVRO, separated=separated)}
    (entry,) = pairs(separated, b"word", b"\2\6")
    (row,) = build(reader, versions, PERMISSIVE, entry)
    assert (row[KEY], row["a"]) == (None, 3)
    assert row[CORRUPT] == (b"word" if separated else b"\0\0\0\4word\0\0\0\2\2\6")
    with pytest.raises(SchemaMismatch, match=r"version 3.*STRING.*INT32"):
        build(reader, versions, FAILFAST, entry)
    if not separated:
        with pytest.raises(CorruptMessage, match="ends before the value"):
            build(reader, versions, FAILFAST, single(b"\0\0\0\4word", schema_version=OLD))


@pytest.mark.parametrize("separated", [False, True])
@pytest.mark.parametrize("mode", [FAILFAST, PERMISSIVE, DROPMALFORMED])
def test_values_of_pairs_are_read_without_their_keys(separated: bool, mode: str) -> None:
    schema = join_key_value(*PAIR, separated=separated)
    target = RecordBatchBuilder(
        pa.schema([("a", pa.int32())]), Projection(("a",), schema, mode), TOPIC, 3
    )
    entries = pairs(separated, b"\0\0\0\7", b"\2\6", None)
    found = [row for part in batches_of(target, *entries) for row in part.to_pylist()]
    assert found == [{"a": 3}, {"a": None}]


@pytest.mark.fault(64)
def test_definitions_that_cannot_be_resolved_are_treated_alike() -> None:
    entry = single(b"\2a", schema_version=OLD)
    with pytest.raises(SchemaMismatch, match=r"version 3 .*the field a was written as string"):
        build(AVRO, {OLD: OTHER}, FAILFAST, entry)
    (row,) = build(AVRO, {OLD: OTHER}, PERMISSIVE, entry)
    assert row == {"a": None, CORRUPT: b"\2a"}


@pytest.mark.fault(64)
def test_a_version_that_the_registry_does_not_have_is_treated_alike() -> None:
    class Registry(dict[bytes, SchemaInfo]):
        def __missing__(self, version: bytes) -> SchemaInfo:
            raise SchemaMismatch("the registry does not have the version 3", "Do this.")

    entries = (single(b"\2\6", schema_version=OLD), single(b"\2\4", schema_version=NEW, entry_id=1))
    with pytest.raises(SchemaMismatch, match="does not have the version 3") as caught:
        build(AVRO, Registry({NEW: AVRO}), FAILFAST, *entries)
    assert (caught.value.remedy, caught.value.message_id) == ("Do this.", "7:0:3:-1")
    found = build(AVRO, Registry({NEW: AVRO}), PERMISSIVE, *entries)
    assert found == [{"a": None, CORRUPT: b"\2\6"}, {"a": 2, CORRUPT: None}]
    assert [row["a"] for row in build(AVRO, Registry({NEW: AVRO}), DROPMALFORMED, *entries)] == [2]
