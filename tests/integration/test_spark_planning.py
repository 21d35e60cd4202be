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
# Ten times the partitions take ten times the CPU, here and in the broker, and some noise.
FEWER = PARTITIONS // 10
FACTOR = 30
REQUESTS = (
    "LOOKUP",
    "SUBSCRIBE",
    "SEEK",
    "GET_LAST_MESSAGE_ID",
    "FLOW",
    "CLOSE_CONSUMER",
)


@pytest.fixture(scope="module")
def wide() -> Iterator[Embedded]:
    """A broker with a topic of very many partitions and one of fewer, each with a message."""
    with EmbeddedBroker(auto_create=False) as own:
        for topic, partitions in (("wide", PARTITIONS), ("narrow", FEWER)):
            own.create_topic(topic, partitions)
            for number in range(partitions):
                store(own, f"{topic}-partition-{number}", [b"%d" % number])
        own.faults.delay("GET_LAST_MESSAGE_ID", DELAY, times=None)
        yield Embedded(own)
        assert own.internal_errors == ()


@pytest.mark.parametrize(
    "options, requests",
    [
        # LOOKUP, SUBSCRIBE, GET_LAST_MESSAGE_ID and CLOSE_CONSUMER.
        ({}, 4),
        # And for each time: two LOOKUPs, as many consumers, SEEK, GET_LAST_MESSAGE_ID, FLOW.
        ({"startingTime": "2001-01-01", "endingTime": "2100-01-01"}, 19),
        # Ids tell how many entries there are.
        ({"minPartitions": str(PARTITIONS + 1)}, 4),
    ],
    ids=["offsets", "times", "split"],
)
def test_a_thousand_partitions_are_planned_in_seconds(
    wide: Embedded, options: dict[str, str], requests: int
) -> None:
    _, few = plan(wide, "narrow", options)
    wide.own.faults.forget()
    seconds, used = plan(wide, "wide", options)
    print(f"{PARTITIONS} partitions were planned in {seconds:.2f} s, {used:.2f} s of CPU")
    assert seconds < SECONDS
    assert used < few * FACTOR
    asked = {name: wide.own.faults.seen(name, direction="in") for name in REQUESTS}
    assert sum(asked.values()) <= requests * PARTITIONS, asked


def plan(wide: Embedded, topic: str, options: dict[str, str]) -> tuple[float, float]:
    """Plan a read of a topic; return the seconds that passed, and those of CPU."""
    read = reader(wide.own, {"topic": topic, **options})
    started, used = time.monotonic(), time.process_time()
    planned = read.partitions()
    spent = time.monotonic() - started, time.process_time() - used
    wait_until(lambda: wide.own.clients == 0, "producers and consumers to be closed")
    assert len(planned) == (PARTITIONS if topic == "wide" else FEWER)
    return spent


def test_spark_plans_a_thousand_partitions(spark: SparkSession, wide: Embedded) -> None:
    frame = load(spark, wide, "wide")
    started = time.monotonic()
    assert frame.rdd.getNumPartitions() == PARTITIONS
    assert time.monotonic() - started < SECONDS
