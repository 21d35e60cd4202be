"""Reading a range of one topic partition, entry by entry, exactly once each.

A reader has a non-durable subscription of its own and acknowledges nothing. Where it stands is
kept here, as a position, never at the broker: after a disconnect of any kind it subscribes anew
at that position and drops what lies before it. Its end, too, is found by comparing positions.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from types import TracebackType
from typing import Any

from pulsar_spark.engine.addresses import BrokerAddress, assigned_broker
from pulsar_spark.engine.connection import ClientConnection
from pulsar_spark.engine.consumer_session import unique_name
from pulsar_spark.engine.context import ConnectionPool
from pulsar_spark.engine.entries import EntryDecoder, LoneChunk, ReceivedEntry
from pulsar_spark.engine.lookup import Lookup
from pulsar_spark.engine.operations import Operation, run
from pulsar_spark.engine.options import ReaderOptions
from pulsar_spark.engine.probe import Probe
from pulsar_spark.engine.receiver_queue import Ended, LastId, Permits, ReceiverQueue
from pulsar_spark.engine.retry import Backoff, Deadline, is_retryable
from pulsar_spark.errors import (
    BrokerError,
    ClosedError,
    ConsumerBusy,
    IncompleteMessage,
    OperationTimeout,
    PulsarError,
    UnsupportedFeature,
)
from pulsar_spark.protocol import commands
from pulsar_spark.protocol.frames import MessageBlock
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


class EntryReader:
    """Reads the entries of `topic` (one partition) from `start` up to, not including, `end`.

    Without an end it goes on for ever; LATEST_POSITION as start is what is published after the
    first call of `next_entry`, before which nothing is connected. To be used by one thread, and
    closed at the end: it is a context manager. `incomplete` counts the messages in chunks that
    were left out as they are not whole. Raises UnsupportedFeature for a non-persistent topic.
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
        self._permits = Permits(self._options, max_message_size=0)
        self._connection: ClientConnection | None = None
        self._consumer_id = -1
        self._queue: ReceiverQueue | None = None
        # What is being taken apart, and how far that is.
        self._block: MessageBlock | None = None
        self._at = 0
        # Where the broker said that the topic went, to be tried once without a lookup.
        self._moved_to: BrokerAddress | None = None
        self._retry_at = 0.0
        self._backoff = Backoff(maximum=_MAX_RECONNECT_DELAY)
        # Seconds spent waiting, here and not in the caller's code, since the last progress:
        # without a consumer, and with one that delivered nothing.
        self._down = 0.0
        self._idle = 0.0
        self._next_question = _FIRST_IDLE
        self._asked = False
        self._next_stall = _FIRST_STALL
        self._last_id: MessageId | None = None
        self._told_empty = False
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

    def close(self) -> None:
        """Close the consumer, waiting at most a second for the broker; the pool stays open."""
        if not isinstance(self._error, ClosedError):
            self._error = ClosedError("the reader is closed", topic=self.topic)
        answer = self._drop_consumer(close=True)
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
            if self._queue is not None:
                if not self._receive(self._queue, deadline) and deadline.expired():
                    return None
            elif not self._subscribe(deadline):
                return None
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

    def _take_entry(self, block: MessageBlock) -> ReceivedEntry | None:
        """Take one entry of the block, with care; None if nothing of it is wanted."""
        try:
            message, end = block.message(self._at)
            self._at = end
            if end == block.stop:
                self._block = None
            entry = self._decoder.decode(message)
            if entry is None and (chunk := self._decoder.lone_chunk) is not None:
                entry = self._look_back(chunk)
        except PulsarError as error:
            self._error = error.with_context(topic=self.topic)
            self._drop_consumer(close=True)
            raise self._error from error.__cause__
        self._consumed(self._decoder.messages, len(message.payload))
        return entry

    def _consumed(self, messages: int, size: int) -> None:
        self._progress()
        permits = self._permits.consumed(messages, size)
        if permits and not self.finished and self._connection is not None:
            # If the connection is lost, the queue will say so behind what is in it.
            with contextlib.suppress(PulsarError):
                self._connection.send(commands.flow(self._consumer_id, permits))

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
        self._told_empty = False
        self._idle = 0.0
        self._down = 0.0
        self._next_question = _FIRST_IDLE
        self._next_stall = _FIRST_STALL
        self._backoff.reset()

    # --- nothing comes ------------------------------------------------------------------------

    def _patience(self) -> float:
        """Seconds after which something is to be done if nothing comes."""
        until = self._next_stall
        if self._decoder.end is not None:
            until = min(until, self._options.poll_timeout)
            if not self._asked:
                until = min(until, self._next_question)
        return max(until - self._idle, 0.001)

    def _on_idle(self, queue: ReceiverQueue) -> None:
        end = self._decoder.end
        if end is not None and self._idle >= self._options.poll_timeout:
            self._error = OperationTimeout(
                f"nothing was received for {self._options.poll_timeout:g} s at position "
                f"{self.position}, the range ends at {end}, the topic's last message is "
                f"{self._last_id or 'not known'}",
                "Check the topic (an open transaction holds reading back), or raise pollTimeout.",
                topic=self.topic,
            )
            self._drop_consumer(close=True)
            raise self._error
        if self._idle >= self._next_stall:
            # Permits can be lost on either side, and a broker that is letting go of the topic while
            # a consumer comes can forget it: a new consumer makes both agree again.
            level = logging.DEBUG if end is None else logging.INFO
            logger.log(
                level, "%s: nothing came for %.0f s, subscribing anew", self.topic, self._idle
            )
            self._next_stall += min(self._next_stall, _MAX_STALL)
            self._drop_consumer(close=True)
        elif end is not None and self._idle >= self._next_question and not self._asked:
            self._next_question = self._idle + min(max(self._idle, _FIRST_IDLE), _MAX_IDLE)
            self._ask_last_id(queue)

    def _ask_last_id(self, queue: ReceiverQueue) -> None:
        connection, consumer_id = self._connection, self._consumer_id
        if connection is None:
            return
        self._asked = True
        answer = connection.request_async(
            lambda request_id: commands.get_last_message_id(consumer_id, request_id)
        )
        answer.add_done_callback(queue.put_last_id)

    def _on_last_id(self, answer: Future[Any]) -> None:
        self._asked = False
        # An error is no reason to stop: either the consumer ends too, or it is asked again.
        if answer.exception() is None:
            self._last_id = MessageId.from_pb(answer.result().last_message_id)
            if Position.after(self._last_id) <= self.position:
                self._on_nothing_more(self._last_id)

    def _on_nothing_more(self, last_id: MessageId) -> None:
        # A broker that lets go of the topic while a consumer comes can answer it that there is
        # nothing at all: that is believed when another consumer hears it too.
        if last_id.entry_id >= 0 or self._told_empty:
            self._decoder.finish()
        else:
            self._told_empty = True
            self._drop_consumer(close=True)

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
            self._on_refused(error.with_context(topic=self.topic))
        return True

    def _on_refused(self, error: PulsarError) -> None:
        ever = self._connection is not None
        limit = self._options.poll_timeout if ever else self._pool.options.operation_timeout
        passes = is_retryable(error) or isinstance(error, ConsumerBusy | OperationTimeout)
        if passes and self._down < limit:
            logger.info("%s: cannot subscribe (%s), trying again", self.topic, error.what)
            return
        self._error = error
        raise error

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
            _close_consumer(connection, consumer_id)

        queue = ReceiverQueue(self._options.memory_budget, stop)
        consumer_id = connection.add_consumer(queue)
        try:
            yield connection.request_async(self._subscribe_command(consumer_id))
            self._decoder.limit = max(self._decoder.limit, connection.max_message_size)
            permits = self._permits.begin(connection.max_message_size)
            connection.send(commands.flow(consumer_id, permits))
        except BaseException as error:
            if isinstance(error, BrokerError):
                connection.remove_consumer(consumer_id)
            else:
                # The broker may still carry out what it has not answered.
                _close_consumer(connection, consumer_id)
            raise
        self._connection, self._consumer_id, self._queue = connection, consumer_id, queue
        self._asked = False

    def _subscribe_command(self, consumer_id: int) -> Any:
        # A name per attempt: the broker may still hold the consumer of a broken connection.
        name = f"{self._name}-{consumer_id}"
        start = MessageId(self.position.ledger_id, self.position.entry_id)
        return lambda request_id: commands.subscribe(
            self.topic,
            name,
            consumer_id,
            request_id,
            durable=False,
            start_message_id=start.to_pb(),
            read_compacted=self._options.read_compacted,
            force_topic_creation=False,
        )

    # --- ends of consumers --------------------------------------------------------------------

    def _on_ended(self, ended: Ended) -> None:
        connection = self._connection
        self._drop_consumer(close=False)
        if ended.error is not None and not is_retryable(ended.error):
            self._error = ended.error.with_context(topic=self.topic)
            raise self._error
        if connection is None:
            return
        if ended.overrun:
            logger.info("%s: more came than there is memory for, subscribing anew", self.topic)
            self._moved_to = connection.address
        elif ended.moved_to is not None:
            tls = self._pool.service_url.tls
            self._moved_to = assigned_broker(ended.moved_to, connection.address, tls)
        if self._moved_to is None:
            # Many readers may have lost the same broker at this moment.
            self._retry_at = time.monotonic() + self._backoff.next()

    def _drop_consumer(self, *, close: bool) -> Future[Any] | None:
        queue, self._queue = self._queue, None
        if queue is None or self._connection is None:
            return None
        if not close:
            self._connection.remove_consumer(self._consumer_id)
            return None
        return _close_consumer(self._connection, self._consumer_id)


def _close_consumer(connection: ClientConnection, consumer_id: int) -> Future[Any] | None:
    """Forget a consumer and tell the broker; never raises."""
    connection.remove_consumer(consumer_id)
    if connection.closed:
        return None
    return connection.request_async(
        lambda request_id: commands.close_consumer(consumer_id, request_id)
    )
