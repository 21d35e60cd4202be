"""`PulsarClient` with each subscription type, on both brokers."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulsar_spark.client import (
    ConsumerBatchReceivePolicy,
    ConsumerKeySharedPolicy,
    ConsumerType,
    InitialPosition,
    KeySharedMode,
    Message,
    MessageId,
    PulsarClient,
    PulsarConsumer,
    Result,
)
from pulsar_spark.errors import ClosedError, ConsumerAssignError, OptionError
from tests.integration.brokers import Broker
from tests.support.waiting import wait_until

RECEIVE_MS = 60_000
EARLIEST = InitialPosition.Earliest


def send(client: PulsarClient, topic: str, count: int, **options: Any) -> list[MessageId]:
    with client.create_producer(topic, **options) as producer:
        return [producer.send(b"%d" % number) for number in range(count)]


def send_batch(client: PulsarClient, topic: str, count: int) -> None:
    with client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
    ) as producer:
        for number in range(count):
            producer.send_async(b"%d" % number, None)
        producer.flush()


def receive(consumer: PulsarConsumer, count: int) -> list[Message]:
    return [consumer.receive(RECEIVE_MS) for _ in range(count)]


def values(messages: list[Message]) -> list[int]:
    return [int(message.data()) for message in messages]


def backlog(consumer: PulsarConsumer) -> int:
    return consumer.get_broker_consumer_stats().msg_backlog


class Activity:
    """Records when a consumer becomes active or inactive."""

    def __init__(self) -> None:
        self.active = threading.Event()
        self.inactive = threading.Event()

    def became_active(self, consumer: PulsarConsumer, partition_id: int) -> None:
        assert partition_id == -1
        self.active.set()

    def became_inactive(self, consumer: PulsarConsumer, partition_id: int) -> None:
        self.inactive.set()


def test_another_consumer_takes_over_what_is_not_acknowledged(
    client: PulsarClient, topic: str
) -> None:
    activities = Activity(), Activity()
    first, second = (
        client.subscribe(
            topic,
            "s",
            ConsumerType.Failover,
            initial_position=EARLIEST,
            consumer_name=f"c{number}",
            priority_level=number,
            consumer_event_listener=activity,
        )
        for number, activity in enumerate(activities)
    )
    assert activities[0].active.wait(60)
    assert activities[1].inactive.wait(60)
    send(client, topic, 6)
    found = receive(first, 6)
    first.acknowledge_cumulative(found[1])
    first.close()
    assert activities[1].active.wait(60)
    # A real broker that was reading when the active consumer changed can wait for more messages.
    send(client, topic, 1)
    assert values(receive(second, 5)) == [2, 3, 4, 5, 0]


def test_a_key_has_one_consumer(client: PulsarClient, topic: str) -> None:
    consumers = [
        client.subscribe(topic, "s", ConsumerType.KeyShared, consumer_name=f"c{number}")
        for number in range(2)
    ]
    with client.create_producer(topic) as producer:
        for number in range(100):
            producer.send(b"%d" % number, partition_key=f"k{number % 20}")
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    total = 0
    while total < 100:
        for number, consumer in enumerate(consumers):
            for message in consumer.batch_receive():
                consumer.acknowledge(message)
                total += 1
                found[message.partition_key()].append((number, int(message.data())))
    assert len(found) == 20
    for key, messages in found.items():
        assert len({consumer for consumer, _ in messages}) == 1, key
        assert [value for _, value in messages] == sorted(value for _, value in messages)
    assert {messages[0][0] for messages in found.values()} == {0, 1}


def test_sticky_ranges_say_which_keys_a_consumer_gets(client: PulsarClient, topic: str) -> None:
    def sticky(low: int, high: int) -> PulsarConsumer:
        policy = ConsumerKeySharedPolicy(KeySharedMode.Sticky, False, [(low, high)])
        return client.subscribe(topic, "s", ConsumerType.KeyShared, key_shared_policy=policy)

    low, high = sticky(0, 32767), sticky(32768, 65535)
    with pytest.raises(ConsumerAssignError):
        sticky(100, 200)
    # The slots of these keys are in the hash function's tests.
    keys = {"a": 27058, "key": 27204, "user-1": 34659, "apple": 59536, "banana": 11183}
    with client.create_producer(topic) as producer:
        for key in keys:
            producer.send(b"", partition_key=key)
    for consumer, expected in (
        (low, {"a", "key", "banana"}),
        (high, {"user-1", "apple"}),
    ):
        got = receive(consumer, len(expected))
        assert {message.partition_key() for message in got} == expected


def test_acknowledgements_with_receipts_are_known_to_the_broker(
    client: PulsarClient, topic: str
) -> None:
    send(client, topic, 5)
    with client.subscribe(
        topic,
        "s",
        initial_position=EARLIEST,
        ack_receipt_enabled=True,
        broker_consumer_stats_cache_time_ms=0,
    ) as consumer:
        found = receive(consumer, 5)
        consumer.acknowledge(found[0])
        assert backlog(consumer) == 4
        consumer.acknowledge_cumulative(found[4], properties={"round": 7})
        wait_until(lambda: backlog(consumer) == 0, "it is not acknowledged")
        stats = consumer.get_broker_consumer_stats()
        assert stats.type == "Exclusive"
        assert stats.consumer_name == consumer.consumer_name()


def test_parts_of_batches_are_acknowledged_where_the_broker_takes_it(
    tuned_broker: Broker,
) -> None:
    topic = tuned_broker.create_topic()
    with PulsarClient(tuned_broker.service_url, operation_timeout_seconds=60) as client:
        send_batch(client, topic, 70)

        def subscribe() -> PulsarConsumer:
            return client.subscribe(
                topic,
                "s",
                ConsumerType.Shared,
                initial_position=EARLIEST,
                batch_index_ack_enabled=True,
                ack_receipt_enabled=True,
            )

        with subscribe() as consumer:
            for message in receive(consumer, 70):
                if message.message_id().batch_index() not in (3, 64, 69):
                    consumer.acknowledge(message)
        with subscribe() as consumer:
            found = receive(consumer, 3)
            assert values(found) == [3, 64, 69]
            for message in found:
                consumer.acknowledge(message)
            send(client, topic, 1)
            assert values(receive(consumer, 1)) == [0]


def test_the_middle_of_a_batch_can_be_acknowledged_cumulatively(tuned_broker: Broker) -> None:
    topic = tuned_broker.create_topic()
    with PulsarClient(tuned_broker.service_url, operation_timeout_seconds=60) as client:
        send_batch(client, topic, 10)
        for _ in range(2):
            with client.subscribe(
                topic,
                "s",
                initial_position=EARLIEST,
                batch_index_ack_enabled=True,
                ack_receipt_enabled=True,
            ) as consumer:
                first = consumer.receive(RECEIVE_MS)
                consumer.acknowledge_cumulative(receive(consumer, 3)[-1])
        assert int(first.data()) == 4


def test_callbacks_get_messages_in_order_and_the_end(client: PulsarClient, topic: str) -> None:
    found: list[tuple[Result, bytes | None]] = []
    came = threading.Semaphore(0)

    def note(result: Result, message: Message | None) -> None:
        found.append((result, None if message is None else message.data()))
        came.release()

    consumer = client.subscribe(topic, "s")
    for _ in range(4):
        consumer.receive_async(note)
    send(client, topic, 3)
    for _ in range(3):
        assert came.acquire(timeout=60)
    consumer.close()
    assert came.acquire(timeout=60)
    assert found == [(Result.Ok, b"%d" % n) for n in range(3)] + [(Result.AlreadyClosed, None)]
    with pytest.raises(ClosedError):
        consumer.receive_async(note)


def test_batches_are_received_up_to_their_limits(client: PulsarClient, topic: str) -> None:
    send_batch(client, topic, 50)
    by_number = ConsumerBatchReceivePolicy(20, -1, 60_000)
    with client.subscribe(
        topic, "n", initial_position=EARLIEST, batch_receive_policy=by_number
    ) as consumer:
        assert values(consumer.batch_receive()) == list(range(20))
        assert values(consumer.batch_receive()) == list(range(20, 40))
    by_size = ConsumerBatchReceivePolicy(-1, 20, 60_000)
    with client.subscribe(
        topic, "b", initial_position=EARLIEST, batch_receive_policy=by_size
    ) as consumer:
        # Ten numbers of one digit and five of two.
        assert values(consumer.batch_receive()) == list(range(15))
    by_time = ConsumerBatchReceivePolicy(1000, -1, 50)
    with client.subscribe(topic, "t", batch_receive_policy=by_time) as consumer:
        assert consumer.batch_receive() == []


def test_an_iteration_ends_with_the_consumer(client: PulsarClient, topic: str) -> None:
    send(client, topic, 3)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    found = []
    for message in consumer:
        found.append(message)
        if len(found) == 3:
            consumer.close()
    assert values(found) == [0, 1, 2]


@pytest.mark.parametrize("inclusive", [False, True])
def test_a_subscription_that_is_not_durable_begins_at_a_message_and_leaves_nothing(
    broker: Broker, client: PulsarClient, topic: str, inclusive: bool
) -> None:
    ids = send(client, topic, 5)
    with client.subscribe(
        topic, "s", durable=False, start_message_id=ids[2], start_message_id_inclusive=inclusive
    ) as consumer:
        assert values(receive(consumer, 2)) == ([2, 3] if inclusive else [3, 4])
        broker.unload(topic)
        send(client, topic, 1)
        assert values(receive(consumer, 1)) == ([4] if inclusive else [0])
    wait_until(lambda: not broker.subscriptions(topic), "the subscription is still there")


@pytest.mark.slow
def test_a_subscription_can_begin_some_seconds_ago(client: PulsarClient, topic: str) -> None:
    send(client, topic, 2)
    time.sleep(10.1)
    send(client, topic, 3)
    with client.subscribe(topic, "s", durable=False, start_message_rollback_seconds=10) as consumer:
        assert values(receive(consumer, 3)) == [0, 1, 2]
    with client.subscribe(
        topic, "s", durable=False, start_message_rollback_seconds=3600
    ) as consumer:
        assert values(receive(consumer, 5)) == [0, 1, 0, 1, 2]


@pytest.mark.fault(14)
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_what_is_not_acknowledged_comes_again_after_an_unload(
    broker: Broker, client: PulsarClient, topic: str, kind: ConsumerType
) -> None:
    send(client, topic, 10)
    with client.subscribe(topic, "s", kind, initial_position=EARLIEST) as consumer:
        for message in receive(consumer, 5):
            consumer.acknowledge(message)
        broker.unload(topic)
        found: set[int] = set()
        while found != {5, 6, 7, 8, 9}:
            message = consumer.receive(RECEIVE_MS)
            consumer.acknowledge(message)
            # Messages in flight may come twice.
            found |= {int(message.data())} - {0, 1, 2, 3, 4}


def test_a_message_in_chunks_is_acknowledged_with_all_its_chunks(
    tuned_broker: Broker, official_client: Callable[..., Any]
) -> None:
    topic = tuned_broker.create_topic()
    payload = bytes(range(256)) * 1000
    official = official_client(tuned_broker.service_url)
    official.create_producer(topic, chunking_enabled=True).send(payload)
    with (
        PulsarClient(tuned_broker.service_url, operation_timeout_seconds=60) as client,
        client.subscribe(
            topic,
            "s",
            ConsumerType.Shared,
            initial_position=EARLIEST,
            negative_ack_redelivery_delay_ms=20,
            broker_consumer_stats_cache_time_ms=0,
        ) as consumer,
    ):
        consumer.negative_acknowledge(consumer.receive(RECEIVE_MS))
        again = consumer.receive(RECEIVE_MS)
        assert again.data() == payload
        assert backlog(consumer) > 1
        consumer.acknowledge(again)
        wait_until(lambda: backlog(consumer) == 0, "chunks are left")


@pytest.mark.fault(39, 100)
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_messages_whose_chunks_find_no_room_in_memory_arrive_all_the_same(
    tuned_broker: Broker, official_client: Callable[..., Any], kind: ConsumerType
) -> None:
    topic = tuned_broker.create_topic()
    producer = official_client(tuned_broker.service_url).create_producer(
        topic, chunking_enabled=True
    )
    sent = [bytes([number]) * 250_000 for number in range(3)]
    for payload in sent:
        producer.send(payload)
    with (
        PulsarClient(tuned_broker.service_url, operation_timeout_seconds=60) as client,
        client.subscribe(
            topic, "s", kind, initial_position=EARLIEST, broker_consumer_stats_cache_time_ms=0
        ) as consumer,
        # Messages of other topics have all the room.
        client._receiver_budget.chunks.reserved(client._receiver_budget.total),
    ):
        for payload in sent:
            message = consumer.receive(RECEIVE_MS)
            assert message.data() == payload
            consumer.acknowledge(message)
        wait_until(lambda: backlog(consumer) == 0, "chunks are left")


def test_the_end_of_a_terminated_topic_is_told(
    broker: Broker, client: PulsarClient, topic: str
) -> None:
    send(client, topic, 2)
    with client.subscribe(topic, "s", initial_position=EARLIEST) as consumer:
        broker.terminate(topic)
        found = receive(consumer, 2)
        assert not consumer.has_reached_end_of_topic()
        consumer.acknowledge_cumulative(found[1])
        wait_until(consumer.has_reached_end_of_topic, "the end is not told")


def test_a_consumer_without_a_queue_takes_one_message_at_a_time(
    client: PulsarClient, topic: str
) -> None:
    first, second = (
        client.subscribe(
            topic, "s", ConsumerType.Shared, receiver_queue_size=0, initial_position=EARLIEST
        )
        for _ in range(2)
    )
    send(client, topic, 4)
    found = [first.receive(), second.receive(), second.receive(), first.receive()]
    assert sorted(values(found)) == [0, 1, 2, 3]
    with pytest.raises(OptionError):
        first.receive(10)


def test_a_non_persistent_topic_is_consumed_while_it_lasts(
    broker: Broker, client: PulsarClient, topic: str
) -> None:
    name = topic.replace("persistent://", "non-persistent://")
    with (
        client.subscribe(name, "s", ConsumerType.Shared) as consumer,
        client.create_producer(name) as producer,
    ):
        for number in range(3):
            producer.send(b"%d" % number)
        found = receive(consumer, 3)
        assert values(found) == [0, 1, 2]
        for message in found:
            consumer.acknowledge(message)


@pytest.mark.slow
@pytest.mark.fault(11)
@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.Failover])
def test_nothing_is_lost_where_the_broker_is_killed(
    tuned_broker: Broker, kind: ConsumerType
) -> None:
    topic = tuned_broker.create_topic(partitions=2)
    with PulsarClient(tuned_broker.service_url, operation_timeout_seconds=60) as client:
        consumer = client.subscribe(topic, "s", kind, initial_position=EARLIEST)
        send(client, topic, 100)
        found = {int(message.data()) for message in acknowledged(consumer, 40)}
        tuned_broker.restart(kill=True)
        send(client, topic, 150)
        until = time.monotonic() + 200
        while len(found) < 150 and time.monotonic() < until:
            found |= {int(message.data()) for message in acknowledged(consumer, 1)}
        assert found == set(range(150))
        consumer.close()
        # Acknowledged messages stay so: only new ones are left, after the rest of both sends.
        with client.subscribe(topic, "s", kind) as again:
            with client.create_producer(topic) as producer:
                producer.send(b"last")
            while again.receive(60_000).data() != b"last":
                pass


def acknowledged(consumer: PulsarConsumer, count: int) -> Iterator[Message]:
    for _ in range(count):
        message = consumer.receive(60_000)
        consumer.acknowledge(message)
        yield message
