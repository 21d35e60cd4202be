"""The reader of a stream: offsets and plans in the driver's process, rows in tasks.

Spark pickles a reader to its tasks: what is pickled is the options and the projection.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pulsar_spark.errors import PulsarError
from pulsar_spark.spark.columns import project
from pulsar_spark.spark.options.stream import StreamOptions
from pulsar_spark.spark.reading.batch_reader import PulsarBatchReader
from pulsar_spark.spark.streaming.source import StreamSource
from pulsar_spark.spark.streaming.stream_offset import StreamOffset
from pulsar_spark.spark.value_types import ValueType

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


class PulsarStreamReader(DataSourceStreamReader):
    """Reads topics as a stream. Asks no broker before an offset is asked for.

    This is the reader for Spark before 4.2, which asks for the latest offset without saying
    where the query stands: it continues from what it was asked for last.
    """

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._tasks = PulsarBatchReader(options.read, schema)
        self._source = StreamSource(options)
        self._checked: ValueType | None = None
        self._warned = self._asked = False

    def __getstate__(self) -> dict[str, Any]:
        """Give what tasks need; connections stay in the driver's process."""
        return {**self.__dict__, "_source": None}

    def initialOffset(self) -> dict[str, Any]:
        """Return where the query starts."""
        return self._source.initial().to_json()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """Return where the next batch ends."""
        caps = self._options.caps
        if caps.bounded and not self._warned:
            self._warned = True
            logger.warning(
                "this version of Spark runs Trigger.AvailableNow and Trigger.Once as one batch: "
                "with maxMessagesPerTrigger or maxBytesPerTrigger it may end before everything is "
                "read, and the next run continues there. From Spark 4.2 on they read everything, "
                "in micro-batches within these limits."
            )
        start = self._source.last or self._source.initial()
        # A restarted query may ask before it has repeated its last batch, but not again.
        committed, self._asked = self._asked, True
        return self._source.latest(start, caps, committed=committed).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan a batch; equal offsets tell a restarted query where it stands."""
        begin, stop = StreamOffset.from_json(start), StreamOffset.from_json(end)
        if begin == stop:
            self._source.learn(stop)
            return []
        planned = self._source.plan(begin, stop)
        if planned:
            self._check_schema(self._source.value_type(stop))
        return planned

    def _check_schema(self, kind: ValueType) -> None:
        if kind != self._checked:
            options = self._options.read
            project(self._schema, kind, options.corrupt_column, options.mode)
            self._checked = kind

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one of the partitions, in a task."""
        return self._tasks.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge what was read."""
        self._source.commit(StreamOffset.from_json(end))

    def stop(self) -> None:
        """Leave the brokers; the subscriptions stay."""
        if self._source is not None:
            self._source.close()


class RefusedStreamReader(DataSourceStreamReader):
    """The reader of a stream that cannot be: raises `error` from all that a query asks.

    Spark stops a reader even where none could be made, and shows the failure of that in the place
    of what was wrong.
    """

    def __init__(self, error: PulsarError) -> None:
        self._error = error

    def _refuse(self) -> NoReturn:
        raise self._error

    def initialOffset(self) -> dict[str, object]:
        """Asked by a query that starts."""
        self._refuse()

    def latestOffset(self) -> dict[str, object]:  # type: ignore[override]
        """Called for a query that continues."""
        self._refuse()

    def partitions(
        self, start: dict[str, object], end: dict[str, object]
    ) -> Sequence[InputPartition]:
        """Asked by a query that repeats a batch."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Never asked: there are no partitions."""
        self._refuse()
