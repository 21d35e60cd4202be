"""A data source that only yields ready-made Arrow batches: the most that Spark takes in."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

ROWS_PER_BATCH = 10_000
BYTES_PER_BATCH = 4 * 1024 * 1024


class TrivialPartition(InputPartition):
    """`rows` rows whose values are numbered from `start`."""

    def __init__(self, start: int, rows: int) -> None:
        super().__init__(start)
        self.start = start
        self.rows = rows


class TrivialReader(DataSourceReader):
    """Makes one batch, then yields it until all rows are out."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self.rows = int(options["rows"])
        self.size = int(options["size"])
        self.tasks = int(options["tasks"])
        self.names = schema.fieldNames()

    def partitions(self) -> list[InputPartition]:
        """Equal shares of the rows."""
        share = self.rows // self.tasks
        return [TrivialPartition(task * share, share) for task in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the same batch again and again."""
        assert isinstance(partition, TrivialPartition)
        count = min(ROWS_PER_BATCH, max(1, BYTES_PER_BATCH // self.size))
        batch = self._batch(count)
        for _ in range(partition.rows // count):
            yield batch
        if partition.rows % count:
            yield batch.slice(0, partition.rows % count)

    def _batch(self, count: int) -> pa.RecordBatch:
        moment = pa.scalar(1_700_000_000_000_000, pa.timestamp("us", tz="UTC"))
        topic = "persistent://public/default/topic-partition-0"
        columns = {
            "value": pa.array([bytes(self.size)] * count, pa.binary()),
            "__key": pa.nulls(count, pa.binary()),
            "__topic": pa.repeat(pa.scalar(topic), count),
            "__messageId": pa.array([b"\x08\x01\x10\x02\x20\x01" * 2] * count, pa.binary()),
            "__publishTime": pa.repeat(moment, count),
            "__eventTime": pa.nulls(count, pa.timestamp("us", tz="UTC")),
            "__messageProperties": pa.array([[]] * count, pa.map_(pa.string(), pa.string())),
        }
        return pa.record_batch({name: columns[name] for name in self.names})


class TrivialSource(DataSource):
    """``format("trivial")`` with the options rows, size, tasks."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "trivial"

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader for the columns that the user's schema names."""
        return TrivialReader(dict(self.options), schema)
