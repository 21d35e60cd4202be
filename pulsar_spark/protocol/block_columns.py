"""Builds rows and their columns, as buffers in Arrow's layout.

Values that differ per message are stored by row, values of an entry once per entry, rare values
only for the messages that have them.
"""

from __future__ import annotations

import base64
import binascii
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain, compress, repeat
from operator import attrgetter
from struct import pack
from typing import Any, NamedTuple, TypeAlias, TypeVar

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.batches import UnpackedBatch
from pulsar_spark.protocol.blocks import (
    BinaryColumn,
    BlockOptions,
    FixedColumn,
    MapColumn,
    VersionRuns,
)
from pulsar_spark.protocol.entry_metadata import (
    PLAIN,
    PLAIN_REST,
    Metadata,
    Rest,
)
from pulsar_spark.protocol.message_id import MessageIdAdv, id_tails
from pulsar_spark.protocol.metadata_columns import RestColumns, columns_of
from pulsar_spark.protocol.varints import NUMBERS

_MAX_LONG = 2**63 - 1
LAST_MILLIS = 253_402_300_799_999
"""The last millisecond of the year 9999: Spark SQL and Python have no later times."""
_RARE_OF_ENTRIES = frozenset({"producer_name", "redelivery_count", "index"})
_NEEDS_METADATA = frozenset({"key", "event_time", "properties", "ordering_key"})
# Serialized ids start with ledger, entry and partition; everything else follows.
_NO_ID = MessageIdAdv(0, 0)
_NO_ID_SIZE = len(_NO_ID.serialize())
_CACHED_COUNT = 10_000
# Of smaller values, copies cost less than views.
_SMALL = 512
# Twice as many bytes still have offsets of 32 bits.
_MOST_EVEN_BYTES = 1 << 30


class UnusualFrame(Exception):
    """The frame needs the careful path."""


EntryFields = tuple[int, int, int, bytes, bytes, Metadata, int, "int | None"]
"""What is stored once for each entry: ledger, entry, publish time (µs), digits of the sequence
id, producer name, other metadata, redelivery count, broker's index.
"""


Texts: TypeAlias = "tuple[bytes, ...]"
T = TypeVar("T")
B = TypeVar("B", bytes, memoryview, "bytes | memoryview")


class Entries:
    """What is stored for each entry, in columns; some only if columns of rows need them.

    Lists of numbers cost the garbage collector nothing; a tuple for each entry would take a quarter
    of the time of decoding.
    """

    __slots__ = (
        "_wants_rare", "entry_ids", "indexes", "ledger_ids", "metadata", "micros", "names",
        "redelivery_counts",
    )  # fmt: skip

    def __init__(self, columns: Set[str]) -> None:
        self._wants_rare = not _RARE_OF_ENTRIES.isdisjoint(columns)
        self.ledger_ids: list[int] = []
        self.entry_ids: list[int] = []
        self.micros: list[int] = []
        self.metadata: list[Metadata] = []
        # The rare ones.
        self.names: list[bytes] = []
        self.redelivery_counts: list[int] = []
        self.indexes: list[int | None] = []

    def add(self, entry: EntryFields) -> None:
        """Add an entry."""
        ledger_id, entry_id, micros, _, name, metadata, redelivery_count, index = entry
        self.ledger_ids.append(ledger_id)
        self.entry_ids.append(entry_id)
        self.micros.append(micros)
        self.metadata.append(metadata)
        if self._wants_rare:
            self.names.append(name)
            self.redelivery_counts.append(redelivery_count)
            self.indexes.append(index)

    def extend(self, entries: LedgerEntries) -> None:
        """Add entries of one ledger."""
        count = len(entries.entry_ids)
        self.ledger_ids += repeat(entries.ledger_id, count)
        self.entry_ids += entries.entry_ids
        self.micros += entries.micros
        self.metadata += entries.metadata or repeat(PLAIN, count)
        if self._wants_rare:
            self.names += repeat(b"", count)
            self.redelivery_counts += repeat(entries.redelivery_count, count)
            self.indexes += entries.indexes or repeat(None, count)


class LedgerEntries(NamedTuple):
    """What is stored for entries of one ledger, without their producers.

    No `metadata` stands for PLAIN of all, no `indexes` for None.
    """

    ledger_id: int
    redelivery_count: int
    entry_ids: Sequence[int]
    micros: Sequence[int]
    metadata: Sequence[Metadata] = ()
    indexes: Sequence[int | None] = ()

    def part(self, rows: slice) -> LedgerEntries:
        """Return a range of the entries."""
        return self._replace(
            entry_ids=self.entry_ids[rows],
            micros=self.micros[rows],
            metadata=self.metadata[rows],
            indexes=self.indexes[rows],
        )


def cut(data: B, begins: Iterable[int], ends: Iterable[int]) -> list[B]:
    """Return the parts of `data` between these places."""
    return [data[begin:end] for begin, end in zip(begins, ends, strict=True)]


def quick_to_cut(data: bytes, sizes: Sequence[int]) -> bytes | memoryview:
    """Return `data` or a view of it: from which parts of these sizes are cut faster."""
    return data if sum(sizes) < _SMALL * len(sizes) else memoryview(data)


@dataclass(frozen=True, slots=True)
class Slices:
    """Values that lie in `data`: where each begins and ends, and its size."""

    data: bytes
    begins: Sequence[int]
    ends: Sequence[int]
    sizes: Sequence[int]

    def copies(self) -> list[bytes]:
        """Return each value."""
        return cut(self.data, self.begins, self.ends)

    def joined(self) -> bytes:
        """Return the values, one after the other."""
        return b"".join(cut(quick_to_cut(self.data, self.sizes), self.begins, self.ends))


Values: TypeAlias = "Sequence[bytes | memoryview | None] | Slices"
Keys: TypeAlias = "Sequence[bytes | None] | Slices"


def _each(values: Sequence[T] | Slices) -> Sequence[T | bytes]:
    return values.copies() if isinstance(values, Slices) else values


class BinaryRows:
    """A binary column that grows: its values one after the other, in any number of parts."""

    __slots__ = ("_nulls", "_parts", "_sizes")

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []
        # By row, 0 for a null; and the rows of nulls.
        self._sizes: list[int] = []
        self._nulls: list[int] = []

    def append(self, value: bytes | memoryview | None) -> None:
        """Add a value; None is a null."""
        if value is None:
            self._nulls.append(len(self._sizes))
            self._sizes.append(0)
        else:
            self._parts.append(value)
            self._sizes.append(len(value))

    def add(self, values: Values) -> None:
        """Add values; None is a null."""
        if isinstance(values, Slices):
            self._parts.append(values.joined())
            self._sizes += values.sizes
        elif not (nulls := values.count(None)):
            self._parts += values  # type: ignore[arg-type]
            self._sizes += map(len, values)  # type: ignore[arg-type]
        elif nulls == len(values):
            self._nulls += range(len(self._sizes), len(self._sizes) + nulls)
            self._sizes += repeat(0, nulls)
        else:
            row = len(self._sizes)
            self._nulls += [at for at, value in enumerate(values, row) if value is None]
            self._parts += [value for value in values if value is not None]
            self._sizes += [0 if value is None else len(value) for value in values]

    def column(self) -> BinaryColumn:
        """Return the column."""
        rows, nulls = len(self._sizes), len(self._nulls)
        if not nulls:
            return None, _offsets(self._sizes), b"".join(self._parts), 0
        if nulls == rows:
            return bytes((rows + 7) // 8), bytes(4 * (rows + 1)), b"", nulls
        flags = bytearray(b"\1") * rows
        for row in self._nulls:
            flags[row] = False
        return _bits(flags), _offsets(self._sizes), b"".join(self._parts), nulls


class PendingRows:
    """Rows of one BlockColumns. A method that raises UnusualFrame has changed nothing."""

    def __init__(self, options: BlockOptions) -> None:
        wanted = options.columns
        self.options = options
        self.needs_metadata = not _NEEDS_METADATA.isdisjoint(wanted)
        self._wants_values, self._wants_keys = "value" in wanted, "key" in wanted
        self._wants_names = "producer_name" in wanted
        self._wants_origins = "replicated_from" in wanted
        self._wants_versions = "schema_version" in wanted
        # Whether columns repeat texts of a batch for its messages.
        self.repeats = self._wants_names or self._wants_origins or self._wants_versions
        self._wants_properties = "properties" in wanted
        self._wants_sequences = "sequence_id" in wanted
        self._wants_sizes = "size" in wanted
        self.id_tail = _id_tail(options.partition)
        self.rows = 0
        self.nbytes = 0
        self.is_exact = True
        self.values = BinaryRows()
        self.keys = BinaryRows()
        # Ids one after the other, in any number of parts, and the size of each id.
        self.ids: list[bytes] = []
        self.id_sizes: list[int] = []
        # For each entry: its rows, first batch index (-1 outside of a batch) and batch size.
        self.spans: list[tuple[int, int, int]] = []
        self.entries = Entries(wanted)
        # Of rows with an event time, ascending: the row and the time.
        self.event_rows: list[int] = []
        self.event_micros: list[int] = []
        # By row.
        self.ordering_keys: dict[int, bytes] = {}
        # Of rows with properties, ascending: the row, its properties' names. Their values one after
        # the other, in any number of parts, and the size of each value.
        self.property_rows: list[int] = []
        self.property_names: list[Texts] = []
        self.property_values: list[bytes] = []
        self.property_sizes: list[int] = []
        # For each row, if requested.
        self.sequences: list[int] = []
        self.sizes: list[int] = []

    def has_room(self, count: int, size: int) -> bool:
        """Whether an entry with `count` messages of `size` bytes fits."""
        return not self.rows or (
            self.rows + count <= self.options.max_rows
            and self.nbytes + size <= self.options.max_bytes
        )

    def row_size(self, metadata: Metadata, name_size: int = 0) -> int:
        """Return how many bytes columns repeat for each message of a batch."""
        size = name_size if self._wants_names else 0
        if self._wants_versions:
            size += len(metadata.schema_version)
        if self._wants_origins and metadata.replicated_from is not None:
            size += len(metadata.replicated_from)
        return size

    def add_message(
        self,
        value: bytes | memoryview,
        key: bytes | None,
        head: bytes,
        entry: EntryFields,
        rest: Rest,
        size: int,
    ) -> None:
        """Add a message outside of a batch; its id begins with `head`."""
        if self._wants_names:
            check_text(entry[4])
        if rest is not PLAIN_REST:
            self._add_values(*self._add_rests(columns_of([rest]), [value], [key]))
        else:
            if self._wants_values:
                self.values.append(value)
            if self._wants_keys:
                self.keys.append(key)
        self.ids.append(head + self.id_tail)
        self.id_sizes.append(len(head) + len(self.id_tail))
        self.spans.append(_ALONE)
        self.entries.add(entry)
        if self._wants_sequences:
            self.sequences.append(sequence_id(entry))
        if self._wants_sizes:
            self.sizes.append(len(value))
        self.rows += 1
        self.nbytes += size

    def add_messages_alone(
        self,
        values: Values,
        keys: Keys,
        ids: bytes,
        id_sizes: Iterable[int],
        entries: LedgerEntries,
        rests: RestColumns | None,
        size: int,
    ) -> None:
        """Add messages outside of batches; no `rests` stands for PLAIN_REST of all.

        Their ids are one after the other. For columns that need neither producer names nor the
        other parts of `EntryFields`.
        """
        if rests is not None:
            values, keys = self._add_rests(rests, values, keys)
        self._add_values(values, keys)
        self.ids.append(ids)
        self.id_sizes += id_sizes
        self.entries.extend(entries)
        count = len(entries.entry_ids)
        self.spans += repeat(_ALONE, count)
        self.rows += count
        self.nbytes += size

    def _add_values(self, values: Values, keys: Keys) -> None:
        if self._wants_values:
            self.values.add(values)
        if self._wants_keys:
            self.keys.add(keys)

    def check_rest(self, rest: Rest, key: bytes | None) -> None:
        """Raise UnusualFrame if a message with these fields could not be added."""
        metadata, names, values, own_key, _ = rest
        if names and self._wants_properties:
            _check_texts(names + values)
        if metadata.is_rare:
            self._read_key(metadata, key if own_key is None else own_key)

    def _read_key(self, metadata: Metadata, key: bytes | None) -> bytes | None:
        """Check rare fields of a message, and return its key."""
        if self._wants_origins and metadata.replicated_from is not None:
            check_text(metadata.replicated_from)
        if key is None or not metadata.key_is_base64:
            return key
        self.is_exact = False
        return _from_base64(key)

    def _add_rests(
        self,
        rests: RestColumns,
        values: Values,
        keys: Keys,
    ) -> tuple[Values, Keys]:
        """Add fields of messages outside of batches; return their values and keys."""
        metadata, names, texts, sizes, own_keys, times = rests
        rows = range(self.rows, self.rows + len(metadata))
        if own_keys.count(None) < len(metadata):
            pairs = zip(own_keys, _each(keys), strict=True)
            keys = [key if own is None else own for own, key in pairs]
        rare = metadata[0].is_rare or not are_equal(metadata)
        if rare:
            keys = list(map(self._read_key, metadata, _each(keys)))
            values = [
                None if each.null_value else value
                for each, value in zip(metadata, _each(values), strict=True)
            ]
        if self._wants_properties and any(names):
            self._add_properties(rows, names, texts, sizes)
        # From here on nothing raises.
        if any(times):
            self._add_events(rows, times)
        if rare:
            self.ordering_keys |= {
                row: each.ordering_key
                for row, each in zip(rows, metadata, strict=True)
                if each.ordering_key is not None
            }
        return values, keys

    def add_messages(
        self,
        batch: UnpackedBatch,
        first: int,
        stop: int,
        head: bytes,
        entry: EntryFields,
        metadata_size: int,
        row_size: int,
    ) -> int:
        """Add a batch's messages from `first` up to `stop`, or as many as fit.

        Returns where it stopped. Either all of them fit, or there are no rows yet.
        """
        count, options = batch.count, self.options
        high, size = batch.fitting(first, stop, options.max_rows, options.max_bytes, row_size)
        if self._wants_names:
            check_text(entry[4])
        if self._wants_origins and entry[5].replicated_from is not None:
            check_text(entry[5].replicated_from)
        rows = range(first, high)
        self._add_contents(batch, rows)
        self._add_ids(head + self.id_tail, count, rows)
        self.spans.append((high - first, first, count))
        self.entries.add(entry)
        if self._wants_sequences:
            self.sequences += _sequence_ids(batch, sequence_id(entry), rows)
        if self._wants_sizes:
            self.sizes += batch.sizes(rows)
        self.rows += high - first
        self.nbytes += size + metadata_size
        return high

    def add_batches(
        self,
        batch: UnpackedBatch,
        counts: Sequence[int],
        heads: Iterable[bytes],
        entries: LedgerEntries,
        size: int,
    ) -> None:
        """Add batches that were unpacked as one: of how many messages, how their ids begin.

        For the same columns as `add_messages_alone`.
        """
        self._add_contents(batch, range(batch.count))
        for head, count in zip(heads, counts, strict=True):
            self._add_ids(head + self.id_tail, count, range(count))
        self.spans += [(count, 0, count) for count in counts]
        self.entries.extend(entries)
        self.rows += batch.count
        self.nbytes += size

    def _add_ids(self, head: bytes, count: int, rows: range) -> None:
        """Add ids of messages in a batch of `count`, all with the same `head`."""
        tails = _id_tails(count, rows)
        self.ids.append(head + head.join(tails))
        self.id_sizes += map(len(head).__add__, map(len, tails))

    def _add_contents(self, batch: UnpackedBatch, rows: range) -> None:
        """Add what the messages of a batch hold themselves."""
        if batch.compacted:
            raise UnusualFrame
        if batch.has_extras:
            self._add_extras(batch, rows)
            self.is_exact = self.is_exact and not batch.has_base64_keys(rows)
        self._add_values(batch.values(rows), batch.keys(rows) or [None] * len(rows))

    def _add_extras(self, batch: UnpackedBatch, indexes: range) -> None:
        offset = self.rows - indexes.start
        opened = batch.opened(indexes)
        if opened is None:
            extras = batch.extras(indexes)
            if extras:
                self._add_parsed(offset, extras)
        elif opened:
            rows = [offset + index for index in opened]
            names, texts, _, _, times = zip(*opened.values(), strict=True)
            if self._wants_properties:
                values = list(chain.from_iterable(texts))
                self._add_properties(rows, names, b"".join(values), list(map(len, values)))
            self._add_events(rows, times)

    def _add_parsed(self, offset: int, extras: Mapping[int, pb.SingleMessageMetadata]) -> None:
        rows = [offset + index for index in extras]
        if self._wants_properties:
            maps = list(map(_as_bytes, extras.values()))
            values = [value for found in maps for value in found.values()]
            sizes = list(map(len, values))
            self._add_properties(rows, list(map(tuple, maps)), b"".join(values), sizes)
        self._add_events(rows, [metadata.event_time for metadata in extras.values()])
        for row, metadata in zip(rows, extras.values(), strict=True):
            if metadata.HasField("ordering_key"):
                self.ordering_keys[row] = metadata.ordering_key

    def _add_events(self, rows: Sequence[int], millis: Sequence[int]) -> None:
        latest = max(millis)
        if latest > LAST_MILLIS:
            self.is_exact = False
            millis = [min(time, LAST_MILLIS) for time in millis]
        if min(millis) <= 0:
            rows, millis = list(compress(rows, millis)), list(filter(None, millis))
        self.event_rows += rows
        self.event_micros += [1000 * time for time in millis]

    def _add_properties(
        self, rows: Sequence[int], names: Sequence[Texts], values: bytes, sizes: Sequence[int]
    ) -> None:
        """Add properties of rows; raises UnusualFrame, with nothing added, if one is not UTF-8."""
        _check_texts(names[0] if are_equal(names) else list(chain.from_iterable(names)))
        if not values.isascii():
            ends = list(accumulate(sizes))
            _check_texts([values[end - size : end] for end, size in zip(ends, sizes, strict=True)])
        self.property_rows += rows
        self.property_names += names
        self.property_values.append(values)
        self.property_sizes += sizes


_ALONE = (1, -1, 0)


def _id_tail(partition: int) -> bytes:
    return MessageIdAdv(0, 0, partition).serialize()[_NO_ID_SIZE:]


def _id_tails(count: int, rows: range) -> list[bytes]:
    """Return the ends of the ids of a batch's messages: index and size of the batch."""
    if count > _CACHED_COUNT:
        return id_tails(rows, count)
    tails = _cached_id_tails(count)
    return tails if len(rows) == count else tails[rows.start : rows.stop]


@lru_cache(64)
def _cached_id_tails(count: int) -> list[bytes]:
    return id_tails(range(count), count)


def sequence_id(entry: EntryFields) -> int:
    """Return an entry's sequence id: its first message's."""
    return NUMBERS[entry[3][1:]] << 7 | entry[3][0] & 127


def _sequence_ids(batch: UnpackedBatch, first: int, rows: range) -> list[int]:
    """Return the messages' sequence ids; missing ones count up from the batch's."""
    numbers = (
        metadata.sequence_id if metadata.HasField("sequence_id") else first + row
        for row, metadata in zip(rows, batch.metadata(rows), strict=True)
    )
    # Java reads the wire's unsigned numbers as signed ones.
    return [number - 2**64 if number > _MAX_LONG else number for number in numbers]


def _from_base64(key: bytes) -> bytes:
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error:
        raise UnusualFrame from None


def _as_bytes(metadata: pb.SingleMessageMetadata) -> dict[bytes, bytes]:
    """Return a message's properties."""
    try:
        return {pair.key.encode(): pair.value.encode() for pair in metadata.properties}
    except AttributeError:
        # Protobuf returns bytes if a string is not UTF-8.
        raise UnusualFrame from None


def are_equal(values: Sequence[Any]) -> bool:
    """Whether all of at least one value are equal."""
    return values.count(values[0]) == len(values)


def _check_texts(texts: Sequence[bytes]) -> None:
    """Raise UnusualFrame unless all are UTF-8."""
    if not b"".join(texts).isascii():
        for text in texts:
            check_text(text)


def check_text(text: bytes) -> None:
    """Raise UnusualFrame unless `text` is UTF-8."""
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            raise UnusualFrame from None


# --- columns ------------------------------------------------------------------------------


class BlockColumns:
    """Rows as columns, see `blocks.Columns`."""

    __slots__ = (
        "_entries",
        "_spans",
        "_starts",
        "batch_index",
        "entry_id",
        "event_time",
        "index",
        "is_exact",
        "key",
        "ledger_id",
        "message_id",
        "nbytes",
        "ordering_key",
        "producer_name",
        "properties",
        "publish_time",
        "redelivery_count",
        "replicated_from",
        "rows",
        "schema_version",
        "sequence_id",
        "size",
        "value",
        "version_runs",
    )

    value: BinaryColumn | None
    key: BinaryColumn | None
    message_id: BinaryColumn | None
    publish_time: FixedColumn | None
    event_time: FixedColumn | None
    properties: MapColumn | None
    ledger_id: FixedColumn | None
    entry_id: FixedColumn | None
    batch_index: FixedColumn | None
    producer_name: BinaryColumn | None
    sequence_id: FixedColumn | None
    ordering_key: BinaryColumn | None
    schema_version: BinaryColumn | None
    redelivery_count: FixedColumn | None
    size: FixedColumn | None
    index: FixedColumn | None
    replicated_from: BinaryColumn | None

    def __init__(self, rows: PendingRows) -> None:
        self.rows = rows.rows
        self.nbytes = rows.nbytes
        self.is_exact = rows.is_exact
        self._spans = rows.spans
        self._entries = rows.entries
        self._starts: list[int] | None = None
        self.version_runs = _version_runs(rows)
        for name, build in _BUILDERS.items():
            setattr(self, name, build(rows) if name in rows.options.columns else None)

    def locate(self, row: int) -> tuple[int, int, int, int]:
        """Return ledger, entry, batch index (-1) and batch size (0) of the message in a row."""
        if not 0 <= row < self.rows:
            raise IndexError("there are fewer rows")
        if self._starts is None:
            self._starts = list(accumulate((span[0] for span in self._spans), initial=0))
        number = bisect_right(self._starts, row) - 1
        _, first, count = self._spans[number]
        index = first + row - self._starts[number] if count else -1
        entries = self._entries
        return entries.ledger_ids[number], entries.entry_ids[number], index, count


def _version_runs(rows: PendingRows) -> VersionRuns:
    places: dict[bytes, int] = {}
    starts, numbers = array("i"), array("i")
    last: bytes | None = None
    last_metadata: Metadata | None = None
    row = 0
    all_metadata = rows.entries.metadata
    if are_equal(all_metadata):
        return [all_metadata[0].schema_version], array("i", [0]), array("i", [0])
    for (count, _, _), metadata in zip(rows.spans, all_metadata, strict=True):
        if metadata is not last_metadata:
            last_metadata, version = metadata, metadata.schema_version
            if version != last:
                starts.append(row)
                numbers.append(places.setdefault(version, len(places)))
                last = version
        row += count
    return list(places), starts, numbers


def _spread(rows: PendingRows, per_entry: Iterable[Any]) -> Iterable[Any]:
    """Repeat each entry's value for all its rows."""
    if rows.rows == len(rows.spans):
        return per_entry
    return chain.from_iterable(map(repeat, per_entry, [span[0] for span in rows.spans]))


def _fixed(kind: str, numbers: Iterable[int]) -> FixedColumn:
    return None, _packed(kind, list(numbers)), 0


def _packed(kind: str, numbers: list[int]) -> bytes:
    # This takes half the time of an array.
    return pack(f"{len(numbers)}{kind}", *numbers)


def _fixed_with_nulls(kind: str, numbers: Sequence[int | None]) -> FixedColumn:
    nulls = numbers.count(None)
    if not nulls:
        return None, _packed(kind, list(numbers)), 0  # type: ignore[arg-type]
    present = [number is not None for number in numbers]
    return _bits(present), _packed(kind, [number or 0 for number in numbers]), nulls


def _event_times(rows: PendingRows) -> FixedColumn:
    count, found = rows.rows, rows.event_micros
    if len(found) == count:
        return None, _packed("q", found), 0
    data = array("q", bytes(8 * count))
    for row, number in zip(rows.event_rows, found, strict=True):
        data[row] = number
    return _places(count, rows.event_rows), data, count - len(found)


def _binary(values: Sequence[bytes | memoryview | None]) -> BinaryColumn:
    rows = BinaryRows()
    rows.add(values)
    return rows.column()


def _sparse_binary(rows: int, found: Mapping[int, bytes]) -> BinaryColumn:
    return _binary([None] * rows if not found else list(map(found.get, range(rows))))


def _offsets(sizes: Sequence[int]) -> bytes:
    rows = len(sizes)
    if rows and sizes[0] == sizes[-1] and are_equal(sizes) and rows * sizes[0] < _MOST_EVEN_BYTES:
        return _even_offsets(sizes[0], rows.bit_length())[: 4 * (rows + 1)]
    return _packed("i", list(accumulate(sizes, initial=0)))


@lru_cache(16)
def _even_offsets(size: int, digits: int) -> bytes:
    """Return offsets of values of one size, for as many rows as a number of these digits can be."""
    return _packed("i", list(accumulate(repeat(size, (1 << digits) - 1), initial=0)))


def _bits(flags: Iterable[int]) -> bytes:
    """Return a bitmap, lowest bit first."""
    digits = bytes(flags).translate(_AS_DIGITS)[::-1]
    return int(digits, 2).to_bytes((len(digits) + 7) // 8, "little")


def _places(rows: int, found: Iterable[int]) -> bytes:
    flags = bytearray(rows)
    for row in found:
        flags[row] = True
    return _bits(flags)


_AS_DIGITS = b"01" + bytes(254)


def _maps(rows: PendingRows) -> MapColumn:
    names = rows.property_names
    if not names:
        return bytes(4 * (rows.rows + 1)), _binary([]), _binary([])
    counts = list(map(len, names))
    if len(names) != rows.rows:
        found = dict(zip(rows.property_rows, counts, strict=True))
        counts = list(map(found.get, range(rows.rows), repeat(0)))
    values = None, _offsets(rows.property_sizes), b"".join(rows.property_values), 0
    return _offsets(counts), _all_names(names), values


def _all_names(names: list[Texts]) -> BinaryColumn:
    # Messages of one kind have the same names.
    if are_equal(names):
        return _repeated(names[0], len(names))
    return _binary(list(chain.from_iterable(names)))


@lru_cache(4)
def _repeated(texts: Texts, count: int) -> BinaryColumn:
    return _binary(texts * count)


def _batch_indexes(rows: PendingRows) -> Iterable[int]:
    return chain.from_iterable(range(first, first + count) for count, first, _ in rows.spans)


def _indexes(rows: PendingRows) -> list[int | None]:
    found: list[int | None] = []
    for (count, first, size), last in zip(rows.spans, rows.entries.indexes, strict=True):
        if last is None:
            found += repeat(None, count)
        else:
            # The broker's index is that of the entry's last message.
            start = last + 1 - size + first if size else last
            found += range(start, start + count)
    return found


def _of_entries(
    kind: str, read: Callable[[Entries], list[int]]
) -> Callable[[PendingRows], FixedColumn]:
    return lambda rows: _fixed(kind, _spread(rows, read(rows.entries)))


def _of_metadata(read: Callable[[Metadata], bytes | None]) -> Callable[[PendingRows], BinaryColumn]:
    return lambda rows: _binary(list(_spread(rows, map(read, rows.entries.metadata))))


_BUILDERS: dict[str, Callable[[PendingRows], Any]] = {
    "value": lambda rows: rows.values.column(),
    "key": lambda rows: rows.keys.column(),
    "message_id": lambda rows: (None, _offsets(rows.id_sizes), b"".join(rows.ids), 0),
    "publish_time": _of_entries("q", attrgetter("micros")),
    "event_time": _event_times,
    "properties": _maps,
    "ledger_id": _of_entries("q", attrgetter("ledger_ids")),
    "entry_id": _of_entries("q", attrgetter("entry_ids")),
    "batch_index": lambda rows: _fixed("i", _batch_indexes(rows)),
    "producer_name": lambda rows: _binary(list(_spread(rows, rows.entries.names))),
    "sequence_id": lambda rows: _fixed("q", rows.sequences),
    "ordering_key": lambda rows: _sparse_binary(rows.rows, rows.ordering_keys),
    "schema_version": _of_metadata(lambda found: found.schema_version or None),
    "redelivery_count": _of_entries("i", attrgetter("redelivery_counts")),
    "size": lambda rows: _fixed("i", rows.sizes),
    "index": lambda rows: _fixed_with_nulls("q", _indexes(rows)),
    "replicated_from": _of_metadata(lambda found: found.replicated_from),
}
