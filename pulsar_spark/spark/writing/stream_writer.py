"""The writer of a stream's micro-batches: checks on the driver, writes in tasks.

Spark creates it for every micro-batch, and again in another process to commit or abort it, so it
keeps no state. A micro-batch commits only after the brokers have acknowledged all its messages. A
repeated task or micro-batch writes its rows again: delivery is at least once, unless transactions
are used (`exactly_once`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import Row, StructType

from pulsar_spark.spark.compat import ArrowStreamWriterBase, rows_to_arrow, streams_are_arrow
from pulsar_spark.spark.options.write import WriteOptions
from pulsar_spark.spark.writing.checked_writer import CheckedWriter
from pulsar_spark.spark.writing.decision_log import Unit
from pulsar_spark.spark.writing.task_writer import (
    PulsarCommitMessage,
    sum_up,
    warn_of_duplicates,
)

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

# Spark has all rows of a batch in memory; this limits our copy.
_ROWS_AT_ONCE = 1000


class PulsarStreamWriter(CheckedWriter, DataSourceStreamWriter):
    """What writers of rows and of record batches share."""

    in_stream = True

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the micro-batch on the driver, if exactly-once, and log the counts."""
        self.commit_unit(Unit(batch=batchId), messages)
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
    """For versions of Spark that pass rows to stream writers."""

    def write(self, iterator: Iterator[Row]) -> PulsarCommitMessage:
        """Write the rows of a task."""
        return self.write_batches(self._batches(iterator))

    def _batches(self, rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            yield from rows_to_arrow(some, self._schema)


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
