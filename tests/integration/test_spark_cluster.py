"""Spark jobs on a real cluster whose topics move, and whose brokers are killed."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ClientOptions, ProducerOptions
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.protocol.outgoing_messages import MessageFields
from tests.integration.brokers import Real
from tests.integration.spark_io import load, save
from tests.integration.spark_jobs import (
    PARTITIONS,
    ROWS,
    Pace,
    expect_all_written,
    numbered,
    read_numbers,
    run_disturbed,
    write_numbers,
)
from tests.support.real_cluster import RealCluster
from tests.support.waiting import finish, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MOVES = 20
KILLS = (7, 14)
HANGING = 40.0
# Before a broker loads a topic, one thread for all topics reads a system topic about transactions.
# While brokers are killed and that topic moves too, this may last longer than the default timeouts.
OPERATION_SECONDS = 90.0
SEND_SECONDS = 150.0
READS = {"pulsar.client.operationTimeoutMs": round(1000 * OPERATION_SECONDS)}
WRITES = READS | {"pulsar.producer.sendTimeoutMs": round(1000 * SEND_SECONDS)}


def slow(folder: Path) -> Pace:
    """Return the pace of a job that lasts longer than its disturbances."""
    return Pace(folder, batch=500, pause=1.5)


def disturb(cluster: RealCluster, topic: str, goes_on: Callable[[], bool]) -> None:
    """Move the partitions of a topic in turn, and kill a partition's broker now and then."""
    partitions = itertools.cycle(f"{topic}-partition-{number}" for number in range(PARTITIONS))
    for number, partition in zip(range(MOVES), partitions, strict=False):
        assert goes_on()
        if number in KILLS:
            cluster.owner(partition).kill()
            # The next move needs both brokers.
            cluster.restore()
        cluster.move(partition, cluster.other(cluster.owner(partition)))
        time.sleep(0.3)
    assert goes_on()


def disturbing(cluster: RealCluster, topic: str, pace: Pace) -> Callable[[Future[Any]], object]:
    """Return a function that disturbs a job from its start, and then lets it end."""

    def work(running: Future[Any]) -> None:
        wait_until(lambda: pace.begun(running), "the job has not begun", 120.0)
        try:
            disturb(cluster, topic, lambda: not running.done())
        finally:
            pace.hurry()

    return work


@pytest.mark.fault(11, 14)
def test_a_batch_read_gives_each_row_once(
    spark: SparkSession, real_cluster: RealCluster, tmp_path: Path
) -> None:
    broker, pace = Real(real_cluster), slow(tmp_path)
    topic = broker.create_topic(partitions=PARTITIONS)
    save(numbered(spark), broker, topic, {"pulsar.producer.batchingMaxMessages": 100})
    found = run_disturbed(
        spark,
        lambda: read_numbers(spark, broker, topic, pace, READS),
        disturbing(real_cluster, topic, pace),
    )
    assert len(found) == ROWS
    assert set(found) == set(range(ROWS))


@pytest.mark.fault(12, 14)
def test_a_batch_write_loses_no_row(
    spark: SparkSession, real_cluster: RealCluster, tmp_path: Path
) -> None:
    broker, pace = Real(real_cluster), slow(tmp_path)
    topic = broker.create_topic(partitions=PARTITIONS)
    run_disturbed(
        spark,
        lambda: write_numbers(spark, broker, topic, pace, WRITES),
        disturbing(real_cluster, topic, pace),
    )
    expect_all_written(spark, broker, topic)
    for name in broker.partitions_of(topic, PARTITIONS):
        broker.expect_no_trace(name)


@contextmanager
def written(broker: Real, topic: str) -> Iterator[list[int]]:
    """Write numbers to a topic while the block runs; yields the acknowledged ones."""
    numbers: list[int] = []
    stopped = threading.Event()
    errors: list[BaseException] = []

    def write() -> None:
        settings = ProducerOptions(batching_max_messages=20, send_timeout=SEND_SECONDS)
        options = ClientOptions(broker.service_url, operation_timeout=OPERATION_SECONDS)
        try:
            with (
                ClientContext(options) as context,
                PartitionedProducer(context, topic, settings) as writer,
            ):
                while not stopped.wait(0.05):
                    block = range(len(numbers), len(numbers) + 50)
                    for number in block:
                        writer.send(MessageFields(b"%d" % number))
                    writer.flush()
                    numbers.extend(block)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield numbers
    finally:
        stopped.set()
        finish(thread, seconds=180.0)
    assert not errors, errors


class Copy:
    """A Spark query that copies a topic to another one, row by row."""

    def __init__(self, spark: SparkSession, broker: Real, folder: Path) -> None:
        self._spark = spark
        self._broker = broker
        self.topic, self._copy = (broker.create_topic(partitions=PARTITIONS) for _ in range(2))
        # By micro-batch, as a micro-batch can run again.
        self._seen: dict[int, list[tuple[int, bytes]]] = {}
        stream = spark.readStream.format("pulsar").option("service.url", broker.service_url)
        stream = stream.option("topic", self.topic).option("startingOffsets", "earliest")
        self.query = (
            stream.options(includeMetadata=True, **READS)
            .load()
            .writeStream.foreachBatch(self._on_batch)
            .option("checkpointLocation", str(folder))
            .start()
        )

    def _on_batch(self, frame: DataFrame, batch: int) -> None:
        save(frame.select("value"), self._broker, self._copy, WRITES)
        rows = frame.select("value", "__messageId").collect()
        self._seen[batch] = [(int(bytes(row[0])), bytes(row[1])) for row in rows]

    def rows(self) -> list[tuple[int, bytes]]:
        """Return the numbers and message ids of the rows so far."""
        return [row for rows in list(self._seen.values()) for row in rows]

    def goes_on(self) -> bool:
        """Whether the query runs."""
        return bool(self.query.isActive)

    def expect_all(self, numbers: list[int]) -> None:
        """Wait for the rest; every stored row came once, and the copy is complete."""
        self.query.processAllAvailable()
        self.query.stop()
        assert self.query.exception() is None
        frame = load(self._spark, self._broker, self.topic, {"includeMetadata": True})
        stored = frame.select("value", "__messageId").collect()
        assert {int(bytes(row[0])) for row in stored} == set(numbers)
        assert sorted(id for _, id in self.rows()) == sorted(bytes(row[1]) for row in stored)
        copied = load(self._spark, self._broker, self._copy).select("value").collect()
        assert {int(bytes(row[0])) for row in copied} == set(numbers)


@pytest.mark.fault(11, 12, 14)
def test_a_stream_gives_each_row_once_and_loses_none(
    spark: SparkSession, real_cluster: RealCluster, tmp_path: Path
) -> None:
    broker = Real(real_cluster)
    copy = Copy(spark, broker, tmp_path)
    try:
        with written(broker, copy.topic) as numbers:
            wait_until(lambda: len(copy.rows()) > 100, "rows of the stream", 180.0)
            disturb(real_cluster, copy.topic, copy.goes_on)
        copy.expect_all(numbers)
    finally:
        copy.query.stop()


@pytest.mark.fault(5)
def test_a_stream_leaves_a_broker_that_hangs_for_the_other_one(
    spark: SparkSession, real_cluster: RealCluster, tmp_path: Path
) -> None:
    """It continues while the broker still hangs, and after that is back."""
    broker = Real(real_cluster)
    copy = Copy(spark, broker, tmp_path)

    def newest() -> int:
        return max((number for number, _ in copy.rows()), default=-1)

    try:
        with written(broker, copy.topic) as numbers:
            wait_until(lambda: len(copy.rows()) > 100, "rows of the stream", 180.0)
            hanging = real_cluster.owner(f"{copy.topic}-partition-0")
            since = time.monotonic()
            hanging.pause()
            # Fifty at a time are acknowledged by all partitions before the next are sent.
            later = len(numbers) + 500
            wait_until(lambda: newest() > later or not copy.goes_on(), "rows go on", 300.0)
            print(f"\nhanging: rows go on after {time.monotonic() - since:.1f} s")
            time.sleep(max(since + HANGING - time.monotonic(), 0.0))
            hanging.resume()
            back = len(numbers) + 500
            wait_until(lambda: newest() > back or not copy.goes_on(), "rows go on", 180.0)
        copy.expect_all(numbers)
    finally:
        copy.query.stop()
