"""SENDs: from one entry to the bytes of its frames; for columns see `send_encoder`.

`encode_entry` handles what is rare: chunks, encryption, users' own sequence ids.

Pulsar binary protocol, sections "Payload commands", "Batch messages" and "Chunked messages".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from google.protobuf.message import EncodeError

from pulsar_spark.errors import InvalidRow, MessageTooLarge, WrongType
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.batches import unpack_batch
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.chunks import split_message
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.compression import Codecs, codec_of
from pulsar_spark.protocol.frame_parts import parse_payload
from pulsar_spark.protocol.frames import encode_payload_command
from pulsar_spark.protocol.outgoing_batches import (
    MessageFields,
    UniformMessages,
    encode_numbered_batch,
    encode_uniform_batch,
    fields_of,
)
from pulsar_spark.protocol.send_encoder import Compress

Decompress = Callable[[int, Buffer, int, int], Buffer]
"""Takes a codec, the compressed data, its uncompressed size and the largest acceptable one."""

_CODECS = Codecs()
_MAX_INT32 = 2**31 - 1
# The maximum size of num_chunks_from_msg, total_chunk_msg_size and chunk_id with their two-byte
# tags, and of the uuid's tag and length.
_CHUNK_FIELDS = 3 * (2 + 5) + 2 + 3


# --- one entry ----------------------------------------------------------------------------


@dataclass(slots=True)
class OutgoingEntry:
    """An entry to send: a batch of messages, or a single message.

    `body` is uncompressed; if it contains sequence ids, it is a function of the first one, which is
    called once, when that is known. `num_messages` is None for a message outside of a batch.
    `sequence_ids` are the lowest and the highest one if the caller chooses them. A batch has its
    first message's key; `event_time`, `properties`, `deliver_at` (ms since the epoch) and
    `null_value` are for single messages only. `callback` belongs to the sender.
    """

    body: Buffer | Callable[[int], Buffer]
    num_messages: int | None = None
    sequence_ids: tuple[int, int] | None = None
    partition_key: str | None = None
    key_is_base64: bool = False
    ordering_key: bytes | None = None
    properties: Sequence[tuple[str, str]] = ()
    event_time: int = 0
    deliver_at: int = 0
    null_value: bool = False
    null_key: bool = False
    replicate_to: Sequence[str] = ()
    schema_version: bytes | None = None
    txn: TxnId | None = None
    callback: Callable[..., None] | None = None

    @property
    def count(self) -> int:
        """The number of messages in the entry."""
        return 1 if self.num_messages is None else self.num_messages


@dataclass(frozen=True, slots=True)
class UnbatchedFields:
    """Fields that only a message outside of a batch can have; with any of them it is sent alone."""

    deliver_at: int = 0
    replicate_to: tuple[str, ...] = ()
    txn: TxnId | None = None


def single_entry(
    message: MessageFields,
    callback: Callable[..., None] | None = None,
    unbatched: UnbatchedFields | None = None,
) -> OutgoingEntry:
    """Return a message as an entry outside of a batch."""
    entry = OutgoingEntry(
        message.payload or b"",
        partition_key=message.key,
        key_is_base64=message.key_is_base64,
        null_key=message.null_key,
        ordering_key=message.ordering_key,
        properties=message.properties,
        event_time=message.event_time,
        null_value=message.payload is None,
        callback=callback,
    )
    if unbatched is not None:
        entry.deliver_at = unbatched.deliver_at
        entry.replicate_to = unbatched.replicate_to
        entry.txn = unbatched.txn
    if message.sequence_id is not None:
        entry.sequence_ids = (message.sequence_id, message.sequence_id)
    return entry


def uniform_entry(
    messages: UniformMessages,
    callback: Callable[..., None] | None = None,
    *,
    by_key: bool = False,
) -> OutgoingEntry:
    """Return a column of messages as one entry; a single message is not batched.

    With `by_key` it is one of several batches that were filled together, one for each key. Their
    messages' own ids overlap, so its highest id alone identifies it, as in Java.
    """
    (first,) = messages.part(0, 1).messages()
    if len(messages) == 1:
        return single_entry(first, callback)
    payloads, keys, fields = messages.payloads, messages.keys, messages.fields
    entry = OutgoingEntry(
        lambda first: encode_uniform_batch(payloads, first, keys, fields),  # type: ignore[arg-type]
        num_messages=len(payloads),
        partition_key=first.key,
        key_is_base64=first.key_is_base64,
        ordering_key=first.ordering_key,
        callback=callback,
    )
    if (ids := messages.sequence_ids) is not None and fields is not None:
        entry.body = encode_numbered_batch(payloads, fields, ids)
        entry.sequence_ids = (ids[-1] if by_key else ids[0], ids[-1])
    return entry


def smaller_entries(
    frame: Buffer, most: int, decompress: Decompress, body: Buffer | None = None
) -> tuple[list[OutgoingEntry], int]:
    """Return the batch of a SEND frame as several entries, in order, with their own sequence ids.

    Each has at most `most` bytes before compression, and at most half of the batch, unless it is a
    single message; the size that was used is returned too. `body` is the batch's, if the frame has
    it encrypted.
    """
    data = memoryview(frame)
    parts = parse_payload(data[8 + int.from_bytes(data[4:8], "big") :], verify=False)
    metadata = parts.metadata
    if body is None:
        limit = max(metadata.uncompressed_size, len(parts.payload))
        body = decompress(codec_of(metadata), parts.payload, metadata.uncompressed_size, limit)
    most = min(most, len(body) // 2)
    count = metadata.num_messages_in_batch
    batch = unpack_batch(bytes(body), count)
    # Ids of batches that were filled together overlap: the highest identifies each.
    highest_only = metadata.sequence_id == metadata.highest_sequence_id
    entries: list[OutgoingEntry] = []
    start = 0
    while start < count:
        stop, _ = batch.fitting(start, count, count, most)
        first, last = batch.metadata_of(start), batch.metadata_of(stop - 1)
        message = fields_of(first, bytes(batch.payload(start)))
        if stop - start == 1:
            entry = single_entry(message)
        else:
            entry = OutgoingEntry(
                batch.body[batch.end(start - 1) : batch.end(stop - 1)],
                num_messages=stop - start,
                partition_key=message.key,
                key_is_base64=message.key_is_base64,
                ordering_key=message.ordering_key,
            )
        lowest = last if highest_only else first
        entry.sequence_ids = (lowest.sequence_id, last.sequence_id)
        entries.append(entry)
        start = stop
    return entries, most


class PayloadCipher(Protocol):
    """Encrypts payloads, after compression, each chunk by itself."""

    @property
    def overhead(self) -> int:
        """How many bytes encryption adds to a payload."""

    def announce(self, metadata: pb.MessageMetadata) -> None:
        """Add to the metadata what readers need, in its final size."""

    def encrypt(self, metadata: pb.MessageMetadata, payload: Buffer) -> bytes:
        """Encrypt the payload, and complete its metadata."""


@dataclass(slots=True)
class SendLimits:
    """Limits and settings for encoding entries, fixed while a producer is open.

    With `chunking` a message is chunked if it has more than `chunk_size` bytes (0: no limit), or
    more than the broker accepts. `cipher` returns the next message's cipher. Messages belong to the
    transaction `txn`, except those with their own.
    """

    producer_name: str
    producer_id: int
    max_message_size: int
    compression: int = pb.NONE
    schema_version: bytes = b""
    chunking: bool = False
    chunk_size: int = 0
    topic: str | None = None
    compress: Compress = _CODECS.compress
    cipher: Callable[[], PayloadCipher] | None = None
    txn: TxnId | None = None

    @property
    def entry_by_entry(self) -> bool:
        """Whether `encode_entry` must encode all messages."""
        return self.chunking or self.cipher is not None


class EncodedSend(NamedTuple):
    """The frame of one entry or chunk; only a message's last chunk counts as a message.

    `size` is the size of metadata and payload, which the broker limits.
    """

    buffers: list[Buffer]
    size: int
    sequence_id: int
    highest_sequence_id: int
    num_messages: int = 1
    chunk: int | None = None
    is_last: bool = True


def encode_entry(
    entry: OutgoingEntry, first_sequence_id: int, limits: SendLimits, publish_time: int
) -> Iterator[EncodedSend]:
    """Yield an entry's frames: one, or one for each chunk, which is a copy of its part.

    `publish_time` is in milliseconds. Before yielding anything, raises MessageTooLarge for an entry
    that exceeds the broker's maximum message size, and InvalidRow for text that is not valid
    Unicode.
    """
    highest = first_sequence_id + entry.count - 1
    if entry.sequence_ids is not None:
        highest = entry.sequence_ids[1]
    body = entry.body(first_sequence_id) if callable(entry.body) else entry.body
    metadata = _metadata(entry, first_sequence_id, highest, limits, publish_time)
    payload: Buffer = body
    if limits.compression != pb.NONE and len(body):
        payload = limits.compress(limits.compression, body)
        metadata.compression = limits.compression
        metadata.uncompressed_size = len(body)
    cipher = None
    if limits.cipher is not None:
        cipher = limits.cipher()
        cipher.announce(metadata)
    encoded = _serialize(metadata, limits)
    size = len(encoded) + len(payload) + (0 if cipher is None else cipher.overhead)
    can_chunk = limits.chunking and entry.num_messages is None
    wants_chunks = can_chunk and 0 < limits.chunk_size < len(payload)
    if size <= limits.max_message_size and not wants_chunks:
        if cipher is not None:
            payload = cipher.encrypt(metadata, payload)
            encoded = _serialize(metadata, limits)
        command = _send_command(entry, first_sequence_id, highest, limits)
        buffers = encode_payload_command(command, encoded, payload)
        yield EncodedSend(buffers, size, first_sequence_id, highest, entry.count)
    elif can_chunk:
        yield from _chunks(entry, metadata, payload, limits, cipher)
    else:
        raise _too_large(size, len(encoded), limits, entry)


def _metadata(
    entry: OutgoingEntry, sequence_id: int, highest: int, limits: SendLimits, publish_time: int
) -> pb.MessageMetadata:
    metadata = pb.MessageMetadata(
        producer_name=limits.producer_name, sequence_id=sequence_id, publish_time=publish_time
    )
    if entry.num_messages is not None:
        metadata.num_messages_in_batch = entry.num_messages
        metadata.highest_sequence_id = highest
    schema_version = entry.schema_version
    if schema_version is None:
        schema_version = limits.schema_version
    if schema_version:
        metadata.schema_version = schema_version
    txn = entry.txn or limits.txn
    if txn is not None:
        metadata.txnid_most_bits = txn.most_bits
        metadata.txnid_least_bits = txn.least_bits
    try:
        _set_message_fields(metadata, entry)
    except (ValueError, TypeError) as error:
        kind = WrongType if isinstance(error, TypeError) else InvalidRow
        raise kind(
            f"a message's key, property or time cannot be sent: {error}",
            "Keys and properties are text that UTF-8 can express, times are not negative.",
            topic=limits.topic,
        ) from None
    return metadata


def _set_message_fields(metadata: pb.MessageMetadata, entry: OutgoingEntry) -> None:
    if entry.partition_key is not None:
        metadata.partition_key = entry.partition_key
        if entry.key_is_base64:
            metadata.partition_key_b64_encoded = True
    if entry.null_key:
        metadata.null_partition_key = True
    if entry.ordering_key is not None:
        metadata.ordering_key = entry.ordering_key
    for name, value in entry.properties:
        metadata.properties.add(key=name, value=value)
    if entry.event_time:
        metadata.event_time = entry.event_time
    if entry.deliver_at:
        metadata.deliver_at_time = entry.deliver_at
    if entry.null_value:
        metadata.null_value = True
    metadata.replicate_to.extend(entry.replicate_to)


def _send_command(
    entry: OutgoingEntry,
    sequence_id: int,
    highest: int,
    limits: SendLimits,
    *,
    is_chunk: bool | None = None,
) -> pb.BaseCommand:
    batched = entry.num_messages is not None
    return commands.send(
        limits.producer_id,
        sequence_id,
        entry.count,
        # Otherwise a broker with deduplication remembers only a batch's lowest id.
        highest_sequence_id=highest if batched else None,
        txn=entry.txn or limits.txn,
        is_chunk=is_chunk,
    )


def _chunks(
    entry: OutgoingEntry,
    metadata: pb.MessageMetadata,
    payload: Buffer,
    limits: SendLimits,
    cipher: PayloadCipher | None,
) -> Iterator[EncodedSend]:
    if len(payload) > _MAX_INT32:
        raise _too_large(len(payload), 0, limits, entry, "2 GiB, the most that chunks can hold")
    metadata.uuid = f"{limits.producer_name}-{metadata.sequence_id}"
    overhead = metadata.ByteSize() + _CHUNK_FIELDS
    if cipher is not None:
        overhead += cipher.overhead
    room = limits.max_message_size - overhead
    if room <= 0:
        raise _too_large(overhead, overhead, limits, entry)
    parts = split_message(payload, min(room, limits.chunk_size or room))
    metadata.num_chunks_from_msg = len(parts)
    metadata.total_chunk_msg_size = len(payload)
    sequence_id = metadata.sequence_id
    command = _send_command(entry, sequence_id, sequence_id, limits, is_chunk=True)
    for number, part in enumerate(parts):
        metadata.chunk_id = number
        last = number == len(parts) - 1
        # A view would keep the whole message in memory until its last chunk is acknowledged.
        own = bytes(part) if cipher is None else cipher.encrypt(metadata, part)
        encoded = _serialize(metadata, limits)
        buffers = encode_payload_command(command, encoded, own)
        size = len(encoded) + len(own)
        yield EncodedSend(
            buffers, size, sequence_id, sequence_id, 1 if last else 0, chunk=number, is_last=last
        )


def _serialize(metadata: pb.MessageMetadata, limits: SendLimits) -> bytes:
    try:
        return metadata.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise InvalidRow(
            f"the message's metadata cannot be sent: {error}",
            topic=limits.topic,
        ) from None


def _too_large(
    size: int,
    metadata_size: int,
    limits: SendLimits,
    entry: OutgoingEntry,
    most: str | None = None,
) -> MessageTooLarge:
    what = "a message" if entry.num_messages is None else f"a batch of {entry.count} messages"
    limit = most or f"{limits.max_message_size} bytes, the most that the broker takes"
    return MessageTooLarge(
        f"{what} has {size} bytes ({metadata_size} of them metadata, keys and properties), which "
        f"is more than {limit}",
        "Make it smaller, compress it, set chunkingEnabled (without batching), or raise the "
        "broker's maxMessageSize.",
        topic=limits.topic,
    )
