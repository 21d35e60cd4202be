"""Values that are bytes or UTF-8 text, without work per value.

Pulsar's types BYTES (or no schema) and STRING.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol.schema_info import BYTES, SchemaInfo
from pulsar_spark.schema.arrow.arrays import strings
from pulsar_spark.schema.codec import Decoded, Decoder, Encoder, Undecodable
from pulsar_spark.schema.table.names import VALUE

_BINARY = pa.schema([(VALUE, pa.binary())])
_TEXT = pa.schema([(VALUE, pa.string())])


def arrow_schema(info: SchemaInfo) -> pa.Schema:
    """Return the one column ``value``, binary or string."""
    return _BINARY if info.type == BYTES else _TEXT


def decoder(writer: SchemaInfo, reader: SchemaInfo, fields: Sequence[str]) -> Decoder:
    """Return a decoder of bytes or text; both schemas have that type."""
    if reader.type == BYTES:
        return _BytesDecoder(len(fields))
    return _TextDecoder(len(fields))


def encoder(info: SchemaInfo, columns: pa.Schema) -> Encoder:
    """Return an encoder of the one column; raises SchemaMismatch for other types or columns."""
    wanted = "binary" if info.type == BYTES else "string"
    if len(columns) != 1:
        raise SchemaMismatch(
            f"the topic's schema is {info.type_name}, a single value, but the DataFrame has the "
            f"columns {', '.join(columns.names)}",
            f"Write a single column, {wanted}.",
        )
    if columns.field(0).type != (pa.binary() if info.type == BYTES else pa.string()):
        raise SchemaMismatch(
            f"the topic's schema is {info.type_name}, but the column {columns.names[0]} is "
            f"{columns.field(0).type}",
            f"Cast it to {wanted}.",
        )
    return _PlainEncoder()


class _BytesDecoder:
    def __init__(self, count: int) -> None:
        self._count = count

    def decode(self, raw: pa.Array) -> Decoded:
        return Decoded([raw] * self._count)


class _TextDecoder:
    def __init__(self, count: int) -> None:
        self._count = count

    def decode(self, raw: pa.Array) -> Decoded:
        try:
            return Decoded([raw.cast(pa.string())] * self._count)
        except pa.ArrowInvalid:
            pass
        texts: list[str | None] = []
        bad: list[Undecodable] = []
        for row, value in enumerate(raw.to_pylist()):
            try:
                texts.append(None if value is None else value.decode())
            except UnicodeDecodeError:
                texts.append(None)
                bad.append(Undecodable(row, "", "it is not UTF-8"))
        return Decoded([strings(texts)] * self._count, bad)


class _PlainEncoder:
    def encode(self, columns: pa.RecordBatch) -> pa.Array:
        return columns.column(0).cast(pa.binary())
