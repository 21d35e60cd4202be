"""The writer of a stream's micro-batches: checks on the driver, writes in tasks.

Spark creates it for every micro-batch, and again in another process to commit or abort it, so it
keeps no state. A micro-batch commits only after the brokers have acknowledged all its messages. A
repeated task or micro-batch writes its rows again: delivery is at least once, unless transactions
are used (`exactly_once`).
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    Row,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pulsar_spark.errors import InvalidRow
from pulsar_spark.logs import get_logger
from pulsar_spark.spark.compat import (
    ArrowStreamWriterBase,
    batches_behind,
    rows_to_arrow,
    streams_are_arrow,
)
from pulsar_spark.spark.options.write import WriteOptions
from pulsar_spark.spark.writing.checked_writer import CheckedWriter
from pulsar_spark.spark.writing.sink_records import Unit
from pulsar_spark.spark.writing.task_writer import (
    PulsarCommitMessage,
    query_of,
    sum_up,
    warn_of_duplicates,
)

if TYPE_CHECKING:
    import pyarrow as pa

logger = get_logger(__name__)

# Spark has all rows of a batch in memory; this limits our copy.
_ROWS_AT_ONCE = 1000


class PulsarStreamWriter(CheckedWriter, DataSourceStreamWriter):
    """What writers of rows and of record batches share."""

    in_stream = True

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the micro-batch on the driver, if exactly-once, and log the counts."""
        self.commit_unit(Unit(batch=batchId, query=query_of(messages)), messages)
        total = sum_up(messages)
        warn_of_duplicates(total)
        if self._options.wait_for_receipts:
            logger.info(
                "micro-batch %d is committed: %d messages written by %d tasks, all acknowledged",
                batchId,
                total.messages,
                len(messages),
            )
            return
        logger.log(
            logging.WARNING if total.failed else logging.INFO,
            "micro-batch %d is committed: %d messages of %d tasks, of which %d were acknowledged "
            "when the tasks ended and %d could not be written (deliveryGuarantee none)",
            batchId,
            total.messages,
            len(messages),
            total.acknowledged,
            total.failed,
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log that the micro-batch has failed; the rows that its tasks have written stay.

        With exactly-once they are aborted, unless committing them was decided.
        """
        total = sum_up(messages)
        if self.abort_unit(messages):
            logger.warning("micro-batch %d failed", batchId)
            return
        logger.warning(
            "micro-batch %d failed; %d messages of %d successful tasks, and those that the others "
            "had sent, stay on their topics, and %s when it runs again",
            batchId,
            total.acknowledged,
            sum(message is not None for message in messages),
            self.fate,
        )


class RowStreamWriter(PulsarStreamWriter):
    """For versions of Spark that pass rows to stream writers.

    Raises InvalidRow for times that rows cannot express.
    """

    def write(self, iterator: Iterator[Row]) -> PulsarCommitMessage:
        """Write the rows of a task."""
        return self.write_batches(batches_behind(iterator) or self._batches(iterator))

    def _batches(self, rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
        first = 0
        positions = (*self._columns.values, *dict(self._columns.by_name).values())
        used = [(position, self._schema.fields[position]) for position in positions]
        timed = [(position, field) for position, field in used if _has_times(field.dataType)]
        while some := self._next_rows(rows, first):
            for row, values in enumerate(some if timed else (), first):
                for position, field in timed:
                    _check_times(field.dataType, values[position], field.name, row)
            yield from rows_to_arrow(some, self._columns.frame)
            first += len(some)

    def _next_rows(self, rows: Iterator[Row], first: int) -> list[Row]:
        found: list[Row] = []
        try:
            for row in islice(rows, _ROWS_AT_ONCE):
                found.append(row)
        except (OverflowError, ValueError) as error:
            # Spark could not make a row, whose columns are not known then.
            names = [f.name for f in self._schema.fields if _has_times(f.dataType)]
            if not names or type(error) not in (OverflowError, ValueError):
                raise
            raise InvalidRow(
                f"row {first + len(found)} or a later one cannot be made by this version of Spark, "
                f"perhaps because of a time in {', '.join(names)}: {error}",
                "Replace times before the year 2 and after 9998, or use Spark 4.1 or later.",
            ) from error
        return found


_TIMES = (TimestampType, TimestampNTZType, DateType)


def _has_times(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_times(field.dataType) for field in kind.fields)
    if isinstance(kind, MapType):
        return _has_times(kind.keyType) or _has_times(kind.valueType)
    return _has_times(kind.elementType) if isinstance(kind, ArrayType) else isinstance(kind, _TIMES)


def _check_times(kind: DataType, value: Any, place: str, row: int) -> None:
    """Raise InvalidRow for a time without a zone that is not one moment in this process's zone."""
    if value is None:
        return
    if isinstance(kind, StructType):
        for field, own in zip(kind.fields, value, strict=True):
            _check_times(field.dataType, own, f"{place}.{field.name}", row)
    elif isinstance(kind, ArrayType):
        for own in value:
            _check_times(kind.elementType, own, f"{place}[]", row)
    elif isinstance(kind, MapType):
        for key, own in value.items():
            _check_times(kind.keyType, key, f"{place}.key", row)
            _check_times(kind.valueType, own, f"{place}.value", row)
    elif isinstance(kind, TimestampType) and value.tzinfo is None:
        _check_time(value, place, row)


def _check_time(value: datetime.datetime, place: str, row: int) -> None:
    try:
        moment = value.astimezone(datetime.timezone.utc)
        other = value.replace(fold=1).astimezone(datetime.timezone.utc)
    except (OverflowError, ValueError, OSError) as error:
        raise InvalidRow(
            f"row {row}: the time {value} in {place} cannot be converted to UTC: {error}",
            "Replace it, or use Spark 4.1 or later.",
        ) from None
    # Spark makes the same time of both hours.
    if other > moment:
        raise InvalidRow(
            f"row {row}: the time {value} in {place} is one of two, because clocks were set back: "
            "this version of Spark passes times without their zone",
            "Run Python workers in UTC (spark.executorEnv.TZ=UTC), or use Spark 4.1 or later.",
        )


class ArrowStreamWriter(PulsarStreamWriter, ArrowStreamWriterBase):
    """For versions of Spark that pass record batches to stream writers."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PulsarCommitMessage:
        """Write the rows of a task."""
        return self.write_batches(iterator)


def stream_writer(options: WriteOptions, schema: StructType) -> PulsarStreamWriter:
    """Return the writer for this version of Spark.

    Raises as `plan_columns` for columns that cannot be written.
    """
    kind = ArrowStreamWriter if streams_are_arrow() else RowStreamWriter
    return kind(options, schema)
