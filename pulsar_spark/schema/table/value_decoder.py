"""The messages of a record batch → the columns of their values, and of typed keys.

All messages of a record batch with the same schema version are decoded together, wherever they are,
by a decoder from that version to the query's schema; where the format allows it, those of all
versions by one decoder. Each call of a decoder has a fixed cost, which topics with alternating
versions would otherwise pay per message.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import Columns, VersionRuns
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.arrow.arrays import from_words, repeated_by_run
from pulsar_spark.schema.codec import (
    Decoder,
    Joinable,
    JointDecoder,
    Undecodable,
    Unreadable,
    decoder_of,
    typed_columns,
)
from pulsar_spark.schema.key_value import PairDecoder
from pulsar_spark.schema.registry import version_number
from pulsar_spark.schema.table.column_arrays import array_of
from pulsar_spark.schema.table.names import KEY

Writers = Callable[[bytes], SchemaInfo]
"""Returns a version's schema."""

_MAX_DECODERS = 100
# A topic's record batches hold few different combinations of versions.
_MAX_JOINT = 16


@dataclass(frozen=True, slots=True)
class DecodedValues:
    """The payloads, their columns by name, and the values that could not be decoded, by row.

    `bad_version` is the schema version of the first of these, if it has one; `unreadable` says why
    no value of that version can be read with the query's schema, if that is so.
    """

    raw: pa.Array
    columns: Mapping[str, pa.Array]
    bad: Sequence[Undecodable] = ()
    bad_version: bytes = b""
    unreadable: SchemaMismatch | None = None


class ValueDecoder:
    """Decodes a topic's values to the columns `names` of the query's schema `reader`.

    `names` has __key if the topic's keys are typed. `writers` returns the schema of a version when
    it is first needed; messages without a version are read with the query's. `as_java` is
    about JSON (`codec.decoder_of`).
    """

    def __init__(
        self, reader: SchemaInfo, names: Sequence[str], writers: Writers, *, as_java: bool = False
    ) -> None:
        self._reader = reader
        self.names = tuple(names)
        found = typed_columns(reader)
        self._has_keys = found.key is not None and KEY in names
        self.types: Sequence[pa.DataType] = [
            found.key if name == KEY and found.key is not None else found.fields.field(name).type
            for name in names
        ]
        """The columns' types, in the order of `names`."""
        self._writers = writers
        self._as_java = as_java
        self._decoders: dict[bytes, Decoder | PairDecoder | Unreadable] = {}
        self._joint: dict[tuple[bytes, ...], JointDecoder | None] = {}

    def decode(self, columns: Columns, topic: str) -> DecodedValues:
        """Decode a record batch's values; raises as `writers`, except SchemaMismatch.

        A value cannot be decoded if its schema version was deleted, has another type than the
        query's, or cannot be resolved to the query's schema.
        """
        groups = _Groups(columns.version_runs, columns.rows)
        decoders = [self._decoder(version, topic) for version in groups.versions]
        separated = any(isinstance(each, PairDecoder) and each.separated for each in decoders)
        raw = array_of(columns, "value", pa.binary())
        keys = array_of(columns, "key", pa.binary()) if separated and self._has_keys else None
        if len(decoders) == 1:
            return self._decode(groups.versions[0], decoders[0], raw, keys)
        joint = self._together(groups.versions, decoders)
        if joint is not None:
            decoded = joint.decode(raw, groups.numbers)
            bad_version = groups.version_of(decoded.bad[0].row) if decoded.bad else b""
            found = dict(zip(self.names, decoded.columns, strict=True))
            return DecodedValues(raw, found, decoded.bad, bad_version)
        groups.split()
        pieces = []
        for version, decoder, rows in zip(groups.versions, decoders, groups.rows, strict=True):
            own_keys = None if keys is None else keys.take(rows)
            pieces.append(self._decode(version, decoder, raw.take(rows), own_keys))
        return groups.joined(raw, pieces)

    def _together(
        self, versions: Sequence[bytes], decoders: Sequence[Decoder | PairDecoder | Unreadable]
    ) -> JointDecoder | None:
        """Return a decoder for values of all these versions, None if the format has none."""
        key = tuple(versions)
        if key not in self._joint:
            if len(self._joint) >= _MAX_JOINT:
                self._joint.clear()
            joinable = [each for each in decoders if isinstance(each, Joinable)]
            all_are = len(joinable) == len(decoders)
            self._joint[key] = joinable[0].together(joinable) if all_are else None
        return self._joint[key]

    def _decode(
        self,
        version: bytes,
        decoder: Decoder | PairDecoder | Unreadable,
        raw: pa.Array,
        keys: pa.Array | None,
    ) -> DecodedValues:
        if isinstance(decoder, PairDecoder):
            decoded = decoder.decode(raw, keys)
        else:
            decoded = decoder.decode(raw)
        columns = dict(zip(self.names, decoded.columns, strict=True))
        unreadable = decoder.error if isinstance(decoder, PairDecoder | Unreadable) else None
        if unreadable and decoded.bad and decoded.bad[0].reason != unreadable.what:
            # The first one is damaged, as well.
            unreadable = None
        return DecodedValues(raw, columns, decoded.bad, version, unreadable)

    def _decoder(self, version: bytes, topic: str) -> Decoder | PairDecoder | Unreadable:
        found = self._decoders.get(version)
        if found is None:
            found = self._decoder_from(version, topic)
            if len(self._decoders) >= _MAX_DECODERS:
                del self._decoders[next(iter(self._decoders))]
            self._decoders[version] = found
        return found

    def _decoder_from(self, version: bytes, topic: str) -> Decoder | PairDecoder | Unreadable:
        where = ""

        def told(error: SchemaMismatch) -> SchemaMismatch:
            return SchemaMismatch(where + error.what, error.remedy, topic=error.topic or topic)

        try:
            writer = self._writers(version) if version else self._reader
            where = f"version {version_number(version)} of the topic's schema: " if version else ""
            if self._reader.type == pb.Schema.KeyValue:
                return PairDecoder(writer, self._reader, self.names, told, as_java=self._as_java)
            return decoder_of(writer, self._reader, self.names, as_java=self._as_java)
        except SchemaMismatch as error:
            # A null value may still have a key.
            return Unreadable(told(error), self.types, are_nulls_too=self._has_keys)


class _Groups:
    """The rows of a record batch by schema version.

    `versions` are in the order of their first row, `numbers` are each row's index there. After
    `split`, `rows` are those of each version, ascending.
    """

    def __init__(self, runs: VersionRuns, count: int) -> None:
        self.versions, starts, numbers = runs
        self.rows: list[pa.Array] = []
        self._order: pa.Array | None = None
        if len(self.versions) < 2:
            return
        stops = array("i", starts)
        stops.append(count)
        by_run = from_words(array("i", numbers), pa.int32())
        self._runs = len(by_run)
        self.numbers = by_run if len(by_run) == count else repeated_by_run(by_run, stops[1:])

    def version_of(self, row: int) -> bytes:
        """Return a row's version."""
        index: int = self.numbers[row].as_py()
        return self.versions[index]

    def split(self) -> None:
        """Group the rows of two or more versions."""
        rows = pc.array_sort_indices(self.numbers)
        start = 0
        for size in pc.value_counts(self.numbers).field(1).to_pylist():
            self.rows.append(rows.slice(start, size))
            start += size
        if self._runs > len(self.versions):
            self._order = pc.array_sort_indices(rows)

    def joined(self, raw: pa.Array, pieces: Sequence[DecodedValues]) -> DecodedValues:
        """Join what was decoded for each group in the record batch's order."""
        columns = {
            name: self._in_order(pa.concat_arrays([piece.columns[name] for piece in pieces]))
            for name in pieces[0].columns
        }
        found = [
            (rows[bad.row].as_py(), bad, piece)
            for rows, piece in zip(self.rows, pieces, strict=True)
            for bad in piece.bad
        ]
        found.sort(key=lambda item: item[0])
        bad = [replace(bad, row=row) for row, bad, _ in found]
        first = found[0][2] if found else DecodedValues(raw, columns)
        return DecodedValues(raw, columns, bad, first.bad_version, first.unreadable)

    def _in_order(self, grouped: pa.Array) -> pa.Array:
        if self._order is None:
            return grouped
        # A permutation, so that no index needs to be checked.
        return pc.take(grouped, self._order, boundscheck=False)
