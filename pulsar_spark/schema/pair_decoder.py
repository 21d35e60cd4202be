"""Messages of KEY_VALUE topics → the columns of their values, and __key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.arrow.arrays import booleans
from pulsar_spark.schema.codec import Decoded, Decoder, Undecodable
from pulsar_spark.schema.codecs import codec_of, is_record, key_value_parts
from pulsar_spark.schema.key_value import split_pairs
from pulsar_spark.schema.table.names import KEY


class PairDecoder:
    """Decodes messages written with `writer` to the columns `names` of `reader`.

    `separated` says that keys are with the messages, not in the payloads. Raises SchemaMismatch
    where one cannot be read as the other.
    """

    def __init__(self, writer: SchemaInfo, reader: SchemaInfo, names: Sequence[str]) -> None:
        if writer.type != pb.Schema.KeyValue:
            raise SchemaMismatch(
                f"values were written with a schema of the type {writer.type_name}, the query has "
                "KEY_VALUE",
                "Read such topics with valueFormat=raw.",
            )
        written, wanted = key_value_parts(writer), key_value_parts(reader)
        self.separated = written.separated
        self._names = tuple(names)
        self._fields = [name for name in names if name != KEY]
        self._value = (
            codec_of(wanted.value).decoder(written.value, wanted.value, self._fields)
            if self._fields
            else None
        )
        self._key = _KeyDecoder(written.key, wanted.key) if KEY in names else None

    def decode(self, raw: pa.Array, keys: pa.Array | None) -> Decoded:
        """Decode payloads; `keys` are those of the messages, needed if they are separated."""
        bad: list[Undecodable] = []
        if not self.separated:
            keys, raw, bad = split_pairs(raw)
        columns: dict[str, pa.Array] = {}
        if self._value is not None:
            decoded = self._value.decode(raw)
            columns.update(zip(self._fields, decoded.columns, strict=True))
            bad += decoded.bad
        if self._key is not None:
            decoded = self._key.decode(keys)
            columns[KEY] = decoded.columns[0]
            bad += decoded.bad
        return Decoded([columns[name] for name in self._names], _one_each(bad))


class _KeyDecoder:
    """Decodes keys to one column: of a struct if they are records."""

    def __init__(self, writer: SchemaInfo, reader: SchemaInfo) -> None:
        codec = codec_of(reader)
        self._schema = codec.arrow_schema(reader)
        self._is_record = is_record(reader)
        self._decoder: Decoder = codec.decoder(writer, reader, self._schema.names)

    def decode(self, raw: pa.Array) -> Decoded:
        decoded = self._decoder.decode(raw)
        bad = [
            replace(found, field=f"{KEY}.{found.field}" if found.field else KEY)
            for found in decoded.bad
        ]
        if not self._is_record:
            return Decoded(decoded.columns, bad)
        rows = {found.row for found in bad}
        absent = raw.is_null().to_pylist()
        mask = booleans([absent[row] or row in rows for row in range(len(raw))])
        struct = pa.StructArray.from_arrays(
            list(decoded.columns), fields=list(self._schema), mask=mask
        )
        return Decoded([struct], bad)


def _one_each(bad: Iterable[Undecodable]) -> list[Undecodable]:
    """Return the first of each row, ordered by row."""
    first: dict[int, Undecodable] = {}
    for found in bad:
        first.setdefault(found.row, found)
    return [first[row] for row in sorted(first)]
