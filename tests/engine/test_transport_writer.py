from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import cast

import pytest

from pulsar_spark.engine.retry import Deadline
from pulsar_spark.engine.transport import Transport, Writer
from pulsar_spark.errors import ConnectionLost, OperationTimeout
from pulsar_spark.protocol.frames import Buffer


class FakeTransport:
    """Takes data only while `room` lasts; a blocking send waits for `go`."""

    def __init__(self, room: int = 10**9) -> None:
        self.room = room
        self.written = b""
        self.go = threading.Event()
        self.go.set()
        self.entered = threading.Event()
        self.closed = False

    def send(self, buffers: Sequence[Buffer], deadline: Deadline) -> None:
        self.entered.set()
        if not self.go.wait(deadline.remaining()):
            raise OperationTimeout("no room")
        self.written += b"".join(bytes(part) for part in buffers)

    def send_some(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        data = b"".join(bytes(part) for part in buffers)
        taken, rest = data[: self.room], data[self.room :]
        self.written += taken
        self.room -= len(taken)
        return [rest] if rest else []

    def close(self) -> None:
        self.closed = True


def opened(fake: FakeTransport) -> Writer:
    writer = Writer("h:1")
    writer.open(cast(Transport, fake))
    return writer


def test_what_is_queued_is_written_in_order() -> None:
    fake = FakeTransport()
    writer = opened(fake)
    writer.put([b"a", b"b"])
    writer.put([b"c"])
    writer.flush(Deadline(1))
    assert fake.written == b"abc"


def test_the_receive_thread_writes_what_the_socket_takes_and_keeps_the_rest() -> None:
    fake = FakeTransport(room=2)
    writer = opened(fake)
    writer.put([b"abc"])
    writer.flush_now()
    assert fake.written == b"ab"
    assert writer.stuck
    fake.room = 10
    writer.put([b"d"])
    writer.flush_now()
    assert fake.written == b"abcd"
    assert not writer.stuck


def test_another_sender_goes_on_where_the_receive_thread_got_stuck() -> None:
    fake = FakeTransport(room=1)
    writer = opened(fake)
    writer.put([b"abc"])
    writer.flush_now()
    writer.put([b"d"])
    writer.flush(Deadline(1))
    assert fake.written == b"abcd"
    assert not writer.stuck


def test_the_receive_thread_never_waits_and_nothing_is_left_behind() -> None:
    fake = FakeTransport()
    fake.go.clear()
    writer = opened(fake)
    writer.put([b"slow"])
    sender = threading.Thread(target=writer.flush, args=(Deadline(10),))
    sender.start()
    assert fake.entered.wait(5)
    writer.put([b"pong"])
    started = time.monotonic()
    writer.flush_now()
    assert time.monotonic() - started < 0.5
    fake.go.set()
    sender.join(5)
    assert fake.written == b"slowpong"


@pytest.mark.fault(7)
def test_senders_behind_a_stuck_one_give_up_at_their_own_deadline() -> None:
    fake = FakeTransport()
    fake.go.clear()
    writer = opened(fake)
    writer.put([b"slow"])
    sender = threading.Thread(target=writer.flush, args=(Deadline(10),))
    sender.start()
    assert fake.entered.wait(5)
    writer.put([b"next"])
    with pytest.raises(OperationTimeout, match=r"no data for 0\.1 s"):
        writer.flush(Deadline(0.1))
    fake.go.set()
    sender.join(5)


@pytest.mark.fault(7)
def test_a_peer_that_asks_and_never_reads_is_dropped() -> None:
    fake = FakeTransport(room=0)
    writer = opened(fake)
    for _ in range(200):
        writer.put([bytes(10_000)])
        try:
            writer.flush_now()
        except ConnectionLost:
            return
    pytest.fail("two megabytes were kept")


def test_a_closed_writer_refuses_and_closes_its_transport() -> None:
    fake = FakeTransport()
    writer = opened(fake)
    writer.close()
    assert fake.closed
    writer.put([b"x"])
    with pytest.raises(ConnectionLost):
        writer.flush(Deadline(1))
    writer.close()
