"""Streams read by Spark, on both brokers: each row once, whatever is killed meanwhile."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.brokers import Broker, wait_until
from tests.integration.messages import official_read
from tests.integration.spark_io import official
from tests.integration.streams import Feed, backlog, feeding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WORKER = "pyspark.daemon pyspark.worker"
SOURCE = "pyspark.sql.streaming.python_streaming_source_runner"


class Job:
    """A query from a topic into memory, its batches kept by their ids."""

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
        """Stop it, also one that has failed."""
        if self.query is not None:
            self.query.stop()

    @property
    def values(self) -> list[bytes]:
        """What the batches hold, in their order."""
        return [value for _, batch in sorted(self.batches.items()) for value in batch]


@pytest.fixture
def feed(broker: Broker) -> Iterator[Feed]:
    with feeding(broker) as made:
        yield made


def processes(kind: str) -> list[int]:
    """Return the processes of this test's Spark that run tasks, or the driver's part of sources.

    Those of tasks are forked by daemons, which are not among them.
    """
    listing = subprocess.run(
        ["ps", "-axwwo", "pid=,ppid=,command="], capture_output=True, text=True, check=True
    )
    parents: dict[int, int] = {}
    found: set[int] = set()
    for line in listing.stdout.splitlines():
        pid, parent, command = line.split(None, 2)
        parents[int(pid)] = int(parent)
        if kind in command:
            found.add(int(pid))
    forked = kind == WORKER
    return [
        pid for pid in found if (parents.get(pid) in found or not forked) and _is_ours(pid, parents)
    ]


def _is_ours(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()


def kill(kind: str) -> int:
    """Kill such processes; returns how many there were."""
    found = processes(kind)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return len(found)


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
    assert job.start(availableNow=True).awaitTermination(60)
    assert sorted(job.values) == sorted(expected)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.fault(66, 71, 74)
def test_every_row_is_read_once_whatever_is_killed(
    spark: SparkSession, broker: Broker, feed: Feed, tmp_path: Path
) -> None:
    rng = random.Random(5)
    topic = broker.create_topic(partitions=2)
    partitions = broker.partitions_of(topic, 2)
    job = Job(spark, broker, tmp_path, topic=topic, maxMessagesPerTrigger="1000")
    expected: dict[str, list[bytes]] = {partition: [] for partition in partitions}
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for partition in partitions:
                expected[partition] += feed(partition, [0, 20, 5])
            stop.wait(0.2)

    writer = threading.Thread(target=write)
    writer.start()
    killed = {WORKER: 0, SOURCE: 0}
    try:
        for victim in (WORKER, SOURCE, WORKER, "unload", SOURCE, "stop"):
            query = job.start()
            reached = len(job.batches)
            deadline = time.monotonic() + 60
            while len(job.batches) < reached + 2 and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(rng.random() * 0.3)
            if victim == "unload":
                broker.unload(topic)
            elif victim in killed:
                while not (count := kill(victim)) and time.monotonic() < deadline:
                    time.sleep(0.01)
                killed[victim] += count
            job.stop()
    finally:
        stop.set()
        writer.join()
        job.stop()
    query = job.start(availableNow=True)
    assert query.awaitTermination(120)
    assert all(killed.values()), killed
    found = job.values
    with official(broker) as client:
        for partition, sent in expected.items():
            here = set(sent)
            mine = [value for value in found if value in here]
            assert set(mine) == here
            # A producer that lost a receipt sends its batch again: the topic tells what it holds.
            held = official_read(client, partition, len(mine))
            assert mine == [message.data() for message in held]
    assert max(len(batch) for batch in job.batches.values()) <= 1000
