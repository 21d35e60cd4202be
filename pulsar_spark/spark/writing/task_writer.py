"""One writing task: record batches → messages, all acknowledged when it ends."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.memory import keep_freed_memory
from pulsar_spark.engine.operations import value_of
from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.partitioned_producer import (
    PartitionedProducer,
    abort_together,
    close_together,
    open_together,
)
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.engine.transactions import ClientTransaction
from pulsar_spark.errors import (
    DroppedAsDuplicate,
    IncompleteWrite,
    InvalidRow,
    OperationTimeout,
    PulsarError,
    TopicTerminated,
    listed,
)
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.message_id import MessageIdAdv, Position
from pulsar_spark.protocol.outgoing_messages import OutgoingMessages
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.protocol.topic_name import topic_of
from pulsar_spark.schema.registry import latest_schema, latest_schemas
from pulsar_spark.schema.table import names
from pulsar_spark.spark.options.write import WriteOptions
from pulsar_spark.spark.writing.attempts import Announcer, Attempt
from pulsar_spark.spark.writing.columns import WriteColumns
from pulsar_spark.spark.writing.crash_points import reach
from pulsar_spark.spark.writing.exactly_once import (
    SinkOptions,
    Tasks,
    Turn,
    abort_all,
)
from pulsar_spark.spark.writing.fenced_topic import is_quota
from pulsar_spark.spark.writing.outgoing_rows import RowConverter, TopicRows
from pulsar_spark.spark.writing.row_digest import DIGEST_VERSION, Digest
from pulsar_spark.spark.writing.row_encoder import RowEncoder
from pulsar_spark.spark.writing.schemas import Target, target_for
from pulsar_spark.spark.writing.sink_records import (
    Decision,
    LastMessage,
    Unit,
    Written,
    text_digest,
)

if TYPE_CHECKING:
    import pyarrow as pa

logger = get_logger(__name__)

_ROWS_OF_A_NAME = 1000
# What Spark tells the tasks of a stream, those of writes in foreachBatch too.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
# Without a guarantee: how long a task stays to hear what brokers refuse.
_SETTLED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class PulsarCommitMessage(WriterCommitMessage):
    """What a task has written; plain data.

    `messages` is one for each row that the task was given, `acknowledged` are those with receipts,
    `failed` were not sent (deliveryGuarantee none only). `last_ids` is each topic partition's last
    acknowledged id, as text. `duplicates` are acknowledged messages that a broker with
    deduplication already had, and did not store.
    `forgetful` are topics without deduplication whose rows rely on it.
    `txn` is the transaction of all messages, with exactly-once and if there are any. `digest` is
    that of the rows, with exactly-once. `schemas` has each topic that was written, without its
    partition, with the version of its schema that producers were told, as hex digits; "" is none.
    `driver` is the one that let the task write, if it checked the sink, `announced` whether the
    task could announce its transaction, which began at `begun` (seconds since 1970). `query` is the
    id of the stream's query, if Spark told it. `read_from` is that of `Announcing`.
    """

    messages: int
    acknowledged: int
    failed: int
    last_ids: tuple[tuple[str, str], ...]
    duplicates: int = 0
    forgetful: tuple[str, ...] = ()
    txn: TxnId | None = None
    driver: str | None = None
    announced: bool = False
    begun: float = 0.0
    query: str | None = None
    digest: Digest | None = None
    schemas: tuple[tuple[str, str], ...] = ()
    read_from: tuple[int, int] | None = None


@dataclass(slots=True)
class TaskPlan:
    """What the driver has tasks do; plain data.

    `targets` are its schema choices by topic, `turn` is what it has found for an exactly-once
    write. Tasks `in_stream` are of a micro-batch, of which Spark tells them; others of the `unit`.
    """

    options: WriteOptions
    columns: WriteColumns
    in_stream: bool = False
    targets: Mapping[str, Target] = field(default_factory=dict)
    turn: Turn | None = None
    unit: Unit = field(default_factory=Unit)


class TaskWriter:
    """Writes the rows of one task, with one writer per topic.

    Topics that a record batch is the first to name are asked about together, and their producers
    are opened together. Those of a micro-batch are left to the stream's next task of this process.

    `producer` has the options of this task's producers, `unit` is what the task is part of.
    """

    def __init__(
        self, context: ClientContext, plan: TaskPlan, producer: ProducerOptions, unit: Unit
    ) -> None:
        options, columns = plan.options, plan.columns
        self._context = context
        self._turn = plan.turn
        self._unit = unit
        self._options = options
        self._columns = columns
        self._producer = producer
        self._rows = RowConverter(
            columns,
            options.topic,
            keys_as_bytes=options.keys_as_bytes,
            ids_grow=producer.resumes,
            digests=options.exactly_once is not None,
        )
        self._targets: dict[str, Target] = dict(plan.targets)
        # Ids that users give would be taken for repeated ones of the task before.
        has_ids = columns.position(names.SEQUENCE_ID) is not None
        self._keeps = plan.in_stream and options.wait_for_receipts and not has_ids
        # What was asked for all topics of a record batch at once, before each is met.
        self._schemas: dict[str, SchemaInfo | PulsarError | None] = {}
        self._encoders: dict[str, RowEncoder] = {}
        self._writers: dict[str, PartitionedProducer] = {}
        self._logged_loss = False
        self._forgetful: list[str] = []
        self._txn: ClientTransaction | None = None
        self._begun_at = 0.0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a record batch; blocks while too many messages are unacknowledged.

        Raises InvalidRow and MessageTooLarge with the row, and the broker's error.
        """
        parts = self._rows.split(batch)
        self._find_schemas([part.topic for part in parts])
        converted = [
            (part, self._rows.messages(part, encoder))
            for part in parts
            if (encoder := self._encoder(part)) is not None
        ]
        # Convert the whole record batch before sending any of it.
        for part, messages in converted:
            if len(messages) != part.batch.num_rows:
                raise _incomplete(part.batch.num_rows, len(messages), "made", part.topic)
        self._open(converted)
        for part, messages in converted:
            with self._losses_logged():
                self._writer(part.topic).write(messages, part.locate)
        if self._options.wait_for_receipts:
            self._check_duplicates()
        reach("task-midway")

    def finish(self) -> PulsarCommitMessage:
        """Wait until every message is acknowledged, or only sent if there is no guarantee."""
        if self._options.wait_for_receipts:
            for writer in self._writers.values():
                writer.flush_batches()
            reach("task-sent")
            for writer in self._writers.values():
                writer.flush()
            reach("task-flushed")
            self._check_duplicates()
            check_complete([self._commit_message()])
            # All messages are acknowledged: an error from here on is no loss.
            self._leave()
            reach("task-left")
        else:
            for writer in self._writers.values():
                with self._losses_logged():
                    writer.flush_batches()
            deadline = Deadline(_SETTLED_SECONDS)
            for writer in self._writers.values():
                with self._losses_logged():
                    _settle(writer, deadline)
            self.abort()
            if (dropped := self._dropped()) is not None:
                self._log_loss(dropped)
        return self._commit_message()

    def abort(self, *, terminated: bool = False) -> None:
        """Leave the brokers without waiting for receipts, and abort the transaction.

        If it has a `terminated` topic, the coordinator does that without an answer.
        """
        abort_together(list(self._writers.values()))
        if self._txn is not None:
            own = [self._txn.txn_id]
            abort_all(self._context, own, stuck=own if terminated else ())

    def _leave(self) -> None:
        close_together(list(self._writers.values()))
        for writer in self._writers.values():
            if self._producer.resumes and not self._is_remembered(writer):
                self._forgetful.append(writer.topic)

    def _is_remembered(self, writer: PartitionedProducer) -> bool:
        """Whether a topic's broker remembers the last id: it does with deduplication."""
        sent = next((one for one in writer.producers if one.counts.acknowledged), None)
        if sent is None:
            return True
        again = TopicProducer(self._context, sent.topic, writer.options)
        try:
            return again.open().last_sequence_id >= sent.last_sequence_id
        except PulsarError as error:
            logger.info("%s: whether the topic deduplicates is unknown: %s", sent.topic, error)
            return True
        finally:
            again.abort()

    def _commit_message(self) -> PulsarCommitMessage:
        counts = [writer.counts for writer in self._writers.values()]
        rows = self._rows.rows
        unsent = rows - sum(count.messages for count in counts)
        last_ids = {
            topic: str(message_id)
            for writer in self._writers.values()
            for topic, message_id in writer.last_message_ids.items()
        }
        schemas = {
            (topic_of(writer.topic), producer.schema_version.hex())
            for writer in self._writers.values()
            for producer in writer.producers
        }
        announcing = None if self._turn is None else self._turn.announcing
        return PulsarCommitMessage(
            messages=rows,
            acknowledged=sum(count.acknowledged for count in counts),
            failed=0 if self._options.wait_for_receipts else unsent,
            last_ids=tuple(sorted(last_ids.items())),
            duplicates=sum(count.duplicates for count in counts),
            forgetful=tuple(self._forgetful),
            txn=None if self._txn is None else self._txn.txn_id,
            driver=None if self._turn is None else self._turn.driver,
            announced=announcing is not None,
            read_from=None if announcing is None else announcing.read_from,
            begun=self._begun_at,
            query=self._unit.query,
            digest=self._rows.digest,
            schemas=tuple(sorted(schemas)),
        )

    @property
    def _has_foreign_ids(self) -> bool:
        """Whether rows bring sequence ids by which nobody wants them deduplicated."""
        return self._rows.brings_sequence_ids and self._producer.producer_name is None

    def _check_duplicates(self) -> None:
        if (dropped := self._dropped()) is not None:
            raise dropped

    def _dropped(self) -> InvalidRow | None:
        """Return the error for rows that a broker wrongly dropped as duplicates.

        With the producer's own ids, only resent messages are duplicates. With a given name and
        given ids, the user wants duplicates dropped.
        """
        if not self._has_foreign_ids:
            return None
        for writer in self._writers.values():
            if duplicates := writer.counts.duplicates:
                plural = "" if duplicates == 1 else "s"
                return _repeated_ids(f"{duplicates} row{plural}", writer.topic)
        return None

    def explained(self, error: BaseException) -> BaseException:
        """Return an error, or the one that says that ids which do not grow have caused it."""
        if (
            isinstance(error, DroppedAsDuplicate)
            and self._has_foreign_ids
            and not self._rows.sequence_ids_grow
        ):
            return _repeated_ids("rows", error.topic)
        return error

    def _find_schemas(self, topics: Sequence[str]) -> None:
        """Ask for the schemas of topics that are new, if there are several."""
        new = [topic for topic in topics if topic not in self._targets]
        if len(new) > 1 and self._options.schema.value_format != "raw":
            owners = {topic: topic_of(topic) for topic in new}
            found = latest_schemas(self._context.lookup, list(owners.values()))
            self._schemas = {topic: found[owner] for topic, owner in owners.items()}

    def _encoder(self, part: TopicRows) -> RowEncoder | None:
        """Return a topic's encoder; None if its failure is only counted."""
        found = self._encoders.get(part.topic)
        if found is None:
            with self._losses_logged():
                target = self._targets.get(part.topic) or self._find_target(part.topic)
                self._targets[part.topic] = target
                found = self._encoders[part.topic] = target.encoder(self._columns)
        return found

    def _find_target(self, topic: str) -> Target:
        if topic not in self._schemas:
            return find_target(self._context, self._options, self._columns, topic)
        current = value_of(self._schemas.pop(topic))
        return target_for(topic_of(topic), current, self._columns, self._options.schema)

    def _open(self, converted: Sequence[tuple[TopicRows, OutgoingMessages]]) -> None:
        """Open what the messages for several topics need; writers raise what is in the way."""
        if len(converted) < 2:
            return
        new = [part.topic for part, _ in converted if part.topic not in self._writers]
        counts = self._context.partitions_for_writing_many(new)
        for topic, count in counts.items():
            if not isinstance(count, PulsarError):
                self._writer(topic, count)
        pairs = [(part.topic, messages) for part, messages in converted]
        open_together([(self._writers[topic], ms) for topic, ms in pairs if topic in self._writers])

    def _writer(self, topic: str, partitions: int | None = None) -> PartitionedProducer:
        writer = self._writers.get(topic)
        if writer is None:
            target, sink = self._targets[topic], self._options.exactly_once
            options: ProducerOptions = replace(
                self._producer, schema=target.schema, txn_enabled=sink is not None
            )
            if sink is not None:
                sink.check(topic)
                if self._txn is None:
                    self._begin(sink, topic)
            writer = self._writers[topic] = PartitionedProducer(
                self._context,
                topic,
                options,
                partitions=partitions,
                in_order=self._options.wait_for_receipts,
                on_too_large=None if self._options.wait_for_receipts else self._log_loss,
                txn=self._txn,
                # A schema that has changed meanwhile has to be registered.
                keep_as=(target.current,) if self._keeps else None,
            )
        return writer

    def _begin(self, sink: SinkOptions, topic: str) -> None:
        """Begin the task's transaction, and let drivers know before anything takes part in it."""
        where = None if self._turn is None else self._turn.announcing
        with nullcontext() if where is None else Announcer(self._context, where) as announcer:
            coordinators = self._context.coordinators
            timeout = self._context.options.operation_timeout
            self._begun_at = time.time()
            self._txn = txn = ClientTransaction(coordinators, sink.transaction_timeout, timeout)
            reach("task-begun")
            if announcer is not None:
                unit = str(self._unit)
                attempt = Attempt(txn.txn_id, sink.sink_id, unit, topic, self._begun_at)
                try:
                    announcer.announce(attempt)
                except PulsarError as error:
                    if not is_quota(error):
                        raise
                    # Announcements of this micro-batch's first tasks are too old for it.
                    logger.warning(
                        "the transaction of a task could not be announced, so if the task is "
                        "killed, readers wait for it until transactionTimeout: %s",
                        error,
                    )

    @contextmanager
    def _losses_logged(self) -> Iterator[None]:
        """Log errors instead of raising them, if there is no guarantee."""
        try:
            yield
        except PulsarError as error:
            if self._options.wait_for_receipts:
                raise
            self._log_loss(error)

    def _log_loss(self, error: PulsarError) -> None:
        """Log the first of the errors that no guarantee makes fatal."""
        if not self._logged_loss:
            logger.warning("messages were lost (deliveryGuarantee none): %s", error)
        self._logged_loss = True


def _repeated_ids(rows: str, topic: str | None) -> InvalidRow:
    return InvalidRow(
        f"the broker dropped {rows} as duplicates: the topic deduplicates, and their "
        f"{names.SEQUENCE_ID} are not higher than those that were sent before",
        f"Leave the column {names.SEQUENCE_ID} out (a frame that was read with includeMetadata has "
        "the ids of other producers), or set pulsar.producer.producerName to deduplicate rows by "
        "their sequence ids.",
        topic=topic,
    )


def _settle(writer: PartitionedProducer, deadline: Deadline) -> None:
    """Wait a moment for a writer's receipts, and until what was refused is sent in another form.

    A broker that is slow to answer is not waited for.
    """
    with suppress(OperationTimeout):
        writer.flush(deadline.remaining())
    if any(producer.has_refused for producer in writer.producers):
        # Smaller batches are to be sent in place of what was refused.
        writer.flush()


def _incomplete(rows: int, messages: int, what: str, topic: str | None) -> IncompleteWrite:
    return IncompleteWrite(
        f"{rows} rows were given, and {messages} messages {what}",
        "Rows may be missing: write them again, and report this.",
        topic=topic,
    )


def find_target(
    context: ClientContext, options: WriteOptions, columns: WriteColumns, topic: str
) -> Target:
    """Return how rows are written to a topic; asks the broker for its schema.

    Raises SchemaMismatch or InvalidRow for columns that do not match it.
    """
    raw = options.schema.value_format == "raw"
    current = None if raw else latest_schema(context.lookup, topic)
    return target_for(topic_of(topic), current, columns, options.schema)


def find_targets(options: WriteOptions, columns: WriteColumns) -> dict[str, Target]:
    """Return how rows are written to the options' topic, for the tasks.

    Raises as `find_target`. Without such a topic it asks nobody.
    """
    if options.topic is None:
        return {}
    with ClientContext.shared(options.client) as context:
        return {options.topic: find_target(context, options, columns, options.topic)}


def successful(messages: Iterable[WriterCommitMessage | None]) -> list[PulsarCommitMessage]:
    """Return what the successful tasks say; None is a failed one."""
    return [message for message in messages if isinstance(message, PulsarCommitMessage)]


def sum_up(tasks: Sequence[PulsarCommitMessage]) -> PulsarCommitMessage:
    """Add up the counts of tasks, without ids."""
    digests = [task.digest for task in tasks if task.digest is not None]
    return PulsarCommitMessage(
        messages=sum(task.messages for task in tasks),
        acknowledged=sum(task.acknowledged for task in tasks),
        failed=sum(task.failed for task in tasks),
        last_ids=(),
        duplicates=sum(task.duplicates for task in tasks),
        forgetful=tuple(sorted({topic for task in tasks for topic in task.forgetful})),
        digest=sum(digests, Digest()) if digests else None,
        schemas=tuple(sorted({pair for task in tasks for pair in task.schemas})),
    )


def check_complete(tasks: Iterable[PulsarCommitMessage]) -> None:
    """Raise IncompleteWrite unless the brokers acknowledged each row that the tasks were given."""
    for done in tasks:
        if done.acknowledged + done.failed != done.messages:
            topics = listed(sorted({topic_of(topic) for topic, _ in done.last_ids})) or None
            raise _incomplete(done.messages, done.acknowledged, "acknowledged", topics)


def transactions_of(tasks: Iterable[PulsarCommitMessage]) -> list[TxnId]:
    """Return the transactions of successful tasks."""
    return [task.txn for task in tasks if task.txn is not None]


def decision_of(unit: Unit, tasks: Sequence[PulsarCommitMessage]) -> Decision:
    """Return what is to be committed of a unit: all that its tasks have written."""
    total = sum_up(tasks)
    digest = "" if total.digest is None else f"{DIGEST_VERSION}:{total.digest.total:016x}"
    schemas = "\n".join(sorted(f"{topic} {version}" for topic, version in total.schemas))
    topics = {topic_of(topic) for task in tasks for topic, _ in task.last_ids}
    ends = (
        LastMessage(task.txn, topic, Position(last.ledger_id, last.entry_id))
        for task in tasks
        if task.txn is not None
        for topic, text in task.last_ids
        for last in [MessageIdAdv.parse(text)]
    )
    return Decision(
        unit,
        tuple(transactions_of(tasks)),
        Written(total.messages, digest, text_digest(schemas) if digest else ""),
        text_digest("\n".join(sorted(topics))),
        tuple(ends),
    )


def tasks_of(tasks: Sequence[PulsarCommitMessage]) -> Tasks:
    """Return what successful tasks say about themselves."""
    return Tasks(
        next((task.driver for task in tasks if task.driver is not None), None),
        any(task.announced for task in tasks),
        min((task.begun for task in tasks if task.txn is not None), default=0.0),
        next((Position(*task.read_from) for task in tasks if task.read_from is not None), None),
    )


def warn_of_duplicates(total: PulsarCommitMessage) -> None:
    """Log that brokers dropped duplicates, or will not recognise them next time."""
    if total.forgetful:
        logger.warning(
            "%s: rows will be duplicated if this runs again, because the topic does not "
            "deduplicate. Enable deduplication for its namespace: pulsar-admin namespaces "
            "set-deduplication --enable",
            ", ".join(total.forgetful),
        )
    if total.duplicates:
        logger.warning(
            "%d of %d messages were not stored again: their topics deduplicate, and already had "
            "them",
            total.duplicates,
            total.messages,
        )


def write_task(plan: TaskPlan, batches: Iterable[pa.RecordBatch]) -> PulsarCommitMessage:
    """Write all rows of a task and return the counts.

    Connects for the first row, and closes in any case. Raises SinkStateError before it, if the
    task's micro-batch has no place in the sink whose driver has let it write.
    """
    unit = plan.unit
    if plan.in_stream:
        unit = _micro_batch_of_task()
        if plan.turn is not None and unit.batch is not None:
            plan.turn.place.check(unit)
    keep_freed_memory()
    with ClientContext.shared(plan.options.client) as context:
        producer, batches = _task_producer(plan, batches)
        writer = TaskWriter(context, plan, producer, unit)
        try:
            for batch in batches:
                if batch.num_rows:
                    writer.write(batch)
            return writer.finish()
        except BaseException as error:
            writer.abort(terminated=isinstance(error, TopicTerminated))
            if (cause := writer.explained(error)) is not error:
                raise cause from error
            raise


def deduplicates(options: WriteOptions, columns: WriteColumns) -> bool:
    """Whether a repeated job's rows are recognised by their ids and the job's name."""
    named = options.producer.producer_name is not None
    return named and columns.position(names.SEQUENCE_ID) is not None


def _task_producer(
    plan: TaskPlan, batches: Iterable[pa.RecordBatch]
) -> tuple[ProducerOptions, Iterable[pa.RecordBatch]]:
    """Return the options of this task's producers, and its rows.

    Two producers must not have the same name at the same time. If rows have sequence ids, the name
    is the same whenever a task with these rows runs, so that messages are not stored twice. Each
    micro-batch has names of its own, as its ids may start anew.
    """
    options = plan.options.producer
    name, position = options.producer_name, plan.columns.position(names.SEQUENCE_ID)
    if position is None or not deduplicates(plan.options, plan.columns):
        return replace(options, producer_name=_attempt_name(name)), batches
    context = TaskContext.get()
    task = 0 if context is None else context.partitionId()
    unit = _micro_batch_of_task()
    # It is the same when a micro-batch runs again, also after a restart of the query.
    micro_batch = "" if unit.batch is None else f"{unit.query}/{unit.batch}:"
    rest = iter(batches)
    first: list[pa.RecordBatch] = []
    for batch in rest:
        first.append(batch)
        if sum(one.num_rows for one in first) >= _ROWS_OF_A_NAME:
            break
    # Tasks don't know how many there are. With another number of tasks, a task of the same number
    # would have other rows, and a broker would drop them as duplicates of the first run's.
    digest = hashlib.blake2b(micro_batch.encode(), digest_size=6)
    left = _ROWS_OF_A_NAME
    for batch in first:
        part = batch.slice(0, left)
        left -= part.num_rows
        digest.update("".join(f"{own}," for own in part.column(position).to_pylist()).encode())
        if plan.in_stream and not micro_batch:
            # Only a process that is none of Spark's tasks is not told the micro-batch. Its rows
            # tell then: the same ids alone do not make it the same.
            digest.update(repr(part.to_pylist()).encode())
    producer = replace(options, producer_name=f"{name}-{task}-{digest.hexdigest()}", resumes=True)
    return producer, chain(first, rest)


def _micro_batch_of_task() -> Unit:
    """Return the micro-batch that Spark's task is part of, as far as it is told."""
    context = TaskContext.get()
    if context is None:
        return Unit()
    batch, query = context.getLocalProperty(_BATCH_ID), context.getLocalProperty(_QUERY_ID)
    return Unit(batch=None if batch is None else int(batch), query=query)


def _attempt_name(name: str | None) -> str | None:
    """Return the producers' name in this attempt of a task.

    The first attempt of the first task uses the name unchanged.
    """
    context = TaskContext.get()
    if name is None or context is None:
        return name
    if context.attemptNumber():
        return f"{name}-{context.partitionId()}-{context.attemptNumber()}"
    return f"{name}-{context.partitionId()}" if context.partitionId() else name
