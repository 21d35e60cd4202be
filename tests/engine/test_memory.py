"""The memory that a client's producers and receiver queues share."""

from __future__ import annotations

import os
import threading
import time

import pytest

from pulsar_spark.engine.consumers.entries import EntryDecoder
from pulsar_spark.engine.memory import ProducerBudget, ReceiverBudget
from pulsar_spark.errors import ClosedError, OperationTimeout
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import MessageReceived
from pulsar_spark.protocol.message_id import EARLIEST_POSITION
from tests.engine.topics import chunks_of


def test_memory_is_reserved_up_to_the_limit() -> None:
    budget = ProducerBudget(100)
    assert budget.reserve(60, 0.0, lambda: False)
    assert budget.reserve(40, 0.0, lambda: False)
    assert not budget.reserve(1, 0.0, lambda: False)
    budget.release(60)
    assert budget.reserve(1, 0.0, lambda: False)
    assert budget.used == 41


def test_a_message_larger_than_the_budget_passes_alone() -> None:
    budget = ProducerBudget(10)
    assert budget.reserve(50, 0.0, lambda: False)
    assert not budget.reserve(1, 0.0, lambda: False)
    budget.release(50)
    assert budget.reserve(1, 0.0, lambda: False)
    assert not budget.reserve(50, 0.0, lambda: False)


@pytest.mark.fault(7)
def test_a_wait_for_memory_ends_at_its_deadline() -> None:
    budget = ProducerBudget(10)
    budget.reserve(10, 0.0, lambda: False)
    began = time.monotonic()
    assert not budget.reserve(1, began + 0.05, lambda: False)
    assert 0.05 <= time.monotonic() - began < 15


def test_a_wait_for_memory_ends_when_memory_is_freed() -> None:
    budget = ProducerBudget(10)
    budget.reserve(10, 0.0, lambda: False)
    threading.Timer(0.05, budget.release, [10]).start()
    assert budget.reserve(10, time.monotonic() + 60, lambda: False)


def test_a_wait_for_memory_ends_when_it_is_given_up() -> None:
    budget = ProducerBudget(10)
    budget.reserve(10, 0.0, lambda: False)
    given_up = threading.Event()

    def give_up() -> None:
        given_up.set()
        budget.wake()

    threading.Timer(0.05, give_up).start()
    began = time.monotonic()
    assert not budget.reserve(10, began + 60, given_up.is_set)
    assert time.monotonic() - began < 30


@pytest.mark.fault(39, 91)
def test_the_shares_of_a_budget_are_what_unfinished_messages_leave() -> None:
    budget = ReceiverBudget(10_000)
    budget.join()
    decoder = EntryDecoder("t", EARLIEST_POSITION, None, budget.total, memory=budget.chunks)
    first = chunks_of(os.urandom(4000), 2500, "a")[0]
    command = pb.CommandMessage(consumer_id=1, message_id=pb.MessageIdData(ledgerId=1, entryId=2))
    decoder.decode(MessageReceived(command, memoryview(first)))
    assert budget.share == 10_000 - budget.chunks.held < 7500
    decoder.close()
    assert budget.share == 10_000


@pytest.mark.fault(39)
def test_those_who_fetch_chunks_take_turns() -> None:
    budget = ReceiverBudget(8000)
    with budget.fetching(lambda: False) as queue:
        assert queue.total == budget.chunks.held == 1000
        with pytest.raises(OperationTimeout), budget.fetching(lambda: False, 0.01):
            pass
        with pytest.raises(ClosedError), budget.fetching(lambda: True):
            pass
    with budget.fetching(lambda: True):
        pass
    assert budget.chunks.held == 0
