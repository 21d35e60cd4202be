"""The messages of a record batch: a decoder's columns as Arrow's arrays."""

from __future__ import annotations

from array import array
from typing import Any

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


class Messages:
    """Messages of one topic partition, in order."""

    def __init__(self, columns: Columns, topic: str, partition: int) -> None:
        self._columns = columns
        self._partition = partition
        self.topic = topic
        self.count = columns.rows

    @property
    def version_runs(self) -> VersionRuns:
        """Which messages were written with which schema version."""
        return self._columns.version_runs

    def values(self) -> pa.Array:
        """Return the payloads as a binary array; null values are null."""
        return self._array("value", pa.binary())

    def keys(self) -> pa.Array:
        """Return the keys as a binary array, null if missing."""
        return self._array("key", pa.binary())

    def column(self, name: str) -> pa.Array:
        """Return a column of `table/names` other than the value."""
        if name == names.TOPIC:
            return repeated(self.topic, pa.string(), self.count)
        if name == names.PARTITION:
            return repeated(self._partition, pa.int32(), self.count)
        return self._array(*BLOCK_COLUMNS[name])

    def locate(self, row: int) -> MessageIdAdv:
        """Return the id of a message."""
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
