"""Rare options of consumers and producers, on both brokers, compared with the official client."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from pulsar_spark import client as package
from pulsar_spark.client import (
    ConsumerKeySharedPolicy,
    ConsumerType,
    InitialPosition,
    KeySharedMode,
    MultiplierRedeliveryBackoff,
    PartitionsRoutingMode,
    PulsarClient,
    Result,
)
from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.errors import CorruptMessage
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.outgoing_messages import OutgoingMessages
from tests.integration.brokers import Broker
from tests.integration.messages import clustered
from tests.support.waiting import wait_until

official = pytest.importorskip("pulsar", reason="pulsar-client is not installed")

RECEIVE_MS = 60_000
EARLIEST = InitialPosition.Earliest
Connect = Callable[..., Any]


# --- redelivery -----------------------------------------------------------------------------


def test_a_refused_message_comes_again_after_growing_pauses(
    client: PulsarClient, topic: str
) -> None:
    with client.create_producer(topic) as producer:
        producer.send(b"")
    with client.subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        initial_position=EARLIEST,
        negative_ack_redelivery_backoff=MultiplierRedeliveryBackoff(20, 100, 4),
    ) as consumer:
        pauses: list[float] = []
        message = consumer.receive(RECEIVE_MS)
        for count in range(1, 4):
            began = time.monotonic()
            consumer.negative_acknowledge(message)
            message = consumer.receive(RECEIVE_MS)
            pauses.append(time.monotonic() - began)
            assert message.redelivery_count() == count
    # The minimum; how much longer it takes depends on the machine.
    assert all(pause >= least for pause, least in zip(pauses, (0.02, 0.08, 0.1), strict=True))


@pytest.mark.slow
def test_what_is_not_acknowledged_in_time_comes_again_for_both_clients(
    broker: Broker, client: PulsarClient, official_client: Connect, topic: str
) -> None:
    with client.create_producer(topic) as producer:
        for number in range(4):
            producer.send(b"%d" % number)
    began = time.monotonic()
    consumers = [
        made.subscribe(
            topic,
            module.__name__,
            module.ConsumerType.Shared,
            initial_position=module.InitialPosition.Earliest,
            unacked_messages_timeout_ms=10_000,
        )
        for module, made in ((package, client), (official, official_client(broker.service_url)))
    ]
    for consumer in consumers:
        for number in range(4):
            message = consumer.receive(RECEIVE_MS)
            if number in (0, 2):
                consumer.acknowledge(message)
    seen: list[list[tuple[bytes, int]]] = []
    for consumer in consumers:
        again = [consumer.receive(2 * RECEIVE_MS) for _ in range(2)]
        assert time.monotonic() - began >= 9.5
        seen.append(sorted((message.data(), message.redelivery_count()) for message in again))
        consumer.close()
    assert seen[0] == seen[1] == [(b"1", 1), (b"3", 1)]


# --- what cannot be read --------------------------------------------------------------------


@pytest.mark.fault(33)
def test_a_damaged_batch_is_an_error_or_is_acknowledged(broker: Broker) -> None:
    topic = broker.create_topic()
    with clustered(broker) as context:
        producer = TopicProducer(context, topic, ProducerOptions())
        producer.open()
        # Brokers do not look into batches.
        batched = pb.MessageMetadata(num_messages_in_batch=3).SerializePartialToString()
        producer.send(OutgoingMessages([b"\0\0\0\x05"], None, [batched]))
        producer.send(OutgoingMessages([b"good"]))
        producer.flush()
        producer.close()
    with PulsarClient(broker.service_url) as client:
        options: dict[str, Any] = {
            "initial_position": EARLIEST,
            "broker_consumer_stats_cache_time_ms": 0,
        }
        with client.subscribe(topic, "raise", **options) as consumer:
            with pytest.raises(CorruptMessage):
                consumer.receive(RECEIVE_MS)
            consumer.acknowledge(consumer.receive(RECEIVE_MS))
            # The broker counts the whole batch, or its entry.
            wait_until(lambda: consumer.get_broker_consumer_stats().msg_backlog in (1, 3))
        with client.subscribe(topic, "skip", discard_corrupt_messages=True, **options) as consumer:
            message = consumer.receive(RECEIVE_MS)
            assert message.data() == b"good"
            consumer.acknowledge(message)
            wait_until(lambda: consumer.get_broker_consumer_stats().msg_backlog == 0)


# --- who gets what --------------------------------------------------------------------------


def test_ordering_keys_come_before_keys_on_key_shared_subscriptions(
    broker: Broker, client: PulsarClient, official_client: Connect, topic: str
) -> None:
    theirs = official_client(broker.service_url)
    # The slots of these keys are in the hash function's tests.
    low, high = ("a", "key", "banana"), ("user-1", "apple")
    ours_low = client.subscribe(
        topic,
        "s",
        ConsumerType.KeyShared,
        key_shared_policy=ConsumerKeySharedPolicy(KeySharedMode.Sticky, False, [(0, 32767)]),
    )
    theirs_high = theirs.subscribe(
        topic,
        "s",
        official.ConsumerType.KeyShared,
        key_shared_policy=official.ConsumerKeySharedPolicy(
            official.KeySharedMode.Sticky, False, [(32768, 65535)]
        ),
    )
    for made in (client, theirs):
        producer = made.create_producer(topic)
        for own, other in zip((*low, *high), (*high, *high, *low), strict=False):
            producer.send(own.encode(), partition_key=other, ordering_key=own)
        producer.close()
    for consumer, expected in ((ours_low, low), (theirs_high, high)):
        found = [consumer.receive(RECEIVE_MS) for _ in range(2 * len(expected))]
        assert sorted(message.ordering_key() for message in found) == sorted(expected * 2)
        assert all(message.data().decode() == message.ordering_key() for message in found)


@pytest.mark.slow
def test_delayed_messages_wait_for_their_time_on_shared_subscriptions(
    broker: Broker, client: PulsarClient, official_client: Connect, topic: str
) -> None:
    made = {package: client, official: official_client(broker.service_url)}
    consumers = [
        one.subscribe(topic, module.__name__, module.ConsumerType.Shared)
        for module, one in made.items()
    ]
    due = time.time() + 2.0
    for one in made.values():
        producer = one.create_producer(topic, batching_enabled=True)
        producer.send(b"later", deliver_after=timedelta(seconds=2))
        producer.send(b"then", deliver_at=int(time.time() * 1000) + 2000)
        producer.send(b"now")
        producer.close()
    for consumer in consumers:
        found = []
        for _ in range(6):
            found.append(consumer.receive(RECEIVE_MS).data())
            if found[-1] != b"now":
                # Brokers deliver them up to one tick of their clock (a second) early.
                assert time.time() >= due - 1.1
        assert sorted(found) == sorted([b"now", b"later", b"then"] * 2)


def test_a_pattern_finds_persistent_topics_or_others_or_both(
    broker: Broker, client: PulsarClient, official_client: Connect
) -> None:
    namespace = broker.create_namespace()
    stored = broker.create_topic(f"persistent://{namespace}/p-1")
    passing = f"non-persistent://{namespace}/p-2"
    producers = [client.create_producer(name) for name in (stored, passing)]
    expected = {
        "PersistentOnly": {stored},
        "NonPersistentOnly": {passing},
        "AllTopics": {stored, passing},
    }
    pattern = re.compile(f"persistent://{namespace}/p-.*")
    made = ((package, client), (official, official_client(broker.service_url)))
    for mode, topics in expected.items():
        for module, one in made:
            consumer = one.subscribe(
                pattern,
                f"{module.__name__}-{mode}",
                regex_subscription_mode=getattr(module.RegexSubscriptionMode, mode),
            )
            for producer in producers:
                producer.send(mode.encode())
            found = [consumer.receive(RECEIVE_MS) for _ in topics]
            assert {message.topic_name() for message in found} == topics
            assert {message.data() for message in found} == {mode.encode()}
            consumer.close()


# --- producers ------------------------------------------------------------------------------


def test_lazy_producers_register_when_their_partition_has_its_turn(
    broker: Broker, client: PulsarClient
) -> None:
    topic = broker.create_topic(partitions=3)

    def registered() -> int:
        return sum(len(broker.producers(name)) for name in broker.partitions_of(topic, 3))

    with client.create_producer(topic, lazy_start_partitioned_producers=True) as producer:
        assert registered() == 1
        assert {producer.send(b"").partition() for _ in range(3)} == {0, 1, 2}
        assert registered() == 3
    with client.create_producer(topic):
        assert registered() == 3


def test_partitions_share_the_messages_that_may_wait(broker: Broker, client: PulsarClient) -> None:
    topic = broker.create_topic(partitions=4)
    results: list[Result] = []
    with client.create_producer(
        topic,
        max_pending_messages=100,
        max_pending_messages_across_partitions=8,
        batching_enabled=True,
        batching_max_publish_delay_ms=60_000,
        message_routing_mode=PartitionsRoutingMode.UseSinglePartition,
    ) as producer:
        for _ in range(3):
            producer.send_async(b"", lambda result, _: results.append(result))
        producer.flush()
    assert sorted(results, key=str) == [Result.Ok, Result.Ok, Result.ProducerQueueIsFull]
