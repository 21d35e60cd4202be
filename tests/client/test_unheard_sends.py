"""Messages sent without a callback: all arrive in order, each as an entry."""

from __future__ import annotations

import threading

import pytest

from pulsar_spark.client import InitialPosition, Message, MessageId, PulsarClient, PulsarConsumer
from pulsar_spark.testing import EmbeddedBroker
from tests.support.waiting import finish

RECEIVE_MS = 60_000


@pytest.fixture
def consumer(broker: EmbeddedBroker, client: PulsarClient) -> PulsarConsumer:
    topic = broker.create_topic("t")
    return client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)


def received(consumer: PulsarConsumer, count: int) -> list[Message]:
    return [consumer.receive(RECEIVE_MS) for _ in range(count)]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_each_is_an_entry_of_its_own_in_the_order_they_were_sent(
    client: PulsarClient, consumer: PulsarConsumer
) -> None:
    producer = client.create_producer("t", block_if_queue_full=True, max_pending_messages=100)
    for value in numbers(1000):
        producer.send_async(value, None, partition_key="k", properties={"p": value.decode()})
    producer.flush()
    assert producer.last_sequence_id() == 999
    found = received(consumer, 1000)
    assert [each.data() for each in found] == numbers(1000)
    assert {each.message_id().batch_index() for each in found} == {-1}
    assert {(each.partition_key(), each.properties()["p"]) for each in found} == {
        ("k", value.decode()) for value in numbers(1000)
    }


def test_one_that_waits_for_others_does_not_wait_for_ever(
    client: PulsarClient, consumer: PulsarConsumer
) -> None:
    producer = client.create_producer("t")
    for value in numbers(7):
        producer.send_async(value, None)
    assert [each.data() for each in received(consumer, 7)] == numbers(7)


def test_what_is_waited_for_comes_behind_what_is_not(
    client: PulsarClient, consumer: PulsarConsumer
) -> None:
    producer = client.create_producer("t", block_if_queue_full=True)
    ids: list[MessageId] = []
    for at, value in enumerate(numbers(300)):
        if at % 10 == 3:
            producer.send(value)
        elif at % 10 == 5:
            producer.send_async(value, lambda _, message_id: ids.append(message_id))
        elif at % 10 == 7:
            producer.send_async(value, None, sequence_id=10_000 + at)
        else:
            producer.send_async(value, None)
    producer.flush()
    found = received(consumer, 300)
    assert [each.data() for each in found] == numbers(300)
    assert ids == [each.message_id() for each in found[5::10]]


def test_one_that_is_too_large_is_left_out_alone(
    client: PulsarClient, consumer: PulsarConsumer
) -> None:
    producer = client.create_producer("t", block_if_queue_full=True)
    for value in numbers(50):
        producer.send_async(value, None)
        producer.send_async(bytes(6 << 20), None)
    producer.close()
    assert [each.data() for each in received(consumer, 50)] == numbers(50)


def test_a_client_that_is_closed_has_sent_what_waited(
    broker: EmbeddedBroker, consumer: PulsarConsumer
) -> None:
    with PulsarClient(broker.service_url) as other:
        producer = other.create_producer("t")
        for value in numbers(20):
            producer.send_async(value, None)
    assert [each.data() for each in received(consumer, 20)] == numbers(20)


def test_threads_that_send_at_a_time_lose_nothing(
    client: PulsarClient, consumer: PulsarConsumer
) -> None:
    producer = client.create_producer("t", block_if_queue_full=True)

    def send(number: int) -> None:
        for at in range(200):
            producer.send_async(b"%d-%d" % (number, at), None)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    finish(*threads)
    producer.flush()
    found = [each.data() for each in received(consumer, 800)]
    for number in range(4):
        own = [value for value in found if value.startswith(b"%d-" % number)]
        assert own == [b"%d-%d" % (number, at) for at in range(200)]
