"""Spark tasks that are stopped half-way, paused or very many leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle

import pulsar_spark
from pulsar_spark.engine.context import shared_connections
from pulsar_spark.spark.datasource import PulsarDataSource
from tests.integration.brokers import Broker, Real
from tests.integration.spark_io import load, official, save, send, values
from tests.support import groups
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

# The tuned brokers send PING every 2 s, and disconnect clients that do not answer in time.
PAUSE = 4.5
CANARY = "canary-8b1f"


def slowly(
    folder: Path, pause: float, first: int = 1_000_000
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[Any]]:
    """Return a function for mapInArrow that pauses before a task's `first` batches.

    Before each pause it creates a file.
    """
    name = str(folder)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            (Path(name) / f"{os.getpid()}-{time.monotonic_ns()}").touch()
            time.sleep(pause if number < first else 0)
            yield batch

    return work


@contextmanager
def job_group(spark: SparkSession, name: str) -> Iterator[None]:
    """Group this thread's jobs under a name, by which they can be cancelled."""
    spark.sparkContext.setJobGroup(name, name, interruptOnCancel=True)
    try:
        yield
    finally:
        for key in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            spark.sparkContext.setLocalProperty(key, None)  # type: ignore[arg-type]


@contextmanager
def batches_of(spark: SparkSession, rows: int) -> Iterator[None]:
    """Set the number of rows in Spark's batches for Python."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", rows)
    try:
        yield
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def expect_gone_soon(broker: Broker, topic: str, partitions: int) -> None:
    for name in broker.partitions_of(topic, partitions):
        wait_until(lambda name=name: not broker.subscriptions(name), f"{name} is left")  # type: ignore[misc]


@pytest.mark.fault(68, 69)
def test_a_limit_leaves_no_consumer_behind(spark: SparkSession, broker: Broker) -> None:
    topic = broker.create_topic(partitions=2)
    save(spark.range(20_000).selectExpr("repeat(id, 200) value"), broker, topic)
    frame = load(spark, broker, topic, {"pulsar.reader.receiverQueueSize": 100})
    assert len(frame.limit(10).collect()) == 10
    expect_gone_soon(broker, topic, 2)
    assert frame.first() is not None
    expect_gone_soon(broker, topic, 2)


@pytest.mark.slow
@pytest.mark.fault(68, 69)
def test_a_cancelled_job_leaves_no_consumer_and_no_producer(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    source, target = broker.create_topic(partitions=2), broker.create_topic()
    save(spark.range(20_000).selectExpr("repeat(id, 200) value"), broker, source)
    read = load(spark, broker, source, {"pulsar.reader.receiverQueueSize": 100})
    slow = read.mapInArrow(slowly(tmp_path, 1.0), read.schema)

    def cancel() -> None:
        wait_until(lambda: list(tmp_path.iterdir()), "the job has not begun", 120.0)
        spark.sparkContext.cancelJobGroup("to be cancelled")

    with (
        ThreadPoolExecutor(1) as thread,
        batches_of(spark, 100),
        job_group(spark, "to be cancelled"),
    ):
        cancelled = thread.submit(cancel)
        with pytest.raises(Exception, match="cancelled"):
            save(slow, broker, target)
        cancelled.result()
    expect_gone_soon(broker, source, 2)
    wait_until(lambda: not broker.producers(target), "a producer is left")
    # The same read can start again at once.
    assert load(spark, broker, source).count() == 20_000


@pytest.mark.slow
@pytest.mark.fault(8)
def test_a_read_that_pauses_loses_and_repeats_nothing(
    spark: SparkSession, tuned_broker: Broker, tmp_path: Path
) -> None:
    topic = tuned_broker.create_topic()
    rows = spark.range(4000).coalesce(1).selectExpr("rpad(id, 3000, '.') value")
    save(rows, tuned_broker, topic)
    options = {"pulsar.reader.receiverQueueSize": 100, "pulsar.client.keepAliveIntervalSeconds": 1}
    read = load(spark, tuned_broker, topic, options)
    slow = read.select("value").mapInArrow(slowly(tmp_path, PAUSE), "value string")
    with batches_of(spark, 2000):
        found = [int(row[0].rstrip(".")) for row in slow.collect()]
    assert found == list(range(4000))
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
@pytest.mark.fault(9)
def test_a_write_that_pauses_loses_and_repeats_nothing(
    spark: SparkSession, tuned_broker: Broker, tmp_path: Path
) -> None:
    topic = tuned_broker.create_topic()
    source = spark.range(200).coalesce(1).selectExpr("string(id) value")
    slow = source.mapInArrow(slowly(tmp_path, PAUSE), source.schema)
    with batches_of(spark, 100):
        save(slow, tuned_broker, topic, {"pulsar.client.keepAliveIntervalSeconds": 1})
    found = [int(value) for value in values(load(spark, tuned_broker, topic))]
    assert found == list(range(200))
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
@pytest.mark.real_broker
@pytest.mark.timeout(600)
@pytest.mark.fault(8)
@pytest.mark.xdist_group(groups.THREE_MINUTES)
def test_a_read_that_pauses_for_three_minutes_loses_and_repeats_nothing(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    broker = Real(request.getfixturevalue("real_broker"))
    topic = broker.create_topic()
    save(spark.range(3000).coalesce(1).selectExpr("rpad(id, 3000, '.') value"), broker, topic)
    read = load(spark, broker, topic, {"pulsar.reader.receiverQueueSize": 100})
    slow = read.select("value").mapInArrow(slowly(tmp_path, 180.0, first=1), "value string")
    with batches_of(spark, 1000):
        found = [int(row[0].rstrip(".")) for row in slow.collect()]
    assert found == list(range(3000))
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.slow
def test_threads_can_read_and_those_that_register_can_write(
    spark: SparkSession, broker: Broker
) -> None:
    topic = broker.create_topic()

    def work(number: int) -> int:
        pulsar_spark.register(spark)
        save(spark.range(10).selectExpr(f"string(id + {number}) value"), broker, topic)
        return len(values(load(spark, broker, topic)))

    with ThreadPoolExecutor(2) as threads:
        assert all(count >= 10 for count in threads.map(work, (0, 10)))
    assert sorted(map(int, values(load(spark, broker, topic)))) == list(range(20))


# --- workers --------------------------------------------------------------------------------


def worker_states(spark: SparkSession) -> dict[int, tuple[int, int]]:
    """Return open files and threads of each Python worker that Spark has started.

    The JVM starts daemons, and they fork workers.
    """
    gateway: Any = spark.sparkContext._gateway
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text()
                parents[int(entry.name)] = int(stat.rpartition(") ")[2].split()[1])
    found: dict[int, tuple[int, int]] = {}
    for pid, daemon in parents.items():
        above = parents.get(daemon, 0)
        while above and above != gateway.proc.pid:
            above = parents.get(above, 0)
        if above:
            with contextlib.suppress(OSError):
                files, threads = (len(os.listdir(f"/proc/{pid}/{kind}")) for kind in ("fd", "task"))
                found[pid] = files, threads
    return found


@pytest.mark.slow
@pytest.mark.fault(75)
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_workers_are_the_same_after_very_many_tasks(spark: SparkSession, broker: Broker) -> None:
    topic = broker.create_topic(partitions=2)
    with official(broker) as client:
        for name in broker.partitions_of(topic, 2):
            send(client, name, [b"%d" % number for number in range(150)])
    frame = load(spark, broker, topic, {"partitionsPerTopicPartition": 50})
    assert frame.rdd.getNumPartitions() == 100

    def states() -> dict[int, tuple[int, int]]:
        assert len(frame.collect()) == 300
        return worker_states(spark)

    before = states()
    after = [states() for _ in range(2)][-1]
    same = before.keys() & after.keys()
    assert same
    # 200 tasks later: what a worker opens only once is no leak.
    grown = [(before[pid], after[pid]) for pid in same if after[pid] > before[pid]]
    assert all(late[0] - early[0] < 10 and late[1] == early[1] for early, late in grown), grown


def copied(held: Any) -> Any:
    """Return an object as a worker gets it, pickled on the driver as Spark does."""
    dump: Callable[[Any], bytes] = cloudpickle.dumps
    return pickle.loads(dump(held))


@pytest.mark.fault(98)
def test_what_is_pickled_is_plain_and_partitions_have_no_credentials(broker: Broker) -> None:
    topic = broker.create_topic(partitions=3)
    with official(broker) as client:
        send(client, topic, [b"%d" % number for number in range(30)], batching_enabled=True)
    options = {
        "service.url": broker.service_url,
        "topic": topic,
        "pulsar.client.authPluginClassName": "token",
        "pulsar.client.authParams": f"token:{CANARY}",
    }
    threads = threading.active_count()
    source = PulsarDataSource(options)
    assert threading.active_count() <= threads
    reader = copied(source.reader(source.schema()))
    partitions = reader.partitions()
    again = pickle.loads(pickle.dumps(partitions))
    assert again == partitions
    assert CANARY.encode() not in pickle.dumps(partitions)
    for held in (source, reader, *partitions, vars(reader), [vars(part) for part in partitions]):
        assert CANARY not in repr(held)
    found = [
        value
        for part in again
        for batch in copied(reader).read(part)
        for value in batch.column(0).to_pylist()
    ]
    assert sorted(found, key=int) == [b"%d" % number for number in range(30)]
    writer = source.writer(source.schema(), overwrite=False)
    message = copied(writer).write(batch for part in partitions for batch in reader.read(part))
    assert message.acknowledged == 30
    assert pickle.loads(pickle.dumps(message)) == message
    assert CANARY not in repr(message) + repr(vars(writer)) + json.dumps(message.last_ids)
    # Connections are kept for the next task, and so is the thread that would close them.
    shared_connections().close_unused()
    wait_until(lambda: threading.active_count() <= threads + 1)
