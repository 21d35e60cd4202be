"""Spark runs slow tasks twice (spark.speculation) and kills the loser without notice.

Spark itself does so only on clusters of several hosts; here the two attempts are made by hand.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from pulsar_spark.spark.datasource import PulsarDataSource
from tests.integration.brokers import Broker, Embedded
from tests.integration.messages import read_rows
from tests.support.waiting import wait_until

ROWS = 1000
SCHEMA = StructType([StructField("value", LongType())])
# The rows of a batch are sent before the next batch is requested.
SETTINGS = {"pulsar.producer.batchingMaxMessages": "10"}

# A first attempt that hangs after its first half.
LOSER = """
import sys, time
from tests.integration.test_spark_speculation import attempt_to_read, attempt_to_write

def stay(batches):
    for batch in batches:
        yield batch
        print("half", flush=True)
        time.sleep(120)

kind, url, topic = sys.argv[1:]
if kind != "read":
    attempt_to_write(url, topic, stay, once=kind == "write once")
else:
    for batch in stay(attempt_to_read(url, topic)):
        pass
"""


def options(url: str, topic: str) -> dict[str, str]:
    return {"service.url": url, "topic": topic, **SETTINGS}


def attempt_to_write(url: str, topic: str, wrap: Any = iter, *, once: bool = False) -> int:
    """Write all rows as a task does; return how many were acknowledged.

    With `once` they are written in a transaction, which the driver then commits.
    """
    numbers = [range(ROWS // 2), range(ROWS // 2, ROWS)]
    batches = [pa.record_batch({"value": pa.array(part, pa.int64())}) for part in numbers]
    given = options(url, topic)
    if once:
        given |= {"deliveryGuarantee": "exactly-once", "sinkId": topic}
    writer: Any = PulsarDataSource(given).writer(SCHEMA, overwrite=False)
    message = writer.write(wrap(batches))
    if once:
        writer.commit([message])
    return int(message.acknowledged)


def attempt_to_read(url: str, topic: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a topic with one partition, as a task does."""
    reader: Any = PulsarDataSource(options(url, topic)).reader(SCHEMA)
    (partition,) = reader.partitions()
    yield from reader.read(partition)


@contextmanager
def loser(kind: str, broker: Broker, topic: str) -> Iterator[None]:
    """Run a first attempt that hangs after its first batch, and is killed at the end."""
    command = [sys.executable, "-c", LOSER, kind, broker.service_url, topic]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "half\n"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def written(broker: Broker, topic: str) -> list[int]:
    rows = read_rows(broker, topic)
    return [int.from_bytes(row.content.payload or b"", "big", signed=True) for row in rows]


def check_that_nobody_stays(broker: Broker) -> None:
    if isinstance(broker, Embedded):
        wait_until(lambda: not broker.own.clients, "the loser is still connected")


@pytest.mark.fault(67)
def test_a_write_that_runs_twice_writes_each_row(broker: Broker) -> None:
    topic = broker.create_topic()
    with loser("write", broker, topic):
        wait_until(lambda: len(written(broker, topic)) >= ROWS // 2 - 10, "the loser is not there")
        assert attempt_to_write(broker.service_url, topic) == ROWS
    check_that_nobody_stays(broker)
    counts = Counter(written(broker, topic))
    assert set(counts) == set(range(ROWS))
    assert max(counts.values()) <= 2
    twice = {number for number, count in counts.items() if count == 2}
    assert twice
    assert twice <= set(range(ROWS // 2))


@pytest.mark.slow
@pytest.mark.fault(67, 84)
def test_a_write_that_runs_twice_writes_each_row_once_by_transactions(broker: Broker) -> None:
    topic = broker.create_topic()
    with loser("write once", broker, topic):
        assert attempt_to_write(broker.service_url, topic, once=True) == ROWS
    check_that_nobody_stays(broker)
    # The loser's transaction is aborted.
    wait_until(lambda: len(written(broker, topic)) >= ROWS, "rows are held back")
    assert sorted(written(broker, topic)) == list(range(ROWS))


@pytest.mark.fault(67)
def test_a_read_that_runs_twice_reads_each_row_once(broker: Broker) -> None:
    topic = broker.create_topic()
    assert attempt_to_write(broker.service_url, topic) == ROWS
    with loser("read", broker, topic):
        batches = list(attempt_to_read(broker.service_url, topic))
    values = [value for batch in batches for value in batch.column(0).to_pylist()]
    assert values == list(range(ROWS))
    check_that_nobody_stays(broker)
