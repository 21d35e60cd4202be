"""One socket: connects, reads and writes with deadlines, and orders writers.

The socket never blocks; `poll` waits for it, so that one thread can read while another writes.
Only `_wrap` knows of TLS.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import TypeAlias

from pulsar_spark.engine.connections.addresses import split_host_port
from pulsar_spark.engine.connections.polling import poll, wait_connecting
from pulsar_spark.engine.connections.tls import TlsSocket
from pulsar_spark.engine.deadline import Deadline, call_apart
from pulsar_spark.errors import (
    ConnectError,
    ConnectionLost,
    ConnectTimeout,
    OperationTimeout,
    TlsError,
)
from pulsar_spark.protocol.blocks import Buffer

READ_SIZE = 512 * 1024
"""Maximum size of one read: enough for what a fast broker sends between two reads.

Measured: reads of several MiB are slower, as new memory pages cost more than calls.
"""

_GATHER_TIME = 0.03
"""Seconds for which `receive` gathers."""

_MAX_BUFFERS = min(os.sysconf("SC_IOV_MAX") if "SC_IOV_MAX" in os.sysconf_names else 16, 1024)

MAX_ANSWERS = 1024 * 1024
"""Limit for answers to a peer that asks and never reads."""

MAX_COMMANDS = 64 * 1024 * 1024
"""Limit for requests and other commands that wait for a peer that accepts no data."""
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 6), ("TCP_KEEPCNT", 10))
_IN_PROGRESS = (0, errno.EINPROGRESS, errno.EWOULDBLOCK)

Received: TypeAlias = "bytes | memoryview"
"""Bytes, or a view of those that the next read may change."""

Resolved: TypeAlias = "tuple[int, tuple[object, ...]]"


StreamSocket: TypeAlias = "socket.socket | TlsSocket"
"""A non-blocking socket, plain or TLS: instead of waiting it raises BlockingIOError."""


class Transport:
    """A connected, non-blocking stream socket.

    One thread may receive while another sends. Call `close` when neither does; `shutdown` may be
    called at any time, and wakes both.
    """

    def __init__(self, sock: StreamSocket, peer: str) -> None:
        self._socket = sock
        self.peer = peer
        # Whether the last read may have left something, which the next one gets without waiting.
        self._full = True
        self._wakes, self._woken = os.pipe()
        os.set_blocking(self._wakes, False)
        os.set_blocking(self._woken, False)

    @classmethod
    def connect(
        cls,
        address: str,
        timeout: float,
        *,
        tls: ssl.SSLContext | None = None,
        proxy: str | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Transport:
        """Connect to ``host:port``, trying each address of the name, with TLS if given.

        With `proxy`, the socket connects there, and TLS's SNI names the host. Raises ConnectError
        that names the address, within `timeout` seconds or soon after `cancelled` returns true;
        TlsError if the TLS handshake fails.
        """
        deadline = Deadline(timeout)
        host, _ = split_host_port(address)
        targets = resolve(proxy or address, deadline)
        reasons: list[str] = []
        last: OSError | None = None
        for number, (family, target) in enumerate(targets):
            # Each address gets a share of the time, so that a silent one does not use it all.
            share = Deadline(deadline.remaining() / (len(targets) - number))
            try:
                sock = _wrap(_open(family, target, share, cancelled), host, tls, share, cancelled)
            except OSError as error:
                reasons.append(f"{target[0]}: {error.strerror or error}")
                # One that answers, if only to refuse, says more than those that do not.
                if last is None or error.errno != errno.ETIMEDOUT:
                    last = error
                continue
            except TlsError as error:
                raise error.with_context(broker=address) from None
            return cls(sock, address)
        through = "" if proxy is None else f" through the proxy {proxy}"
        is_silent = last is not None and last.errno == errno.ETIMEDOUT
        raise (ConnectTimeout if is_silent else ConnectError)(
            f"cannot connect to {address}{through}: {'; '.join(reasons)}",
            "Check service.url, and that the broker runs and is reachable from this machine."
            if proxy is None
            else "Check pulsar.client.proxyServiceUrl, and that the proxy knows this broker.",
            broker=address,
        ) from last

    def receive(
        self, timeout: float, *, or_writable: bool = False, gather: int = 0
    ) -> Received | None:
        """Return the next bytes, ``b""`` at the end of the stream, None after `timeout`.

        Also returns None after `wake`, after bytes for TLS itself, and with `or_writable` once the
        socket accepts data again. First waits a moment for `gather` bytes, which should fit into
        the socket's buffer: a broker that sends little by little would cause thousands of small
        reads a second. Raises ConnectionLost if the connection breaks.
        """
        events = select.POLLIN | (select.POLLOUT if or_writable else 0)
        # More may have come than was waited for.
        size = max(READ_SIZE, gather * 4 // 3)
        if gather and self._gather(gather, events):
            return self._read(size)
        if (self._full or gather) and not or_writable and (data := self._read(size)) is not None:
            return data
        ready, _ = self._wait(events, timeout)
        return self._read(size) if ready & ~select.POLLOUT else None

    def _gather(self, size: int, events: int) -> bool:
        """Wait until so many bytes have come, or the stream ends, or another event comes.

        Returns whether that was `wake`.
        """
        woken = False
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
            _, woken = self._wait(events, _GATHER_TIME)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        return woken

    def _wait(self, events: int, timeout: float) -> tuple[int, bool]:
        """Return the events of the socket that came, and whether `wake` ended the wait."""
        ready = poll({self._socket.fileno(): events, self._wakes: select.POLLIN}, timeout)
        woken = self._wakes in ready
        if woken:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakes, 4096)
        return ready.get(self._socket.fileno(), 0), woken

    def wake(self) -> None:
        """Wake the receiving thread, now or at its next wait."""
        # A full pipe wakes it too.
        with contextlib.suppress(BlockingIOError):
            os.write(self._woken, b"\0")

    def wait_writable(self, timeout: float) -> bool:
        """Wait until the socket accepts data or fails; return false after `timeout`."""
        return bool(poll({self._socket.fileno(): select.POLLOUT}, timeout))

    def send_some(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """Write what the socket accepts and return the rest; raises ConnectionLost.

        If it accepts nothing, the rest starts with the same first buffer.
        """
        rest = list(buffers)
        first = 0
        while first < len(rest):
            try:
                sent = self._socket.sendmsg(rest[first : first + _MAX_BUFFERS])
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                raise self._lost(error) from None
            while first < len(rest) and sent >= (size := len(rest[first])):
                sent -= size
                first += 1
            if sent:
                rest[first] = memoryview(rest[first]).cast("B")[sent:]
        return rest[first:]

    def check_refusal(self) -> None:
        """Raise TlsError if the peer closed the connection because it rejects our certificate.

        With TLS 1.3 a peer may do so after the handshake, while we send. For the receiving
        thread, when the connection is broken.
        """
        if isinstance(self._socket, TlsSocket):
            with contextlib.suppress(OSError):
                while self._socket.recv(READ_SIZE):
                    pass

    def shutdown(self) -> None:
        """End the connection; threads that wait on it return at once. Never raises."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        """Close the socket. No other thread may use the transport any more."""
        self._socket.close()
        wakes, woken, self._wakes, self._woken = self._wakes, self._woken, -1, -1
        if wakes >= 0:
            os.close(wakes)
            os.close(woken)

    def _read(self, size: int) -> Received | None:
        data = None
        try:
            data = self._socket.recv(size)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            raise self._lost(error) from None
        # With TLS the data's size does not tell, nor does the socket that the stream has ended.
        is_tls = isinstance(self._socket, TlsSocket)
        self._full = data is not None and (is_tls or len(data) >= size)
        return data

    def _lost(self, error: OSError) -> ConnectionLost:
        return ConnectionLost(
            f"the connection to {self.peer} broke: {error.strerror or error}", broker=self.peer
        )


class WriteQueue:
    """A connection's queue of outgoing buffers, and the turns of the threads that write it.

    `put` is called in wire order, under the connection's own mutex. The thread whose turn it is
    writes what all have queued. Threads that send payloads wait, so a slow broker slows them down.
    Threads that send commands don't wait. The receive thread never waits: it must answer PINGs,
    and read what the broker may need to go on; it also writes what the others had to leave. A
    peer that accepts no data for `patience` seconds is given up.
    """

    def __init__(self, broker: str, patience: float) -> None:
        self._broker = broker
        self._patience = patience
        # The queue is extended and swapped atomically; _turn orders the writing.
        self._queue: list[Buffer] = []
        self._queue_lock = threading.Lock()
        self._put = 0
        self._answers = _Tally()
        self._commands = _Tally()
        self._fault: ConnectionLost | None = None
        self._turn = threading.Lock()
        # The following are guarded by _turn.
        self._transport: Transport | None = None
        self._unsent: list[Buffer] = []
        self._written = 0
        self.stuck = False
        """Whether data waits that only the receive thread will write."""
        self._no_progress_since: float | None = None

    def open(self, transport: Transport) -> None:
        """Start writing to a transport."""
        with self._turn:
            self._transport = transport

    def put(self, buffers: Sequence[Buffer]) -> None:
        """Queue payloads; their senders limit them."""
        with self._queue_lock:
            self._add(buffers)

    def put_commands(self, buffers: Sequence[Buffer]) -> None:
        """Queue commands; if far too many wait already, the next flush raises ConnectionLost."""
        self._put_bounded(buffers, self._commands, MAX_COMMANDS, "takes no data")

    def put_answers(self, buffers: Sequence[Buffer]) -> None:
        """Queue answers to the peer; too many unread ones are an error, as in `put_commands`."""
        self._put_bounded(
            buffers, self._answers, MAX_ANSWERS, "sends requests and takes no answers"
        )

    def _put_bounded(
        self, buffers: Sequence[Buffer], tally: _Tally, limit: int, fault: str
    ) -> None:
        with self._queue_lock:
            size = self._add(buffers)
            waiting = tally.add(size, self._put, self._written) if size else 0
        if waiting > limit:
            self._fault = ConnectionLost(f"the broker {fault}", broker=self._broker)

    def _check(self) -> None:
        if self._fault is not None:
            raise self._fault

    def _add(self, buffers: Sequence[Buffer]) -> int:
        self._queue.extend(buffers)
        size = sum(map(len, buffers))
        self._put += size
        return size

    def flush(self, deadline: Deadline) -> None:
        """Write the whole queue, or wait until other threads have, or until the deadline.

        The rest stays queued, and is written once the broker accepts it. Raises OperationTimeout
        if the broker accepts no data at all for too long, and ConnectionLost; after either, the
        stream may end within a frame.
        """
        self._check()
        # A thread that ends its turn looks again, because others leave when they find a turn taken.
        while self._queue or self._unsent:
            if not self._turn.acquire(timeout=min(deadline.remaining(), threading.TIMEOUT_MAX)):
                return
            try:
                while self._write() and not deadline.expired():
                    transport = self._open_transport()
                    transport.wait_writable(min(deadline.remaining(), self._until_given_up()))
                if self._unsent:
                    self._leave(wake=True)
                    return
            finally:
                self._turn.release()

    def flush_now(self, *, wake: bool = True) -> None:
        """Write what the socket accepts now, and leave the rest to the receive thread.

        Wakes that thread, unless it is the caller. Raises as `flush`.
        """
        self._check()
        while (self._queue or self._unsent) and self._turn.acquire(blocking=False):
            try:
                if self._write():
                    self._leave(wake)
                    return
            finally:
                self._turn.release()

    def _leave(self, wake: bool) -> None:
        # Set before the turn ends: the woken thread must not find the turn taken.
        self.stuck = True
        if wake:
            self._open_transport().wake()

    def close(self) -> None:
        """Close the transport, which was shut down, once nobody writes to it."""
        with self._turn:
            transport, self._transport = self._transport, None
            self._unsent = []
            if transport is not None:
                transport.close()
        with self._queue_lock:
            self._queue = []

    def _write(self) -> bool:
        """Write what the socket accepts; return whether some is left. Call it in one's turn."""
        transport = self._open_transport()
        self.stuck = False
        while True:
            with self._queue_lock:
                data, self._queue = self._unsent + self._queue, []
                size = self._put - self._written
            if not data:
                return False
            self._unsent = data
            rest = transport.send_some(data)
            self._written += size - sum(map(len, rest))
            self._unsent = rest
            if not rest:
                self._no_progress_since = None
                continue
            if len(rest) < len(data) or rest[0] is not data[0] or self._no_progress_since is None:
                self._no_progress_since = time.monotonic()
            elif self._until_given_up() <= 0:
                raise OperationTimeout(
                    f"the broker took no data for {self._patience:g} s", broker=self._broker
                )
            return True

    def _until_given_up(self) -> float:
        since = self._no_progress_since
        return self._patience - (0.0 if since is None else time.monotonic() - since)

    def _open_transport(self) -> Transport:
        if self._transport is None:
            raise ConnectionLost("the connection has ended", broker=self._broker)
        return self._transport


class _Tally:
    """Counts the unwritten bytes of one kind, by where they end in the stream."""

    __slots__ = ("_ends", "_waiting")

    def __init__(self) -> None:
        self._ends: deque[tuple[int, int]] = deque()
        self._waiting = 0

    def add(self, size: int, end: int, written: int) -> int:
        """Add `size` bytes that end at `end`; return how many wait if `written` are gone."""
        self._ends.append((end, size))
        self._waiting += size
        while self._ends and self._ends[0][0] <= written:
            self._waiting -= self._ends.popleft()[1]
        return self._waiting


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
        wait_connecting(sock.fileno(), select.POLLOUT, deadline, cancelled, "answer")
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
    except BaseException:
        sock.close()
        raise
    return sock


def _wrap(
    sock: socket.socket,
    host: str,
    tls: ssl.SSLContext | None,
    deadline: Deadline,
    cancelled: Callable[[], bool],
) -> StreamSocket:
    """Make a TLS socket of a connected one, if wanted; raises TlsError and OSError."""
    if tls is None:
        return sock
    try:
        wrapped = TlsSocket(sock, tls, host)
        wrapped.shake_hands(deadline, cancelled)
    except ValueError as error:
        sock.close()
        raise TlsError(f"{host!r} is not a host name that TLS takes ({error})") from None
    except BaseException:
        sock.close()
        raise
    return wrapped


def resolve(address: str, deadline: Deadline) -> list[Resolved]:
    """Return family and socket address of each address of ``host:port``; raises ConnectError."""
    host, port = split_host_port(address)
    try:
        return _lookup(host, port, socket.AI_NUMERICHOST)
    except OSError:
        pass
    why: object
    started = time.monotonic()
    try:
        # The system's resolver has no timeout.
        lookup = partial(_lookup, host, port, 0)
        return call_apart(lookup, deadline.remaining(), f"pulsar-resolve-{host}")
    except FutureTimeout:
        why = f"no answer within {time.monotonic() - started:.1f} s"
    except OSError as error:
        why = error.strerror or error
    raise ConnectError(
        f"the name of {address} cannot be resolved: {why}",
        "Check service.url, and the name service of this machine.",
        broker=address,
    )


def _lookup(host: str, port: int, flags: int) -> list[Resolved]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:
        raise OSError(errno.EINVAL, f"not a host name ({error})") from None
    return list(dict.fromkeys((int(entry[0]), entry[4]) for entry in found))
