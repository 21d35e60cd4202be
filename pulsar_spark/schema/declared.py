"""JSON values without a schema on their topic, as columns that the reader declares.

The codec of JSON topics reads them, by a definition that is made of the columns. It has one type
for all small integers, which are narrowed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.arrow.arrays import integers, without
from pulsar_spark.schema.avro.types import json_definition
from pulsar_spark.schema.codec import Decoded, Decoder, Encoder, Undecodable
from pulsar_spark.schema.json import codec as json_codec


@dataclass(frozen=True, slots=True)
class DeclaredJson(SchemaInfo):
    """The schema of JSON objects that become exactly these columns; no broker has it."""

    columns: pa.Schema = field(default_factory=lambda: pa.schema([]), hash=False)


def declared_json(columns: pa.Schema) -> DeclaredJson:
    """Return the schema of JSON objects with these columns, whose parts are all nullable.

    Raises SchemaMismatch that lists the columns whose type JSON lacks.
    """
    return DeclaredJson(pb.Schema.Json, "", json_definition(columns), columns=columns)


def arrow_schema(info: SchemaInfo) -> pa.Schema:
    """Return the declared columns; raises SchemaMismatch as the codec of JSON."""
    json_codec.arrow_schema(info)
    assert isinstance(info, DeclaredJson)
    return info.columns


def decoder(
    writer: SchemaInfo, reader: SchemaInfo, fields: Sequence[str], *, as_java: bool = False
) -> Decoder:
    """Return a decoder of `fields` for values written with `writer`, or with no schema."""
    assert isinstance(reader, DeclaredJson)
    inner = json_codec.decoder(writer, reader, fields, as_java=as_java, are_declared=True)
    read = json_codec.arrow_schema(reader)
    wanted = [reader.columns.field(name) for name in fields]
    if all(column.type == read.field(column.name).type for column in wanted):
        return inner
    return _Narrowing(inner, wanted)


def encoder(info: SchemaInfo, columns: pa.Schema) -> Encoder:
    """Return an encoder, as the codec of JSON."""
    return json_codec.encoder(info, columns)


class _Narrowing:
    """Makes the declared types of decoded columns, where the numbers fit them."""

    def __init__(self, inner: Decoder, fields: Sequence[pa.Field]) -> None:
        self._inner = inner
        self._fields = fields

    def decode(self, raw: pa.Array) -> Decoded:
        """Decode a binary array; a row with a number out of the range of its type is bad."""
        found = self._inner.decode(raw)
        try:
            return Decoded(self._narrowed(found.columns), found.bad)
        except pa.ArrowInvalid:
            pass
        bad = {each.row: each for each in found.bad}
        for column, to in zip(found.columns, self._fields, strict=True):
            for row in range(len(raw)):
                try:
                    column.take(integers([row], pa.int64())).cast(to.type)
                except pa.ArrowInvalid:
                    reason = "it has a number out of the range of its type"
                    bad.setdefault(row, Undecodable(row, to.name, reason))
        columns = [without(column, bad) for column in found.columns]
        return Decoded(self._narrowed(columns), [bad[row] for row in sorted(bad)])

    def _narrowed(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        return [column.cast(to.type) for column, to in zip(columns, self._fields, strict=True)]
