"""Messages deleted while Spark reads them fail the job, or are skipped if the options say so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pulsar_spark
from tests.integration.brokers import Broker
from tests.integration.spark_io import load, official, send
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytest.importorskip("pulsar", reason="pulsar-client is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Far more than readers, Spark and its sockets, whose buffers grow, hold while the rows' consumer
# waits.
ENTRIES = 600
SIZE = 100_000
ROWS_OF_A_BATCH = 20
OPTIONS = {
    "startingOffsets": "earliest",
    "pulsar.client.memoryLimitBytes": "6m",
    "pulsar.reader.receiverQueueSize": 20,
}


def fill(broker: Broker, topic: str, entries: int, rolls: int = 1) -> None:
    payload = bytes(SIZE)
    with official(broker) as client:
        for number in range(rolls):
            if number:
                broker.roll_ledger(topic)
            send(client, topic, [payload] * (entries // rolls), batching_enabled=False)


def waiting(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[Any]]:
    """Return a function for mapInArrow that signals its first batch, and then waits."""
    begun, go = str(folder / "begun"), str(folder / "go")

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Selected with their bytes, so that backpressure holds them.
        for batch in batches:
            Path(begun).touch()
            deadline = time.monotonic() + 300
            while not Path(go).exists():
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield batch.select(["__publishTime"])

    return work


def truncate(broker: Broker, topic: str) -> None:
    broker.trim(topic)


def recreate(broker: Broker, topic: str) -> None:
    broker.delete_topic(topic)
    broker.create_topic(topic)
    fill(broker, topic, 50)


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", ROWS_OF_A_BATCH)
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def count_disturbed(
    spark: SparkSession, broker: Broker, folder: Path, topic: str, disturb: Any, **more: Any
) -> int:
    """Count a topic's rows, and disturb the read after the first ones."""

    def run() -> int:
        pulsar_spark.register(spark)
        read = load(spark, broker, topic, {**OPTIONS, **more}).select("value", "__publishTime")
        return read.mapInArrow(waiting(folder), "__publishTime timestamp").count()

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run)
        wait_until(lambda: (folder / "begun").exists() or running.done(), "no rows came", 120.0)
        assert not running.done()
        disturb(broker, topic)
        (folder / "go").touch()
        return running.result(400)


@pytest.mark.fault(54, 55, 58, 101)
@pytest.mark.parametrize("rolls", [1, 3], ids=["one-ledger", "ledgers"])
@pytest.mark.parametrize("disturb", [truncate, recreate])
def test_what_is_deleted_while_it_is_read_fails_the_job_unless_that_is_allowed(
    spark: SparkSession,
    broker: Broker,
    small_batches: None,
    tmp_path: Path,
    disturb: Any,
    rolls: int,
) -> None:
    for strict in (True, False):
        folder = tmp_path / str(strict)
        folder.mkdir()
        topic = broker.create_topic()
        fill(broker, topic, ENTRIES, rolls)
        if strict:
            with pytest.raises(Exception, match=r"DataLossError|TopicNotFound"):
                count_disturbed(spark, broker, folder, topic, disturb)
            continue
        found = count_disturbed(spark, broker, folder, topic, disturb, failOnDataLoss=False)
        assert ROWS_OF_A_BATCH <= found < ENTRIES
