"""Messages that wait to be sent: what callers add, until the in-flight window takes it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from itertools import chain, groupby

from pulsar_spark.engine.producers.inflight_window import MessageCallback
from pulsar_spark.errors import PulsarError
from pulsar_spark.protocol.outgoing_messages import OutgoingMessages
from pulsar_spark.protocol.send_encoder import BLOCK_MESSAGES


@dataclass(slots=True, eq=False)
class Submission:
    """Messages on their way to the in-flight window: columns.

    `runs` says of the next entries how many messages each has, and how many such entries follow
    each other. Messages behind those are the current batch, which grows until `seal` is called. If
    it is `owned`, a thread waits for it, which is the one that sends it and gets its `error`.
    Otherwise callbacks get the errors, `default` those of messages without callbacks. `held` is the
    memory that is reserved, of which `ahead` is for later messages. Not thread-safe: its producer
    locks.
    """

    messages: OutgoingMessages
    _: KW_ONLY
    per_entry: InitVar[int] = 0
    default: MessageCallback | None = None
    by_key: bool = False
    owned: bool = field(init=False)
    grows: bool = field(init=False)
    """Whether more can be added: nothing waits behind it."""
    runs: deque[tuple[int, int]] = field(default_factory=deque)
    sealed: int = 0
    """Messages in complete entries."""
    sealed_bytes: int = 0
    open: int = 0
    """Messages in the current batch."""
    open_bytes: int = 0
    sent: int = 0
    """Messages that are not here any more."""
    held: int = 0
    ahead: int = 0
    is_begun: bool = False
    """Whether a thread has begun to send it for its owner, who then must not take it back."""
    error: PulsarError | None = None
    failed_at: int = 0
    """How many messages were sent before the error."""
    _at: int = 0
    _is_whole: bool = field(init=False)

    def __post_init__(self, per_entry: int) -> None:
        self.owned = self._is_whole = per_entry > 0
        self.grows = not self.owned
        if per_entry:
            entries, rest = divmod(len(self.messages), per_entry)
            if entries:
                self._add_run(per_entry, entries)
            if rest:
                self._add_run(rest, 1)

    def __len__(self) -> int:
        return self.sealed + self.open

    def _add_run(self, size: int, entries: int) -> None:
        self.sealed += size * entries
        runs = self.runs
        if runs and runs[-1][0] == size:
            runs[-1] = size, runs[-1][1] + entries
        else:
            runs.append((size, entries))

    # --- filling ------------------------------------------------------------------------------

    def seal(self) -> None:
        """End the current batch.

        By key it becomes several: those with equally many messages follow each other, so that they
        are encoded together. With users' ids the messages stay in order, and an entry ends where
        the key changes: a broker, and who goes on after a crash, take all ids up to an entry's
        highest for stored.
        """
        count = self.open
        if not count:
            return
        self.sealed_bytes += self.open_bytes
        self.open = self.open_bytes = 0
        if not self.by_key:
            self._add_run(count, 1)
            return
        for size, entries in self._sorted(len(self.messages) - count):
            self._add_run(size, entries)

    def _sorted(self, start: int) -> list[tuple[int, int]]:
        """Sort the messages from `start` on by key, unless they have ids; return their runs."""
        stop = len(self.messages)
        found = self.messages.groups(start, stop)
        if self.messages.sequence_ids is not None:
            return [(sum(1 for _ in same), 1) for _, same in groupby(found)]
        groups: dict[object, list[int]] = {}
        for index, group in enumerate(found, start):
            groups.setdefault(group, []).append(index)
        in_order = sorted(groups.values(), key=lambda group: (len(group), group[-1]))
        if len(groups) < stop - start:
            order = [*range(self._at, start), *chain.from_iterable(in_order)]
            self.messages, self._at = self.messages.take(order), 0
        return [(size, sum(1 for _ in same)) for size, same in groupby(map(len, in_order))]

    # --- sending ------------------------------------------------------------------------------

    @property
    def next_count(self) -> int:
        """How many messages the next entry has."""
        return self.runs[0][0]

    def next(self) -> tuple[OutgoingMessages, int, int]:
        """Return the messages to send next, where they begin, and how many an entry has."""
        size, entries = self.runs[0]
        if self._is_whole:
            return self.messages, self._at, size
        # The columns may grow while this part is encoded.
        entries = min(entries, max(BLOCK_MESSAGES // size, 1))
        return self.messages.copy(self._at, self._at + size * entries), 0, size

    def give_back(self, count: int) -> int:
        """Return how much memory is held for the next messages, and hold it no longer.

        The end of the producer may have taken them meanwhile.
        """
        freed = self.held * count // len(self) if count and len(self) else 0
        self.held -= freed
        self.ahead = min(self.ahead, self.held)
        return freed

    def take(self, count: int) -> None:
        """Remove complete entries of so many messages."""
        self.sealed_bytes -= self.sealed_bytes * count // (self.sealed or 1)
        self.sealed -= count
        self.sent += count
        self._at += count
        while count:
            size, entries = self.runs[0]
            gone = min(count // size, entries)
            count -= gone * size
            if gone == entries:
                self.runs.popleft()
            else:
                self.runs[0] = (size, entries - gone)
        if not len(self):
            own_ids = self.messages.sequence_ids
            self.messages = OutgoingMessages([], sequence_ids=None if own_ids is None else [])
            self._at = 0
        elif not self._is_whole and (not self.runs or self._at > 4 * BLOCK_MESSAGES):
            self.messages, self._at = self.messages.copy(self._at, len(self.messages)), 0

    def divide(self) -> bool:
        """Halve the next entry; false if it has one message."""
        size, entries = self.runs[0]
        if size == 1:
            return False
        half = size // 2
        self._is_whole = False
        self.runs.popleft()
        if entries > 1:
            self.runs.appendleft((size, entries - 1))
        self.runs.extendleft([(size - half, 1), (half, 1)])
        return True

    def callbacks(self, count: int) -> Sequence[MessageCallback | None]:
        """Return the callbacks of the next messages; `default` alone if they have none."""
        if self.messages.callbacks is None:
            return [self.default] if count else []
        return self.messages.callbacks[self._at : self._at + count]
