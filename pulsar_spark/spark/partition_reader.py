"""One task: a range of a topic partition → record batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.entries import ReceivedEntry
from pulsar_spark.engine.lookup import Lookup
from pulsar_spark.engine.probe import Probe
from pulsar_spark.engine.reader import EntryReader
from pulsar_spark.errors import DataLossError, PulsarError, TopicNotFound
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.schema.record_batches import Projection, RecordBatchBuilder
from pulsar_spark.schema.registry import SchemaVersions
from pulsar_spark.spark.offsets import entry_end
from pulsar_spark.spark.partitions import PulsarInputPartition
from pulsar_spark.spark.read_options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


def read_partition(
    options: ReadOptions,
    partition: PulsarInputPartition,
    schema: pa.Schema,
    projection: Projection,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition.

    Connections are made when the first batch is asked for, and closed when the iterator ends,
    fails or is closed. Raises what the reader and the builder of record batches raise. With
    failOnDataLoss, raises TopicNotFound for a topic that is gone and DataLossError for a start
    that was deleted since the read was planned; without, logs them and goes on.
    """
    with ClientContext(options.client) as context:
        builder = RecordBatchBuilder(
            schema,
            projection,
            partition.topic,
            TopicName.parse(partition.topic).partition_index,
            SchemaVersions(context.lookup, partition.topic),
        )
        yield from _read(context, options, partition, builder)
        yield from builder.flush()
        if builder.dropped:
            logger.warning(
                "%s: %d rows were dropped by a task, as their values do not decode",
                partition.topic,
                builder.dropped,
            )


def _read(
    context: ClientContext,
    options: ReadOptions,
    partition: PulsarInputPartition,
    builder: RecordBatchBuilder,
) -> Iterator[pa.RecordBatch]:
    start, end = partition.range
    wanted = builder.block_options(end, options.reader.memory_budget)
    checked = False
    with EntryReader(context.pool, partition.topic, start, end, options.reader) as reader:
        try:
            for item in reader if wanted is None else reader.read(wanted):
                if not checked:
                    _check_start(context, options, partition, reader.first or end)
                    checked = True
                if isinstance(item, ReceivedEntry):
                    yield from builder.add(item)
                else:
                    yield from builder.add_columns(item)
            if not checked:
                _check_start(context, options, partition, reader.first or end)
            if reader.incomplete:
                logger.warning(
                    "%s: a task left out %d messages in chunks that are not whole",
                    partition.topic,
                    reader.incomplete,
                )
        except TopicNotFound as error:
            _lost(options, error)


def _check_start(
    context: ClientContext, options: ReadOptions, partition: PulsarInputPartition, found: Position
) -> None:
    """Look whether messages from the planned start on were deleted, if others were found there.

    A gap alone is no loss: ids are also taken by what no reader sees. It is one if nothing is
    kept any more of where the range began.
    """
    start = partition.range[0]
    if start == EARLIEST_POSITION or found[:2] <= start[:2] or options.reader.read_compacted:
        return
    if partition.resumed and _is_kept_behind(context, partition, found):
        return
    kept = Probe(context.pool).first_entry_at(partition.topic, EARLIEST_POSITION)
    if kept is not None and kept.start[:2] <= start[:2]:
        return
    _lost(
        options,
        DataLossError(
            f"messages were deleted between planning and reading: the range begins at {start}, "
            f"the first message that is kept is at {'none' if kept is None else kept.start}",
            "Raise the topic's retention, or set failOnDataLoss=false to read what is there.",
            topic=partition.topic,
        ),
    )


def _is_kept_behind(
    context: ClientContext, partition: PulsarInputPartition, found: Position
) -> bool:
    """Whether a range that another one ended before can well begin with nothing.

    A ledger goes when all of it was read, so that a range begins in a later one. And a range can
    hold nothing but aborted transactions.
    """
    start, end = partition.range
    if found != end:
        return found.ledger_id != start.ledger_id
    last = Lookup(context.pool).last_message_id(partition.topic)
    return last.ledger_id == end.ledger_id and entry_end(last) >= end


def _lost(options: ReadOptions, error: PulsarError) -> None:
    if options.fail_on_data_loss:
        raise error
    logger.warning("data was lost: %s", error)
