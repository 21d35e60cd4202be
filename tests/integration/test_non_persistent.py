"""Non-persistent topics: delivered to connected consumers, stored nowhere."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import pulsar_spark.client as ours
from pulsar_spark.client import ConsumerType, MessageId, PulsarClient
from pulsar_spark.errors import OperationTimeout, UnsupportedFeature
from tests.integration.brokers import Broker
from tests.support.waiting import wait_until

PACKAGES = ["pulsar", "pulsar_spark.client"]
KINDS = ["Exclusive", "Failover", "Shared", "KeyShared"]


@pytest.fixture
def client(broker: Broker) -> Iterator[PulsarClient]:
    with PulsarClient(broker.service_url, operation_timeout_seconds=60) as made:
        yield made


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic().replace("persistent://", "non-persistent://")


def greeted(module: Any, producer: Any, consumer: Any) -> None:
    """Send until a message arrives: the broker may not have the consumer's permits yet.

    More of these greetings may arrive later.
    """

    def came(timeout: int) -> bool:
        try:
            return bool(consumer.receive(timeout_millis=timeout))
        except module.Timeout:
            return False

    wait_until(lambda: producer.send(b"hello", partition_key="k") and came(200))


def receive(consumer: Any) -> Any:
    """Return the next message that is no greeting."""
    while (message := consumer.receive(timeout_millis=60_000)).data() == b"hello":
        consumer.acknowledge(message)
    return message


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("writing,reading", [PACKAGES, PACKAGES[::-1], PACKAGES[1:] * 2])
def test_each_subscription_type_gets_what_comes_while_it_is_there(
    broker: Broker, topic: str, kind: str, writing: str, reading: str
) -> None:
    pytest.importorskip("pulsar", reason="pulsar-client is not installed")
    writer, reader = (importlib.import_module(name) for name in (writing, reading))
    sending, receiving = writer.Client(broker.service_url), reader.Client(broker.service_url)
    producer = sending.create_producer(topic, batching_enabled=kind in ("Shared", "Failover"))
    producer.send(b"before anybody came", partition_key="k")
    consumer = receiving.subscribe(topic, "s", getattr(reader.ConsumerType, kind))
    greeted(reader, producer, consumer)
    for number in range(3):
        stored = producer.send(b"%d" % number, partition_key="k", properties={"n": str(number)})
        # It is not stored anywhere: brokers give zeros as its id.
        assert (stored.ledger_id(), stored.entry_id()) == (0, 0)
        message = receive(consumer)
        assert message.data() == b"%d" % number
        assert message.properties() == {"n": str(number)}
        assert message.partition_key() == "k"
        assert message.topic_name() == topic
        consumer.acknowledge(message)
    sending.close()
    receiving.close()


def test_several_consumers_share_what_comes(client: PulsarClient, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", ConsumerType.Shared) for _ in range(2)]
    other = client.subscribe(topic, "other")
    values = {b"%d" % number for number in range(10)}
    with client.create_producer(topic) as producer:
        greeted(ours, producer, other)
        for value in values:
            producer.send_async(value, None)
    assert {receive(other).data() for _ in values} == values
    found: list[bytes] = []

    def all_came() -> bool:
        for consumer in consumers:
            with suppress(OperationTimeout):
                found.append(consumer.receive(50).data())
        return values <= set(found)

    wait_until(all_came)
    assert sorted(value for value in found if value != b"hello") == sorted(values)


def test_a_consumer_of_several_topics(broker: Broker, client: PulsarClient) -> None:
    name = broker.create_topic(partitions=0).replace("persistent://", "non-persistent://")
    consumer = client.subscribe([f"{name}-a", f"{name}-b"], "s", ConsumerType.Shared)
    for suffix in ("a", "b"):
        with client.create_producer(f"{name}-{suffix}", batching_enabled=True) as producer:
            for number in range(5):
                producer.send_async(b"%d" % number, None)
    found = sorted(
        (message.topic_name()[-1], message.data())
        for message in (consumer.receive(60_000) for _ in range(10))
    )
    assert found == [(part, b"%d" % number) for part in "ab" for number in range(5)]


def test_what_needs_a_place_is_refused_by_name(client: PulsarClient, topic: str) -> None:
    with client.subscribe(topic, "s") as consumer:
        with pytest.raises(UnsupportedFeature, match="non-persistent"):
            consumer.get_last_message_id()
        with pytest.raises(OperationTimeout):
            consumer.receive(10)
    with pytest.raises(UnsupportedFeature, match=r"non-persistent.*subscribe"):
        client.create_reader(topic, MessageId.earliest)
    with pytest.raises(UnsupportedFeature, match="non-persistent"):
        client.create_table_view(topic)


def test_a_refused_message_does_not_come_again(client: PulsarClient, topic: str) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=1)
    with client.create_producer(topic) as producer:
        producer.send(b"once")
        consumer.negative_acknowledge(consumer.receive(60_000))
        producer.send(b"next")
        assert consumer.receive(60_000).data() == b"next"
