"""Decoded columns → Arrow record batches, with only the requested columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pulsar_spark.errors import CorruptMessage, PulsarError
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol import blocks
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.arrow.arithmetic import number
from pulsar_spark.schema.arrow.arrays import (
    MAX_CELLS,
    as_type,
    binaries,
    booleans,
    strings,
    widest_item,
    width,
)
from pulsar_spark.schema.codec import Undecodable, typed_columns
from pulsar_spark.schema.registry import version_number
from pulsar_spark.schema.table.column_arrays import array_of
from pulsar_spark.schema.table.metadata_columns import SOURCES
from pulsar_spark.schema.table.names import KEY, PARTITION, TOPIC, VALUE
from pulsar_spark.schema.table.value_decoder import DecodedValues, Expect, ValueDecoder, Writers

logger = get_logger(__name__)

MAX_ROWS = 10_000
MAX_BYTES = 4 * 1024 * 1024

FAILFAST = "FAILFAST"
PERMISSIVE = "PERMISSIVE"
DROPMALFORMED = "DROPMALFORMED"

CORRUPT = "corrupt record"
"""Stands for the column with the bytes of values that cannot be decoded."""


@dataclass(frozen=True, slots=True)
class PublishTimes:
    """When messages to take were published, in milliseconds; plain data. None means no bound.

    `before` is exclusive.
    """

    since: int | None = None
    before: int | None = None


@dataclass(frozen=True, slots=True)
class Projection:
    """The content of a record batch: `columns` are the sources of the Arrow schema's fields.

    Each source is a name of `table/names`, a field of the value, or CORRUPT. `schema` decodes
    values, None for raw bytes; `mode` says how to handle values that cannot be decoded, and
    `as_java` whether JSON is read as Java's client does. Plain data.
    """

    columns: tuple[str, ...]
    schema: SchemaInfo | None = None
    mode: str = FAILFAST
    times: PublishTimes = field(default_factory=PublishTimes)
    as_java: bool = False


class RecordBatchBuilder:
    """Builds the record batches of one topic partition.

    A batch has at most `max_rows` rows and about `max_bytes` bytes, with what its rows repeat of
    their entries, unless one message is larger.
    `writers` returns the schemas that values were written with, and is told with `expect` which
    will be needed; without it, that is the projection's. Not thread-safe.
    """

    def __init__(
        self,
        schema: pa.Schema,
        projection: Projection,
        topic: str,
        partition: int,
        writers: Writers | None = None,
        *,
        expect: Expect | None = None,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._schema = schema
        self._columns = projection.columns
        self._schema_info = projection.schema
        self._mode = projection.mode
        self._times = projection.times
        self._decoder = _value_decoder(projection, writers, expect)
        self._decoded_names = frozenset(() if self._decoder is None else self._decoder.names)
        # What messages have besides their decoded values.
        self._read_columns = [
            name for name in self._columns if name in SOURCES and name not in self._decoded_names
        ]
        self._needs_values = not {VALUE, CORRUPT}.isdisjoint(projection.columns)
        self._topic = topic
        self._partition = partition
        # If a value can become very many columns, batches must be smaller.
        kinds = [] if self._decoder is None else self._decoder.types
        self._max_rows = min(max_rows, 2 * MAX_CELLS // max(sum(map(width, kinds)), 1))
        items = max(map(widest_item, kinds), default=0)
        self._max_bytes = min(max_bytes, 2 * MAX_CELLS // max(items, 1))
        self.messages = 0
        """Messages in batches so far."""
        self.size = 0
        """Their approximate size in bytes."""
        self.corrupt = 0
        """Rows so far whose value is null because it could not be decoded."""
        self.dropped = 0
        """Rows dropped so far because their value could not be decoded."""

    def block_options(
        self, end: tuple[int, int, int] | None, max_payload: int
    ) -> blocks.BlockOptions:
        """Return the options of a block decoder whose columns `add_columns` accepts.

        `end` is the range's end, `max_payload` the maximum decompressed size of a payload.
        """
        wanted = {SOURCES[name][0] for name in self._read_columns}
        if self._decoder is not None or self._needs_values:
            wanted.add("value")
        if KEY in self._decoded_names:
            wanted.add("key")
        return blocks.BlockOptions(
            self._topic,
            self._partition,
            frozenset(wanted),
            end,
            self._max_rows,
            self._max_bytes,
            max_payload,
            self._times.since,
            self._times.before,
        )

    def build(self, columns: blocks.Columns) -> Iterator[pa.RecordBatch]:
        """Yield the record batch of a decoder's columns, unless all its rows are dropped.

        Raises CorruptMessage (and its kinds) for a value that cannot be decoded.
        """
        batch = self._build(columns)
        self.messages += columns.rows
        self.size += columns.nbytes
        if batch.num_rows:
            yield batch

    def _build(self, columns: blocks.Columns) -> pa.RecordBatch:
        found = self._decode(columns)
        if found.bad and self._mode == FAILFAST:
            raise self._undecodable(columns, found)
        arrays = [
            self._column(name, kind, columns, found)
            for name, kind in zip(self._columns, self._schema.types, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if found.bad and self._mode == DROPMALFORMED:
            batch = self._without(batch, found.bad)
        elif found.bad:
            self.corrupt += len({undecodable.row for undecodable in found.bad})
        return batch

    def _decode(self, columns: blocks.Columns) -> DecodedValues:
        if self._decoder is not None:
            return self._decoder.decode(columns, self._topic)
        if not self._needs_values:
            return _NOTHING
        raw = array_of(columns, "value", pa.binary())
        return DecodedValues(raw, {VALUE: raw})

    def _column(
        self, name: str, target: pa.DataType, columns: blocks.Columns, found: DecodedValues
    ) -> pa.Array:
        column: Any = found.columns.get(name)
        if column is not None:
            pass
        elif name == CORRUPT:
            column = _corrupt_records(found, target)
        elif name == TOPIC:
            column = pa.repeat(strings([self._topic])[0], columns.rows)
        elif name == PARTITION:
            column = pa.repeat(number(self._partition, pa.int32()), columns.rows)
        else:
            column = array_of(columns, *SOURCES[name])
        # Spark's types may have other names for nested fields, and other offset widths.
        return as_type(column, target)

    def _without(self, batch: pa.RecordBatch, bad: Sequence[Undecodable]) -> pa.RecordBatch:
        dropped = {found.row for found in bad}
        # Log only the first one; the number is logged at the end.
        if not self.dropped:
            logger.warning(
                "%s: %d values cannot be decoded; their rows are dropped. The first one: %s%s",
                self._topic,
                len(dropped),
                _field(bad[0]),
                bad[0].reason,
            )
        self.dropped += len(dropped)
        return batch.filter(booleans([row not in dropped for row in range(batch.num_rows)]))

    def _undecodable(self, columns: blocks.Columns, found: DecodedValues) -> PulsarError:
        assert self._schema_info is not None
        first, version = found.bad[0], found.bad_version
        ledger_id, entry_id, index, size = columns.locate(first.row)
        message_id = MessageIdAdv(ledger_id, entry_id, self._partition, index, size)
        if found.unreadable is not None:
            return found.unreadable.with_context(message_id=message_id)
        written = f" of schema version {version_number(version)}" if version else ""
        return CorruptMessage(
            f"a value{written} does not decode as {self._schema_info.type_name}: "
            f"{_field(first)}{first.reason}",
            "Read with valueFormat=raw, or set mode to PERMISSIVE or DROPMALFORMED.",
            topic=self._topic,
            message_id=message_id,
        )


_NOTHING = DecodedValues(binaries([]), {})


def _value_decoder(
    projection: Projection, writers: Writers | None, expect: Expect | None
) -> ValueDecoder | None:
    """Return the decoder of the requested columns, None if nothing needs decoding."""
    schema = projection.schema
    if schema is None:
        return None
    found = typed_columns(schema)
    typed = set(found.fields.names) | ({KEY} if found.key is not None else set())
    names = [name for name in projection.columns if name in typed]
    if not names:
        if projection.mode != DROPMALFORMED and CORRUPT not in projection.columns:
            return None
        # Whether a value can be decoded matters even if no field of it is requested.
        names = [*found.fields.names, *typed.difference(found.fields.names)]
    given = writers or (lambda version: schema)
    return ValueDecoder(schema, names, given, expect=expect, as_java=projection.as_java)


def _field(found: Undecodable) -> str:
    return f"field {found.field}: " if found.field else ""


def _corrupt_records(found: DecodedValues, kind: pa.DataType) -> pa.Array:
    records: list[Any] = [None] * len(found.raw)
    as_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    for bad in found.bad:
        value = found.raw[bad.row].as_py() if bad.data is None else bad.data
        records[bad.row] = value.decode("utf-8", "replace") if as_text else value
    return strings(records) if as_text else binaries(records)
