"""One Arrow column per function: from the runs of a record batch.

What is the same for a whole entry is built once per entry and spread over its rows. What
differs by message is computed over the entry's buffers; only small runs, metadata that few
messages have, and values that need it go through Python objects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.protocol.batches import UnpackedBatch
from pulsar_spark.protocol.message_id import MessageIdAdv, id_tails
from pulsar_spark.protocol.validation import as_text
from pulsar_spark.schema.arrow.arithmetic import even_numbers
from pulsar_spark.schema.arrow.arrays import binaries, integers, make, repeated, strings
from pulsar_spark.schema.table import names
from pulsar_spark.schema.table.runs import Runs

if TYPE_CHECKING:
    from pulsar_spark.engine.entries import ReceivedEntry

# Below this number of rows Python's lists are faster than a round through Arrow.
_SMALL = 48
_CACHED_INDEXES = 10_000
_MAX_LONG = 2**63 - 1
# The last millisecond of the year 9999: neither Spark's SQL nor Python has later times.
_LAST_MILLIS = 253_402_300_799_999

_BYTES = pa.binary()

# The fields of an id are serialized in the order of their numbers, and batch_index and batch_size
# have the highest ones but for chunks, which are never in a batch.
_ID_PREFIX = len(MessageIdAdv(0, 0).serialize())


class _Pieces:
    """A column in the making: values and whole arrays, in order."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._arrays: list[pa.Array] = []
        self._pending: list[Any] = []

    def values(self, values: Sequence[Any]) -> None:
        self._pending.extend(values)

    def array(self, array: pa.Array) -> None:
        self._flush()
        self._arrays.append(array)

    def _flush(self) -> None:
        if self._pending:
            self._arrays.append(make(self._pending, self._kind))
            self._pending = []

    def finish(self) -> pa.Array:
        self._flush()
        if len(self._arrays) == 1:
            return self._arrays[0]
        if not self._arrays:
            return make([], self._kind)
        return pa.concat_arrays(self._arrays)


# --- values -------------------------------------------------------------------------------


def values(runs: Runs) -> pa.Array:
    """Return the payloads as a binary array; null values are null."""
    pieces = _Pieces(_BYTES)
    for run in runs.runs:
        batch = run.batch
        if batch is None:
            entry = run.entry
            pieces.values([None if entry.metadata.null_value else entry.payload])
        elif len(run.rows) < _SMALL:
            pieces.values(_few_values(batch, run.rows))
        else:
            pieces.array(_taken_values(batch, run.rows))
    return pieces.finish()


def _few_values(batch: UnpackedBatch, rows: Sequence[int]) -> list[Any]:
    body, edges, nulls = batch.body, batch.edges, batch.nulls
    return [None if row in nulls else body[edges[2 * row] : edges[2 * row + 1]] for row in rows]


def _taken_values(batch: UnpackedBatch, rows: Sequence[int]) -> pa.Array:
    # Taken as offsets, the edges cut the body into payloads (even) and what lies between.
    slots = 2 * batch.count - 1
    parts = pa.Array.from_buffers(
        _BYTES, slots, [None, pa.py_buffer(batch.edges), pa.py_buffer(batch.body)]
    )
    if not batch.nulls and isinstance(rows, range):
        return parts.take(even_numbers(rows.stop).slice(rows.start))
    nulls = frozenset(batch.nulls)
    return parts.take(integers([None if row in nulls else 2 * row for row in rows], pa.int32()))


# --- ids ----------------------------------------------------------------------------------


def message_ids(runs: Runs) -> pa.Array:
    """Return the serialized id of each message: what differs in a batch is its last part."""
    prefixes: list[bytes] = []
    tails = _Pieces(_BYTES)
    for run in runs.runs:
        batch = run.batch
        if batch is None:
            prefixes.append(run.message_id(run.rows[0], runs.partition).serialize())
            tails.values((b"",))
            continue
        entry = run.entry
        prefixes.append(MessageIdAdv(entry.ledger_id, entry.entry_id, runs.partition).serialize())
        tails.array(_id_tails(batch.count, run.rows))
    spread = runs.spread(binaries(prefixes))
    return pc.binary_join_element_wise(spread, tails.finish(), binaries([b""])[0])


def _id_tails(batch_size: int, rows: Sequence[int]) -> pa.Array:
    if batch_size > _CACHED_INDEXES:
        return binaries(id_tails(rows, batch_size))
    tails = _cached_tails(batch_size)
    if isinstance(rows, range):
        return tails.slice(rows.start, len(rows))
    return tails.take(integers(rows, pa.int32()))


@lru_cache(64)
def _cached_tails(batch_size: int) -> pa.Array:
    # Batches are of any size: only what comes before the size is made row by row, and once.
    indexes = _index_parts(1 << batch_size.bit_length()).slice(0, batch_size)
    size = MessageIdAdv(0, 0, batch_size=batch_size).serialize()[_ID_PREFIX:]
    return pc.binary_join_element_wise(indexes, binaries([size])[0], binaries([b""])[0])


@cache
def _index_parts(count: int) -> pa.Array:
    # An id without a size: it ends with the index.
    return binaries(id_tails(range(count)))


def batch_indexes(runs: Runs) -> pa.Array:
    """Return the index of each message in its batch, -1 outside of one."""
    pieces = _Pieces(pa.int32())
    for run in runs.runs:
        pieces.values((-1,) if run.batch is None else run.rows)
    return pieces.finish()


def indexes(runs: Runs) -> pa.Array:
    """Return the index that the broker counts messages by, null where it sends none."""
    pieces = _Pieces(pa.int64())
    for run in runs.runs:
        metadata = run.entry.broker_entry_metadata
        if metadata is None or not metadata.HasField("index"):
            pieces.values([None] * len(run.rows))
            continue
        # It is that of the entry's last message.
        count = 1 if run.batch is None else run.batch.count
        first = metadata.index - (count - 1)
        pieces.values([_signed(first + row) for row in run.rows])
    return pieces.finish()


# --- per message --------------------------------------------------------------------------


def keys(runs: Runs) -> pa.Array:
    """Return the keys as bytes, null where a message has none."""
    pieces = _Pieces(_BYTES)
    for run in runs.runs:
        if run.batch is None:
            pieces.values([run.single_key()])
            continue
        found = run.batch.keys(run.rows)
        if found is None:
            pieces.array(pa.nulls(len(run.rows), _BYTES))
        else:
            pieces.values(found)
    return pieces.finish()


def event_times(runs: Runs) -> pa.Array:
    """Return the event times in microseconds, null where none is set."""
    kind = pa.timestamp("us", tz="UTC")
    return _from_metadata(runs, kind, lambda metadata: _event_micros(metadata.event_time))


def _event_micros(millis: int) -> int | None:
    return millis * 1000 if 0 < millis <= _LAST_MILLIS else None


def ordering_keys(runs: Runs) -> pa.Array:
    """Return the ordering keys, null where a message has none."""
    return _from_metadata(
        runs,
        _BYTES,
        lambda metadata: metadata.ordering_key if metadata.HasField("ordering_key") else None,
    )


def _from_metadata(runs: Runs, kind: pa.DataType, read: Callable[[Any], Any]) -> pa.Array:
    """Build a column of something that few messages have."""
    if not any(run.batch is None or run.batch.has_extras for run in runs.runs):
        return pa.nulls(runs.count, kind)
    pieces = _Pieces(kind)
    for run in runs.runs:
        if run.batch is None:
            pieces.values([read(run.entry.metadata)])
        elif extras := run.extras:
            pieces.values([read(extras[row]) if row in extras else None for row in run.rows])
        else:
            pieces.values([None] * len(run.rows))
    return pieces.finish()


def properties(runs: Runs) -> pa.Array:
    """Return the properties as maps; of a repeated key the last value counts."""
    if not any(run.batch is None or run.batch.has_extras for run in runs.runs):
        return _empty_maps(runs.count)
    offsets = [0]
    all_keys: list[str] = []
    all_values: list[str] = []
    for run in runs.runs:
        extras = None if run.batch is None else run.extras
        if extras is not None and not extras:
            offsets.extend([len(all_keys)] * len(run.rows))
            continue
        for row in run.rows:
            metadata = run.entry.metadata if extras is None else extras.get(row)
            if metadata is not None and metadata.properties:
                found = {as_text(item.key): as_text(item.value) for item in metadata.properties}
                all_keys.extend(found)
                all_values.extend(found.values())
            offsets.append(len(all_keys))
    return pa.MapArray.from_arrays(
        integers(offsets, pa.int32()),
        strings(all_keys),
        strings(all_values),
    )


def _empty_maps(count: int) -> pa.Array:
    zeros = pa.py_buffer(bytes(4 * (count + 1)))
    offsets = pa.Array.from_buffers(pa.int32(), count + 1, [None, zeros])
    return pa.MapArray.from_arrays(offsets, strings([]), strings([]))


def sequence_ids(runs: Runs) -> pa.Array:
    """Return the sequence ids; where a batch has only its own, its messages count on from it."""
    pieces = _Pieces(pa.int64())
    for run in runs.runs:
        first = run.entry.metadata.sequence_id
        if run.batch is None:
            pieces.values([_signed(first)])
            continue
        metadata = run.batch.metadata(run.rows)
        pieces.values(
            [
                _signed(own.sequence_id if own.HasField("sequence_id") else first + row)
                for row, own in zip(run.rows, metadata, strict=True)
            ]
        )
    return pieces.finish()


def sizes(runs: Runs) -> pa.Array:
    """Return the sizes of the payloads in bytes."""
    pieces = _Pieces(pa.int32())
    for run in runs.runs:
        if run.batch is None:
            pieces.values([len(run.entry.payload)])
        else:
            edges = run.batch.edges
            pieces.values([edges[2 * row + 1] - edges[2 * row] for row in run.rows])
    return pieces.finish()


# --- per entry ----------------------------------------------------------------------------


def topics(runs: Runs) -> pa.Array:
    """Return the topic partition's full name."""
    return repeated(runs.topic, pa.string(), runs.count)


def partitions(runs: Runs) -> pa.Array:
    """Return the number of the partition, -1 on a topic without."""
    return repeated(runs.partition, pa.int32(), runs.count)


def _per_entry(
    kind: pa.DataType, read: Callable[[ReceivedEntry], Any]
) -> Callable[[Runs], pa.Array]:
    def build(runs: Runs) -> pa.Array:
        return runs.spread(make([read(run.entry) for run in runs.runs], kind))

    return build


def _signed(number: int) -> int:
    # Java keeps the wire's unsigned numbers as signed ones, and counts beyond their end.
    return (number + 2**63) % 2**64 - 2**63 if number > _MAX_LONG else number


def _publish_micros(entry: ReceivedEntry) -> int:
    return min(entry.metadata.publish_time, _LAST_MILLIS) * 1000


def _schema_version(entry: ReceivedEntry) -> bytes | None:
    return entry.metadata.schema_version or None


def _replicated_from(entry: ReceivedEntry) -> str | None:
    metadata = entry.metadata
    return as_text(metadata.replicated_from) if metadata.HasField("replicated_from") else None


BUILDERS: dict[str, Callable[[Runs], pa.Array]] = {
    names.KEY: keys,
    names.TOPIC: topics,
    names.MESSAGE_ID: message_ids,
    names.PUBLISH_TIME: _per_entry(pa.timestamp("us", tz="UTC"), _publish_micros),
    names.EVENT_TIME: event_times,
    names.PROPERTIES: properties,
    names.PARTITION: partitions,
    names.LEDGER_ID: _per_entry(pa.int64(), lambda entry: entry.ledger_id),
    names.ENTRY_ID: _per_entry(pa.int64(), lambda entry: entry.entry_id),
    names.BATCH_INDEX: batch_indexes,
    names.PRODUCER_NAME: _per_entry(
        pa.string(), lambda entry: as_text(entry.metadata.producer_name)
    ),
    names.SEQUENCE_ID: sequence_ids,
    names.ORDERING_KEY: ordering_keys,
    names.SCHEMA_VERSION: _per_entry(_BYTES, _schema_version),
    names.REDELIVERY_COUNT: _per_entry(pa.int32(), lambda entry: entry.redelivery_count),
    names.SIZE: sizes,
    names.INDEX: indexes,
    names.REPLICATED_FROM: _per_entry(pa.string(), _replicated_from),
}
"""Builder of each column but the value's, by the column's name."""

NEED_METADATA = frozenset({names.KEY, names.EVENT_TIME, names.PROPERTIES, names.ORDERING_KEY})
"""Columns that need the metadata of the messages in a batch, not only where they lie."""
