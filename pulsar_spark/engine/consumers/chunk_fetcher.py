"""Fetches chunks that a consumer was not given, or that found no room while it had them.

A consumer whose broker delivers the last chunk of a message returns that message. What it lacks of
it is read from the topic, by a subscription of its own: chunks that did not fit into memory, were
delivered to another consumer of the subscription, or are before its start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

from pulsar_spark.engine.consumers.chunk_search import ChunkSearch
from pulsar_spark.engine.consumers.entries import EntryDecoder, LastChunk
from pulsar_spark.engine.consumers.reader import EntryReader, reader_of_chunks
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.deadline import complete
from pulsar_spark.engine.memory import ReceiverBudget
from pulsar_spark.engine.options import ConsumerOptions, ReaderOptions
from pulsar_spark.errors import ClosedError, IncompleteMessage
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.frame_parts import ReceivedEntry
from pulsar_spark.protocol.message_id import Position
from pulsar_spark.protocol.topic_name import TopicName

logger = get_logger(__name__)

_WARN_SECONDS = 60.0


class BeingFetched(Exception):
    """A message is being fetched on another thread."""


FetchOn: TypeAlias = "Callable[[Callable[[], object]], object]"
"""Has a function, which may wait, called on another thread."""


class ChunkFetcher:
    """Fetches messages by their last chunks, one at a time. Any thread may close it.

    With `fetch_on` this does not wait: `find` raises BeingFetched, `on_found` is called, and then
    the same `find` returns or raises what was found.
    """

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        options: ConsumerOptions,
        budget: ReceiverBudget,
        fetch_on: FetchOn | None = None,
        on_found: Callable[[], None] = lambda: None,
    ) -> None:
        self._context = context
        self._topic = topic
        self._budget = budget
        self._options = ReaderOptions(
            read_compacted=options.read_compacted,
            poll_timeout=context.options.operation_timeout,
            # The right to subscribe can depend on how the name begins.
            subscription_prefix=options.subscription,
        )
        self._keeps = TopicName.parse(topic).is_persistent
        self._search = ChunkSearch(context.pool, topic, self._read_chunks, skip=False)
        self._closed = False
        self._fetch_on = fetch_on
        self._on_found = on_found
        self.is_busy = False
        """Whether another thread fetches a message: the decoder that asked belongs to it."""
        self._found: tuple[LastChunk, Future[ReceivedEntry | None]] | None = None
        # Used by the receiving thread, apart from `close`: the decoder that asks, and its reader.
        self._asking: EntryDecoder | None = None
        self._reader: EntryReader | None = None
        # How many messages found no room, and when to warn of the next one.
        self._crowded_out = 0
        self._warn_at = 0.0

    def find(self, chunk: LastChunk, asking: EntryDecoder) -> ReceivedEntry | None:
        """Return the message of a last chunk, None if the chunk is another one's duplicate.

        Raises IncompleteMessage if the topic does not have all chunks, OperationTimeout,
        ClosedError after `close`, the broker's error, and BeingFetched.
        """
        before, self._found = self._found, None
        if before is not None and before[0][:2] == chunk[:2]:
            return before[1].result()
        if not self._keeps:
            raise IncompleteMessage(
                f"a message of {chunk.chunks} chunks ends here, others of which are missing, and a "
                "non-persistent topic keeps none",
                topic=self._topic,
            )
        if chunk.first is not None:
            self._warn(chunk)
        self._asking = asking
        if self._fetch_on is None:
            return self._search.find(chunk)
        self.is_busy = True
        self._fetch_on(lambda: self._fetch(chunk))
        raise BeingFetched

    def _fetch(self, chunk: LastChunk) -> None:
        fetched: Future[ReceivedEntry | None] = Future()
        complete(fetched, partial(self._search.find, chunk))
        self._found = chunk, fetched
        self.is_busy = False
        self._on_found()

    def close(self) -> None:
        """End what is being fetched, without waiting."""
        self._closed = True
        if (reader := self._reader) is not None:
            reader.begin_close()

    @contextmanager
    def _read_chunks(self, chunk: LastChunk, start: Position) -> Iterator[EntryReader]:
        assert self._asking is not None
        pool, options, budget = self._context.pool, self._options, self._budget
        with (
            budget.fetching(lambda: self._closed, options.poll_timeout) as queue,
            reader_of_chunks(pool, chunk, start, self._asking, options, budget, queue) as reader,
        ):
            self._reader = reader
            try:
                if self._closed:
                    raise ClosedError("the consumer is closed", topic=self._topic)
                yield reader
            finally:
                self._reader = None

    def _warn(self, chunk: LastChunk) -> None:
        self._crowded_out += 1
        now = time.monotonic()
        if now < self._warn_at:
            return
        self._warn_at = now + _WARN_SECONDS
        logger.warning(
            "%s: chunked messages found no room in the client's memory while they were incomplete "
            "(%d until now, the last one from %s to %d:%d); their chunks are fetched again. Send "
            "fewer such messages at the same time, or read fewer topics with one client.",
            self._topic,
            self._crowded_out,
            f"{chunk.first[0]}:{chunk.first[1]}" if chunk.first is not None else "?",
            chunk.ledger_id,
            chunk.entry_id,
        )
