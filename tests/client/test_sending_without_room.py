"""Batches that are due while the queue is full: whatever makes room again, all callbacks come."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pulsar_spark.client import BatchingType, MessageId, PulsarClient, Result
from pulsar_spark.testing import EmbeddedBroker
from tests.support.waiting import wait_until

# Two full batches fill the queue, and a third one that is not full falls due behind them.
OPTIONS: dict[str, Any] = {
    "batching_enabled": True,
    "batching_max_messages": 5,
    "batching_max_publish_delay_ms": 20,
    "max_pending_messages": 10,
}
SENT = 13


def time_out(broker: EmbeddedBroker, client: PulsarClient) -> None:
    """Nothing happens until the send timeout."""


def acknowledge(broker: EmbeddedBroker, client: PulsarClient) -> None:
    """The broker is well again, and gets everything once more."""
    broker.faults.clear()
    broker.faults.disconnect()


def exceed_a_quota(broker: EmbeddedBroker, client: PulsarClient) -> None:
    """A backlog quota refuses the producer."""
    broker.faults.error("PRODUCER", "ProducerBlockedQuotaExceededException", times=None)
    broker.faults.disconnect()


def refuse(broker: EmbeddedBroker, client: PulsarClient) -> None:
    """The producer is refused for good."""
    broker.faults.error("PRODUCER", "ProducerFenced", times=None)
    broker.faults.disconnect()


def terminate(broker: EmbeddedBroker, client: PulsarClient) -> None:
    """The topic takes no more messages."""
    broker.terminate_topic("t")
    broker.faults.disconnect()


def close(broker: EmbeddedBroker, client: PulsarClient) -> None:
    """The client is closed."""
    client.shutdown()


ENDS: list[tuple[Callable[[EmbeddedBroker, PulsarClient], None], int, Result]] = [
    (time_out, 1_000, Result.Timeout),
    (acknowledge, 60_000, Result.Ok),
    (exceed_a_quota, 60_000, Result.ProducerBlockedQuotaExceededException),
    (refuse, 60_000, Result.ProducerFenced),
    (terminate, 60_000, Result.TopicTerminated),
    (close, 60_000, Result.AlreadyClosed),
]


@pytest.mark.fault(190)
@pytest.mark.parametrize("end, timeout, wanted", ENDS, ids=[one[0].__name__ for one in ENDS])
@pytest.mark.parametrize("batching", list(BatchingType), ids=lambda one: one.name)
@pytest.mark.parametrize("properties", [None, {"p": "v"}], ids=["plain", "properties"])
def test_a_batch_that_is_due_while_the_queue_is_full_is_sent_or_fails(
    broker: EmbeddedBroker,
    client: PulsarClient,
    end: Callable[[EmbeddedBroker, PulsarClient], None],
    timeout: int,
    wanted: Result,
    batching: BatchingType,
    properties: dict[str, str] | None,
) -> None:
    # By the clock, smaller batches than full ones could be due, and take all the room.
    options = {**OPTIONS, "batching_max_publish_delay_ms": 60_000}
    producer = client.create_producer(
        "t",
        block_if_queue_full=True,
        batching_type=batching,
        send_timeout_millis=timeout,
        **options,
    )
    producer.send_async(b"first", None)
    producer.flush()
    broker.faults.drop("SEND_RECEIPT", times=None)
    told: dict[int, Result] = {}

    def note(number: int, result: Result, message_id: MessageId) -> None:
        told[number] = result

    for number in range(SENT):
        producer.send_async(
            b"x",
            partial(note, number),
            properties,
            f"key-{number % 3}",
        )
    batcher = producer._writer._batcher(0)
    batcher.trigger_flush()
    assert batcher.producer.waiting.due or len(told) == SENT
    end(broker, client)
    wait_until(lambda: len(told) == SENT, "all callbacks")
    assert set(told.values()) == {wanted}
    assert not batcher.count
    assert not producer._writer._context.budget.used


@pytest.mark.fault(190)
def test_a_sender_that_waits_for_room_goes_on_when_messages_time_out(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    producer = client.create_producer(
        "t", block_if_queue_full=True, send_timeout_millis=1_000, **OPTIONS
    )
    producer.send(b"first")
    broker.faults.drop("SEND_RECEIPT", times=None)
    told: list[Result] = []
    for _ in range(4 * SENT):
        producer.send_async(b"x", lambda result, _: told.append(result))
    broker.faults.clear()
    wait_until(lambda: len(told) == 4 * SENT, "all callbacks")
    assert Result.Timeout in told
