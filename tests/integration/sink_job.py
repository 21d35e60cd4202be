"""Exactly-once micro-batches, written by the sink's writers without Spark.

``python -m tests.integration.sink_job URL TOPIC SINK TIMEOUT BATCH`` writes one, in a process that
can be killed at a crash point.
"""

from __future__ import annotations

import sys

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from pulsar_spark.spark.options.table import Scope
from pulsar_spark.spark.options.write import parse_write_options
from pulsar_spark.spark.writing.task_writer import PulsarCommitMessage
from pulsar_spark.spark.writing.writers import ArrowStreamWriter

SCHEMA = StructType([StructField("value", StringType())])
TASKS = 3
ROWS = 40


class Sink:
    """An exactly-once sink; each call makes a new writer, as Spark does."""

    def __init__(self, url: str, topic: str, sink_id: str, timeout: str = "1h") -> None:
        self.options = {
            "service.url": url,
            "topic": topic,
            "deliveryGuarantee": "exactly-once",
            "sinkId": sink_id,
            "transactionTimeout": timeout,
        }

    def writer(self) -> ArrowStreamWriter:
        """Return the writer for one call."""
        return ArrowStreamWriter(parse_write_options(self.options, Scope.STREAM_WRITE), SCHEMA)

    def write(
        self, batch: int, task: int, writer: ArrowStreamWriter | None = None
    ) -> PulsarCommitMessage:
        """Run one attempt of a task, with the driver's writer or with one that was not checked."""
        found = pa.RecordBatch.from_pydict({"value": rows(batch, task)})
        return (writer or self.writer()).write(iter([found]))

    def write_all(
        self, batch: int, writer: ArrowStreamWriter | None = None
    ) -> list[PulsarCommitMessage]:
        """Run each task of a micro-batch once, as `write`."""
        return [self.write(batch, task, writer) for task in range(TASKS)]

    def run(self, batch: int) -> None:
        """Write a micro-batch from its check to its commit."""
        checked = self.writer()
        checked.check()
        self.writer().commit(list(self.write_all(batch, checked)), batch)


def rows(batch: int, task: int) -> list[str]:
    """Return the values that a task writes."""
    return [f"{batch}-{task}-{row}" for row in range(ROWS)]


def whole(batch: int) -> list[str]:
    """Return the values of a micro-batch."""
    return [value for task in range(TASKS) for value in rows(batch, task)]


if __name__ == "__main__":
    Sink(*sys.argv[1:5]).run(int(sys.argv[5]))
