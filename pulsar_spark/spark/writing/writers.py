"""The writers of a batch and of a stream's micro-batches: check on the driver, write in tasks.

Delivery is at least once: a repeated task or micro-batch writes its rows again, and rows of
successful tasks stay when others fail. With transactions (`exactly_once`) it is all or nothing.

Spark creates a stream's writer for every micro-batch, and again in another process to commit or
abort it, so it keeps no state. A micro-batch commits only after the brokers have acknowledged all
its messages.
"""

from __future__ import annotations

import datetime
import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
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

from pulsar_spark.errors import IncompleteWrite, InvalidRow, OptionError, UnsupportedFeature
from pulsar_spark.logs import get_logger
from pulsar_spark.spark.compat import (
    ArrowStreamWriterBase,
    batches_behind,
    rows_to_arrow,
    streams_are_arrow,
)
from pulsar_spark.spark.options.write import WriteOptions
from pulsar_spark.spark.workers import prepare
from pulsar_spark.spark.writing.columns import leaves, plan_columns
from pulsar_spark.spark.writing.exactly_once import abort_unit, check_sink, commit_unit
from pulsar_spark.spark.writing.sink_records import Unit
from pulsar_spark.spark.writing.task_writer import (
    PulsarCommitMessage,
    TaskPlan,
    check_complete,
    decision_of,
    deduplicates,
    find_targets,
    successful,
    sum_up,
    tasks_of,
    transactions_of,
    warn_of_duplicates,
    write_task,
)

if TYPE_CHECKING:
    import pyarrow as pa

logger = get_logger(__name__)

# Spark has all rows of a batch in memory; this limits our copy.
_ROWS_AT_ONCE = 1000


class CheckedWriter:
    """Writes the columns of `schema`. Only plain data is pickled to the tasks.

    Raises as `plan_columns` for columns that cannot be written.
    """

    in_stream = False
    """Whether it writes a micro-batch."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        columns = plan_columns(
            schema,
            topic_given=options.topic is not None,
            value_format=options.schema.value_format,
        )
        self._plan = TaskPlan(options, columns, self.in_stream)

    @property
    def fate(self) -> str:
        """What happens to written rows when the job runs again."""
        if deduplicates(self._options, self._plan.columns):
            return "are left out where their topics deduplicate"
        return "will be there twice"

    def check(self) -> None:
        """Before any task runs, ask the broker whether the values match the topic's schema.

        And whether exactly-once works, if requested. If rows name their topics, the tasks ask about
        these.
        """
        self._plan.targets = find_targets(self._options, self._plan.columns)
        if self._options.exactly_once is not None:
            self._plan.turn = check_sink(
                self._options.client, self._options.exactly_once, in_stream=self.in_stream
            )

    def commit_unit(
        self, unit: Unit, messages: Sequence[WriterCommitMessage | None]
    ) -> PulsarCommitMessage:
        """Commit rows written with exactly-once; return the counts of all tasks.

        With any guarantee, raises IncompleteWrite if a task got fewer receipts than rows.
        """
        sink, tasks = self._options.exactly_once, successful(messages)
        if self._options.wait_for_receipts:
            try:
                check_complete(tasks)
            except IncompleteWrite as error:
                if sink is None:
                    raise
                raise error.telling(f"nothing of {unit} is visible") from error
        if sink is not None:
            commit_unit(self._options.client, sink, decision_of(unit, tasks), tasks_of(tasks))
        total = sum_up(tasks)
        warn_of_duplicates(total)
        return total

    def abort_unit(
        self, what: str, messages: Sequence[WriterCommitMessage | None], again: str
    ) -> None:
        """Abort rows written with exactly-once; otherwise tell what becomes of them `again`.

        `what` failed.
        """
        sink, turn, tasks = self._options.exactly_once, self._plan.turn, successful(messages)
        if sink is not None:
            # Spark makes another writer to end a micro-batch than the one that was checked.
            driver = tasks_of(tasks).driver if turn is None else turn.driver
            abort_unit(self._options.client, sink, transactions_of(tasks), driver)
            logger.warning("%s failed", what)
            return
        logger.warning(
            "%s failed; %d messages of %d successful tasks, and those that the others had sent, "
            "stay on their topics, and %s %s",
            what,
            sum_up(tasks).acknowledged,
            len(tasks),
            self.fate,
            again,
        )

    def write_batches(self, batches: Iterable[pa.RecordBatch]) -> PulsarCommitMessage:
        """Write the rows of a task; returns when they are acknowledged."""
        prepare()
        return write_task(self._plan, batches)


class PulsarBatchWriter(CheckedWriter, DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionError(
                "the pulsar sink supports only mode append: a topic's messages cannot be replaced",
                'Write with mode("append"), in SQL with INSERT INTO.',
            )
        super().__init__(options, schema)
        sink = options.exactly_once
        run = None if sink is None else sink.run_id
        self._plan.unit = Unit(job=secrets.token_hex(8), run=run)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PulsarCommitMessage:
        """Write the rows of a task."""
        return self.write_batches(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the rows on the driver, if exactly-once, and log the counts."""
        total = self.commit_unit(self._plan.unit, messages)
        ended_well = len(successful(messages))
        logger.info("%d messages written by %d tasks", total.messages, ended_well)
        if total.failed:
            logger.warning(
                "%d messages could not be written (deliveryGuarantee none)", total.failed
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log that the job has failed; the rows that its tasks have written stay.

        With exactly-once they are aborted, unless committing them was decided.
        """
        is_named = self._options.exactly_once is not None
        named = f"the write of {self._plan.unit}" if is_named else "the write"
        self.abort_unit(named, messages, "if it runs again")


class PulsarStreamWriter(CheckedWriter, DataSourceStreamWriter):
    """What writers of rows and of record batches share."""

    in_stream = True

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the micro-batch on the driver, if exactly-once, and log the counts.

        Raises UnsupportedFeature with a continuous trigger: Spark never calls `write` then.
        """
        if None in messages:
            raise UnsupportedFeature(
                f"micro-batch {batchId} is not written: Spark has passed no rows to the sink, as "
                "with a continuous trigger",
                "Use another trigger, such as trigger(processingTime='1 second').",
            )
        told = (task.query for task in successful(messages) if task.query is not None)
        total = self.commit_unit(Unit(batch=batchId, query=next(told, None)), messages)
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
        self.abort_unit(f"micro-batch {batchId}", messages, "when it runs again")


class RowStreamWriter(PulsarStreamWriter):
    """For versions of Spark that pass rows to stream writers.

    Raises InvalidRow for times that rows cannot express.
    """

    def write(self, iterator: Iterator[Row]) -> PulsarCommitMessage:
        """Write the rows of a task."""
        return self.write_batches(batches_behind(iterator) or self._batches(iterator))

    def _batches(self, rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
        first = 0
        columns = self._plan.columns
        positions = (*columns.values, *dict(columns.by_name).values())
        used = [(position, self._schema.fields[position]) for position in positions]
        timed = [(position, field) for position, field in used if _has_times(field.dataType)]
        while some := self._next_rows(rows, first):
            for row, values in enumerate(some if timed else (), first):
                for position, field in timed:
                    _check_times(field.dataType, values[position], field.name, row)
            yield from rows_to_arrow(some, columns.frame)
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
    return any(isinstance(part, _TIMES) for _, part in leaves("", kind))


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
