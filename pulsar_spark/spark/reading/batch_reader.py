"""The reader of a batch: plans on the driver, reads in tasks.

Only plain data is pickled to the tasks: the options and the projection. Tasks open and close their
own connections.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pulsar_spark.engine.context import ClientContext
from pulsar_spark.schema.table.record_batches import PERMISSIVE, Projection
from pulsar_spark.spark.columns import check_columns, given_type, project, read_schema
from pulsar_spark.spark.compat import arrow_schema
from pulsar_spark.spark.options.read import ReadOptions
from pulsar_spark.spark.reading.partition_reader import read_partition
from pulsar_spark.spark.reading.partitions import PulsarInputPartition
from pulsar_spark.spark.reading.planner import Planner
from pulsar_spark.spark.value_types import ValueType
from pulsar_spark.spark.workers import keep_modules

if TYPE_CHECKING:
    import pyarrow as pa


def infer_values(options: ReadOptions) -> ValueType | None:
    """Return the type of a read's values, from its topics' schemas; asks the brokers.

    None for topics that do not exist yet: their values are bytes, unless the topics turn out to
    have a schema. Raises as `Planner.topics` and `Planner.value_type`.
    """
    given = given_type(options)
    if given is not None and options.pattern is None:
        # No broker needs to be asked, and planning checks the topics.
        return given
    with ClientContext.shared(options.client) as context:
        planner = Planner(context, options)
        topics = planner.find_topics().topics if options.waiting else planner.topics()
        return planner.value_type(topics) if topics else None


def infer_schema(options: ReadOptions) -> StructType:
    """Return the schema of a read, as `infer_values`.

    PERMISSIVE adds a column for the bytes of values that cannot be decoded. Raises as
    `read_schema`.
    """
    kind = infer_values(options) or ValueType()
    return read_schema(
        kind,
        include_metadata=options.include_metadata,
        corrupt_column=options.corrupt_column if options.mode == PERMISSIVE else None,
    )


class PulsarBatchReader(DataSourceReader):
    """Reads topics as they are when `partitions` is called. Asks no broker before."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = replace(options, query=schema)
        self._schema = schema
        # Errors that do not depend on schemas are raised without asking a broker.
        kind = given_type(self._options)
        self._columns = check_columns(schema, options.corrupt_column, options.mode, kind)

    def partitions(self) -> list[InputPartition]:
        """Plan the read: its topics, ends and splits are fixed from now on.

        Raises as `Planner`, and OptionError for a schema that does not match the topics.
        """
        keep_modules()
        with ClientContext.shared(self._options.client) as context:
            planner = Planner(context, self._options)
            topics = planner.topics()
            kind = planner.value_type(topics)
            project(self._schema, kind, self._options.corrupt_column, self._options.mode)
            return [*planner.partitions(topics, kind)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in a task."""
        keep_modules()
        # If nothing is planned, Spark adds an empty partition itself.
        if not isinstance(partition, PulsarInputPartition):
            return iter(())
        kind = ValueType(partition.schema)
        projection = Projection(
            columns=project(self._schema, kind, self._options.corrupt_column, self._options.mode),
            schema=partition.schema,
            mode=self._options.mode,
            as_java=self._options.json_coercion == "java",
            times=partition.times,
        )
        return read_partition(self._options, partition, arrow_schema(self._schema), projection)
