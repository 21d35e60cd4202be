"""Definitions of PROTOBUF_NATIVE and PROTOBUF schemas: a tree of messages, fields and enums.

PROTOBUF_NATIVE's definition is JSON: `fileDescriptorSet` (base64 of a FileDescriptorSet),
`rootMessageTypeName` and `rootFileDescriptorName`. A PROTOBUF schema is an Avro record that the
Java client derives from a class. Its field numbers are in the property `__PARSING_INFO__`, for the
outermost fields only, so nested messages stay bytes.

Anyone who writes to the topic can provide descriptors. They are read as data, with every size and
number checked, and never passed to protobuf's own pools. Presence, enums and encoding follow
descriptor.proto, for proto2, proto3 and editions.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FeatureSet,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.message import DecodeError

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.protocol.validation import is_unicode
from pulsar_spark.schema.protobuf.types import (
    MAX_DEPTH,
    MAX_LEAVES,
    MESSAGES,
    RAW_REMEDY,
    STRINGS,
    EnumType,
    Form,
    MessageField,
    MessageType,
    Presence,
    Type,
    check_number,
    check_unique,
    damaged,
)

PARSING_INFO = "__PARSING_INFO__"
"""The Java client's property with the list of a message's fields."""
MAX_DEFINITION = 16 * 1024 * 1024
"""Maximum size of a definition; a broker accepts at most its largest message, 5 MiB by default."""


def parse(info: SchemaInfo) -> MessageType:
    """Return the message type of a topic's values.

    Raises SchemaMismatch if the definition is damaged, too large or incomplete.
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
    raise SchemaMismatch(f"a schema of type {info.type_name} does not define a protobuf message")


def load_json(text: str | bytes, what: str) -> Any:
    """Return parsed JSON. Raises SchemaMismatch."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise damaged(f"has {what} that is not JSON") from None


def _parse_native(info: SchemaInfo) -> MessageType:
    parsed = load_json(info.schema_data, "a definition")
    if not isinstance(parsed, dict):
        raise damaged("has a definition that is not a JSON object")
    encoded, root = parsed.get("fileDescriptorSet"), parsed.get("rootMessageTypeName")
    if not isinstance(encoded, str) or not is_unicode(root):
        raise damaged("has no fileDescriptorSet or no rootMessageTypeName")
    try:
        return resolve(FileDescriptorSet.FromString(base64.b64decode(encoded, validate=True)), root)
    except SchemaMismatch:
        raise
    except (DecodeError, ValueError, RecursionError):
        # Protobuf does not check the UTF-8 of text in descriptors.
        raise damaged("has an invalid fileDescriptorSet") from None


# --- PROTOBUF: the outermost fields, listed in a property -----------------------------------


def _parse_listed(info: SchemaInfo) -> MessageType:
    text = info.properties.get(PARSING_INFO)
    if text is None:
        raise damaged(
            f"is of type PROTOBUF and lacks the property {PARSING_INFO}: "
            "the definition alone does not tell the numbers of the fields"
        )
    listed = load_json(text, f"a property {PARSING_INFO}") if len(text) <= MAX_DEFINITION else None
    if not isinstance(listed, list) or len(listed) > MAX_LEAVES:
        raise damaged(f"has a property {PARSING_INFO} that is not a list of fields")
    name, defaults = _avro_record(info)
    fields = tuple(_listed_field(entry, defaults) for entry in listed)
    check_unique(name, fields)
    return MessageType(name, fields, leaves=len(fields))


def _avro_record(info: SchemaInfo) -> tuple[str, dict[str, Any]]:
    """Return the Avro record's name and its fields' defaults."""
    record = load_json(info.schema_data, "a definition")
    fields = record.get("fields") if isinstance(record, dict) else None
    if not isinstance(fields, list):
        raise damaged("has a definition that is not an Avro record")
    defaults = {
        entry["name"]: entry.get("default")
        for entry in fields
        if isinstance(entry, dict) and isinstance(entry.get("name"), str)
    }
    name = record.get("name")
    if not is_unicode(name):
        raise damaged("has a definition without a name")
    return name, defaults


_UNKNOWN = MessageType("", (), Form.BYTES, leaves=1)


def _listed_field(entry: object, defaults: Mapping[str, Any]) -> MessageField:
    if not isinstance(entry, dict):
        raise damaged(f"has a property {PARSING_INFO} that is not a list of fields")
    number, name, label = entry.get("number"), entry.get("name"), entry.get("label")
    kind_name = entry.get("type")
    kinds = Type.Type.DESCRIPTOR.values_by_name
    kind = kinds.get(f"TYPE_{kind_name}") if is_unicode(kind_name) else None
    if not is_unicode(name) or kind is None or type(number) is not int:
        raise damaged(f"has a property {PARSING_INFO} with an invalid field")
    # The schema has neither enum names nor the fields of nested messages.
    type_number = Type.TYPE_INT32 if kind.number == Type.TYPE_ENUM else kind.number
    is_message = type_number in MESSAGES
    repeated = label == "LABEL_REPEATED"
    presence = Presence.IMPLICIT
    if not repeated and (is_message or _is_stated(kind.number, defaults.get(name))):
        presence = Presence.EXPLICIT
    return MessageField(
        number=check_number(number, name),
        name=name,
        type=type_number,
        presence=Presence.REQUIRED if label == "LABEL_REQUIRED" else presence,
        repeated=repeated,
        message=_UNKNOWN if is_message else None,
    )


_ZEROS = (None, 0, "")


def _is_stated(kind: int, default: Any) -> bool:
    """Whether a default is stated in the .proto file: only fields with presence can have that.

    The schema does not say of any other field whether it has presence: Java's client registers
    proto2, `optional` and members of oneofs as it does plain proto3. The default of an enum is the
    name of a value, mostly of the first one.
    """
    return kind != Type.TYPE_ENUM and default not in _ZEROS


_MAX_TYPES = 100_000
# A type's full name contains the names of all enclosing types.
_MAX_NAMES = 64 * 1024 * 1024
# One byte can be an enum value, whose column holds the name.
_MAX_ENUM_NAME = 128
_NO_KEYS = MESSAGES | {
    FieldDescriptorProto.TYPE_DOUBLE,
    FieldDescriptorProto.TYPE_FLOAT,
    FieldDescriptorProto.TYPE_BYTES,
    FieldDescriptorProto.TYPE_ENUM,
}
_WRAPPED = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
_SECONDS_AND_NANOS = (
    (1, FieldDescriptorProto.TYPE_INT64, False),
    (2, FieldDescriptorProto.TYPE_INT32, False),
)
# Types with their own column type if they have the expected fields: number, type, repeated.
_WELL_KNOWN = {
    "google.protobuf.Timestamp": (Form.TIMESTAMP, _SECONDS_AND_NANOS),
    "google.protobuf.Duration": (Form.DURATION, _SECONDS_AND_NANOS),
    "google.protobuf.FieldMask": (
        Form.FIELD_MASK,
        ((1, FieldDescriptorProto.TYPE_STRING, True),),
    ),
} | {
    f"google.protobuf.{name}Value": (
        Form.WRAPPER,
        ((1, FieldDescriptorProto.Type.Value(f"TYPE_{name.upper()}"), False),),
    )
    for name in _WRAPPED
}
# These types are recursive, so they cannot be columns; protobuf can print them as JSON.
_JSON = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))


@dataclass(frozen=True, slots=True)
class _Rules:
    """The features that apply inside a file or message."""

    syntax: str
    presence: int = FeatureSet.EXPLICIT
    closed_enums: bool = False
    packed: bool = True
    delimited: bool = False

    def within(self, features: FeatureSet) -> _Rules:
        """Return the features with those of an inner scope."""
        if self.syntax != "editions":
            return self
        return _Rules(
            self.syntax,
            features.field_presence or self.presence,
            features.enum_type == FeatureSet.CLOSED if features.enum_type else self.closed_enums,
            features.repeated_field_encoding == FeatureSet.PACKED
            if features.repeated_field_encoding
            else self.packed,
            features.message_encoding == FeatureSet.DELIMITED
            if features.message_encoding
            else self.delimited,
        )


def resolve(files: FileDescriptorSet, root: str) -> MessageType:
    """Return the message type with the full name `root`, with all its fields.

    A message within itself stays bytes. Raises SchemaMismatch for an invalid schema, and for types
    that nest too deeply or have too many fields.
    """
    index = _Index()
    for file in files.file:
        index.add_file(file)
    found = _Resolver(index).message(f".{root.removeprefix('.')}", ())
    if found.form is not Form.STRUCT:
        # At the top level even a Timestamp is a record: of seconds and nanos.
        return MessageType(found.name, found.fields, Form.STRUCT, leaves=found.leaves)
    return found


class _Index:
    """All messages and enums of a set by full name, with the features of their scope."""

    def __init__(self) -> None:
        self.messages: dict[str, tuple[DescriptorProto, _Rules]] = {}
        self.enums: dict[str, tuple[EnumDescriptorProto, _Rules]] = {}
        self._characters = 0

    def add_file(self, file: FileDescriptorProto) -> None:
        syntax = file.syntax or "proto2"
        if syntax not in ("proto2", "proto3", "editions"):
            raise damaged(f"is of the unknown syntax {syntax[:40]!r}")
        old = syntax == "proto2"
        rules = _Rules(syntax, closed_enums=old, packed=not old).within(file.options.features)
        prefix = f".{_name(file.package)}" if file.package else ""
        self._add_enums(prefix, file.enum_type, rules)
        # With a stack: the schema's writer decides how deep definitions nest.
        pending = [(prefix, message, rules) for message in file.message_type]
        while pending:
            prefix, message, rules = pending.pop()
            name = f"{prefix}.{_name(message.name)}"
            rules = rules.within(message.options.features)
            self._check_new(name)
            self.messages[name] = message, rules
            self._add_enums(name, message.enum_type, rules)
            pending += [(name, nested, rules) for nested in message.nested_type]

    def _add_enums(self, prefix: str, enums: Iterable[EnumDescriptorProto], rules: _Rules) -> None:
        for enum in enums:
            name = f"{prefix}.{_name(enum.name)}"
            self._check_new(name)
            self.enums[name] = enum, rules.within(enum.options.features)

    def _check_new(self, name: str) -> None:
        if name in self.messages or name in self.enums:
            raise damaged(f"defines {name[1:]} twice")
        if len(self.messages) + len(self.enums) >= _MAX_TYPES:
            raise damaged(f"defines more than {_MAX_TYPES} types")
        self._characters += len(name)
        if self._characters > _MAX_NAMES:
            raise damaged(f"has names of its types with more than {_MAX_NAMES} characters together")


def _circles(index: _Index) -> dict[str, int]:
    """Return a number for each message, the same for those that contain each other.

    Tarjan's algorithm, with a stack: the schema's writer decides how deep definitions nest.
    """
    circles: dict[str, int] = {}
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    pending: list[str] = []

    def inner(name: str) -> Iterator[str]:
        names = (each.type_name for each in index.messages[name][0].field if each.type in MESSAGES)
        return (each for each in names if each in index.messages)

    for start in index.messages:
        work = [] if start in order else [(start, inner(start))]
        while work:
            name, rest = work[-1]
            if name not in order:
                order[name] = lowest[name] = len(order)
                pending.append(name)
            for other in rest:
                if other not in order:
                    work.append((other, inner(other)))
                    break
                if other not in circles:
                    lowest[name] = min(lowest[name], order[other])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    lowest[parent] = min(lowest[parent], lowest[name])
                if lowest[name] == order[name]:
                    while name not in circles:
                        circles[pending.pop()] = order[name]
    return circles


class _Resolver:
    """Builds message types, each once, however many fields use it."""

    def __init__(self, index: _Index) -> None:
        self._index = index
        self._circles = _circles(index)
        self._messages: dict[str, MessageType] = {}
        self._enums: dict[str, EnumType] = {}
        self._open: list[str] = []

    def _inner(self, name: str, path: tuple[str, ...]) -> MessageType:
        """Return the type of a field, which stays bytes if it contains the message that it is in.

        Spark has no recursive types. What else there is, and in which order, makes no difference.
        """
        circle = self._circles.get(name)
        is_recursive = circle is not None and circle == self._circles.get(self._open[-1])
        is_entry = is_recursive and self._index.messages[name][0].options.map_entry
        if is_recursive and not is_entry and name[1:] not in _JSON:
            return MessageType(name[1:], (), Form.BYTES, leaves=1)
        return self.message(name, path)

    def message(self, name: str, path: tuple[str, ...]) -> MessageType:
        known = self._messages.get(name)
        if known is None:
            if len(self._open) >= MAX_DEPTH:
                raise damaged(f"nests deeper than {MAX_DEPTH} messages, at {'.'.join(path)[:200]}")
            self._open.append(name)
            known = self._messages[name] = self._build(name, path)
            self._open.pop()
        return known

    def _build(self, name: str, path: tuple[str, ...]) -> MessageType:
        found = self._index.messages.get(name)
        if found is None:
            raise damaged(f"does not define the message {name[1:]}")
        proto, rules = found
        if name[1:] in _JSON and path:
            return MessageType(name[1:], (), Form.JSON, leaves=1)
        real_oneofs = _oneof_names(proto)
        fields = tuple(self._field(each, rules, real_oneofs, path) for each in proto.field)
        check_unique(name[1:], fields)
        if proto.options.map_entry:
            fields = _entry_fields(name[1:], fields)
        form = _shape(name[1:], fields)
        if form in (Form.TIMESTAMP, Form.DURATION):
            # Whatever the syntax, the parts of a time are 0 where absent.
            fields = tuple(replace(each, presence=Presence.IMPLICIT, oneof="") for each in fields)
        leaves = sum(each.message.leaves if each.message else 1 for each in fields) + 1
        if leaves > MAX_LEAVES:
            raise damaged(f"has more than {MAX_LEAVES} fields, at {'.'.join(path) or name[1:]}")
        return MessageType(name[1:], fields, form, proto.options.map_entry, leaves)

    def _field(
        self,
        proto: FieldDescriptorProto,
        rules: _Rules,
        oneofs: Mapping[int, str],
        path: tuple[str, ...],
    ) -> MessageField:
        rules = rules.within(proto.options.features)
        here = (*path, _name(proto.name))
        number = check_number(proto.number, proto.name)
        repeated = proto.label == FieldDescriptorProto.LABEL_REPEATED
        if not proto.HasField("type"):
            raise damaged(f"gives the field {'.'.join(here)} no type")
        # No compiler lets a oneof have repeated fields.
        in_oneof = proto.HasField("oneof_index") and not repeated
        kind, message, enum = proto.type, None, None
        if kind in MESSAGES:
            message = self._inner(_name(proto.type_name), here)
            if message.is_entry and not repeated:
                raise damaged(f"has a map {'.'.join(here)} that is not repeated")
            if rules.delimited and not message.is_entry:
                kind = FieldDescriptorProto.TYPE_GROUP
        elif kind == FieldDescriptorProto.TYPE_ENUM:
            enum = self.enum(_name(proto.type_name))
        return MessageField(
            number=number,
            name=proto.name,
            type=kind,
            presence=_presence(proto, rules, repeated),
            repeated=repeated,
            packed=repeated and _is_packed(proto, kind, rules),
            oneof=oneofs.get(proto.oneof_index, "") if in_oneof else "",
            message=message,
            enum=enum,
        )

    def enum(self, name: str) -> EnumType:
        known = self._enums.get(name)
        if known is None:
            found = self._index.enums.get(name)
            if found is None:
                raise damaged(f"does not define the enum {name[1:]}")
            proto, rules = found
            names: dict[int, str] = {}
            for value in proto.value:
                if len(_name(value.name)) > _MAX_ENUM_NAME:
                    raise damaged(f"has a value of the enum {name[1:]} with a name too long")
                names.setdefault(value.number, value.name)
            numbers = {value.name: value.number for value in proto.value}
            known = self._enums[name] = EnumType(names, numbers, rules.closed_enums)
        return known


def _name(found: str | bytes) -> str:
    """Return a name; raises SchemaMismatch for bytes, which protobuf returns for invalid UTF-8."""
    if not is_unicode(found):
        raise damaged("has a name that is not UTF-8")
    return found


def _oneof_names(message: DescriptorProto) -> dict[int, str]:
    """Return the real oneofs by index: a proto3 `optional` field has a synthetic one."""
    synthetic = {each.oneof_index for each in message.field if each.proto3_optional}
    return {
        index: _name(oneof.name)
        for index, oneof in enumerate(message.oneof_decl)
        if index not in synthetic
    }


def _presence(proto: FieldDescriptorProto, rules: _Rules, repeated: bool) -> Presence:
    if repeated:
        return Presence.IMPLICIT
    if rules.syntax == "proto2":
        required = proto.label == FieldDescriptorProto.LABEL_REQUIRED
        return Presence.REQUIRED if required else Presence.EXPLICIT
    if proto.type in MESSAGES or proto.HasField("oneof_index"):
        return Presence.EXPLICIT
    if rules.syntax == "proto3":
        return Presence.EXPLICIT if proto.proto3_optional else Presence.IMPLICIT
    if rules.presence == FeatureSet.IMPLICIT:
        return Presence.IMPLICIT
    required = rules.presence == FeatureSet.LEGACY_REQUIRED
    return Presence.REQUIRED if required else Presence.EXPLICIT


def _entry_fields(name: str, fields: tuple[MessageField, ...]) -> tuple[MessageField, ...]:
    """Return a map's key and value fields; in an entry neither is ever absent or delimited."""
    if (
        [each.number for each in fields] != [1, 2]
        or any(each.repeated or each.oneof for each in fields)
        or fields[0].type in _NO_KEYS
    ):
        raise damaged(f"has invalid entries of the map {name}")
    return tuple(
        replace(
            each,
            type=FieldDescriptorProto.TYPE_MESSAGE if each.message else each.type,
            presence=Presence.IMPLICIT,
            # In proto2 an enum's default is its first value, whatever its number.
            default=next(iter(each.enum.names), 0) if each.enum else 0,
        )
        for each in fields
    )


def _is_packed(proto: FieldDescriptorProto, kind: int, rules: _Rules) -> bool:
    if kind in MESSAGES or kind in STRINGS:
        return False
    return proto.options.packed if proto.options.HasField("packed") else rules.packed


def _shape(name: str, fields: tuple[MessageField, ...]) -> Form:
    if not fields:
        return Form.EMPTY
    form, expected = _WELL_KNOWN.get(name, (Form.STRUCT, ()))
    found = tuple(sorted((each.number, each.type, each.repeated) for each in fields))
    return form if found == expected else Form.STRUCT
