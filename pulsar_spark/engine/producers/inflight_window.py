"""The in-flight window: messages that were sent and that the broker has not acknowledged yet.

Messages sent together stay together: a column is one block, from which receipts remove entries in
order, many at a time, and call the callbacks of their messages.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, auto
from itertools import islice, repeat
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

from pulsar_spark.engine.deadline import Deadline, at_a_time
from pulsar_spark.engine.memory import ProducerBudget
from pulsar_spark.engine.timers import Timer, Timers
from pulsar_spark.errors import (
    ClosedError,
    ConnectionLost,
    MessageTooLarge,
    OperationTimeout,
    PulsarError,
)
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.protocol.outgoing_messages import OutgoingMessages

logger = get_logger(__name__)

MessageCallback = Callable[[PulsarError | None, MessageIdAdv | None], None]
"""Called once per message: with an error, or with its id."""

Runner = Callable[[Callable[[], object], int], object]
"""Takes a function to call later, and the number of callbacks that it calls."""

MessageIds = Callable[[], Iterable[MessageIdAdv | None]]

NO_TIMEOUT = 86_400.0
"""Seconds used for a send timeout of 0, which means no limit."""

# How long the callbacks of unsent messages may take after the end, in seconds.
_LAST_CALLBACKS = 2.0

# A frame begins with its size, and its command's.
_U32S = Struct(">II")
# What precedes an entry's metadata: a magic number, a checksum, and its size. The limit for a
# topic's entries includes it, the one for a connection's messages does not.
_HEAD = 10

_HELD_PER_BLOCK = 400
_HELD_PER_CALLBACK = 350


# --- callbacks ----------------------------------------------------------------------------


def log_failure(error: PulsarError | None, message_id: MessageIdAdv | None) -> None:
    """The callback of a message whose result nobody needs."""
    if error is not None:
        logger.warning("a message without a callback was not sent: %s", error)


class DeferredCallback:
    """A MessageCallback that runs elsewhere: `run` is given a function to call there.

    Messages that are acknowledged together share one such call.
    """

    __slots__ = ("callback", "run")

    def __init__(self, callback: MessageCallback, run: Runner) -> None:
        self.callback = callback
        self.run = run

    def __call__(self, error: PulsarError | None, message_id: MessageIdAdv | None) -> None:
        """Schedule the callback."""
        self.run(lambda: self.callback(error, message_id), 1)


def tell_failed(callbacks: Sequence[MessageCallback | None], error: PulsarError) -> None:
    """Call callbacks with an error."""
    _tell(callbacks, error, lambda: repeat(None))


def tell_stored(
    callbacks: Sequence[MessageCallback | None],
    per_entry: int,
    receipts: array[int],
    partition: int,
) -> None:
    """Call the callbacks of stored messages with their ids.

    Each entry has `per_entry` messages, the last one the rest. `receipts` has four numbers per
    entry; the last two are its ledger and entry id.
    """

    def ids() -> Iterator[MessageIdAdv]:
        left = len(callbacks)
        for ledger, entry in zip(receipts[2::4], receipts[3::4], strict=True):
            count = min(per_entry, left)
            left -= count
            # Duplicates have no id, and a message alone has no batch index.
            if count == 1 or ledger < 0:
                yield from repeat(MessageIdAdv(ledger, entry, partition), count)
            else:
                for index in range(count):
                    yield MessageIdAdv(ledger, entry, partition, index, count)

    _tell(callbacks, None, ids)


def _tell(
    callbacks: Sequence[MessageCallback | None], error: PulsarError | None, ids: MessageIds
) -> None:
    now: list[MessageCallback | None] = []
    later: list[MessageCallback | None] = []
    run: Runner | None = None
    waiting = 0
    for callback in callbacks:
        if isinstance(callback, DeferredCallback):
            run = callback.run
            waiting += 1
            later.append(callback.callback)
            now.append(None)
        else:
            later.append(None)
            now.append(None if callback is log_failure and error is None else callback)
    if run is not None:
        run(lambda: _call_each(later, error, ids()), waiting)
    if waiting < len(callbacks):
        _call_each(now, error, ids())


def _call_each(
    callbacks: Sequence[MessageCallback | None],
    error: PulsarError | None,
    ids: Iterable[MessageIdAdv | None],
) -> None:
    for callback, message_id in zip(callbacks, ids, strict=False):
        if callback is None:
            continue
        try:
            callback(error, message_id)
        except Exception:
            logger.exception("the callback of a message failed")


# --- what is pending ----------------------------------------------------------------------


class ProducerCounts(NamedTuple):
    """A producer's counters. `duplicates` are messages that the broker already had."""

    messages: int = 0
    bytes: int = 0
    entries: int = 0
    acknowledged: int = 0
    duplicates: int = 0
    reconnects: int = 0


@dataclass(slots=True, eq=False)
class PendingSends:
    """SENDs that wait for receipts: one entry, or many entries of a column.

    `buffers` are their frames, kept for resending. With `ends`, frame i ends at ``ends[i]`` of the
    only buffer, and each entry but the last has `per_entry` messages. Sequence ids and counts are
    those of the unacknowledged entries. `length` is the size of the frames, `size` the memory that
    the block needs; `deadline` is on the monotonic clock. In a chunked message only the last chunk
    has the callback and counts as a message. `resent` blocks were sent on an earlier connection
    too. `callbacks` are those of the messages that are not acknowledged, `callback` is that of the
    whole block. `encrypted` are the messages of an encrypted batch. A broker did not take the block
    if it is `refused`. A block that was cut off another one `is_part`, and does not count as one.
    """

    buffers: list[Buffer]
    sequence_id: int
    highest_sequence_id: int
    num_messages: int = 1
    _: KW_ONLY
    ends: Sequence[int] = ()
    per_entry: int = 0
    callback: MessageCallback | None = None
    callbacks: Sequence[MessageCallback | None] = ()
    chunk: int | None = None
    encrypted: OutgoingMessages | None = None
    length: int = field(init=False)
    size: int = field(init=False)
    deadline: float = math.inf
    done: int = 0
    is_part: bool = False
    refused: PulsarError | None = None
    resent: bool = False

    def __post_init__(self) -> None:
        self.length = sum(map(len, self.buffers))
        self.size = _HELD_PER_BLOCK + sum(map(_held, self.buffers))
        if self.encrypted is not None:
            self.size += self.encrypted.size(0, len(self.encrypted))
        if self.ends:
            self.size += sys.getsizeof(self.ends)
        if self.callbacks or self.callback not in (None, log_failure):
            self.size += _HELD_PER_CALLBACK * max(self.num_messages, 1)

    @property
    def entries(self) -> int:
        """The number of unacknowledged entries."""
        return len(self.ends) - self.done if self.ends else 1

    @property
    def highest_of_next(self) -> int:
        """The highest sequence id of the entry that is acknowledged next."""
        return self.highest_of(1)

    def highest_of(self, entries: int) -> int:
        """Return the highest sequence id of the next `entries` entries."""
        if self.ends:
            return min(self.sequence_id + entries * self.per_entry - 1, self.highest_sequence_id)
        return self.highest_sequence_id

    def unacknowledged(self) -> list[Buffer]:
        """Return the frames to resend."""
        if not self.done:
            return self.buffers
        return [memoryview(self.buffers[0])[self.ends[self.done - 1] :]]

    def entry_sizes(self) -> list[int]:
        """Return the sizes that brokers limit, of the unacknowledged entries."""
        if not self.ends:
            return [self.length - _U32S.size - _U32S.unpack_from(self.buffers[0])[1]]
        starts = [0, *self.ends][self.done : -1]
        commands = (_U32S.unpack_from(self.buffers[0], start)[1] for start in starts)
        return [
            end - start - _U32S.size - command
            for start, end, command in zip(starts, self.ends[self.done :], commands, strict=True)
        ]

    def cut(self, entries: int) -> PendingSends:
        """Cut off the next entries, not all, as a block of their own; return it."""
        start = self.ends[self.done - 1] if self.done else 0
        ends = array("q", self.ends[self.done : self.done + entries])
        messages = entries * self.per_entry
        part = PendingSends(
            [memoryview(self.buffers[0])[start : ends[-1]]],
            self.sequence_id,
            self.sequence_id + messages - 1,
            messages,
            ends=array("q", (end - start for end in ends)),
            per_entry=self.per_entry,
            callback=self.callback,
            callbacks=self.take_callbacks(messages),
        )
        self.take(entries)
        self.length -= part.length
        # The memory is that of the whole block.
        part.size, part.is_part = 0, True
        part.deadline, part.resent = self.deadline, self.resent
        return part

    def matching(self, ids: array[int]) -> int:
        """Return how many receipts match the entries here in order, by their sequence ids."""
        if not self.ends:
            return int(self.sequence_id <= ids[0] <= self.highest_sequence_id)
        count = min(len(ids), self.entries)
        first, step = self.sequence_id, self.per_entry
        # Brokers identify a batch by its lowest or highest id.
        if ids[:count] == array("q", range(first, first + count * step, step)):
            return count
        return int(first <= ids[0] <= self.highest_of_next)

    def take(self, count: int) -> int:
        """Remove the next `count` entries, and return their number of messages."""
        if not self.ends or count == self.entries:
            messages, self.num_messages = self.num_messages, 0
            self.done += count
            return messages
        messages = count * self.per_entry
        self.done += count
        self.sequence_id += messages
        self.num_messages -= messages
        return messages

    def take_callbacks(self, messages: int) -> Sequence[MessageCallback | None]:
        """Take off the callbacks of the next messages."""
        taken, self.callbacks = self.callbacks[:messages], self.callbacks[messages:]
        return taken


def _held(buffer: Buffer) -> int:
    return len(buffer) if isinstance(buffer, memoryview) else sys.getsizeof(buffer)


class ReceiptVerdict(Enum):
    """How a receipt relates to the queue."""

    OLDEST = auto()
    BEHIND = auto()
    AHEAD = auto()


class Taken(NamedTuple):
    """Entries that receipts removed from the queue; `last` is their highest sequence id.

    `ends` says whether the block is complete; `callbacks` are those of the messages.
    """

    sends: PendingSends
    messages: int
    last: int
    ends: bool
    callbacks: Sequence[MessageCallback | None] = ()


Acknowledged: TypeAlias = "tuple[Taken, array[int], MessageIdAdv]"
"""What receipts removed, those receipts, and the id that the last one gives."""


class PendingQueue:
    """Blocks of sends in the order of their receipts. Not thread-safe: its producer locks.

    `on_left` is called whenever messages have left it.
    """

    def __init__(self, on_left: Callable[[], object] = lambda: None) -> None:
        self._on_left = on_left
        self._sends: deque[PendingSends] = deque()
        self.messages = 0
        self.bytes = 0
        self.entries = 0
        """Number of entries ever appended."""
        self.blocks = 0
        """Number of blocks ever appended."""

    def __len__(self) -> int:
        return len(self._sends)

    def __iter__(self) -> Iterator[PendingSends]:
        return iter(self._sends)

    @property
    def oldest(self) -> PendingSends | None:
        """The block that is acknowledged next."""
        return self._sends[0] if self._sends else None

    @property
    def next_is_chunk(self) -> bool:
        """Whether a chunk is acknowledged next."""
        return self.oldest is not None and self.oldest.chunk is not None

    def append(self, sends: PendingSends) -> None:
        """Append a block."""
        self._sends.append(sends)
        self.messages += sends.num_messages
        self.bytes += sends.length
        self.entries += sends.entries
        self.blocks += 1

    def cut(self, sends: PendingSends, entries: int) -> PendingSends:
        """Cut off the next entries of a block, not all; return the new block, now before it."""
        part = sends.cut(entries)
        self._sends.insert(self._sends.index(sends), part)
        return part

    def isolate(self, sequence_id: int) -> PendingSends | None:
        """Return the entry that a broker's error names as a block of its own, None without it."""
        for sends in self._sends:
            if sends.refused or not sends.sequence_id <= sequence_id <= sends.highest_sequence_id:
                continue
            if sends.ends and (before := (sequence_id - sends.sequence_id) // sends.per_entry):
                self.cut(sends, before)
            return sends if sends.entries == 1 else self.cut(sends, 1)
        return None

    def follower(self, sends: PendingSends) -> PendingSends | None:
        """Return the block behind this one."""
        at = self._sends.index(sends) + 1
        return self._sends[at] if at < len(self._sends) else None

    def replace(
        self, sends: PendingSends, others: Sequence[PendingSends], before: PendingSends | None
    ) -> None:
        """Replace a block by others with the same messages, before another one or at the end."""
        self._sends.remove(sends)
        at = len(self._sends) if before is None else self._sends.index(before)
        for number, other in enumerate(others, at):
            self._sends.insert(number, other)
            self.bytes += other.length
        self.bytes -= sends.length
        self.entries += len(others) - 1

    def judge(self, sequence_id: int) -> ReceiptVerdict:
        """Find out which entry a receipt or an error for `sequence_id` is about.

        Brokers identify a batch by its lowest or highest id. A lower id than the oldest entry's
        belongs to a completed entry; a higher one means that something was lost.
        """
        oldest = self.oldest
        if oldest is None or sequence_id < oldest.sequence_id:
            return ReceiptVerdict.BEHIND
        if sequence_id > oldest.highest_of_next:
            return ReceiptVerdict.AHEAD
        return ReceiptVerdict.OLDEST

    def holds(self, sequence_id: int) -> bool:
        """Whether an entry with a sequence id is pending; those that users give need not grow."""
        return any(
            sends.sequence_id <= sequence_id <= sends.highest_sequence_id for sends in self._sends
        )

    def follows_oldest(self, sequence_id: int) -> bool:
        """Whether a receipt that is ahead is for the entry after the oldest."""
        first, *rest = islice(self._sends, 2)
        if first.entries > 1:
            highest = first.highest_of(2)
        else:
            highest = rest[0].highest_of_next if rest else -1
        return sequence_id <= highest

    def take(self, ids: array[int]) -> tuple[int, Taken | None]:
        """Remove what receipts (at least one) acknowledge in the oldest block.

        Return how many receipts were used, and what was removed: None with 1 is a receipt for an
        earlier entry, None with 0 one that is ahead.
        """
        oldest = self.oldest
        count = 0 if oldest is None else oldest.matching(ids)
        if oldest is None or not count:
            return (0 if self.judge(ids[0]) is ReceiptVerdict.AHEAD else 1), None
        last = oldest.highest_of(count)
        messages = oldest.take(count)
        self.messages -= messages
        ends = oldest.num_messages == 0
        if ends:
            self._sends.popleft()
            self.bytes -= oldest.length
        callbacks = oldest.take_callbacks(messages) if oldest.callbacks else ()
        self._on_left()
        return count, Taken(oldest, messages, last, ends, callbacks)

    def pop(self) -> PendingSends:
        """Remove the oldest block."""
        sends = self._sends.popleft()
        self.messages -= sends.num_messages
        self.bytes -= sends.length
        self._on_left()
        return sends

    def clear(self) -> list[PendingSends]:
        """Remove everything, oldest first."""
        return [self.pop() for _ in range(len(self._sends))]


class InflightWindow:
    """Holds sends until their receipts come, their time is up, or `end` is called.

    At most `max_messages` (0: any number) and the budget's bytes are in flight; one larger entry
    is accepted alone. A sender without room continues when half of the messages are acknowledged.
    Without a receipt for `timeout` seconds, `give_up` gets an OperationTimeout; through its
    producer, it ends the window. With `survives_timeouts`, the sends that old fail, whatever
    receipts come for others, and `on_expired` gets them; and so do sends that the broker refuses,
    or a backlog quota for the time being. However sends leave `pending`, that wakes who waits for
    room; then `finish` follows, which calls `on_room`.

    `changed` is the lock of the window and of its producer's state. `describe` returns the
    producer's state as keyword arguments of errors, and `trouble` its last error.
    """

    def __init__(
        self,
        budget: ProducerBudget,
        timers: Timers,
        *,
        max_messages: int,
        timeout: float,
        describe: Callable[[], dict[str, Any]],
        trouble: Callable[[], PulsarError | None],
        give_up: Callable[[PulsarError], None],
        survives_timeouts: bool = False,
        on_expired: Callable[[Sequence[PendingSends]], object] = lambda sends: None,
        on_room: Callable[[], object] = lambda: None,
    ) -> None:
        self.timeout = timeout or NO_TIMEOUT
        self.budget = budget
        self._timers = timers
        self.max_messages = max_messages or sys.maxsize
        self._describe = describe
        self._trouble = trouble
        self._give_up = give_up
        self._on_expired = on_expired
        self._on_room = on_room
        self.survives_timeouts = survives_timeouts
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        # The following are guarded by `changed`.
        self.pending = PendingQueue(self._wake_sender)
        self.settled = 0
        """Number of removed blocks whose callbacks have returned."""
        self.acknowledged = 0
        self.sent_messages = 0
        self.sent_bytes = 0
        self.loss: PulsarError | None = None
        """Errors of messages that `wait_until_acknowledged` has not raised yet."""
        self.broken_message = -1
        """The sequence id of the last message with a failed chunk."""
        self._end: PulsarError | None = None
        self._sweep: Timer | None = None
        self._progress = 0.0
        # Wake waiters when this many messages are pending, or this many blocks settled.
        self._room_at = -1
        self._settled_at: int | None = None

    # --- for senders --------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether the window has ended."""
        return self._end is not None

    def check(self) -> None:
        """Raise the error that ended the window."""
        if self._end is not None:
            raise self._end.with_context()

    def room(self) -> int:
        """Return how many messages may be sent now."""
        return max(self.max_messages - self.pending.messages, 0)

    def has_room(self, messages: int) -> bool:
        """Whether an entry may be sent now; one that is too large may if nothing is pending."""
        return messages <= self.room() or not len(self.pending)

    def wait_for_room(self, messages: int) -> None:
        """Wait until an entry of so many messages may be sent; there may be more room then.

        Raises the error that ended the window, or OperationTimeout without a receipt for the
        timeout. One thread at a time.
        """
        started = time.monotonic()
        with self.changed:
            self.check()
            if self.has_room(messages):
                return
            target = max(min(self.max_messages // 2, self.max_messages - messages), 0)
            while self.pending.messages > target and len(self.pending):
                left = min(
                    max(self._progress, started) + self.timeout - time.monotonic(),
                    self._time_left(),
                )
                if left <= 0:
                    break
                self._room_at = target
                self.changed.wait(at_a_time(left))
                self._room_at = -1
                self.check()
            else:
                return
        self.expire()
        with self.changed:
            self.check()
            if not self.has_room(messages):
                raise self._no_room()

    def reserve(self, size: int) -> None:
        """Reserve `size` bytes of memory, waiting for room; `append` must follow, or its release.

        Raises the error that ended the window, or OperationTimeout without a receipt for the
        timeout.
        """
        if self.budget.try_reserve(size):
            return
        started = time.monotonic()
        while True:
            self.check()
            until = max(self._progress, started) + self.timeout
            if self.budget.reserve(size, until, lambda: self.ended):
                return
            self.check()
            if time.monotonic() >= max(self._progress, started) + self.timeout:
                self.expire()
                if self.budget.try_reserve(size):
                    return
                with self.changed:
                    self.check()
                    raise self._no_room()

    def append(self, sends: PendingSends) -> None:
        """Append sends, for which there must be room; their timeout starts. `changed` is held."""
        sends.deadline = time.monotonic() + self.timeout
        self.pending.append(sends)
        self.sent_messages += sends.num_messages
        self.sent_bytes += sends.length
        if self._sweep is None:
            self._sweep = self._look_again(self.timeout)

    def wait_until_acknowledged(self, deadline: Deadline) -> None:
        """Wait until everything appended so far is acknowledged, and callbacks have run.

        Raises the error that ended the window, or of a message that failed since the last such
        wait, or OperationTimeout at the deadline.
        """
        with self.changed:
            target = self.pending.blocks
        while True:
            with self.changed:
                if self._end is not None:
                    self.changed.wait_for(lambda: self.settled >= target, _LAST_CALLBACKS)
                    self.check()
                if self.settled >= target:
                    loss, self.loss = self.loss, None
                    if loss is not None:
                        raise loss.with_context()
                    return
                left = min(self._time_left(), deadline.remaining())
                if left > 0:
                    if self._settled_at is None or target < self._settled_at:
                        self._settled_at = target
                    self.changed.wait(at_a_time(left))
                    continue
            self.expire()
            if deadline.expired():
                with self.changed:
                    if self.settled < target:
                        raise self._no_receipt(deadline.seconds or 0.0)

    # --- completion and end -------------------------------------------------------------------

    def take(self, ids: array[int]) -> tuple[int, Taken | None]:
        """As `PendingQueue.take`; `finish` follows. `changed` is held."""
        found = self.pending.take(ids)
        if (taken := found[1]) is not None:
            self.acknowledged += taken.messages
            self._progress = time.monotonic()
        return found

    def _wake_sender(self) -> None:
        """Wake who waits for room if there is enough. `changed` is held."""
        if self.pending.messages <= self._room_at or not len(self.pending):
            self.changed.notify_all()

    def finish(
        self, removed: Iterable[PendingSends | Acknowledged], error: PulsarError | None = None
    ) -> None:
        """Tell the callbacks of what was removed how it ended, in order; then there is room.

        It has failed with `error`, or if it was refused, with that; without an error it is stored.
        """
        for one in removed:
            if isinstance(one, PendingSends):
                self._complete(one, one.refused or error)
            else:
                self._acknowledge(one, error)
        self._on_room()

    def _acknowledge(self, done: Acknowledged, error: PulsarError | None) -> None:
        taken, receipts, message_id = done
        if error is not None:
            tell_failed(taken.callbacks, error)
        elif taken.callbacks:
            each = taken.sends.per_entry or taken.messages
            tell_stored(taken.callbacks, each, receipts, message_id.partition)
        if taken.ends:
            self._complete(taken.sends, error, message_id if error is None else None)

    def _complete(
        self,
        sends: PendingSends,
        error: PulsarError | None,
        message_id: MessageIdAdv | None = None,
    ) -> None:
        try:
            if sends.callbacks and error is not None:
                tell_failed(sends.callbacks, error)
            if sends.callback is not None:
                sends.callback(error, message_id)
        except Exception:
            logger.exception("the callback of a send to %s failed", self._describe()["topic"])
        finally:
            self._settle(sends)

    def _settle(self, sends: PendingSends) -> None:
        """Release the memory of removed sends, after their callback has returned."""
        self.budget.release(sends.size)
        with self.changed:
            self.settled += 0 if sends.is_part else 1
            if self._settled_at is not None and self.settled >= self._settled_at:
                self._settled_at = None
                self.changed.notify_all()
            elif self._end is not None:
                self.changed.notify_all()

    def end(self, error: PulsarError) -> list[PendingSends] | None:
        """End the window with `error` for everyone; return the sends in flight.

        None if the window had already ended. `changed` is held. Call the budget's `wake`
        next, without the lock, so that a sender that waits for memory sees it, then `finish`.
        """
        if self._end is not None:
            return None
        self._end = error
        if self._sweep is not None:
            self._sweep.cancel()
        self.changed.notify_all()
        return self.pending.clear()

    def expire(self) -> None:
        """Fail sends whose time is up; check again when the next ones are due."""
        lost: list[PendingSends] = []
        with self.changed:
            sweep, self._sweep = self._sweep, None
            if sweep is not None:
                sweep.cancel()
            if self._end is not None or not len(self.pending):
                return
            left = self._time_left()
            if left <= 0:
                error = self._no_receipt(self.timeout)
                if self.survives_timeouts:
                    lost = self._take(error, time.monotonic())
            if len(self.pending) and (left > 0 or self.survives_timeouts):
                self._sweep = self._look_again(max(self._time_left(), 0.0))
        if left > 0:
            return
        if not self.survives_timeouts:
            self._give_up(error)
        self._on_expired(lost)
        self.finish(lost, error)

    def refuse(self, error: PulsarError) -> bool:
        """Fail what is pending; return false, and do nothing, if that must end the producer."""
        if not self.survives_timeouts:
            return False
        with self.changed:
            lost = [] if self._end is not None else self.take_all(error)
        self._on_expired(lost)
        self.finish(lost, error)
        return True

    def take_refused(self) -> list[PendingSends]:
        """With `survives_timeouts`, remove refused sends that are oldest; `finish` follows.

        Only the oldest, so that callbacks keep the order of the messages. `changed` is held.
        """
        refused: list[PendingSends] = []
        if not self.survives_timeouts:
            return refused
        while (oldest := self.pending.oldest) is not None and oldest.refused is not None:
            refused.append(self.pending.pop())
            self.loss = self.loss or oldest.refused
        return refused

    def take_begun(self, error: PulsarError) -> list[PendingSends]:
        """Remove the rest of a chunked message whose first chunks are stored; `finish` follows.

        `changed` is held.
        """
        oldest = self.pending.oldest
        if oldest is None or not oldest.chunk:
            return []
        self.broken_message = oldest.sequence_id
        return self._take(error, 0.0)

    def take_all(self, error: PulsarError) -> list[PendingSends]:
        """Remove all that is pending; `finish` follows. `changed` is held."""
        return self._take(error, float("inf")) if len(self.pending) else []

    def _take(self, error: PulsarError, upto: float) -> list[PendingSends]:
        """Take the sends that are due up to a time; `error` is theirs."""
        lost: list[PendingSends] = []
        while (oldest := self.pending.oldest) is not None:
            rest_of_message = oldest.chunk and oldest.sequence_id == self.broken_message
            if oldest.deadline > upto and not rest_of_message:
                break
            if oldest.chunk is not None:
                self.broken_message = oldest.sequence_id
            lost.append(self.pending.pop())
        self.loss = self.loss or error
        return lost

    def time_left(self) -> float:
        """Seconds until the oldest sends time out; the whole timeout if there are none."""
        with self.changed:
            return min(self._time_left(), self.timeout)

    def _time_left(self) -> float:
        oldest = self.pending.oldest
        if oldest is None:
            return float("inf")
        # A client's message has its own time; a Spark task has time as long as there is progress.
        until = oldest.deadline
        if not self.survives_timeouts:
            until = max(until, self._progress + self.timeout)
        return until - time.monotonic()

    def _look_again(self, delay: float) -> Timer | None:
        try:
            return self._timers.after(delay, self.expire)
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

    def too_large(self, limit: int) -> MessageTooLarge | None:
        """Return the error for a pending entry that a new broker does not take."""
        largest = max((max(sends.entry_sizes()) for sends in self.pending), default=0) - _HEAD
        if largest <= limit:
            return None
        return MessageTooLarge(
            f"a pending message of {largest} bytes does not fit the topic's new broker, which "
            f"takes {limit}",
            **self._describe(),
        )

    def lost_receipts(self, txn: TxnId) -> ConnectionLost:
        """The error for entries of a transaction that may be stored already."""
        return ConnectionLost(
            f"the receipts of {len(self.pending)} entries are lost, and they may not be sent again "
            f"in transaction {txn}, which could store them twice{self._last_trouble()}",
            "Spark runs the task again, in a new transaction, up to spark.task.maxFailures "
            "times. With deduplication on the topic the task can continue.",
            **self._describe(),
        )

    def _no_room(self) -> OperationTimeout:
        return self._late(
            f"there was no room for another message within {self.timeout:g} s: "
            f"{self.pending.messages} messages ({self.pending.bytes} bytes) of this producer "
            f"and {self.budget.used} bytes of the client are not acknowledged",
            "Check the broker, or raise sendTimeoutMs or memoryLimitBytes.",
        )

    def _late(self, what: str, remedy: str) -> OperationTimeout:
        error = OperationTimeout(what + self._last_trouble(), remedy, **self._describe())
        error.__cause__ = self._trouble()
        return error

    def _last_trouble(self) -> str:
        trouble = self._trouble()
        return "" if trouble is None else f"; the last error was: {trouble.what}"
