"""Chunked messages: one large message as several entries, split and reassembled.

Pulsar binary protocol, Chunked messages. The whole payload is compressed, then cut. All chunks
repeat the message's metadata with the same uuid, number of chunks and total size; chunk_id counts
from 0. Chunks of several messages may be interleaved.
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


class AssembledMessage(NamedTuple):
    """A complete message: the joined payload, still compressed, and the last chunk's metadata.

    `message_id` is the last chunk's, with the first chunk's in it; `chunk_ids` has all ids in
    order.
    """

    payload: bytes
    metadata: pb.MessageMetadata
    message_id: MessageIdAdv
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


@dataclass(slots=True)
class _Pending:
    chunks: int
    total: int
    # The total cost of all chunks when this message's last one came.
    touched: int = 0
    ids: list[MessageIdAdv] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    cost: int = 0


class ChunkAssembler:
    """Assembles messages from chunks, within a limited number of bytes.

    Any number of messages may be incomplete at once. If chunks do not fit into `max_bytes`, a
    message is discarded and reported: one that got no chunk while so many bytes came for others,
    otherwise the one whose chunk does not fit, so that the others can become complete. With
    `max_pending`, the oldest of more incomplete messages is discarded too. Not thread-safe.
    """

    def __init__(self, *, max_bytes: int = DEFAULT_MAX_BYTES, max_pending: int = 0) -> None:
        if max_bytes < 1:
            raise LocalProtocolError("the bound of chunks is a positive number")
        self._max_bytes = max_bytes
        self._max_pending = max_pending
        # In the order of their latest chunks.
        self._pending: OrderedDict[str, _Pending] = OrderedDict()
        self._buffered = 0
        # The total cost of all chunks so far.
        self._taken = 0
        # Kept if `add` raises, and returned with the next result.
        self._reports: list[DiscardedMessage] = []

    @property
    def pending(self) -> int:
        """The number of incomplete messages."""
        return len(self._pending)

    @property
    def buffered(self) -> int:
        """Bytes held, or a little more if chunks are tiny."""
        return self._buffered

    def add(
        self, metadata: pb.MessageMetadata, message_id: MessageIdAdv, payload: Buffer
    ) -> ChunkResult:
        """Add a copy of one chunk, and return the result.

        Raises CorruptMessage if the metadata is inconsistent or the total size is wrong,
        MessageTooLarge if the whole message would exceed the limit; the message's chunks are then
        forgotten.
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
        # A view would keep its frame's whole receive buffer alive.
        pending.parts.append(bytes(payload))
        pending.size += len(payload)
        cost = max(len(payload) + len(uuid), _LEAST_COST)
        pending.cost += cost
        self._buffered += cost
        self._taken += cost
        pending.touched = self._taken
        self._pending.move_to_end(uuid)

    def _make_room(self, newest: str) -> None:
        if 0 < self._max_pending < len(self._pending):
            self._discard(next(iter(self._pending)), DiscardReason.CROWDED_OUT)
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
