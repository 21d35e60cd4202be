"""What the writers of batches and of micro-batches share: checks, and a task's work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from pulsar_spark.spark.options.write import WriteOptions
from pulsar_spark.spark.writing.columns import plan_columns
from pulsar_spark.spark.writing.schemas import Target
from pulsar_spark.spark.writing.task_writer import PulsarCommitMessage, find_targets, write_task

if TYPE_CHECKING:
    import pyarrow as pa


class CheckedWriter:
    """Writes the columns of `schema`. What is pickled to the tasks is plain data.

    Raises what `plan_columns` raises for columns that cannot be written.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = plan_columns(
            schema,
            topic_given=options.topic is not None,
            value_format=options.schema.value_format,
        )
        self._targets: dict[str, Target] = {}

    def check(self) -> None:
        """Ask the broker, before any task runs, whether the values fit the topic's schema.

        Topics that rows name are asked about by the tasks that meet them.
        """
        self._targets = find_targets(self._options, self._columns)

    def write_batches(self, batches: Iterable[pa.RecordBatch]) -> PulsarCommitMessage:
        """Write the rows of a task, and return when they are acknowledged."""
        return write_task(self._options, self._columns, batches, self._targets)
