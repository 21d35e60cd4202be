"""What the schemas PROTOBUF_NATIVE and PROTOBUF say: a tree of messages, fields and enums.

PROTOBUF_NATIVE's definition is JSON: `fileDescriptorSet` (base64 of a FileDescriptorSet),
`rootMessageTypeName` and `rootFileDescriptorName`. A PROTOBUF schema is the Avro record that Java's
client derives from a class; the numbers of its fields are in the property `__PARSING_INFO__`, for
the outermost fields only, so that messages within messages cannot be read from it.

Descriptors come from whoever wrote to the topic. They are read as data here, with every size and
number checked, and never given to protobuf's own pools. Rules of presence, of enums and of encoding
are those of descriptor.proto, for proto2, proto3 and editions.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.protobuf.definition import resolve
from pulsar_spark.schema.protobuf.types import (
    MAX_LEAVES,
    MESSAGES,
    RAW_REMEDY,
    UNSIGNED,
    Field,
    Message,
    Presence,
    Type,
    check_number,
    check_unique,
    damaged,
)

PARSING_INFO = "__PARSING_INFO__"
"""The property of Java's client with a list of the fields of a message."""
MAX_DEFINITION = 16 * 1024 * 1024
"""Bytes of a definition; a broker takes no more than its largest message, 5 MiB unless set."""


def parse(info: SchemaInfo) -> Message:
    """Return the message that a topic's values are.

    Raises SchemaMismatch if the definition is damaged, too large, recursive, or says too little.
    """
    if len(info.schema_data) > MAX_DEFINITION:
        raise SchemaMismatch(
            f"the definition of a {info.type_name} schema has {len(info.schema_data)} bytes, "
            f"more than {MAX_DEFINITION}",
            RAW_REMEDY,
        )
    if info.type == pb.Schema.ProtobufNative:
        return _parse_native(info)
    if info.type == pb.Schema.Protobuf:
        return _parse_listed(info)
    raise SchemaMismatch(f"a schema of type {info.type_name} defines no protobuf message")


def load_json(text: str | bytes, what: str) -> Any:
    """Return parsed JSON. Raises SchemaMismatch."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise damaged(f"has {what} that is no JSON") from None


def _parse_native(info: SchemaInfo) -> Message:
    parsed = load_json(info.schema_data, "a definition")
    if not isinstance(parsed, dict):
        raise damaged("has a definition that is no JSON object")
    encoded, root = parsed.get("fileDescriptorSet"), parsed.get("rootMessageTypeName")
    if not isinstance(encoded, str) or not isinstance(root, str):
        raise damaged("has no fileDescriptorSet or no rootMessageTypeName")
    try:
        return resolve(FileDescriptorSet.FromString(base64.b64decode(encoded, validate=True)), root)
    except SchemaMismatch:
        raise
    except (DecodeError, ValueError, RecursionError):
        # Descriptors hold text that protobuf takes without a look at its UTF-8.
        raise damaged("has a fileDescriptorSet that is none") from None


# --- PROTOBUF: the outermost fields, listed in a property -----------------------------------


def _parse_listed(info: SchemaInfo) -> Message:
    text = info.properties.get(PARSING_INFO)
    if text is None:
        raise damaged(
            f"is of type PROTOBUF and lacks the property {PARSING_INFO}: "
            "the definition alone does not tell the numbers of the fields"
        )
    listed = load_json(text, f"a property {PARSING_INFO}") if len(text) <= MAX_DEFINITION else None
    if not isinstance(listed, list) or len(listed) > MAX_LEAVES:
        raise damaged(f"has a property {PARSING_INFO} that is no list of fields")
    name, defaults = _avro_record(info)
    fields = tuple(_listed_field(entry, defaults) for entry in listed)
    check_unique(name, fields)
    return Message(name, fields, leaves=len(fields))


def _avro_record(info: SchemaInfo) -> tuple[str, dict[str, Any]]:
    """Return the name of the Avro record and the defaults of its fields."""
    record = load_json(info.schema_data, "a definition")
    fields = record.get("fields") if isinstance(record, dict) else None
    if not isinstance(fields, list):
        raise damaged("has a definition that is no Avro record")
    defaults = {
        entry["name"]: entry.get("default")
        for entry in fields
        if isinstance(entry, dict) and isinstance(entry.get("name"), str)
    }
    return str(record.get("name")), defaults


def _listed_field(entry: object, defaults: Mapping[str, Any]) -> Field:
    if not isinstance(entry, dict):
        raise damaged(f"has a property {PARSING_INFO} that is no list of fields")
    number, name, label = entry.get("number"), entry.get("name"), entry.get("label")
    kind = Type.Type.DESCRIPTOR.values_by_name.get(f"TYPE_{entry.get('type')}")
    if not isinstance(name, str) or kind is None or not isinstance(number, int):
        raise damaged(f"has a property {PARSING_INFO} with a field that is none")
    if kind.number in MESSAGES:
        raise SchemaMismatch(
            f"the field {name!r} of a PROTOBUF schema is a message, and what is in it is not in "
            "the schema; PROTOBUF_NATIVE schemas say it",
            RAW_REMEDY,
        )
    # What an enum's numbers are called is not in the schema either: they stay numbers.
    type_number = Type.TYPE_INT32 if kind.number == Type.TYPE_ENUM else kind.number
    repeated = label == "LABEL_REPEATED"
    return Field(
        number=check_number(number, name),
        name=name,
        type=type_number,
        # Whether the class tells an absent value from its default is not known; Java gives both
        # as the default, and so does the definition.
        presence=Presence.REQUIRED if label == "LABEL_REQUIRED" else Presence.IMPLICIT,
        repeated=repeated,
        default=None if repeated else _usable_default(type_number, defaults.get(name)),
    )


def _usable_default(kind: int, value: Any) -> Any:
    """Return a default of an Avro definition where it is one of the type, else None."""
    if kind in (Type.TYPE_DOUBLE, Type.TYPE_FLOAT):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return float(value) if is_number and value else None
    if kind == Type.TYPE_BOOL:
        return True if value is True else None
    if kind == Type.TYPE_STRING:
        return value if isinstance(value, str) and value and _is_text(value) else None
    if kind == Type.TYPE_BYTES:
        return None
    is_int = isinstance(value, int) and not isinstance(value, bool)
    lowest = 0 if kind in UNSIGNED else -(2**31)
    return value if is_int and value and lowest <= value < 2**31 else None


def _is_text(value: str) -> bool:
    try:
        return bool(value.encode())
    except UnicodeEncodeError:
        return False
