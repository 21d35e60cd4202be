"""One connection's bytes: reading, bounded writing, and faults."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable

_NO_LINGER = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)

# Delivery stops at the first mark and continues below a quarter of it. At the second, no more
# commands are read, because answers would pile up without limit.
WRITE_HIGH_WATER = 4 * 1024 * 1024
WRITE_LIMIT = 32 * 1024 * 1024
_CLOSE_TIMEOUT = 2.0


class Wire(asyncio.Protocol):
    """A connection's transport. Everything happens on the broker's thread.

    `writable` says whether to deliver more; `muted` that nothing more is sent.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.writable = True
        self.muted = False
        self.open = False
        self._transport: asyncio.Transport | None = None
        self._timers: set[asyncio.TimerHandle] = set()
        self._reading_paused = False
        self._held_output: deque[bytes] = deque()
        self._held_bytes = 0
        self._output_holds = 0

    # --- asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.open = True
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER, low=WRITE_HIGH_WATER // 4)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self.open = False
        self.writable = False
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._held_output.clear()
        self._held_bytes = 0

    def eof_received(self) -> bool:
        """Close too: a client that closed its side has gone."""
        return self.muted

    def pause_writing(self) -> None:
        """Stop delivering: the client reads too slowly."""
        self.writable = False

    def resume_writing(self) -> None:
        """Deliver again."""
        self.writable = self.open

    # --- writing ---

    def transmit(self, data: bytes) -> None:
        """Write bytes after held-back ones."""
        if not self._output_holds:
            self.write(data)
        elif self._held_bytes < WRITE_LIMIT:
            self._held_output.append(data)
            self._held_bytes += len(data)
        else:
            self.disconnect()

    def write(self, data: bytes) -> None:
        """Write bytes now."""
        if self.open and not self.muted and self._transport is not None:
            self._transport.write(data)

    def hold_output(self, seconds: float) -> None:
        """Delay frames, in order."""
        self._output_holds += 1
        self.later(seconds, self._release_output)

    def _release_output(self) -> None:
        self._output_holds -= 1
        while self._held_output and not self._output_holds:
            data = self._held_output.popleft()
            self._held_bytes -= len(data)
            self.write(data)

    @property
    def output_held(self) -> bool:
        """Whether frames wait."""
        return self._output_holds > 0

    # --- reading ---

    def pause(self, pause: bool) -> None:
        """Stop reading from the socket, or continue."""
        if self._transport is None or pause == self._reading_paused or not self.open:
            return
        self._reading_paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    @property
    def address(self) -> str:
        """The client's address, as brokers show it; empty without a connection."""
        peer = None if self._transport is None else self._transport.get_extra_info("peername")
        return f"/{peer[0]}:{peer[1]}" if peer else ""

    @property
    def buffered(self) -> int:
        """Bytes that wait for the client to read, or are held back."""
        if self._transport is None:
            return 0
        return self._transport.get_write_buffer_size() + self._held_bytes

    @property
    def backed_up(self) -> bool:
        """Whether too much output waits to read more."""
        return self.buffered > WRITE_LIMIT

    # --- closing ---

    def disconnect(self, *, reset: bool = False) -> None:
        """Close the connection, normally or by a TCP reset."""
        if self._transport is None or not self.open:
            return
        self.open = False
        self.writable = False
        if reset:
            sock = self._transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self._transport.abort()
        else:
            self._transport.close()
            # A client that does not read the rest must not keep its names any longer.
            self.loop.call_later(_CLOSE_TIMEOUT, self._transport.abort)

    def abort(self) -> None:
        """Close the connection at once, without writing the rest."""
        if self._transport is not None:
            self._transport.abort()

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function after some time, if the connection is still open."""
        if not self.open:
            return

        def call() -> None:
            self._timers.discard(timer)
            if self.open:
                function()

        timer = self.loop.call_later(seconds, call)
        self._timers.add(timer)
