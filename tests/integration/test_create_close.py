"""Consumers, producers and clients that come and go leave nothing behind."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from typing import NamedTuple

import pytest

from pulsar_spark.client import PulsarClient
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.consumers.consumer import TopicConsumer
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.testing import EmbeddedBroker
from tests.integration.brokers import Broker
from tests.support.waiting import wait_until

OWNERS = (ClientConnection, ClientContext, TopicProducer, TopicConsumer)
"""What holds threads, descriptors, timers or memory."""

ROUNDS = 10
CYCLES = 1_000
WARM_UP = 5


class Held(NamedTuple):
    """A process's resources: objects, and resident memory in MiB."""

    threads: int
    descriptors: int
    objects: int
    memory: float


def held() -> Held:
    gc.collect()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return Held(
        threading.active_count(),
        len(os.listdir("/proc/self/fd")),
        len(gc.get_objects()),
        pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
    )


def alive() -> Counter[str]:
    """The number of resource-holding objects, by class."""
    gc.collect()
    return Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, OWNERS))


def cycle(service_url: str, topic: str, count: int) -> None:
    """Create and close this many producers, consumers and clients in all."""
    parts = count // 5
    with PulsarClient(service_url) as client:
        for _ in range(2 * parts):
            client.create_producer(topic).close()
        for _ in range(2 * parts):
            client.subscribe(topic, "s").close()
    for _ in range(count - 4 * parts):
        with PulsarClient(service_url) as client:
            client.get_topic_partitions(topic)


def test_what_is_closed_is_gone(broker: Broker, topic: str) -> None:
    cycle(broker.service_url, topic, 10)
    owners, before = alive(), held()
    cycle(broker.service_url, topic, 60)
    wait_until(lambda: alive() <= owners, "no connection, consumer or producer is left")
    # An embedded broker's ends of connections close a moment later.
    wait_until(lambda: held().threads <= before.threads, "no thread is left")
    wait_until(lambda: held().descriptors <= before.descriptors, "no descriptor is left")


@pytest.mark.slow
@pytest.mark.fault(75)
def test_ten_thousand_that_come_and_go_take_nothing_more() -> None:
    with EmbeddedBroker() as broker:
        topic = broker.create_topic("t")
        found: list[Held] = []
        for _ in range(ROUNDS):
            cycle(broker.service_url, topic, CYCLES)
            found.append(held())
        first, last = found[WARM_UP - 1], found[-1]
        wait_until(lambda: held().threads <= first.threads, f"no thread is left of {found}")
        wait_until(lambda: held().descriptors <= first.descriptors, f"no file is left of {found}")
        # One object left by every tenth cycle would be noticed.
        assert last.objects - first.objects < (ROUNDS - WARM_UP) * CYCLES / 10, found
        assert last.memory - first.memory < 8, found
