"""The writer of a batch: checks on the driver, writes in tasks.

Delivery is at least once: a repeated task writes its rows again, and rows of successful tasks stay
when others fail. With transactions (`exactly_once`) it is all or nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pulsar_spark.errors import OptionError
from pulsar_spark.logs import get_logger
from pulsar_spark.spark.options.write import WriteOptions
from pulsar_spark.spark.writing.checked_writer import CheckedWriter
from pulsar_spark.spark.writing.sink_records import Unit
from pulsar_spark.spark.writing.task_writer import (
    PulsarCommitMessage,
    sum_up,
    warn_of_duplicates,
)

if TYPE_CHECKING:
    import pyarrow as pa

logger = get_logger(__name__)


class PulsarBatchWriter(CheckedWriter, DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionError(
                "the pulsar sink supports only mode append: a topic's messages cannot be replaced",
                'Write with mode("append").',
            )
        super().__init__(options, schema)
        sink = options.exactly_once
        run = None if sink is None else sink.run_id
        self._unit: Unit = Unit(job=secrets.token_hex(8), run=run)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PulsarCommitMessage:
        """Write the rows of a task."""
        return self.write_batches(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the rows on the driver, if exactly-once, and log the counts."""
        self.commit_unit(self._unit, messages)
        total = sum_up(messages)
        logger.info("%d messages written by %d tasks", total.messages, _ended_well(messages))
        if total.failed:
            logger.warning(
                "%d messages could not be written (deliveryGuarantee none)", total.failed
            )
        warn_of_duplicates(total)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log that the job has failed; the rows that its tasks have written stay.

        With exactly-once they are aborted, unless committing them was decided.
        """
        if self.abort_unit(messages):
            logger.warning("the write of %s failed", self._unit)
            return
        logger.warning(
            "the write failed; %d messages of %d successful tasks, and those that the others had "
            "sent, stay on their topics, and %s if it runs again",
            sum_up(messages).acknowledged,
            _ended_well(messages),
            self.fate,
        )


def _ended_well(messages: Sequence[WriterCommitMessage | None]) -> int:
    return sum(message is not None for message in messages)
