"""Finds out whether readers get certain entries: by reading them back.

Only an entry itself proves that it is delivered. A subscription delivers in the topic's order, so
one suffices for many entries that are close together, which it starts before: those that are
missing when a later one comes will never come. When messages expire, a broker moves its cursor
past entries that readers get: a missing one counts if the cursor was not moved, or if it is missing
again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.consumers.consumer_session import ConsumerSession, probe_request
from pulsar_spark.engine.consumers.entries import message_count
from pulsar_spark.engine.consumers.probe import AwaitedHandler, EntryWait, unread_part
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.operations import Operation, Within, ask_all
from pulsar_spark.engine.retry import retried
from pulsar_spark.errors import ConnectionLost, OperationTimeout, PulsarError, RemoteProtocolError
from pulsar_spark.protocol.frame_parts import Frame
from pulsar_spark.protocol.frames import MessageBlock
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.protocol.validation import check_id

_MAX_PERMITS = 2**31 - 1
# One subscription continues over a gap of at most so many entries, and reads at most so many bytes
# of other entries for each question. Beyond that another subscription costs less, by measurements
# with a standalone broker; only speed depends on it.
_MAX_GAP = 16
_GAP_BYTES = 512 * 1024


class ReadBack(Enum):
    """Whether readers get an entry."""

    DELIVERED = "delivered"
    DROPPED = "dropped"
    """Never delivered, for an entry after it is: it was aborted or deleted."""
    UNREACHED = "unreached"
    """Neither it nor an entry after it can be read now."""


def read_back(
    pool: ConnectionPool, questions: Sequence[tuple[str, Position]], timeout: float | None = None
) -> list[ReadBack | PulsarError]:
    """Return whether readers get the entries at positions, in the order of the questions.

    Errors are returned in place of missing results. `timeout` is in seconds, the operation timeout
    by default.
    """
    lookup = Lookup(pool)
    seconds = pool.options.operation_timeout if timeout is None else timeout
    searches = _searches(questions)
    found: dict[tuple[str, Position], ReadBack | PulsarError] = {}
    # Each time, each search answers one of its questions at least, or ends with its error.
    while searches:
        asked = [(search.topic, retried(partial(_attempt, lookup, search))) for search in searches]
        again = []
        for search, result in zip(searches, ask_all(asked, seconds), strict=True):
            answers = search.take_answers()
            found.update(((search.topic, entry), what) for entry, what in answers.items())
            if answers:
                # Without an error, it left those behind too many bytes of other entries.
                again.extend(search.rest(apart=not isinstance(result, PulsarError)))
            else:
                assert isinstance(result, PulsarError)
                found.update(((search.topic, entry), result) for entry in search.left)
        searches = again
    return [found[topic, _entry(position)] for topic, position in questions]


def _attempt(lookup: Lookup, search: _Search, deadline: Deadline) -> Operation[None]:
    """Return an operation that reads entries back; one attempt."""
    if not search.left:
        return
    connection = yield from lookup.connection_operation(search.topic, deadline)
    seen = _Sightings(search.left)
    is_certain = False
    try:
        wanted = probe_request(search.topic, search.left[0])
        with ConsumerSession(connection, wanted, seen) as session:
            yield from session.subscribe(deadline)
            is_certain = yield from _watch(session, seen, deadline, search.patience)
    finally:
        # What was seen stays true, whatever happens to the subscription.
        search.add(seen.answers(), is_certain=is_certain)
    if not (is_certain or search.has_answers):
        raise ConnectionLost("the broker may have moved the cursor past what was to be read back")


@dataclass(slots=True, eq=False)
class _Search:
    """Entries of a topic that one subscription reads back: `left` are those without an answer."""

    topic: str
    left: list[Position]
    patience: EntryWait = field(default_factory=EntryWait)
    _answers: dict[Position, ReadBack] = field(default_factory=dict)
    _doubtful: dict[Position, ReadBack] = field(default_factory=dict)

    def is_near(self, topic: str, entry: Position) -> bool:
        """Whether a later entry is close enough to be read by the same subscription."""
        last = self.left[-1]
        gap = entry.entry_id - last.entry_id
        return (topic, entry.ledger_id) == (self.topic, last.ledger_id) and gap <= _MAX_GAP

    @property
    def has_answers(self) -> bool:
        """Whether there are answers since the last `take_answers`."""
        return bool(self._answers)

    def add(self, answers: dict[Position, ReadBack], *, is_certain: bool) -> None:
        """Take the answers of an attempt; the next one asks what is left.

        Unless they are certain, a missing entry counts when the next attempt misses it, too.
        """
        counts = {
            entry: what
            for entry, what in answers.items()
            if is_certain or what in (ReadBack.DELIVERED, self._doubtful.get(entry))
        }
        self._doubtful = answers
        self._answers |= counts
        self.left = [entry for entry in self.left if entry not in counts]

    def take_answers(self) -> dict[Position, ReadBack]:
        """Return the answers since the last call."""
        answers, self._answers = self._answers, {}
        return answers

    def rest(self, *, apart: bool) -> list[_Search]:
        """Return searches for what is left, one for each entry if `apart`."""
        if apart:
            return [_Search(self.topic, [entry]) for entry in self.left]
        return [self] if self.left else []


def _searches(questions: Sequence[tuple[str, Position]]) -> list[_Search]:
    """Divide questions into searches, each in one ledger and without long gaps."""
    searches: list[_Search] = []
    for topic, entry in sorted({(topic, _entry(position)) for topic, position in questions}):
        if searches and searches[-1].is_near(topic, entry):
            searches[-1].left.append(entry)
        else:
            searches.append(_Search(topic, [entry]))
    return searches


def _entry(position: Position) -> Position:
    return Position(position.ledger_id, position.entry_id)


class _Sightings(AwaitedHandler[bool]):
    """Which of some entries a subscription delivers: a ConsumerHandler that keeps no entry.

    `wanted` are in the topic's order. This `is_over` when all that can be read are answered, or
    when too many bytes of other entries came; it sees nothing after them.
    """

    def __init__(self, wanted: Sequence[Position]) -> None:
        super().__init__()
        # The following are guarded by _lock: entries without an answer, and from where on nothing
        # can be read; what follows the last entry received; how many bytes of other entries may
        # still come; permits that the broker has.
        self._left = deque(wanted)
        self._answers: dict[Position, ReadBack] = {}
        self._until: Position | None = None
        self._next = wanted[0]
        self._spare = _GAP_BYTES * len(wanted)
        self._permits = 0
        self.received = 0
        """How many entries have come."""

    def answers(self) -> dict[Position, ReadBack]:
        """Return the answers so far."""
        with self._lock:
            return dict(self._answers)

    def has_dropped(self) -> bool:
        """Whether an entry was not delivered, but one after it."""
        with self._lock:
            return ReadBack.DROPPED in self._answers.values()

    def until(self, end: Position) -> None:
        """Nothing at or after `end` can be read."""
        with self._lock:
            self._until = end

    def next(self, session: ConsumerSession) -> Future[bool]:
        """Return a future that is done when this `is_over` or the permits are used up.

        If they are, requests more. It fails when broker or connection end the session.
        """
        with self._lock:
            permits = self._to_request()
            self._permits += permits
        waiting = self._wait()
        if permits:
            self._request(session, permits)
        self._serve()
        return waiting

    def _to_request(self) -> int:
        if self._permits > 0 or self._is_over() or self._error is not None:
            return 0
        last = self._left[-1]
        same = self._next.ledger_id == last.ledger_id
        entries = last.entry_id - self._next.entry_id + 1 if same else len(self._left)
        # A permit is a message: batches can use up more than there were.
        return min(max(entries, 1) - self._permits, _MAX_PERMITS)

    def is_over(self) -> bool:
        """Whether there is nothing to wait for."""
        with self._lock:
            return self._is_over()

    def _is_over(self) -> bool:
        if not self._left or self._spare < 0:
            return True
        return self._until is not None and self._left[0] >= self._until

    def finish(self) -> None:
        """Answer for those that cannot be read."""
        with self._lock:
            for entry in self._left:
                if self._until is not None and entry >= self._until:
                    self._answers[entry] = ReadBack.UNREACHED

    def on_messages(self, block: MessageBlock) -> int:
        """See entries, and have the next ones at once."""
        try:
            for frame in block.frames():
                self._see(frame)
        except RemoteProtocolError as error:
            self._end(error)
        self._serve()
        return 0

    def _see(self, frame: Frame) -> None:
        message_id = frame.command.message.message_id
        check_id(message_id, is_stored=True)
        entry = Position(message_id.ledgerId, message_id.entryId)
        messages = message_count(frame)
        with self._lock:
            self.received += 1
            self._permits -= messages
            self._next = Position(entry.ledger_id, entry.entry_id + 1)
            if self._spare < 0:
                return
            while self._left and self._left[0] < entry:
                self._answers[self._left.popleft()] = ReadBack.DROPPED
            if self._left and self._left[0] == entry:
                self._answers[self._left.popleft()] = ReadBack.DELIVERED
            elif self._answers:
                self._spare -= len(frame.payload)

    def _take(self) -> bool | None:
        return (self._permits <= 0 or self._is_over()) or None


def _watch(
    session: ConsumerSession, seen: _Sightings, deadline: Deadline, patience: EntryWait
) -> Operation[bool]:
    """Return an operation that has a subscription deliver until the sightings are over.

    It returns whether they are certain: nobody moved the cursor. It raises ConnectionLost if
    another consumer may get a different result.
    """
    start = session.wanted.start or EARLIEST_POSITION
    waiting = seen.next(session)
    done, end = yield from unread_part(session, deadline)
    # If the broker has skipped all that there is, nothing can be read.
    seen.until(EARLIEST_POSITION if end <= done else end)
    while not seen.is_over():
        received = seen.received
        if waiting.done():
            waiting = seen.next(session)
        try:
            yield Within(waiting, patience.seconds)
        except OperationTimeout:
            if seen.received == received:
                raise patience.timed_out() from None
    seen.finish()
    if seen.has_dropped():
        done, _ = yield from unread_part(session, deadline)
        return done <= start
    return done < end or done <= start
