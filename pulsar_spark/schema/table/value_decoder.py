"""The messages of a record batch → the columns of their values, and of typed keys.

All messages of a record batch with the same schema version are decoded together, wherever they are,
by a decoder from that version to the query's schema; where the format allows it, those of all
versions by one decoder. Each call of a decoder has a fixed cost, which topics with alternating
versions would otherwise pay per message.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import Columns, VersionRuns
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.arrow.arrays import from_words, integers, repeated_by_run
from pulsar_spark.schema.bounded_cache import BoundedCache
from pulsar_spark.schema.codec import (
    Decoder,
    Undecodable,
    Unreadable,
    decoder_of,
    is_record,
    key_value_parts,
    losses_of,
    typed_columns,
)
from pulsar_spark.schema.column_decoder import MAX_VERSIONS, ColumnDecoder
from pulsar_spark.schema.key_value import PairDecoder
from pulsar_spark.schema.registry import version_number
from pulsar_spark.schema.table.column_arrays import array_of
from pulsar_spark.schema.table.names import KEY

logger = get_logger(__name__)

Writers = Callable[[bytes], SchemaInfo]
"""Returns a version's schema."""
Expect = Callable[[Sequence[bytes]], None]
"""Gets versions' schemas at once, before they are asked for one by one."""

# All versions of most topics; their definitions are limited, too.
_MAX_DECODERS = 1000
_MAX_DEFINITIONS = 4 * 1024 * 1024

_AnyDecoder = Decoder | PairDecoder | Unreadable


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
    it is first needed, and is told with `expect` which ones will be; messages without a version are
    read with the query's. `as_java` is about JSON (`codec.decoder_of`).
    """

    def __init__(
        self,
        reader: SchemaInfo,
        names: Sequence[str],
        writers: Writers,
        *,
        expect: Expect | None = None,
        as_java: bool = False,
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
        self._expect = expect
        self._as_java = as_java
        self._decoders = BoundedCache[bytes, _AnyDecoder](_MAX_DECODERS, _MAX_DEFINITIONS)
        self._joint = _Joint()

    def decode(self, columns: Columns, topic: str) -> DecodedValues:
        """Decode a record batch's values; raises as `writers`, except SchemaMismatch.

        A value cannot be decoded if its schema version was deleted, has another type than the
        query's, or cannot be resolved to the query's schema.
        """
        groups = _Groups(columns.version_runs, columns.rows)
        decoders = self._decoders_of(groups.versions, topic)
        separated = any(isinstance(each, PairDecoder) and each.separated for each in decoders)
        raw = array_of(columns, "value", pa.binary())
        keys = array_of(columns, "key", pa.binary()) if separated and self._has_keys else None
        if len(decoders) == 1:
            return self._decode(groups.versions[0], decoders[0], raw, keys)
        parts = self._joint.parts(groups.versions, decoders)
        if len(parts) == 1:
            return self._decode_together(groups, parts[0], raw, groups.numbers)
        groups.split(parts)
        pieces = []
        for part, rows in zip(parts, groups.rows, strict=True):
            values, place = raw.take(rows), part.places[0]
            if part.joint is None:
                own_keys = None if keys is None else keys.take(rows)
                piece = self._decode(groups.versions[place], decoders[place], values, own_keys)
            else:
                piece = self._decode_together(groups, part, values, groups.numbers.take(rows))
            pieces.append(piece)
        return groups.joined(raw, pieces)

    def _decode_together(
        self, groups: _Groups, part: _Part, raw: pa.Array, numbers: pa.Array
    ) -> DecodedValues:
        """Decode the values of a part with several versions; `numbers` are theirs."""
        assert part.joint is not None
        assert part.numbers is not None
        decoded = part.joint.decode(raw, part.numbers.take(numbers))
        bad_version = b""
        if decoded.bad:
            bad_version = groups.versions[numbers[decoded.bad[0].row].as_py()]
        found = dict(zip(self.names, decoded.columns, strict=True))
        return DecodedValues(raw, found, decoded.bad, bad_version)

    def _decode(
        self,
        version: bytes,
        decoder: _AnyDecoder,
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

    def _decoders_of(self, versions: Sequence[bytes], topic: str) -> list[_AnyDecoder]:
        known = {version: self._decoders.get(version) for version in versions}
        missing = [version for version, found in known.items() if found is None]
        if self._expect is not None and len(missing) > 1:
            self._expect([version for version in missing if version])
        return [
            self._decoder_from(version, topic) if found is None else found
            for version, found in known.items()
        ]

    def _decoder_from(self, version: bytes, topic: str) -> _AnyDecoder:
        writer = self._reader
        found: _AnyDecoder
        where = ""

        def told(error: SchemaMismatch) -> SchemaMismatch:
            return SchemaMismatch(where + error.what, error.remedy, topic=error.topic or topic)

        try:
            if version:
                writer = self._writers(version)
                where = f"version {version_number(version)} of the topic's schema: "
            if self._reader.type == pb.Schema.KeyValue:
                found = PairDecoder(writer, self._reader, self.names, told, as_java=self._as_java)
            else:
                found = decoder_of(writer, self._reader, self.names, as_java=self._as_java)
        except SchemaMismatch as error:
            # A null value may still have a key.
            found = Unreadable(told(error), self.types, are_nulls_too=self._has_keys)
        else:
            with suppress(SchemaMismatch):
                self._tell_nulls(writer, version, topic)
        self._decoders.put(version, found, writer.size)
        return found

    def _tell_nulls(self, writer: SchemaInfo, version: bytes, topic: str) -> None:
        """Warn of a version without any field that is read: it may be of an unrelated record."""
        reader = self._reader
        if reader.type == pb.Schema.KeyValue:
            writer, reader = key_value_parts(writer).value, key_value_parts(reader).value
        names = [name for name in self.names if name != KEY]
        if writer == reader or not names or not is_record(writer) or not is_record(reader):
            return
        fields = set(typed_columns(writer).fields.names)
        # A renamed field may be one of them, too.
        if not fields or not fields.isdisjoint(names):
            return
        if fields <= {*losses_of(writer, reader, names).left_out}:
            logger.warning(
                "%s: values of version %s of the schema have none of the fields that are read: "
                "their rows are nulls or defaults",
                topic,
                version_number(version),
            )


@dataclass(frozen=True, slots=True)
class _Part:
    """Values of a record batch that are decoded together, by the `places` of their versions.

    With several versions there is a `joint` decoder, and its `numbers` of the batch's versions.
    """

    places: Sequence[int]
    joint: ColumnDecoder | None = None
    numbers: pa.Array | None = None


class _Joint:
    """Decoders of several versions, for record batches that have mostly the same ones.

    One that was made for a batch serves the next ones that have no others.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, ColumnDecoder] = {}
        self._numbers: dict[bytes, int] = {}
        self._joints: list[ColumnDecoder | None] = []

    def parts(self, versions: Sequence[bytes], decoders: Sequence[_AnyDecoder]) -> list[_Part]:
        """Return the parts in which values of these versions are decoded."""
        joinable = {
            version: decoder
            for version, decoder in zip(versions, decoders, strict=True)
            if isinstance(decoder, ColumnDecoder)
        }
        if len(joinable) < 2:
            return [_Part([place]) for place in range(len(versions))]
        self._make(joinable)
        places: dict[int, list[int]] = {}
        for place, version in enumerate(versions):
            # Those that are decoded alone count down from -1.
            number = self._numbers[version] // MAX_VERSIONS if version in joinable else -1 - place
            places.setdefault(number, []).append(place)
        numbers = [self._numbers.get(version, 0) % MAX_VERSIONS for version in versions]
        parts: list[_Part] = []
        for number, some in places.items():
            joint = self._joints[number] if len(some) > 1 else None
            if joint is None:
                parts += [_Part([place]) for place in some]
            else:
                parts.append(_Part(some, joint, integers(numbers, pa.int32())))
        return parts

    def _make(self, wanted: Mapping[bytes, ColumnDecoder]) -> None:
        if wanted.keys() <= self._numbers.keys():
            return
        # Batches that have many versions have most of them; those of a topic whose versions follow
        # one another have the last ones.
        both = {**self._known, **wanted}
        self._known = both if len(both) <= 2 * len(wanted) else dict(wanted)
        order = sorted(self._known)
        self._numbers = {version: number for number, version in enumerate(order)}
        self._joints = []
        for start in range(0, len(order), MAX_VERSIONS):
            some = [self._known[version] for version in order[start : start + MAX_VERSIONS]]
            self._joints.append(some[0].together(some))


class _Groups:
    """The rows of a record batch by schema version.

    `versions` are in the order of their first row, `numbers` are each row's index there. After
    `split`, `rows` are those of each part, ascending.
    """

    def __init__(self, runs: VersionRuns, count: int) -> None:
        self.versions, starts, numbers = runs
        self.rows: list[pa.Array] = []
        self._order: pa.Array | None = None
        if len(self.versions) < 2:
            return
        stops = array("i", starts)
        stops.append(count)
        self._runs = array("i", numbers)
        by_run = from_words(self._runs, pa.int32())
        self.numbers = by_run if len(by_run) == count else repeated_by_run(by_run, stops[1:])

    def split(self, parts: Sequence[_Part]) -> None:
        """Group the rows of two or more parts, which have all versions."""
        part_of = [0] * len(self.versions)
        for number, part in enumerate(parts):
            for place in part.places:
                part_of[place] = number
        numbers = integers(part_of, pa.int32()).take(self.numbers)
        rows = pc.array_sort_indices(numbers)
        sizes = {each["values"]: each["counts"] for each in pc.value_counts(numbers).to_pylist()}
        start = 0
        for number in range(len(parts)):
            self.rows.append(rows.slice(start, sizes[number]))
            start += sizes[number]
        by_run = [part_of[number] for number in self._runs]
        if by_run != sorted(by_run):
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
