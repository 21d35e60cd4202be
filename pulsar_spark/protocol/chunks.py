"""Chunked messages: one large message as several entries, split and reassembled.

Pulsar binary protocol, Chunked messages. The payload is compressed as a whole, then cut. All
chunks repeat the message's metadata with the same uuid, the number of chunks and the size of
them all, and are counted by chunk_id from 0. Chunks of several messages may be interleaved.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from pulsar_spark.errors import CorruptMessage, LocalProtocolError, MessageTooLarge
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.message_id import MessageIdAdv

DEFAULT_MAX_BYTES = 128 * 1024 * 1024

# The least that a pending chunk counts for, so that tiny ones are not free.
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
    """Why chunks were given up."""

    RESTARTED = "its first chunk came again"
    """The producer sent the message again from the start: nothing is lost by that."""
    NO_FIRST_CHUNK = "its first chunk was not seen"
    OUT_OF_ORDER = "a chunk is missing"
    CONTRADICTORY = "its chunks do not agree on their number or size"
    CROWDED_OUT = "the unfinished messages in chunks need more memory than they may have"
    """It is there for whoever reads it again from its first chunk on."""


class AssembledMessage(NamedTuple):
    """A complete message: `payload` joined and still compressed, `metadata` of the last chunk.

    `message_id` is that of the last chunk and names the first one; `chunk_ids` are all of
    them, in order.
    """

    payload: bytes
    metadata: pb.MessageMetadata
    message_id: MessageIdAdv
    chunk_ids: tuple[MessageIdAdv, ...]


class DiscardedMessage(NamedTuple):
    """Chunks of a message that will not become complete from these."""

    uuid: str
    reason: DiscardReason
    chunk_ids: tuple[MessageIdAdv, ...]


class ChunkResult(NamedTuple):
    """What came of a chunk: perhaps a complete message, and what was given up for it."""

    message: AssembledMessage | None
    discarded: list[DiscardedMessage]


@dataclass(slots=True)
class _Pending:
    chunks: int
    total: int
    # What all messages together had taken when its last chunk so far came.
    touched: int = 0
    ids: list[MessageIdAdv] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    cost: int = 0


class ChunkAssembler:
    """Puts messages together from their chunks, within a bounded number of bytes.

    Any number of messages may be unfinished at once. What does not fit into `max_bytes` is
    given up, and reported: a message that nothing was added to while so many bytes came for
    others, else the one whose chunk is one too many, so that the others become whole. Not
    thread-safe.
    """

    def __init__(self, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        if max_bytes < 1:
            raise LocalProtocolError("the bound of chunks is a positive number")
        self._max_bytes = max_bytes
        # In the order of their last chunks so far.
        self._pending: OrderedDict[str, _Pending] = OrderedDict()
        self._buffered = 0
        # What all chunks cost that ever came.
        self._taken = 0
        # Kept over an error that `add` raises, and given out with the next result.
        self._reports: list[DiscardedMessage] = []

    @property
    def pending(self) -> int:
        """Messages of which some chunks are here."""
        return len(self._pending)

    @property
    def buffered(self) -> int:
        """Bytes that are held, or somewhat more if chunks are tiny."""
        return self._buffered

    def add(
        self, metadata: pb.MessageMetadata, message_id: MessageIdAdv, payload: Buffer
    ) -> ChunkResult:
        """Take one chunk, a copy of it, and return what came of it.

        Raises CorruptMessage if the metadata makes no sense or the chunks have not the size
        that they say, MessageTooLarge if the whole message would exceed the bound; what was
        there of the message is then forgotten.
        """
        _check_fields(metadata)
        uuid, number = metadata.uuid, metadata.chunk_id
        pending = self._pending.get(uuid)
        if number == 0:
            pending = self._start(metadata)
        elif pending is None:
            self._report(uuid, DiscardReason.NO_FIRST_CHUNK, [message_id])
            return ChunkResult(None, self._take_reports())
        elif number < len(pending.ids):
            return ChunkResult(None, self._take_reports())
        elif (problem := _problem(pending, metadata)) is not None:
            self._report(uuid, problem, [*self._forget(uuid).ids, message_id])
            return ChunkResult(None, self._take_reports())
        self._append(uuid, pending, message_id, payload)
        message = None
        if number + 1 == pending.chunks:
            message = self._finish(uuid, pending, metadata)
        else:
            self._make_room(uuid)
        return ChunkResult(message, self._take_reports())

    def _start(self, metadata: pb.MessageMetadata) -> _Pending:
        uuid = metadata.uuid
        if uuid in self._pending:
            self._discard(uuid, DiscardReason.RESTARTED)
        pending = _Pending(metadata.num_chunks_from_msg, metadata.total_chunk_msg_size)
        if pending.total > self._max_bytes:
            raise self._too_large(pending)
        self._pending[uuid] = pending
        return pending

    def _append(
        self, uuid: str, pending: _Pending, message_id: MessageIdAdv, payload: Buffer
    ) -> None:
        if pending.size + len(payload) > pending.total:
            self._forget(uuid)
            raise CorruptMessage(
                f"the chunks of a message have more than the declared {pending.total} bytes"
            )
        pending.ids.append(message_id)
        # A view would keep the whole receive buffer of its frame alive.
        pending.parts.append(bytes(payload))
        pending.size += len(payload)
        cost = max(len(payload) + len(uuid), _LEAST_COST)
        pending.cost += cost
        self._buffered += cost
        self._taken += cost
        pending.touched = self._taken
        self._pending.move_to_end(uuid)

    def _make_room(self, newest: str) -> None:
        while self._buffered > self._max_bytes:
            if len(self._pending) == 1:
                raise self._too_large(self._forget(newest))
            oldest = next(iter(self._pending))
            is_stale = self._taken - self._pending[oldest].touched > self._max_bytes
            self._discard(oldest if is_stale else newest, DiscardReason.CROWDED_OUT)

    def _finish(
        self, uuid: str, pending: _Pending, metadata: pb.MessageMetadata
    ) -> AssembledMessage:
        self._forget(uuid)
        if pending.size != pending.total:
            raise CorruptMessage(
                f"the chunks of a message have {pending.size} bytes, not the declared "
                f"{pending.total}"
            )
        first, last = pending.ids[0], pending.ids[-1]
        message_id = MessageIdAdv(last.ledger_id, last.entry_id, last.partition, first_chunk=first)
        return AssembledMessage(b"".join(pending.parts), metadata, message_id, tuple(pending.ids))

    def _discard(self, uuid: str, reason: DiscardReason) -> None:
        self._report(uuid, reason, self._forget(uuid).ids)

    def _report(self, uuid: str, reason: DiscardReason, ids: list[MessageIdAdv]) -> None:
        self._reports.append(DiscardedMessage(uuid, reason, tuple(ids)))

    def _take_reports(self) -> list[DiscardedMessage]:
        reports, self._reports = self._reports, []
        return reports

    def _forget(self, uuid: str) -> _Pending:
        pending = self._pending.pop(uuid)
        self._buffered -= pending.cost
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
