"""Protobuf schemas made in code, also random ones, and values read by protobuf itself."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    field_mask_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Type
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo

WELL_KNOWN = (
    timestamp_pb2,
    duration_pb2,
    wrappers_pb2,
    any_pb2,
    field_mask_pb2,
    struct_pb2,
)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

SCALARS = tuple(
    kind
    for kind in range(1, 19)
    if kind not in (Type.TYPE_MESSAGE, Type.TYPE_GROUP, Type.TYPE_ENUM)
)
KEYS = tuple(
    kind for kind in SCALARS if kind not in (Type.TYPE_DOUBLE, Type.TYPE_FLOAT, Type.TYPE_BYTES)
)


def new_file(name: str = "t", syntax: str = "proto3") -> FileDescriptorProto:
    """Return a file that imports protobuf's well-known types."""
    file = FileDescriptorProto(name=f"{name}.proto", package=name, syntax=syntax)
    file.dependency.extend(module.DESCRIPTOR.name for module in WELL_KNOWN)
    if syntax == "editions":
        file.edition = descriptor_pb2.EDITION_2023
    return file


def info_of(file: FileDescriptorProto, root: str = "M") -> SchemaInfo:
    """Return the PROTOBUF_NATIVE schema of a message in a file."""
    files = FileDescriptorSet()
    for module in WELL_KNOWN:
        files.file.add().ParseFromString(module.DESCRIPTOR.serialized_pb)
    files.file.append(file)
    return native(files.SerializeToString(), f"{file.package}.{root}", file.name)


def native(files: bytes, root: str, name: str = "t.proto") -> SchemaInfo:
    definition = {
        "fileDescriptorSet": base64.b64encode(files).decode(),
        "rootMessageTypeName": root,
        "rootFileDescriptorName": name,
    }
    return SchemaInfo(pb.Schema.ProtobufNative, "", json.dumps(definition).encode())


def class_of(file: FileDescriptorProto, root: str = "M") -> Any:
    """Return protobuf's own class of a message in a file."""
    pool = descriptor_pool.DescriptorPool()
    for module in WELL_KNOWN:
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{root}"))


def add(
    message: descriptor_pb2.DescriptorProto, name: str, number: int, kind: int, **more: Any
) -> descriptor_pb2.FieldDescriptorProto:
    """Add a field, by default an optional one."""
    more.setdefault("label", Type.LABEL_OPTIONAL)
    return message.field.add(name=name, number=number, type=kind, **more)


def add_map(
    message: descriptor_pb2.DescriptorProto,
    scope: str,
    name: str,
    number: int,
    key: int,
    value: int,
    type_name: str = "",
) -> None:
    """Add a map to the message of the full name `scope`."""
    entry_name = "".join(part.capitalize() for part in name.split("_")) + "Entry"
    entry = message.nested_type.add(name=entry_name)
    entry.options.map_entry = True
    add(entry, "key", 1, key)
    added = add(entry, "value", 2, value)
    if type_name:
        added.type_name = type_name
    add(
        message,
        name,
        number,
        Type.TYPE_MESSAGE,
        label=Type.LABEL_REPEATED,
        type_name=f".{scope}.{entry_name}",
    )


# --- random schemas -----------------------------------------------------------------------


@dataclass
class RandomSchema:
    """Makes one file with a message M of random fields, and messages of it."""

    rng: random.Random
    syntax: str

    def file(self) -> FileDescriptorProto:
        file = new_file("t", self.syntax)
        enum = file.enum_type.add(name="E")
        for name, number in (("ZERO", 0), ("ONE", 1), ("MINUS", -7), ("BIG", 70_000)):
            enum.value.add(name=name, number=number)
        empty = file.message_type.add(name="Empty")
        assert not empty.field
        for depth in range(3):
            message = file.message_type.add(name="M" if depth == 2 else f"N{depth}")
            self._fill(message, depth)
        return file

    def _fill(self, message: descriptor_pb2.DescriptorProto, depth: int) -> None:
        numbers = self.rng.sample([*range(1, 40), 2047, 2048, 18_999, 20_000, 2**29 - 1], 7)
        oneofs: dict[int, int] = {}
        for number in numbers:
            name = f"f{number}"
            if self.rng.random() < 0.15:
                self._add_map(message, name, number, depth)
                continue
            kind, type_name = self._type(depth)
            added = add(message, name, number, kind)
            if type_name:
                added.type_name = type_name
            if self.rng.random() < 0.25:
                added.label = Type.LABEL_REPEATED
                self._choose_packing(added)
            elif self.rng.random() < 0.25:
                oneofs[number] = len(message.field) - 1
            else:
                self._choose_presence(added)
        if oneofs:
            message.oneof_decl.add(name="choice")
            for index in oneofs.values():
                message.field[index].oneof_index = 0
        self._add_synthetic_oneofs(message)

    def _choose_packing(self, field: descriptor_pb2.FieldDescriptorProto) -> None:
        unpackable = (Type.TYPE_STRING, Type.TYPE_BYTES, Type.TYPE_MESSAGE, Type.TYPE_GROUP)
        if field.type in unpackable or self.rng.random() < 0.5:
            return
        packed = self.rng.random() < 0.5
        if self.syntax == "editions":
            features = descriptor_pb2.FeatureSet
            field.options.features.repeated_field_encoding = (
                features.PACKED if packed else features.EXPANDED
            )
        else:
            field.options.packed = packed

    def _choose_presence(self, field: descriptor_pb2.FieldDescriptorProto) -> None:
        is_message = field.type in (Type.TYPE_MESSAGE, Type.TYPE_GROUP)
        chance = self.rng.random()
        if self.syntax == "proto2":
            if chance < 0.2:
                field.label = Type.LABEL_REQUIRED
            elif chance < 0.4 and field.type == Type.TYPE_INT32:
                field.default_value = "42"
        elif self.syntax == "proto3":
            field.proto3_optional = chance < 0.4
        elif not is_message and chance < 0.4:
            field.options.features.field_presence = descriptor_pb2.FeatureSet.IMPLICIT
        elif is_message and chance < 0.3 and not field.type_name.startswith(".google"):
            field.options.features.message_encoding = descriptor_pb2.FeatureSet.DELIMITED

    def _add_synthetic_oneofs(self, message: descriptor_pb2.DescriptorProto) -> None:
        for field in message.field:
            if field.proto3_optional:
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")

    def _type(self, depth: int) -> tuple[int, str]:
        chance = self.rng.random()
        if chance < 0.6:
            return self.rng.choice(SCALARS), ""
        if chance < 0.7:
            return Type.TYPE_ENUM, ".t.E"
        if chance < 0.85 and depth:
            return Type.TYPE_MESSAGE, f".t.N{self.rng.randrange(depth)}"
        wrapped = [
            f"google.protobuf.{name}" for name in wrappers_pb2.DESCRIPTOR.message_types_by_name
        ]
        others = ("Timestamp", "Duration", "Any", "FieldMask")
        names = [*wrapped, *(f"google.protobuf.{name}" for name in others), "t.Empty"]
        return Type.TYPE_MESSAGE, f".{self.rng.choice(names)}"

    def _add_map(
        self, message: descriptor_pb2.DescriptorProto, name: str, number: int, depth: int
    ) -> None:
        kind, type_name = self._type(depth)
        add_map(message, f"t.{message.name}", name, number, self.rng.choice(KEYS), kind, type_name)


# --- random values ------------------------------------------------------------------------


def random_message(rng: random.Random, kind: Any) -> Any:
    """Return a message with random fields set, all required ones among them."""
    message = kind()
    fill(rng, message)
    return message


def fill(rng: random.Random, message: Any) -> None:
    name = message.DESCRIPTOR.full_name
    if name == "google.protobuf.Timestamp":
        message.seconds = rng.choice((0, rng.randrange(-62_135_596_800, 253_402_300_800)))
        message.nanos = rng.choice((0, rng.randrange(10**6) * 1000))
        return
    if name == "google.protobuf.Duration":
        sign = rng.choice((-1, 1))
        message.seconds = sign * rng.choice((0, rng.randrange(315_576_000_000)))
        message.nanos = sign * rng.choice((0, rng.randrange(10**6) * 1000))
        return
    for field in message.DESCRIPTOR.fields:
        if is_label(field, "required") or rng.random() < 0.6:
            fill_field(rng, message, field)


def is_label(field: Any, label: str) -> bool:
    """Return whether a field is "required" or "repeated"; protobuf 7 deprecates `label`."""
    flag = getattr(field, f"is_{label}", None)
    if flag is None:
        flag = field.label == Type.Label.Value(f"LABEL_{label.upper()}")
    return bool(flag)


def fill_field(rng: random.Random, message: Any, field: Any) -> None:
    own = getattr(message, field.name)
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    if is_map:
        value = field.message_type.fields_by_name["value"]
        key = field.message_type.fields_by_name["key"]
        for _ in range(rng.randrange(3)):
            if value.message_type is not None:
                fill(rng, own[random_scalar(rng, key)])
            else:
                own[random_scalar(rng, key)] = random_scalar(rng, value)
    elif is_label(field, "repeated"):
        for _ in range(rng.randrange(3)):
            if field.message_type is not None:
                fill(rng, own.add())
            else:
                own.append(random_scalar(rng, field))
    elif field.message_type is not None:
        own.SetInParent()
        fill(rng, own)
    else:
        setattr(message, field.name, random_scalar(rng, field))


_RANGES = {
    Type.TYPE_UINT32: (0, 2**32 - 1),
    Type.TYPE_FIXED32: (0, 2**32 - 1),
    Type.TYPE_UINT64: (0, 2**64 - 1),
    Type.TYPE_FIXED64: (0, 2**64 - 1),
    Type.TYPE_INT32: (-(2**31), 2**31 - 1),
    Type.TYPE_SINT32: (-(2**31), 2**31 - 1),
    Type.TYPE_SFIXED32: (-(2**31), 2**31 - 1),
}
_TEXTS = ("", "a", "żółć", "\0", "text " * 5, "𝄞")
_FLOATS = (0.0, -0.0, 1.5, -2.25, float("inf"), float("-inf"), 2.0**-149)


def random_scalar(rng: random.Random, field: Any) -> Any:
    kind = field.type
    if kind == Type.TYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    if kind == Type.TYPE_BOOL:
        return rng.random() < 0.5
    if kind == Type.TYPE_STRING:
        return rng.choice(_TEXTS)
    if kind == Type.TYPE_BYTES:
        return rng.choice((b"", b"\xff", b"\0", rng.randbytes(rng.randrange(20))))
    if kind in (Type.TYPE_FLOAT, Type.TYPE_DOUBLE):
        return rng.choice(_FLOATS)
    low, high = _RANGES.get(kind, (-(2**63), 2**63 - 1))
    near = rng.choice((0, low, high, 1, 127, 128, 16_383, 16_384, rng.randint(low, high)))
    return min(max(near, low), high)


# --- what protobuf itself reads -----------------------------------------------------------


def expected_row(message: Any) -> dict[str, Any]:
    """Return a message in the form of Arrow's `to_pylist`, read with protobuf's own attributes."""
    return {field.name: expected_field(message, field) for field in message.DESCRIPTOR.fields}


def expected_field(message: Any, field: Any) -> Any:
    own = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key = field.message_type.fields_by_name["key"]
        value = field.message_type.fields_by_name["value"]
        return sorted(((expected(k, key), expected(own[k], value)) for k in own), key=repr)
    if is_label(field, "repeated"):
        return [expected(value, field) for value in own]
    if field.has_presence and not message.HasField(field.name):
        return None
    return expected(own, field)


def expected(value: Any, field: Any) -> Any:
    if field.message_type is not None:
        return expected_message(value, field.message_type)
    if field.type == Type.TYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else str(value)
    return Decimal(value) if field.type in (Type.TYPE_UINT64, Type.TYPE_FIXED64) else value


def expected_message(value: Any, kind: Any) -> Any:
    if kind.full_name == "google.protobuf.Timestamp":
        return EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    if kind.full_name == "google.protobuf.Duration":
        return timedelta(microseconds=value.seconds * 10**6 + int(value.nanos / 1000))
    if kind.full_name == "google.protobuf.FieldMask":
        return list(value.paths)
    if kind.full_name.startswith("google.protobuf.") and kind.full_name.endswith("Value"):
        return expected(value.value, kind.fields_by_name["value"])
    return expected_row(value) if kind.fields else True


def sorted_maps(value: Any) -> Any:
    """Return Arrow's value with maps in the order of `expected_field`, and one UTC."""
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc)
    if isinstance(value, dict):
        return {name: sorted_maps(each) for name, each in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(each, tuple) for each in value):
            return sorted(((k, sorted_maps(v)) for k, v in value), key=repr)
        return [sorted_maps(each) for each in value]
    return value


def same(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Compare so that -0.0 is not 0.0."""
    return repr(first) == repr(second)
