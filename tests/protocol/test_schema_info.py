"""Schemas in the protocol, also those of recorded conversations."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import (
    BYTES,
    PRIMITIVE_NAMES,
    RECORD_TYPES,
    SchemaInfo,
    join_key_value,
    split_key_value,
)
from tests.protocol import golden

# Other recordings may have fewer schemas.
OTHER_FOLDER = "PULSAR_SPARK_GOLDEN" in os.environ

STRING = SchemaInfo(pb.Schema.String, "String")
INT32 = SchemaInfo(pb.Schema.Int32, "INT32")

infos = st.builds(
    SchemaInfo,
    st.sampled_from(sorted(pb.Schema.Type.values())),
    st.text(max_size=10),
    st.binary(max_size=50),
    st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=3),
)


@given(infos)
def test_a_schema_survives_the_wire_and_pickling(info: SchemaInfo) -> None:
    data = pb.Schema.FromString(info.to_pb().SerializeToString())
    assert SchemaInfo.from_pb(data) == info
    assert SchemaInfo.from_pb(data).name == info.name
    assert pickle.loads(pickle.dumps(info)) == info
    assert isinstance(hash(info), int)


def test_a_type_that_is_not_known_yet_keeps_its_number() -> None:
    data = pb.Schema(name="n", schema_data=b"d").SerializePartialToString() + bytes((0x20, 99))
    info = SchemaInfo.from_pb(pb.Schema.FromString(data))
    assert (info, info.name) == (SchemaInfo(99, "n", b"d"), "n")
    assert info.type_name == "schema type 99"


def test_what_a_schema_is_called_makes_no_difference() -> None:
    """Brokers call it as the topic."""
    one, other = (SchemaInfo(pb.Schema.Avro, name, b"{}", {"p": "v"}) for name in ("ns/a", "ns/b"))
    assert one == other
    assert hash(one) == hash(other)
    assert one != SchemaInfo(pb.Schema.Avro, "ns/a", b"{}", {"p": "w"})
    assert one != SchemaInfo(pb.Schema.Json, "ns/a", b"{}", {"p": "v"})


def test_every_type_has_a_name_and_one_place() -> None:
    for number in pb.Schema.Type.values():
        assert not SchemaInfo(number).type_name.startswith("schema type")
    assert RECORD_TYPES.isdisjoint(PRIMITIVE_NAMES)
    assert SchemaInfo(BYTES).type_name == "BYTES"
    others = set(pb.Schema.Type.values()) - RECORD_TYPES - set(PRIMITIVE_NAMES)
    assert others == {
        BYTES,
        pb.Schema.KeyValue,
        pb.Schema.AutoConsume,
        pb.Schema.External,
    }


def recorded_schemas() -> Iterator[dict[str, Any]]:
    def walk(value: Any) -> Iterator[dict[str, Any]]:
        if isinstance(value, dict):
            if {"schema_data", "type"} <= set(value):
                yield value
            else:
                for inner in value.values():
                    yield from walk(inner)

    for name in golden.names():
        if name.startswith("java-schema"):
            for frame in golden.manifest(name)["frames"]:
                yield from walk(frame.get("command"))


def test_primitive_schemas_have_the_names_that_java_gives_them() -> None:
    recorded = {
        (s["type"], s["name"])
        for s in recorded_schemas()
        if golden.expected_bytes(s["schema_data"]) == b"" and "/" not in s["name"]
    }
    expected = {(pb.Schema.Type.Name(n), name) for n, name in PRIMITIVE_NAMES.items()}
    assert recorded - {("AutoConsume", "AutoConsume")} <= expected
    assert OTHER_FOLDER or len(recorded) > 10


def test_recorded_key_value_schemas_are_split_and_joined_again() -> None:
    seen = 0
    for schema in recorded_schemas():
        if schema["type"] != "KeyValue":
            continue
        data = golden.expected_bytes(schema["schema_data"])
        assert data is not None
        properties = {pair["key"]: pair["value"] for pair in schema["properties"]}
        info = SchemaInfo(pb.Schema.KeyValue, "KeyValue", data, properties)
        key, value, separated = split_key_value(info)
        joined = join_key_value(key, value, separated=separated)
        assert joined == info
        assert separated == (properties["kv.encoding.type"] == "SEPARATED")
        assert key.type_name == properties["key.schema.type"]
        assert value.type_name == properties["value.schema.type"]
        if key.type == pb.Schema.Avro:
            assert key.schema_data.startswith(b'{"type":"record"')
        seen += 1
    assert OTHER_FOLDER or seen >= 3


@given(infos, infos, st.booleans())
def test_joining_and_splitting_are_inverse(
    key: SchemaInfo, value: SchemaInfo, separated: bool
) -> None:
    assert split_key_value(join_key_value(key, value, separated=separated)) == (
        key,
        value,
        separated,
    )


def test_what_old_clients_leave_out_has_defaults() -> None:
    info = SchemaInfo(pb.Schema.KeyValue, "", bytes(8))
    assert split_key_value(info) == (SchemaInfo(BYTES), SchemaInfo(BYTES), False)
    empty = {"key.schema.properties": "", "value.schema.type": "NONE"}
    info = SchemaInfo(pb.Schema.KeyValue, "", bytes(8), empty)
    assert split_key_value(info) == (SchemaInfo(BYTES), SchemaInfo(BYTES), False)


GOOD = join_key_value(STRING, INT32, separated=False)


@pytest.mark.fault(44)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(3),
        bytes(4),
        bytes(7),
        bytes(9),
        b"\0\0\0\x05" + bytes(8),
        b"\xff\xff\xff\xff" + bytes(8),
        b"\0\0\0\0" + b"\x7f\xff\xff\xff",
    ],
)
def test_damaged_key_value_definitions_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        split_key_value(SchemaInfo(pb.Schema.KeyValue, "", data, GOOD.properties))


@pytest.mark.fault(44)
@pytest.mark.parametrize(
    "name, value",
    [
        ("kv.encoding.type", "OTHER"),
        ("key.schema.type", "WHATEVER"),
        ("value.schema.type", "x" * 10_000),
        ("key.schema.properties", "{"),
        ("key.schema.properties", "[]"),
        ("key.schema.properties", "[" * 100_000),
        ("value.schema.properties", "1" * 5000),
        ("value.schema.properties", '{"a":"' + "x" * 2**20 + '"}'),
    ],
)
def test_damaged_key_value_properties_are_refused(name: str, value: str) -> None:
    info = SchemaInfo(pb.Schema.KeyValue, "", bytes(8), {**GOOD.properties, name: value})
    with pytest.raises(ProtocolError) as caught:
        split_key_value(info)
    assert len(str(caught.value)) < 500


@pytest.mark.fault(30, 31, 44)
@pytest.mark.parametrize("field", ["22026162", "2500000063", "210000000000000063", "23200524"])
def test_a_type_of_another_wire_type_is_another_field(field: str) -> None:
    data = INT32.to_pb().SerializeToString() + bytes.fromhex(field)
    assert SchemaInfo.from_pb(pb.Schema.FromString(data)) == INT32


@pytest.mark.fault(31, 44)
@pytest.mark.parametrize("field", ["0a02fffe", "2a080a02fffe12026162", "2a080a02616212" + "02fffe"])
def test_a_schema_with_text_that_is_not_utf_8_is_refused(field: str) -> None:
    data = INT32.to_pb().SerializeToString() + bytes.fromhex(field)
    with pytest.raises(RemoteProtocolError, match="not text in UTF-8"):
        SchemaInfo.from_pb(pb.Schema.FromString(data))


@pytest.mark.fault(44)
@pytest.mark.parametrize(
    "info",
    [
        SchemaInfo(99),
        SchemaInfo(2**64 - 1),
        SchemaInfo(pb.Schema.String, "\ud800"),
        SchemaInfo(pb.Schema.String, properties={"\ud800": "a"}),
    ],
)
def test_a_schema_that_cannot_be_said_is_an_error_of_our_own(info: SchemaInfo) -> None:
    with pytest.raises(LocalProtocolError, match="cannot be registered"):
        info.to_pb()
