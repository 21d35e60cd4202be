"""Definitions of PROTOBUF_NATIVE and PROTOBUF schemas, whole ones and damaged ones."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.protobuf.definition import MAX_DEFINITION, PARSING_INFO, parse
from pulsar_spark.schema.protobuf.types import Form, Presence, Type
from tests.schema.protobuf.cases import add, info_of, native, new_file

# As Java's client writes it, for a class with fields of these types.
FIELDS = (
    (1, "text", "STRING", "LABEL_OPTIONAL"),
    (2, "number", "DOUBLE", "LABEL_OPTIONAL"),
    (6, "count", "INT32", "LABEL_REQUIRED"),
    (4, "kind", "ENUM", "LABEL_OPTIONAL"),
    (10, "many", "STRING", "LABEL_REPEATED"),
)


def listed(
    fields: Any = FIELDS, defaults: dict[str, Any] | None = None, parsing_info: str = ""
) -> SchemaInfo:
    entries = [
        {"number": number, "name": name, "type": kind, "label": label, "definition": None}
        for number, name, kind, label in fields
    ]
    avro = {
        "type": "record",
        "name": "TestMessage",
        "fields": [
            {"name": name, "type": "x", "default": d} for name, d in (defaults or {}).items()
        ],
    }
    own = {"__alwaysAllowNull": "true", PARSING_INFO: parsing_info or json.dumps(entries)}
    return SchemaInfo(pb.Schema.Protobuf, "", json.dumps(avro).encode(), own)


def test_a_native_schema_names_its_message() -> None:
    file = new_file()
    add(file.message_type.add(name="M"), "a", 7, Type.TYPE_INT32)
    found = parse(info_of(file))
    assert (found.name, [(field.name, field.number) for field in found.fields]) == (
        "t.M",
        [("a", 7)],
    )


@pytest.mark.fault(44)
@pytest.mark.parametrize(
    "definition",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"fileDescriptorSet": 1, "rootMessageTypeName": "t.M"}',
        b'{"fileDescriptorSet": "", "rootMessageTypeName": "t.M"}',
        b'{"fileDescriptorSet": "?", "rootMessageTypeName": "t.M"}',
        b'{"fileDescriptorSet": "\\u00e9", "rootMessageTypeName": "t.M"}',
        b'{"fileDescriptorSet": "/////w==", "rootMessageTypeName": "t.M"}',
        b'{"fileDescriptorSet": ""}',
    ],
)
def test_a_damaged_native_schema_is_our_own_error(definition: bytes) -> None:
    with pytest.raises(SchemaMismatch) as raised:
        parse(SchemaInfo(pb.Schema.ProtobufNative, "", definition))
    assert "valueFormat=raw" in raised.value.remedy


@pytest.mark.fault(44)
@given(st.binary(max_size=200))
def test_any_bytes_as_descriptors_are_our_own_error(data: bytes) -> None:
    with pytest.raises(SchemaMismatch):
        parse(native(data, "t.M"))


@pytest.mark.fault(44)
@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_byte_changed_in_descriptors_is_our_own_error_or_a_schema(at: int, byte: int) -> None:
    file = new_file()
    add(file.message_type.add(name="M"), "żółć", 1, Type.TYPE_INT32)
    definition = json.loads(info_of(file).schema_data)
    data = bytearray(base64.b64decode(definition["fileDescriptorSet"]))
    data[-1 - at % 100] = byte
    with contextlib.suppress(SchemaMismatch):
        parse(native(bytes(data), "t.M"))


@pytest.mark.fault(44)
def test_large_definitions_are_refused_in_bounded_time() -> None:
    with pytest.raises(SchemaMismatch, match="bytes, more than"):
        parse(SchemaInfo(pb.Schema.ProtobufNative, "", b" " * (MAX_DEFINITION + 1)))
    file = new_file()
    message = file.message_type.add(name="M")
    for number in range(1, 15_000):
        add(message, f"f{number}", number, Type.TYPE_INT32)
    started = time.monotonic()
    with pytest.raises(SchemaMismatch, match="more than 10000 fields"):
        parse(info_of(file))
    assert time.monotonic() - started < 30


def test_other_types_are_no_protobuf() -> None:
    with pytest.raises(SchemaMismatch, match="AVRO does not define a protobuf"):
        parse(SchemaInfo(pb.Schema.Avro))


# --- PROTOBUF -----------------------------------------------------------------------------


def test_a_listed_schema_has_its_fields_by_number() -> None:
    found = parse(listed(defaults={"number": 1.5, "text": "", "count": 3}))
    assert found.name == "TestMessage"
    fields = {field.name: field for field in found.fields}
    assert {name: field.number for name, field in fields.items()} == {
        "text": 1,
        "number": 2,
        "count": 6,
        "kind": 4,
        "many": 10,
    }
    assert fields["kind"].type == Type.TYPE_INT32
    assert fields["count"].presence is Presence.REQUIRED
    assert fields["text"].presence is Presence.IMPLICIT
    assert fields["many"].repeated
    assert fields["number"].presence is Presence.EXPLICIT


@pytest.mark.parametrize("kind", ["MESSAGE", "GROUP"])
@pytest.mark.parametrize(
    "label, presence",
    [
        ("LABEL_OPTIONAL", Presence.EXPLICIT),
        ("LABEL_REPEATED", Presence.IMPLICIT),
        ("LABEL_REQUIRED", Presence.REQUIRED),
    ],
)
def test_messages_within_are_bytes_as_the_schema_does_not_say_them(
    kind: str, label: str, presence: Presence
) -> None:
    (field,) = parse(listed([(1, "sub", kind, label)])).fields
    assert field.message is not None
    assert field.message.form is Form.BYTES
    assert field.presence is presence


@pytest.mark.fault(44)
@pytest.mark.parametrize(
    "info",
    [
        SchemaInfo(pb.Schema.Protobuf, "", b"{}"),
        listed(parsing_info="{"),
        listed(parsing_info="{}"),
        listed(parsing_info="[1]"),
        listed(parsing_info="[" * 100_000),
        listed(parsing_info=json.dumps([{}] * 20_000)),
        listed([(0, "a", "INT32", "LABEL_OPTIONAL")]),
        listed([(1, "a", "INT33", "LABEL_OPTIONAL")]),
        listed([(1, 5, "INT32", "LABEL_OPTIONAL")]),
        listed([(True, "a", "INT32", "LABEL_OPTIONAL")]),
        listed([(1, "a", "INT32", ""), (1, "b", "INT32", "")]),
        SchemaInfo(pb.Schema.Protobuf, "", b"[]", {PARSING_INFO: "[]"}),
        SchemaInfo(pb.Schema.Protobuf, "", b'{"fields": 1}', {PARSING_INFO: "[]"}),
    ],
)
def test_a_damaged_list_is_our_own_error(info: SchemaInfo) -> None:
    with pytest.raises(SchemaMismatch) as raised:
        parse(info)
    assert "valueFormat=raw" in raised.value.remedy
