"""Reads a range of one topic partition, each message exactly once: in columns, or entry by entry.

A reader has its own non-durable subscription and acknowledges nothing. It keeps its position here,
not at the broker: after any disconnect its consumer resubscribes at that position, and messages
before it are dropped. It finds its end, too, by comparing positions.

Blocks come from the receiver queue. The block decoder turns most frames into columns. The entries
that it leaves are opened one by one, and framed anew for it; so are all for callers that want them.

Where entry ids have a gap, the blocks behind it wait until it is certain that the broker has passed
over nothing that is stored (`gaps`). If it may have, the range is read again from there.
"""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

from pulsar_spark.engine.closing import Closing
from pulsar_spark.engine.codecs import decompress
from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.consumers.chunk_search import ChunkSearch
from pulsar_spark.engine.consumers.entries import EntryDecoder, LastChunk
from pulsar_spark.engine.consumers.gaps import Gap, Gaps, HeldBlocks, cursor_of, place_of
from pulsar_spark.engine.consumers.probe import Held, Probe
from pulsar_spark.engine.consumers.reader_feed import Drive, ReaderFeed, wait_for_end
from pulsar_spark.engine.consumers.receiver_queue import Ended, LastId, ReceiverQueue
from pulsar_spark.engine.consumers.reframing import usual_frames
from pulsar_spark.engine.consumers.rows import ReceivedRows, RowDecoder
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.encryption import Decryptor
from pulsar_spark.engine.memory import ReceiverBudget
from pulsar_spark.engine.operations import Operation
from pulsar_spark.engine.options import ReaderOptions
from pulsar_spark.engine.retry import retried
from pulsar_spark.errors import (
    ClosedError,
    IncompleteMessage,
    OperationTimeout,
    PulsarError,
    UnsupportedFeature,
)
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol import blocks
from pulsar_spark.protocol.frame_parts import Frame, ReceivedEntry
from pulsar_spark.protocol.frames import MessageBlock
from pulsar_spark.protocol.implementation import make_decoder
from pulsar_spark.protocol.message_id import (
    EARLIEST_POSITION,
    LATEST_POSITION,
    MessageIdAdv,
    Position,
)
from pulsar_spark.protocol.topic_name import TopicName

logger = get_logger(__name__)

T = TypeVar("T")

_FIRST_IDLE = 0.5
_MAX_IDLE = 5.0
_FIRST_STALL = 5.0
_MAX_STALL = 60.0
_CLOSE_TIMEOUT = 1.0
# After this long without a message, check for an open transaction.
_HELD_AFTER = 10.0
_HELD_LOOK_SECONDS = 5.0


class RangeWatch(Protocol):
    """Wants to know which ledgers a reader meets; may raise an error to end it."""

    def on_ledger(self, before: Position, found: Position) -> None:
        """The first entry of the range, or of another ledger, arrived.

        `found` is that entry, `before` the reader's position.
        """

    def on_end(self, before: Position, found: Position | None) -> None:
        """The end was not reached and nothing more comes: the next entry is `found`, or None."""


class _IdleTimer:
    """How long a reader has waited, not counting its caller's own time, and what is due."""

    __slots__ = ("asked", "idle", "next_question", "next_stall", "stalled")

    def __init__(self) -> None:
        # Whether the topic's last message was requested.
        self.asked = False
        self.reset()

    def reset(self) -> None:
        """Requested messages arrived."""
        # Seconds of any waiting since then.
        self.stalled = 0.0
        self.begin()

    def begin(self) -> None:
        """Another consumer is needed at once."""
        # Seconds of waiting with a consumer.
        self.idle = 0.0
        # When to request the topic's last message, and when to try another consumer.
        self.next_question = _FIRST_IDLE
        self.next_stall = _FIRST_STALL

    def wants_question(self) -> bool:
        """Whether to request the last message now; then later again."""
        if self.asked or self.idle < self.next_question:
            return False
        self.next_question = self.idle + min(max(self.idle, _FIRST_IDLE), _MAX_IDLE)
        return True

    def wants_consumer(self) -> bool:
        """Whether to try another consumer now; then later again."""
        if self.idle < self.next_stall:
            return False
        self.next_stall += min(self.next_stall, _MAX_STALL)
        return True

    def left(self, poll_timeout: float | None) -> float:
        """Seconds until something is due; `poll_timeout` is None for endless ranges."""
        until = self.next_stall
        if poll_timeout is None:
            return max(until - self.idle, 0.001)
        if not self.asked:
            until = min(until, self.next_question)
        return max(min(until - self.idle, poll_timeout - self.stalled), 0.001)


class EntryReader(Closing):
    """Reads the entries of `topic` (one partition) from `start` up to, not including, `end`.

    Without an end it never finishes. LATEST_POSITION as start means messages published after the
    first call of `next_entry`; nothing connects before it. `first` is the range's first entry, if
    that is known: a reader that starts at EARLIEST_POSITION otherwise asks whether there was one
    before. `continues` is as in an EntryDecoder. For one thread; any thread may close it. A context
    manager. Raises UnsupportedFeature for a non-persistent topic.

    With `drive` the thread has other readers, too: it calls ``next_entry(0)`` when `drive` says so,
    or after `ready_in` seconds, and tells how long it has `waited`. Then an error that can pass is
    raised once, and another call tries again.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        topic: str,
        start: Position,
        end: Position | None = None,
        options: ReaderOptions | None = None,
        *,
        decoder: EntryDecoder | None = None,
        watch: RangeWatch | None = None,
        budget: ReceiverBudget | None = None,
        first: Position | None = None,
        continues: bool = False,
        drive: Drive | None = None,
    ) -> None:
        if not TopicName.parse(topic).is_persistent:
            raise UnsupportedFeature(
                "a non-persistent topic stores nothing, so there is no position to read from",
                topic=topic,
            )
        self.topic = topic
        self._pool = pool
        self._options = options or ReaderOptions()
        self._budget = budget or ReceiverBudget(self._options.memory_budget)
        # A reader that fetches chunks for another one uses that one's limits, and searches no
        # further back.
        self._chunks: ChunkSearch | None = None
        if decoder is None:
            decryptor = Decryptor(self._options.crypto_keys, self._options.crypto_failure_action)
            limit, memory = max(self._budget.total, 1), self._budget.chunks
            decoder = EntryDecoder(
                topic, start, end, limit, decryptor=decryptor, continues=continues, memory=memory
            )
            skip = self._options.skip_incomplete
            self._chunks = ChunkSearch(pool, topic, self._read_chunks, skip=skip)
        self._decoder = decoder
        self._consumer = ReaderFeed(
            pool,
            topic,
            self._options,
            self._budget,
            is_stored=end is not None,
            drive=drive,
        )
        self._start = wait_for_end if drive is None else drive.start
        self._lives = drive is not None
        # The current block, where its next entry starts, and the blocks after it.
        self._block: MessageBlock | None = None
        self._at = 0
        self._ready: deque[MessageBlock] = deque()
        # Blocks that wait for the answer to a question about their gap, and those that came after
        # the question.
        self._gaps = Gaps(end, first)
        self._waiting, self._later = HeldBlocks(), HeldBlocks()
        self._question: Future[Any] | None = None
        # Where to subscribe next, if not at the position; and the last position that was tried so.
        self._back_to: Position | None = None
        self._went_back: Position | None = None
        self._watch = watch
        # Whether the watch was told of the first entry.
        self._began = False
        self._idle_timer = _IdleTimer()
        self._last_id: MessageIdAdv | None = None
        self._held: Held | None = None
        self._error: PulsarError | None = None
        # Behind the entry that could not be read.
        self._behind_error: Position | None = None

    def __iter__(self) -> Iterator[ReceivedEntry]:
        """Yield the entries up to the end; raises as `next_entry`."""
        while (entry := self.next_entry()) is not None:
            yield entry

    @property
    def position(self) -> Position:
        """Where the next entry is read: after the last one that was returned."""
        return self._decoder.position

    @property
    def finished(self) -> bool:
        """Whether the whole range was returned."""
        return self._decoder.finished

    @property
    def incomplete(self) -> int:
        """Incomplete chunked messages that were skipped."""
        return 0 if self._chunks is None else self._chunks.incomplete

    @property
    def undecryptable(self) -> int:
        """Messages that could not be decrypted, and were skipped or returned encrypted."""
        return self._decoder.undecryptable

    def begin_operation(self, deadline: Deadline) -> Operation[None]:
        """Return an operation that subscribes, for whoever begins several readers together.

        Nothing may have been read. The first read raises its error.
        """
        return self._consumer.begin_operation(self.position, deadline)

    def next_entry(self, timeout: float | None = None) -> ReceivedEntry | None:
        """Return the next entry; None at the end of the range, or after `timeout` seconds.

        `finished` tells which. The timeout does not interrupt connecting. Raises
        CorruptMessage or EncryptedMessage for an unreadable entry (and again at every further
        call), OperationTimeout without progress for the poll timeout, ClosedError after `close`,
        and the broker's error.
        """
        return self._next(self._take_entry, timeout)

    def next_rows(
        self, decoder: RowDecoder, timeout: float | None = None
    ) -> ReceivedRows | ReceivedEntry | None:
        """Return the next messages as rows, or an entry that has to be opened; else `next_entry`.

        A reader has one decoder.
        """

        def take(block: MessageBlock) -> ReceivedRows | ReceivedEntry | None:
            return self._take_rows(block, decoder) or self._take_entry(block)

        return self._next(take, timeout)

    def _next(self, take: Callable[[MessageBlock], T], timeout: float | None) -> T | None:
        deadline = Deadline(timeout)
        while (block := self._next_block(deadline)) is not None:
            if (found := take(block)) is not None or deadline.expired():
                return found
        return None

    def skip(self) -> bool:
        """Go on behind an entry that cannot be read, if that was the error.

        Returns whether the reader can go on.
        """
        behind, self._behind_error = self._behind_error, None
        if behind is not None:
            self._decoder.advance(behind)
            self._error = None
        return self._error is None

    def ready_in(self) -> float:
        """Seconds after which `next_entry` can go on though nothing comes; 0 if it can at once."""
        if self._block is not None or self._ready:
            return 0.0
        queue = self._consumer.queue
        if queue is None:
            return math.inf if self._consumer.is_attaching else 0.0
        return self._idle_timer.left(None) if queue.empty else 0.0

    def waited(self, seconds: float) -> None:
        """So many seconds passed in which the thread that drives this reader could not go on."""
        if self._consumer.queue is not None:
            self._idle_timer.idle += seconds

    def read(self, wanted: blocks.BlockOptions) -> Iterator[blocks.Columns]:
        """Yield the range as columns. Raises as `next_entry`."""
        decoder = make_decoder(wanted, decompress)
        self._decoder.takes_time = wanted.takes_time
        forever = Deadline(None)
        while (block := self._next_block(forever)) is not None:
            status = self._take_columns(block, decoder)
            if status == blocks.SLOW:
                try:
                    entry = self._take_entry(block)
                except PulsarError:
                    if (columns := decoder.take()) is not None:
                        yield columns
                    raise
                if entry is not None:
                    # A batch that stays encrypted is one message, wherever the range starts in it.
                    start = Position(entry.ledger_id, entry.entry_id, entry.wanted.start)
                    yield from take_opened(entry, start, decoder)
            elif status == blocks.FULL and (columns := decoder.take()) is not None:
                yield columns
        if (columns := decoder.take()) is not None:
            yield columns

    def close(self) -> None:
        """Close the consumer, waiting at most a second for the broker; the pool stays open.

        A waiting `next_entry` raises ClosedError.
        """
        if (answer := self.begin_close()) is not None:
            wait_for([answer], _CLOSE_TIMEOUT)

    def begin_close(self) -> Future[Any] | None:
        """As `close`, without waiting: return the future of the broker's answer, if any."""
        if not isinstance(self._error, ClosedError):
            self._error = ClosedError("the reader is closed", topic=self.topic)
        self._decoder.close()
        return self._consumer.close()

    def _fail(self, error: PulsarError) -> PulsarError:
        """Return an error; store it, so that every further call raises it, unless it can pass."""
        if self._consumer.closed:
            error = ClosedError("the reader is closed")
        error = error.with_context(topic=self.topic)
        if not self._may_pass(error):
            self._error = error
        self._consumer.leave()
        return error

    def _may_pass(self, error: PulsarError) -> bool:
        """Whether it is a client's reader, which goes on after such an error."""
        return self._lives and self._consumer.can_pass(error)

    # --- receiving ----------------------------------------------------------------------------

    def _next_block(self, deadline: Deadline) -> MessageBlock | None:
        """Return the current or next block; None at the end of the range, or at the deadline."""
        if self._error is not None and not isinstance(self._error, ClosedError):
            raise self._error
        while not self.finished:
            if self._error is not None:
                raise self._error
            if self._block is None and self._ready:
                self._block = self._ready.popleft()
                self._at = self._block.start
            if self._block is not None:
                return self._block
            try:
                self._check_progress()
                if not self._wait(deadline):
                    return None
            except PulsarError as error:
                raise self._fail(error) from error.__cause__
        return None

    def _wait(self, deadline: Deadline) -> bool:
        """Wait for a block, or work towards one; return false at the deadline."""
        started = time.monotonic()
        queue = self._consumer.queue
        try:
            if queue is None:
                return self._subscribe()
            return self._receive(queue, deadline) or not deadline.expired()
        finally:
            self._idle_timer.stalled += time.monotonic() - started

    def _subscribe(self) -> bool:
        has_tried = self._consumer.subscribe(self._back_to or self.position)
        if self._consumer.queue is not None:
            self._idle_timer.asked = False
            self._gaps.begin(self._consumer.start)
            self._waiting, self._later = HeldBlocks(), HeldBlocks()
            self._question = self._back_to = None
            self._decoder.limit = max(self._decoder.limit, self._consumer.max_message_size)
            if self.position == LATEST_POSITION:
                self._decoder.position = self._consumer.start
        return has_tried

    def _receive(self, queue: ReceiverQueue, deadline: Deadline) -> bool:
        """Handle the queue's next item; return whether it is a block."""
        item = queue.get(0)
        if item is None:
            started = time.monotonic()
            is_endless = self._decoder.end is None
            left = self._idle_timer.left(None if is_endless else self._options.poll_timeout)
            item = queue.get(min(left, deadline.remaining()))
            self._idle_timer.idle += time.monotonic() - started
        if isinstance(item, MessageBlock):
            self._on_block(item)
        elif isinstance(item, Ended):
            self._consumer.on_ended(item)
        elif isinstance(item, LastId) and item.answer is self._question:
            self._on_cursor(item.answer)
        elif isinstance(item, LastId):
            self._on_last_id(item.answer)
        else:
            self._on_idle()
        return bool(self._ready)

    # --- gaps ---------------------------------------------------------------------------------

    def _on_block(self, block: MessageBlock) -> None:
        """Have a block taken, or hold it: a gap is explained before anything behind it is taken."""
        gap = self._gaps.find(block, self.position)
        if self._question is not None:
            # What the broker answers may have been so before this block was sent.
            self._later.add(block, gap)
        elif gap is None:
            self._ready.append(block)
        else:
            self._waiting.add(block, gap)
            self._ask_cursor(gap)

    def _ask_cursor(self, gap: Gap) -> None:
        """Ask where the cursor is; the answer explains a gap, or makes it doubtful."""
        same = gap.expected.ledger_id == gap.found.ledger_id
        if gap.is_first and same and not self._options.read_compacted:
            # The broker has acknowledged unused ids, so the cursor has moved in any case.
            self._doubt(gap)
            return
        self._question = self._consumer.ask_last_id()
        if self._question is None:
            self._consumer.leave()

    def _on_cursor(self, answer: Future[Any]) -> None:
        gap = self._waiting.gap
        self._question = None
        error = answer.exception()
        if isinstance(error, UnsupportedFeature):
            # This broker cannot tell.
            self._accept()
            return
        if gap is None or error is not None:
            self._consumer.leave()
            return
        cursor = cursor_of(answer.result())
        # At a ledger's start, subscriptions to a topic's first entry begin, and those to compacted
        # entries of ledgers that are gone.
        from_start = gap.expected == EARLIEST_POSITION or self._options.read_compacted
        if cursor is None or cursor <= gap.expected or (from_start and cursor.entry_id == 0):
            self._accept()
        else:
            self._doubt(gap)

    def _accept(self) -> None:
        """Nothing that is stored is missing: take what was held."""
        self._ready.extend(self._waiting.blocks)
        self._waiting, self._later = self._later, HeldBlocks()
        if self._waiting.gap is not None:
            # While the others are taken.
            self._ask_cursor(self._waiting.gap)
        else:
            self._ready.extend(self._waiting.blocks)
            self._waiting = HeldBlocks()

    def _doubt(self, gap: Gap) -> None:
        """Read again what is in a gap.

        From the entry before it, if that can be: it shows that unused ids are skipped, and the
        cursor stays in front of it. Otherwise another subscription must find the same.
        """
        expected, found, is_first = gap
        compacted = self._options.read_compacted
        was_there = self._went_back == expected and (is_first or compacted)
        if expected.entry_id > 0 and not was_there:
            before = Position(expected.ledger_id, expected.entry_id - 1)
            self._back_to = min(before, self.position)
            self._went_back = expected
        elif compacted or self._finds_first(found):
            self._accept()
            return
        logger.info(
            "%s: the broker may have passed over entries from %s to %s, reading them again",
            self.topic,
            expected,
            found,
        )
        self._consumer.leave_for_another()

    def _finds_first(self, found: Position) -> bool:
        """Whether `found` is the first entry from the reader's position on."""
        try:
            first = Probe(self._pool).first_place_at(self.topic, Position(*self.position[:2]))
        except PulsarError as error:
            if not self._consumer.can_pass(error):
                raise
            return False
        return first is not None and first[:2] == found[:2]

    # --- taking -------------------------------------------------------------------------------

    def _take_columns(self, block: MessageBlock, decoder: blocks.BlockDecoder) -> int:
        """Let the decoder take frames of the block; return its status."""
        before, at = self.position, self._at
        done = decoder.decode(block.data, at, block.stop, before)
        self._took(block, at, done, before)
        return done.status

    def _take_rows(self, block: MessageBlock, decoder: RowDecoder) -> ReceivedRows | None:
        """Take usual entries of the block; None if the next one has to be opened."""
        before, at = self.position, self._at
        if not decoder.suits(block, at):
            return None
        rows, done = decoder.take(block, at, before)
        if rows is not None:
            self._took(block, at, done, before)
        return rows

    def _took(self, block: MessageBlock, at: int, done: blocks.Progress, before: Position) -> None:
        """Go on behind what a decoder took of the block, from the place `at` on."""
        self._at = done.at
        if done.at == block.stop:
            self._block = None
        self._decoder.advance(Position(*done.position))
        # A part of the next entry may have been taken.
        taken = done.at if done.position[2] == 0 or self.position == before else done.at + 1
        self._report_ledgers(block, at, min(taken, block.stop), before)
        if done.status == blocks.END:
            self._finish(block)
        if done.messages:
            self._consumed(before, done.messages, done.at - at)

    def _take_entry(self, block: MessageBlock) -> ReceivedEntry | None:
        """Open one entry; None if nothing of it is wanted."""
        before, at = self.position, self._at
        frame: Frame | None = None
        try:
            frame, self._at = block.frame(at)
            if self._at == block.stop:
                self._block = None
            entry = self._decoder.decode(frame)
            if entry is None and (chunk := self._decoder.last_chunk) is not None:
                entry = self._find_message(chunk)
        except PulsarError as error:
            if self._may_pass(error):
                # Its chunks could not be fetched now: the entry stays the next one.
                self._block, self._at = block, at
                self._decoder.step_back(before)
                raise error.with_context(topic=self.topic) from error.__cause__
            # An error that names no entry says that the id is impossible.
            is_final = error.message_id is not None and not self._consumer.can_pass(error)
            if frame is not None and is_final:
                found = frame.command.message.message_id
                self._behind_error = Position(found.ledgerId, found.entryId + 1)
            raise self._fail(error) from error.__cause__
        if self.position != before:
            self._report_ledgers(block, at, self._at, before)
        elif self.finished:
            self._at = at
            self._finish(block)
        self._consumed(before, self._decoder.messages, len(frame.payload))
        return entry

    def _consumed(self, before: Position, messages: int, size: int) -> None:
        """Messages from `before` on were consumed; gives permits for more."""
        if self.position != before:
            # Messages before the range are no progress.
            self._idle_timer.reset()
            self._consumer.on_progress()
        left = self._left(before, size)
        self._consumer.consumed(messages, size, left, more=not self.finished)

    def _left(self, before: Position, size: int) -> int | None:
        """Estimate the bytes left of the range; None if its end is in another ledger, or nowhere.

        The entries from `before` on had `size` bytes.
        """
        position, end = self.position, self._decoder.end
        if end is None or not before.ledger_id == position.ledger_id == end.ledger_id:
            return None
        entries = max(position.entry_id - before.entry_id, 1)
        return size * (end.entry_id - position.entry_id) // entries

    def _find_message(self, chunk: LastChunk) -> ReceivedEntry | None:
        """Return the message of a last chunk whose other chunks were not here."""
        if self._chunks is None:
            return None
        try:
            return self._chunks.find(chunk)
        except IncompleteMessage:
            self._decoder.step_back(Position(chunk.ledger_id, chunk.entry_id))
            raise

    @contextmanager
    def _read_chunks(self, chunk: LastChunk, start: Position) -> Iterator[EntryReader]:
        with self._budget.fetching(lambda: self._consumer.closed) as queue:
            reader = reader_of_chunks(
                self._pool, chunk, start, self._decoder, self._options, self._budget, queue
            )
            with reader:
                yield reader

    # --- the watch ----------------------------------------------------------------------------

    def _report_ledgers(self, block: MessageBlock, at: int, stop: int, before: Position) -> None:
        """Tell the watch which ledgers start in the frames from `at` on, taken from `before` on."""
        if self._watch is None or at == stop:
            return
        if self._began and self.position.ledger_id == before.ledger_id:
            return
        try:
            for place, found in _first_entries(block, at, stop, before, begun=self._began):
                self._began = True
                self._watch.on_ledger(place, found)
        except PulsarError as error:
            raise self._fail(error) from error.__cause__

    def _finish(self, block: MessageBlock | None = None) -> None:
        """End the range: a block's next entry is after it, or the topic ends."""
        self._decoder.finish()
        end = self._decoder.end
        if self._watch is None or end is None or self.position >= end:
            return
        try:
            found = None if block is None else place_of(block, self._at)
            self._watch.on_end(self.position, found)
        except PulsarError as error:
            raise self._fail(error) from error.__cause__

    # --- no messages --------------------------------------------------------------------------

    def _check_progress(self) -> None:
        """Raise OperationTimeout if a range with an end made no progress for too long."""
        end, timeout = self._decoder.end, self._options.poll_timeout
        if end is not None and self._idle_timer.stalled >= timeout:
            raise OperationTimeout(
                f"no message of the range arrived for {timeout:g} s at position "
                f"{self.position}, it ends at {end}, the topic's last message is "
                f"{self._last_id or 'not known'}{'' if self._held is None else f'; {self._held}'}",
                "Check the topic (open transactions and dispatch rates hold reads back), or raise "
                "pollTimeout.",
            )

    def _on_idle(self) -> None:
        is_endless = self._decoder.end is None
        if self._idle_timer.wants_consumer():
            # Either side can lose permits, and a broker that unloads the topic while a consumer
            # subscribes can forget it: a new consumer repairs both.
            level = logging.DEBUG if is_endless else logging.INFO
            idle = self._idle_timer.idle
            logger.log(level, "%s: nothing came for %.0f s, subscribing anew", self.topic, idle)
            self._consumer.leave()
            if idle >= _HELD_AFTER:
                self._look_for_what_holds()
        elif self._question is None and not is_endless and self._idle_timer.wants_question():
            self._idle_timer.asked = self._consumer.ask_last_id() is not None

    def _look_for_what_holds(self) -> None:
        """Log what holds messages back; its own errors are ignored."""
        position = Position(*self.position[:2])
        attempt = partial(Probe(self._pool).held_operation, self.topic, position)
        looked = self._start(retried(attempt), _HELD_LOOK_SECONDS)
        looked.add_done_callback(self._on_looked)

    def _on_looked(self, looked: Future[Held | None]) -> None:
        self._held = None if looked.exception() is not None else looked.result()
        if self._held is not None:
            logger.warning("%s: %s", self.topic, self._held)

    def _on_last_id(self, answer: Future[Any]) -> None:
        self._idle_timer.asked = False
        # Go on after an error: either the consumer ends too, or we ask again.
        if answer.exception() is not None:
            return
        self._last_id = MessageIdAdv.from_pb(answer.result().last_message_id)
        if Position.after(self._last_id) > self.position:
            cursor = cursor_of(answer.result())
            if cursor is not None and cursor >= Position.after(self._last_id):
                # It was moved past all that there is: nothing more comes of this session.
                self._idle_timer.begin()
                self._consumer.leave_for_another()
            return
        # Only believe that the topic is empty if the broker confirms the consumer.
        if self._last_id.entry_id >= 0 or self._consumer.is_known():
            self._finish()
        else:
            self._consumer.leave()


def take_opened(
    entry: ReceivedEntry, start: Position, decoder: blocks.BlockDecoder
) -> Iterator[blocks.Columns]:
    """Let a decoder take an opened entry from `start` on; yield its columns when it is full.

    Raises CorruptMessage or CorruptBatch for an entry that cannot be rows.
    """
    place: blocks.Place = start
    for frame in usual_frames(entry):
        status = blocks.FULL
        while status == blocks.FULL:
            _, status, _, place = decoder.decode(frame, 0, len(frame), place)
            if status == blocks.FULL and (columns := decoder.take()) is not None:
                yield columns
        if status != blocks.SLOW:
            return


def reader_of_chunks(
    pool: ConnectionPool,
    chunk: LastChunk,
    start: Position,
    asking: EntryDecoder,
    options: ReaderOptions,
    budget: ReceiverBudget,
    queue: ReceiverBudget,
) -> EntryReader:
    """Return a reader that skips everything but one message's chunks, for the decoder `asking`.

    `queue` is the budget of its receiver queue; the chunks count against `budget`.
    """
    end = Position(chunk.ledger_id, chunk.entry_id + 1)
    decoder = EntryDecoder(
        asking.topic, start, end, asking.limit, chunk.uuid, asking.decryptor, memory=budget.chunks
    )
    return EntryReader(pool, asking.topic, start, end, options, decoder=decoder, budget=queue)


def _first_entries(
    block: MessageBlock, at: int, stop: int, before: Position, *, begun: bool
) -> Iterator[tuple[Position, Position]]:
    """Yield the first entry of each ledger from `at` on, with the position before each.

    If reading had not started, the first entry at or after `before` is one of them.
    """
    frames = block.places(at, stop)
    first = bisect_left(frames, before[:2], key=lambda frame: place_of(block, frame)[:2])
    ledger_id = before.ledger_id if begun else None
    while first < len(frames):
        found = place_of(block, frames[first])
        if found.ledger_id != ledger_id:
            yield before, found
        ledger_id = found.ledger_id
        first = bisect_left(
            frames, (ledger_id + 1,), first + 1, key=lambda frame: place_of(block, frame)[:1]
        )
        last = place_of(block, frames[first - 1])
        before = Position(last.ledger_id, last.entry_id + 1)
