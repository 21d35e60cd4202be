"""Rows of a DataFrame → payloads, and typed keys, of messages of one topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import NullType, StructField, StructType

from pulsar_spark.errors import InvalidRow, SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import BYTES, SchemaInfo
from pulsar_spark.schema.arrow.arrays import binaries, first_not_text
from pulsar_spark.schema.arrow.byte_column import byte_values
from pulsar_spark.schema.codec import (
    NO_SCHEMA,
    PLAIN,
    Encoder,
    Mismatch,
    codec_of,
    is_record,
    key_value_parts,
    typed_columns,
)
from pulsar_spark.schema.key_value import join_pairs
from pulsar_spark.schema.table.names import KEY
from pulsar_spark.spark.compat import arrow_schema
from pulsar_spark.spark.writing.columns import WriteColumns

Locate = Callable[[int], int]
"""Converts a row's index in a record batch to its number in the task."""


class EncodedRows(NamedTuple):
    """A payload for each row, None for a null value; and keys, if the topic's are typed.

    `null_keys` says which keys are null, if the topic distinguishes null keys from missing ones.
    """

    payloads: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    null_keys: list[bool] | None = None


class RowEncoder:
    """Encodes rows with the columns of a DataFrame, for a topic with the schema `schema`.

    `unwraps`: the value's only column is a struct with the record's fields.
    Raises SchemaMismatch that lists all mismatched columns.
    """

    def __init__(
        self, columns: WriteColumns, schema: SchemaInfo | None, *, unwraps: bool = False
    ) -> None:
        info = schema or NO_SCHEMA
        self.typed_keys = info.type == pb.Schema.KeyValue
        self._separated = False
        self._key: _Part | None = None
        self._key_position = columns.position(KEY)
        mismatches: list[SchemaMismatch] = []
        if self.typed_keys:
            parts = key_value_parts(info)
            info, self._separated = parts.value, parts.separated
            if columns.key is not None and not isinstance(columns.key.dataType, NullType):
                with _collected(mismatches, f"{KEY}: "):
                    self._key = _key_part(columns.key, parts.key)
        self._positions = columns.values
        with _collected(mismatches):
            self._value = _Part(columns.fields, info, unwraps=unwraps)
        if mismatches:
            remedies = dict.fromkeys(mismatch.remedy for mismatch in mismatches)
            raise SchemaMismatch(
                "; ".join(mismatch.what for mismatch in mismatches), " ".join(remedies)
            )

    def encode(self, batch: pa.RecordBatch, locate: Locate) -> EncodedRows:
        """Encode rows; raises InvalidRow that names the task's row and the field."""
        columns = [batch.column(position) for position in self._positions]
        payloads = self._value.encode(columns, locate)
        if not self.typed_keys:
            return EncodedRows(payloads)
        keys: Sequence[bytes | None] = [None] * len(payloads)
        if self._key is not None and self._key_position is not None:
            keys = self._key.encode([batch.column(self._key_position)], locate)
        if self._separated:
            null_keys = [key is None for key in keys]
            return EncodedRows(payloads, keys, null_keys if any(null_keys) else None)
        return EncodedRows(byte_values(join_pairs(binaries(keys), binaries(payloads))))


class _Part:
    """Encodes columns as values of one schema. A row in which all of them are null is null."""

    def __init__(
        self, fields: StructType, info: SchemaInfo, *, unwraps: bool, place: str = ""
    ) -> None:
        self._place = place
        self._plain = info.type in PLAIN
        self._is_bytes = info.type == BYTES
        self._unwraps = unwraps
        self._names = fields.names
        if unwraps:
            (field,) = fields.fields
            assert isinstance(field.dataType, StructType)
            fields = field.dataType
        self._schema = _fitted(arrow_schema(fields), info)
        self._encoder: Encoder = codec_of(info).encoder(info, self._schema)

    def encode(self, columns: Sequence[pa.Array], locate: Locate) -> Sequence[bytes | None]:
        if not self._is_bytes:
            self._check_texts(columns, locate)
        if self._plain:
            # Arrow's various string types need no conversion here.
            return byte_values(as_binary(columns[0]))
        present = _present_rows(columns)
        if present is None:
            return self._encode(columns, locate)
        rows: list[int] = pc.indices_nonzero(present).to_pylist()
        found: list[bytes | None] = [None] * len(present)
        packed = [column.filter(present) for column in columns]
        for row, payload in zip(
            rows, self._encode(packed, lambda index: locate(rows[index])), strict=True
        ):
            found[row] = payload
        return found

    def _check_texts(self, columns: Sequence[pa.Array], locate: Locate) -> None:
        for name, column in zip(self._names, columns, strict=True):
            if (row := first_not_text(column)) is not None:
                raise InvalidRow(
                    f"row {locate(row)} cannot be written: {self._place}the field {name}: it "
                    "has text that is not UTF-8, which no reader takes",
                    "Repair it with make_valid_utf8(…), encode it with base64(…), or write binary.",
                )

    def _encode(self, columns: Sequence[pa.Array], locate: Locate) -> Sequence[bytes | None]:
        count = len(columns[0])
        if self._unwraps:
            columns = columns[0].flatten()
        arrays = [
            column if column.type == kind else column.cast(kind)
            for column, kind in zip(columns, self._schema.types, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if not arrays:
            # Only a struct keeps the number of records without fields.
            records = pa.Array.from_buffers(pa.struct([]), count, [None])
            batch = pa.RecordBatch.from_struct_array(records)
        try:
            return byte_values(self._encoder.encode(batch))
        except Mismatch as mismatch:
            raise InvalidRow(
                f"row {locate(mismatch.row)} cannot be written: {self._place}the field "
                f"{mismatch.field}: {mismatch.reason}",
                mismatch.remedy,
            ) from None


def _fitted(columns: pa.Schema, info: SchemaInfo) -> pa.Schema:
    """Return columns with the names of a record's fields, and with their types in place of void.

    As in Spark, case does not matter.
    """
    fields = typed_columns(info).fields
    if not is_record(info):
        return pa.schema([_without_void(column, fields[0]) for column in columns])
    # Of fields that differ only in case, the first is the column, as when reading.
    known = {f.name.lower(): f for f in reversed(list(fields))} | {f.name: f for f in fields}

    def fitted(column: pa.Field) -> pa.Field:
        field = known.get(column.name) or known.get(column.name.lower())
        return column if field is None else _without_void(column.with_name(field.name), field)

    return pa.schema([fitted(column) for column in columns])


def _without_void(column: pa.Field, known: pa.Field) -> pa.Field:
    """Return a column with the types of a topic's field `known` in place of void."""
    return column.with_type(_type_without_void(column.type, known.type))


def _type_without_void(kind: pa.DataType, known: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind):
        return known
    if pa.types.is_struct(kind) and pa.types.is_struct(known):
        fields = {field.name: field for field in known}
        return pa.struct([_without_void(f, fields.get(f.name, f)) for f in kind])
    if pa.types.is_list(kind) and pa.types.is_list(known):
        return pa.list_(_without_void(kind.value_field, known.value_field))
    if pa.types.is_map(kind) and pa.types.is_map(known):
        return pa.map_(kind.key_field, _without_void(kind.item_field, known.item_field))
    return kind


@contextmanager
def _collected(mismatches: list[SchemaMismatch], place: str = "") -> Iterator[None]:
    """Append an error to `mismatches`, prefixed with the column's `place`."""
    try:
        yield
    except SchemaMismatch as error:
        mismatches.append(SchemaMismatch(place + error.what, error.remedy))


def _key_part(field: StructField, info: SchemaInfo) -> _Part:
    unwraps = is_record(info)
    if unwraps and not isinstance(field.dataType, StructType):
        raise SchemaMismatch(
            f"the topic's keys are {info.type_name} records with the fields "
            f"{', '.join(typed_columns(info).fields.names)}, but the column is "
            f"{field.dataType.simpleString()}",
            "Make it a struct of them.",
        )
    return _Part(StructType([field]), info, unwraps=unwraps, place=f"{KEY}: ")


def _present_rows(columns: Sequence[pa.Array]) -> pa.BooleanArray | None:
    """Return which rows have no null in any column, None if all."""
    if any(column.null_count == 0 for column in columns):
        return None
    present = columns[0].is_valid()
    for column in columns[1:]:
        present = pc.or_(present, column.is_valid())
    return present if present.false_count else None


def as_binary(column: pa.Array) -> pa.Array:
    """Return strings as their bytes, binary as it is."""
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    return column.cast(pa.large_binary() if large else pa.binary())
