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


def arrow_schema(info: SchemaInfo) -> pa.Schema:
    """Return the one column ``value``, binary or string."""
    return pa.schema([(VALUE, _type(info))])


def _type(info: SchemaInfo) -> pa.DataType:
    return pa.binary() if info.type == BYTES else pa.string()


def decoder(writer: SchemaInfo, reader: SchemaInfo, fields: Sequence[str]) -> Decoder:
    """Return a decoder of bytes or text; both schemas have that type."""
    return _PlainDecoder(_type(reader), len(fields))


def encoder(info: SchemaInfo, columns: pa.Schema) -> Encoder:
    """Return an encoder of the one column; raises SchemaMismatch for other types or columns."""
    wanted = _type(info)
    if len(columns) != 1:
        raise SchemaMismatch(
            f"the topic's schema is {info.type_name}, a single value, but the DataFrame has the "
            f"columns {', '.join(columns.names)}",
            f"Write a single column, {wanted}.",
        )
    if columns.field(0).type != wanted:
        raise SchemaMismatch(
            f"the topic's schema is {info.type_name}, but the column {columns.names[0]} is "
            f"{columns.field(0).type}",
            f"Cast it to {wanted}.",
        )
    return _PlainEncoder()


class _PlainDecoder:
    def __init__(self, kind: pa.DataType, count: int) -> None:
        self._kind = kind
        self._count = count

    def decode(self, raw: pa.Array) -> Decoded:
        try:
            return Decoded([raw.cast(self._kind)] * self._count)
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
