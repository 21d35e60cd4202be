"""Calls that wait end for a signal, whichever thread raises it; what they close is closed."""

from __future__ import annotations

import _thread
import contextlib
import queue
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_spark.client import (
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    InitialPosition,
    Interrupted,
    MessageId,
    ProducerAccessMode,
    PulsarClient,
    PulsarConsumer,
    PulsarException,
    PulsarProducer,
    Result,
)
from pulsar_spark.testing import EmbeddedBroker
from tests.support.waiting import finish, is_in, wait_until

RAISED = [_thread.interrupt_main, lambda: signal.raise_signal(signal.SIGINT)]


def receive(broker: EmbeddedBroker, client: PulsarClient) -> Callable[[], Any]:
    return client.subscribe("t", "s").receive


def batch_receive(broker: EmbeddedBroker, client: PulsarClient) -> Callable[[], Any]:
    policy = ConsumerBatchReceivePolicy(5, 0, 60_000)
    return client.subscribe("t", "s", batch_receive_policy=policy).batch_receive


def read_next(broker: EmbeddedBroker, client: PulsarClient) -> Callable[[], Any]:
    return client.create_reader("t", MessageId.earliest).read_next


def send(broker: EmbeddedBroker, client: PulsarClient) -> Callable[[], Any]:
    producer = client.create_producer("t")
    broker.faults.drop("SEND", times=None)
    return lambda: producer.send(b"x")


def flush(broker: EmbeddedBroker, client: PulsarClient) -> Callable[[], Any]:
    producer = client.create_producer("t")
    broker.faults.drop("SEND", times=None)
    producer.send_async(b"x", None)
    return producer.flush


def create_producer(broker: EmbeddedBroker, client: PulsarClient) -> Callable[[], Any]:
    broker.faults.drop("PRODUCER", times=None)
    return lambda: client.create_producer("t")


def close_again(client: PulsarClient) -> None:
    with contextlib.suppress(PulsarException):
        client.shutdown()


@pytest.mark.parametrize("raised", RAISED, ids=["interrupt_main", "raise_signal"])
@pytest.mark.parametrize("call", [receive, batch_receive, read_next, send, flush, create_producer])
def test_a_wait_ends_for_a_signal_of_another_thread(
    call: Callable[[EmbeddedBroker, PulsarClient], Callable[[], Any]],
    raised: Callable[[], None],
) -> None:
    with EmbeddedBroker() as broker:
        client = PulsarClient(broker.service_url, operation_timeout_seconds=60)
        waits = call(broker, client)
        # A signal that came before the wait would not show that the wait ends.
        thread = threading.Timer(0.3, raised)
        thread.start()
        try:
            with pytest.raises(Interrupted) as caught:
                waits()
        finally:
            thread.join()
            close_again(client)
    assert isinstance(caught.value, PulsarException)
    assert isinstance(caught.value, KeyboardInterrupt)


def refused(client: PulsarClient, broker: EmbeddedBroker) -> PulsarConsumer:
    """Return a consumer that waits for a dead letter to be stored when it is closed."""
    consumer = client.subscribe(
        "t",
        "s",
        ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=1,
        dead_letter_policy=ConsumerDeadLetterPolicy(1, "dead"),
    )
    client.create_producer("t").send(b"x")
    broker.faults.drop("SEND", topic="persistent://public/default/dead", times=None)
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(60_000))
    wait_until(lambda: broker.faults.seen("SEND") == 2, "the dead letter")
    return consumer


def unsent(client: PulsarClient, broker: EmbeddedBroker) -> PulsarProducer:
    """Return the only producer of a topic, whose message the broker does not store."""
    producer = client.create_producer("own", access_mode=ProducerAccessMode.Exclusive)
    broker.faults.drop("SEND", times=None)
    producer.send_async(b"x", None)
    return producer


def interrupted(close: Callable[[], object], waits: str) -> None:
    """Call `close`, and interrupt it when it is in a function that waits."""
    main = threading.main_thread()

    def interrupt() -> None:
        wait_until(lambda: is_in(main, waits), "that it waits")
        _thread.interrupt_main()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Interrupted):
        close()
    finish(thread)


def test_an_interrupted_close_of_a_consumer_leaves_the_broker(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    consumer = refused(client, broker)
    results: queue.Queue[Result] = queue.Queue()
    consumer.receive_async(lambda result, _: results.put(result))
    interrupted(consumer.close, "_wait")
    assert results.get(timeout=60) == Result.AlreadyClosed
    consumer.close()
    client.subscribe("t", "s", ConsumerType.Exclusive)


def test_an_interrupted_close_of_a_producer_leaves_the_broker(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    producer = unsent(client, broker)
    interrupted(producer.close, "wait_until_acknowledged")
    producer.close()
    client.create_producer("own", access_mode=ProducerAccessMode.Exclusive)


@pytest.mark.parametrize(
    "made, waits",
    [(refused, "_wait"), (unsent, "wait_until_acknowledged")],
    ids=["refused", "unsent"],
)
def test_an_interrupted_close_of_a_client_leaves_nothing(
    broker: EmbeddedBroker,
    made: Callable[[PulsarClient, EmbeddedBroker], object],
    waits: str,
) -> None:
    client = PulsarClient(broker.service_url)
    consumer = client.subscribe("t", "other")
    reader = client.create_reader("t", MessageId.earliest)
    made(client, broker)
    interrupted(client.close, waits)
    wait_until(lambda: not broker.connections, "that all connections end")
    assert not consumer.is_connected()
    assert not reader.is_connected()
    client.close()
