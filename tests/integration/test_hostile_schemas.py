"""Harmful schemas and values, on purpose or by mistake: a quick answer, never a crash."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pulsar_spark.errors import CorruptMessage, SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.testing import EmbeddedBroker
from tests.integration.brokers import Embedded
from tests.integration.typed import Reading, read
from tests.spark.topics import set_schema, store

SOON = 30.0
"""Seconds that all of it must take less than, on a machine that others use."""

KINDS = {"AVRO": pb.Schema.Avro, "JSON": pb.Schema.Json}


@pytest.fixture
def broker() -> Iterator[Embedded]:
    with EmbeddedBroker(auto_create=False, max_message_size=40 * 1024 * 1024) as own:
        own.create_topic("t")
        yield Embedded(own)
        assert own.internal_errors == ()


def define(broker: Embedded, kind: int, definition: Any, **properties: str) -> None:
    data = definition if isinstance(definition, bytes) else json.dumps(definition).encode()
    set_schema(broker.own, "t", SchemaInfo(kind, "r", data, properties))


def record(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": list(fields)}


@pytest.mark.fault(44)
@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_always_contains_itself_holds_no_value(broker: Embedded, kind: str) -> None:
    node = {"type": "record", "name": "node", "fields": [{"name": "next", "type": "node"}]}
    define(broker, KINDS[kind], record({"name": "list", "type": node}))
    assert read(broker, "t") == []
    store(broker.own, "t", [b"x"], schema_version=bytes(8))
    with pytest.raises(CorruptMessage) as caught:
        read(broker, "t")
    assert "valueFormat=raw" in caught.value.remedy
    assert [row["value"] for row in read(broker, "t", {"valueFormat": "raw"})] == [b"x"]


@pytest.mark.fault(44)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", ["10 MB", "50,000 fields", "5,000 deep"])
def test_a_huge_definition_is_read_or_refused_soon(broker: Embedded, kind: str, size: str) -> None:
    definition: Any = record({"name": "a", "type": "int", "doc": "x" * 10_000_000})
    if size == "50,000 fields":
        fields = [{"name": f"f{number}", "type": ["null", "int"]} for number in range(50_000)]
        definition = record(*fields)
    if size == "5,000 deep":
        arrays = '{"type":"array","items":' * 5000 + '"int"' + "}" * 5000
        fields_text = f'[{{"name":"a","type":{arrays}}}]'
        definition = f'{{"type":"record","name":"r","fields":{fields_text}}}'.encode()
    started = time.monotonic()
    define(broker, KINDS[kind], definition)
    try:
        read(broker, "t")
    except SchemaMismatch as error:
        assert error.what  # noqa: PT017 - either is right, as long as it comes soon
    assert time.monotonic() - started < SOON


@pytest.mark.fault(44)
@pytest.mark.parametrize("definition", [b"", b"{", b"[]", b"\xff", b'"nothing"', b'{"type":1}'])
@pytest.mark.parametrize("kind", [*KINDS.values(), pb.Schema.Protobuf, pb.Schema.ProtobufNative])
def test_a_damaged_definition_is_told(broker: Embedded, kind: int, definition: bytes) -> None:
    define(broker, kind, definition)
    with pytest.raises(SchemaMismatch) as caught:
        read(broker, "t")
    assert caught.value.topic == "persistent://public/default/t"


@pytest.mark.fault(44)
def test_a_json_value_of_5000_levels_does_no_harm(broker: Embedded) -> None:
    define(broker, pb.Schema.Json, record({"name": "a", "type": ["null", "int"]}))
    deep = b'{"a":' * 5000 + b"1" + b"}" * 5000
    lists = b'{"b":' + b"[" * 5000 + b"]" * 5000 + b',"a":5}'
    store(broker.own, "t", [b'{"a":1}', deep, b'{"a":2}'], schema_version=bytes(8))
    with pytest.raises(CorruptMessage, match="nested too deeply") as caught:
        read(broker, "t")
    assert caught.value.message_id is not None
    rows = read(broker, "t", {"mode": "PERMISSIVE"})
    assert [row["a"] for row in rows] == [1, None, 2]
    store(broker.own, "t", [lists, b'{"a":3}'], schema_version=bytes(8))
    rows = read(broker, "t", {"mode": "PERMISSIVE"})
    assert [row["a"] for row in rows[:3]] == [1, None, 2]
    assert rows[3]["a"] in (5, None)
    assert rows[4]["a"] == 3


@pytest.mark.fault(94)
@pytest.mark.parametrize("millis", [0, -1, -62_135_596_800_001, 253_402_300_800_000, 2**63 - 1])
def test_times_beyond_all_calendars_are_told_or_given_as_they_are(
    broker: Embedded, millis: int
) -> None:
    set_schema(broker.own, "t", SchemaInfo(pb.Schema.Timestamp, "Timestamp"))
    store(broker.own, "t", [struct.pack(">q", millis)], schema_version=bytes(8))
    if millis == 2**63 - 1:
        with pytest.raises(CorruptMessage):
            read(broker, "t")
        assert [row["value"] for row in read(broker, "t", {"mode": "PERMISSIVE"})] == [None]
        return
    (batch,) = Reading(broker, "t").batches()
    assert batch.column(0).cast("int64").to_pylist() == [millis * 1000]
