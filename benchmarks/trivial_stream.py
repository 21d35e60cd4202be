"""A stream without rows, to measure what Spark itself costs.

It has a micro-batch whenever Spark asks; with the option `idle` a first one only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType


class TrivialStreamReader(DataSourceStreamReader):
    """Counts up at each trigger, or to 1 if it is idle; its one task yields an empty batch."""

    def __init__(self, idle: bool) -> None:
        self._idle = idle
        self._count = 0

    def initialOffset(self) -> dict[str, int]:
        """The first number."""
        return {"count": 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:
        """The next number."""
        self._count = 1 if self._idle else self._count + 1
        return {"count": self._count}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One partition."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """No rows."""
        yield pa.record_batch({"value": pa.array([], pa.binary())})

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to do."""


class TrivialStreamSource(DataSource):
    """``readStream.format("trivial-stream")``."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "trivial-stream"

    def schema(self) -> str:
        """One column of bytes."""
        return "value binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The only reader there is."""
        return TrivialStreamReader(self.options.get("idle") == "true")
