"""Finds chunks that were not delivered to a reader or consumer, or did not fit into memory.

A chunked message has the position of its last chunk, so whoever reads that chunk returns the
message. To find the others, read from the first chunk if its position is known; otherwise from a
little before the last chunk; otherwise from the message's publish time, and, as clocks may be
wrong, from the topic's beginning. Where retention deleted the others, that is close.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TypeAlias

from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.consumers.entries import LastChunk
from pulsar_spark.engine.consumers.probe import Probe
from pulsar_spark.errors import CorruptMessage, IncompleteMessage
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.frame_parts import ReceivedEntry
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position

logger = get_logger(__name__)

# How many searches by time may fail, if data loss is not an error.
_MAX_VAIN_SEARCHES = 100
# How many searches of whole topics may.
_MAX_WHOLE_SEARCHES = 10
_ENTRIES_BEFORE = 100
# How far clocks of producers and brokers may differ: mostly; if a time zone is wrong.
_MILLISECONDS_BEFORE = (60_000, 86_400_000)

Read: TypeAlias = "Callable[[LastChunk, Position], AbstractContextManager[Iterable[ReceivedEntry]]]"
"""Reads the message of a chunk, skipping all others, from a position up to that chunk."""


class ChunkSearch:
    """Finds complete messages by their last chunks; `incomplete` counts the others.

    With `skip` incomplete ones are logged and skipped, otherwise they raise IncompleteMessage.
    """

    def __init__(self, pool: ConnectionPool, topic: str, read: Read, *, skip: bool) -> None:
        self.incomplete = 0
        self._vain_searches = 0
        self._pool = pool
        self._topic = topic
        self._read = read
        self._skip = skip

    def find(self, chunk: LastChunk) -> ReceivedEntry | None:
        """Return the message of a last chunk, read from its first chunk on.

        None if that chunk is a duplicate of a complete message's, or if an incomplete message may
        be skipped. Raises IncompleteMessage.
        """
        tried: Position | None = None
        for start in self._starts(chunk):
            if tried is not None and start >= tried:
                continue
            tried, entry = start, None
            with self._read(chunk, start) as entries:
                for entry in entries:
                    if (entry.ledger_id, entry.entry_id) == chunk[:2]:
                        return entry
            if entry is not None and entry.metadata.publish_time >= chunk.time:
                # The complete message was before it. Earlier ones only have the same uuid.
                return None
        error = IncompleteMessage(
            f"a message of {chunk.chunks} chunks ends here, and the topic does not have all of "
            "them",
            "Chunks were deleted (by retention, time to live or compaction), are damaged, or were "
            "never stored. Spark skips such messages with failOnDataLoss=false, a consumer with "
            "discard_corrupt_messages=True; a reader can seek past them.",
            topic=self._topic,
            message_id=f"{chunk.ledger_id}:{chunk.entry_id}",
        )
        self._vain_searches += 1
        if not self._skip:
            raise error
        self.incomplete += 1
        logger.warning("data was lost: %s", error.fact)
        return None

    def _starts(self, chunk: LastChunk) -> Iterator[Position]:
        if chunk.first is not None:
            yield chunk.first
            return
        # Chunks are usually close together; otherwise search by the first one's time. Brokers find
        # a later entry if the producer's clock was fast.
        before = max(chunk.entry_id - 2 * chunk.chunks - _ENTRIES_BEFORE, 0)
        yield Position(chunk.ledger_id, before)
        if self._vain_searches < _MAX_VAIN_SEARCHES:
            for before_ms in _MILLISECONDS_BEFORE:
                time_ms = max(chunk.time - before_ms, 0)
                try:
                    found = Probe(self._pool).first_entry_from_time(self._topic, time_ms)
                except CorruptMessage:
                    continue
                if found is not None:
                    yield found.start
        if self._vain_searches < _MAX_WHOLE_SEARCHES:
            yield EARLIEST_POSITION
