"""The messages of a record batch as columns, whatever their source.

Most come as blocks, whose columns are built during reading (`BlockMessages`). The others are
entries of the careful path (`EntryMessages`). Both give the same columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import pyarrow as pa

from pulsar_spark.protocol.blocks import (
    ArrowBuffer,
    BinaryColumn,
    Columns,
    FixedColumn,
    VersionRuns,
)
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.schema.arrow.arrays import repeated
from pulsar_spark.schema.table import names
from pulsar_spark.schema.table.columns import BUILDERS, keys, values
from pulsar_spark.schema.table.runs import Runs


class Messages(Protocol):
    """Messages of one topic partition, in order."""

    topic: str
    count: int

    @property
    def version_runs(self) -> VersionRuns:
        """Which messages were written with which schema version."""

    def values(self) -> pa.Array:
        """Return the payloads as a binary array; null values are null."""

    def keys(self) -> pa.Array:
        """Return the keys as a binary array, null if missing."""

    def column(self, name: str) -> pa.Array:
        """Return a column of `table/names` other than the value."""

    def locate(self, row: int) -> MessageIdAdv:
        """Return the id of a message."""


class EntryMessages:
    """Messages of entries."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self.topic = runs.topic
        self.count = runs.count

    @property
    def version_runs(self) -> VersionRuns:
        """As in Messages; equal neighbours are not merged."""
        runs = self._runs.runs
        starts = array("i", accumulate((len(run.rows) for run in runs[:-1]), initial=0))
        places: dict[bytes, int] = {}
        versions = (run.entry.metadata.schema_version for run in runs)
        numbers = array("i", [places.setdefault(version, len(places)) for version in versions])
        return list(places), starts, numbers

    def values(self) -> pa.Array:
        """As in Messages."""
        return values(self._runs)

    def keys(self) -> pa.Array:
        """As in Messages."""
        return keys(self._runs)

    def column(self, name: str) -> pa.Array:
        """As in Messages."""
        return BUILDERS[name](self._runs)

    def locate(self, row: int) -> MessageIdAdv:
        """As in Messages."""
        return self._runs.locate(row)


class BlockMessages:
    """Messages of blocks."""

    def __init__(self, columns: Columns, topic: str, partition: int) -> None:
        self._columns = columns
        self._partition = partition
        self.topic = topic
        self.count = columns.rows

    @property
    def version_runs(self) -> VersionRuns:
        """As in Messages."""
        return self._columns.version_runs

    def values(self) -> pa.Array:
        """As in Messages."""
        return self._array("value", pa.binary())

    def keys(self) -> pa.Array:
        """As in Messages."""
        return self._array("key", pa.binary())

    def column(self, name: str) -> pa.Array:
        """As in Messages."""
        if name == names.TOPIC:
            return repeated(self.topic, pa.string(), self.count)
        if name == names.PARTITION:
            return repeated(self._partition, pa.int32(), self.count)
        return self._array(*BLOCK_COLUMNS[name])

    def locate(self, row: int) -> MessageIdAdv:
        """As in Messages."""
        ledger_id, entry_id, index, size = self._columns.locate(row)
        return MessageIdAdv(ledger_id, entry_id, self._partition, index, size)

    def _array(self, column: str, kind: pa.DataType) -> pa.Array:
        found: Any = getattr(self._columns, column)
        if pa.types.is_map(kind):
            offsets, map_keys, items = found
            return pa.MapArray.from_arrays(
                _fixed((None, offsets, 0), pa.int32(), self.count + 1),
                _variable(map_keys, pa.string()),
                _variable(items, pa.string()),
            )
        if pa.types.is_binary(kind) or pa.types.is_string(kind):
            return _variable(found, kind)
        return _fixed(found, kind, self.count)


class JoinedMessages:
    """Messages of several parts, one after the other."""

    def __init__(self, parts: Sequence[Messages]) -> None:
        self._parts = parts
        self.topic = parts[0].topic
        self.count = sum(part.count for part in parts)

    @property
    def version_runs(self) -> VersionRuns:
        """As in Messages; equal neighbours are not merged."""
        places: dict[bytes, int] = {}
        starts, numbers = array("i"), array("i")
        before = 0
        for part in self._parts:
            versions, own_starts, own_numbers = part.version_runs
            own = [places.setdefault(version, len(places)) for version in versions]
            starts.extend([before + start for start in array("i", own_starts)])
            numbers.extend([own[number] for number in array("i", own_numbers)])
            before += part.count
        return list(places), starts, numbers

    def values(self) -> pa.Array:
        """As in Messages."""
        return pa.concat_arrays([part.values() for part in self._parts])

    def keys(self) -> pa.Array:
        """As in Messages."""
        return pa.concat_arrays([part.keys() for part in self._parts])

    def column(self, name: str) -> pa.Array:
        """As in Messages."""
        return pa.concat_arrays([part.column(name) for part in self._parts])

    def locate(self, row: int) -> MessageIdAdv:
        """As in Messages."""
        for part in self._parts:
            if row < part.count:
                return part.locate(row)
            row -= part.count
        raise IndexError("the record batch has fewer rows")


def _variable(column: BinaryColumn, kind: pa.DataType) -> pa.Array:
    validity, offsets, data, nulls = column
    buffers = [_validity(validity), arrow_buffer(offsets), arrow_buffer(data)]
    return pa.Array.from_buffers(kind, buffers[1].size // 4 - 1, buffers, nulls)


def _fixed(column: FixedColumn, kind: pa.DataType, count: int) -> pa.Array:
    validity, data, nulls = column
    return pa.Array.from_buffers(kind, count, [_validity(validity), arrow_buffer(data)], nulls)


def _validity(bits: bytes | None) -> pa.Buffer | None:
    return None if bits is None else pa.py_buffer(bits)


def arrow_buffer(data: ArrowBuffer) -> pa.Buffer:
    """Return the same bytes as a buffer of Arrow's, without a copy."""
    if isinstance(data, bytes | array):
        return pa.py_buffer(data)
    return pa.foreign_buffer(data.address, data.size, data)


_TIME = pa.timestamp("us", tz="UTC")

BLOCK_COLUMNS: dict[str, tuple[str, pa.DataType]] = {
    names.KEY: ("key", pa.binary()),
    names.MESSAGE_ID: ("message_id", pa.binary()),
    names.PUBLISH_TIME: ("publish_time", _TIME),
    names.EVENT_TIME: ("event_time", _TIME),
    names.PROPERTIES: ("properties", pa.map_(pa.string(), pa.string())),
    names.LEDGER_ID: ("ledger_id", pa.int64()),
    names.ENTRY_ID: ("entry_id", pa.int64()),
    names.BATCH_INDEX: ("batch_index", pa.int32()),
    names.PRODUCER_NAME: ("producer_name", pa.string()),
    names.SEQUENCE_ID: ("sequence_id", pa.int64()),
    names.ORDERING_KEY: ("ordering_key", pa.binary()),
    names.SCHEMA_VERSION: ("schema_version", pa.binary()),
    names.REDELIVERY_COUNT: ("redelivery_count", pa.int32()),
    names.SIZE: ("size", pa.int32()),
    names.INDEX: ("index", pa.int64()),
    names.REPLICATED_FROM: ("replicated_from", pa.string()),
}
"""A block's column and its type, by name; other columns are constant."""
