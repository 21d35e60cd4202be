"""Producers, readers and table views when a topic gets more partitions, on both brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulsar_spark.client import MessageId, PulsarClient
from tests.integration.brokers import Broker
from tests.support.waiting import wait_until

READ_MS = 60_000


def test_a_producer_sends_to_new_partitions_too(broker: Broker, client: PulsarClient) -> None:
    topic = broker.create_topic(partitions=1)
    with client.create_producer(topic, auto_update_partitions_interval_seconds=0.1) as producer:
        assert {producer.send(b"").partition() for _ in range(3)} == {0}
        keyed = producer.send(b"", partition_key="ann").partition()
        broker.add_partitions(topic, 4)
        wait_until(lambda: producer.send(b"").partition() > 0, "new partitions are not found")
        assert {producer.send(b"").partition() for _ in range(8)} == {0, 1, 2, 3}
        # Keys are spread over all partitions, as by a new producer.
        keys = [f"k{number}" for number in range(20)]
        with client.create_producer(topic) as fresh:
            for key in ("ann", *keys):
                expected = fresh.send(b"", partition_key=key).partition()
                assert producer.send(b"", partition_key=key).partition() == expected
        assert keyed == 0


@pytest.mark.slow
def test_a_reader_reads_new_partitions_from_their_beginning(
    broker: Broker, client: PulsarClient, official_client: Callable[..., Any]
) -> None:
    official = official_client(broker.service_url)
    for before in (1, 2):
        topic = broker.create_topic(partitions=before)
        parts = broker.partitions_of(topic, 4)
        with client.create_reader(
            topic, MessageId.latest, auto_update_partitions_interval_seconds=0.1
        ) as reader:
            official.create_producer(parts[0]).send(b"0")
            assert reader.read_next(READ_MS).data() == b"0"
            broker.add_partitions(topic, 4)
            for number in range(4):
                official.create_producer(parts[number]).send(b"%d" % number)
            found = [reader.read_next(READ_MS) for _ in range(4)]
            assert sorted(one.data() for one in found) == [b"0", b"1", b"2", b"3"]
            assert {one.topic_name() for one in found} == set(parts)
            assert not reader.has_message_available()
            # A seek applies to all partitions.
            reader.seek(MessageId.earliest)
            assert sorted(reader.read_next(READ_MS).data() for _ in range(5)) == [
                b"0",
                b"0",
                b"1",
                b"2",
                b"3",
            ]


def test_a_table_view_follows_new_partitions(broker: Broker, client: PulsarClient) -> None:
    topic = broker.create_topic(partitions=1)
    with (
        client.create_table_view(topic, auto_update_partitions_interval_seconds=0.1) as view,
        client.create_producer(topic, auto_update_partitions_interval_seconds=0.1) as producer,
    ):
        producer.send(b"1", partition_key="a")
        wait_until(lambda: view.get("a") == b"1", "the view does not follow")
        broker.add_partitions(topic, 2)
        new = client.create_producer(f"{topic}-partition-1")
        new.send(b"2", partition_key="b")
        wait_until(lambda: view.get("b") == b"2", "the view does not follow the new partition")
