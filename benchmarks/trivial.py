"""A data source that yields ready-made Arrow batches, and a sink that only counts them.

They show the most that Spark can take and pass on. The batches are in a memory-mapped Arrow file,
so nothing is decoded or copied before they are passed to Spark. They come from a read of the topic,
with the same columns, keys and nulls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType


class TrivialPartition(InputPartition):
    """The batches of a file from `start` up to, but not including, `stop`."""

    def __init__(self, start: int, stop: int) -> None:
        super().__init__(start)
        self.start = start
        self.stop = stop


class TrivialReader(DataSourceReader):
    """Yields the batches of a file, in equal shares for `tasks` tasks; nothing for 0."""

    def __init__(self, options: dict[str, str]) -> None:
        self.file = options["file"]
        self.tasks = int(options["tasks"])

    def partitions(self) -> list[InputPartition]:
        """Equal shares of the batches."""
        if not self.tasks:
            return []
        with pa.memory_map(self.file) as file:
            count = pa.ipc.open_file(file).num_record_batches
        edges = [count * task // self.tasks for task in range(self.tasks + 1)]
        return [TrivialPartition(*edge) for edge in pairwise(edges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a share, or nothing for the partition that Spark adds to none."""
        if not isinstance(partition, TrivialPartition):
            return
        with pa.memory_map(self.file) as file:
            reader = pa.ipc.open_file(file)
            for number in range(partition.start, partition.stop):
                yield reader.get_batch(number)


@dataclass
class Counted(WriterCommitMessage):
    """The number of rows in a task."""

    rows: int


class TrivialWriter(DataSourceArrowWriter):
    """Counts rows; raises AssertionError unless their total is `expected`."""

    def __init__(self, expected: int) -> None:
        self.expected = expected

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        """Count the rows of a task."""
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Check the number of rows."""
        found = sum(message.rows for message in messages if isinstance(message, Counted))
        assert found == self.expected, f"{found} rows instead of {self.expected}"


class TrivialSource(DataSource):
    """``format("trivial")``: reads with the options file and tasks, writes with the option rows."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "trivial"

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader; the file has the columns of the user's schema."""
        return TrivialReader(dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> TrivialWriter:
        """A writer that expects the number of rows in the option."""
        return TrivialWriter(int(self.options["rows"]))
