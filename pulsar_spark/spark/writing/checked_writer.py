"""The common part of batch and stream writers: checks, and a task's work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pulsar_spark.spark.options.write import WriteOptions
from pulsar_spark.spark.writing.columns import plan_columns
from pulsar_spark.spark.writing.decision_log import Unit
from pulsar_spark.spark.writing.exactly_once import abort_unit, check_sink, commit_unit
from pulsar_spark.spark.writing.schemas import Target
from pulsar_spark.spark.writing.task_writer import (
    PulsarCommitMessage,
    deduplicates,
    find_targets,
    sum_up,
    topics_of,
    transactions_of,
    write_task,
)

if TYPE_CHECKING:
    import pyarrow as pa


class CheckedWriter:
    """Writes the columns of `schema`. What is pickled to the tasks is plain data.

    Raises what `plan_columns` raises for columns that cannot be written.
    """

    finishes_others = False
    """Whether what another writer has decided and not carried out is carried out first."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = plan_columns(
            schema,
            topic_given=options.topic is not None,
            value_format=options.schema.value_format,
        )
        self._targets: dict[str, Target] = {}

    @property
    def fate(self) -> str:
        """What happens to written rows when the job runs again."""
        if deduplicates(self._options, self._columns):
            return "are left out where their topics deduplicate"
        return "will be there twice"

    def check(self) -> None:
        """Ask the broker, before any task runs, whether the values fit the topic's schema.

        And whether they can be written exactly once, where that is asked for. Topics that rows
        name are asked about by the tasks that meet them.
        """
        self._targets = find_targets(self._options, self._columns)
        if self._options.exactly_once is not None:
            check_sink(
                self._options.client, self._options.exactly_once, finish=self.finishes_others
            )

    def commit_unit(self, unit: Unit, messages: Sequence[WriterCommitMessage | None]) -> bool:
        """Commit rows that were written with exactly-once; return whether these rows were."""
        sink = self._options.exactly_once
        if sink is None:
            return True
        total = sum_up(messages).messages
        transactions, topics = transactions_of(messages), topics_of(messages)
        return commit_unit(self._options.client, sink, unit, transactions, total, topics)

    def abort_unit(self, messages: Sequence[WriterCommitMessage | None]) -> bool:
        """Abort rows that were written with exactly-once; return whether these rows were."""
        sink = self._options.exactly_once
        if sink is not None:
            abort_unit(self._options.client, sink, transactions_of(messages))
        return sink is not None

    def write_batches(self, batches: Iterable[pa.RecordBatch]) -> PulsarCommitMessage:
        """Write the rows of a task, and return when they are acknowledged."""
        return write_task(self._options, self._columns, batches, self._targets)
