"""Reading a range of one topic partition, entry by entry, exactly once each.

A reader has a non-durable subscription of its own and acknowledges nothing. Where it stands is
kept here, as a position, never at the broker: after a disconnect of any kind it subscribes anew
at that position and drops what lies before it. Its end, too, is found by comparing positions.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol

from pulsar_spark.engine.addresses import BrokerAddress, assigned_broker
from pulsar_spark.engine.codecs import decompress
from pulsar_spark.engine.connection import ClientConnection
from pulsar_spark.engine.consumer_session import ConsumerSession, SubscribeRequest, unique_name
from pulsar_spark.engine.context import ConnectionPool
from pulsar_spark.engine.entries import EntryDecoder, LoneChunk, ReceivedEntry
from pulsar_spark.engine.lookup import Lookup
from pulsar_spark.engine.operations import Operation, run
from pulsar_spark.engine.options import ReaderOptions
from pulsar_spark.engine.probe import Probe
from pulsar_spark.engine.receiver_queue import Ended, LastId, Permits, ReceiverBudget, ReceiverQueue
from pulsar_spark.engine.retry import Backoff, Deadline, is_retryable
from pulsar_spark.errors import (
    ClosedError,
    ConsumerBusy,
    IncompleteMessage,
    OperationTimeout,
    PulsarError,
    UnsupportedFeature,
)
from pulsar_spark.protocol import blocks
from pulsar_spark.protocol.frames import MessageBlock
from pulsar_spark.protocol.implementation import make_decoder
from pulsar_spark.protocol.message_id import (
    EARLIEST_POSITION,
    LATEST_POSITION,
    MessageId,
    Position,
)
from pulsar_spark.protocol.topic_name import TopicName

logger = logging.getLogger(__name__)

_FIRST_IDLE = 0.5
_MAX_IDLE = 5.0
_FIRST_STALL = 5.0
_MAX_STALL = 60.0
_MAX_RECONNECT_DELAY = 5.0
_CLOSE_TIMEOUT = 1.0
_ATTEMPT_TIMEOUT = 15.0
# Searches for chunks by their time that may be in vain, where their loss is no error.
_MAX_VAIN_SEARCHES = 100
_LOOK_BACK_ENTRIES = 100
# Clocks of producers and brokers may differ by this.
_LOOK_BACK_MILLISECONDS = 60_000


class RangeWatch(Protocol):
    """Whoever wants to know which ledgers a reader meets; may raise an error to end it."""

    def on_ledger(self, before: Position, found: Position) -> None:
        """The first entry of the range came, or the first one of another ledger.

        `found` is that entry, `before` where the reader stood.
        """

    def on_end(self, before: Position, found: Position | None) -> None:
        """The end was not reached, and nothing more comes: the next entry is `found`, or none."""


class EntryReader:
    """Reads the entries of `topic` (one partition) from `start` up to, not including, `end`.

    Without an end it goes on for ever; LATEST_POSITION as start is what is published after the
    first call of `next_entry`, before which nothing is connected. To be used by one thread, and
    closed at the end, by any thread: it is a context manager. `incomplete` counts the messages in
    chunks that were left out as they are not whole. Raises UnsupportedFeature for a
    non-persistent topic.
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
    ) -> None:
        if not TopicName.parse(topic).is_persistent:
            raise UnsupportedFeature(
                "a non-persistent topic keeps nothing that could be read from a position",
                topic=topic,
            )
        self.topic = topic
        self._pool = pool
        self._lookup = Lookup(pool)
        self._options = options or ReaderOptions()
        self._name = unique_name(self._options.subscription_prefix)
        limit = self._options.memory_budget
        self._decoder = decoder or EntryDecoder(topic, start, end, limit)
        # What readers of one client may hold together.
        self._budget = budget or ReceiverBudget(self._options.memory_budget)
        self._budget.join()
        self._permits = Permits(self._options, 0, self._budget)
        self._lock = threading.Lock()
        # Guarded by _lock, for `close` may be called by another thread.
        self._session: ConsumerSession | None = None
        self._closed = False
        self._queue: ReceiverQueue | None = None
        self._lives = 0
        self._was_there = False
        # What is being taken apart, and how far that is.
        self._block: MessageBlock | None = None
        self._at = 0
        self._watch = watch
        # Whether the watch knows of the first entry.
        self._began = False
        # Where the broker said that the topic went, to be tried once without a lookup.
        self._moved_to: BrokerAddress | None = None
        self._retry_at = 0.0
        self._backoff = Backoff(maximum=_MAX_RECONNECT_DELAY)
        # Seconds spent here, and not in the caller's code: since the last progress, without a
        # consumer since there was one, and with one that delivered nothing.
        self._stalled = 0.0
        self._down = 0.0
        self._idle = 0.0
        self._next_question = _FIRST_IDLE
        self._asked = False
        self._next_stall = _FIRST_STALL
        self._last_id: MessageId | None = None
        self._error: PulsarError | None = None
        self.incomplete = 0
        # A reader that fetches chunks for another has that one's bounds in the decoder that it
        # was given, and looks no further back itself.
        self._looks_back = decoder is None

    def __enter__(self) -> EntryReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[ReceivedEntry]:
        """Yield the entries up to the end; raises as `next_entry`."""
        while (entry := self.next_entry()) is not None:
            yield entry

    @property
    def position(self) -> Position:
        """Where the next entry is read from: right behind the last one that was returned."""
        return self._decoder.position

    @property
    def finished(self) -> bool:
        """Whether all of the range has been returned."""
        return self._decoder.finished

    def next_entry(self, timeout: float | None = None) -> ReceivedEntry | None:
        """Return the next entry; None at the end of the range, or after `timeout` seconds.

        `finished` tells the two apart. An attempt to connect is not cut short by the timeout.
        Raises CorruptMessage or EncryptedMessage for an entry that cannot be read (and again at
        every further call), OperationTimeout when there was no progress for the poll timeout
        though the range has not ended, ClosedError after `close`, and what brokers refuse with.
        """
        deadline = Deadline(timeout)
        while (block := self._next_block(deadline)) is not None:
            entry = self._take_entry(block)
            if entry is not None:
                return entry
            if deadline.expired():
                break
        return None

    def read(self, wanted: blocks.BlockOptions) -> Iterator[blocks.Columns | ReceivedEntry]:
        """Yield the range in columns, and entry by entry what is not for the fast way.

        Raises as `next_entry`.
        """
        decoder = make_decoder(wanted, decompress)
        forever = Deadline(None)
        while (block := self._next_block(forever)) is not None:
            status = self._take_columns(block, decoder)
            if status == blocks.SLOW:
                entry = self._take_entry(block)
                if entry is None:
                    continue
                if (columns := decoder.take()) is not None:
                    yield columns
                yield entry
            elif status == blocks.FULL and (columns := decoder.take()) is not None:
                yield columns
        if (columns := decoder.take()) is not None:
            yield columns

    def close(self) -> None:
        """Close the consumer, waiting at most a second for the broker; the pool stays open.

        Whoever waits in `next_entry` is told ClosedError.
        """
        error = ClosedError("the reader is closed", topic=self.topic)
        with self._lock:
            is_first, self._closed = not self._closed, True
            session, self._session = self._session, None
            queue, self._queue = self._queue, None
        if is_first:
            self._budget.leave()
        if not isinstance(self._error, ClosedError):
            self._error = error
        answer = None if session is None else session.close()
        if queue is not None:
            queue.on_disconnect(error)
        if answer is not None:
            with contextlib.suppress(FutureTimeout):
                answer.exception(_CLOSE_TIMEOUT)

    # --- receiving ----------------------------------------------------------------------------

    def _next_block(self, deadline: Deadline) -> MessageBlock | None:
        """Return the block to go on with; None at the end of the range, or at the deadline."""
        while not self.finished:
            if self._error is not None:
                raise self._error
            if self._block is not None:
                return self._block
            self._check_progress()
            started = time.monotonic()
            queue = self._queue
            try:
                if queue is not None:
                    if not self._receive(queue, deadline) and deadline.expired():
                        return None
                elif not self._subscribe(deadline):
                    return None
            finally:
                self._stalled += time.monotonic() - started
        return None

    def _receive(self, queue: ReceiverQueue, deadline: Deadline) -> bool:
        """Take what comes next from the queue; return whether it is a block."""
        item = queue.get(0)
        if item is None:
            started = time.monotonic()
            item = queue.get(min(self._patience(), deadline.remaining()))
            self._idle += time.monotonic() - started
        if isinstance(item, MessageBlock):
            self._block, self._at = item, item.start
            return True
        if isinstance(item, Ended):
            self._on_ended(item)
        elif isinstance(item, LastId):
            self._on_last_id(item.answer)
        else:
            self._on_idle(queue)
        return False

    def _take_columns(self, block: MessageBlock, decoder: blocks.Decoder) -> int:
        """Let the decoder have what it takes of the block; return its status."""
        before, at = self.position, self._at
        done = decoder.decode(block.data, at, block.stop, before)
        self._at = done.at
        if done.at == block.stop:
            self._block = None
        self._decoder.advance(Position(*done.position))
        # Of the next entry a part may have been taken.
        taken = done.at if done.position[2] == 0 or self.position == before else done.at + 1
        self._tell_ledgers(block, at, min(taken, block.stop), before)
        if done.status == blocks.END:
            self._finish(block)
        if done.messages:
            self._consumed(before, done.messages, done.at - at)
        return done.status

    def _take_entry(self, block: MessageBlock) -> ReceivedEntry | None:
        """Take one entry of the block, with care; None if nothing of it is wanted."""
        before, at = self.position, self._at
        try:
            message, self._at = block.message(at)
            if self._at == block.stop:
                self._block = None
            entry = self._decoder.decode(message)
            if entry is None and (chunk := self._decoder.lone_chunk) is not None:
                entry = self._look_back(chunk)
        except PulsarError as error:
            raise self._fail(error) from error.__cause__
        if self.position != before:
            self._tell_ledgers(block, at, self._at, before)
        elif self.finished:
            self._at = at
            self._finish(block)
        self._consumed(before, self._decoder.messages, len(message.payload))
        return entry

    # --- telling the watch --------------------------------------------------------------------

    def _tell_ledgers(self, block: MessageBlock, at: int, stop: int, before: Position) -> None:
        """Tell of the ledgers that begin in the frames from `at` on, taken from `before` on."""
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
        """End the range, before a block's next entry or because the topic ends."""
        self._decoder.finish()
        end = self._decoder.end
        if self._watch is None or end is None or self.position >= end:
            return
        try:
            found = None if block is None else _place_of(block, self._at)
            self._watch.on_end(self.position, found)
        except PulsarError as error:
            raise self._fail(error) from error.__cause__

    # --- chunks -------------------------------------------------------------------------------

    def _consumed(self, before: Position, messages: int, size: int) -> None:
        """Take note of messages that were taken from `before` on, and give permits for others."""
        if self.position != before:
            # What lies before the range is none.
            self._progress()
        permits = self._permits.consumed(messages, size)
        session = self._session
        if permits and not self.finished and session is not None:
            # If the connection is lost, the queue will say so behind what is in it.
            with contextlib.suppress(PulsarError):
                session.flow(permits)

    def _look_back(self, chunk: LoneChunk) -> ReceivedEntry | None:
        """Return the message that a last chunk belongs to, read from its first chunk on.

        None if that chunk was sent again after the message was whole, or for one that is not
        whole and may be left out. Raises IncompleteMessage.
        """
        if not self._looks_back:
            return None
        for start in self._look_back_starts(chunk):
            entry = None
            with self._reader_of(chunk, start) as reader:
                for entry in reader:
                    if (entry.ledger_id, entry.entry_id) == chunk[:2]:
                        return entry
            if entry is not None:
                # It ended before.
                return None
        error = IncompleteMessage(
            f"a message in {chunk.chunks} chunks ends here, and the topic does not hold all of "
            "them",
            "Chunks were deleted (by retention, time to live or compaction) or never stored. Set "
            "failOnDataLoss=false to leave such messages out.",
            topic=self.topic,
            message_id=f"{chunk.ledger_id}:{chunk.entry_id}",
        )
        if not self._options.skip_incomplete:
            self._decoder.step_back(Position(chunk.ledger_id, chunk.entry_id))
            raise error
        self.incomplete += 1
        logger.warning("data was lost: %s", error)
        return None

    def _look_back_starts(self, chunk: LoneChunk) -> Iterator[Position]:
        if chunk.first is not None:
            yield chunk.first
            return
        # Chunks mostly lie close together; if not, the time of the first one tells.
        before = max(chunk.entry_id - 2 * chunk.chunks - _LOOK_BACK_ENTRIES, 0)
        yield Position(chunk.ledger_id, before)
        if self.incomplete < _MAX_VAIN_SEARCHES:
            time_ms = max(chunk.time - _LOOK_BACK_MILLISECONDS, 0)
            found = Probe(self._pool).first_entry_from_time(self.topic, time_ms)
            yield EARLIEST_POSITION if found is None else found.start

    def _reader_of(self, chunk: LoneChunk, start: Position) -> EntryReader:
        """Return a reader that passes by everything but the chunks of one message."""
        end = Position(chunk.ledger_id, chunk.entry_id + 1)
        options = replace(self._options, memory_budget=self._options.memory_budget // 4 + 1)
        decoder = EntryDecoder(self.topic, start, end, self._decoder.limit, chunk.uuid)
        return EntryReader(self._pool, self.topic, start, end, options, decoder=decoder)

    def _progress(self) -> None:
        self._stalled = 0.0
        self._idle = 0.0
        self._next_question = _FIRST_IDLE
        self._next_stall = _FIRST_STALL
        self._backoff.reset()

    # --- nothing comes ------------------------------------------------------------------------

    def _patience(self) -> float:
        """Seconds after which something is to be done if nothing comes."""
        until = self._next_stall
        if self._decoder.end is None:
            return max(until - self._idle, 0.001)
        if not self._asked:
            until = min(until, self._next_question)
        left = self._options.poll_timeout - self._stalled
        return max(min(until - self._idle, left), 0.001)

    def _check_progress(self) -> None:
        """Raise OperationTimeout where a range with an end had no progress for too long."""
        end = self._decoder.end
        if end is None or self._stalled < self._options.poll_timeout:
            return
        raise self._fail(
            OperationTimeout(
                f"nothing of the range was received for {self._options.poll_timeout:g} s at "
                f"position {self.position}, it ends at {end}, the topic's last message is "
                f"{self._last_id or 'not known'}",
                "Check the topic (an open transaction holds reading back), or raise pollTimeout.",
            )
        )

    def _fail(self, error: PulsarError) -> PulsarError:
        """End by an error, which every further call raises, and return it."""
        if self._closed:
            error = ClosedError("the reader is closed")
        self._error = error.with_context(topic=self.topic)
        self._drop_session()
        return self._error

    def _on_idle(self, queue: ReceiverQueue) -> None:
        end = self._decoder.end
        if self._idle >= self._next_stall:
            # Permits can be lost on either side, and a broker that is letting go of the topic while
            # a consumer comes can forget it: a new consumer makes both agree again.
            level = logging.DEBUG if end is None else logging.INFO
            logger.log(
                level, "%s: nothing came for %.0f s, subscribing anew", self.topic, self._idle
            )
            self._next_stall += min(self._next_stall, _MAX_STALL)
            self._drop_session()
        elif end is not None and self._idle >= self._next_question and not self._asked:
            self._next_question = self._idle + min(max(self._idle, _FIRST_IDLE), _MAX_IDLE)
            self._ask_last_id(queue)

    def _ask_last_id(self, queue: ReceiverQueue) -> None:
        session = self._session
        if session is not None:
            self._asked = True
            timeout = Deadline(self._pool.options.operation_timeout)
            session.last_message_id(timeout).add_done_callback(queue.put_last_id)

    def _on_last_id(self, answer: Future[Any]) -> None:
        self._asked = False
        # An error is no reason to stop: either the consumer ends too, or it is asked again.
        if answer.exception() is None:
            self._last_id = MessageId.from_pb(answer.result().last_message_id)
            if Position.after(self._last_id) <= self.position:
                self._on_nothing_more(self._last_id)

    def _on_nothing_more(self, last_id: MessageId) -> None:
        # Of a consumer without a topic behind it that is not believed.
        if last_id.entry_id >= 0 or self._is_confirmed():
            self._finish()
        else:
            self._drop_session()

    def _is_confirmed(self) -> bool:
        """Whether the broker says that it knows the consumer."""
        session = self._session
        if session is None:
            return False
        try:
            run(session.confirm, self._pool.options.operation_timeout)
        except PulsarError as error:
            if not _can_pass(error):
                raise self._fail(error) from error.__cause__
            return False
        return True

    # --- subscribing --------------------------------------------------------------------------

    def _subscribe(self, deadline: Deadline) -> bool:
        """Make one attempt to subscribe; return false if the deadline leaves no time for it."""
        started = time.monotonic()
        delay, left = max(self._retry_at - started, 0.0), deadline.remaining()
        time.sleep(min(delay, left))
        if delay > left:
            self._down += time.monotonic() - started
            return False
        try:
            # With several service hosts, each may take the connection timeout.
            timeout = max(_ATTEMPT_TIMEOUT, self._pool.options.operation_timeout)
            run(self._subscribe_operation, timeout)
        except PulsarError as error:
            self._down += time.monotonic() - started
            self._retry_at = time.monotonic() + self._backoff.next()
            self._on_refused(error)
        else:
            self._down = 0.0
            self._was_there = True
        return True

    def _on_refused(self, error: PulsarError) -> None:
        options = self._pool.options
        limit = self._options.poll_timeout if self._was_there else options.operation_timeout
        if self._closed or not _can_pass(error) or self._down >= limit:
            raise self._fail(error) from error.__cause__
        logger.info("%s: cannot subscribe (%s), trying again", self.topic, error.what)

    def _subscribe_operation(self, deadline: Deadline) -> Operation[None]:
        moved_to, self._moved_to = self._moved_to, None
        if moved_to is not None:
            connection: ClientConnection = yield self._pool.get_async(moved_to)
        else:
            connection = yield from self._lookup.connection_operation(self.topic, deadline)
        if self.position == LATEST_POSITION:
            # From here on "latest" is a place like any other, so that a reconnect loses nothing.
            last_id = yield from self._lookup.last_message_id_operation(self.topic, deadline)
            self._decoder.position = Position.after(last_id)

        def stop() -> None:
            session.close()

        queue = ReceiverQueue(self._budget, stop)
        session = ConsumerSession(connection, self._wish(), queue)
        self._adopt(session)
        try:
            yield from session.subscribe(deadline)
            self._decoder.limit = max(self._decoder.limit, connection.max_message_size)
            session.flow(self._permits.begin(connection.max_message_size))
        except BaseException:
            self._drop_session()
            raise
        self._asked = False
        with self._lock:
            self._queue = None if self._closed else queue

    def _wish(self) -> SubscribeRequest:
        # A name per attempt: the broker may still hold the consumer of a broken connection.
        self._lives += 1
        return SubscribeRequest(
            self.topic,
            f"{self._name}-{self._lives}",
            Position(*self.position[:2]),
            read_compacted=self._options.read_compacted,
        )

    def _adopt(self, session: ConsumerSession) -> None:
        """Have a session closed with the reader; raises ClosedError if that is closed already."""
        with self._lock:
            if not self._closed:
                self._session = session
                return
        session.close()
        raise ClosedError("the reader is closed", topic=self.topic)

    # --- ends of consumers --------------------------------------------------------------------

    def _on_ended(self, ended: Ended) -> None:
        session = self._session
        self._drop_session()
        if ended.error is not None and not is_retryable(ended.error):
            raise self._fail(ended.error)
        if session is None:
            return
        address = session.connection.address
        if ended.overrun:
            logger.info("%s: more came than there is memory for, subscribing anew", self.topic)
            self._moved_to = address
        elif ended.moved_to is not None:
            self._moved_to = assigned_broker(ended.moved_to, address, self._pool.service_url.tls)
        if self._moved_to is None:
            # Many readers may have lost the same broker at this moment.
            self._retry_at = time.monotonic() + self._backoff.next()

    def _drop_session(self) -> None:
        with self._lock:
            session, self._session = self._session, None
            self._queue = None
        if session is not None:
            session.close()


def _place_of(block: MessageBlock, at: int) -> Position:
    message_id = block.message(at)[0].command.message_id
    return Position(message_id.ledgerId, message_id.entryId)


def _first_entries(
    block: MessageBlock, at: int, stop: int, before: Position, *, begun: bool
) -> Iterator[tuple[Position, Position]]:
    """Yield the entries from `at` on with which another ledger begins, with the place before each.

    The first entry at or behind `before` is one if reading had not begun.
    """
    frames = block.frames(at, stop)
    first = bisect_left(frames, before[:2], key=lambda frame: _place_of(block, frame)[:2])
    ledger_id = before.ledger_id if begun else None
    while first < len(frames):
        found = _place_of(block, frames[first])
        if found.ledger_id != ledger_id:
            yield before, found
        ledger_id = found.ledger_id
        first = bisect_left(
            frames, (ledger_id + 1,), first + 1, key=lambda frame: _place_of(block, frame)[:1]
        )
        last = _place_of(block, frames[first - 1])
        before = Position(last.ledger_id, last.entry_id + 1)


def _can_pass(error: PulsarError) -> bool:
    return is_retryable(error) or isinstance(error, ConsumerBusy | OperationTimeout)
