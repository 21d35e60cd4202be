"""Codecs: values of one schema ↔ Arrow columns, and the choice of a schema's codec.

Each format has a module of its own (`avro/codec.py`, `json/codec.py`, `protobuf/codec.py`,
`primitives.py`), which is imported when a schema of the format is met: some need packages of their
own. Types are those that Spark has in Arrow: timestamps in microseconds, UTC or without a zone;
date32; decimal128; string, binary, lists, maps and structs; integers with a sign.

Each of those modules has these functions:

- ``arrow_schema(info)``: the columns that a schema's values are, flattened where they are records,
  else one column ``value``. Raises SchemaMismatch for what cannot be columns, naming the path.
- ``decoder(writer, reader, fields)``: a decoder of values written with `writer`, resolved to the
  columns of `reader` (the schema of the query), of which only `fields` are built, in that order.
- ``encoder(info, columns)``: an encoder of record batches with the Arrow schema `columns` for a
  topic whose schema is `info`. Raises SchemaMismatch that tells of every field that does not fit
  (missing, unknown, of another type) and what to do. A column that may be null is treated as a
  field that may not, as nearly all of Spark's may be: the null itself is what does not fit.
- ``definition(columns, name, namespace)``: the schema to register for such record batches on a
  topic that has none, where the format has definitions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

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

if TYPE_CHECKING:
    from pulsar_spark.schema.avro.definition import Record


class Misfit(Exception):
    """A value that its type does not hold: why, where in the value, and in which row.

    `row` is its place in the array at hand. What is raised within a value is told by those around
    it where they have it, with `within`, from the inside out.
    """

    def __init__(self, reason: str, path: str = "", row: int = 0, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.row = row
        self.remedy = remedy
        self._steps = [path]

    def __str__(self) -> str:
        return f"row {self.row}: {self.field}: {self.reason}"

    @property
    def field(self) -> str:
        """The path as people write it, such as ``address.lines[]``, "" for the value itself."""
        found = ""
        for step in reversed(self._steps):
            found += step if step.startswith(("[", "{")) or not (step and found) else f".{step}"
        return found

    def within(self, step: str, row: int | None = None) -> Misfit:
        """Return the same, one level further out, and in the row that is there."""
        self._steps.append(step)
        if row is not None:
            self.row = row
        return self


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A value that does not decode.

    `row` is its place in the array that was given, `field` the path of what does not fit
    (``address.city``), "" for the value as a whole; `reason` says what was found and what the
    schema wants.
    """

    row: int
    field: str
    reason: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """The columns that were asked for, each as long as the array that was given.

    They are null where the value is null or does not decode; `bad` tells of the latter, ordered
    by row, one for each.
    """

    columns: Sequence[pa.Array]
    bad: Sequence[Undecodable] = ()


class Decoder(Protocol):
    """Decodes values that were all written with one version of a schema."""

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode a binary array; null is a value that is null (a tombstone)."""


class Encoder(Protocol):
    """Encodes rows as values of one schema."""

    def encode(self, columns: pa.RecordBatch) -> pa.Array:
        """Return a binary array with a value for each row.

        Raises Misfit for what the schema cannot hold.
        """


NO_SCHEMA = SchemaInfo(BYTES)
"""What a topic without a schema has: values are bytes."""

_CACHED_COLUMNS = 64
PLAIN = frozenset((BYTES, pb.Schema.String))
"""Types whose values are bytes or text as they are."""
_PRIMITIVE = frozenset(PRIMITIVE_NAMES) - PLAIN
_PROTOBUF = frozenset((pb.Schema.Protobuf, pb.Schema.ProtobufNative))
_CODED = PLAIN | _PRIMITIVE | _PROTOBUF | {pb.Schema.Avro, pb.Schema.Json}


class Codec(Protocol):
    """What the module of a format offers, as told above."""

    def arrow_schema(self, info: SchemaInfo, /) -> pa.Schema:
        """Return the columns that a schema's values are."""

    def decoder(self, writer: SchemaInfo, reader: SchemaInfo, fields: Sequence[str], /) -> Decoder:
        """Return a decoder of `fields` for values that were written with `writer`."""

    def encoder(self, info: SchemaInfo, columns: pa.Schema, /) -> Encoder:
        """Return an encoder of such columns for a topic with the schema `info`."""


@dataclass(frozen=True, slots=True)
class TypedColumns:
    """What a topic's messages are as columns.

    `fields` are the columns of the value. `key` is the type of the key, None where it is the
    message's own, in bytes.
    """

    fields: pa.Schema
    key: pa.DataType | None = None


def is_decoded(info: SchemaInfo) -> bool:
    """Whether there is a codec for a schema; values of others stay bytes."""
    if info.type == pb.Schema.KeyValue:
        return all(part.type in _CODED for part in key_value_parts(info)[:2])
    return info.type in _CODED


@lru_cache(_CACHED_COLUMNS)
def typed_columns(info: SchemaInfo) -> TypedColumns:
    """Return the columns of a schema that `is_decoded`.

    Raises SchemaMismatch, which names the path, for what cannot be columns.
    """
    if info.type != pb.Schema.KeyValue:
        return TypedColumns(codec_of(info).arrow_schema(info))
    parts = key_value_parts(info)
    fields = codec_of(parts.value).arrow_schema(parts.value)
    keys = codec_of(parts.key).arrow_schema(parts.key)
    return TypedColumns(
        fields, pa.struct(list(keys)) if is_record(parts.key) else keys.field(0).type
    )


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
    return info.type in _PROTOBUF or _avro_record(info) is not None


def record_name(info: SchemaInfo) -> str | None:
    """Return the name, without its namespace, of the records that a schema's values are."""
    if info.type not in _PROTOBUF:
        record = _avro_record(info)
        return None if record is None else record.name.rpartition(".")[2]
    try:
        definition = json.loads(info.schema_data)
    except (ValueError, RecursionError):
        return None
    key = "rootMessageTypeName" if info.type == pb.Schema.ProtobufNative else "name"
    name = definition.get(key) if isinstance(definition, dict) else None
    return name.rpartition(".")[2] if isinstance(name, str) else None


def _avro_record(info: SchemaInfo) -> Record | None:
    """Return the record that an AVRO or a JSON schema defines; None for what is no such schema."""
    if info.type not in (pb.Schema.Avro, pb.Schema.Json):
        return None
    from pulsar_spark.schema.avro import definition

    try:
        node = definition.parse_definition(info.schema_data)
    except SchemaMismatch:
        return None
    return node if isinstance(node, definition.Record) else None


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
        f"pulsar_spark cannot decode values of the schema type {info.type_name}",
        "Use valueFormat=raw.",
    )


def decoder_of(writer: SchemaInfo, reader: SchemaInfo, fields: Sequence[str]) -> Decoder:
    """Return a decoder of `fields` of `reader` for values that were written with `writer`.

    Raises SchemaMismatch where values of the one cannot be read as the other.
    """
    check_types(writer, reader)
    return codec_of(reader).decoder(writer, reader, fields)


def check_types(writer: SchemaInfo, reader: SchemaInfo) -> None:
    """Raise SchemaMismatch if the two are of types whose bytes have nothing in common."""
    types = {writer.type, reader.type}
    if len(types) > 1 and not types <= _PRIMITIVE and not types <= _PROTOBUF:
        raise SchemaMismatch(
            f"values were written with a schema of the type {writer.type_name}, the query has "
            f"{reader.type_name}",
            "Read such topics with valueFormat=raw, or drop these values with the option mode.",
        )


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
