"""Table views of `PulsarClient`, on both brokers; the official client writes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from pulsar_spark.client import PulsarClient, StringSchema
from tests.integration.brokers import Broker
from tests.support.waiting import wait_until


@pytest.mark.parametrize("partitions", [0, 3])
def test_a_view_has_the_latest_value_of_each_key_and_follows(
    broker: Broker,
    client: PulsarClient,
    official_client: Callable[..., Any],
    partitions: int,
) -> None:
    topic = broker.create_topic(partitions=partitions)
    producer = official_client(broker.service_url).create_producer(
        topic, schema=pulsar.schema.StringSchema()
    )
    for number in range(20):
        producer.send(f"v{number}", partition_key=f"k{number % 5}")
    producer.send("", partition_key="k0")
    producer.send("no key")
    told: list[tuple[str, str]] = []
    came = threading.Semaphore(0)

    def listen(key: str, value: str) -> None:
        told.append((key, value))
        came.release()

    with client.create_table_view(topic, schema=StringSchema()) as view:
        assert len(view) == 4
        assert view.get("k4") == "v19"
        assert view.get("k0") is None
        found: dict[str, str] = {}
        view.for_each(found.__setitem__)
        assert found == {f"k{number}": f"v{15 + number}" for number in range(1, 5)}
        view.for_each_and_listen(listen)
        assert sorted(told) == sorted(found.items())
        told.clear()
        producer.send("new", partition_key="k1")
        wait_until(lambda: view.get("k1") == "new", "the view does not follow")
        producer.send("", partition_key="k2")
        wait_until(lambda: view.get("k2") is None, "a tombstone does not remove its key")
        wait_until(lambda: len(told) == 2, "the listener is not told")
        assert told == [("k1", "new"), ("k2", "")]
        assert topic in repr(view)


def test_a_view_reads_the_compacted_topic(
    broker: Broker, client: PulsarClient, official_client: Callable[..., Any]
) -> None:
    topic = broker.create_topic()
    producer = official_client(broker.service_url).create_producer(topic)
    for number in range(10):
        producer.send(b"%d" % number, partition_key=f"k{number % 2}")
    # The topic's last message is not in the compacted view.
    producer.send(b"late", partition_key="k2")
    producer.send(b"", partition_key="k2")
    broker.compact(topic)
    with client.create_table_view(topic, "mine") as view:
        assert (view.get("k0"), view.get("k1"), len(view)) == (b"8", b"9", 2)
