from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from pulsar_spark.engine.connections import transport as module
from pulsar_spark.engine.connections.transport import Received, Transport
from pulsar_spark.errors import ConnectError, ConnectionLost
from pulsar_spark.protocol.blocks import Buffer
from tests.engine.gathering import MANY, TRICKLED, trickle
from tests.support.waiting import finish, is_in, wait_until


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def address(sock: socket.socket) -> str:
    host, port = sock.getsockname()
    return f"{host}:{port}"


@pytest.fixture
def pair(listener: socket.socket) -> Iterator[tuple[Transport, socket.socket]]:
    transport = Transport.connect(address(listener), 5)
    peer, _ = listener.accept()
    with peer:
        yield transport, peer
    transport.close()


def send_all(transport: Transport, buffers: Sequence[Buffer]) -> None:
    rest = transport.send_some(buffers)
    while rest:
        assert transport.wait_writable(30)
        rest = transport.send_some(rest)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(sys.platform != "linux", reason="others may not wait for many bytes")
def test_bytes_that_come_little_by_little_are_gathered(
    pair: tuple[Transport, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GATHER_TIME", 60)
    transport, peer = pair
    sender = trickle(peer)
    found = transport.receive(60, gather=len(TRICKLED))
    finish(sender)
    assert found is not None
    begin = bytes(found)
    assert len(begin) > MANY
    while len(begin) < len(TRICKLED):
        rest = transport.receive(60)
        assert rest
        begin += bytes(rest)
    assert begin == TRICKLED
    # It is the exception: the next byte does not wait for others.
    peer.sendall(b"x")
    assert transport.receive(60) == b"x"


def test_gathering_ends_after_a_moment_or_with_the_stream_or_when_it_is_woken(
    pair: tuple[Transport, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, peer = pair
    peer.sendall(b"few")
    assert transport.receive(60, gather=1000) == b"few"
    monkeypatch.setattr(module, "_GATHER_TIME", 60)
    transport.wake()
    assert transport.receive(60, gather=1000) is None
    peer.sendall(b"last")
    peer.shutdown(socket.SHUT_WR)
    assert transport.receive(60, gather=1000) == b"last"
    assert transport.receive(60, gather=1000) == b""


def test_bytes_arrive_in_both_directions(pair: tuple[Transport, socket.socket]) -> None:
    transport, peer = pair
    peer.sendall(b"hello")
    assert transport.receive(5) == b"hello"
    assert transport.send_some([b"a", memoryview(b"bc"), bytearray(b"d")]) == []
    assert peer.recv(100) == b"abcd"


def test_bytes_that_come_one_at_a_time_take_one_read_each(
    pair: tuple[Transport, socket.socket],
) -> None:
    """An answer of a broker among hundreds is alone: to look for a second one lets threads in."""
    transport, peer = pair
    reads = 0

    class Counting(socket.socket):
        def recv(self, *arguments: Any) -> bytes:
            nonlocal reads
            reads += 1
            return super().recv(*arguments)

    transport._socket = Counting(fileno=transport._socket.detach())  # type: ignore[union-attr]
    transport._socket.setblocking(False)
    for number in range(20):
        assert transport.receive(0) is None
        peer.sendall(b"%d" % number)
        assert transport.receive(60) == b"%d" % number
    # The first one looks whether something came before it.
    assert reads <= 21


def test_receive_gives_none_after_its_timeout(pair: tuple[Transport, socket.socket]) -> None:
    started = time.monotonic()
    assert pair[0].receive(0.05) is None
    assert 0.04 < time.monotonic() - started < 15


def test_receive_returns_early_when_the_socket_takes_data(
    pair: tuple[Transport, socket.socket],
) -> None:
    assert pair[0].receive(5, or_writable=True) is None
    pair[1].sendall(b"x")
    time.sleep(0.05)
    assert pair[0].receive(5, or_writable=True) == b"x"


def test_the_end_of_the_stream_is_empty_bytes(pair: tuple[Transport, socket.socket]) -> None:
    pair[1].close()
    assert pair[0].receive(5) == b""


def test_more_buffers_than_one_call_takes_are_sent_in_order(
    pair: tuple[Transport, socket.socket],
) -> None:
    transport, peer = pair
    parts: list[Buffer] = [bytes([n % 256]) * (n % 7) for n in range(5000)]
    expected = b"".join(bytes(part) for part in parts)
    sender = threading.Thread(target=send_all, args=(transport, parts))
    sender.start()
    received = b""
    while len(received) < len(expected):
        received += peer.recv(100_000)
    sender.join()
    assert received == expected


@pytest.mark.fault(7)
def test_what_a_peer_does_not_take_is_given_back(pair: tuple[Transport, socket.socket]) -> None:
    rest: list[Buffer] = [bytes(1024 * 1024)] * 64
    while True:
        left = pair[0].send_some(rest)
        assert left
        if left[0] is rest[0]:
            break
        rest = left
        pair[0].wait_writable(0.1)
    assert not pair[0].wait_writable(0.05)


def test_a_thread_that_receives_can_be_woken(pair: tuple[Transport, socket.socket]) -> None:
    transport, _ = pair
    for _ in range(3):
        transport.wake()
    assert transport.receive(60) is None
    assert transport.receive(0.01) is None
    found: list[Received | None] = [b"nothing yet"]
    thread = threading.Thread(target=lambda: found.append(transport.receive(60)))
    thread.start()
    for _ in range(100_000):
        # More than a pipe holds.
        transport.wake()
    finish(thread)
    assert found[1] is None


def test_a_send_goes_on_when_the_peer_reads_again(pair: tuple[Transport, socket.socket]) -> None:
    transport, peer = pair
    data = bytes(range(256)) * 40_000
    sender = threading.Thread(target=send_all, args=(transport, [data]))
    sender.start()
    wait_until(lambda: is_in(sender, "wait_writable"))
    received = bytearray()
    while len(received) < len(data):
        received += peer.recv(1024 * 1024)
    sender.join()
    assert received == data


def test_shutdown_wakes_the_thread_that_receives(pair: tuple[Transport, socket.socket]) -> None:
    threading.Timer(0.05, pair[0].shutdown).start()
    started = time.monotonic()
    assert pair[0].receive(60) == b""
    assert time.monotonic() - started < 30
    pair[0].shutdown()


def test_writing_to_a_connection_that_is_gone_names_it(
    pair: tuple[Transport, socket.socket],
) -> None:
    pair[0].shutdown()
    with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:\d+ broke"):
        pair[0].send_some([b"x"])


@pytest.mark.fault(1)
def test_a_refused_connection_names_address_and_reason(listener: socket.socket) -> None:
    target = address(listener)
    listener.close()
    before = open_files()
    with pytest.raises(ConnectError, match=f"cannot connect to {target}: .*refused"):
        Transport.connect(target, 5)
    assert open_files() == before


@pytest.mark.fault(2)
def test_a_silent_address_ends_at_the_connect_timeout() -> None:
    # Linux does not answer further connects once a listener's backlog is full.
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        target = address(sock)
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(sock.getsockname())
            fillers.append(filler)
        time.sleep(0.1)
        before = open_files()
        started = time.monotonic()
        with pytest.raises(ConnectError, match=f"{target}.*no answer within"):
            Transport.connect(target, 0.5)
        assert 0.4 < time.monotonic() - started < 15
        assert open_files() == before
        for filler in fillers:
            filler.close()


@pytest.mark.fault(3)
def test_a_name_that_does_not_exist_is_said_to() -> None:
    with pytest.raises(ConnectError, match=r"the name of no-such-host\.invalid:6650"):
        Transport.connect("no-such-host.invalid:6650", 10)


@pytest.mark.fault(3)
def test_a_resolver_that_does_not_answer_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def slow(host: str, port: int, flags: int) -> list[object]:
        if flags:
            raise OSError
        release.wait(60)
        return []

    monkeypatch.setattr(module, "_lookup", slow)
    started = time.monotonic()
    with pytest.raises(ConnectError, match="no answer within"):
        Transport.connect("h:1", 0.1)
    assert time.monotonic() - started < 30
    release.set()


@pytest.mark.fault(3)
def test_all_addresses_of_a_name_are_tried(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = listener.getsockname()[1]
    targets = [
        (socket.AF_INET, ("127.0.0.2", 1)),
        (socket.AF_INET, ("127.0.0.1", port)),
    ]
    monkeypatch.setattr(module, "_lookup", lambda host, port, flags: targets)
    transport = Transport.connect("h:1", 5)
    assert transport.peer == "h:1"
    transport.close()


def test_connecting_can_be_given_up() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(sock.getsockname())
        time.sleep(0.1)
        started = time.monotonic()
        with pytest.raises(ConnectError, match="closed while connecting"):
            Transport.connect(address(sock), 30, cancelled=lambda: True)
        assert time.monotonic() - started < 15
        for filler in fillers:
            filler.close()


def test_small_frames_are_not_held_back(pair: tuple[Transport, socket.socket]) -> None:
    sock = pair[0]._socket
    assert isinstance(sock, socket.socket)
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
