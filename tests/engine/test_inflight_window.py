"""A producer's in-flight window: room, timeouts, and an end that reaches all waiters."""

from __future__ import annotations

import threading
import time
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.memory import ProducerBudget
from pulsar_spark.engine.producers import inflight_window
from pulsar_spark.engine.producers.inflight_window import (
    InflightWindow,
    PendingQueue,
    PendingSends,
    ReceiptVerdict,
)
from pulsar_spark.engine.timers import Timers
from pulsar_spark.errors import ClosedError, ConnectionLost, OperationTimeout, PulsarError
from pulsar_spark.protocol.message_id import MessageIdAdv
from tests.support.waiting import Clock, finish, is_in, wait_until


def pending(first: int, count: int = 1, payload: bytes = b"1234567") -> PendingSends:
    return PendingSends([payload], first, first + count - 1, count)


def block(first: int, entries: int, per_entry: int = 1, messages: int = 0) -> PendingSends:
    """Return a block of a column whose frames have ten bytes each."""
    messages = messages or entries * per_entry
    return PendingSends(
        [b"".join(b"frame %04d" % number for number in range(entries))],
        first,
        first + messages - 1,
        messages,
        ends=array("q", range(10, 10 * entries + 1, 10)),
        per_entry=per_entry,
    )


def receipts(*ids: int) -> array[int]:
    return array("q", ids)


def test_the_queue_counts_messages_bytes_entries_and_blocks() -> None:
    queue = PendingQueue()
    queue.append(pending(0, 10))
    queue.append(pending(10))
    queue.append(block(11, 5, per_entry=2))
    assert (len(queue), queue.messages, queue.bytes) == (3, 21, 64)
    assert (queue.entries, queue.blocks) == (7, 3)
    assert queue.pop().sequence_id == 0
    assert (len(queue), queue.messages, queue.bytes) == (2, 11, 57)
    assert [sends.sequence_id for sends in queue.clear()] == [10, 11]
    assert (len(queue), queue.messages, queue.bytes) == (0, 0, 0)


def test_receipts_take_entries_off_a_block_many_at_a_time() -> None:
    queue = PendingQueue()
    queue.append(block(100, 5))
    queue.append(pending(105))
    count, taken = queue.take(receipts(100, 101, 102))
    assert taken is not None
    assert (count, taken.messages, taken.last, taken.ends) == (3, 3, 102, False)
    assert queue.messages == 3
    assert b"".join(taken.sends.unacknowledged()) == b"frame 0003frame 0004"
    # The rest of the block takes only so many; the others belong to the next block.
    count, taken = queue.take(receipts(103, 104, 105))
    assert taken is not None
    assert (count, taken.last, taken.ends) == (2, 104, True)
    assert queue.take(receipts(105))[0] == 1
    assert not len(queue)


@pytest.mark.parametrize("named", ["lowest", "highest", "in turn"])
def test_a_block_of_batches_is_acknowledged_by_lowest_or_highest_ids(named: str) -> None:
    queue = PendingQueue()
    # Three batches of ten, and one of four messages.
    queue.append(block(0, 4, per_entry=10, messages=34))
    bounds = [(0, 9), (10, 19), (20, 29), (30, 33)]
    ids = [pair[{"lowest": 0, "highest": 1}.get(named, at % 2)] for at, pair in enumerate(bounds)]
    at, messages = 0, 0
    while at < 4:
        count, taken = queue.take(receipts(*ids[at:]))
        assert taken is not None
        messages += taken.messages
        at += count
        assert taken.last == bounds[at - 1][1]
    assert (messages, len(queue)) == (34, 0)


@pytest.mark.fault(87)
def test_receipts_of_the_past_are_passed_over_and_one_ahead_stops_all() -> None:
    queue = PendingQueue()
    queue.append(block(10, 3))
    assert queue.take(receipts(9, 10)) == (1, None)
    assert queue.take(receipts(11, 12)) == (0, None)
    assert queue.take(receipts(10, 12))[0] == 1
    assert queue.judge(12) is ReceiptVerdict.AHEAD
    queue.clear()
    assert queue.take(receipts(12)) == (1, None)


def test_what_is_held_counts_objects_too() -> None:
    payload = bytes(1)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        sends = [
            PendingSends([payload[:1] + b"%d" % number], number, number) for number in range(1000)
        ]
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held <= sum(one.size for one in sends) < 4 * held


def held_callback(number: int) -> Callable[..., None]:
    """Return a callback as users write them: a closure over an object."""
    held = number

    def on_result(*result: object) -> None:
        raise AssertionError(held)

    return on_result


@pytest.mark.fault(87)
@pytest.mark.parametrize("per_message", [False, True])
def test_what_is_held_counts_callbacks_too(per_message: bool) -> None:
    def send(number: int) -> PendingSends:
        if per_message:
            made = [held_callback(index) for index in range(50)]
            return PendingSends([b"%d" % number], number, number, 50, callbacks=made)
        return PendingSends([b"%d" % number], number, number, callback=held_callback(number))

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        sends = [send(number) for number in range(200)]
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held <= sum(one.size for one in sends) < 4 * held


@pytest.mark.fault(87)
@pytest.mark.parametrize(
    "sequence_id,verdict",
    [
        (4, ReceiptVerdict.BEHIND),
        (5, ReceiptVerdict.OLDEST),
        (7, ReceiptVerdict.OLDEST),
        (9, ReceiptVerdict.OLDEST),
        (10, ReceiptVerdict.AHEAD),
        (11, ReceiptVerdict.AHEAD),
    ],
)
def test_a_receipt_is_about_the_oldest_send_or_tells_of_a_loss(
    sequence_id: int, verdict: ReceiptVerdict
) -> None:
    queue = PendingQueue()
    queue.append(pending(5, 5))
    queue.append(pending(10))
    assert queue.judge(sequence_id) is verdict


@pytest.mark.fault(87)
def test_a_receipt_for_nothing_is_of_the_past() -> None:
    assert PendingQueue().judge(3) is ReceiptVerdict.BEHIND


def send(number: int, count: int = 1, size: int = 10) -> PendingSends:
    made = PendingSends([bytes(size)], number, number + count - 1, count)
    made.size = size
    return made


class Windowed:
    """A window with its budget, timers and callbacks."""

    def __init__(self) -> None:
        self.timers = Timers("test-window")
        self.budget = ProducerBudget(1000)
        self.given_up: list[PulsarError] = []
        self.trouble: PulsarError | None = None

    def make(
        self, max_messages: int = 0, timeout: float = 10.0, survives_timeouts: bool = False
    ) -> InflightWindow:
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
            survives_timeouts=survives_timeouts,
        )
        return window


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of windows that are made from now on."""
    clock = Clock()
    monkeypatch.setattr(inflight_window, "time", clock)
    return clock


@pytest.fixture
def around() -> Iterator[Windowed]:
    made = Windowed()
    yield made
    made.timers.close()


def put(window: InflightWindow, *sends: PendingSends) -> None:
    for one in sends:
        window.wait_for_room(one.num_messages)
        window.reserve(one.size)
        with window.changed:
            window.append(one)


def take(window: InflightWindow) -> None:
    with window.changed:
        oldest = window.pending.oldest
        assert oldest is not None
        _, taken = window.take(receipts(oldest.sequence_id))
    assert taken is not None
    window.finish([(taken, array("q"), MessageIdAdv(0, 0))])


def test_room_is_counted_in_messages(around: Windowed) -> None:
    window = around.make(max_messages=10, timeout=0.1)
    put(window, send(0, 9), send(9))
    with pytest.raises(OperationTimeout) as raised:
        window.wait_for_room(1)
    assert raised.value.topic == "t"
    assert window.ended


def test_room_is_counted_in_bytes(around: Windowed) -> None:
    window = around.make(timeout=60)
    put(window, send(0, size=900))
    threading.Timer(0.05, take, [window]).start()
    began = time.monotonic()
    put(window, send(1, size=900))
    assert 0.04 <= time.monotonic() - began < 30
    assert around.budget.used == 900


@pytest.mark.fault(7)
def test_a_send_without_a_receipt_ends_the_window_when_its_time_is_up(around: Windowed) -> None:
    window = around.make(timeout=0.1)
    around.trouble = ConnectionLost("the broker went away", broker="b")
    put(window, send(0, 3))
    wait_until(lambda: around.given_up, "that it gives up")
    (error,) = around.given_up
    assert isinstance(error, OperationTimeout)
    assert "3 messages (10 bytes, from sequence id 0)" in error.what
    assert "the last error was: the broker went away" in error.what
    assert error.__cause__ is around.trouble
    with pytest.raises(OperationTimeout):
        window.check()


def test_each_send_has_its_own_time(around: Windowed, clock: Clock) -> None:
    window = around.make(timeout=600)
    for number in range(4):
        put(window, send(number))
        clock.advance(500)
        window.expire()
        take(window)
    assert not around.given_up
    put(window, send(4))
    clock.advance(600)
    window.expire()
    assert around.given_up


def test_waiting_ends_when_all_of_before_is_acknowledged(around: Windowed) -> None:
    window = around.make()
    put(window, send(0), send(1))

    def acknowledge() -> None:
        # More is sent meanwhile, and nobody waits for it.
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
        taken = window.take(receipts(0))[1]
    assert taken is not None
    with pytest.raises(OperationTimeout):
        window.wait_until_acknowledged(Deadline(0.05))
    window.finish([(taken, array("q"), MessageIdAdv(0, 0))])
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
                put(window, send(2, size=900))
        except PulsarError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: is_in(thread, "wait"))
    with window.changed:
        unfinished = window.end(ClosedError("over"))
    window.budget.wake()
    finish(thread)
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


def test_a_sender_goes_on_when_half_of_the_window_is_acknowledged(around: Windowed) -> None:
    window = around.make(max_messages=10)
    put(window, *(send(number) for number in range(10)))
    went_on = threading.Event()

    def wait() -> None:
        window.wait_for_room(1)
        went_on.set()

    threading.Thread(target=wait).start()
    # It is woken when so many are left, and not before.
    wait_until(lambda: window._room_at == 5)
    for _ in range(4):
        take(window)
        with window.changed:
            assert window._room_at == 5
    assert not went_on.is_set()
    take(window)
    assert went_on.wait(60)


def test_a_batch_larger_than_the_window_goes_alone(around: Windowed) -> None:
    window = around.make(max_messages=10, timeout=600)
    put(window, send(0, 50))
    threading.Timer(0.05, take, [window]).start()
    put(window, send(50, 50))
    assert window.pending.messages == 50


def test_time_counts_from_the_last_progress(around: Windowed, clock: Clock) -> None:
    window = around.make(timeout=600)
    put(window, *(send(number) for number in range(5)))
    for _ in range(4):
        clock.advance(500)
        window.expire()
        take(window)
    # The last one was sent more than half an hour ago, but receipts came all the time.
    assert not window.ended
    assert not around.given_up
    clock.advance(600)
    window.expire()
    assert window.ended


def test_in_a_window_that_goes_on_receipts_for_others_give_no_more_time(
    around: Windowed, clock: Clock
) -> None:
    window = around.make(timeout=600, survives_timeouts=True)
    put(window, *(send(number) for number in range(5)))
    clock.advance(500)
    window.expire()
    take(window)
    clock.advance(99)
    window.expire()
    assert len(window.pending) == 4
    put(window, send(5))
    clock.advance(2)
    window.expire()
    assert [one.sequence_id for one in window.pending] == [5]
    assert not around.given_up


def test_a_window_that_goes_on_gives_up_what_is_late_and_nothing_else(around: Windowed) -> None:
    window = around.make(timeout=0.5, survives_timeouts=True)
    told: list[PulsarError | None] = []
    late = send(0)
    late.callback = lambda error, _: told.append(error)
    put(window, late)
    time.sleep(0.3)
    put(window, send(1))
    wait_until(lambda: bool(told))
    assert isinstance(told[0], OperationTimeout)
    assert [one.sequence_id for one in window.pending] in ([1], [])
    with pytest.raises(OperationTimeout):
        window.wait_until_acknowledged(Deadline(10))
    # The error was raised once; later messages are sent as usual.
    put(window, send(2))
    with window.changed:
        window.pending.clear()
        window.settled = window.pending.blocks
        window.loss = None
    window.wait_until_acknowledged(Deadline(10))
    assert around.budget.used >= 0
    assert not around.given_up
