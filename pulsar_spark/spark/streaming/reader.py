"""The reader of a stream: the driver chooses offsets and plans, tasks read rows.

Spark pickles a reader to its tasks, with the options and the projection only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pulsar_spark.errors import PulsarError
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.spark.columns import check_columns
from pulsar_spark.spark.options.stream import StreamOptions
from pulsar_spark.spark.reading.batch_reader import PulsarBatchReader
from pulsar_spark.spark.streaming.source import StreamSource
from pulsar_spark.spark.streaming.stream_offset import StreamOffset
from pulsar_spark.spark.value_types import ValueType

if TYPE_CHECKING:
    import pyarrow as pa

logger = get_logger(__name__)

# How long a look waits for news if the one before found none: Spark looks a hundred times a second.
_WAIT_SECONDS = 0.05


class PulsarStreamReader(DataSourceStreamReader):
    """Reads topics as a stream. Asks no broker before Spark asks for an offset.

    For Spark before 4.2, which asks for the latest offset without the query's position: it
    continues from the last offset that it returned.
    """

    def __init__(
        self, options: StreamOptions, schema: StructType, schemas: Iterable[SchemaInfo] = ()
    ) -> None:
        self._options = options
        self._schema = schema
        self._tasks = PulsarBatchReader(options.read, schema, schemas)
        self._source = StreamSource(options)
        self._checked: ValueType | None = None
        self._warned = self._asked = False
        # Whether the last look found nothing, and there was no micro-batch after it.
        self._quiet = False
        # The last offset, as Spark was told it, and the last report, until something has changed.
        self._told: dict[str, Any] = {}
        self._reported: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what tasks need; connections stay on the driver."""
        return {**self.__dict__, "_source": None, "_told": {}, "_reported": None}

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
        if self._rests():
            return self._told
        start = self._source.last or self._source.initial()
        # A restarted query may ask once before it has repeated its last batch.
        committed, self._asked = self._asked, True
        self._told = self._source.latest(start, caps, committed=committed).to_json()
        return self._told

    def _rests(self) -> bool:
        """Whether the last offset is still the latest one; waits a moment for news, if it was.

        It does not wait after a micro-batch: another source of the query may have news.
        """
        self._quiet = self._source.rests(_WAIT_SECONDS if self._quiet else 0.0)
        return self._quiet

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan a batch; with equal offsets a restarted query passes its position."""
        begin, stop = StreamOffset.from_json(start), StreamOffset.from_json(end)
        if begin == stop:
            self._source.learn(stop)
            return []
        planned = self._source.plan(begin, stop)
        if planned:
            schemas = self._source.schemas
            self._check_schema(schemas.kind)
            written = schemas.current(planned, stop.positions)
            self._tasks.give(planned, schemas.kind, written, schemas.eras)
        return planned

    def _check_schema(self, kind: ValueType) -> None:
        if kind != self._checked:
            topics = self._source.schemas.decided or {}
            check_columns(self._schema, kind, self._options.read, topics)
            self._checked = kind

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in a task."""
        return self._tasks.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge the messages before `end`; Spark commits for all sources of a query."""
        self._quiet = False
        self._source.commit(StreamOffset.from_json(end))

    def stop(self) -> None:
        """Leave the brokers; the subscriptions stay."""
        if self._source is not None:
            self._source.close()


class RefusedStreamReader(DataSourceStreamReader):
    """The reader of a stream that cannot run: every method raises `error`.

    Spark also stops a reader that could not be created, and then shows the failure to stop instead
    of the actual error.
    """

    def __init__(self, error: PulsarError) -> None:
        self._error = error

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise self._error

    initialOffset = latestOffset = partitions = read = _refuse
