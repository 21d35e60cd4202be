"""Brokers crash and let go of topics while Spark reads or writes: nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import pulsar_spark
from tests.integration.brokers import Broker
from tests.integration.spark_io import load, save
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROWS = 100_000
PARTITIONS = 2
# So that there is something left to do whenever the broker is disturbed.
BATCH = 2_500
PAUSE = 0.25


def slowly(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[Any]]:
    """Return a function for mapInArrow that takes its time and counts batches by files."""
    name = str(folder)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            (Path(name) / str(time.monotonic_ns())).touch()
            time.sleep(PAUSE)
            yield batch

    return work


@contextmanager
def small_batches(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", BATCH)
    try:
        yield
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def numbered(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, PARTITIONS).selectExpr("rpad(id, 200, '.') value")


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tuned_broker: Broker) -> str:
    """A topic of `ROWS` numbers in many batches and ledgers."""
    topic = tuned_broker.create_topic(partitions=PARTITIONS)
    save(numbered(spark), tuned_broker, topic, {"pulsar.producer.batchingMaxMessages": 100})
    return topic


T = TypeVar("T")


def run_disturbed(
    spark: SparkSession, job: Callable[[], T], disturb: Callable[[Future[T]], object]
) -> T:
    """Run a job on another thread, and on this one what disturbs it; return the job's result."""

    def run() -> T:
        pulsar_spark.register(spark)
        return job()

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run)
        disturb(running)
        return running.result(150)


def begun(folder: Path, running: Future[Any]) -> bool:
    if running.done():
        # It has failed, or was too quick.
        running.result()
    return len(list(folder.iterdir())) >= PARTITIONS


def unloading(broker: Broker, topic: str, folder: Path) -> Callable[[Future[Any]], object]:
    """Return what unloads a topic each half second as long as a job runs."""

    def unload(running: Future[Any]) -> None:
        wait_until(lambda: begun(folder, running), "the job has not begun", 120.0)
        unloads = 0
        while not running.done():
            for name in broker.partitions_of(topic, PARTITIONS):
                broker.unload(name)
            unloads += 1
            time.sleep(0.5)
        assert unloads >= 3

    return unload


def crashing(broker: Broker, folder: Path) -> Callable[[Future[Any]], object]:
    """Return what kills the broker and starts it again while a job runs."""

    def crash(running: Future[Any]) -> None:
        wait_until(lambda: begun(folder, running), "the job has not begun", 120.0)
        assert not running.done()
        broker.restart(kill=True)

    return crash


def read_numbers(spark: SparkSession, broker: Broker, topic: str, folder: Path) -> list[int]:
    options = {"pulsar.reader.receiverQueueSize": 1000}
    read = load(spark, broker, topic, options).selectExpr(
        "cast(substring_index(value, '.', 1) as long) id"
    )
    with small_batches(spark):
        return [row[0] for row in read.mapInArrow(slowly(folder), "id long").collect()]


def write_numbers(spark: SparkSession, broker: Broker, topic: str, folder: Path) -> None:
    source = numbered(spark)
    options = {"pulsar.producer.batchingMaxMessages": 100}
    with small_batches(spark):
        save(source.mapInArrow(slowly(folder), source.schema), broker, topic, options)


def expect_all_written(spark: SparkSession, broker: Broker, topic: str) -> None:
    """Each row is there, and of each producer in the order in which it was first sent."""
    frame = load(spark, broker, topic, {"includeMetadata": True})
    found = frame.selectExpr(
        "cast(substring_index(value, '.', 1) as long)", "__topic", "__producerName"
    ).collect()
    firsts: dict[tuple[str, str], dict[int, None]] = {}
    for number, name, producer in found:
        firsts.setdefault((name, producer), {})[number] = None
    for numbers in firsts.values():
        assert list(numbers) == sorted(numbers)
    assert {number for number, *_ in found} == set(range(ROWS))


@pytest.mark.fault(14)
def test_unloads_while_spark_reads_change_nothing(
    spark: SparkSession, tuned_broker: Broker, filled: str, tmp_path: Path
) -> None:
    found = run_disturbed(
        spark,
        lambda: read_numbers(spark, tuned_broker, filled, tmp_path),
        unloading(tuned_broker, filled, tmp_path),
    )
    assert len(found) == ROWS
    assert set(found) == set(range(ROWS))


@pytest.mark.fault(14)
def test_unloads_while_spark_writes_lose_nothing(
    spark: SparkSession, tuned_broker: Broker, tmp_path: Path
) -> None:
    topic = tuned_broker.create_topic(partitions=PARTITIONS)
    run_disturbed(
        spark,
        lambda: write_numbers(spark, tuned_broker, topic, tmp_path),
        unloading(tuned_broker, topic, tmp_path),
    )
    expect_all_written(spark, tuned_broker, topic)


@pytest.mark.fault(11)
def test_a_crash_while_spark_reads_changes_nothing(
    spark: SparkSession, tuned_broker: Broker, filled: str, tmp_path: Path
) -> None:
    found = run_disturbed(
        spark,
        lambda: read_numbers(spark, tuned_broker, filled, tmp_path),
        crashing(tuned_broker, tmp_path),
    )
    assert len(found) == ROWS
    assert set(found) == set(range(ROWS))


@pytest.mark.fault(12)
def test_a_crash_while_spark_writes_loses_nothing(
    spark: SparkSession, tuned_broker: Broker, tmp_path: Path
) -> None:
    topic = tuned_broker.create_topic(partitions=PARTITIONS)
    run_disturbed(
        spark,
        lambda: write_numbers(spark, tuned_broker, topic, tmp_path),
        crashing(tuned_broker, tmp_path),
    )
    expect_all_written(spark, tuned_broker, topic)
    for name in tuned_broker.partitions_of(topic, PARTITIONS):
        tuned_broker.expect_no_trace(name)
