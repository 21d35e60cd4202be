"""What `.schema(…)` and `mode` give of typed values and keys, without Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo, join_key_value
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import read, set_schema, store

LONG_KEY = (b"\0" * 7) + b"\1"


def columns(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def record(kind: int, name: str, **fields: Any) -> SchemaInfo:
    described = [{"name": field, "type": of} for field, of in fields.items()]
    tree = {"type": "record", "name": name, "fields": described}
    return SchemaInfo(kind, name, json.dumps(tree).encode())


def primitive(kind: int) -> SchemaInfo:
    return SchemaInfo(kind, "p", b"")


PERSON = {"type": "record", "name": "Person", "fields": [{"name": "Name", "type": "string"}]}
NESTED = {
    "person": PERSON,
    "friends": {"type": "array", "items": "Person"},
    "known": {"type": "map", "values": ["null", "Person"]},
    "none": ["null", "Person"],
}


@pytest.mark.parametrize("kind", [pb.Schema.Avro, pb.Schema.Json])
@pytest.mark.parametrize("case", ["Name", "name", "NAME"])
def test_fields_within_structs_are_found_in_any_case(
    broker: EmbeddedBroker, kind: int, case: str
) -> None:
    """Arrow's own cast would find nothing of that name, and give null in silence."""
    avro = b"\6ann" + b"\2\6bob\0" + b"\4\2a\2\6cat\2b\0\0" + b"\0"
    text = {
        "person": {"Name": "ann"},
        "friends": [{"Name": "bob"}],
        "known": {"a": {"Name": "cat"}, "b": None},
        "none": None,
    }
    data = avro if kind == pb.Schema.Avro else json.dumps(text).encode()
    broker.create_topic("t")
    set_schema(
        broker,
        "t",
        join_key_value(record(kind, "K", who=PERSON), record(kind, "r", **NESTED), separated=False),
    )
    key = b"\6dan" if kind == pb.Schema.Avro else b'{"who":{"Name":"dan"}}'
    pair = b"".join(len(part).to_bytes(4, "big") + part for part in (key, data))
    store(broker, "t", [pair, None], schema_version=bytes(8))
    struct = columns(**{case: StringType()})
    schema = columns(
        Person=struct,
        friends=ArrayType(struct),
        known=MapType(StringType(), struct),
        none=struct,
        __key=columns(who=struct),
    )
    row, tombstone = read(broker, {"topic": "t"}, schema)
    assert row == {
        "Person": {case: "ann"},
        "friends": [{case: "bob"}],
        "known": [("a", {case: "cat"}), ("b", None)],
        "none": None,
        "__key": {"who": {case: "dan"}},
    }
    assert set(tombstone.values()) == {None}


@pytest.mark.parametrize("given", [False, True])
def test_a_key_of_a_record_without_fields_is_a_struct_without_fields(
    broker: EmbeddedBroker, given: bool
) -> None:
    broker.create_topic("t")
    pair = join_key_value(
        record(pb.Schema.Avro, "K"), record(pb.Schema.Avro, "r", a="int"), separated=False
    )
    set_schema(broker, "t", pair)
    store(
        broker, "t", [b"\0\0\0\0\0\0\0\1\2", b"\xff\xff\xff\xff\0\0\0\1\2"], schema_version=bytes(8)
    )
    schema = columns(__key=StructType(), a=IntegerType())
    rows = read(broker, {"topic": "t"}, schema if given else None)
    assert [(row["__key"], row["a"]) for row in rows] == [({}, 1), (None, 1)]


# --- what cannot be decoded ---------------------------------------------------------------------


def keyed(broker: EmbeddedBroker, *, separated: bool) -> None:
    """Make a topic of a good pair, and two with a bad key, of which one has no value."""
    broker.create_topic("t")
    kinds = primitive(pb.Schema.Int64), primitive(pb.Schema.String)
    set_schema(broker, "t", join_key_value(*kinds, separated=separated))
    for key, value in ((LONG_KEY, b"good"), (b"bad", b"value"), (b"bad", None)):
        if separated:
            fields: dict[str, Any] = {"partition_key": key.decode(), "schema_version": bytes(8)}
            store(broker, "t", [value], batched=False, **fields)
            continue
        parts = [
            b"\xff" * 4 if part is None else len(part).to_bytes(4, "big") + part
            for part in (key, value)
        ]
        store(broker, "t", [b"".join(parts)], schema_version=bytes(8))


INLINE_BAD = [b"\0\0\0\3bad\0\0\0\5value", b"\0\0\0\3bad\xff\xff\xff\xff"]


@pytest.mark.parametrize("separated", [False, True])
def test_a_key_that_cannot_be_decoded_is_in_the_column_of_corrupt_records(
    broker: EmbeddedBroker, separated: bool
) -> None:
    keyed(broker, separated=separated)
    rows = read(broker, {"topic": "t", "mode": "PERMISSIVE"})
    assert [(row["__key"], row["value"]) for row in rows] == [
        (1, "good"),
        (None, "value"),
        (None, None),
    ]
    bad = [b"bad", b"bad"] if separated else INLINE_BAD
    assert [row["_corrupt_record"] for row in rows] == [None, *bad]


@pytest.mark.parametrize("separated", [False, True])
def test_keys_are_looked_at_though_neither_they_nor_values_are_requested(
    broker: EmbeddedBroker, separated: bool
) -> None:
    keyed(broker, separated=separated)
    corrupt = columns(_corrupt_record=BinaryType())
    rows = read(broker, {"topic": "t", "mode": "PERMISSIVE"}, corrupt)
    assert [row["_corrupt_record"] is None for row in rows] == [True, False, False]
    topic = columns(__topic=StringType())
    assert len(read(broker, {"topic": "t", "mode": "DROPMALFORMED"}, topic)) == 1


def test_json_is_looked_at_though_no_field_is_requested(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    store(broker, "t", [b'{"a":1}', b"{x", None])
    options = {"topic": "t", "valueFormat": "json"}
    schema = columns(_corrupt_record=StringType(), __topic=StringType())
    rows = read(broker, {**options, "mode": "PERMISSIVE"}, schema)
    assert [row["_corrupt_record"] for row in rows] == [None, "{x", None]
    rows = read(broker, {**options, "mode": "DROPMALFORMED"}, columns(__topic=StringType()))
    assert len(rows) == 2


def test_a_field_of_json_can_be_called_like_the_column_of_corrupt_records(
    broker: EmbeddedBroker,
) -> None:
    """Unless the mode fills that column."""
    broker.create_topic("t")
    store(broker, "t", [b'{"_corrupt_record":"text","a":1}'])
    options = {"topic": "t", "valueFormat": "json"}
    schema = columns(_corrupt_record=StringType(), a=IntegerType())
    assert read(broker, options, schema) == [{"_corrupt_record": "text", "a": 1}]
    rows = read(broker, {**options, "mode": "PERMISSIVE"}, schema)
    assert rows == [{"_corrupt_record": None, "a": 1}]
