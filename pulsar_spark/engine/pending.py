"""What a producer has sent and the broker has not acknowledged yet, and the bounds of it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum, auto

from pulsar_spark.errors import PulsarError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import Buffer
from pulsar_spark.protocol.message_id import MessageId

SendCallback = Callable[[PulsarError | None, MessageId | None], None]
"""Called once per entry: with an error, or with the id under which the broker stored it."""


class PendingSend:
    """One SEND that waits for its receipt.

    It keeps the command and the bytes so that it can be sent again. `deadline` is a time of
    the monotonic clock, `size` the bytes of metadata and payload. Of a message in chunks only
    the last one has the callback, counts as a message, and completes it.
    """

    __slots__ = (
        "callback",
        "chunk",
        "command",
        "deadline",
        "highest_sequence_id",
        "metadata",
        "num_messages",
        "payload",
        "sequence_id",
        "size",
    )

    def __init__(
        self,
        command: pb.BaseCommand,
        metadata: bytes,
        payload: Buffer,
        *,
        highest_sequence_id: int,
        num_messages: int = 1,
        callback: SendCallback | None = None,
        chunk: int | None = None,
    ) -> None:
        self.command = command
        self.metadata = metadata
        self.payload = payload
        self.sequence_id: int = command.send.sequence_id
        self.highest_sequence_id = highest_sequence_id
        self.num_messages = num_messages
        self.deadline = float("inf")
        self.callback = callback
        self.chunk = chunk
        self.size = len(metadata) + len(payload)


class Verdict(Enum):
    """What a receipt means for the queue it is held against."""

    OLDEST = auto()
    BEHIND = auto()
    AHEAD = auto()


class PendingQueue:
    """Sends in the order in which receipts come. Not thread-safe: its producer locks."""

    def __init__(self) -> None:
        self._sends: deque[PendingSend] = deque()
        self.messages = 0
        self.bytes = 0
        self.appended = 0
        """Sends that were ever appended."""

    def __len__(self) -> int:
        return len(self._sends)

    def __iter__(self) -> Iterator[PendingSend]:
        return iter(self._sends)

    @property
    def oldest(self) -> PendingSend | None:
        """The send whose receipt comes next."""
        return self._sends[0] if self._sends else None

    def append(self, send: PendingSend) -> None:
        """Add the newest send."""
        self._sends.append(send)
        self.messages += send.num_messages
        self.bytes += send.size
        self.appended += 1

    def judge(self, sequence_id: int) -> Verdict:
        """Say which send a receipt or an error for `sequence_id` is about.

        Brokers name a batch by its lowest or its highest id. An id behind the oldest send is of
        one that was completed before; one ahead of it means that something was lost.
        """
        oldest = self.oldest
        if oldest is None or sequence_id < oldest.sequence_id:
            return Verdict.BEHIND
        if sequence_id > oldest.highest_sequence_id:
            return Verdict.AHEAD
        return Verdict.OLDEST

    def pop(self) -> PendingSend:
        """Take out the oldest send."""
        send = self._sends.popleft()
        self.messages -= send.num_messages
        self.bytes -= send.size
        return send

    def clear(self) -> list[PendingSend]:
        """Take out everything, oldest first."""
        return [self.pop() for _ in range(len(self._sends))]


class MemoryBudget:
    """Bytes that unacknowledged messages may hold, shared by the producers of a client.

    A message larger than the whole budget is let through while nothing else is pending.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._freed = threading.Condition()
        self._used = 0

    @property
    def used(self) -> int:
        """Bytes that are reserved now."""
        with self._freed:
            return self._used

    def reserve(self, size: int, deadline: float, given_up: Callable[[], bool]) -> bool:
        """Wait for room for `size` bytes, at most until `deadline` (monotonic clock).

        Returns False if there was none, or `given_up()` became true meanwhile; whoever makes
        it true calls `wake`.
        """
        with self._freed:
            while self._used and self._used + size > self.limit:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or given_up():
                    return False
                self._freed.wait(remaining)
            self._used += size
            return True

    def release(self, size: int) -> None:
        """Give back reserved bytes."""
        with self._freed:
            self._used -= size
            self._freed.notify_all()

    def wake(self) -> None:
        """Let everyone who waits look again whether to give up."""
        with self._freed:
            self._freed.notify_all()
