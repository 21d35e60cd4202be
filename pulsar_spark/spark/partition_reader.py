"""One task: a range of a topic partition → record batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pulsar_spark.client.cluster import Cluster
from pulsar_spark.client.reader import EntryReader
from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.schema.record_batches import Projection, RecordBatchBuilder
from pulsar_spark.spark.partitions import PulsarInputPartition
from pulsar_spark.spark.read_options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa


def read_partition(
    options: ReadOptions,
    partition: PulsarInputPartition,
    schema: pa.Schema,
    projection: Projection,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition.

    Connections are made when the first batch is asked for, and closed when the iterator ends,
    fails or is closed. Raises what the reader and the builder of record batches raise.
    """
    start, end = partition.range
    builder = RecordBatchBuilder(
        schema, projection, partition.topic, TopicName.parse(partition.topic).partition_index
    )
    with (
        Cluster(options.client) as cluster,
        EntryReader(cluster.pool, partition.topic, start, end, options.reader) as reader,
    ):
        for entry in reader:
            yield from builder.add(entry)
        yield from builder.flush()
