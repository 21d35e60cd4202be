from __future__ import annotations

import time
from concurrent.futures import Future

import pytest

from pulsar_spark.engine.consumers import receiver_queue as module
from pulsar_spark.engine.consumers.receiver_queue import (
    BLOCK_OVERHEAD,
    Ended,
    LastId,
    ReceiverQueue,
)
from pulsar_spark.engine.memory import ReceiverBudget
from pulsar_spark.errors import (
    ConnectionLost,
    UnsupportedFeature,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import MessageBlock
from tests.support.waiting import Clock


def block(size: int) -> MessageBlock:
    return MessageBlock(1, bytes(size), 0, size, 1)


class Stop:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1


def test_blocks_answers_and_ends_keep_their_order() -> None:
    queue = ReceiverQueue(ReceiverBudget(10**6), Stop())
    first, second = block(10), block(10)
    answer: Future[object] = Future()
    queue.on_messages(first)
    queue.put_last_id(answer)
    queue.on_messages(second)
    queue.on_disconnect(ConnectionLost("gone"))
    assert queue.get(0) is first
    assert queue.get(0) == LastId(answer)
    assert queue.get(0) is second
    ended = queue.get(0)
    assert isinstance(ended, Ended)
    assert isinstance(ended.error, ConnectionLost)


def test_small_entries_can_wait_while_others_are_in_front_of_them() -> None:
    queue = ReceiverQueue(ReceiverBudget(10**6), Stop())
    small = MessageBlock(1, bytes(70_000), 0, 70_000, 500)
    large = MessageBlock(1, bytes(70_000), 0, 70_000, 1)
    assert not queue.on_messages(small)
    assert not queue.on_messages(small), "whoever reads it may wait for a new message"
    for _ in range(2):
        queue.get(0)
    queue.expect(2 * module.GATHERED)
    assert not queue.on_messages(small)
    assert queue.on_messages(small) == module.GATHERED
    assert not queue.on_messages(large)
    for _ in range(3):
        queue.get(0)
    assert not queue.on_messages(small)


class Stream:
    """A long read of what is stored, on a clock of its own; the queue is always empty."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        monkeypatch.setattr(module, "time", self.clock)
        self.queue = ReceiverQueue(ReceiverBudget(10**7), Stop())

    def waits(self, size: int) -> int:
        """A block comes; return for how many bytes the next one may wait."""
        found = self.queue.on_messages(block(size))
        self.queue.get(0)
        return found


def test_in_a_long_read_of_what_is_stored_blocks_can_wait_while_there_are_permits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = Stream(monkeypatch)
    stream.queue.expect(2 * module.GATHERED)
    assert not stream.waits(1000), "it may be a short read"
    assert stream.waits(2**20) == module.GATHERED
    assert stream.waits(1000) == module.GATHERED
    stream.queue.expect(2 * module.GATHERED - 1)
    assert not stream.waits(1000), "the broker may have to wait for permits"
    stream.queue.expect(0)
    assert not stream.waits(1000)


def test_where_bytes_come_slowly_the_next_ones_wait_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream, slowly = Stream(monkeypatch), module.GATHERED_SLOWLY
    stream.queue.expect(2 * slowly)
    stream.clock.advance(1.0)
    assert stream.waits(2**20) == slowly
    assert stream.waits(1000) == slowly
    stream.queue.expect(2 * slowly - 1)
    assert not stream.waits(1000), "the broker may have to wait for permits"
    stream.queue.expect(2 * slowly)
    stream.clock.advance(0.01)
    assert stream.waits(2**20) == module.GATHERED, "that was 100 MB a second"


def test_nothing_comes_behind_the_end() -> None:
    queue = ReceiverQueue(ReceiverBudget(10**6), Stop())
    queue.on_close(pb.CommandCloseConsumer(consumer_id=1, request_id=1))
    queue.on_disconnect(ConnectionLost("gone"))
    queue.on_messages(block(10))
    assert isinstance(queue.get(0), Ended)
    assert queue.get(0) is None


def test_waiting_ends_at_its_timeout() -> None:
    started = time.monotonic()
    assert ReceiverQueue(ReceiverBudget(10**6), Stop()).get(0.05) is None
    assert 0.04 < time.monotonic() - started < 15


def test_queued_bytes_are_counted_in_and_out() -> None:
    queue = ReceiverQueue(ReceiverBudget(10**6), Stop())
    queue.on_messages(block(100))
    queue.on_messages(block(200))
    assert queue.queued_bytes == 300 + 2 * BLOCK_OVERHEAD
    queue.get(0)
    assert queue.queued_bytes == 200 + BLOCK_OVERHEAD


def test_what_does_not_fit_ends_the_queue_and_keeps_what_came_before() -> None:
    stop = Stop()
    queue = ReceiverQueue(ReceiverBudget(10 * BLOCK_OVERHEAD), stop)
    blocks = [block(0) for _ in range(20)]
    for item in blocks:
        queue.on_messages(item)
    assert queue.queued_bytes == 10 * BLOCK_OVERHEAD
    assert stop.calls == 1
    assert [queue.get(0) for _ in range(10)] == blocks[:10]
    assert queue.get(0) == Ended(overrun=True)
    assert queue.get(0) is None


def test_a_single_block_larger_than_the_memory_passes() -> None:
    stop = Stop()
    queue = ReceiverQueue(ReceiverBudget(100), stop)
    large = block(10_000)
    queue.on_messages(large)
    assert queue.get(0) is large
    queue.on_messages(large)
    assert queue.get(0) is large
    assert stop.calls == 0


def test_a_migrated_topic_ends_with_a_reason_and_other_commands_do_not() -> None:
    queue = ReceiverQueue(ReceiverBudget(100), Stop())
    queue.on_command(pb.CommandReachedEndOfTopic(consumer_id=1))
    assert queue.get(0) is None
    kind = pb.CommandTopicMigrated.Consumer
    queue.on_command(pb.CommandTopicMigrated(resource_id=1, resource_type=kind))
    ended = queue.get(0)
    assert isinstance(ended, Ended)
    assert isinstance(ended.error, UnsupportedFeature)


@pytest.mark.fault(91)
def test_the_shares_of_a_budget_follow_the_number_of_queues() -> None:
    budget = ReceiverBudget(12 * BLOCK_OVERHEAD)
    budget.join()
    stop = Stop()
    queue = ReceiverQueue(budget, stop)
    for _ in range(5):
        queue.on_messages(block(0))
    budget.join()
    queue.on_messages(block(0))
    assert stop.calls == 0
    # With a third one its share is less than it holds already.
    budget.join()
    queue.on_messages(block(0))
    assert stop.calls == 1
    for _ in range(3):
        budget.leave()
    assert budget.share == 12 * BLOCK_OVERHEAD


@pytest.mark.fault(91)
def test_a_small_block_does_not_keep_what_it_was_received_with() -> None:
    received = bytes(512 * 1024)
    small = MessageBlock(1, received, 1000, 1100, 1)
    queue = ReceiverQueue(ReceiverBudget(10**6), Stop())
    for _ in range(100):
        queue.on_messages(small)
    assert queue.queued_bytes == 100 * (100 + BLOCK_OVERHEAD)
    found = queue.get(0)
    assert isinstance(found, MessageBlock)
    assert len(found.data) == 100
    assert (found.start, found.stop, found.count) == (0, 100, 1)
