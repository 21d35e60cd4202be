"""The reader of a stream that cannot be: it raises why when Spark asks it something.

Spark stops a reader even where none could be made, and shows the failure of that in the place of
what was wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pulsar_spark.errors import PulsarError


class RefusedStreamReader(DataSourceStreamReader):
    """Raises `error` from all that a query asks before its first row."""

    def __init__(self, error: PulsarError) -> None:
        self._error = error

    def _refuse(self) -> NoReturn:
        raise self._error

    def initialOffset(self) -> dict[str, object]:
        """Asked by a query that starts."""
        self._refuse()

    def latestOffset(self) -> dict[str, object]:  # type: ignore[override]
        """Asked by a query that goes on."""
        self._refuse()

    def partitions(
        self, start: dict[str, object], end: dict[str, object]
    ) -> Sequence[InputPartition]:
        """Asked by a query that repeats a batch."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Never asked: there are no partitions."""
        self._refuse()
