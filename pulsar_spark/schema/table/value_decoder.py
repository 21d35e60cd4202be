"""The messages of a record batch → the columns of their values, and of typed keys.

A batch of messages that a producer sends has one version of the topic's schema, so runs of equal
version are decoded together, each by a decoder from that version to the query's schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.arrow.arrays import integers
from pulsar_spark.schema.codec import Decoder, Undecodable, codec_of
from pulsar_spark.schema.key_value import PairDecoder
from pulsar_spark.schema.table.messages import Messages

Writers = Callable[[bytes], SchemaInfo]
"""Gives the topic's schema of a version."""

_MAX_DECODERS = 100


@dataclass(frozen=True, slots=True)
class DecodedValues:
    """The payloads, the columns made of them by name, and what did not decode, ordered by row.

    `bad_version` is the schema version of the first value that did not, if it has one.
    """

    raw: pa.Array
    columns: Mapping[str, pa.Array]
    bad: Sequence[Undecodable] = ()
    bad_version: bytes = b""


class ValueDecoder:
    """Decodes the values of one topic to the columns `names` of the query's schema `reader`.

    Among the names is __key where the topic's keys are typed. `writers` is asked for the schema
    of a version when that is met first; messages without a version are taken to be of the query's.
    """

    def __init__(self, reader: SchemaInfo, names: Sequence[str], writers: Writers) -> None:
        self._reader = reader
        self.names = tuple(names)
        self._writers = writers
        self._decoders: dict[bytes, Decoder | PairDecoder] = {}

    def decode(self, messages: Messages) -> DecodedValues:
        """Decode all values of a record batch.

        Raises SchemaMismatch for a version that cannot be resolved to the query's schema, and
        what `writers` raises.
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
        self, version: bytes, decoder: Decoder | PairDecoder, raw: pa.Array, keys: pa.Array | None
    ) -> DecodedValues:
        if isinstance(decoder, PairDecoder):
            decoded = decoder.decode(raw, keys)
        else:
            decoded = decoder.decode(raw)
        columns = dict(zip(self.names, decoded.columns, strict=True))
        return DecodedValues(raw, columns, decoded.bad, version)

    def _decoder(self, version: bytes, topic: str) -> Decoder | PairDecoder:
        found = self._decoders.get(version)
        if found is None:
            writer = self._writers(version) if version else self._reader
            try:
                if self._reader.type == pb.Schema.KeyValue:
                    found = PairDecoder(writer, self._reader, self.names)
                else:
                    found = codec_of(self._reader).decoder(writer, self._reader, self.names)
            except SchemaMismatch as error:
                raise error.with_context(topic=topic) from None
            if len(self._decoders) >= _MAX_DECODERS:
                del self._decoders[next(iter(self._decoders))]
            self._decoders[version] = found
        return found


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
    return DecodedValues(raw, columns, bad, next((p.bad_version for p in pieces if p.bad), b""))
