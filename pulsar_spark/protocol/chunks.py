"""Chunked messages: one large message as several entries, split and reassembled.

Pulsar binary protocol, Chunked messages. The whole payload is compressed, then cut. All chunks
repeat the message's metadata with the same uuid, number of chunks and total size; chunk_id counts
from 0. Chunks of several messages may be interleaved.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from pulsar_spark.errors import CorruptMessage, LocalProtocolError, MessageTooLarge
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.message_id import MessageIdAdv

DEFAULT_MAX_BYTES = 128 * 1024 * 1024

# Minimum cost of a pending chunk, so that tiny ones are not free.
_LEAST_COST = 512


def split_message(payload: Buffer, max_chunk: int) -> list[memoryview]:
    """Cut a payload into views of `max_chunk` bytes, the last one shorter; at least one view.

    Raises LocalProtocolError if `max_chunk` is not positive.
    """
    if max_chunk < 1:
        raise LocalProtocolError(f"{max_chunk} cannot be the size of a chunk")
    view = memoryview(payload)
    return [view[at : at + max_chunk] for at in range(0, len(view), max_chunk)] or [view]


class DiscardReason(Enum):
    """Why chunks were discarded."""

    RESTARTED = "its first chunk came again"
    """The producer sent the message again from the start: nothing is lost."""
    NO_FIRST_CHUNK = "its first chunk was not seen"
    OUT_OF_ORDER = "a chunk is missing"
    CONTRADICTORY = "its chunks do not agree on their number or size"
    CROWDED_OUT = "the unfinished messages in chunks need more memory than they may have"
    """A reader that starts at its first chunk can still read it."""
    TOO_MANY = "more messages in chunks are unfinished than may be"


class AssembledMessage(NamedTuple):
    """A complete message: the joined payload, still compressed, and its chunks' ids in order."""

    payload: bytes
    chunk_ids: tuple[MessageIdAdv, ...]


class DiscardedMessage(NamedTuple):
    """Chunks of a message that cannot become complete."""

    uuid: str
    reason: DiscardReason
    chunk_ids: tuple[MessageIdAdv, ...]


class ChunkResult(NamedTuple):
    """Result of adding a chunk: perhaps a complete message, and messages that were discarded."""

    message: AssembledMessage | None
    discarded: list[DiscardedMessage]


@dataclass(slots=True, eq=False)
class _Owner:
    """What the memory knows of an assembler."""

    is_reserved: bool
    closed: bool = False
    # Messages whose chunks were dropped, until the assembler reports them.
    dropped: deque[_Pending] = field(default_factory=deque)


@dataclass(slots=True, eq=False)
class _Pending:
    uuid: str
    chunks: int
    total: int
    owner: _Owner
    ids: list[MessageIdAdv] = field(default_factory=list)
    size: int = 0
    # The following belong to the memory.
    parts: list[bytes] = field(default_factory=list)
    cost: int = 0
    # The total cost of all chunks when this message's last one came.
    touched: int = 0
    is_dropped: bool = False


class ChunkMemory:
    """The chunks of the incomplete messages of any number of assemblers, within `limit()` bytes.

    If a chunk does not fit, a message is dropped: one that got no chunk while so many bytes came
    for others, otherwise the one whose chunk does not fit, so that the others can become complete.
    A message without others may have more than the limit. Thread-safe with a `lock`.
    """

    def __init__(
        self, limit: Callable[[], int], lock: AbstractContextManager[object] | None = None
    ) -> None:
        self._limit = limit
        self._lock = nullcontext() if lock is None else lock
        # The following are guarded by _lock. Messages in the order of their latest chunks:
        self._messages: OrderedDict[_Pending, None] = OrderedDict()
        self._held = 0
        # The total cost of all chunks so far.
        self._taken = 0

    @property
    def held(self) -> int:
        """Bytes held, or a little more if chunks are tiny."""
        return self._held

    @contextmanager
    def reserved(self, size: int) -> Iterator[None]:
        """Count `size` bytes more, meanwhile."""
        with self._lock:
            self._held += size
        try:
            yield
        finally:
            with self._lock:
                self._held -= size

    def add(self, message: _Pending, part: bytes, cost: int) -> bool:
        """Hold a chunk of a message; returns false if the message was dropped."""
        with self._lock:
            self._taken += cost
            if message.is_dropped or not self._make_room(message, cost):
                return False
            message.parts.append(part)
            message.cost += cost
            message.touched = self._taken
            self._held += cost
            self._messages[message] = None
            self._messages.move_to_end(message)
            return True

    def take(self, message: _Pending) -> list[bytes] | None:
        """Return the chunks of a message, which are no longer held; None if it was dropped."""
        with self._lock:
            parts, message.parts = message.parts, []
            self._remove(message)
            return None if message.is_dropped else parts

    def leave(self, owner: _Owner) -> None:
        """Drop all messages of an assembler, now and from now on."""
        with self._lock:
            owner.closed = True
            for message in [message for message in self._messages if message.owner is owner]:
                self._drop(message)

    def _make_room(self, newest: _Pending, cost: int) -> bool:
        limit = self._limit()
        if newest.owner.closed:
            self._drop(newest)
            return False
        if newest.owner.is_reserved:
            return True
        while self._held + cost > limit and self._held > newest.cost:
            droppable = (found for found in self._messages if not found.owner.is_reserved)
            oldest = next(droppable, newest)
            is_stale = oldest is not newest and self._taken - oldest.touched > limit
            self._drop(oldest if is_stale else newest)
            if not is_stale:
                return False
        return True

    def _drop(self, message: _Pending) -> None:
        message.is_dropped = True
        message.parts.clear()
        self._remove(message)
        message.owner.dropped.append(message)

    def _remove(self, message: _Pending) -> None:
        self._messages.pop(message, None)
        self._held -= message.cost
        message.cost = 0


class ChunkAssembler:
    """Assembles messages from chunks.

    Any number of messages may be incomplete at once, of at most `max_bytes` each. Their chunks are
    in a `memory`, by default one of `max_bytes`; messages that it drops are reported. With
    `is_reserved` they always find room there. With `max_pending`, the oldest of more incomplete
    messages is discarded. Not thread-safe, apart from `close`.
    """

    def __init__(
        self,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_pending: int = 0,
        memory: ChunkMemory | None = None,
        is_reserved: bool = False,
    ) -> None:
        if max_bytes < 1:
            raise LocalProtocolError("the bound of chunks is a positive number")
        self._max_bytes = max_bytes
        self._max_pending = max_pending
        self._memory = memory or ChunkMemory(lambda: max_bytes)
        self._owner = _Owner(is_reserved)
        # In the order of their latest chunks.
        self._pending: OrderedDict[str, _Pending] = OrderedDict()
        # Kept if `add` raises, and returned with the next result.
        self._reports: list[DiscardedMessage] = []

    @property
    def pending(self) -> int:
        """The number of incomplete messages."""
        return len(self._pending)

    @property
    def buffered(self) -> int:
        """Bytes held, or a little more if chunks are tiny."""
        return sum(pending.cost for pending in self._pending.values())

    def close(self) -> None:
        """Give the memory back, for good; on any thread."""
        self._memory.leave(self._owner)

    def add(
        self, metadata: pb.MessageMetadata, message_id: MessageIdAdv, payload: Buffer
    ) -> ChunkResult:
        """Add a copy of one chunk, and return the result.

        Raises CorruptMessage if the metadata is inconsistent or the total size is wrong,
        MessageTooLarge if the whole message would exceed the limit; the message's chunks are then
        forgotten.
        """
        _check_fields(metadata)
        message = self._add(metadata, message_id, payload)
        self._report_dropped()
        reports, self._reports = self._reports, []
        return ChunkResult(message, reports)

    def _add(
        self, metadata: pb.MessageMetadata, message_id: MessageIdAdv, payload: Buffer
    ) -> AssembledMessage | None:
        self._report_dropped()
        uuid, number = metadata.uuid, metadata.chunk_id
        pending = self._pending.get(uuid)
        if number == 0:
            pending = self._start(metadata)
        elif pending is None:
            self._report(uuid, DiscardReason.NO_FIRST_CHUNK, [message_id])
            return None
        elif number < len(pending.ids):
            return None
        elif (problem := _problem(pending, metadata)) is not None:
            self._forget(uuid)
            self._report(uuid, problem, [*pending.ids, message_id])
            return None
        if pending.size + len(payload) > pending.total:
            self._forget(uuid)
            raise CorruptMessage(
                f"the chunks of a message have more than the declared {pending.total} bytes"
            )
        if number + 1 == pending.chunks:
            return self._finish(pending, message_id, payload)
        self._append(pending, message_id, payload)
        return None

    def _start(self, metadata: pb.MessageMetadata) -> _Pending:
        uuid = metadata.uuid
        if uuid in self._pending:
            self._discard(uuid, DiscardReason.RESTARTED)
        chunks, total = metadata.num_chunks_from_msg, metadata.total_chunk_msg_size
        pending = _Pending(uuid, chunks, total, self._owner)
        if total > self._max_bytes:
            raise self._too_large(pending)
        self._pending[uuid] = pending
        return pending

    def _append(self, pending: _Pending, message_id: MessageIdAdv, payload: Buffer) -> None:
        cost = max(len(payload) + len(pending.uuid), _LEAST_COST)
        if pending.cost + cost > self._max_bytes:
            self._forget(pending.uuid)
            raise self._too_large(pending)
        pending.ids.append(message_id)
        pending.size += len(payload)
        self._pending.move_to_end(pending.uuid)
        # A view would keep its frame's whole receive buffer alive.
        self._memory.add(pending, bytes(payload), cost)
        if 0 < self._max_pending < len(self._pending):
            self._discard(next(iter(self._pending)), DiscardReason.TOO_MANY)

    def _finish(
        self, pending: _Pending, last: MessageIdAdv, payload: Buffer
    ) -> AssembledMessage | None:
        parts = self._memory.take(pending)
        if parts is None:
            # Another assembler needed the room just now.
            self._report_dropped()
            self._report(pending.uuid, DiscardReason.NO_FIRST_CHUNK, [last])
            return None
        self._forget(pending.uuid)
        size = pending.size + len(payload)
        if size != pending.total:
            raise CorruptMessage(
                f"the chunks of a message have {size} bytes, not the declared {pending.total}"
            )
        return AssembledMessage(b"".join([*parts, payload]), (*pending.ids, last))

    def _report_dropped(self) -> None:
        dropped = self._owner.dropped
        while dropped:
            pending = dropped.popleft()
            if self._pending.get(pending.uuid) is pending:
                del self._pending[pending.uuid]
                self._report(pending.uuid, DiscardReason.CROWDED_OUT, pending.ids)

    def _discard(self, uuid: str, reason: DiscardReason) -> None:
        self._report(uuid, reason, self._forget(uuid).ids)

    def _report(self, uuid: str, reason: DiscardReason, ids: list[MessageIdAdv]) -> None:
        self._reports.append(DiscardedMessage(uuid, reason, tuple(ids)))

    def _forget(self, uuid: str) -> _Pending:
        pending = self._pending.pop(uuid)
        self._memory.take(pending)
        return pending

    def _too_large(self, pending: _Pending) -> MessageTooLarge:
        return MessageTooLarge(
            f"a message of {pending.total} bytes in {pending.chunks} chunks needs more than the "
            f"{self._max_bytes} bytes that are allowed for such messages",
            "Raise pulsar.client.memoryLimitBytes.",
        )


def _check_fields(metadata: pb.MessageMetadata) -> None:
    for name in ("uuid", "num_chunks_from_msg", "total_chunk_msg_size", "chunk_id"):
        if not metadata.HasField(name):
            raise CorruptMessage(f"the metadata of a chunk lacks {name}")
    chunks, number = metadata.num_chunks_from_msg, metadata.chunk_id
    if not 0 <= number < chunks:
        raise CorruptMessage(f"a chunk claims to be number {number} of {chunks}")
    if metadata.total_chunk_msg_size < 0:
        raise CorruptMessage(
            f"a chunked message claims to have {metadata.total_chunk_msg_size} bytes"
        )


def _problem(pending: _Pending, metadata: pb.MessageMetadata) -> DiscardReason | None:
    if metadata.chunk_id != len(pending.ids):
        return DiscardReason.OUT_OF_ORDER
    if (metadata.num_chunks_from_msg, metadata.total_chunk_msg_size) != (
        pending.chunks,
        pending.total,
    ):
        return DiscardReason.CONTRADICTORY
    return None
