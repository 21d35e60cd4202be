"""The common part of batch and stream writers: checks, and a task's work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pulsar_spark.errors import IncompleteWrite
from pulsar_spark.spark.options.write import WriteOptions
from pulsar_spark.spark.workers import keep_modules
from pulsar_spark.spark.writing.columns import plan_columns
from pulsar_spark.spark.writing.exactly_once import Turn, abort_unit, check_sink, commit_unit
from pulsar_spark.spark.writing.schemas import Target
from pulsar_spark.spark.writing.sink_records import Decision, Unit, text_digest
from pulsar_spark.spark.writing.task_writer import (
    PulsarCommitMessage,
    check_complete,
    deduplicates,
    ends_of,
    find_targets,
    tasks_of,
    topics_of,
    transactions_of,
    write_task,
    written_by,
)

if TYPE_CHECKING:
    import pyarrow as pa


class CheckedWriter:
    """Writes the columns of `schema`. Only plain data is pickled to the tasks.

    Raises as `plan_columns` for columns that cannot be written.
    """

    in_stream = False
    """Whether it writes a micro-batch."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = plan_columns(
            schema,
            topic_given=options.topic is not None,
            value_format=options.schema.value_format,
        )
        self._targets: dict[str, Target] = {}
        self._turn: Turn | None = None
        self._unit: Unit | None = None

    @property
    def fate(self) -> str:
        """What happens to written rows when the job runs again."""
        if deduplicates(self._options, self._columns):
            return "are left out where their topics deduplicate"
        return "will be there twice"

    def check(self) -> None:
        """Before any task runs, ask the broker whether the values match the topic's schema.

        And whether exactly-once works, if requested. If rows name their topics, the tasks ask about
        these.
        """
        self._targets = find_targets(self._options, self._columns)
        if self._options.exactly_once is not None:
            self._turn = check_sink(
                self._options.client, self._options.exactly_once, in_stream=self.in_stream
            )

    def commit_unit(self, unit: Unit, messages: Sequence[WriterCommitMessage | None]) -> bool:
        """Commit rows written with exactly-once; return whether these rows were committed.

        With any guarantee, raises IncompleteWrite if a task got fewer receipts than rows.
        """
        sink = self._options.exactly_once
        if self._options.wait_for_receipts:
            try:
                check_complete(messages)
            except IncompleteWrite as error:
                if sink is None:
                    raise
                raise error.telling(f"nothing of {unit} is visible") from error
        if sink is None:
            return True
        decision = Decision(
            unit,
            tuple(transactions_of(messages)),
            written_by(messages),
            text_digest("\n".join(sorted(topics_of(messages)))),
            tuple(ends_of(messages)),
        )
        return commit_unit(self._options.client, sink, decision, tasks_of(messages))

    def abort_unit(self, messages: Sequence[WriterCommitMessage | None]) -> bool:
        """Abort rows written with exactly-once; return whether these rows were."""
        sink = self._options.exactly_once
        if sink is not None:
            # Spark makes another writer to end a micro-batch than the one that was checked.
            driver = tasks_of(messages).driver if self._turn is None else self._turn.driver
            abort_unit(self._options.client, sink, transactions_of(messages), driver)
        return sink is not None

    def write_batches(self, batches: Iterable[pa.RecordBatch]) -> PulsarCommitMessage:
        """Write the rows of a task; returns when they are acknowledged."""
        keep_modules()
        return write_task(
            self._options,
            self._columns,
            batches,
            self._targets,
            in_stream=self.in_stream,
            turn=self._turn,
            unit=self._unit,
        )
