"""A read of very many topic partitions is planned in seconds: requests are concurrent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pulsar_spark.testing import EmbeddedBroker
from tests.integration.brokers import Embedded
from tests.integration.spark_io import load
from tests.spark.topics import reader, store
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

PARTITIONS = 1000
# The broker takes its time for each question. One after the other, they would take minutes.
DELAY = 0.3
SECONDS = PARTITIONS * DELAY / 2
# An idle machine takes 3 seconds, half of them for the broker, which is in this process.
PROCESSOR_SECONDS = 10.0


@pytest.fixture(scope="module")
def wide() -> Iterator[Embedded]:
    """A broker with a topic of very many partitions, each with a message."""
    with EmbeddedBroker(auto_create=False) as own:
        own.create_topic("wide", PARTITIONS)
        for number in range(PARTITIONS):
            store(own, f"wide-partition-{number}", [b"%d" % number])
        own.faults.delay("GET_LAST_MESSAGE_ID", DELAY, times=None)
        yield Embedded(own)
        assert own.internal_errors == ()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"startingTime": "2001-01-01", "endingTime": "2100-01-01"},
        {"minPartitions": str(PARTITIONS + 1)},
    ],
    ids=["offsets", "times", "split"],
)
def test_a_thousand_partitions_are_planned_in_seconds(
    wide: Embedded, options: dict[str, str]
) -> None:
    read = reader(wide.own, {"topic": "wide", **options})
    started, used = time.monotonic(), time.process_time()
    planned = read.partitions()
    seconds, used = time.monotonic() - started, time.process_time() - used
    print(f"{PARTITIONS} partitions were planned in {seconds:.2f} s, {used:.2f} s of CPU")
    assert len(planned) == PARTITIONS
    assert seconds < SECONDS
    assert used < PROCESSOR_SECONDS
    wait_until(lambda: wide.own.clients == 0, "producers and consumers to be closed")


def test_spark_plans_a_thousand_partitions(spark: SparkSession, wide: Embedded) -> None:
    frame = load(spark, wide, "wide")
    started = time.monotonic()
    assert frame.rdd.getNumPartitions() == PARTITIONS
    assert time.monotonic() - started < SECONDS
