"""Decides which of a producer's pending sends go to the connection, and when.

A topic's policy can allow only smaller messages than the broker does. Nothing tells the limit: a
larger entry is refused, and what follows it is stored. So a batch that is larger than all that were
acknowledged goes alone, and what follows waits for its receipt. If it is refused, smaller batches
with the same messages take its place: messages keep their order, and none is stored twice.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import NamedTuple

from pulsar_spark.engine.producers.inflight_window import PendingQueue, PendingSends
from pulsar_spark.engine.producers.producer_session import Encoding

# Entries of this size never go alone: no sensible limit is as small.
_SMALL = 256


class RefusedEntry(NamedTuple):
    """An entry that a broker refused.

    `is_divided`: smaller ones have replaced it. `is_last`: nothing behind it was sent.
    """

    sends: PendingSends
    size: int
    is_divided: bool
    is_last: bool


class SendGate:
    """The sends of `pending` that wait to go to the connection.

    With `guards_all`, messages without a batch that may be too large go alone, too. Without
    `in_order` nothing waits, and what is divided is sent behind the rest. Not thread-safe: its
    producer locks.
    """

    def __init__(self, pending: PendingQueue, *, in_order: bool, guards_all: bool) -> None:
        self._pending = pending
        self._in_order = in_order
        self._guards_all = guards_all
        self._encoding: Encoding | None = None
        # The last blocks of `pending`.
        self._waiting: deque[PendingSends] = deque()
        # What goes alone now, and its size.
        self._alone: PendingSends | None = None
        self._alone_size = 0
        # The size of the largest entry known to be taken, and of the smallest that was refused.
        self._taken = _SMALL
        self._refused = sys.maxsize
        self.most_bytes = sys.maxsize
        """How large batches can be before compression, as far as is known."""

    @property
    def has_refused(self) -> bool:
        """Whether the broker refused an entry in this session."""
        return self._refused < sys.maxsize

    def restart(self, encoding: Encoding) -> None:
        """Begin with all that is pending, and know nothing of limits: there is a new session."""
        unsent = set(map(id, self._waiting))
        for sends in self._pending:
            sends.resent = sends.resent or id(sends) not in unsent
        self._encoding, self._alone = encoding, None
        self._taken, self._refused, self.most_bytes = _SMALL, sys.maxsize, sys.maxsize
        self._waiting = deque(self._pending)

    def add(self, sends: PendingSends) -> None:
        """Add sends, which were just appended to `pending`."""
        self._waiting.append(sends)

    def next(self) -> PendingSends | None:
        """Return the next sends that may go, None if there are none yet."""
        while self._waiting and self._alone is None:
            sends = self._waiting.popleft()
            is_batch = sends.num_messages > sends.entries
            if sends.chunk is not None or not (is_batch or self._guards_all):
                return sends
            most = self._taken if self._in_order else self._refused - 1
            sizes = sends.entry_sizes()
            if max(sizes) <= most:
                return sends
            before = next(number for number, size in enumerate(sizes) if size > most)
            if before:
                return self._cut(sends, before)
            if sends.entries > 1:
                sends = self._cut(sends, 1)
            if sizes[0] >= self._refused and self._divide(sends):
                continue
            if self._in_order:
                self._alone, self._alone_size = sends, sizes[0]
            return sends
        return None

    def acknowledged(self, sends: PendingSends) -> bool:
        """Note that sends are stored; return whether more may go now."""
        if sends is not self._alone:
            return False
        self._taken = max(self._taken, self._alone_size)
        self._alone = None
        return bool(self._waiting)

    def refuse(self, sequence_id: int) -> RefusedEntry | None:
        """Divide what the broker refused, if it can be; return None if it is not pending.

        If it went alone and is not divided, nothing else goes until `drop`.
        """
        sends = self._pending.isolate(sequence_id)
        if sends is None:
            return None
        (size,) = sends.entry_sizes()
        self._refused = min(self._refused, size)
        self._taken = min(self._taken, size - 1)
        follower = self._pending.follower(sends)
        is_last = follower is (self._waiting[0] if self._waiting else None)
        is_divided = False
        if sends.num_messages > 1 and (is_last or not self._in_order):
            is_divided = self._divide(sends)
        if is_divided and sends is self._alone:
            self._alone = None
        return RefusedEntry(sends, size, is_divided, is_last)

    def drop(self, sends: PendingSends) -> None:
        """Forget sends that are no longer pending."""
        if sends is self._alone:
            self._alone = None
        if self._waiting and self._waiting[0] is sends:
            self._waiting.popleft()

    def clear(self) -> None:
        """Forget everything: nothing goes any more."""
        self._waiting.clear()
        self._alone = None

    def _cut(self, sends: PendingSends, entries: int) -> PendingSends:
        self._waiting.appendleft(sends)
        return self._pending.cut(sends, entries)

    def _divide(self, sends: PendingSends) -> bool:
        """Let smaller batches wait in place of one; return whether it could be divided."""
        if self._encoding is None or sends.num_messages < 2:
            return False
        smaller, most = self._encoding.smaller(sends, self.most_bytes)
        if not smaller:
            return False
        self.most_bytes = min(self.most_bytes, most)
        self._pending.replace(sends, smaller, self._waiting[0] if self._waiting else None)
        self._waiting.extendleft(reversed(smaller))
        return True
