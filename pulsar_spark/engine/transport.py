"""One socket: connecting, reading and writing under deadlines, and whose turn it is to write.

The socket never blocks; waiting is done by `poll`, so that reading and writing can go on in two
threads and TLS can be added in `_wrap` alone.
"""

from __future__ import annotations

import errno
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from pulsar_spark.engine.addresses import split_host_port
from pulsar_spark.engine.retry import Deadline
from pulsar_spark.errors import ConnectError, ConnectionLost, OperationTimeout, UnsupportedFeature
from pulsar_spark.protocol.frames import Buffer

READ_SIZE = 512 * 1024
"""Most bytes of one read: enough to take what a fast broker sends between two reads."""

_MAX_BUFFERS = min(os.sysconf("SC_IOV_MAX") if "SC_IOV_MAX" in os.sysconf_names else 16, 1024)
_POLL_SLICE = 0.25
# A peer that asks and never reads cannot make us keep more answers than this.
_MAX_UNSENT = 1024 * 1024
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 6), ("TCP_KEEPCNT", 10))
_IN_PROGRESS = (0, errno.EINPROGRESS, errno.EWOULDBLOCK)

_Resolved: TypeAlias = "tuple[int, tuple[object, ...]]"


class Transport:
    """A connected, non-blocking stream socket.

    One thread may receive while another sends. `close` is for when neither does; `shutdown`
    wakes both and may be called at any time.
    """

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self._socket = sock
        self.peer = peer

    @classmethod
    def connect(
        cls,
        address: str,
        timeout: float,
        *,
        tls: bool = False,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Transport:
        """Connect to ``host:port``, trying every address that the name has.

        Raises ConnectError, which names the address, within `timeout` seconds or soon after
        `cancelled` returns true.
        """
        deadline = Deadline(timeout)
        host, port = split_host_port(address)
        targets = _resolve(address, host, port, deadline)
        reasons: list[str] = []
        for number, (family, target) in enumerate(targets):
            # Each of several addresses gets its share, so that a silent one hides no other.
            share = Deadline(deadline.remaining() / (len(targets) - number))
            try:
                sock = _open(family, target, share, cancelled)
            except OSError as error:
                reasons.append(f"{target[0]}: {error.strerror or error}")
                continue
            return cls(_wrap(sock, host, tls), address)
        raise ConnectError(
            f"cannot connect to {address}: {'; '.join(reasons)}",
            "Check service.url, and that the broker runs and is reachable from this machine.",
            broker=address,
        )

    def receive(self, timeout: float, *, or_writable: bool = False) -> bytes | None:
        """Return the next bytes, ``b""`` at the end of the stream, or None after `timeout`.

        With `or_writable`, None is also returned as soon as the socket takes data again. Raises
        ConnectionLost for a broken connection.
        """
        if not or_writable and (data := self._read()) is not None:
            return data
        ready = self._poll(select.POLLIN | (select.POLLOUT if or_writable else 0), timeout)
        return self._read() if ready & ~select.POLLOUT else None

    def send(self, buffers: Sequence[Buffer], deadline: Deadline) -> None:
        """Write all buffers in order.

        Raises OperationTimeout when the peer takes nothing until the deadline; part of a frame
        can be written then, so the connection must be closed. Raises ConnectionLost.
        """
        rest = self.send_some(buffers)
        while rest:
            if not self._poll(select.POLLOUT, deadline.remaining()):
                raise OperationTimeout(
                    f"the broker took no data for {deadline.seconds:g} s", broker=self.peer
                )
            rest = self.send_some(rest)

    def send_some(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """Write what the socket takes now and return the rest; raises ConnectionLost."""
        rest = list(buffers)
        first = 0
        while first < len(rest):
            try:
                sent = self._socket.sendmsg(rest[first : first + _MAX_BUFFERS])
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                raise self._lost(error) from None
            while first < len(rest) and sent >= (size := _size(rest[first])):
                sent -= size
                first += 1
            if sent:
                rest[first] = memoryview(rest[first]).cast("B")[sent:]
        return rest[first:]

    def shutdown(self) -> None:
        """End the connection; threads that wait on it return at once. Never raises."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        """Give the socket back. No other thread may use the transport any more."""
        self._socket.close()

    def _read(self) -> bytes | None:
        try:
            return self._socket.recv(READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise self._lost(error) from None

    def _poll(self, events: int, timeout: float) -> int:
        return _poll(self._socket, events, timeout)

    def _lost(self, error: OSError) -> ConnectionLost:
        return ConnectionLost(
            f"the connection to {self.peer} broke: {error.strerror or error}", broker=self.peer
        )


class Writer:
    """The queue of a connection's outgoing buffers.

    `put` is called in the order of the wire, under the connection's own mutex. Whoever flushes
    writes what everybody queued. Threads that send wait for their turn, which holds them back
    when the broker is slow; the receive thread never waits, for it has to answer PINGs and to
    read what may be needed for the broker to go on.
    """

    def __init__(self, broker: str) -> None:
        self._broker = broker
        # The queue is appended to and swapped, each in one step; _turn orders the writing.
        self._queue: list[Buffer] = []
        self._queue_lock = threading.Lock()
        self._turn = threading.Lock()
        # The following are guarded by _turn.
        self._transport: Transport | None = None
        self._unsent: list[Buffer] = []

    def open(self, transport: Transport) -> None:
        """Begin to write to a transport."""
        with self._turn:
            self._transport = transport

    @property
    def stuck(self) -> bool:
        """Whether the receive thread has begun to write something and could not end it."""
        return bool(self._unsent)

    def put(self, buffers: Iterable[Buffer]) -> None:
        """Queue buffers."""
        with self._queue_lock:
            self._queue.extend(buffers)

    def flush(self, deadline: Deadline) -> None:
        """Write all that is queued; for any thread but the receive thread.

        Raises OperationTimeout when the broker takes no data until the deadline,
        ConnectionLost. The stream may be cut within a frame then.
        """
        # Who ends its turn looks again: the receive thread leaves when it finds a turn taken.
        while self._queue:
            if not self._turn.acquire(timeout=min(deadline.remaining(), threading.TIMEOUT_MAX)):
                raise OperationTimeout(
                    f"the broker took no data for {deadline.seconds:g} s", broker=self._broker
                )
            try:
                while data := self._take():
                    self._open_transport().send(data, deadline)
            finally:
                self._turn.release()

    def flush_now(self) -> None:
        """Write what the socket takes at once; for the receive thread."""
        while (self._queue or self._unsent) and self._turn.acquire(blocking=False):
            try:
                self._unsent = self._open_transport().send_some(self._take())
            finally:
                self._turn.release()
            if self._unsent:
                break
        if self._unsent and sum(len(part) for part in self._unsent) > _MAX_UNSENT:
            raise ConnectionLost(
                "the broker sends requests and takes no answers", broker=self._broker
            )

    def close(self) -> None:
        """Close the transport, which was shut down, when nobody writes to it any more."""
        with self._turn:
            transport, self._transport = self._transport, None
            self._unsent = []
            if transport is not None:
                transport.close()
        with self._queue_lock:
            self._queue = []

    def _take(self) -> list[Buffer]:
        with self._queue_lock:
            data, self._queue = self._unsent + self._queue, []
        self._unsent = []
        return data

    def _open_transport(self) -> Transport:
        if self._transport is None:
            raise ConnectionLost("the connection has ended", broker=self._broker)
        return self._transport


def _size(buffer: Buffer) -> int:
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


def _poll(sock: socket.socket, events: int, timeout: float) -> int:
    poller = select.poll()
    poller.register(sock, events)
    milliseconds = None if timeout == float("inf") else max(int(timeout * 1000 + 0.999), 0)
    ready = poller.poll(milliseconds)
    return ready[0][1] if ready else 0


def _open(
    family: int, target: tuple[object, ...], deadline: Deadline, cancelled: Callable[[], bool]
) -> socket.socket:
    """Return a socket connected to `target`; raises OSError."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        error = sock.connect_ex(target)
        if error not in _IN_PROGRESS:
            raise OSError(error, os.strerror(error))
        while not _poll(sock, select.POLLOUT, min(deadline.remaining(), _POLL_SLICE)):
            if cancelled():
                raise OSError(errno.ECANCELED, "closed while connecting")
            if deadline.expired():
                raise OSError(errno.ETIMEDOUT, f"no answer within {deadline.seconds:.1f} s")
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
    except BaseException:
        sock.close()
        raise
    return sock


def _wrap(sock: socket.socket, host: str, tls: bool) -> socket.socket:
    """Put TLS on a connected socket: the only place that knows of it."""
    if tls:
        sock.close()
        raise UnsupportedFeature(
            f"TLS (pulsar+ssl://, to {host}) is not supported yet", "Use a pulsar:// service URL."
        )
    return sock


def _resolve(address: str, host: str, port: int, deadline: Deadline) -> list[_Resolved]:
    """Return family and socket address of all addresses of a host; raises ConnectError."""
    try:
        return _lookup(host, port, socket.AI_NUMERICHOST)
    except OSError:
        pass
    # The system's resolver knows no deadline, so it runs where it can be left behind.
    answers: queue.SimpleQueue[list[_Resolved] | OSError] = queue.SimpleQueue()

    def resolve() -> None:
        try:
            answers.put(_lookup(host, port, 0))
        except OSError as error:
            answers.put(error)

    threading.Thread(target=resolve, name=f"pulsar-resolve-{host}", daemon=True).start()
    started = time.monotonic()
    try:
        answer = answers.get(timeout=min(deadline.remaining(), threading.TIMEOUT_MAX))
    except queue.Empty:
        waited = time.monotonic() - started
        answer = OSError(errno.ETIMEDOUT, f"no answer within {waited:.1f} s")
    if isinstance(answer, OSError):
        raise ConnectError(
            f"the name of {address} cannot be resolved: {answer.strerror or answer}",
            "Check service.url, and the name service of this machine.",
            broker=address,
        )
    return answer


def _lookup(host: str, port: int, flags: int) -> list[_Resolved]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:
        raise OSError(errno.EINVAL, f"not a host name ({error})") from None
    return list(dict.fromkeys((int(entry[0]), entry[4]) for entry in found))
