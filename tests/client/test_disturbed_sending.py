"""Sending while the queue is full and something goes wrong: whatever it is, each message ends once.

All combinations of batching, of what a full queue does, of disturbances and of ways to send.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pulsar_spark.client import (
    BatchingType,
    InitialPosition,
    MessageId,
    PulsarClient,
    PulsarProducer,
    Result,
)
from pulsar_spark.client.enums import result_of
from pulsar_spark.errors import PulsarError
from pulsar_spark.testing import EmbeddedBroker
from tests.support.waiting import finish, wait_until

RECEIVE_MS = 60_000
THREADS = 16
PER_THREAD = 4
SENT = THREADS * PER_THREAD
KEYS = 3

BATCHING: dict[str, dict[str, Any]] = {
    "unbatched": {"batching_enabled": False},
    "default": {"batching_enabled": True},
    "by key": {"batching_enabled": True, "batching_type": BatchingType.KeyBased},
}


class Outcomes:
    """What became of each message."""

    def __init__(self) -> None:
        self.told: dict[int, list[Result]] = defaultdict(list)

    def note(self, number: int, result: Result, message_id: MessageId | None = None) -> None:
        self.told[number].append(result)

    @property
    def count(self) -> int:
        return sum(map(len, self.told.values()))

    @property
    def results(self) -> set[Result]:
        return {result for told in self.told.values() for result in told}


def send(producer: PulsarProducer, outcomes: Outcomes, first: int, stop: int) -> None:
    for number in range(first, stop):
        try:
            producer.send(b"%d" % number, partition_key=f"key-{number % KEYS}")
        except PulsarError as error:
            outcomes.note(number, result_of(error))
        else:
            outcomes.note(number, Result.Ok)


def send_async(producer: PulsarProducer, outcomes: Outcomes, first: int, stop: int) -> None:
    for number in range(first, stop):
        told = partial(outcomes.note, number)
        producer.send_async(b"%d" % number, told, partition_key=f"key-{number % KEYS}")


def time_out(broker: EmbeddedBroker, outcomes: Outcomes) -> None:
    """Some messages get no receipt in time."""
    wait_until(lambda: Result.Timeout in outcomes.results, "that messages time out")
    broker.faults.clear()


def disconnect(broker: EmbeddedBroker, outcomes: Outcomes) -> None:
    """The connection is lost, and with it the receipts."""
    broker.faults.clear()
    broker.faults.disconnect()


def refuse(broker: EmbeddedBroker, outcomes: Outcomes) -> None:
    """The broker takes no message of this size for the time being."""
    broker.faults.error("SEND", "NotAllowedError", times=None)
    broker.faults.disconnect()
    wait_until(lambda: Result.NotAllowedError in outcomes.results, "that messages are refused")
    broker.faults.clear()
    broker.faults.disconnect()


@pytest.mark.fault(210)
@pytest.mark.parametrize("way", [send, send_async], ids=["send", "send_async"])
@pytest.mark.parametrize("disturb", [time_out, disconnect, refuse])
@pytest.mark.parametrize("blocks", [True, False], ids=["block", "raise"])
@pytest.mark.parametrize("batching", BATCHING)
def test_each_message_ends_once_and_in_order_and_sending_goes_on(
    broker: EmbeddedBroker,
    client: PulsarClient,
    batching: str,
    blocks: bool,
    disturb: Callable[[EmbeddedBroker, Outcomes], None],
    way: Callable[[PulsarProducer, Outcomes, int, int], None],
) -> None:
    topic = broker.create_topic("t")
    consumer = client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
    producer = client.create_producer(
        topic,
        block_if_queue_full=blocks,
        max_pending_messages=THREADS // 2,
        batching_max_messages=3,
        batching_max_publish_delay_ms=5,
        send_timeout_millis=1_000 if disturb is time_out else 60_000,
        **BATCHING[batching],
    )
    way(producer, Outcomes(), SENT, SENT + 1)
    producer.flush()
    broker.faults.drop("SEND_RECEIPT", times=None)
    outcomes = Outcomes()
    # `send` waits for its receipt: many threads fill the queue. One that does not wait is enough.
    step = PER_THREAD if way is send else SENT
    threads = [
        threading.Thread(target=way, args=(producer, outcomes, first, first + step), daemon=True)
        for first in range(0, SENT, step)
    ]
    for thread in threads:
        thread.start()
    (own,) = producer._writer.producers
    wait_until(lambda: own.pending_messages >= THREADS // 2 - 2, "that the queue is full")
    disturb(broker, outcomes)
    finish(*threads)
    wait_until(lambda: outcomes.count >= SENT, "all callbacks")
    after = Outcomes()
    way(producer, after, SENT + 1, SENT + 7)
    wait_until(lambda: after.count >= 6, "callbacks of what was sent later")
    assert after.results == {Result.Ok}
    assert sorted(outcomes.told) == list(range(SENT))
    assert {len(told) for told in outcomes.told.values()} == {1}
    if blocks:
        assert Result.ProducerQueueIsFull not in outcomes.results
    elif way is send_async:
        assert Result.ProducerQueueIsFull in outcomes.results
    stored: list[int] = []
    while SENT + 6 not in stored:
        stored.append(int(consumer.receive(RECEIVE_MS).data()))
    check_order(stored, step, by_key=batching == "by key")
    kept = {number for number, told in outcomes.told.items() if told == [Result.Ok]}
    assert kept <= set(stored)
    if disturb is disconnect and blocks:
        assert len(kept) == SENT
    assert not own.waiting.messages


def check_order(stored: list[int], step: int, *, by_key: bool) -> None:
    """What one thread has sent is stored in order; by key, each key's messages are.

    Messages whose receipts were lost are stored twice: their last ones count.
    """
    last = list(dict.fromkeys(reversed(stored)))[::-1]
    lanes: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number in last:
        lanes[number // step, number % KEYS if by_key else 0].append(number)
    for lane in lanes.values():
        assert lane == sorted(lane)
