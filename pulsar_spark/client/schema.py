"""Schemas of values: those of the official client's `pulsar.schema`, and some that only Java has.

Pass a schema to `create_producer`, `subscribe`, `create_reader` or `create_table_view`. The
broker registers it, and refuses one that is incompatible with the topic's.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError, Message

from pulsar_spark.client.enums import SchemaType
from pulsar_spark.errors import (
    CorruptMessage,
    InvalidRow,
    OptionError,
    UnsupportedFeature,
    WrongType,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.outgoing_messages import MessageFields
from pulsar_spark.protocol.schema_info import (
    BYTES,
    PRIMITIVE_NAMES,
    SchemaInfo,
    join_key_value,
    type_of_name,
)

if TYPE_CHECKING:
    # Arrow is imported where it is used.
    from pulsar_spark.schema.codec import Mismatch
    from pulsar_spark.schema.python_values import PairEncoder, PythonEncoder


class SchemaSummary:
    """What a schema is, with the members of the official client's SchemaInfo."""

    __slots__ = ("_info",)

    def __init__(self, info: SchemaInfo) -> None:
        self._info = info

    def schema_type(self) -> SchemaType:
        """Its type."""
        return SchemaType[self._info.type_name]

    def name(self) -> str:
        """Its name in the registry."""
        return self._info.name

    def schema(self) -> str:
        """Its definition, empty for a type without one; the sizes of KEY_VALUE's are in it."""
        return self._info.schema_data.decode("utf-8", "replace")


class Schema:
    """Base class of schemas."""

    def registered(self) -> SchemaInfo | None:
        """Return the schema to register at the broker, None for plain bytes."""
        raise NotImplementedError

    def schema_info(self) -> SchemaSummary:
        """Return type, name and definition of the schema."""
        return SchemaSummary(self.registered() or SchemaInfo(BYTES, "BYTES"))

    def encode(self, obj: Any) -> bytes:
        """Encode a value; raises InvalidRow if it does not match the schema.

        That is a WrongType, which is a TypeError too, for a value of another type.
        """
        raise NotImplementedError

    def decode(self, data: bytes) -> Any:
        """Decode bytes that were written with this schema."""
        raise NotImplementedError

    def message_of(self, value: Any) -> MessageFields:
        """Return a message with this value; raises InvalidRow."""
        return MessageFields(self.encode(value))

    def made(self, value: Any, data: bytes | None = None) -> Any:
        """Convert a value that was decoded by its definition to what users get.

        `data` are its bytes, where they are known.
        """
        return value

    def __repr__(self) -> str:
        return type(self).__name__


class BytesSchema(Schema):
    """Values are bytes; no schema is registered."""

    def encode(self, data: Any) -> bytes:
        """Return `data`, which must be bytes."""
        if not isinstance(data, bytes):
            raise _wrong_type(data, bytes)
        return data

    def decode(self, data: bytes) -> bytes:
        """Return `data`."""
        return data

    def registered(self) -> SchemaInfo | None:
        """Return None."""
        return None


class StringSchema(Schema):
    """Values are text in UTF-8."""

    def encode(self, obj: Any) -> bytes:
        """Return the UTF-8 of `obj`, which must be text."""
        if not isinstance(obj, str):
            raise _wrong_type(obj, str)
        try:
            return obj.encode()
        except UnicodeEncodeError:
            raise InvalidRow("a value is text that UTF-8 cannot express") from None

    def decode(self, data: bytes) -> str:
        """Return the text; raises UnicodeDecodeError if it is not UTF-8."""
        return data.decode()

    def registered(self) -> SchemaInfo | None:
        """Return the STRING schema under the name that official clients give it."""
        return SchemaInfo(pb.Schema.String, "String", b"", {})


class DefinedSchema(Schema):
    """A schema whose definition in the registry encodes and decodes its values."""

    def __init__(self, info: SchemaInfo) -> None:
        self._info = info

    def registered(self) -> SchemaInfo:
        """Return the schema as the registry holds it."""
        return self._info

    def encode(self, obj: Any) -> bytes:
        """Encode a value; raises InvalidRow that names the field that does not match.

        Raises SchemaMismatch for an invalid definition.
        """
        from pulsar_spark.schema.codec import Mismatch

        try:
            return self._encoder.encode(obj)
        except Mismatch as mismatch:
            raise _invalid(mismatch, self._info) from None

    def decode(self, data: bytes) -> Any:
        """Decode a value; raises CorruptMessage that names the field that cannot be decoded."""
        from pulsar_spark.schema.arrow.arrays import binaries
        from pulsar_spark.schema.codec import Undecodable

        found = self._decoder.decode(binaries([data]))[0]
        if isinstance(found, Undecodable):
            raise undecodable(found, self._info)
        return self.made(found, data)

    @cached_property
    def _encoder(self) -> PythonEncoder:
        from pulsar_spark.schema.python_values import PythonEncoder

        return PythonEncoder(self._info)

    @cached_property
    def _decoder(self) -> Any:
        from pulsar_spark.schema.python_values import PythonDecoder

        return PythonDecoder(self._info, self._info)


class PrimitiveSchema(DefinedSchema):
    """Values of one of Pulsar's primitive types, named as in Java.

    BOOLEAN, INT8, INT16, INT32, INT64, FLOAT, DOUBLE, STRING; DATE and LOCAL_DATE (date), TIME and
    LOCAL_TIME (time), TIMESTAMP and INSTANT (datetime in UTC), LOCAL_DATE_TIME (datetime without a
    zone). Raises OptionError for other names.
    """

    def __init__(self, type_name: str) -> None:
        number = type_of_name(str(type_name).upper())
        if number is None or number not in PRIMITIVE_NAMES:
            raise OptionError(
                f"{type_name!r} is not a primitive type of Pulsar's",
                f"Use one of {', '.join(SchemaInfo(kind).type_name for kind in PRIMITIVE_NAMES)}.",
            )
        super().__init__(SchemaInfo(number, PRIMITIVE_NAMES[number]))

    def __repr__(self) -> str:
        return f"PrimitiveSchema({self._info.type_name!r})"


class RecordSchema(DefinedSchema):
    """Values are records with an Avro definition: a dict, or JSON text, which is kept as it is.

    With `record_cls`, a class with a method `schema()` such as the official client's Record, that
    method returns the definition, and values are objects of the class.
    """

    _kind: int

    def __init__(self, record_cls: Any = None, schema_definition: Any = None) -> None:
        name = SchemaInfo(self._kind).type_name
        if record_cls is not None and not callable(getattr(record_cls, "schema", None)):
            raise OptionError(
                f"record_cls is {record_cls!r}, which has no method schema()",
                "Give a definition with schema_definition=, a dict or JSON as text.",
            )
        definition = schema_definition if record_cls is None else record_cls.schema()
        self._record_cls = record_cls
        super().__init__(SchemaInfo(self._kind, name, self._text(definition, name)))
        from pulsar_spark.schema.python_values import definition_of

        # Fails here, where the user passes the definition, if it is invalid.
        definition_of(self._info)

    def _text(self, definition: Any, name: str) -> bytes:
        if isinstance(definition, bytes):
            return definition
        if isinstance(definition, str) and definition.lstrip()[:1] in ("{", "["):
            return definition.encode()
        if not isinstance(definition, dict):
            raise OptionError(
                f"the definition of the {name} schema is a {type(definition).__name__}",
                "Give a dict, or JSON as text.",
            )
        try:
            # JSON of the official Python client is told from that of others by its layout.
            indent = 1 if self._record_cls is not None or name == "AVRO" else None
            return json.dumps(definition, indent=indent).encode()
        except (TypeError, ValueError) as error:
            raise OptionError(f"the definition of the {name} schema is not JSON: {error}") from None

    def encode(self, obj: Any) -> bytes:
        """Encode a dict, or an object of `record_cls`."""
        if self._record_cls is not None and not isinstance(obj, self._record_cls):
            raise _wrong_type(obj, self._record_cls)
        return super().encode(obj)

    def made(self, value: Any, data: bytes | None = None) -> Any:
        """Return the dict, or an object of `record_cls`; raises CorruptMessage if none fits."""
        if self._record_cls is None or value is None:
            return value
        is_json = self._info.type == pb.Schema.Json and data is not None
        try:
            if is_json and isinstance(getattr(self._record_cls, "_fields", None), Mapping):
                # The official client's Record tells what is absent from what is null.
                return self._record_cls(**json.loads(data or b""))
            return self._record_cls(**_as_given(self._record_cls, value))
        except (TypeError, ValueError, AttributeError) as error:
            raise CorruptMessage(
                f"a value is no {self._record_cls.__name__}: {error}",
                "Read it with BytesSchema, or with the definition alone (schema_definition=).",
            ) from None


def _as_given(field: Any, value: Any) -> Any:
    """Return a decoded value as a Record of the official client takes it, which is `field`.

    It takes no null for a required field, which may be absent, and has the values of enums in JSON,
    not their names.
    """
    fields = getattr(field, "_fields", None)
    if isinstance(value, list):
        inner = getattr(field, "array_type", None)
        return [_as_given(inner, item) for item in value]
    if isinstance(value, dict) and isinstance(fields, Mapping):
        return {
            name: _as_given(fields.get(name), item)
            for name, item in value.items()
            if item is not None or not getattr(fields.get(name), "_required", False)
        }
    if isinstance(value, dict):
        inner = getattr(field, "value_type", None)
        return {name: _as_given(inner, item) for name, item in value.items()}
    if isinstance(value, str) and hasattr(field, "enum_type"):
        return next((each for each in field.values if str(each) == value), value)
    return value


class JsonSchema(RecordSchema):
    """Values are dicts, sent as JSON. Raises SchemaMismatch if the definition is invalid."""

    _kind = pb.Schema.Json


class AvroSchema(RecordSchema):
    """Values are dicts, sent as Avro. Raises SchemaMismatch if the definition is invalid."""

    _kind = pb.Schema.Avro


class KeyValueSchema(DefinedSchema):
    """Values are pairs ``(key, value)``, each with a schema of its own; received as KeyValue.

    With `separated` the key is the message's key; otherwise the payload holds both. None stands
    for a null key or value.
    """

    def __init__(self, key: Schema, value: Schema, separated: bool = False) -> None:
        infos = []
        for name, side in (("key", key), ("value", value)):
            if not isinstance(side, BytesSchema | StringSchema | DefinedSchema) or isinstance(
                side, KeyValueSchema
            ):
                raise OptionError(
                    f"the {name}'s schema is {side!r}",
                    "Use bytes, text, a primitive, AVRO or JSON.",
                )
            infos.append(side.registered() or SchemaInfo(BYTES, "Bytes"))
        self._key, self._value = key, value
        super().__init__(join_key_value(*infos, separated=separated))

    def encode(self, obj: Any) -> bytes:
        """Return a pair's payload; without the key if it is separated."""
        return self.message_of(obj).payload or b""

    def message_of(self, value: Any) -> MessageFields:
        """Return a message with a pair."""
        from pulsar_spark.schema.codec import Mismatch

        try:
            key, own = self._pair_encoder.encode(value)
        except Mismatch as mismatch:
            raise _invalid(mismatch, self._info) from None
        if not self._pair_encoder.separated:
            return MessageFields(self._pair_encoder.payload(key, own))
        if key is None:
            return MessageFields(own, null_key=True)
        return MessageFields(own, base64.b64encode(key).decode(), key_is_base64=True)

    def decode(self, data: bytes) -> Any:
        """Decode a payload's pair; raises OptionError if keys are separated."""
        if self._pair_encoder.separated:
            raise OptionError("the key is not in the payload", "Use value() of the message.")
        return super().decode(data)

    def made(self, value: Any, data: bytes | None = None) -> Any:
        """Return the pair, with objects where its schemas have classes."""
        if value is None:
            return None
        return type(value)(self._key.made(value.key), self._value.made(value.value))

    @cached_property
    def _pair_encoder(self) -> PairEncoder:
        from pulsar_spark.schema.python_values import PairEncoder

        return PairEncoder(self._info)

    @cached_property
    def _decoder(self) -> Any:
        from pulsar_spark.schema.python_values import PythonPairDecoder

        return PythonPairDecoder(self._info, self._info)


class ProtobufNativeSchema(Schema):
    """Values are messages of a protobuf class, which evolves by protobuf's own rules."""

    def __init__(self, record_cls: type[Message]) -> None:
        given: Any = record_cls
        if not (isinstance(given, type) and issubclass(given, Message)):
            raise OptionError(f"record_cls is {record_cls!r}, which is no class of messages")
        self._record_cls = record_cls

    def encode(self, obj: Any) -> bytes:
        """Return the bytes of a message of the class."""
        if not isinstance(obj, self._record_cls):
            raise _wrong_type(obj, self._record_cls)
        return obj.SerializeToString()

    def decode(self, data: bytes) -> Message:
        """Return the message; raises CorruptMessage if it cannot be decoded."""
        try:
            return self._record_cls.FromString(data)
        except DecodeError:
            raise CorruptMessage(
                f"a value does not decode as {self._record_cls.__name__}", "Read it with data()."
            ) from None

    def registered(self) -> SchemaInfo:
        """Return the PROTOBUF_NATIVE schema, with the class's file and its imports."""
        descriptor = self._record_cls.DESCRIPTOR
        files = descriptor_pb2.FileDescriptorSet()
        _add_files(descriptor.file, files, set())
        definition = {
            "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
            "rootMessageTypeName": descriptor.full_name,
            "rootFileDescriptorName": descriptor.file.name,
        }
        data = json.dumps(definition).encode()
        return SchemaInfo(pb.Schema.ProtobufNative, "PROTOBUF_NATIVE", data)


class AutoConsumeSchema(Schema):
    """Values are decoded with the topic's schema, each with the version it was written with.

    For consumers, readers and table views. Records become dicts; values stay bytes on a topic
    without a schema, and for types that cannot be decoded.
    """

    def encode(self, obj: Any) -> bytes:
        """Raise UnsupportedFeature."""
        raise _for_reading()

    def decode(self, data: bytes) -> bytes:
        """Return `data`, whose schema is unknown."""
        return data

    def registered(self) -> SchemaInfo:
        """Return the schema type that registers nothing."""
        return SchemaInfo(pb.Schema.AutoConsume, "AutoConsume")


def _add_files(file: Any, files: descriptor_pb2.FileDescriptorSet, known: set[str]) -> None:
    """Append a file after all its imports."""
    if file.name in known:
        return
    known.add(file.name)
    for dependency in file.dependencies:
        _add_files(dependency, files, known)
    file.CopyToProto(files.file.add())


def _wrong_type(value: object, wanted: type) -> WrongType:
    return WrongType(f"a value is {type(value).__name__}, the schema takes {wanted.__name__}")


def _invalid(mismatch: Mismatch, info: SchemaInfo) -> InvalidRow:
    where = f"the field {mismatch.field}: " if mismatch.field else ""
    return InvalidRow(
        f"a value does not fit the {info.type_name} schema: {where}{mismatch.reason}",
        mismatch.remedy,
    )


def undecodable(found: Any, info: SchemaInfo, version: str = "") -> CorruptMessage:
    """Return the error for a value that cannot be decoded, and the version it was written with."""
    where = f"the field {found.field}: " if found.field else ""
    written = f" of schema version {version}" if version else ""
    return CorruptMessage(
        f"a value{written} does not decode as {info.type_name}: {where}{found.reason}",
        "Take the bytes with data(), or read with the schema that it was written with.",
    )


def _for_reading() -> UnsupportedFeature:
    return UnsupportedFeature(
        "AutoConsumeSchema is for reading", "Give the producer the schema that it writes."
    )


def check_schema(schema: Any, *, writing: bool = False) -> Schema:
    """Check a user's schema; None becomes BytesSchema.

    Raises OptionError for other classes, UnsupportedFeature for one that cannot write.
    """
    if schema is None:
        return BytesSchema()
    if writing and isinstance(schema, AutoConsumeSchema):
        raise _for_reading()
    if not isinstance(schema, Schema):
        raise OptionError(
            f"a schema is an object of the class {type(schema).__module__}."
            f"{type(schema).__qualname__}",
            "Use the classes of pulsar_spark.client.schema.",
        )
    return schema
