"""From a delivered frame to an entry: checked, decompressed, put together, cut to a range.

Pulsar binary protocol, "Message frame format", "Batch messages", "Chunked messages". An entry that
cannot be read is an error with its topic, id and reason; it is neither acknowledged nor skipped.
"""

from __future__ import annotations

from pulsar_spark.errors import (
    CorruptBatch,
    CorruptMessage,
    EncryptedMessage,
    PulsarError,
    RemoteProtocolError,
    UnsupportedFeature,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.compression import codec_of, decompress
from pulsar_spark.protocol.events import MessageReceived
from pulsar_spark.protocol.frames import Buffer, PayloadParts, parse_payload
from pulsar_spark.protocol.message_id import MessageId, Position


class ReceivedEntry:
    """An entry of a topic partition, ready to be unpacked.

    `payload` is the decompressed body: of a batch if `is_batch`, else of the one message, whose
    chunks are joined. Wanted are the messages from `first_index` up to, not including,
    `stop_index`. `size` is the number of bytes it had on the wire. `first_chunk` is set for a
    message in chunks, whose ids are then those of the last chunk.
    """

    __slots__ = (
        "broker_entry_metadata",
        "entry_id",
        "first_chunk",
        "first_index",
        "is_batch",
        "ledger_id",
        "metadata",
        "partition",
        "payload",
        "redelivery_count",
        "size",
        "stop_index",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        command: pb.CommandMessage,
        parts: PayloadParts,
        payload: bytes | memoryview,
        indexes: range,
        is_batch: bool,
        size: int,
    ) -> None:
        message_id = command.message_id
        self.topic = topic
        self.ledger_id = message_id.ledgerId
        self.entry_id = message_id.entryId
        self.partition = message_id.partition
        self.redelivery_count = command.redelivery_count
        self.metadata = parts.metadata
        self.broker_entry_metadata = parts.broker_entry_metadata
        self.payload = payload
        self.first_index = indexes.start
        self.stop_index = indexes.stop
        self.is_batch = is_batch
        self.size = size
        self.first_chunk: MessageId | None = None


class EntryDecoder:
    """Turns delivered frames into the entries of a range, in order.

    `position` is where the next entry is expected, `finished` whether nothing more can lie
    before `end`. `messages` is what the last frame cost in permits. `limit` bounds, in bytes,
    what a payload may be decompressed to.
    """

    def __init__(self, topic: str, start: Position, end: Position | None, limit: int) -> None:
        self.topic = topic
        self.position = start
        self.end = end
        self.finished = end is not None and start >= end
        self.messages = 1
        self.limit = limit

    def finish(self) -> None:
        """Note that the topic holds nothing more of the range."""
        self.finished = True

    def decode(self, message: MessageReceived) -> ReceivedEntry | None:
        """Return the entry of a frame, None if nothing of it is wanted.

        Raises CorruptMessage, EncryptedMessage or UnsupportedCodec, and then stays where it is.
        """
        message_id = message.command.message_id
        key = (message_id.ledgerId, message_id.entryId)
        if key < self.position[:2]:
            self.messages = _count_leniently(message)
            return None
        if self.end is not None and (*key, 0) >= self.end:
            self.messages = 1
            self.finished = True
            return None
        try:
            entry = self._decode(message, key)
        except RemoteProtocolError as error:
            raise CorruptMessage(error.what).with_context(**self._context(key)) from error
        except PulsarError as error:
            raise error.with_context(**self._context(key)) from error
        self.position = Position(key[0], key[1] + 1)
        if self.end is not None and self.position >= self.end:
            self.finished = True
        return entry

    def _context(self, key: tuple[int, int]) -> dict[str, str]:
        return {"topic": self.topic, "message_id": f"{key[0]}:{key[1]}"}

    def _decode(self, message: MessageReceived, key: tuple[int, int]) -> ReceivedEntry | None:
        parts = parse_payload(message.payload)
        metadata = parts.metadata
        is_batch = metadata.HasField("num_messages_in_batch")
        count = metadata.num_messages_in_batch
        if count < 1:
            raise CorruptBatch(f"a batch of {count} messages")
        self.messages = count
        if metadata.HasField("marker_type"):
            return None
        if metadata.encryption_keys:
            raise EncryptedMessage(
                "the message is encrypted and no key was given",
                "Set pulsar.reader.cryptoPrivateKeyPath.",
            )
        wanted = self._wanted(key, count)
        if not wanted:
            return None
        if metadata.num_chunks_from_msg > 1 and not is_batch:
            return self._add_chunk(message, parts)
        payload = self._decompressed(metadata, parts.payload)
        size = len(message.payload)
        return ReceivedEntry(self.topic, message.command, parts, payload, wanted, is_batch, size)

    def _wanted(self, key: tuple[int, int], count: int) -> range:
        """Return the indexes of the entry's messages that lie in the range."""
        first = self.position.batch_index if key == self.position[:2] else 0
        stop = count
        if self.end is not None and key == self.end[:2]:
            stop = min(count, self.end.batch_index)
        return range(first, stop)

    def _decompressed(self, metadata: pb.MessageMetadata, payload: Buffer) -> bytes | memoryview:
        codec = codec_of(metadata)
        body = decompress(codec, payload, metadata.uncompressed_size, self.limit)
        return memoryview(body) if isinstance(body, bytearray) else body

    def _add_chunk(self, message: MessageReceived, parts: PayloadParts) -> ReceivedEntry | None:
        raise UnsupportedFeature("messages in chunks cannot be read yet")


def _count_leniently(message: MessageReceived) -> int:
    """Return what an unwanted entry costs in permits; damage does not matter in it."""
    try:
        metadata = parse_payload(message.payload, verify=False).metadata
    except PulsarError:
        return 1
    return max(metadata.num_messages_in_batch, 1)
