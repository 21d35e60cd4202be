"""Rows collected from entries, and their columns in Arrow's layout: the plain reference.

A row is a message: its own metadata (in a batch SingleMessageMetadata, otherwise the entry's), its
payload, and the entry that it came in.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain, groupby, starmap
from operator import itemgetter
from struct import pack
from typing import Any

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.batches import message_key
from pulsar_spark.protocol.blocks import (
    LAST_MILLIS,
    BinaryColumn,
    BlockOptions,
    Buffer,
    FixedColumn,
    MapColumn,
    VersionRuns,
)
from pulsar_spark.protocol.frame_parts import ReceivedEntry
from pulsar_spark.protocol.message_id import MessageIdAdv, as_signed, id_tails
from pulsar_spark.protocol.validation import as_text

_Span = tuple[ReceivedEntry, range]
"""Rows of one entry that follow each other, and their batch indexes."""
_ALONE = range(1)


# --- rows ---------------------------------------------------------------------------------


class BlockColumns:
    """Rows that are collected from entries, and once they are `build`, see `blocks.Columns`."""

    def __init__(self, options: BlockOptions) -> None:
        self.options = options
        self.owns: list[Any] = []
        self.payloads: list[Buffer] = []
        self.spans: list[_Span] = []
        self.rows = 0
        self.nbytes = 0
        self.columns: dict[str, Any] = {}
        self._repeated = [read for name, read in REPEATED.items() if name in options.columns]

    def has_room(self, entry: ReceivedEntry, size: int, count: int) -> bool:
        """Whether `count` messages fit of an entry of `size` bytes, before it is open."""
        return not self.rows or (
            self.rows + count <= self.options.max_rows
            and self.nbytes + size + count * self._row_size(entry) <= self.options.max_bytes
        )

    def _row_size(self, entry: ReceivedEntry) -> int:
        """Return how many bytes columns repeat for each message of a batch."""
        if not entry.is_batch or not self._repeated:
            return 0
        return sum(len(read(entry) or b"") for read in self._repeated)

    def add(self, entry: ReceivedEntry, first: int, stop: int) -> int:
        """Add an entry's messages from `first` up to `stop`, or as many as fit.

        Returns where it stopped. Either all of them fit, or there are no rows yet.
        """
        batch = entry.batch
        if batch is None:
            payload = entry.payload
            self.payloads.append(payload if len(payload) > _SMALL else bytes(payload))
            self.owns.append(entry.metadata)
            self.spans.append((entry, _ALONE))
            self.rows += 1
            self.nbytes += len(entry.metadata_bytes) + len(payload)
            return stop
        options, row_size = self.options, self._row_size(entry)
        high, size = batch.fitting(first, stop, options.max_rows, options.max_bytes, row_size)
        for run in _runs(range(first, high), batch.compacted):
            self.payloads += batch.payloads(run)
            self.owns += batch.metadata(run)
            self.spans.append((entry, run))
            self.rows += len(run)
        self.nbytes += size + len(entry.metadata_bytes)
        return high

    def build(self) -> BlockColumns:
        """Make the columns of what was collected, and return them."""
        self.is_exact = _are_exact(self)
        self._starts = list(accumulate((len(run) for _, run in self.spans[:-1]), initial=0))
        self.version_runs = _version_runs(self.spans, self._starts)
        wanted = {name: COLUMNS[name] for name in self.options.columns}
        self.columns = {name: build(read(self)) for name, (read, build) in wanted.items()}
        self.owns, self.payloads = [], []
        return self

    def locate(self, row: int) -> tuple[int, int, int, int]:
        """Return ledger, entry, batch index (-1) and batch size (0) of the message in a row."""
        if not 0 <= row < self.rows:
            raise IndexError("there are fewer rows")
        number = bisect_right(self._starts, row) - 1
        entry, run = self.spans[number]
        index = run[row - self._starts[number]] if entry.is_batch else -1
        return entry.ledger_id, entry.entry_id, index, entry.batch_size


_SMALL = 4096
"""Larger payloads are not copied, though each keeps all that was received with it."""


def _runs(rows: range, gone: Sequence[int]) -> list[range]:
    """Return rows without those that are `gone`, as ranges."""
    if not gone:
        return [rows]
    left = enumerate(sorted({*rows}.difference(gone)))
    runs = ([row for _, row in run] for _, run in groupby(left, lambda pair: pair[1] - pair[0]))
    return [range(run[0], run[-1] + 1) for run in runs]


# --- what rows have -----------------------------------------------------------------------

Read = Callable[[BlockColumns], list[Any]]


def _joined(parts: Iterable[Iterable[Any]]) -> list[Any]:
    return list(chain.from_iterable(parts))


def _of_messages(read: Callable[[Any], Any]) -> Read:
    """Read from each message's own metadata."""
    return lambda rows: list(map(read, rows.owns))


def _of_entries(read: Callable[[ReceivedEntry], Any]) -> Read:
    """Read what an entry's messages share."""

    def column(rows: BlockColumns) -> list[Any]:
        if len(rows.spans) == rows.rows:
            return [read(entry) for entry, _ in rows.spans]
        return _joined([read(entry)] * len(run) for entry, run in rows.spans)

    return column


def _utf8(text: str | bytes) -> bytes:
    return as_text(text).encode()


def _wrapped(number: int) -> int:
    """Return a number as Java reads it: signed, in 64 bits."""
    return as_signed(number % 2**64)


def _values(rows: BlockColumns) -> list[Any]:
    pairs = zip(rows.owns, rows.payloads, strict=True)
    return [None if own.null_value else payload for own, payload in pairs]


def _sizes(rows: BlockColumns) -> list[Any]:
    return list(map(len, rows.payloads))


def _event_micros(rows: BlockColumns) -> list[Any]:
    times = [own.event_time for own in rows.owns]
    return (
        [min(time, LAST_MILLIS) * 1000 or None for time in times]
        if any(times)
        else [None] * len(times)
    )


def _publish_micros(entry: ReceivedEntry) -> int:
    return min(entry.metadata.publish_time, LAST_MILLIS) * 1000


def _ordering_key(own: Any) -> bytes | None:
    return own.ordering_key if own.HasField("ordering_key") else None


def _properties(rows: BlockColumns) -> list[Any]:
    batches = [entry.batch for entry, _ in rows.spans]
    if not any(batch is None or batch.may_have_properties for batch in batches):
        # To ask each message takes long.
        return [{}] * rows.rows
    return [
        {_utf8(pair.key): _utf8(pair.value) for pair in pairs} if pairs else {}
        for pairs in [own.properties for own in rows.owns]
    ]


def _producer_name(entry: ReceivedEntry) -> bytes:
    return _utf8(entry.metadata.producer_name)


def _schema_version(entry: ReceivedEntry) -> bytes | None:
    return entry.metadata.schema_version or None


def _replicated_from(entry: ReceivedEntry) -> bytes | None:
    metadata = entry.metadata
    return _utf8(metadata.replicated_from) if metadata.HasField("replicated_from") else None


def _batch_indexes(rows: BlockColumns) -> list[Any]:
    return _joined(run if entry.is_batch else (-1,) for entry, run in rows.spans)


def _sequence_ids(rows: BlockColumns) -> list[Any]:
    """Return the sequence ids; if only a batch has one, its messages count up from it."""
    firsts = [(entry.metadata.sequence_id, run) for entry, run in rows.spans]
    numbers = _joined([first + index for index in run] for first, run in firsts)
    pairs = zip(rows.owns, numbers, strict=True)
    return [
        _wrapped(own.sequence_id if own.HasField("sequence_id") else number)
        for own, number in pairs
    ]


def _broker_indexes(rows: BlockColumns) -> list[Any]:
    return _joined(starmap(_indexes_of, rows.spans))


def _indexes_of(entry: ReceivedEntry, run: range) -> Iterable[int | None]:
    last = entry.index
    if last is None:
        return [None] * len(run)
    first = last - max(entry.batch_size - 1, 0)
    return [_wrapped(first + index) for index in run]


def _message_ids(rows: BlockColumns) -> list[Any]:
    found = MessageIdAdv(0, 0, rows.options.partition).to_pb()
    return _joined(_ids_of(entry, run, found) for entry, run in rows.spans)


def _ids_of(entry: ReceivedEntry, run: range, found: pb.MessageIdData) -> Iterable[bytes]:
    if entry.first_chunk is not None:
        partition = found.partition if found.HasField("partition") else -1
        place = entry.ledger_id, entry.entry_id, partition
        return (MessageIdAdv(*place, first_chunk=entry.first_chunk).serialize(),)
    found.ledgerId, found.entryId = entry.ledger_id, entry.entry_id
    head = found.SerializeToString()
    if not entry.is_batch:
        return (head,)
    return [head + tail for tail in id_tails(run, entry.batch_size)]


# --- buffers ------------------------------------------------------------------------------


def _packed(kind: str, numbers: Sequence[int]) -> bytes:
    return pack(f"{len(numbers)}{kind}", *numbers)


def _offsets(sizes: Iterable[int]) -> bytes:
    return _packed("i", list(accumulate(sizes, initial=0)))


def _validity(values: Sequence[object], nulls: int) -> bytes | None:
    """Return a bitmap of what is not None, lowest bit first; None if there is no null."""
    if not nulls:
        return None
    bits = "".join(["0" if value is None else "1" for value in reversed(values)])
    return int(bits, 2).to_bytes((len(values) + 7) // 8, "little")


def _fixed(kind: str) -> Callable[[list[Any]], FixedColumn]:
    def build(values: list[Any]) -> FixedColumn:
        nulls = values.count(None)
        numbers = [value or 0 for value in values] if nulls else values
        return _validity(values, nulls), _packed(kind, numbers), nulls

    return build


def _binary(values: list[Any]) -> BinaryColumn:
    nulls = values.count(None)
    parts = [b"" if value is None else value for value in values] if nulls else values
    return _validity(values, nulls), _offsets(map(len, parts)), b"".join(parts), nulls


def _maps(values: list[dict[bytes, bytes]]) -> MapColumn:
    keys = _binary(_joined(values))
    texts = _binary(_joined(pairs.values() for pairs in values))
    return _offsets(map(len, values)), keys, texts


_INT, _LONG = _fixed("i"), _fixed("q")

COLUMNS: dict[str, tuple[Read, Callable[[list[Any]], Any]]] = {
    "value": (_values, _binary),
    "key": (_of_messages(message_key), _binary),
    "message_id": (_message_ids, _binary),
    "publish_time": (_of_entries(_publish_micros), _LONG),
    "event_time": (_event_micros, _LONG),
    "properties": (_properties, _maps),
    "ledger_id": (_of_entries(lambda entry: entry.ledger_id), _LONG),
    "entry_id": (_of_entries(lambda entry: entry.entry_id), _LONG),
    "batch_index": (_batch_indexes, _INT),
    "producer_name": (_of_entries(_producer_name), _binary),
    "sequence_id": (_sequence_ids, _LONG),
    "ordering_key": (_of_messages(_ordering_key), _binary),
    "schema_version": (_of_entries(_schema_version), _binary),
    "redelivery_count": (_of_entries(lambda entry: entry.redelivery_count), _INT),
    "size": (_sizes, _INT),
    "index": (_broker_indexes, _LONG),
    "replicated_from": (_of_entries(_replicated_from), _binary),
}
"""How each column is read from rows, and built: a BinaryColumn, FixedColumn or MapColumn.

Times are in microseconds, a batch index is -1 outside of a batch.
"""

REPEATED: dict[str, Callable[[ReceivedEntry], bytes | None]] = {
    "producer_name": _producer_name,
    "schema_version": _schema_version,
    "replicated_from": _replicated_from,
}
"""What columns repeat for each message of a batch, of any length."""


def _are_exact(rows: BlockColumns) -> bool:
    columns = rows.options.columns
    if "key" in columns and any(starmap(_has_base64_key, rows.spans)):
        return False
    return "event_time" not in columns or max(own.event_time for own in rows.owns) <= LAST_MILLIS


def _has_base64_key(entry: ReceivedEntry, run: range) -> bool:
    if entry.batch is None:
        return entry.metadata.partition_key_b64_encoded
    return any(index in run for index in entry.batch.base64)


def _version_runs(spans: Sequence[_Span], starts: Sequence[int]) -> VersionRuns:
    places: dict[bytes, int] = {}
    versions = (entry.metadata.schema_version for entry, _ in spans)
    numbers = [places.setdefault(version, len(places)) for version in versions]
    runs = groupby(zip(starts, numbers, strict=True), itemgetter(1))
    firsts = [next(run) for _, run in runs]
    starts, numbers = ([pair[place] for pair in firsts] for place in (0, 1))
    return list(places), _packed("i", starts), _packed("i", numbers)
