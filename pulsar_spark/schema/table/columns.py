"""One Arrow column per function, built from the runs of a record batch.

These are entries of the careful path; most messages come in blocks, whose columns are built during
reading. Values that an entry's messages share are built once and repeated for its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pulsar_spark.protocol.validation import as_text
from pulsar_spark.schema.arrow.arrays import binaries, integers, make, repeated, strings
from pulsar_spark.schema.table import names
from pulsar_spark.schema.table.runs import Runs

if TYPE_CHECKING:
    from pulsar_spark.engine.consumers.entries import ReceivedEntry

_MAX_LONG = 2**63 - 1
# The last millisecond of the year 9999: Spark SQL and Python have no later times.
_LAST_MILLIS = 253_402_300_799_999

_BYTES = pa.binary()


# --- values -------------------------------------------------------------------------------


def values(runs: Runs) -> pa.Array:
    """Return the payloads as a binary array; null values are null."""
    found: list[Any] = []
    for run in runs.runs:
        batch = run.batch
        if batch is None:
            entry = run.entry
            found.extend([None if entry.metadata.null_value else entry.payload])
        else:
            found.extend(batch.values(run.rows))
    return make(found, _BYTES)


# --- ids ----------------------------------------------------------------------------------


def message_ids(runs: Runs) -> pa.Array:
    """Return the serialized id of each message."""
    found = [run.message_id(row, runs.partition) for run in runs.runs for row in run.rows]
    return binaries([message_id.serialize() for message_id in found])


def batch_indexes(runs: Runs) -> pa.Array:
    """Return the index of each message in its batch, -1 outside of one."""
    found: list[Any] = []
    for run in runs.runs:
        found.extend((-1,) if run.batch is None else run.rows)
    return make(found, pa.int32())


def indexes(runs: Runs) -> pa.Array:
    """Return the broker's message index, null if it sends none."""
    found: list[Any] = []
    for run in runs.runs:
        metadata = run.entry.broker_entry_metadata
        if metadata is None or not metadata.HasField("index"):
            found.extend([None] * len(run.rows))
            continue
        # The index is that of the entry's last message.
        count = 1 if run.batch is None else run.batch.count
        first = metadata.index - (count - 1)
        found.extend([_signed(first + row) for row in run.rows])
    return make(found, pa.int64())


# --- per message --------------------------------------------------------------------------


def keys(runs: Runs) -> pa.Array:
    """Return the keys as bytes, null if missing."""
    found: list[Any] = []
    for run in runs.runs:
        if run.batch is None:
            found.extend([run.single_key()])
            continue
        found.extend(run.batch.keys(run.rows) or [None] * len(run.rows))
    return make(found, _BYTES)


def event_times(runs: Runs) -> pa.Array:
    """Return the event times in microseconds, null if not set."""
    kind = pa.timestamp("us", tz="UTC")
    return _from_metadata(runs, kind, lambda metadata: _event_micros(metadata.event_time))


def _event_micros(millis: int) -> int | None:
    return min(millis, _LAST_MILLIS) * 1000 or None


def ordering_keys(runs: Runs) -> pa.Array:
    """Return the ordering keys, null if missing."""
    return _from_metadata(
        runs,
        _BYTES,
        lambda metadata: metadata.ordering_key if metadata.HasField("ordering_key") else None,
    )


def _from_metadata(runs: Runs, kind: pa.DataType, read: Callable[[Any], Any]) -> pa.Array:
    """Build a column that is null for most messages."""
    if not any(run.batch is None or run.batch.has_extras for run in runs.runs):
        return pa.nulls(runs.count, kind)
    found: list[Any] = []
    for run in runs.runs:
        if run.batch is None:
            found.extend([read(run.entry.metadata)])
        elif extras := run.extras:
            found.extend([read(extras[row]) if row in extras else None for row in run.rows])
        else:
            found.extend([None] * len(run.rows))
    return make(found, kind)


def properties(runs: Runs) -> pa.Array:
    """Return the properties as maps; the last value of a repeated key counts."""
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
    """Return the sequence ids; if only the batch has one, its messages count up from it."""
    found: list[Any] = []
    for run in runs.runs:
        first = run.entry.metadata.sequence_id
        if run.batch is None:
            found.extend([_signed(first)])
            continue
        metadata = run.batch.metadata(run.rows)
        found.extend(
            [
                _signed(own.sequence_id if own.HasField("sequence_id") else first + row)
                for row, own in zip(run.rows, metadata, strict=True)
            ]
        )
    return make(found, pa.int64())


def sizes(runs: Runs) -> pa.Array:
    """Return the sizes of the payloads in bytes."""
    found: list[Any] = []
    for run in runs.runs:
        if run.batch is None:
            found.extend([len(run.entry.payload)])
        else:
            found.extend(run.batch.sizes(run.rows))
    return make(found, pa.int32())


# --- per entry ----------------------------------------------------------------------------


def topics(runs: Runs) -> pa.Array:
    """Return the topic partition's full name."""
    return repeated(runs.topic, pa.string(), runs.count)


def partitions(runs: Runs) -> pa.Array:
    """Return the partition's number, -1 if the topic is not partitioned."""
    return repeated(runs.partition, pa.int32(), runs.count)


def _per_entry(
    kind: pa.DataType, read: Callable[[ReceivedEntry], Any]
) -> Callable[[Runs], pa.Array]:
    def build(runs: Runs) -> pa.Array:
        return runs.spread(make([read(run.entry) for run in runs.runs], kind))

    return build


def _signed(number: int) -> int:
    # Java reads the wire's unsigned numbers as signed ones, and wraps on overflow.
    return (number + 2**63) % 2**64 - 2**63 if number > _MAX_LONG else number


def _publish_micros(entry: ReceivedEntry) -> int:
    return min(entry.metadata.publish_time, _LAST_MILLIS) * 1000


def _producer_name(entry: ReceivedEntry) -> str:
    return as_text(entry.metadata.producer_name)


def _schema_version(entry: ReceivedEntry) -> bytes | None:
    return entry.metadata.schema_version or None


def _replicated_from(entry: ReceivedEntry) -> str | None:
    metadata = entry.metadata
    return as_text(metadata.replicated_from) if metadata.HasField("replicated_from") else None


SHARED: dict[str, Callable[[ReceivedEntry], str | bytes | None]] = {
    names.PRODUCER_NAME: _producer_name,
    names.SCHEMA_VERSION: _schema_version,
    names.REPLICATED_FROM: _replicated_from,
}
"""Texts of any length that an entry's messages share."""


def shared_size(entry: ReceivedEntry, columns: Iterable[str]) -> int:
    """Return how many bytes some of the columns `SHARED` repeat for each of an entry's messages."""
    size = 0
    for name in columns:
        text = SHARED[name](entry)
        size += len(text.encode() if isinstance(text, str) else text or b"")
    return size


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
    names.PRODUCER_NAME: _per_entry(pa.string(), _producer_name),
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
"""Columns that need the metadata of a batch's messages, not only their payloads' positions."""
