"""The write queue: turns, who writes the rest, and when a peer counts as hung."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from pulsar_spark.engine.connections import transport as module
from pulsar_spark.engine.connections.transport import Transport, WriteQueue
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.errors import ConnectionLost, OperationTimeout
from pulsar_spark.protocol.blocks import Buffer
from tests.support.waiting import finish, wait_until


class FakeTransport:
    """Takes data only while `room` lasts; then writers are in `waiting`, until `go`."""

    def __init__(self, room: int = 10**9) -> None:
        self.room = room
        self.written = b""
        self.go = threading.Event()
        self.waiting = threading.Event()
        self.woken = 0
        self.closed = False
        self.on_wake: Callable[[], object] = bool

    def wait_writable(self, timeout: float) -> bool:
        self.waiting.set()
        return self.go.wait(timeout)

    def wake(self) -> None:
        self.woken += 1
        self.on_wake()

    def send_some(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        if not self.room:
            return list(buffers)
        data = b"".join(bytes(part) for part in buffers)
        taken, rest = data[: self.room], data[self.room :]
        self.written += taken
        self.room -= len(taken)
        return [rest] if rest else []

    def close(self) -> None:
        self.closed = True


def opened(fake: FakeTransport, patience: float = 60.0) -> WriteQueue:
    writer = WriteQueue("h:1", patience)
    writer.open(cast(Transport, fake))
    return writer


def flushing(writer: WriteQueue, seconds: float = 60.0) -> threading.Thread:
    sender = threading.Thread(target=writer.flush, args=(Deadline(seconds),), daemon=True)
    sender.start()
    return sender


def test_what_is_queued_is_written_in_order() -> None:
    fake = FakeTransport()
    writer = opened(fake)
    writer.put([b"a", b"b"])
    writer.put_commands([b"c"])
    writer.put_answers([b"d"])
    writer.flush(Deadline(1))
    assert fake.written == b"abcd"


def test_the_receive_thread_writes_what_the_socket_takes_and_keeps_the_rest() -> None:
    fake = FakeTransport(room=2)
    writer = opened(fake)
    writer.put([b"abc"])
    writer.flush_now(wake=False)
    assert fake.written == b"ab"
    assert writer.stuck
    assert not fake.woken
    fake.room = 10
    writer.put([b"d"])
    writer.flush_now(wake=False)
    assert fake.written == b"abcd"
    assert not writer.stuck


def test_another_sender_goes_on_where_the_receive_thread_got_stuck() -> None:
    fake = FakeTransport(room=1)
    writer = opened(fake)
    writer.put([b"abc"])
    writer.flush_now(wake=False)
    fake.room = 10
    writer.put([b"d"])
    writer.flush(Deadline(60))
    assert fake.written == b"abcd"
    assert not writer.stuck


def test_a_command_never_waits_and_wakes_the_receive_thread_for_its_rest() -> None:
    fake = FakeTransport(room=1)
    writer = opened(fake)
    writer.put_commands([b"abc"])
    writer.flush_now()
    assert fake.woken == 1
    assert writer.stuck


def test_nobody_but_senders_waits_for_a_turn_and_nothing_is_left_behind() -> None:
    fake = FakeTransport(room=0)
    writer = opened(fake)
    writer.put([b"slow"])
    sender = flushing(writer)
    assert fake.waiting.wait(30)
    # The sender writes it; nobody else may wait for the socket.
    assert not writer.stuck
    writer.put_answers([b"pong"])
    writer.flush_now(wake=False)
    fake.room = 100
    fake.go.set()
    finish(sender)
    assert fake.written == b"slowpong"


@pytest.mark.fault(7)
def test_senders_behind_a_stuck_one_leave_at_their_own_deadline_and_lose_nothing() -> None:
    fake = FakeTransport(room=0)
    writer = opened(fake)
    writer.put([b"slow"])
    sender = flushing(writer)
    assert fake.waiting.wait(30)
    writer.put([b"next"])
    writer.flush(Deadline(0.05))
    assert len(fake.written) == 0
    fake.room = 100
    fake.go.set()
    finish(sender)
    assert fake.written == b"slownext"


@pytest.mark.fault(7)
def test_a_sender_whose_time_is_up_leaves_the_rest_to_the_receive_thread() -> None:
    fake = FakeTransport(room=3)
    writer = opened(fake)
    writer.put([b"abcdef"])
    writer.flush(Deadline(0.05))
    assert fake.written == b"abc"
    assert fake.woken
    assert writer.stuck
    fake.room = 100
    writer.flush_now(wake=False)
    assert fake.written == b"abcdef"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.mark.fault(7)
def test_a_peer_that_takes_nothing_is_given_up_and_one_that_is_slow_is_not(clock: Clock) -> None:
    fake = FakeTransport(room=0)
    writer = opened(fake, patience=30.0)
    writer.put([b"abcdef"])
    for _ in range(5):
        writer.flush_now(wake=False)
        clock.now += 29.0
        fake.room = 1
        writer.flush_now(wake=False)
        assert writer.stuck
    clock.now += 29.0
    writer.flush_now(wake=False)
    clock.now += 1.5
    with pytest.raises(OperationTimeout, match="the broker took no data for 30 s"):
        writer.flush_now(wake=False)


def test_time_in_which_there_is_nothing_to_write_does_not_count(clock: Clock) -> None:
    fake = FakeTransport(room=3)
    writer = opened(fake, patience=30.0)
    writer.put([b"abc"])
    writer.flush_now()
    clock.now += 3600.0
    writer.put([b"d"])
    writer.flush_now()
    clock.now += 29.0
    writer.flush_now()
    assert writer.stuck


@pytest.mark.fault(7)
def test_a_sender_that_waits_notices_that_the_peer_takes_nothing() -> None:
    writer = opened(FakeTransport(room=0), patience=0.05)
    writer.put([b"abc"])
    with pytest.raises(OperationTimeout, match=r"the broker took no data for 0\.05 s"):
        writer.flush(Deadline(60))


def put_until_dropped(writer: WriteQueue, put: Callable[[list[Buffer]], None]) -> int:
    total = 0
    while total < 200 * 1024 * 1024:
        put([bytes(100_000)])
        total += 100_000
        try:
            writer.flush_now(wake=False)
        except ConnectionLost:
            break
    return total


@pytest.mark.fault(7)
def test_a_peer_that_asks_and_never_reads_is_dropped() -> None:
    writer = opened(FakeTransport(room=0))
    assert put_until_dropped(writer, writer.put_answers) < 2 * module.MAX_ANSWERS


@pytest.mark.fault(7)
def test_commands_that_a_peer_does_not_take_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COMMANDS", 1_000_000)
    writer = opened(FakeTransport(room=0))
    assert put_until_dropped(writer, writer.put_commands) < 1_300_000


@pytest.mark.fault(7)
def test_payloads_of_senders_do_not_count_as_answers_of_a_peer() -> None:
    fake = FakeTransport(room=0)
    writer = opened(fake)
    writer.put([bytes(8 * module.MAX_ANSWERS)])
    for _ in range(5):
        # Answers that were written do not count, either.
        writer.put_answers([bytes(module.MAX_ANSWERS // 2)])
        writer.flush_now(wake=False)
        fake.room = 100 * module.MAX_ANSWERS
        writer.flush_now(wake=False)
        fake.room = 0
    assert len(fake.written) == 8 * module.MAX_ANSWERS + 5 * (module.MAX_ANSWERS // 2)


def test_a_closed_writer_refuses_and_closes_its_transport() -> None:
    fake = FakeTransport()
    writer = opened(fake)
    writer.close()
    assert fake.closed
    writer.put([b"x"])
    with pytest.raises(ConnectionLost):
        writer.flush(Deadline(1))
    writer.close()


def test_who_waits_for_a_turn_learns_of_the_end() -> None:
    fake = FakeTransport(room=0)
    writer = opened(fake)
    writer.put([b"slow"])
    sender = flushing(writer, 60.0)
    assert fake.waiting.wait(30)
    closer = threading.Thread(target=writer.close, daemon=True)
    closer.start()
    fake.room = 10
    fake.go.set()
    finish(sender, closer)
    wait_until(lambda: fake.closed)


def test_the_receive_thread_that_is_woken_finds_something_to_do_at_once() -> None:
    """It may run before the thread that woke it has ended its turn."""
    fake = FakeTransport(room=1)
    writer = opened(fake)
    stuck: list[bool] = []

    def receive() -> None:
        thread = threading.Thread(target=go_on)
        thread.start()
        finish(thread)

    def go_on() -> None:
        writer.flush_now(wake=False)
        stuck.append(writer.stuck)

    fake.on_wake = receive
    writer.put([b"abc"])
    writer.flush(Deadline(0.01))
    writer.put_commands([b"d"])
    writer.flush_now()
    assert stuck == [True, True]
