"""Finds single entries of a topic without reading it and without the admin API.

A non-durable subscription at a position, with one permit, gets the first entry at or after that
position, across gaps and ledgers. This suffices to split a range, to limit it, and to learn what is
retained. SEEK finds the first entry from a time on; it searches as if entries were in time order.

When messages expire, a broker moves the cursors of such subscriptions too, past entries that it
stores (see `gaps`). So an answer counts if the cursor shows that it was not moved, or if another
subscription gives the same.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

from google.protobuf.message import Message

from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.consumers.consumer_session import (
    ConsumerSession,
    durable_exists,
    probe_request,
)
from pulsar_spark.engine.consumers.gaps import cursor_of
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.operations import (
    Operation,
    OperationFactory,
    Steps,
    Within,
    ask_all,
    asking_all,
    on_thread,
    value_of,
)
from pulsar_spark.engine.retry import retried
from pulsar_spark.errors import (
    ConnectionLost,
    ConsumerBusy,
    CorruptMessage,
    OperationTimeout,
    PulsarError,
    RemoteProtocolError,
    TopicNotFound,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import Frame, parse_payload
from pulsar_spark.protocol.frames import MessageBlock
from pulsar_spark.protocol.message_id import (
    EARLIEST_POSITION,
    LATEST_POSITION,
    MessageIdAdv,
    Position,
)
from pulsar_spark.protocol.validation import check_id

A = TypeVar("A")
T = TypeVar("T")

# An entry arrives within milliseconds, or later from tiered storage: each wait is twice the last
# one. Topics that are often unloaded cost a first wait each time.
_FIRST_PATIENCE = 1.0
# How long a broker may take to skip what it does not deliver: first try, second try.
_HELD_SECONDS = (0.5, 1.0)
# In addition to the first block: brokers exceed permits a little.
_MAX_HELD = 8 * 1024 * 1024
# An entry that a broker has is there at once, mostly.
_SOON = 0.1
_MOST_PERMITS = 1000
_MAX_ENTRY_ID = 2**62
# Brokers compact a topic with a durable subscription of this name, which they keep.
_COMPACTION = "__compaction"
# How many subscriptions must give the same answer, if the cursor can have been moved: unused ids
# move it too. And if nothing else can have moved it.
_UNSURE = 2
_MOVED = 4


@dataclass(frozen=True, slots=True)
class FoundEntry:
    """An entry that a probe found.

    `start` is the first requested position within it, `stop` the position after its last message.
    Times are milliseconds; `broker_time` and `index` (of the entry's last message) are None if the
    broker does not stamp them. `size` is in bytes on the wire.
    """

    start: Position
    stop: Position
    messages: int
    size: int
    publish_time: int
    broker_time: int | None
    index: int | None

    @property
    def remaining(self) -> int:
        """The number of messages from `start` on."""
        return self.messages - self.start.batch_index

    @property
    def behind(self) -> Position:
        """The position after the entry: the next entry's."""
        ledger_id, entry_id, index = self.stop
        return Position(ledger_id, entry_id + (1 if index else 0))

    @property
    def time(self) -> int:
        """The time that brokers search by: their own if they stamp it."""
        return self.publish_time if self.broker_time is None else self.broker_time


class Look(NamedTuple):
    """A question about consecutive entries: those at or after `position`, until there are enough.

    Enough is as many `entries`, or so many `messages` from `position` on, or so many bytes (`size`)
    as are reached first, or all entries before `end`. At least one entry is looked for.
    """

    position: Position
    entries: float = 1
    messages: float = math.inf
    size: float = math.inf
    end: Position = LATEST_POSITION


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """Where a ledger ends: the id of its last entry, of any kind, and what follows.

    `next` is the position of the first entry after the ledger, None if there is none yet.
    """

    last_entry_id: int
    next: Position | None


class EntryCount(NamedTuple):
    """How many entries a topic has from a position on, of any kind, and the one before it.

    `before` is entry -1 of the first ledger if there is none, None if the broker does not tell.
    """

    before: Position | None
    entries: int


@dataclass(frozen=True, slots=True)
class Held:
    """Messages that a topic holds back: `entries` from `position` on, none of which comes.

    If they are `readable`, the broker is slow to deliver them. Otherwise an open transaction hides
    them: nothing else makes a topic's last readable message stay behind.
    """

    position: Position
    entries: int
    readable: bool = False

    def __str__(self) -> str:
        if self.readable:
            return (
                f"the broker does not deliver what can be read from {self.position} on "
                f"({self.entries} entries): a dispatch rate (dispatchRate, "
                "subscriptionDispatchRate) limits the topic, or its storage is slow"
            )
        return (
            f"open transaction holds the read position at {self.position}: {self.entries} entries "
            "behind it are not delivered before it ends"
        )


@dataclass(frozen=True, slots=True)
class PassedOver:
    """What a broker skips from a position on, as nobody can read it: markers, aborted messages.

    Everything before `upto` is skipped. With `is_held`, an open transaction hides what follows.
    """

    upto: Position
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class _Answer(Generic[T]):
    """A subscription's answer, and how many subscriptions must give it in a row: one if certain."""

    value: T | None
    needed: int = 1


class Probe:
    """Requests single entries of topic partitions, of one or of thousands at once.

    A result is None if the topic has nothing at or after the position. Questions about many
    topics return errors in place of missing results; the others raise them.
    """

    def __init__(self, pool: ConnectionPool, timeout: float | None = None) -> None:
        self._lookup = Lookup(pool)
        self._timeout = pool.options.operation_timeout if timeout is None else timeout

    def first_entry_at(self, topic: str, position: Position) -> FoundEntry | None:
        """Return the first entry that has a message at or after `position`."""
        return _only(self.first_entries_at([(topic, position)]))

    def first_entries_at(
        self, questions: Sequence[tuple[str, Position]]
    ) -> list[FoundEntry | PulsarError | None]:
        """As `first_entry_at`, for many topics and positions, in the order of the questions."""
        found = self.entries_at([(topic, Look(position)) for topic, position in questions])
        return [
            entries if isinstance(entries, PulsarError) else next(iter(entries), None)
            for entries in found
        ]

    def first_place_at(self, topic: str, position: Position) -> Position | None:
        """Return where the first entry with a message at or after `position` is, damaged or not."""
        return _only(self.first_places_at([(topic, position)]))

    def first_places_at(
        self, questions: Sequence[tuple[str, Position]]
    ) -> list[Position | PulsarError | None]:
        """As `first_place_at`, for many topics and positions, in the order of the questions."""
        found = self.first_entries_at(questions)
        return [_place(answer, at) for (_, at), answer in zip(questions, found, strict=True)]

    def entries_at(
        self, questions: Sequence[tuple[str, Look]]
    ) -> list[tuple[FoundEntry, ...] | PulsarError]:
        """Return consecutive entries of topics, as many as a Look asks for, or as there are.

        One subscription reads all entries of a question, payloads included, so its `size` is what
        it may cost. Ids without an entry are passed over, like the ends of ledgers.
        """
        found = self._ask_certain(questions, self._several)
        return [() if entries is None else entries for entries in found]

    def first_entry_from_time(self, topic: str, time: int) -> FoundEntry | None:
        """Return the first entry that the broker finds published at or after `time`, in ms.

        It searches as if times were ordered; an earlier entry may have a later time, and the other
        way round.
        """
        return _only(self.first_entries_from_time([(topic, time)]))

    def asking_from_time(
        self,
        questions: Sequence[tuple[str, int]],
        first: Mapping[str, Position | None] = MappingProxyType({}),
        *,
        or_later: bool = False,
    ) -> Steps[list[FoundEntry | PulsarError | None]]:
        """As `first_entry_from_time`, for many topics and times, in steps.

        It takes half of the requests where the answer is at a topic's beginning, if `first` has
        that, and with `or_later`, which also allows a later entry.
        """
        attempt = partial(self._from_time, first=first, or_later=or_later)
        return self._asking_certain(questions, attempt)

    first_entries_from_time = on_thread(asking_from_time)

    def ledger_end(self, topic: str, ledger_id: int) -> LedgerEnd | None:
        """Return where a ledger ends now, None if it was deleted or has no entry."""
        found = self._ask_certain([(topic, ledger_id)], self._ledger_end)
        return _only(found)

    def last_entries_in(
        self, questions: Sequence[tuple[str, int]]
    ) -> list[int | PulsarError | None]:
        """Return the id of the last entry in ledgers of topics: `ledger_end` without `next`."""
        return self._ask_certain(questions, self._last_in)

    def last_in_operation(
        self, topic: str, ledger_id: int, deadline: Deadline
    ) -> Operation[int | None]:
        """Return an operation for one attempt at `last_entries_in`."""
        return _certain(partial(self._last_in, topic, ledger_id, EntryWait()), deadline)

    def entries_from(self, questions: Sequence[tuple[str, Position]]) -> list[int | PulsarError]:
        """Return how many entries topics have from positions on, as their brokers count.

        A batch is one entry; transaction markers count too.
        """
        return self._ask(questions, self._count)

    def counts_at(
        self, questions: Sequence[tuple[str, Position]]
    ) -> list[EntryCount | PulsarError]:
        """As `entries_from`, with the entry before each position.

        The entry is wrong if messages expire at that moment.
        """
        return self._ask(questions, self._count_at)

    def held_back(
        self, questions: Sequence[tuple[str, Position]]
    ) -> list[Held | PulsarError | None]:
        """For topics and the positions where reading stopped, return what is held back there.

        None for a topic that has no more entries, or whose next entry can be read.
        """
        return self._ask(questions, self.held_operation)

    def skipped_from(
        self, questions: Sequence[tuple[str, Position]]
    ) -> list[PassedOver | PulsarError | None]:
        """For topics and the positions after their last readable messages, return what is skipped.

        None for a topic that ends elsewhere by now.
        """
        return self._ask(questions, self._skipped)

    def subscriptions_exist(self, questions: Sequence[tuple[str, str]]) -> list[bool | PulsarError]:
        """Return for topics and names whether the topic has a durable subscription of that name.

        Changes nothing. The name must not belong to a non-durable subscription.
        """
        return self._ask(questions, self.exists_operation)

    def is_compacted(self, topic: str) -> bool:
        """Return whether a topic was ever compacted: then its compacted view may lack entries.

        False for a topic that does not exist.
        """
        return _only(self.are_compacted([topic]))

    def are_compacted(self, topics: Sequence[str]) -> list[bool | PulsarError]:
        """As `is_compacted`, for many topics."""
        return self._ask([(topic, _COMPACTION) for topic in topics], self._is_there)

    def _ask(
        self,
        questions: Sequence[tuple[str, A]],
        attempt: Callable[[str, A, Deadline], Operation[T]],
    ) -> list[T | PulsarError]:
        attempts = [(topic, retried(partial(attempt, topic, what))) for topic, what in questions]
        return ask_all(attempts, self._timeout)

    def _asking_certain(
        self,
        questions: Sequence[tuple[str, A]],
        attempt: Callable[[str, A, EntryWait, Deadline], Operation[_Answer[T]]],
    ) -> Steps[list[T | PulsarError | None]]:
        certain = [
            (topic, retried(partial(_certain, partial(attempt, topic, what, EntryWait()))))
            for topic, what in questions
        ]
        return asking_all(certain, self._timeout)

    _ask_certain = on_thread(_asking_certain)

    def _count(self, topic: str, position: Position, deadline: Deadline) -> Operation[int]:
        connection = yield from self._lookup.connection_operation(topic, deadline)
        with ConsumerSession(connection, probe_request(topic, position)) as session:
            yield from session.subscribe(deadline)
            answer: pb.CommandConsumerStatsResponse = yield session.stats(deadline)
            return int(answer.msgBacklog)

    def _count_at(
        self, topic: str, position: Position, deadline: Deadline
    ) -> Operation[EntryCount]:
        connection = yield from self._lookup.connection_operation(topic, deadline)
        with ConsumerSession(connection, probe_request(topic, position)) as session:
            yield from session.subscribe(deadline)
            answer: pb.CommandGetLastMessageIdResponse = yield session.last_message_id(deadline)
            stats: pb.CommandConsumerStatsResponse = yield session.stats(deadline)
        told = answer.HasField("consumer_mark_delete_position")
        done = MessageIdAdv.from_pb(answer.consumer_mark_delete_position)
        before = Position(done.ledger_id, done.entry_id) if told and done.ledger_id >= 0 else None
        return EntryCount(before, int(stats.msgBacklog))

    def held_operation(
        self, topic: str, position: Position, deadline: Deadline
    ) -> Operation[Held | None]:
        """Return an operation for one attempt at `held_back`."""
        connection = yield from self._lookup.connection_operation(topic, deadline)
        entries = _Entries()
        with ConsumerSession(connection, probe_request(topic, position), entries) as session:
            yield from session.subscribe(deadline)
            counted = yield from _kept_back(session, entries, _HELD_SECONDS, deadline)
            if not counted:
                return None
            _, end = yield from unread_part(session, deadline)
            return Held(position, counted, readable=end > position)

    def _skipped(
        self, topic: str, position: Position, deadline: Deadline
    ) -> Operation[PassedOver | None]:
        connection = yield from self._lookup.connection_operation(topic, deadline)
        entries = _Entries()
        with ConsumerSession(connection, probe_request(topic, position), entries) as session:
            yield from session.subscribe(deadline)
            stats: pb.CommandConsumerStatsResponse = yield session.stats(deadline)
            if not stats.msgBacklog:
                return PassedOver(position)
            waits = (_SOON, *_HELD_SECONDS)
            counted = yield from _kept_back(session, entries, waits, deadline)
            if counted is None:
                return None
            done, end = yield from unread_part(session, deadline)
            # A message that came and expired meanwhile would have moved the end. If there is none,
            # it would have been deleted with its ledger.
            is_first = position.begins_ledger and done.ledger_id == position.ledger_id
            if end > position or (end.ledger_id < 0 and not is_first):
                return None
            return PassedOver(max(done, position), counted > 0)

    def exists_operation(self, topic: str, name: str, deadline: Deadline) -> Operation[bool]:
        """Return an operation for one attempt at `subscriptions_exist`."""
        connection = yield from self._lookup.connection_operation(topic, deadline)
        return (yield from durable_exists(connection, topic, name, deadline))

    def _is_there(self, topic: str, name: str, deadline: Deadline) -> Operation[bool]:
        try:
            return (yield from self.exists_operation(topic, name, deadline))
        except (ConsumerBusy, TopicNotFound):
            # Busy: another task asks the same at this moment.
            return False

    def _several(
        self, topic: str, look: Look, patience: EntryWait, deadline: Deadline
    ) -> Operation[_Answer[tuple[FoundEntry, ...]]]:
        connection = yield from self._lookup.connection_operation(topic, deadline)
        entries = _Entries()
        with ConsumerSession(connection, probe_request(topic, look.position), entries) as session:
            yield from session.subscribe(deadline)
            first = yield from _first_entry(session, entries, look.position, deadline, patience)
            if first.value is None:
                return _Answer(None, first.needed)
            found = yield from _more(session, entries, look, first.value, deadline, patience)
            return _Answer(tuple(found), first.needed)

    def _ledger_end(
        self, topic: str, ledger_id: int, patience: EntryWait, deadline: Deadline
    ) -> Operation[_Answer[LedgerEnd]]:
        connection = yield from self._lookup.connection_operation(topic, deadline)
        behind = Position(ledger_id, _MAX_ENTRY_ID)
        entries = _Entries()
        with ConsumerSession(connection, probe_request(topic, behind), entries) as session:
            yield from session.subscribe(deadline)
            last = yield from _last_before(session, ledger_id, deadline)
            if last.value is None:
                return _Answer(None, last.needed)
            found = yield from _first_entry(session, entries, behind, deadline, patience)
        next_entry = None if found.value is None else found.value.start
        return _Answer(LedgerEnd(last.value, next_entry), found.needed)

    def _last_in(
        self, topic: str, ledger_id: int, _: EntryWait, deadline: Deadline
    ) -> Operation[_Answer[int]]:
        connection = yield from self._lookup.connection_operation(topic, deadline)
        behind = Position(ledger_id, _MAX_ENTRY_ID)
        with ConsumerSession(connection, probe_request(topic, behind)) as session:
            yield from session.subscribe(deadline)
            return (yield from _last_before(session, ledger_id, deadline))

    def _from_time(
        self,
        topic: str,
        time: int,
        patience: EntryWait,
        deadline: Deadline,
        *,
        first: Mapping[str, Position | None],
        or_later: bool,
    ) -> Operation[_Answer[FoundEntry]]:
        connection = yield from self._lookup.connection_operation(topic, deadline)
        subscription = probe_request(topic, EARLIEST_POSITION)
        with ConsumerSession(connection, subscription) as session:
            yield from session.subscribe(deadline)
            yield session.ask(pb.CommandSeek, deadline, message_publish_time=time)
        # The broker has closed the consumer but keeps the subscription at the sought position, for
        # the next consumer of that name. If the topic was unloaded after the search, it starts
        # again; and its cursor may have been moved since.
        entries = _Entries()
        with ConsumerSession(connection, subscription, entries) as session:
            yield from session.subscribe(deadline)
            answer = yield from _first_entry(
                session, entries, EARLIEST_POSITION, deadline, patience
            )
        found = answer.value
        # Where times are not in order, or the subscription started again, it is an earlier one.
        is_later = found is None or found.time >= time
        is_first = found is not None and found.start == first.get(topic)
        return _Answer(found, 1 if is_later and (or_later or is_first) else _UNSURE)


def _certain(attempt: OperationFactory[_Answer[T]], deadline: Deadline) -> Operation[T | None]:
    """Return an operation that asks until an answer counts."""
    answer = yield from attempt(deadline)
    times = 1
    while times < answer.needed:
        before, answer = answer.value, (yield from attempt(deadline))
        times = times + 1 if answer.value == before else 1
    return answer.value


def unread_part(
    session: ConsumerSession, deadline: Deadline
) -> Operation[tuple[Position, Position]]:
    """Return an operation for what a subscription may still get: from where and up to where.

    The broker acknowledges what it does not deliver. If that is unknown, the first position is
    EARLIEST_POSITION. Raises ConnectionLost if another consumer may get a different result.
    """
    answer: pb.CommandGetLastMessageIdResponse = yield session.last_message_id(deadline)
    last = MessageIdAdv.from_pb(answer.last_message_id)
    if last.entry_id < 0:
        yield from session.confirm(deadline)
    return cursor_of(answer) or EARLIEST_POSITION, Position.after(last)


class EntryWait:
    """Seconds to wait for an entry, over all attempts at a question: some storage is slow."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = _FIRST_PATIENCE

    def timed_out(self) -> ConnectionLost:
        """Wait twice as long from now on; return the error that ends this attempt."""
        self.seconds *= 2
        return ConnectionLost("the broker does not deliver an entry that it has")


class ProbeHandler:
    """What the ConsumerHandlers of such subscriptions have in common: they end with the session."""

    def on_close(self, command: pb.CommandCloseConsumer) -> None:
        """Fail the wait."""
        self._end(ConnectionLost("the broker closed the consumer"))

    def on_command(self, body: Message) -> None:
        """Ignore other commands."""

    def on_disconnect(self, error: PulsarError) -> None:
        """Fail the wait."""
        self._end(error)

    def _end(self, error: PulsarError) -> None:
        raise NotImplementedError


class AwaitedHandler(ProbeHandler, Generic[T]):
    """A ProbeHandler from which one thread at a time waits for a T."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The following are guarded by _lock.
        self._waiting: Future[T] | None = None
        self._error: PulsarError | None = None

    def _wait(self) -> Future[T]:
        """Return the future of the next one; `_serve` follows."""
        waiting: Future[T] = Future()
        waiting.set_running_or_notify_cancel()
        with self._lock:
            self._waiting = waiting
        return waiting

    def _request(self, session: ConsumerSession, permits: int) -> None:
        try:
            session.flow(permits)
        except PulsarError as error:
            self._end(error)

    def _serve(self) -> bool:
        """Pass one to whoever waits; return false if there is none."""
        with self._lock:
            waiting = self._waiting
            if waiting is None:
                return True
            found = self._error or self._take()
            if found is None:
                return False
            self._waiting = None
        if isinstance(found, PulsarError):
            waiting.set_exception(found)
        else:
            waiting.set_result(found)
        return True

    def _take(self) -> T | PulsarError | None:
        """Return what is waited for, None if it is not there yet. `_lock` is held."""
        raise NotImplementedError

    def _end(self, error: PulsarError) -> None:
        with self._lock:
            self._error = self._error or error
        self._serve()


class _Entries(AwaitedHandler[Frame]):
    """The entries that a broker sends to a probe: a ConsumerHandler with bounded memory.

    Entries beyond the permits are kept for the next call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.granted = 0
        """The permits that were given, in messages."""
        # The following are guarded by _lock: blocks that nobody waits for yet, and where the first
        # one's next entry starts.
        self._blocks: deque[MessageBlock] = deque()
        self._at = 0
        self.held = 0
        """Bytes of the entries that nobody has requested."""

    def next(self, session: ConsumerSession, permits: int) -> Future[Frame]:
        """Return the future of the next entry; request `permits` messages if there is none."""
        entry = self._wait()
        if not self._serve():
            self.granted += permits
            self._request(session, permits)
        return entry

    def _take(self) -> Frame | PulsarError | None:
        if not self._blocks:
            return None
        block = self._blocks[0]
        try:
            frame, self._at = block.frame(max(self._at, block.start))
        except PulsarError as error:
            return error
        if self._at >= block.stop:
            self._blocks.popleft()
            self.held -= block.size
            self._at = 0
        return frame

    def on_messages(self, block: MessageBlock) -> int:
        """Keep entries, or end if there is no room for them; have the next ones at once."""
        block = block.alone()
        with self._lock:
            if self._error is None:
                self._blocks.append(block)
                self.held += block.size
            is_flood = self.held - block.size > _MAX_HELD
        self._serve()
        if is_flood:
            self._end(ConnectionLost("the broker sends far more than was requested"))
        return 0

    def _end(self, error: PulsarError) -> None:
        super()._end(error)
        with self._lock:
            self._blocks.clear()
            self.held = 0


def _only(results: Sequence[T | PulsarError]) -> T:
    (result,) = results
    return value_of(result)


def _place(
    answer: FoundEntry | PulsarError | None, position: Position
) -> Position | PulsarError | None:
    if isinstance(answer, FoundEntry):
        return answer.start
    if isinstance(answer, CorruptMessage) and answer.message_id is not None:
        return max(position, Position.before(MessageIdAdv.parse(answer.message_id)))
    return answer


def _kept_back(
    session: ConsumerSession, entries: _Entries, waits: Iterable[float], deadline: Deadline
) -> Operation[int | None]:
    """Return an operation for how many entries a broker does not deliver; None if it does.

    With a permit, it skips markers and aborted messages, up to an open transaction, and no longer
    counts them. Each wait for an entry is at most a quarter of the time that is left.
    """
    entry = entries.next(session, 1)
    for seconds in waits:
        stats: pb.CommandConsumerStatsResponse = yield session.stats(deadline)
        if not stats.msgBacklog:
            return 0
        try:
            yield Within(entry, min(seconds, deadline.remaining() / 4))
        except OperationTimeout:
            continue
        return None
    stats = yield session.stats(deadline)
    return int(stats.msgBacklog)


def _last_before(
    session: ConsumerSession, ledger_id: int, deadline: Deadline
) -> Operation[_Answer[int]]:
    """Return an operation for the last entry of a ledger, behind which a subscription starts."""
    answer: pb.CommandGetLastMessageIdResponse = yield session.last_message_id(deadline)
    # It has acknowledged that entry.
    done = MessageIdAdv.from_pb(answer.consumer_mark_delete_position)
    if done.ledger_id != ledger_id or done.entry_id < 0:
        return _Answer(None, 1 if done.entry_id < 0 else _MOVED)
    return _Answer(done.entry_id)


def _first_entry(
    session: ConsumerSession,
    entries: _Entries,
    position: Position,
    deadline: Deadline,
    patience: EntryWait,
) -> Operation[_Answer[FoundEntry]]:
    """Return an operation for a subscription's first entry that reaches beyond `position`.

    It raises ConnectionLost if another consumer may get a different result.
    """
    permits = 1
    passed = position
    done, end = began, _ = yield from unread_part(session, deadline)
    # A subscription also begins at a ledger's start if what was before it is deleted. Otherwise its
    # cursor was moved at once: the broker itself acknowledges nothing before it has permits.
    needed = 1 if began <= position or began.entry_id == 0 else _MOVED
    while True:
        if end <= max(passed, done):
            return _Answer(None, 1 if end <= passed else needed)
        try:
            frame: Frame = yield Within(entries.next(session, permits), patience.seconds)
        except OperationTimeout:
            raise patience.timed_out() from None
        found = _describe(frame, position)
        # A position's index can be beyond the end of its entry, batched or not.
        if found.stop > position and found.start.batch_index < found.messages:
            break
        # The position is after that entry's last message: take the next entry.
        message_id = frame.command.message.message_id
        passed = max(passed, Position(message_id.ledgerId, message_id.entryId + 1))
        permits = found.messages
        done, end = yield from unread_part(session, deadline)
    if needed == 1 and found.start[:2] not in (position[:2], passed[:2], began[:2]):
        done, _ = yield from unread_part(session, deadline)
        needed = 1 if done == began else _UNSURE
    return _Answer(found, needed)


def _more(
    session: ConsumerSession,
    entries: _Entries,
    look: Look,
    first: FoundEntry,
    deadline: Deadline,
    patience: EntryWait,
) -> Operation[list[FoundEntry]]:
    """Return an operation for the entries from the first one on, until there are enough."""
    found, messages, size = [first], first.remaining, first.size
    # One permit was left for that entry, and a batch takes as many as it has messages.
    delivered = entries.granted - 1 + first.messages
    while len(found) < look.entries and messages < look.messages and size < look.size:
        behind = found[-1].behind
        if behind >= look.end:
            break
        # Not much more than is wanted: what was requested arrives, and is held meanwhile.
        room = min(look.size - size, _MAX_HELD // 2) * messages / max(size, 1)
        permits = int(max(min(look.messages - messages, room, _MOST_PERMITS), 1))
        permits += max(delivered - entries.granted, 0)
        waiting = entries.next(session, permits)
        frame = yield from _next_before(session, waiting, behind, look.end, deadline, patience)
        if frame is None:
            break
        entry = _describe(frame, look.position)
        found.append(entry)
        delivered += entry.messages
        messages, size = messages + entry.remaining, size + entry.size
    return found


def _next_before(
    session: ConsumerSession,
    entry: Future[Frame],
    behind: Position,
    end: Position,
    deadline: Deadline,
    patience: EntryWait,
) -> Operation[Frame | None]:
    """Return an operation for the next entry after `behind`, None if there is none before `end`."""
    for seconds in (_SOON, patience.seconds):
        try:
            frame: Frame = yield Within(entry, seconds)
        except OperationTimeout:
            # What is left may be of aborted transactions, or their markers: the broker has
            # acknowledged it.
            done, upto = yield from unread_part(session, deadline)
            if max(done, behind) >= min(end, upto):
                return None
        else:
            return frame
    raise patience.timed_out()


def _describe(frame: Frame, position: Position) -> FoundEntry:
    found = frame.command.message.message_id
    message_id = MessageIdAdv.from_pb(found)
    try:
        check_id(found, is_stored=True)
    except RemoteProtocolError as error:
        # An impossible id is no place.
        raise CorruptMessage(error.what) from error
    try:
        entry = parse_payload(frame.payload, verify=False)
    except RemoteProtocolError as error:
        raise CorruptMessage(error.what, message_id=message_id) from error
    metadata = entry.metadata
    messages = max(metadata.num_messages_in_batch, 1)
    ledger_id, entry_id = message_id.ledger_id, message_id.entry_id
    return FoundEntry(
        start=max(position, Position(ledger_id, entry_id)),
        stop=Position(ledger_id, entry_id, messages)
        if entry.is_batch
        else Position(ledger_id, entry_id + 1),
        messages=messages,
        size=entry.size,
        publish_time=metadata.publish_time,
        broker_time=entry.broker_time,
        index=entry.index,
    )
