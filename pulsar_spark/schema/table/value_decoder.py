"""The messages of a record batch → the columns of their values, and of typed keys.

A batch of messages that a producer sends has one version of the topic's schema, so runs of equal
version are decoded together, each by a decoder from that version to the query's schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from pulsar_spark.errors import PulsarError, SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.arrow.arrays import integers
from pulsar_spark.schema.codec import Decoded, Decoder, Undecodable, decoder_of, shape
from pulsar_spark.schema.key_value import PairDecoder
from pulsar_spark.schema.registry import version_number
from pulsar_spark.schema.table.messages import Messages
from pulsar_spark.schema.table.names import KEY

Writers = Callable[[bytes], SchemaInfo]
"""Gives the topic's schema of a version."""

_MAX_DECODERS = 100


@dataclass(frozen=True, slots=True)
class DecodedValues:
    """The payloads, the columns made of them by name, and what did not decode, ordered by row.

    `bad_version` is the schema version of the first value that did not, if it has one;
    `unreadable` tells why no value of that version can be read as the query's, where that is so.
    """

    raw: pa.Array
    columns: Mapping[str, pa.Array]
    bad: Sequence[Undecodable] = ()
    bad_version: bytes = b""
    unreadable: SchemaMismatch | None = None


class ValueDecoder:
    """Decodes the values of one topic to the columns `names` of the query's schema `reader`.

    Among the names is __key where the topic's keys are typed. `writers` is asked for the schema
    of a version when that is met first; messages without a version are taken to be of the query's.
    """

    def __init__(self, reader: SchemaInfo, names: Sequence[str], writers: Writers) -> None:
        self._reader = reader
        self.names = tuple(names)
        self._writers = writers
        self._decoders: dict[bytes, Decoder | PairDecoder | _Unreadable] = {}

    def decode(self, messages: Messages) -> DecodedValues:
        """Decode all values of a record batch; raises what `writers` raises.

        No value decodes that was written with a version of another type than the query's, or
        with one that cannot be resolved to the query's schema.
        """
        raw, versions = messages.values(), messages.versions
        decoders = [self._decoder(version, messages.topic) for _, version in versions]
        separated = any(isinstance(each, PairDecoder) and each.separated for each in decoders)
        keys = messages.keys() if separated else None
        stops = [first for first, _ in versions[1:]] + [messages.count]
        return _joined(
            [
                self._decode(version, decoder, _part(raw, first, stop), _part(keys, first, stop))
                for (first, version), decoder, stop in zip(versions, decoders, stops, strict=True)
            ]
        )

    def _decode(
        self,
        version: bytes,
        decoder: Decoder | PairDecoder | _Unreadable,
        raw: pa.Array,
        keys: pa.Array | None,
    ) -> DecodedValues:
        if isinstance(decoder, PairDecoder):
            decoded = decoder.decode(raw, keys)
        else:
            decoded = decoder.decode(raw)
        columns = dict(zip(self.names, decoded.columns, strict=True))
        unreadable = decoder.error if isinstance(decoder, _Unreadable) else None
        return DecodedValues(raw, columns, decoded.bad, version, unreadable)

    def _decoder(self, version: bytes, topic: str) -> Decoder | PairDecoder | _Unreadable:
        found = self._decoders.get(version)
        if found is None:
            writer = self._writers(version) if version else self._reader
            try:
                found = self._decoder_from(writer)
            except SchemaMismatch as error:
                told = error.with_context(topic=topic)
                found = _Unreadable(told, version, self._reader, self.names)
            if len(self._decoders) >= _MAX_DECODERS:
                del self._decoders[next(iter(self._decoders))]
            self._decoders[version] = found
        return found

    def _decoder_from(self, writer: SchemaInfo) -> Decoder | PairDecoder:
        if self._reader.type == pb.Schema.KeyValue:
            return PairDecoder(writer, self._reader, self.names)
        return decoder_of(writer, self._reader, self.names)


class _Unreadable:
    """Stands for the decoder of a version whose values cannot be read as the query's."""

    def __init__(
        self, error: PulsarError, version: bytes, reader: SchemaInfo, names: Sequence[str]
    ) -> None:
        what = f"version {version_number(version)} of the topic's schema: " if version else ""
        self.error = SchemaMismatch(what + error.what, error.remedy, topic=error.topic)
        found = shape(reader)
        self._types = [
            found.key if name == KEY and found.key else found.fields.field(name).type
            for name in names
        ]
        self._has_keys = found.key is not None and KEY in names

    def decode(self, raw: pa.Array) -> Decoded:
        """Return columns of nulls; all that is not null itself is bad, and none of it looked at."""
        # Where the value is null, there is still a key.
        there = raw.is_valid().to_pylist()
        bad = [row for row in range(len(raw)) if there[row] or self._has_keys]
        columns = [pa.nulls(len(raw), kind) for kind in self._types]
        return Decoded(columns, [Undecodable(row, "", self.error.what) for row in bad])


def _part(array: pa.Array | None, first: int, stop: int) -> pa.Array | None:
    """Return some elements, in buffers of their own, as codecs expect them."""
    if array is None or (first == 0 and stop == len(array)):
        return array
    return array.take(integers(range(first, stop), pa.int32()))


def _joined(pieces: Sequence[DecodedValues]) -> DecodedValues:
    if len(pieces) == 1:
        return pieces[0]
    columns = {
        name: pa.concat_arrays([piece.columns[name] for piece in pieces])
        for name in pieces[0].columns
    }
    bad: list[Undecodable] = []
    first_row = 0
    for piece in pieces:
        bad += [replace(found, row=first_row + found.row) for found in piece.bad]
        first_row += len(piece.raw)
    raw = pa.concat_arrays([piece.raw for piece in pieces])
    first_bad = next((piece for piece in pieces if piece.bad), pieces[0])
    return DecodedValues(raw, columns, bad, first_bad.bad_version, first_bad.unreadable)
