"""The window of a producer: room, time, and one end for everyone who waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pulsar_spark.engine.inflight_window import (
    InflightWindow,
    MemoryBudget,
    PendingQueue,
    PendingSend,
    Verdict,
)
from pulsar_spark.engine.retry import Deadline
from pulsar_spark.engine.timers import Timers
from pulsar_spark.errors import ClosedError, ConnectionLost, OperationTimeout, PulsarError
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


def send(number: int, count: int = 1, size: int = 10) -> PendingSend:
    command = commands.send(0, number, count)
    highest = number + count - 1
    payload = bytes(size)
    return PendingSend(command, b"", payload, highest_sequence_id=highest, num_messages=count)


class Windowed:
    """A window with what it needs around it."""

    def __init__(self) -> None:
        self.timers = Timers("test-window")
        self.budget = MemoryBudget(1000)
        self.given_up: list[PulsarError] = []
        self.trouble: PulsarError | None = None

    def make(self, max_messages: int = 0, timeout: float = 10.0) -> InflightWindow:
        def give_up(error: PulsarError) -> None:
            with window.changed:
                window.end(error)
            self.given_up.append(error)

        window = InflightWindow(
            self.budget,
            self.timers,
            max_messages=max_messages,
            timeout=timeout,
            describe=lambda: {"topic": "t", "broker": "b"},
            trouble=lambda: self.trouble,
            give_up=give_up,
        )
        return window


@pytest.fixture
def around() -> Iterator[Windowed]:
    made = Windowed()
    yield made
    made.timers.close()


def put(window: InflightWindow, *sends: PendingSend) -> None:
    for one in sends:
        window.reserve(one)
        with window.changed:
            window.append(one)


def take(window: InflightWindow) -> None:
    with window.changed:
        oldest = window.pop()
    window.settle(oldest)


def test_room_is_counted_in_messages(around: Windowed) -> None:
    window = around.make(max_messages=10, timeout=0.1)
    put(window, send(0, 9), send(9))
    with pytest.raises(OperationTimeout) as raised:
        window.reserve(send(10))
    assert raised.value.topic == "t"
    assert window.ended


def test_room_is_counted_in_bytes(around: Windowed) -> None:
    window = around.make(timeout=5)
    put(window, send(0, size=900))
    threading.Timer(0.05, take, [window]).start()
    began = time.monotonic()
    put(window, send(1, size=900))
    assert 0.04 <= time.monotonic() - began < 3
    assert around.budget.used == 900


@pytest.mark.fault(7)
def test_a_send_without_a_receipt_ends_the_window_when_its_time_is_up(around: Windowed) -> None:
    window = around.make(timeout=0.1)
    around.trouble = ConnectionLost("the broker went away", broker="b")
    put(window, send(0, 3))
    deadline = time.monotonic() + 5
    while not around.given_up and time.monotonic() < deadline:
        time.sleep(0.01)
    (error,) = around.given_up
    assert isinstance(error, OperationTimeout)
    assert "3 messages (10 bytes, from sequence id 0)" in error.what
    assert "the last trouble was: the broker went away" in error.what
    assert error.__cause__ is around.trouble
    with pytest.raises(OperationTimeout):
        window.check()


def test_each_send_has_its_own_time(around: Windowed) -> None:
    window = around.make(timeout=2.0)
    for number in range(4):
        put(window, send(number))
        time.sleep(0.7)
        take(window)
    assert not around.given_up


def test_waiting_ends_when_all_of_before_is_acknowledged(around: Windowed) -> None:
    window = around.make()
    put(window, send(0), send(1))

    def acknowledge() -> None:
        # More is sent meanwhile, which nobody waits for.
        put(window, send(2))
        take(window)
        take(window)

    threading.Timer(0.05, acknowledge).start()
    window.wait_until_acknowledged(Deadline(5))
    assert len(window.pending) == 1


def test_waiting_goes_on_until_callbacks_have_returned(around: Windowed) -> None:
    window = around.make()
    put(window, send(0))
    with window.changed:
        oldest = window.pop()
    with pytest.raises(OperationTimeout):
        window.wait_until_acknowledged(Deadline(0.05))
    window.settle(oldest)
    window.wait_until_acknowledged(Deadline(0.05))


def test_waiting_ends_at_a_deadline_and_the_window_lives_on(around: Windowed) -> None:
    window = around.make()
    put(window, send(0))
    with pytest.raises(OperationTimeout, match=r"within 0\.05 s"):
        window.wait_until_acknowledged(Deadline(0.05))
    assert not window.ended
    take(window)
    window.wait_until_acknowledged(Deadline(0.05))


@pytest.mark.parametrize("what", ["room", "memory", "receipts"])
def test_the_end_wakes_everyone_who_waits(around: Windowed, what: str) -> None:
    window = around.make(max_messages=2 if what == "room" else 0)
    put(window, send(0, 2, size=900))
    raised: list[PulsarError] = []

    def wait() -> None:
        try:
            if what == "receipts":
                window.wait_until_acknowledged(Deadline(None))
            else:
                window.reserve(send(2, size=900))
        except PulsarError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    with window.changed:
        unfinished = window.end(ClosedError("over"))
    window.wake()
    thread.join(5)
    assert [type(error) for error in raised] == [ClosedError]
    assert unfinished is not None
    assert [one.sequence_id for one in unfinished] == [0]
    with window.changed:
        assert window.end(ClosedError("again")) is None


def test_no_timeout_is_a_long_one(around: Windowed) -> None:
    assert around.make(timeout=0).timeout > 3600


def test_a_window_of_a_closed_client_still_ends_by_its_waits(around: Windowed) -> None:
    around.timers.close()
    window = around.make(timeout=0.05)
    put(window, send(0))
    with pytest.raises(OperationTimeout):
        window.wait_until_acknowledged(Deadline(None))
    assert len(around.given_up) == 1


def test_counts_are_of_messages(around: Windowed) -> None:
    window = around.make()
    put(window, send(0, 5), send(5, 2))
    take(window)
    found: dict[str, Any] = {
        "sent": window.sent_messages,
        "bytes": window.sent_bytes,
        "acknowledged": window.acknowledged,
    }
    assert found == {"sent": 7, "bytes": 20, "acknowledged": 5}
