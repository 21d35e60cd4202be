"""The reader of a batch: plans on the driver, reads in tasks.

What is pickled to the tasks is plain data: the options and the projection. Connections are made
where they are used and closed there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, DataType, StringType, StructType

from pulsar_spark.client.cluster import Cluster
from pulsar_spark.schema.column_names import VALUE
from pulsar_spark.schema.record_batches import CORRUPT, Projection
from pulsar_spark.spark.columns import project, read_schema
from pulsar_spark.spark.compat import arrow_schema
from pulsar_spark.spark.filters import PushedFilters, take_filters
from pulsar_spark.spark.partition_reader import read_partition
from pulsar_spark.spark.partitions import PulsarInputPartition
from pulsar_spark.spark.planner import Planner
from pulsar_spark.spark.read_options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter


def infer_schema(options: ReadOptions) -> StructType:
    """Return the schema of a read, from the schemas of its topics; asks the brokers.

    Raises what `Planner.topics` and `Planner.value_type` raise.
    """
    if options.raw and options.pattern is None:
        # Nothing needs to be asked, and planning says whether the topics exist.
        return read_schema(BinaryType(), include_metadata=options.include_metadata)
    with Cluster(options.client) as cluster:
        planner = Planner(cluster, options)
        topics = planner.find_topics().topics if options.waiting else planner.topics()
        kind = planner.value_type(topics)
    return read_schema(kind.data_type, include_metadata=options.include_metadata)


class PulsarBatchReader(DataSourceReader):
    """Reads topics as they are when `partitions` is called. Asks no broker before that."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        # Checked again when the topics' schemas are known; what can be wrong without them is
        # told without asking any broker.
        self._columns = project(schema, _declared_type(schema), options.corrupt_column)
        self._pushed = PushedFilters()

    def partitions(self) -> list[InputPartition]:
        """Plan the read: topics, ends and pieces, fixed from now on.

        Raises what `Planner` raises, and OptionError for a schema that does not fit the topics.
        """
        with Cluster(self._options.client) as cluster:
            planner = Planner(cluster, self._options)
            topics = planner.topics()
            kind = planner.value_type(topics)
            project(self._schema, kind.data_type, self._options.corrupt_column)
            return [*planner.partitions(topics, kind, self._pushed)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one of the partitions, in a task."""
        # Where nothing is planned Spark makes a partition of its own.
        if not isinstance(partition, PulsarInputPartition):
            return iter(())
        projection = Projection(
            columns=tuple(
                CORRUPT if column == self._options.corrupt_column else column
                for column in self._columns
            ),
            text=partition.text,
            mode=self._options.mode,
            filter=partition.row_filter,
        )
        return read_partition(self._options, partition, arrow_schema(self._schema), projection)


def _declared_type(schema: StructType) -> DataType:
    """Return the type that the user's schema gives the values, binary where that cannot be."""
    for field in schema.fields:
        if field.name.lower() == VALUE and isinstance(field.dataType, StringType):
            return field.dataType
    return BinaryType()


class PushdownBatchReader(PulsarBatchReader):
    """A batch reader that takes filters. Spark refuses such a class while pushdown is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that can be met exactly, and return the others."""
        self._pushed, left = take_filters(filters, self._columns, self._schema.fieldNames())
        return left
