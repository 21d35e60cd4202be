"""What a connection still has to write, and whose turn it is to write it."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from pulsar_spark.engine.backoff import Deadline
from pulsar_spark.engine.transport import Transport
from pulsar_spark.errors import ConnectionLost, OperationTimeout
from pulsar_spark.protocol.frames import Buffer

# A peer that asks and never reads cannot make us keep more answers than this.
_MAX_UNSENT = 1024 * 1024


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
