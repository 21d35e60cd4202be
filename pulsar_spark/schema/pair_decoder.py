"""Messages of KEY_VALUE topics → the columns of their values, and __key.

With the encoding SEPARATED the key is the message's own and the payload is the value. With INLINE
both are in the payload; a size of -1 stands for null:

    i32 size, key, i32 size, value      (big endian)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from struct import Struct

import pyarrow as pa

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.arrow_arrays import binaries, booleans
from pulsar_spark.schema.codec import Decoded, Decoder, Undecodable
from pulsar_spark.schema.codecs import codec_of, is_record, key_value_parts
from pulsar_spark.schema.column_names import KEY

_SIZE = Struct(">i")


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


def split_pairs(raw: pa.Array) -> tuple[pa.Array, pa.Array, list[Undecodable]]:
    """Return the keys and the values of payloads that hold both, and what is no such payload."""
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    bad: list[Undecodable] = []
    for row, payload in enumerate(raw.to_pylist()):
        key = value = None
        if payload is not None:
            try:
                key, end = _take(payload, 0, "key")
                value, end = _take(payload, end, "value")
                if end != len(payload):
                    raise _NoPair(f"{len(payload) - end} bytes follow the value")
            except _NoPair as error:
                key = value = None
                bad.append(Undecodable(row, "", str(error)))
        keys.append(key)
        values.append(value)
    return binaries(keys), binaries(values), bad


class _NoPair(ValueError):
    """A payload is not a key and a value."""


def _take(payload: bytes, start: int, what: str) -> tuple[bytes | None, int]:
    begin = start + _SIZE.size
    if begin > len(payload):
        raise _NoPair(f"it ends before the {what}")
    (size,) = _SIZE.unpack_from(payload, start)
    if size == -1:
        return None, begin
    if not 0 <= size <= len(payload) - begin:
        raise _NoPair(f"its {what} has {size} bytes, but {len(payload) - begin} follow")
    return payload[begin : begin + size], begin + size


def _one_each(bad: Iterable[Undecodable]) -> list[Undecodable]:
    """Return the first of each row, ordered by row."""
    first: dict[int, Undecodable] = {}
    for found in bad:
        first.setdefault(found.row, found)
    return [first[row] for row in sorted(first)]
