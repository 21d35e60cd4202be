"""Streams read by Spark, on both brokers: every row once, whatever is killed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.brokers import Broker, Real
from tests.integration.streams import Feed, backlog
from tests.soak.soak import FAULTS, Settings, Soak
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Job:
    """A query from a topic into memory, which keeps batches by their ids."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path, **options: str) -> None:
        self.batches: dict[int, list[bytes]] = {}
        self._spark = spark
        self._checkpoint = str(folder / "checkpoint")
        self._options = {
            "service.url": broker.service_url,
            "startingOffsets": "earliest",
            **options,
        }
        self.query: StreamingQuery | None = None

    def start(self, **trigger: Any) -> StreamingQuery:
        """Start or restart it."""
        source = self._spark.readStream.format("pulsar").options(**self._options).load()
        writer = source.writeStream.foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", self._checkpoint)
        self.query = writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()
        return self.query

    def _keep(self, frame: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = [bytes(value) for (value,) in frame.select("value").collect()]

    def stop(self) -> None:
        """Stop it, even if it has failed."""
        if self.query is not None:
            self.query.stop()

    @property
    def values(self) -> list[bytes]:
        """The rows of all batches, in order."""
        return [value for _, batch in sorted(self.batches.items()) for value in batch]


def test_a_stream_is_read_and_acknowledged(
    spark: SparkSession, broker: Broker, feed: Feed, tmp_path: Path
) -> None:
    topic = broker.create_topic(partitions=2)
    partitions = broker.partitions_of(topic, 2)
    expected = [value for partition in partitions for value in feed(partition, [0, 100, 7])]
    job = Job(spark, broker, tmp_path, topic=topic, subscription="mine")
    try:
        query = job.start()
        query.processAllAvailable()
        expected += feed(partitions[1], [10])
        query.processAllAvailable()
        assert sorted(job.values) == sorted(expected)
        for partition in partitions:
            wait_until(lambda p=partition: backlog(broker, p, "mine") == 0, "it has a backlog")  # type: ignore[misc]
    finally:
        job.stop()
    expected += feed(partitions[0], [10, 0])
    assert job.start(availableNow=True).awaitTermination(240)
    assert sorted(job.values) == sorted(expected)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.fault(14, 66, 71)
def test_every_row_is_read_once_whatever_is_killed(tuned_broker: Broker, tmp_path: Path) -> None:
    # Smaller than those of `make soak`, and smallest on the embedded broker.
    rows, faults = (200_000, 12) if isinstance(tuned_broker, Real) else (60_000, 6)
    report = Soak(tuned_broker, tmp_path, Settings(rows, faults, seed=5, rate=9000.0)).run()
    assert not report.problems, str(report)
    assert report.rows == rows
    assert set(report.faults) == set(FAULTS)
    assert report.faults.total() == faults
    assert report.unloads
