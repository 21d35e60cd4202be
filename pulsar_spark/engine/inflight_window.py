"""The in-flight window: what a producer has sent and the broker has not acknowledged yet."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from typing import Any

from pulsar_spark.engine.retry import Deadline
from pulsar_spark.engine.timers import BlockingTimer, Timers
from pulsar_spark.errors import ClosedError, OperationTimeout, PulsarError
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


NO_TIMEOUT = 86_400.0
"""Seconds that stand for a send timeout of 0, which sets no limit of its own."""

# What the end leaves undone is told to callbacks, which may take so many seconds.
_LAST_CALLBACKS = 2.0


class InflightWindow:
    """Holds pending sends until their receipts come, their time is up, or `end` is called.

    At most `max_messages` (0: any number) and the budget's bytes are under way; a single entry
    that is larger is let through alone. A send without a receipt after `timeout` seconds is
    given to `give_up` as an OperationTimeout, which ends the window by way of its producer.

    `changed` is the lock of the window and of its producer's state. `describe` returns where
    the producer stands, as keyword arguments of errors, and `trouble` its last one.
    """

    def __init__(
        self,
        budget: MemoryBudget,
        timers: Timers,
        *,
        max_messages: int,
        timeout: float,
        describe: Callable[[], dict[str, Any]],
        trouble: Callable[[], PulsarError | None],
        give_up: Callable[[PulsarError], None],
    ) -> None:
        self.timeout = timeout or NO_TIMEOUT
        self._budget = budget
        self._timers = timers
        self._max_messages = max_messages
        self._describe = describe
        self._trouble = trouble
        self._give_up = give_up
        self.changed = threading.Condition()
        # The following are guarded by `changed`.
        self.pending = PendingQueue()
        self.settled = 0
        """Sends that were taken out, and whose callbacks have returned."""
        self.acknowledged = 0
        self.sent_messages = 0
        self.sent_bytes = 0
        self._end: PulsarError | None = None
        self._sweep: BlockingTimer | None = None

    # --- for senders --------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._end is not None

    def check(self) -> None:
        """Raise what ended the window."""
        if self._end is not None:
            raise self._end.with_context()

    def reserve(self, send: PendingSend) -> None:
        """Wait until there is room for a send, at most for the timeout.

        Raises OperationTimeout, or what ended the window. `append` or `release` follows. One
        thread at a time.
        """
        deadline = Deadline(self.timeout)
        while True:
            with self.changed:
                self.check()
                if self._has_room(send):
                    break
                if self._wait(deadline):
                    continue
            self.expire()
            if deadline.expired():
                raise self._no_room()
        if not self._budget.reserve(send.size, deadline.at, lambda: self.ended):
            self.check()
            raise self._no_room()

    def try_reserve(self, send: PendingSend, group: Sequence[PendingSend]) -> bool:
        """As `reserve`, without waiting: False if there is no room.

        `group` are sends that have room already and are not appended yet.
        """
        self.check()
        if self._max_messages and (group or len(self.pending)):
            messages = self.pending.messages + sum(before.num_messages for before in group)
            if messages + send.num_messages > self._max_messages:
                return False
        return self._budget.reserve(send.size, 0.0, lambda: True)

    def _has_room(self, send: PendingSend) -> bool:
        if not self._max_messages or not len(self.pending):
            return True
        return self.pending.messages + send.num_messages <= self._max_messages

    def release(self, send: PendingSend) -> None:
        """Give the room of a send back."""
        self._budget.release(send.size)

    def append(self, send: PendingSend) -> None:
        """Add a send for which there is room; its time begins. `changed` is held."""
        send.deadline = time.monotonic() + self.timeout
        self.pending.append(send)
        self.sent_messages += send.num_messages
        self.sent_bytes += send.size
        if self._sweep is None:
            self._sweep = self._look_again(self.timeout)

    def wait_until_acknowledged(self, deadline: Deadline) -> None:
        """Return when all that was appended before is acknowledged, and callbacks have run.

        Raises what ended the window, or OperationTimeout at the deadline.
        """
        with self.changed:
            target = self.pending.appended
        while True:
            with self.changed:
                if self._end is not None:
                    self.changed.wait_for(lambda: self.settled >= target, _LAST_CALLBACKS)
                    self.check()
                if self.settled >= target:
                    return
                if self._wait(deadline):
                    continue
            self.expire()
            if deadline.expired():
                with self.changed:
                    raise self._no_receipt(deadline.seconds or 0.0)

    def _wait(self, deadline: Deadline) -> bool:
        """Wait for a change. Return False if there is no time to wait."""
        left = min(self._time_left(), deadline.remaining())
        if left > 0:
            self.changed.wait(min(left, threading.TIMEOUT_MAX))
        return left > 0

    # --- the end of one send, and of all ------------------------------------------------------

    def pop(self) -> PendingSend:
        """Take out the oldest send, which is acknowledged; `settle` follows. `changed` is held."""
        send = self.pending.pop()
        self.acknowledged += send.num_messages
        return send

    def settle(self, send: PendingSend) -> None:
        """Give back the room of a send that was taken out, after its callback has returned."""
        self._budget.release(send.size)
        with self.changed:
            self.settled += 1
            self.changed.notify_all()

    def end(self, error: PulsarError) -> list[PendingSend] | None:
        """Let everyone who waits or comes have `error`; return the sends that were under way.

        None if the window has ended before. `changed` is held. `wake` follows without it.
        """
        if self._end is not None:
            return None
        self._end = error
        if self._sweep is not None:
            self._sweep.cancel()
        self.changed.notify_all()
        return self.pending.clear()

    def wake(self) -> None:
        """Let a sender that waits for memory see that the window has ended."""
        self._budget.wake()

    def expire(self) -> None:
        """Give up if the oldest send had no receipt in time; else look again when it is due."""
        with self.changed:
            sweep, self._sweep = self._sweep, None
            if sweep is not None:
                sweep.cancel()
            if self._end is not None or not len(self.pending):
                return
            left = self._time_left()
            if left > 0:
                self._sweep = self._look_again(left)
                return
            error = self._no_receipt(self.timeout)
        self._give_up(error)

    def _time_left(self) -> float:
        oldest = self.pending.oldest
        return float("inf") if oldest is None else oldest.deadline - time.monotonic()

    def _look_again(self, delay: float) -> BlockingTimer | None:
        try:
            return self._timers.call_later(delay, self.expire)
        except ClosedError:
            # The client was closed; the end of its connections ends the producer.
            return None

    # --- errors -------------------------------------------------------------------------------

    def _no_receipt(self, seconds: float) -> OperationTimeout:
        oldest = self.pending.oldest
        first = "" if oldest is None else f", from sequence id {oldest.sequence_id}"
        return self._late(
            f"{self.pending.messages} messages ({self.pending.bytes} bytes{first}) were not "
            f"acknowledged within {seconds:g} s, {self.acknowledged} were before",
            "They may or may not be stored. Check the broker, or raise sendTimeoutMs.",
        )

    def _no_room(self) -> OperationTimeout:
        with self.changed:
            return self._late(
                f"there was no room for another message within {self.timeout:g} s: "
                f"{self.pending.messages} messages ({self.pending.bytes} bytes) of this producer "
                f"and {self._budget.used} bytes of the client are not acknowledged",
                "Check the broker, or raise sendTimeoutMs or memoryLimitBytes.",
            )

    def _late(self, what: str, remedy: str) -> OperationTimeout:
        trouble = self._trouble()
        if trouble is not None:
            what += f"; the last trouble was: {trouble.what}"
        error = OperationTimeout(what, remedy, **self._describe())
        error.__cause__ = trouble
        return error
