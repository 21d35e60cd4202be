"""Entries → Arrow record batches of bounded size, with only the columns that are asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pulsar_spark.errors import CorruptMessage
from pulsar_spark.schema.arrow_arrays import binaries, booleans, strings
from pulsar_spark.schema.column_builders import BUILDERS, NEED_METADATA, values
from pulsar_spark.schema.column_names import VALUE
from pulsar_spark.schema.runs import RowFilter, Run, Runs, split_entry

if TYPE_CHECKING:
    from pulsar_spark.client.entries import ReceivedEntry

logger = logging.getLogger(__name__)

MAX_ROWS = 10_000
MAX_BYTES = 4 * 1024 * 1024

FAILFAST = "FAILFAST"
PERMISSIVE = "PERMISSIVE"
DROPMALFORMED = "DROPMALFORMED"

CORRUPT = "corrupt record"
"""Stands for the column that takes the bytes of values that do not decode."""

Decode = Callable[[pa.Array], tuple[pa.Array, Sequence[int]]]


@dataclass(frozen=True, slots=True)
class Projection:
    """What a record batch has: `columns` are the names behind the fields of the Arrow schema.

    `columns` holds names of `column_names`, or CORRUPT. `text` says that values are UTF-8
    text rather than bytes; `mode` what becomes of those that are not. Plain data.
    """

    columns: tuple[str, ...]
    text: bool = False
    mode: str = FAILFAST
    filter: RowFilter = field(default_factory=RowFilter)


class RecordBatchBuilder:
    """Builds the record batches of one topic partition.

    A batch has at most `max_rows` rows and about `max_bytes` bytes, unless a single message is
    larger. Not thread-safe.
    """

    def __init__(
        self,
        schema: pa.Schema,
        projection: Projection,
        topic: str,
        partition: int,
        *,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._schema = schema
        self._columns = projection.columns
        self._decode: Decode = _decode_text if projection.text else _decode_bytes
        self._mode = projection.mode
        self._filter = projection.filter
        self._wanted_entries = projection.filter.entries()
        self._filters_rows = (
            projection.filter.needs_keys or projection.filter.message_ids is not None
        )
        self._with_metadata = (
            not NEED_METADATA.isdisjoint(projection.columns) or projection.filter.needs_keys
        )
        # A value that is not asked for can only matter where it decides about the row.
        self._needs_values = not {VALUE, CORRUPT}.isdisjoint(projection.columns) or (
            projection.text and projection.mode == DROPMALFORMED
        )
        self._topic = topic
        self._partition = partition
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._runs: list[Run] = []
        self._rows = 0
        self._bytes = 0

    @property
    def pending_rows(self) -> int:
        """Rows that are not in a batch yet."""
        return self._rows

    def add(self, entry: ReceivedEntry) -> Iterator[pa.RecordBatch]:
        """Take the entry's messages, and yield the batches that are full by that.

        The iterator must be exhausted. Raises CorruptMessage (CorruptBatch, …) for an entry
        or a value that does not decode.
        """
        if not self._filter.takes_entry(entry.metadata.publish_time) or (
            self._wanted_entries is not None
            and (entry.ledger_id, entry.entry_id) not in self._wanted_entries
        ):
            return
        for run, size in split_entry(
            entry,
            with_metadata=self._with_metadata,
            max_rows=self._max_rows,
            max_bytes=self._max_bytes,
        ):
            if self._filters_rows:
                run = self._filter.select(run, self._partition)
                if not run.rows:
                    continue
            if self._rows + len(run.rows) > self._max_rows or (
                self._rows and self._bytes + size > self._max_bytes
            ):
                yield from self.flush()
            self._runs.append(run)
            self._rows += len(run.rows)
            self._bytes += size
        if self._rows >= self._max_rows or self._bytes >= self._max_bytes:
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield a batch of what is pending, if anything is."""
        if not self._rows:
            return
        runs = Runs(self._topic, self._partition, self._runs)
        self._runs, self._rows, self._bytes = [], 0, 0
        batch = self._build(runs)
        if batch.num_rows:
            yield batch

    def _build(self, runs: Runs) -> pa.RecordBatch:
        decoded: pa.Array | None = None
        raw: pa.Array | None = None
        bad: Sequence[int] = ()
        if self._needs_values:
            raw = values(runs)
            decoded, bad = self._decode(raw)
            if bad and self._mode == FAILFAST:
                raise self._undecodable(runs, bad[0])
        arrays = [
            self._column(name, kind, runs, decoded, raw, bad)
            for name, kind in zip(self._columns, self._schema.types, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if bad and self._mode == DROPMALFORMED:
            dropped = frozenset(bad)
            batch = batch.filter(booleans([row not in dropped for row in range(runs.count)]))
            logger.warning(
                "%s: %d values are not UTF-8; their rows are dropped", self._topic, len(bad)
            )
        return batch

    def _column(
        self,
        name: str,
        target: pa.DataType,
        runs: Runs,
        decoded: pa.Array | None,
        raw: pa.Array | None,
        bad: Sequence[int],
    ) -> pa.Array:
        column: Any
        if name == VALUE:
            column = decoded
        elif name == CORRUPT:
            column = _corrupt_records(raw, bad, target)
        else:
            column = BUILDERS[name](runs)
        # Spark's types differ in names of nested fields, and by its settings in offset width.
        return column if column.type == target else column.cast(target)

    def _undecodable(self, runs: Runs, row: int) -> CorruptMessage:
        return CorruptMessage(
            "the topic's schema is STRING, but a value is not UTF-8",
            "Read with valueFormat=raw, or set mode to PERMISSIVE or DROPMALFORMED.",
            topic=self._topic,
            message_id=runs.locate(row),
        )


def _decode_bytes(raw: pa.Array) -> tuple[pa.Array, Sequence[int]]:
    return raw, ()


def _decode_text(raw: pa.Array) -> tuple[pa.Array, Sequence[int]]:
    """Return the values as text, null where the bytes are not UTF-8, and the rows of those."""
    try:
        return raw.cast(pa.string()), ()
    except pa.ArrowInvalid:
        pass
    texts: list[str | None] = []
    bad: list[int] = []
    for row, value in enumerate(raw.to_pylist()):
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError:
            texts.append(None)
            bad.append(row)
    return strings(texts), bad


def _corrupt_records(raw: Any, bad: Sequence[int], kind: pa.DataType) -> pa.Array:
    records: list[Any] = [None] * len(raw)
    as_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    for row in bad:
        value = raw[row].as_py()
        records[row] = value.decode("utf-8", "replace") if as_text else value
    return strings(records) if as_text else binaries(records)
