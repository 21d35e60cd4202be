"""Spark's jobs on a real cluster whose topics move, and whose brokers are killed."""

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
from pulsar_spark.protocol.batches import MessageFields
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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MOVES = 20
KILLS = (7, 14)


def slow(folder: Path) -> Pace:
    """Return the pace of a job that lasts longer than all that is done to it."""
    return Pace(folder, batch=500, pause=1.5)


def disturb(cluster: RealCluster, topic: str, goes_on: Callable[[], bool]) -> None:
    """Move the partitions of a topic in turn, and kill the broker of one now and then."""
    partitions = itertools.cycle(f"{topic}-partition-{number}" for number in range(PARTITIONS))
    for number, partition in zip(range(MOVES), partitions, strict=False):
        assert goes_on()
        if number in KILLS:
            cluster.owner(partition).kill()
            # Both brokers have to be there for the next move.
            cluster.restore()
        cluster.move(partition, cluster.other(cluster.owner(partition)))
        time.sleep(0.3)
    assert goes_on()


def disturbing(cluster: RealCluster, topic: str, pace: Pace) -> Callable[[Future[Any]], object]:
    """Return what disturbs a job from its beginning on, and then lets it end."""

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
        lambda: read_numbers(spark, broker, topic, pace),
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
        lambda: write_numbers(spark, broker, topic, pace),
        disturbing(real_cluster, topic, pace),
    )
    expect_all_written(spark, broker, topic)
    for name in broker.partitions_of(topic, PARTITIONS):
        broker.expect_no_trace(name)


@contextmanager
def written(broker: Real, topic: str) -> Iterator[list[int]]:
    """Write numbers to a topic while the block runs; yields those that are acknowledged."""
    numbers: list[int] = []
    stopped = threading.Event()
    errors: list[BaseException] = []

    def write() -> None:
        settings = ProducerOptions(batching_max_messages=20)
        try:
            with (
                ClientContext(ClientOptions(broker.service_url)) as context,
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
        finish(thread, seconds=120.0)
    assert not errors, errors


@pytest.mark.fault(11, 12, 14)
def test_a_stream_gives_each_row_once_and_loses_none(
    spark: SparkSession, real_cluster: RealCluster, tmp_path: Path
) -> None:
    broker = Real(real_cluster)
    topic, copy = (broker.create_topic(partitions=PARTITIONS) for _ in range(2))
    seen: dict[int, list[bytes]] = {}

    def on_batch(frame: DataFrame, batch: int) -> None:
        save(frame.select("value"), broker, copy)
        seen[batch] = [bytes(row[0]) for row in frame.select("__messageId").collect()]

    stream = spark.readStream.format("pulsar").option("service.url", broker.service_url)
    stream = stream.option("topic", topic).option("startingOffsets", "earliest")
    query = (
        stream.option("includeMetadata", "true")
        .load()
        .writeStream.foreachBatch(on_batch)
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        with written(broker, topic) as numbers:
            wait_until(lambda: sum(map(len, seen.values())) > 100, "rows of the stream", 90.0)
            disturb(real_cluster, topic, lambda: query.isActive)
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    frame = load(spark, broker, topic, {"includeMetadata": True})
    stored = frame.select("__messageId", "value").collect()
    assert {int(bytes(row[1])) for row in stored} == set(numbers)
    assert sorted(itertools.chain(*seen.values())) == sorted(bytes(row[0]) for row in stored)
    copied = [int(bytes(row[0])) for row in load(spark, broker, copy).select("value").collect()]
    assert set(copied) == set(numbers)
