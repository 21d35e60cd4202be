"""A topic's schema: type, name, definition and properties.

Pulsar binary protocol, Schema. Codecs interpret definitions, not this module. A KEY_VALUE topic's
schema contains two others: their definitions are joined in `schema_data`,

    u32 size, definition of the key, u32 size, definition of the value      (big endian)

and everything else is in the properties `key.schema.*` and `value.schema.*`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from pulsar_spark.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.validation import hidden_number

_TYPE_FIELD = 4  # of Schema
_SIZE = Struct(">I")
_ENCODING = "kv.encoding.type"
_MAX_PROPERTIES = 1024 * 1024

BYTES = pb.Schema.Type.Value("None")
"""The type of values without a schema; Java calls it BYTES."""

PRIMITIVE_NAMES: Mapping[int, str] = {
    pb.Schema.String: "String",
    pb.Schema.Bool: "Boolean",
    pb.Schema.Int8: "INT8",
    pb.Schema.Int16: "INT16",
    pb.Schema.Int32: "INT32",
    pb.Schema.Int64: "INT64",
    pb.Schema.Float: "Float",
    pb.Schema.Double: "Double",
    pb.Schema.Date: "Date",
    pb.Schema.Time: "Time",
    pb.Schema.Timestamp: "Timestamp",
    pb.Schema.Instant: "Instant",
    pb.Schema.LocalDate: "LocalDate",
    pb.Schema.LocalTime: "LocalTime",
    pb.Schema.LocalDateTime: "LocalDateTime",
}
"""The primitive types, and Java's names for their schemas."""

RECORD_TYPES = frozenset(
    (pb.Schema.Avro, pb.Schema.Json, pb.Schema.Protobuf, pb.Schema.ProtobufNative)
)
"""The types whose `schema_data` defines a record."""

# Java's names are the protocol's, with underscores between words, but for two.
_TYPE_NAMES: Mapping[int, str] = {
    number: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
    for name, number in pb.Schema.Type.items()
} | {BYTES: "BYTES", pb.Schema.Bool: "BOOLEAN"}
_TYPES_BY_NAME = {name: number for number, name in _TYPE_NAMES.items()} | {"NONE": BYTES}


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """A schema as brokers store it. `type` is a `pb.Schema.Type`, perhaps an unknown one.

    `found_as` is the topic and the version that brokers have told it for, None if it is not theirs.
    Schemas are equal whatever it is, and whatever their `name`: nothing is read by that, and
    brokers tell each topic's own name in its place.
    """

    type: int
    name: str = field(default="", compare=False)
    schema_data: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)
    found_as: tuple[str, bytes] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def from_pb(cls, data: pb.Schema) -> SchemaInfo:
        """Convert a Schema message; raises RemoteProtocolError if its text is not UTF-8."""
        # Protobuf hides the type if it is newer than this package.
        hidden = hidden_number(data, _TYPE_FIELD)
        number = data.type if hidden is None else hidden
        properties = {_text(pair.key): _text(pair.value) for pair in data.properties}
        return cls(number, _text(data.name), data.schema_data, properties)

    def to_pb(self) -> pb.Schema:
        """Return the message that registers or requests this schema.

        Raises LocalProtocolError for an unknown type, or for text that is not valid Unicode.
        """
        try:
            return pb.Schema(
                name=self.name,
                schema_data=self.schema_data,
                type=self.type,
                properties=[pb.KeyValue(key=k, value=v) for k, v in self.properties.items()],
            )
        except ValueError:
            raise LocalProtocolError(
                f"a schema of the type {self.type_name} cannot be registered: its type is not "
                "known, or a text in it is not Unicode"
            ) from None

    @property
    def size(self) -> int:
        """How long its definition and its properties are."""
        return len(self.schema_data) + sum(len(k) + len(v) for k, v in self.properties.items())

    @property
    def type_name(self) -> str:
        """The type's common name, such as INT32, AVRO or KEY_VALUE."""
        return _TYPE_NAMES.get(self.type, f"schema type {self.type}")


def _text(text: str | bytes) -> str:
    # Protobuf returns bytes if a string is not UTF-8.
    if isinstance(text, bytes):
        raise RemoteProtocolError("the name or a property of a schema is not text in UTF-8")
    return text


class KeyValueParts(NamedTuple):
    """A KEY_VALUE topic's two schemas, and whether keys are sent as message keys."""

    key: SchemaInfo
    value: SchemaInfo
    separated: bool


def split_key_value(info: SchemaInfo) -> KeyValueParts:
    """Return the two schemas of a KEY_VALUE schema.

    Raises ProtocolError if its definition or properties are damaged.
    """
    key_data, rest = _take_sized(info.schema_data, "key")
    value_data, rest = _take_sized(rest, "value")
    if rest:
        raise ProtocolError(f"{len(rest)} bytes follow the definitions of a KEY_VALUE schema")
    encoding = info.properties.get(_ENCODING, "INLINE")
    if encoding not in ("INLINE", "SEPARATED"):
        raise ProtocolError(f"a KEY_VALUE schema has the unknown encoding {encoding[:100]!r}")
    return KeyValueParts(
        _part(info, "key", key_data), _part(info, "value", value_data), encoding == "SEPARATED"
    )


def join_key_value(key: SchemaInfo, value: SchemaInfo, *, separated: bool) -> SchemaInfo:
    """Return the KEY_VALUE schema of a key's and a value's schema, as in the Java client."""
    properties = {_ENCODING: "SEPARATED" if separated else "INLINE"}
    for side, info in (("key", key), ("value", value)):
        properties[f"{side}.schema.name"] = info.name
        properties[f"{side}.schema.type"] = info.type_name
        properties[f"{side}.schema.properties"] = json.dumps(
            dict(info.properties), separators=(",", ":"), ensure_ascii=False
        )
    data = key_value_data(key.schema_data, value.schema_data)
    return SchemaInfo(pb.Schema.KeyValue, "KeyValue", data, properties)


def key_value_data(key: bytes, value: bytes) -> bytes:
    """Return a KEY_VALUE definition that joins those of its two sides."""
    return b"".join(_SIZE.pack(len(side)) + side for side in (key, value))


def type_of_name(name: str) -> int | None:
    """Return the type with a common name such as AVRO; None if it is unknown."""
    return _TYPES_BY_NAME.get(name)


def _take_sized(data: bytes, side: str) -> tuple[bytes, bytes]:
    if len(data) < _SIZE.size:
        raise ProtocolError(f"a KEY_VALUE schema ends before the definition of its {side}")
    end = _SIZE.size + _SIZE.unpack_from(data)[0]
    if end > len(data):
        raise ProtocolError(
            f"the definition of a KEY_VALUE schema's {side} has {end - _SIZE.size} bytes, "
            f"but the schema ends after {len(data) - _SIZE.size}"
        )
    return data[_SIZE.size : end], data[end:]


def _part(info: SchemaInfo, side: str, data: bytes) -> SchemaInfo:
    name = info.properties.get(f"{side}.schema.type", "BYTES")
    number = _TYPES_BY_NAME.get(name)
    if number is None:
        raise ProtocolError(f"the {side} of a KEY_VALUE schema has the unknown type {name[:100]!r}")
    properties = _parse_properties(info.properties.get(f"{side}.schema.properties", "{}"), side)
    return SchemaInfo(number, info.properties.get(f"{side}.schema.name", ""), data, properties)


def _parse_properties(text: str, side: str) -> dict[str, str]:
    try:
        parsed = json.loads(text or "{}") if len(text) <= _MAX_PROPERTIES else None
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise ProtocolError(f"the properties of a KEY_VALUE schema's {side} are not a JSON object")
    return {name: value for name, value in parsed.items() if isinstance(value, str)}
