"""Which codec a schema asks for, and what columns its values are.

The formats' modules are imported when a schema of theirs is met: some need packages of their own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import pyarrow as pa

from pulsar_spark.errors import PulsarError, SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import (
    BYTES,
    PRIMITIVE_NAMES,
    KeyValueSchema,
    SchemaInfo,
    split_key_value,
)
from pulsar_spark.schema.codec import Decoder, Encoder

NO_SCHEMA = SchemaInfo(BYTES)
"""What a topic without a schema has: values are bytes."""

_CACHED_SHAPES = 64
PLAIN = frozenset((BYTES, pb.Schema.String))
"""Types whose values are bytes or text as they are."""
_PRIMITIVE = frozenset(PRIMITIVE_NAMES) - PLAIN
_PROTOBUF = frozenset((pb.Schema.Protobuf, pb.Schema.ProtobufNative))
_CODED = PLAIN | _PRIMITIVE | _PROTOBUF | {pb.Schema.Avro, pb.Schema.Json}


class Codec(Protocol):
    """What the module of a format offers, as `codec.py` says."""

    def arrow_schema(self, info: SchemaInfo, /) -> pa.Schema:
        """Return the columns that a schema's values are."""

    def decoder(self, writer: SchemaInfo, reader: SchemaInfo, fields: Sequence[str], /) -> Decoder:
        """Return a decoder of `fields` for values that were written with `writer`."""

    def encoder(self, info: SchemaInfo, columns: pa.Schema, /) -> Encoder:
        """Return an encoder of such columns for a topic with the schema `info`."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a topic's messages are as columns.

    `fields` are the columns of the value. `key` is the type of the key, None where it is the
    message's own, in bytes.
    """

    fields: pa.Schema
    key: pa.DataType | None = None


def is_decoded(info: SchemaInfo) -> bool:
    """Whether there is a codec for a schema; values of others stay bytes."""
    if info.type == pb.Schema.KeyValue:
        return all(_has_codec(part.type) for part in key_value_parts(info)[:2])
    return _has_codec(info.type)


@lru_cache(_CACHED_SHAPES)
def shape(info: SchemaInfo) -> Shape:
    """Return the columns of a schema that `is_decoded`.

    Raises SchemaMismatch, which names the path, for what cannot be columns.
    """
    if info.type != pb.Schema.KeyValue:
        return Shape(codec_of(info).arrow_schema(info))
    parts = key_value_parts(info)
    fields = codec_of(parts.value).arrow_schema(parts.value)
    keys = codec_of(parts.key).arrow_schema(parts.key)
    return Shape(fields, pa.struct(list(keys)) if is_record(parts.key) else keys.field(0).type)


def key_value_parts(info: SchemaInfo) -> KeyValueSchema:
    """Return the schemas of a KEY_VALUE topic; raises SchemaMismatch if they are damaged."""
    try:
        return split_key_value(info)
    except PulsarError as error:
        raise SchemaMismatch(
            f"the topic's schema cannot be used: {error.what}", "Read with valueFormat=raw."
        ) from None


def is_record(info: SchemaInfo) -> bool:
    """Whether a schema's values are records, whose fields are columns."""
    if info.type in _PROTOBUF:
        return True
    if info.type not in (pb.Schema.Avro, pb.Schema.Json):
        return False
    try:
        definition = json.loads(info.schema_data)
    except (ValueError, RecursionError):
        return False
    return isinstance(definition, dict) and definition.get("type") in ("record", "error")


def codec_of(info: SchemaInfo) -> Codec:
    """Return the codec of a schema that is not KEY_VALUE; raises SchemaMismatch without one."""
    kind = info.type
    if kind in PLAIN:
        from pulsar_spark.schema import plain_values

        return plain_values
    if kind in _PRIMITIVE:
        from pulsar_spark.schema import primitives

        return primitives
    if kind == pb.Schema.Avro:
        from pulsar_spark.schema.avro import codec as avro_codec

        return avro_codec
    if kind == pb.Schema.Json:
        from pulsar_spark.schema.json import codec as json_codec

        return json_codec
    if kind in _PROTOBUF:
        from pulsar_spark.schema.protobuf import codec as protobuf_codec

        return protobuf_codec
    raise SchemaMismatch(
        f"values of the schema type {info.type_name} are not decoded", "Use valueFormat=raw."
    )


def _has_codec(kind: int) -> bool:
    return kind in _CODED


# --- schemas of topics that have none -----------------------------------------------------


def primitive_for(kind: pa.DataType) -> SchemaInfo | None:
    """Return the schema that one column of a type is written with, None for what needs a record."""
    from pulsar_spark.schema import primitives

    if pa.types.is_struct(kind):
        return None
    try:
        return primitives.schema_for(kind)
    except SchemaMismatch:
        return None


def record_definition(
    kind: int, columns: pa.Schema, name: str, namespace: str | None
) -> SchemaInfo:
    """Return the schema of a type, AVRO or JSON, for records with these columns.

    Raises SchemaMismatch for what the format does not have.
    """
    if kind == pb.Schema.Json:
        from pulsar_spark.schema.json import codec as json_codec

        return json_codec.definition(columns, name, namespace or "")
    from pulsar_spark.schema.avro import codec as avro_codec

    return avro_codec.definition(columns, name, namespace or "")
