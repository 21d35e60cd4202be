"""One task: a range of a topic partition → record batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from pulsar_spark.engine.consumers.reader import EntryReader
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.memory import keep_freed_memory
from pulsar_spark.errors import TopicNotFound
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.schema.registry import SchemaVersions
from pulsar_spark.schema.table.record_batches import Projection, RecordBatchBuilder
from pulsar_spark.schema.table.value_decoder import Writers
from pulsar_spark.spark.options.read import ReadOptions
from pulsar_spark.spark.reading.loss_watch import LossWatch
from pulsar_spark.spark.reading.partitions import PulsarInputPartition
from pulsar_spark.spark.value_types import written_with

if TYPE_CHECKING:
    import pyarrow as pa

logger = get_logger(__name__)


def read_partition(
    options: ReadOptions,
    partition: PulsarInputPartition,
    schema: pa.Schema,
    projection: Projection,
    written: Mapping[bytes, SchemaInfo] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition; `written` are versions of the topic's schema.

    Connects when the first batch is requested; closes when the iterator ends, fails or is closed.
    Raises as the reader and the builder of record batches. With failOnDataLoss, raises
    DataLossError for a topic or messages that were deleted before they were read; otherwise logs
    them and continues.
    """
    keep_freed_memory()
    with ClientContext.shared(options.client) as context:
        versions = SchemaVersions(context.lookup, partition.topic, written, partition.era)
        writers: Writers = versions
        if options.value_format != "auto" and projection.schema is not None:
            writers = partial(_written, versions, projection.schema)
        builder = RecordBatchBuilder(
            schema,
            projection,
            partition.topic,
            TopicName.parse(partition.topic).partition_index,
            writers,
            expect=versions.expect,
            max_rows=options.batch_rows,
        )
        yield from _read(context, options, partition, builder)


def _written(versions: SchemaVersions, given: SchemaInfo, version: bytes) -> SchemaInfo:
    """Return the schema that values of a version were written with, where the user gives one."""
    return written_with(versions(version), given)


def _log_counts(
    options: ReadOptions,
    partition: PulsarInputPartition,
    builder: RecordBatchBuilder,
    reader: EntryReader,
) -> None:
    """Log what a task has read; besides rows, the log is its only output."""
    start, end = partition.range
    corrupt, dropped = builder.corrupt, builder.dropped
    logger.info(
        "%s: a task has read %d messages (about %d bytes) from %s to %s; %d values could not be "
        "decoded, and %d rows were dropped for that",
        partition.topic,
        builder.messages,
        builder.size,
        start,
        end,
        corrupt + dropped,
        dropped,
    )
    action = f"cryptoFailureAction={options.reader.crypto_failure_action}"
    for count, what in (
        (reader.incomplete, "a task skipped messages whose chunks are incomplete: {}"),
        (reader.undecryptable, f"a task could not decrypt messages: {{}} ({action})"),
        (dropped, "{} rows were dropped by a task because their values cannot be decoded"),
        (corrupt, "the values of {} rows of a task are null because they cannot be decoded"),
    ):
        if count:
            logger.warning("%s: %s", partition.topic, what.format(count))


def _read(
    context: ClientContext,
    options: ReadOptions,
    partition: PulsarInputPartition,
    builder: RecordBatchBuilder,
) -> Iterator[pa.RecordBatch]:
    start, end = partition.range
    wanted = builder.block_options(end, options.reader.memory_budget)
    watch = LossWatch(context, options, partition)
    with EntryReader(
        context.pool,
        partition.topic,
        start,
        end,
        options.reader,
        watch=watch,
        first=partition.first_entry,
        continues=partition.continues,
    ) as reader:
        try:
            for columns in reader.read(wanted):
                yield from builder.build(columns)
        except TopicNotFound as error:
            watch.on_deleted(error)
        _log_counts(options, partition, builder, reader)
