from __future__ import annotations

import time
from concurrent.futures import Future

from pulsar_spark.engine.delivery import Delivery, Ended, LastId
from pulsar_spark.engine.permits import ENTRY_OVERHEAD
from pulsar_spark.errors import ConnectionLost, UnsupportedFeature
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.events import MessageReceived


def message(entry_id: int, size: int) -> MessageReceived:
    message_id = pb.MessageIdData(ledgerId=1, entryId=entry_id)
    command = pb.CommandMessage(consumer_id=1, message_id=message_id)
    return MessageReceived(command, memoryview(bytes(size)))


class Stop:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1


def test_entries_answers_and_ends_keep_their_order() -> None:
    delivery = Delivery(10**6, Stop())
    first, second = message(0, 10), message(1, 10)
    answer: Future[object] = Future()
    delivery.on_message(first)
    delivery.put_last_id(answer)
    delivery.on_message(second)
    delivery.on_disconnect(ConnectionLost("gone"))
    assert delivery.get(0) is first
    assert delivery.get(0) == LastId(answer)
    assert delivery.get(0) is second
    ended = delivery.get(0)
    assert isinstance(ended, Ended)
    assert isinstance(ended.error, ConnectionLost)


def test_nothing_comes_behind_the_end() -> None:
    delivery = Delivery(10**6, Stop())
    delivery.on_close(pb.CommandCloseConsumer(consumer_id=1, request_id=1))
    delivery.on_disconnect(ConnectionLost("gone"))
    delivery.on_message(message(0, 10))
    assert isinstance(delivery.get(0), Ended)
    assert delivery.get(0) is None


def test_waiting_ends_at_its_timeout() -> None:
    started = time.monotonic()
    assert Delivery(10**6, Stop()).get(0.05) is None
    assert 0.04 < time.monotonic() - started < 1


def test_queued_bytes_are_counted_in_and_out() -> None:
    delivery = Delivery(10**6, Stop())
    delivery.on_message(message(0, 100))
    delivery.on_message(message(1, 200))
    assert delivery.queued_bytes == 300 + 2 * ENTRY_OVERHEAD
    delivery.get(0)
    assert delivery.queued_bytes == 200 + ENTRY_OVERHEAD


def test_what_does_not_fit_ends_the_delivery_and_keeps_what_came_before() -> None:
    stop = Stop()
    delivery = Delivery(10 * ENTRY_OVERHEAD, stop)
    for number in range(20):
        delivery.on_message(message(number, 0))
    assert delivery.queued_bytes == 10 * ENTRY_OVERHEAD
    assert stop.calls == 1
    kept = [delivery.get(0) for _ in range(10)]
    assert [item.command.message_id.entryId for item in kept] == list(range(10))  # type: ignore[union-attr]
    assert delivery.get(0) == Ended(overrun=True)
    assert delivery.get(0) is None


def test_a_single_entry_larger_than_the_memory_passes() -> None:
    stop = Stop()
    delivery = Delivery(100, stop)
    large = message(0, 10_000)
    delivery.on_message(large)
    assert delivery.get(0) is large
    delivery.on_message(large)
    assert delivery.get(0) is large
    assert stop.calls == 0


def test_a_migrated_topic_ends_with_a_reason_and_other_commands_do_not() -> None:
    delivery = Delivery(100, Stop())
    delivery.on_command(pb.CommandReachedEndOfTopic(consumer_id=1))
    assert delivery.get(0) is None
    kind = pb.CommandTopicMigrated.Consumer
    delivery.on_command(pb.CommandTopicMigrated(resource_id=1, resource_type=kind))
    ended = delivery.get(0)
    assert isinstance(ended, Ended)
    assert isinstance(ended.error, UnsupportedFeature)
