"""Codecs: values of a schema ↔ Arrow columns, and the choice of a schema's codec.

Each format has its own module (`avro/codec.py`, `json/codec.py`, `protobuf/codec.py`,
`primitives.py`), imported on first use, as some need further packages. Columns have the Arrow types
that Spark uses: timestamps in microseconds, UTC or without a zone; date32; decimal128; string,
binary, lists, maps and structs; signed integers.

Each module has these functions:

- ``arrow_schema(info)``: a schema's columns: a record's fields, otherwise one column ``value``.
  Raises SchemaMismatch, with the path, if there is no column type.
- ``decoder(writer, reader, fields)``: a decoder of values written with `writer`, resolved to the
  columns of `reader` (the query's schema). It builds only `fields`, in that order.
- ``losses(writer, reader, fields)``, of formats with records: what such a decoder does not give.
- ``encoder(info, columns)``: an encoder of record batches with the Arrow schema `columns` for a
  topic with the schema `info`. Raises SchemaMismatch that lists every mismatched field (missing,
  unknown, of another type) and the remedy. Nullable columns match fields that are not nullable,
  because nearly all of Spark's columns are nullable; an actual null is an error.
- ``definition(columns, name, namespace)``: the schema to register for such record batches, for a
  topic without one, if the format has definitions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from pulsar_spark.errors import PulsarError, SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import (
    BYTES,
    PRIMITIVE_NAMES,
    KeyValueParts,
    SchemaInfo,
    split_key_value,
)
from pulsar_spark.schema.bounded_cache import BoundedCache
from pulsar_spark.schema.table.metadata_columns import FIXED_NAMES

if TYPE_CHECKING:
    from pulsar_spark.schema.avro.definition import Record


class Mismatch(Exception):
    """A value that does not match its type: why, where in the value, and in which row.

    `row` is the index in the current array. Code that handles the enclosing value adds its own
    position with `within`, from the inside out.
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
        """The path as users write it, such as ``address.lines[]``, "" for the value itself."""
        found = ""
        for step in reversed(self._steps):
            found += step if step.startswith(("[", "{")) or not (step and found) else f".{step}"
        return found

    def within(self, step: str, row: int | None = None) -> Mismatch:
        """Return a copy that is one level further out, in that level's row."""
        self._steps.append(step)
        if row is not None:
            self.row = row
        return self


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A value that cannot be decoded.

    `row` is its index in the given array, `field` the path of the mismatch (``address.city``), ""
    for the whole value; `reason` says what was found and what the schema requires. `data` are its
    bytes, None if they are those in the array.
    """

    row: int
    field: str
    reason: str
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Decoded:
    """The requested columns, each as long as the given array.

    They are null for null values and for values that cannot be decoded; `bad` has one item for each
    of the latter, ordered by row.
    """

    columns: Sequence[pa.Array]
    bad: Sequence[Undecodable] = ()


@dataclass(frozen=True, slots=True)
class Losses:
    """What is lost if values of one version are read as another, by the paths of fields.

    Fields in `left_out` are not read, those in `partial` can have values that cannot be decoded, or
    are a default instead.
    """

    left_out: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()


class Decoder(Protocol):
    """Decodes values that were all written with one version of a schema."""

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode a binary array; null is a null value (a tombstone)."""


class Unreadable:
    """The decoder of values that cannot be read with the query's schema, because of `error`.

    Null values are bad with `are_nulls_too`.
    """

    def __init__(
        self, error: SchemaMismatch, types: Sequence[pa.DataType], *, are_nulls_too: bool = False
    ) -> None:
        self.error = error
        self._types = types
        self._are_nulls_too = are_nulls_too

    def decode(self, raw: pa.Array) -> Decoded:
        """Return columns of nulls; values are bad without looking at them."""
        there = raw.is_valid().to_pylist()
        bad = [row for row in range(len(raw)) if there[row] or self._are_nulls_too]
        columns = [pa.nulls(len(raw), kind) for kind in self._types]
        return Decoded(columns, [Undecodable(row, "", self.error.what) for row in bad])


class Encoder(Protocol):
    """Encodes rows as values of one schema."""

    def encode(self, columns: pa.RecordBatch) -> pa.Array:
        """Return a binary array with a value for each row.

        Raises Mismatch for a value that the schema cannot hold.
        """


NO_SCHEMA = SchemaInfo(BYTES)
"""The schema of a topic without one: values are bytes."""

_CACHED_COLUMNS = 64
# What a process makes of a schema serves its next tasks, too. A decoder takes some twenty times as
# much memory as the definition that values were written with.
_CACHED_DECODERS = 1024
_CACHED_DEFINITIONS = 4 * 1024 * 1024
PLAIN = frozenset((BYTES, pb.Schema.String))
"""Types whose values are plain bytes or text."""
_PRIMITIVE = frozenset(PRIMITIVE_NAMES) - PLAIN
_PROTOBUF = frozenset((pb.Schema.Protobuf, pb.Schema.ProtobufNative))
_CODED = PLAIN | _PRIMITIVE | _PROTOBUF | {pb.Schema.Avro, pb.Schema.Json}


class Codec(Protocol):
    """What a format's module provides, as described above."""

    def arrow_schema(self, info: SchemaInfo, /) -> pa.Schema:
        """Return a schema's columns."""

    def decoder(self, writer: SchemaInfo, reader: SchemaInfo, fields: Sequence[str], /) -> Decoder:
        """Return a decoder of `fields` for values written with `writer`."""

    def encoder(self, info: SchemaInfo, columns: pa.Schema, /) -> Encoder:
        """Return an encoder of such columns for a topic with the schema `info`."""


@dataclass(frozen=True, slots=True)
class TypedColumns:
    """The columns of a topic's messages.

    `fields` are the value's columns. `key` is the key's type, None if it is the message key, in
    bytes. `left_out` says why fields are no columns; those that differ from others in case are
    among `fields`, too.
    """

    fields: pa.Schema
    key: pa.DataType | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)


def is_decoded(info: SchemaInfo) -> bool:
    """Whether a schema has a codec; otherwise values stay bytes."""
    if info.type == pb.Schema.KeyValue:
        return all(part.type in _CODED for part in key_value_parts(info)[:2])
    return info.type in _CODED


@lru_cache(_CACHED_COLUMNS)
def typed_columns(info: SchemaInfo) -> TypedColumns:
    """Return a schema's columns, if it `is_decoded`.

    Raises SchemaMismatch, with the path, if there is no column type.
    """
    if info.type != pb.Schema.KeyValue:
        return _columns(info)
    parts = key_value_parts(info)
    keys = codec_of(parts.key).arrow_schema(parts.key)
    kind = pa.struct(list(keys)) if is_record(parts.key) else keys.field(0).type
    return replace(_columns(parts.value), key=kind)


def _columns(info: SchemaInfo) -> TypedColumns:
    fields = codec_of(info).arrow_schema(info)
    taken: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for name in fields.names:
        if name.lower() in FIXED_NAMES:
            left_out[name] = "every read has a column of that name"
        elif taken.setdefault(name.lower(), name) != name:
            left_out[name] = f"it differs from {taken[name.lower()]!r} only in case"
    known = [each for each in fields if each.name.lower() not in FIXED_NAMES]
    return TypedColumns(pa.schema(known), left_out=left_out)


def key_value_parts(info: SchemaInfo) -> KeyValueParts:
    """Return the two schemas of a KEY_VALUE topic; raises SchemaMismatch if they are damaged."""
    try:
        return split_key_value(info)
    except PulsarError as error:
        raise SchemaMismatch(
            f"the topic's schema cannot be used: {error.what}", "Read with valueFormat=raw."
        ) from None


def value_schema(info: SchemaInfo) -> SchemaInfo:
    """Return the schema of a topic's values: a pair's second one; raises as `key_value_parts`."""
    return key_value_parts(info).value if info.type == pb.Schema.KeyValue else info


@lru_cache(_CACHED_COLUMNS)
def is_record(info: SchemaInfo) -> bool:
    """Whether a schema's values are records, whose fields become columns."""
    return info.type in _PROTOBUF or _avro_record(info) is not None


def record_name(info: SchemaInfo) -> str | None:
    """Return the name, without namespace, of a schema's records."""
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


def identity(info: SchemaInfo) -> object:
    """Return what a schema is besides the names of its types: equal where values read alike."""
    from pulsar_spark.schema.avro import definition

    if info.type == pb.Schema.KeyValue:
        try:
            parts = split_key_value(info)
        except PulsarError:
            return info.type, info.schema_data
        return identity(parts.key), identity(parts.value), parts.separated
    if info.type == pb.Schema.Protobuf:
        from pulsar_spark.schema.protobuf.definition import PARSING_INFO

        # The definition does not have the numbers of fields.
        return info.type, info.schema_data, info.properties.get(PARSING_INFO)
    record = _avro_record(info)
    return info.type, info.schema_data if record is None else definition.without_names(record)


def count_aliases(info: SchemaInfo) -> int:
    """Return how many aliases a schema's records and their types have."""
    from pulsar_spark.schema.avro import definition

    if info.type == pb.Schema.KeyValue:
        try:
            parts = split_key_value(info)
        except PulsarError:
            return 0
        return count_aliases(parts.key) + count_aliases(parts.value)
    record = _avro_record(info)
    return 0 if record is None else definition.count_aliases(record)


def _avro_record(info: SchemaInfo) -> Record | None:
    """Return the record of an AVRO or JSON schema; None for other schemas."""
    if info.type not in (pb.Schema.Avro, pb.Schema.Json):
        return None
    from pulsar_spark.schema.avro import definition

    try:
        node = definition.parse_definition(info.schema_data)
    except SchemaMismatch:
        return None
    return node if isinstance(node, definition.Record) else None


def codec_of(info: SchemaInfo) -> Codec:
    """Return the codec of a schema other than KEY_VALUE; raises SchemaMismatch if there is none."""
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
        from pulsar_spark.schema import declared
        from pulsar_spark.schema.json import codec as json_codec

        return declared if isinstance(info, declared.DeclaredJson) else json_codec
    if kind in _PROTOBUF:
        from pulsar_spark.schema.protobuf import codec as protobuf_codec

        return protobuf_codec
    raise SchemaMismatch(
        f"pulsar_spark cannot decode values of the schema type {info.type_name}",
        "Use valueFormat=raw.",
    )


def decoder_of(
    writer: SchemaInfo, reader: SchemaInfo, fields: Sequence[str], *, as_java: bool = False
) -> Decoder:
    """Return a decoder of `fields` of `reader` for values written with `writer`.

    It can be one that was returned before. With `as_java`, JSON is read as Java's client does, even
    where that loses something. Raises SchemaMismatch if values of one cannot be read as the other.
    """
    key = writer, reader, tuple(fields), as_java
    found = _decoders.get(key)
    if found is None:
        found = _made(writer, reader, fields, as_java)
        _decoders.put(key, found, writer.size)
    return found


_decoders = BoundedCache[tuple[SchemaInfo, SchemaInfo, tuple[str, ...], bool], Decoder](
    _CACHED_DECODERS, _CACHED_DEFINITIONS
)


def _made(writer: SchemaInfo, reader: SchemaInfo, fields: Sequence[str], as_java: bool) -> Decoder:
    check_types(writer, reader)
    codec = codec_of(reader)
    if as_java and reader.type == pb.Schema.Json:
        return codec.decoder(writer, reader, fields, as_java=True)  # type: ignore[call-arg]
    return codec.decoder(writer, reader, fields)


def losses_of(writer: SchemaInfo, reader: SchemaInfo, fields: Sequence[str]) -> Losses:
    """Return what is lost if records of `writer` are read into the columns `fields` of `reader`.

    Raises SchemaMismatch that lists the fields of which no value can be read, or for types of
    schemas that have nothing in common.
    """
    check_types(writer, reader)
    if reader.type in _PROTOBUF:
        from pulsar_spark.schema.protobuf import codec as protobuf_codec

        return protobuf_codec.losses(writer, reader, fields)
    if reader.type == pb.Schema.Json:
        from pulsar_spark.schema.json import codec as json_codec

        return json_codec.losses(writer, reader, fields)
    from pulsar_spark.schema.avro import codec as avro_codec

    return avro_codec.losses(writer, reader, fields)


def check_types(writer: SchemaInfo, reader: SchemaInfo) -> None:
    """Raise SchemaMismatch if the two types' encodings have nothing in common."""
    types = {writer.type, reader.type}
    if len(types) > 1 and not types <= _PRIMITIVE and not types <= _PROTOBUF:
        raise SchemaMismatch(
            f"values were written with a schema of the type {writer.type_name}, the query has "
            f"{reader.type_name}",
            "Read such topics with valueFormat=raw, or drop these values with the option mode.",
        )


# --- schemas for topics without one -------------------------------------------------------


def primitive_for(kind: pa.DataType) -> SchemaInfo | None:
    """Return the schema for one column of a type, None if it needs a record."""
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
    """Return an AVRO or JSON schema for records with these columns.

    Raises SchemaMismatch for types that the format lacks.
    """
    if kind == pb.Schema.Json:
        from pulsar_spark.schema.json import codec as json_codec

        return json_codec.definition(columns, name, namespace or "")
    from pulsar_spark.schema.avro import codec as avro_codec

    return avro_codec.definition(columns, name, namespace or "")
