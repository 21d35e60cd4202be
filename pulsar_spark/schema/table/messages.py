"""The messages of a record batch: a decoder's columns as Arrow's arrays."""

from __future__ import annotations

from array import array

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
from pulsar_spark.schema.table.metadata_columns import SOURCES


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
        return self._array(*SOURCES[name])

    def locate(self, row: int) -> MessageIdAdv:
        """Return the id of a message."""
        ledger_id, entry_id, index, size = self._columns.locate(row)
        return MessageIdAdv(ledger_id, entry_id, self._partition, index, size)

    def _array(self, column: str, kind: pa.DataType) -> pa.Array:
        found = self._columns.columns[column]
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
