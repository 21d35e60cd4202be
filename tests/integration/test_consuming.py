"""Consumers of `PulsarClient`, on the embedded and the real broker, with official producers."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pulsar_spark import client as package
from pulsar_spark.client import (
    ConsumerDeadLetterPolicy,
    ConsumerType,
    InitialPosition,
    Message,
    MessageId,
    PulsarClient,
    PulsarConsumer,
)
from pulsar_spark.errors import (
    ClosedError,
    ConsumerBusy,
    NotAllowed,
    OperationTimeout,
    UnsupportedFeature,
)
from tests.integration.brokers import Broker, needs_pulsar
from tests.support.waiting import wait_until

RECEIVE_MS = 60_000
EARLIEST = InitialPosition.Earliest


Send = Callable[..., list[Any]]


@pytest.fixture
def send(broker: Broker, official_client: Callable[..., Any], topic: str) -> Send:
    """Send values with the official client: `send(*values, **options of a message)`."""
    producer = official_client(broker.service_url).create_producer(topic)

    def run(*values: bytes, **options: Any) -> list[Any]:
        return [producer.send(value, **options) for value in values]

    return run


@pytest.fixture
def send_batch(broker: Broker, official_client: Callable[..., Any], topic: str) -> Send:
    """Send values to the topic as one batch, with the official client."""
    client = official_client(broker.service_url)

    def run(*values: bytes) -> list[Any]:
        producer = client.create_producer(
            topic,
            batching_enabled=True,
            batching_max_messages=1000,
            batching_max_publish_delay_ms=60_000,
        )
        results: list[Any] = []
        for value in values:
            producer.send_async(value, lambda *result: results.append(result[1]))
        producer.flush()
        producer.close()
        return results

    return run


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def receive(consumer: PulsarConsumer, count: int) -> list[Message]:
    return [consumer.receive(RECEIVE_MS) for _ in range(count)]


def values(messages: list[Message]) -> list[bytes]:
    return [message.data() for message in messages]


def test_what_is_acknowledged_does_not_come_again(
    client: PulsarClient, topic: str, send: Send
) -> None:
    sent = send(*numbers(5), properties={"a": "b"}, partition_key="k", event_timestamp=5)
    with client.subscribe(topic, "s", initial_position=EARLIEST) as consumer:
        found = receive(consumer, 5)
        assert values(found) == numbers(5)
        assert [one.message_id().entry_id() for one in found] == [one.entry_id() for one in sent]
        assert found[0].properties() == {"a": "b"}
        assert (found[0].partition_key(), found[0].event_timestamp()) == ("k", 5)
        for message in found[:3]:
            consumer.acknowledge(message)
    with client.subscribe(topic, "s") as consumer:
        assert values(receive(consumer, 2)) == numbers(5)[3:]
        consumer.acknowledge_cumulative(found[4])
    send(b"last")
    with client.subscribe(topic, "s") as consumer:
        assert values(receive(consumer, 1)) == [b"last"]


def test_a_batch_comes_again_until_all_of_it_is_acknowledged(
    client: PulsarClient, topic: str, send_batch: Send
) -> None:
    send_batch(*numbers(4))
    with client.subscribe(topic, "s", initial_position=EARLIEST) as consumer:
        for message in receive(consumer, 4)[:3]:
            consumer.acknowledge(message)
    with client.subscribe(topic, "s") as consumer:
        found = receive(consumer, 4)
        assert values(found) == numbers(4)
        assert [one.message_id().batch_index() for one in found] == [0, 1, 2, 3]
        for message in found:
            consumer.acknowledge(message.message_id())
    send_batch(b"next")
    with client.subscribe(topic, "s") as consumer:
        assert values(receive(consumer, 1)) == [b"next"]


@pytest.mark.parametrize("order", [1, -1], ids=["cumulative first", "cumulative last"])
def test_a_batch_is_acknowledged_one_by_one_and_cumulatively(
    client: PulsarClient, topic: str, send_batch: Send, order: int
) -> None:
    send_batch(*numbers(5))
    with client.subscribe(topic, "s", initial_position=EARLIEST) as consumer:
        found = receive(consumer, 5)
        steps = [partial(consumer.acknowledge_cumulative, found[2])]
        steps += [partial(consumer.acknowledge, one) for one in found[3:]]
        for step in steps[::order]:
            step()
    send_batch(b"next")
    with client.subscribe(topic, "s") as consumer:
        assert values(receive(consumer, 1)) == [b"next"]


@pytest.mark.parametrize("alone", [False, True], ids=["cumulative alone", "others before"])
def test_within_the_first_batch_of_a_ledger_all_before_it_is_acknowledged(
    broker: Broker, client: PulsarClient, topic: str, send: Send, send_batch: Send, alone: bool
) -> None:
    send(b"before", b"before")
    broker.roll_ledger(topic)
    send_batch(*numbers(4))
    with client.subscribe(topic, "s", initial_position=EARLIEST) as consumer:
        found = receive(consumer, 6)
        assert found[2].message_id().entry_id() == 0
        if not alone:
            consumer.acknowledge(found[0])
        consumer.acknowledge_cumulative(found[4])
    with client.subscribe(topic, "s") as consumer:
        assert values(receive(consumer, 4)) == numbers(4)


@pytest.mark.parametrize("cumulative", [False, True], ids=["one", "cumulative"])
def test_an_acknowledgement_with_properties_covers_no_more_than_its_message(
    client: PulsarClient, topic: str, send_batch: Send, cumulative: bool
) -> None:
    send_batch(*numbers(3))
    for upto in (1, 3):
        with client.subscribe(topic, "s", initial_position=EARLIEST) as consumer:
            # The whole batch is redelivered, even if part of it is acknowledged.
            found = receive(consumer, 3)
            assert values(found) == numbers(3)
            if cumulative:
                consumer.acknowledge_cumulative(found[upto - 1], properties={"round": upto})
            else:
                for message in found[:upto]:
                    consumer.acknowledge(message, properties={"round": upto})
    send_batch(b"next")
    with client.subscribe(topic, "s") as consumer:
        assert values(receive(consumer, 1)) == [b"next"]


def test_a_refused_message_comes_again_and_says_how_often(
    client: PulsarClient, topic: str, send: Send
) -> None:
    send(*numbers(3))
    with client.subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        initial_position=EARLIEST,
        negative_ack_redelivery_delay_ms=50,
    ) as consumer:
        for message in receive(consumer, 3):
            if message.data() == b"1":
                consumer.negative_acknowledge(message)
            else:
                consumer.acknowledge(message)
        for count in (1, 2, 3):
            again = consumer.receive(RECEIVE_MS)
            assert (again.data(), again.redelivery_count()) == (b"1", count)
            consumer.negative_acknowledge(again.message_id())


def test_everything_unacknowledged_comes_again_in_order(
    client: PulsarClient, topic: str, send: Send
) -> None:
    send(*numbers(6))
    with client.subscribe(topic, "s", initial_position=EARLIEST) as consumer:
        found = receive(consumer, 4)
        consumer.acknowledge(found[0])
        consumer.redeliver_unacknowledged_messages()
        assert values(receive(consumer, 5)) == numbers(6)[1:]


@pytest.mark.parametrize("inclusive", [False, True])
def test_seek_goes_to_a_message_of_a_batch_and_to_both_ends(
    client: PulsarClient, topic: str, send_batch: Send, inclusive: bool
) -> None:
    send_batch(*numbers(5))
    with client.subscribe(
        topic, "s", initial_position=EARLIEST, start_message_id_inclusive=inclusive
    ) as consumer:
        found = receive(consumer, 5)
        consumer.acknowledge_cumulative(found[4])
        consumer.seek(found[2].message_id())
        expected = numbers(5)[2 if inclusive else 3 :]
        assert values(receive(consumer, len(expected))) == expected
        consumer.seek(MessageId.earliest)
        assert values(receive(consumer, 5)) == numbers(5)
        consumer.seek(MessageId.latest)
        send_batch(b"next")
        assert values(receive(consumer, 1)) == [b"next"]
        consumer.seek(found[0].publish_timestamp())
        assert values(receive(consumer, 6)) == [*numbers(5), b"next"]


@pytest.mark.parametrize("batched", [False, True], ids=["singles", "batch"])
@pytest.mark.parametrize("inclusive", [False, True])
def test_what_a_seek_leaves_out_is_acknowledged(
    client: PulsarClient,
    topic: str,
    send: Send,
    send_batch: Send,
    batched: bool,
    inclusive: bool,
) -> None:
    (send_batch if batched else send)(*numbers(5))
    with client.subscribe(
        topic, "s", initial_position=EARLIEST, start_message_id_inclusive=inclusive
    ) as consumer:
        found = receive(consumer, 5)
        consumer.seek(found[2].message_id())
        expected = numbers(5)[2 if inclusive else 3 :]
        for message in receive(consumer, len(expected)):
            consumer.acknowledge(message)
    send(b"next")
    with client.subscribe(topic, "s") as consumer:
        assert values(receive(consumer, 1)) == [b"next"]


@pytest.mark.parametrize("batched", [False, True], ids=["singles", "batch"])
def test_what_a_seek_leaves_out_comes_when_somebody_else_moves_the_subscription_back(
    broker: Broker,
    client: PulsarClient,
    topic: str,
    send: Send,
    send_batch: Send,
    batched: bool,
) -> None:
    send(b"first")
    (send_batch if batched else send)(*numbers(5))
    with client.subscribe(
        topic, "s", initial_position=EARLIEST, broker_consumer_stats_cache_time_ms=0
    ) as consumer:
        found = receive(consumer, 6)
        consumer.seek(found[3].message_id())
        assert values(receive(consumer, 2)) == numbers(5)[3:]
        left = 1 if batched else 2
        wait_until(
            lambda: consumer.get_broker_consumer_stats().msg_backlog == left,
            "what is left out is not acknowledged",
        )
        broker.reset_subscription(topic, "s", to_end=False)
        assert values(receive(consumer, 6)) == [b"first", *numbers(5)]


def test_of_a_compacted_batch_those_that_are_left_are_acknowledged(
    broker: Broker, client: PulsarClient, topic: str, send: Send
) -> None:
    compacted = partial(
        client.subscribe, topic, "s", initial_position=EARLIEST, is_read_compacted=True
    )
    compacted().close()
    with client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
    ) as producer:
        for keys in ("abcd", "abae"):
            for key in keys:
                producer.send_async(key.encode(), None, partition_key=key)
            producer.flush()
    broker.compact(topic)
    with compacted() as consumer:
        found = receive(consumer, 5)
        assert values(found) == [b"c", b"d", b"b", b"a", b"e"]
        for message in found:
            consumer.acknowledge(message)
    send(b"next")
    with compacted() as consumer:
        assert values(receive(consumer, 1)) == [b"next"]


def test_an_exclusive_subscription_has_one_consumer(client: PulsarClient, topic: str) -> None:
    with client.subscribe(topic, "s") as consumer:
        with pytest.raises(ConsumerBusy):
            client.subscribe(topic, "s")
        assert consumer.is_connected()
        with pytest.raises(OperationTimeout):
            consumer.receive(10)
    assert not consumer.is_connected()
    with pytest.raises(ClosedError):
        consumer.receive(10)


def test_unsubscribing_removes_the_subscription(
    broker: Broker, client: PulsarClient, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    assert broker.subscriptions(topic) == {"s"}
    consumer.unsubscribe()
    wait_until(lambda: not broker.subscriptions(topic), "the subscription is still there")


def test_unsubscribing_by_force_sends_other_consumers_away(
    broker: Broker, client: PulsarClient, topic: str
) -> None:
    needs_pulsar(broker, "3.3", "unsubscribing by force")
    first = client.subscribe(topic, "s", ConsumerType.Shared)
    second = client.subscribe(topic, "s", ConsumerType.Shared)
    second.unsubscribe(force=True)
    wait_until(lambda: not broker.subscriptions(topic), "the subscription is still there")
    first.close()


def test_a_listener_is_given_every_message_but_while_it_is_paused(
    client: PulsarClient, topic: str, send: Send
) -> None:
    found: list[bytes] = []
    came = threading.Semaphore(0)

    def listen(consumer: PulsarConsumer, message: Message) -> None:
        found.append(message.data())
        consumer.acknowledge(message)
        came.release()

    consumer = client.subscribe(topic, "s", message_listener=listen)
    send(b"1")
    assert came.acquire(timeout=60)
    consumer.pause_message_listener()
    send(b"2")
    with pytest.raises(ValueError, match="message_listener"):
        consumer.receive(10)
    assert not came.acquire(timeout=0.1)
    consumer.resume_message_listener()
    assert came.acquire(timeout=60)
    assert found == [b"1", b"2"]


def test_shared_consumers_may_not_acknowledge_cumulatively(
    client: PulsarClient, topic: str, send: Send
) -> None:
    send(b"1")
    for kind in (ConsumerType.Shared, ConsumerType.KeyShared):
        with client.subscribe(topic, str(kind), kind, initial_position=EARLIEST) as consumer:
            message = consumer.receive(RECEIVE_MS)
            with pytest.raises(NotAllowed):
                consumer.acknowledge_cumulative(message)


# --- several topics -------------------------------------------------------------------------


def test_partitions_are_one_topic_and_new_ones_are_read_from_their_beginning(
    broker: Broker, client: PulsarClient, official_client: Callable[..., Any]
) -> None:
    topic = broker.create_topic(partitions=2)
    official = official_client(broker.service_url)
    with client.subscribe(topic, "s", auto_update_partitions_interval_seconds=1) as consumer:
        producers = [official.create_producer(p) for p in broker.partitions_of(topic, 2)]
        for number in range(20):
            producers[number % 2].send(b"%d" % number)
        found = receive(consumer, 20)
        assert sorted(values(found)) == sorted(numbers(20))
        assert {one.topic_name() for one in found} == set(broker.partitions_of(topic, 2))
        for message in found:
            consumer.acknowledge(message.message_id())
        broker.add_partitions(topic, 3)
        official.create_producer(f"{topic}-partition-2").send(b"new")
        new = consumer.receive(RECEIVE_MS)
        assert (new.data(), new.message_id().partition()) == (b"new", 2)
    with client.subscribe(topic, "s") as consumer:
        assert consumer.receive(RECEIVE_MS).data() == b"new"


def test_a_list_of_topics_is_one_consumer(
    broker: Broker, client: PulsarClient, official_client: Callable[..., Any]
) -> None:
    topics = [broker.create_topic(), broker.create_topic(partitions=2)]
    with client.subscribe(topics, "s") as consumer:
        official = official_client(broker.service_url)
        for topic in topics:
            official.create_producer(topic).send(topic.encode())
        found = receive(consumer, 2)
        assert sorted(values(found)) == sorted(topic.encode() for topic in topics)
        for message in found:
            consumer.acknowledge(message.message_id())
        with pytest.raises(UnsupportedFeature):
            consumer.acknowledge(MessageId.deserialize(found[0].message_id().serialize()))
        consumer.seek(MessageId.earliest)
        assert sorted(values(receive(consumer, 2))) == sorted(topic.encode() for topic in topics)


def test_topics_that_match_a_pattern_come_and_go(
    broker: Broker, client: PulsarClient, official_client: Callable[..., Any]
) -> None:
    namespace = broker.create_namespace()
    names = [f"persistent://{namespace}/orders-{number}" for number in range(3)]
    official = official_client(broker.service_url)
    broker.create_topic(names[0])
    broker.create_topic(f"persistent://{namespace}/other")
    pattern = re.compile(f"persistent://{namespace}/orders-.*")
    with client.subscribe(pattern, "s", pattern_auto_discovery_period=1) as consumer:
        official.create_producer(f"persistent://{namespace}/other").send(b"other")
        official.create_producer(names[0]).send(b"0")
        assert consumer.receive(RECEIVE_MS).data() == b"0"
        # Messages from before its discovery arrive, too.
        broker.create_topic(names[1])
        official.create_producer(names[1]).send(b"1")
        found = consumer.receive(RECEIVE_MS)
        assert (found.data(), found.topic_name()) == (b"1", names[1])
        broker.create_topic(names[2], partitions=2)
        official.create_producer(names[2]).send(b"2")
        assert consumer.receive(RECEIVE_MS).data() == b"2"
        broker.delete_topic(names[1])
        wait_until(
            lambda: all(one.topic != names[1] for one in consumer._consumers),
            "its consumer is still there",
        )
        official.create_producer(names[0]).send(b"still")
        assert consumer.receive(RECEIVE_MS).data() == b"still"


def test_a_watching_broker_tells_of_topics_at_once(
    broker: Broker, client: PulsarClient, official_client: Callable[..., Any]
) -> None:
    namespace = broker.create_namespace()
    pattern = re.compile(f"{namespace}/a-.*")
    with client.subscribe(pattern, "s", pattern_auto_discovery_period=3600) as consumer:
        name = f"persistent://{namespace}/a-1"
        broker.create_topic(name)
        wait_until(lambda: "s" in broker.subscriptions(name), "the topic is not found")
        official_client(broker.service_url).create_producer(name).send(b"1")
        assert consumer.receive(RECEIVE_MS).data() == b"1"


# --- dead letters and retries -----------------------------------------------------------------


def test_a_message_that_is_refused_too_often_is_a_dead_letter(
    broker: Broker,
    client: PulsarClient,
    official_client: Callable[..., Any],
    topic: str,
    send: Send,
) -> None:
    (sent,) = send(b"bad", properties={"a": "b"}, partition_key="k", event_timestamp=7)
    send(b"good")
    official = official_client(broker.service_url)
    dead = official.subscribe(f"{topic}-s-DLQ", "watch")
    with client.subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        initial_position=EARLIEST,
        negative_ack_redelivery_delay_ms=20,
        dead_letter_policy=ConsumerDeadLetterPolicy(2),
        broker_consumer_stats_cache_time_ms=0,
    ) as consumer:
        counts: list[int] = []
        while len(counts) < 3:
            message = consumer.receive(RECEIVE_MS)
            if message.data() == b"good":
                consumer.acknowledge(message)
            else:
                counts.append(message.redelivery_count())
                consumer.negative_acknowledge(message)
        assert counts == [0, 1, 2]
        letter = dead.receive(RECEIVE_MS)
        assert (letter.data(), letter.partition_key()) == (b"bad", "k")
        assert letter.properties() == {
            "a": "b",
            "REAL_TOPIC": topic,
            "ORIGIN_MESSAGE_ID": str(sent),
        }
        wait_until(
            lambda: consumer.get_broker_consumer_stats().msg_backlog == 0,
            "the dead letter is not acknowledged",
        )


def test_after_a_seek_deliveries_are_counted_anew(
    client: PulsarClient, topic: str, send: Send
) -> None:
    send(b"one")
    with client.subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        initial_position=EARLIEST,
        negative_ack_redelivery_delay_ms=1,
        dead_letter_policy=ConsumerDeadLetterPolicy(1, f"{topic}-dead"),
    ) as consumer:
        for _ in range(2):
            for count in range(2):
                (message,) = receive(consumer, 1)
                assert message.redelivery_count() == count
                if not count:
                    consumer.negative_acknowledge(message)
            consumer.seek(MessageId.earliest)


def test_the_topic_of_dead_letters_can_begin_with_a_subscription(
    broker: Broker, client: PulsarClient, topic: str, send: Send
) -> None:
    send(b"bad")
    name = broker.unique_topic("dead")
    policy = ConsumerDeadLetterPolicy(1, name, "kept")
    with client.subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        initial_position=EARLIEST,
        negative_ack_redelivery_delay_ms=20,
        dead_letter_policy=policy,
        broker_consumer_stats_cache_time_ms=0,
    ) as consumer:
        for _ in range(2):
            consumer.negative_acknowledge(consumer.receive(RECEIVE_MS))
        wait_until(
            lambda: consumer.get_broker_consumer_stats().msg_backlog == 0,
            "the dead letter is not acknowledged",
        )
        assert broker.subscriptions(name) == {"kept"}
    with client.subscribe(name, "kept") as dead:
        assert dead.receive(RECEIVE_MS).data() == b"bad"


def test_a_message_that_is_put_off_comes_again_until_it_is_a_dead_letter(
    client: PulsarClient, topic: str, send: Send
) -> None:
    send(b"later")
    dead = client.subscribe(f"{topic}-s-DLQ", "watch")
    with client.subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        initial_position=EARLIEST,
        dead_letter_policy=ConsumerDeadLetterPolicy(1),
        enable_retry=True,
    ) as consumer:
        first = consumer.receive(RECEIVE_MS)
        consumer.reconsume_later(first, 50, {"why": "busy"})
        again = consumer.receive(RECEIVE_MS)
        assert again.topic_name() == f"{topic}-s-RETRY"
        assert again.properties() == {
            "why": "busy",
            "RECONSUMETIMES": "1",
            "DELAY_TIME": "50",
            "REAL_TOPIC": topic,
            "ORIGIN_MESSAGE_ID": str(first.message_id()),
        }
        consumer.reconsume_later(again, 50)
        assert dead.receive(RECEIVE_MS).properties()["RECONSUMETIMES"] == "2"


# --- beside the official client ---------------------------------------------------------------


def seen(message: Any) -> tuple[Any, ...]:
    """All fields of a message, from either client."""
    return (
        message.data(),
        str(message.message_id()),
        message.message_id().serialize(),
        message.properties(),
        message.partition_key(),
        message.ordering_key(),
        message.event_timestamp(),
        message.publish_timestamp(),
        message.topic_name(),
        message.redelivery_count(),
        message.producer_name(),
        message.has_null_value(),
    )


@pytest.mark.parametrize("partitions", [0, 2])
def test_both_clients_see_the_same_of_every_message(
    broker: Broker,
    client: PulsarClient,
    official_client: Callable[..., Any],
    partitions: int,
) -> None:
    pulsar = pytest.importorskip("pulsar")
    topic = broker.create_topic(partitions=partitions)
    official = official_client(broker.service_url)
    producers = [
        official.create_producer(topic),
        official.create_producer(
            topic, batching_enabled=True, compression_type=pulsar.CompressionType.LZ4
        ),
    ]
    for number in range(12):
        producers[number % 2].send_async(
            None if number == 5 else b"%d" % number,
            lambda *_: None,
            properties={"n": str(number)},
            partition_key=f"k{number % 3}",
            ordering_key="o" if number % 4 else None,
            event_timestamp=number or None,
        )
    for producer in producers:
        producer.flush()
    found: list[list[tuple[Any, ...]]] = []
    for made, module in ((official, pulsar), (client, package)):
        consumer = made.subscribe(
            topic,
            module.__name__,
            module.ConsumerType.Shared,
            initial_position=module.InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=100,
        )
        messages = [consumer.receive(RECEIVE_MS) for _ in range(12)]
        for message in messages:
            consumer.negative_acknowledge(message)
        messages += [consumer.receive(RECEIVE_MS) for _ in range(12)]
        found.append(sorted(map(seen, messages)))
        consumer.close()
    assert found[0] == found[1]
    assert {one[9] for one in found[1]} == {0, 1}


@pytest.mark.fault(206)
def test_what_a_client_has_made_goes_on_when_its_topic_is_deleted_and_made_again(
    broker: Broker, client: PulsarClient, topic: str
) -> None:
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    reader = client.create_reader(topic, MessageId.earliest)
    view = client.create_table_view(topic)
    for value in (b"old", b"new"):
        producer.send(value, partition_key="k")
        assert values(receive(consumer, 1)) == [value]
        assert reader.read_next(RECEIVE_MS).data() == value
        wait_until(lambda value=value: view.get("k") == value)  # type: ignore[misc]
        # The producer makes it again.
        broker.delete_topic(topic)
