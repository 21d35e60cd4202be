"""Turns delivered frames into entries: verified, decompressed, reassembled, cut to a range.

Pulsar binary protocol, "Message frame format", "Batch messages", "Chunked messages". An unreadable
entry raises an error with its topic, id and reason; it is neither acknowledged nor skipped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from pulsar_spark.engine.codecs import decompress
from pulsar_spark.engine.encryption import Decryptor
from pulsar_spark.errors import (
    CorruptBatch,
    CorruptMessage,
    EncryptedMessage,
    PulsarError,
    RemoteProtocolError,
)
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.ack_sets import ack_bits
from pulsar_spark.protocol.chunks import (
    ChunkAssembler,
    ChunkMemory,
    DiscardedMessage,
    DiscardReason,
)
from pulsar_spark.protocol.compression import codec_of
from pulsar_spark.protocol.frame_parts import Frame, ReceivedEntry, parse_payload
from pulsar_spark.protocol.frames import MessageBlock
from pulsar_spark.protocol.message_id import MessageIdAdv, Position, as_signed_int
from pulsar_spark.protocol.validation import check_id

logger = get_logger(__name__)

_MAX_CROWDED_OUT = 10_000
_MAX_GIVEN_UP = 10_000
# The end of a message came, but some earlier chunk is missing.
_NOT_WHOLE = frozenset(
    {DiscardReason.NO_FIRST_CHUNK, DiscardReason.OUT_OF_ORDER, DiscardReason.CONTRADICTORY}
)


class LastChunk(NamedTuple):
    """A last chunk without the others: they were before the range, or did not fit into memory.

    `chunks` is the total number, `time` the earliest publish time of the first one in ms, `first`
    its position, if known.
    """

    ledger_id: int
    entry_id: int
    uuid: str
    chunks: int
    time: int
    first: Position | None


class EntryDecoder:
    """Turns delivered frames into the entries of a range, in order.

    `position` is where the next entry is expected; `finished` says that nothing more can be
    before `end`. `messages` are the last frame's permits. `last_chunk` is set if the frame ended a
    chunked message whose other chunks must be fetched. `limit` is the maximum size in bytes of a
    decompressed or reassembled payload.
    A chunked message has the position of its last chunk. One without its last chunk is no message:
    its producer never got a receipt. With `only_uuid` everything but that message's chunks is
    skipped, also what is damaged: it is before the range of whoever searches. `undecryptable`
    counts messages that were handled by the decryptor's action, and `discarded` is set if that was
    done to the last frame: one may be a chunk of a message. Unless entries come `in_order`, they
    may come again, and `position` does not move. With `max_chunked` more unfinished chunked
    messages are too many; `on_given_up` gets the ids of chunks dropped for that. Chunks are held in
    a `memory`, or take `limit` bytes at most; with `only_uuid` they always find room. A range that
    `continues` another one does not return a batch that stays encrypted and that it starts in: it
    is one message, of the range that has its first one.
    """

    def __init__(
        self,
        topic: str,
        start: Position,
        end: Position | None,
        limit: int,
        only_uuid: str | None = None,
        decryptor: Decryptor | None = None,
        *,
        continues: bool = False,
        in_order: bool = True,
        max_chunked: int = 0,
        on_given_up: Callable[[tuple[MessageIdAdv, ...]], None] | None = None,
        memory: ChunkMemory | None = None,
    ) -> None:
        self.topic = topic
        self.undecryptable = 0
        self.discarded = False
        self.decryptor = decryptor or Decryptor()
        self.position = start
        self.end = end
        self.finished = end is not None and start >= end
        self.messages = 1
        self.limit = limit
        self.takes_time: Callable[[int], bool] = lambda _: True
        """Whether messages published at a time, in ms, are wanted; the others are not opened."""
        self._only_uuid = only_uuid
        self._continues = continues
        self._in_order = in_order
        self.last_chunk: LastChunk | None = None
        self._chunks = ChunkAssembler(
            max_bytes=limit,
            max_pending=max_chunked,
            memory=memory,
            is_reserved=only_uuid is not None,
        )
        self._on_given_up = on_given_up
        # Chunked messages that were too many: what else comes of them is given up, too.
        self._given_up: OrderedDict[str, None] = OrderedDict()
        # Where chunked messages start that did not fit into memory, ordered by their end.
        self._crowded_out: OrderedDict[str, Position] = OrderedDict()

    def close(self) -> None:
        """Give back the memory of unfinished messages, for good; on any thread."""
        self._chunks.close()

    def finish(self) -> None:
        """The topic has nothing more of the range."""
        self.finished = True

    def step_back(self, entry: Position) -> None:
        """The last entry, at this position, cannot be read after all."""
        self.position = entry
        self.finished = False

    def advance(self, position: Position) -> None:
        """Everything before a position was taken."""
        self.position = position
        if self.end is not None and position >= self.end:
            self.finished = True

    def decode(self, frame: Frame) -> ReceivedEntry | None:
        """Return a frame's entry, None if nothing of it is wanted.

        Raises CorruptMessage, EncryptedMessage or UnsupportedCodec, and then does not advance.
        """
        message_id = frame.command.message.message_id
        key = (message_id.ledgerId, message_id.entryId)
        self.last_chunk = None
        self.discarded = False
        # Such an id would be after every end, and so end the range.
        try:
            check_id(message_id, is_stored=True)
        except RemoteProtocolError as error:
            raise CorruptMessage(error.what, topic=self.topic) from error
        if key < self.position[:2]:
            self.messages = message_count(frame)
            return None
        if self.end is not None and (*key, 0) >= self.end:
            self.messages = 1
            self.finished = True
            return None
        try:
            entry = self._decode(frame, key)
        except RemoteProtocolError as error:
            raise CorruptMessage(error.what).with_context(**self._context(key)) from error
        except PulsarError as error:
            raise error.with_context(**self._context(key)) from error
        if self._in_order:
            self.advance(Position(key[0], key[1] + 1))
        return entry

    def _context(self, key: tuple[int, int]) -> dict[str, str]:
        return {"topic": self.topic, "message_id": f"{key[0]}:{key[1]}"}

    def _decode(self, frame: Frame, key: tuple[int, int]) -> ReceivedEntry | None:
        entry, command = self._parsed(frame), frame.command.message
        if entry is None:
            self.messages = message_count(frame)
            return None
        metadata = entry.metadata
        count = metadata.num_messages_in_batch
        if count < 1:
            raise CorruptBatch(f"a batch of {count} messages")
        self.messages = count
        if metadata.HasField("marker_type") or not self.takes_time(metadata.publish_time):
            return None
        entry.wanted = self._wanted(key, count)
        if not entry.wanted:
            return None
        entry.topic = self.topic
        entry.ledger_id, entry.entry_id = key
        entry.partition = command.message_id.partition
        entry.redelivery_count = as_signed_int(command.redelivery_count)
        if command.ack_set:
            entry.left = ack_bits(command.ack_set)
        if metadata.encryption_keys:
            try:
                entry.payload = self.decryptor.decrypt(metadata, entry.payload)
            except EncryptedMessage:
                if self.decryptor.action == "FAIL":
                    raise
                return self._leave_encrypted(entry)
        if metadata.num_chunks_from_msg > 1 and not entry.is_batch:
            return self._add_chunk(entry)
        return self._decompressed(entry)

    def _parsed(self, frame: Frame) -> ReceivedEntry | None:
        """Parse a frame's entry; None for what is skipped with `only_uuid`."""
        uuid = self._only_uuid
        try:
            entry = parse_payload(frame.payload)
        except PulsarError:
            if uuid is None:
                raise
            return None
        return entry if uuid in (None, entry.metadata.uuid) else None

    def _leave_encrypted(self, entry: ReceivedEntry) -> ReceivedEntry | None:
        """Return an undecryptable entry as it is stored, or skip it."""
        if self.decryptor.action == "DISCARD":
            in_chunks = entry.metadata.num_chunks_from_msg > 1
            is_end = not in_chunks or _is_last(entry.metadata)
            self.undecryptable += len(entry.wanted) if is_end else 0
            self.discarded = True
            return None
        if entry.wanted.start and self._continues:
            self.undecryptable += len(entry.wanted)
            logger.warning(
                "%s: the messages of an encrypted batch from %s on are not returned: the batch is "
                "one row, of the range that has its first message. If that could decrypt it, or "
                "left it out, a batch read that starts here returns it.",
                self.topic,
                entry.message_id(entry.wanted.start),
            )
            return None
        self.undecryptable += 1
        entry.wanted, entry.is_batch, entry.undecrypted = range(1), False, True
        return entry

    def _wanted(self, key: tuple[int, int], count: int) -> range:
        """Return the indexes of the entry's messages in the range."""
        first = self.position.batch_index if key == self.position[:2] else 0
        stop = count
        if self.end is not None and key == self.end[:2]:
            stop = min(count, self.end.batch_index)
        return range(first, stop)

    def _decompressed(self, entry: ReceivedEntry) -> ReceivedEntry:
        metadata = entry.metadata
        codec = codec_of(metadata)
        if codec != pb.NONE:
            size = metadata.uncompressed_size
            entry.payload = decompress(codec, entry.payload, size, self.limit)
        return entry

    def _add_chunk(self, entry: ReceivedEntry) -> ReceivedEntry | None:
        metadata, message_id = entry.metadata, entry.message_id()
        if metadata.chunk_id == 0:
            self._given_up.pop(metadata.uuid, None)
        result = self._chunks.add(metadata, message_id, entry.payload)
        for discarded in result.discarded:
            self._on_discarded(discarded)
            if discarded.reason not in _NOT_WHOLE:
                continue
            if metadata.uuid in self._given_up:
                self._give_up(discarded)
            elif _is_last(metadata):
                self.last_chunk = self._last_chunk(entry)
        whole = result.message
        if whole is None:
            return None
        entry.payload, entry.chunk_ids = whole.payload, whole.chunk_ids
        entry.first_chunk = whole.chunk_ids[0]
        return self._decompressed(entry)

    def _on_discarded(self, discarded: DiscardedMessage) -> None:
        first = discarded.chunk_ids[0]
        logger.debug(
            "%s: %d chunks of a message from %s on are dropped: %s",
            self.topic,
            len(discarded.chunk_ids),
            first,
            discarded.reason.value,
        )
        if discarded.reason is DiscardReason.CROWDED_OUT:
            self._crowded_out[discarded.uuid] = Position(first.ledger_id, first.entry_id)
            if len(self._crowded_out) > _MAX_CROWDED_OUT:
                self._crowded_out.popitem(last=False)
        elif discarded.reason is DiscardReason.TOO_MANY:
            self._give_up(discarded)

    def _give_up(self, discarded: DiscardedMessage) -> None:
        self._given_up[discarded.uuid] = None
        if len(self._given_up) > _MAX_GIVEN_UP:
            self._given_up.popitem(last=False)
        if self._on_given_up is not None:
            self._on_given_up(discarded.chunk_ids)

    def _last_chunk(self, entry: ReceivedEntry) -> LastChunk:
        metadata = entry.metadata
        # What may come again may be asked about again.
        first = self._crowded_out.get(metadata.uuid)
        if self._in_order:
            self._crowded_out.pop(metadata.uuid, None)
        # All chunks carry the message's publish time.
        times = [metadata.publish_time, entry.broker_time]
        return LastChunk(
            entry.ledger_id,
            entry.entry_id,
            metadata.uuid,
            metadata.num_chunks_from_msg,
            min(time for time in times if time is not None),
            first,
        )


def _is_last(metadata: pb.MessageMetadata) -> bool:
    return metadata.chunk_id + 1 == metadata.num_chunks_from_msg


def message_count(frame: Frame) -> int:
    """Return how many messages an entry claims to hold; 1 for a damaged one."""
    try:
        metadata = parse_payload(frame.payload, verify=False).metadata
    except PulsarError:
        return 1
    return max(metadata.num_messages_in_batch, 1)


def count_at(block: MessageBlock, at: int, count: Callable[[Frame], int] = message_count) -> int:
    """Return how many messages the frame at a place of a block has; 1 for a damaged one."""
    try:
        return count(block.frame(at)[0])
    except PulsarError:
        return 1
