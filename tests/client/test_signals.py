"""Calls that wait end for a signal, whichever thread raises it."""

from __future__ import annotations

import _thread
import contextlib
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_spark.client import (
    ConsumerBatchReceivePolicy,
    Interrupted,
    MessageId,
    PulsarClient,
    PulsarException,
)
from pulsar_spark.testing import EmbeddedBroker

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
