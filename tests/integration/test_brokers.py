"""The two brokers behave alike behind their common interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.brokers import Broker
from tests.support.waiting import wait_until

pulsar = pytest.importorskip("pulsar", reason="pulsar-client is not installed")

Connect = Callable[..., Any]


def read_all(client: Any, topic: str) -> list[bytes]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    values = []
    while reader.has_message_available():
        values.append(reader.read_next(60_000).data())
    reader.close()
    return values


def test_topics_are_rolled_trimmed_terminated_and_deleted(
    broker: Broker, official_client: Connect
) -> None:
    client = official_client(broker.service_url)
    topic = broker.create_topic()
    producer = client.create_producer(topic)
    first = producer.send(b"1")
    broker.roll_ledger(topic)
    second = producer.send(b"2")
    assert second.ledger_id() > first.ledger_id()
    assert read_all(client, topic) == [b"1", b"2"]
    broker.trim(topic)
    assert read_all(client, topic) == []
    producer.send(b"3")
    assert read_all(client, topic) == [b"3"]
    broker.terminate(topic)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)
    assert read_all(client, topic) == [b"3"]
    broker.delete_topic(topic)


def test_partitions_are_added_and_deleted(broker: Broker, official_client: Connect) -> None:
    client = official_client(broker.service_url)
    topic = broker.create_topic(broker.unique_topic("p", broker.create_namespace()), partitions=2)
    assert client.get_topic_partitions(topic) == broker.partitions_of(topic, 2)
    broker.add_partitions(topic, 3)
    assert client.get_topic_partitions(topic) == broker.partitions_of(topic, 3)
    broker.delete_topic(topic)


def test_who_is_connected_is_known(broker: Broker, official_client: Connect) -> None:
    client = official_client(broker.service_url)
    topic = broker.create_topic()
    broker.expect_no_trace(topic)
    producer = client.create_producer(topic, producer_name="known")
    consumer = client.subscribe(topic, "sub")
    assert broker.producers(topic) == {"known"}
    assert broker.subscriptions(topic) == {"sub"}
    consumer.unsubscribe()
    producer.close()
    broker.expect_no_trace(topic)


@pytest.mark.slow
def test_a_restart_keeps_all(tuned_broker: Broker, official_client: Connect) -> None:
    topic = tuned_broker.create_topic()
    url = tuned_broker.service_url
    official_client(url).create_producer(topic).send(b"kept")
    tuned_broker.restart()
    assert tuned_broker.service_url == url
    assert read_all(official_client(url), topic) == [b"kept"]


def test_a_pause_delays_all(tuned_broker: Broker, official_client: Connect) -> None:
    topic = tuned_broker.create_topic()
    producer = official_client(tuned_broker.service_url).create_producer(topic)
    done: list[object] = []
    tuned_broker.pause()
    try:
        producer.send_async(b"late", lambda *_: done.append(1))
        with pytest.raises(AssertionError):
            wait_until(lambda: done, "sent", 0.3)
    finally:
        tuned_broker.resume()
    wait_until(lambda: done, "sent")


def test_a_compacted_topic_shows_the_last_of_each_key(
    broker: Broker, official_client: Connect
) -> None:
    client = official_client(broker.service_url)
    topic = broker.create_topic()
    producer = client.create_producer(topic)
    for value in (b"1", b"2"):
        producer.send(value, partition_key="k")
    broker.compact(topic)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    assert reader.read_next(60_000).data() == b"2"
