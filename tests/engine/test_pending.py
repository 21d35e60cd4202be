"""The books of what is sent and not acknowledged."""

from __future__ import annotations

import threading
import time

import pytest

from pulsar_spark.engine.pending import MemoryBudget, PendingQueue, PendingSend, Verdict
from pulsar_spark.protocol import commands


def pending(first: int, count: int = 1, payload: bytes = b"12345") -> PendingSend:
    command = commands.send(7, first, count)
    return PendingSend(
        command, b"md", payload, highest_sequence_id=first + count - 1, num_messages=count
    )


def test_the_queue_counts_messages_bytes_and_sends() -> None:
    queue = PendingQueue()
    queue.append(pending(0, 10))
    queue.append(pending(10))
    assert (len(queue), queue.messages, queue.bytes, queue.appended) == (2, 11, 14, 2)
    assert queue.pop().sequence_id == 0
    assert (len(queue), queue.messages, queue.bytes) == (1, 1, 7)
    assert [send.sequence_id for send in queue.clear()] == [10]
    assert (len(queue), queue.messages, queue.bytes) == (0, 0, 0)


@pytest.mark.fault(87)
@pytest.mark.parametrize(
    "sequence_id,verdict",
    [
        (4, Verdict.BEHIND),
        (5, Verdict.OLDEST),
        (7, Verdict.OLDEST),
        (9, Verdict.OLDEST),
        (10, Verdict.AHEAD),
        (11, Verdict.AHEAD),
    ],
)
def test_a_receipt_is_about_the_oldest_send_or_tells_of_a_loss(
    sequence_id: int, verdict: Verdict
) -> None:
    queue = PendingQueue()
    queue.append(pending(5, 5))
    queue.append(pending(10))
    assert queue.judge(sequence_id) is verdict


@pytest.mark.fault(87)
def test_a_receipt_for_nothing_is_of_the_past() -> None:
    assert PendingQueue().judge(3) is Verdict.BEHIND


def test_memory_is_reserved_up_to_the_limit() -> None:
    budget = MemoryBudget(100)
    assert budget.reserve(60, 0.0, lambda: False)
    assert budget.reserve(40, 0.0, lambda: False)
    assert not budget.reserve(1, 0.0, lambda: False)
    budget.release(60)
    assert budget.reserve(1, 0.0, lambda: False)
    assert budget.used == 41


def test_a_message_larger_than_the_budget_passes_alone() -> None:
    budget = MemoryBudget(10)
    assert budget.reserve(50, 0.0, lambda: False)
    assert not budget.reserve(1, 0.0, lambda: False)
    budget.release(50)
    assert budget.reserve(1, 0.0, lambda: False)
    assert not budget.reserve(50, 0.0, lambda: False)


@pytest.mark.fault(7)
def test_a_wait_for_memory_ends_at_its_deadline() -> None:
    budget = MemoryBudget(10)
    budget.reserve(10, 0.0, lambda: False)
    began = time.monotonic()
    assert not budget.reserve(1, began + 0.05, lambda: False)
    assert 0.05 <= time.monotonic() - began < 2


def test_a_wait_for_memory_ends_when_memory_is_freed() -> None:
    budget = MemoryBudget(10)
    budget.reserve(10, 0.0, lambda: False)
    threading.Timer(0.05, budget.release, [10]).start()
    assert budget.reserve(10, time.monotonic() + 5, lambda: False)


def test_a_wait_for_memory_ends_when_it_is_given_up() -> None:
    budget = MemoryBudget(10)
    budget.reserve(10, 0.0, lambda: False)
    given_up = threading.Event()

    def give_up() -> None:
        given_up.set()
        budget.wake()

    threading.Timer(0.05, give_up).start()
    began = time.monotonic()
    assert not budget.reserve(10, began + 5, given_up.is_set)
    assert time.monotonic() - began < 4
