"""From a message or a batch to the bytes of its SEND: compression, metadata, limits, chunks.

Pulsar binary protocol, sections "Payload commands" and "Chunked messages". Order of work:
compress the whole body, build the metadata once, check the encoded size, cut into chunks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from google.protobuf.message import EncodeError

from pulsar_spark.engine.codecs import compress
from pulsar_spark.engine.inflight_window import PendingSend, SendCallback
from pulsar_spark.errors import InvalidRow, MessageTooLarge
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.chunks import split_message
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.frames import Buffer

_MAX_INT32 = 2**31 - 1
# Bytes of num_chunks_from_msg, total_chunk_msg_size and chunk_id at their largest, with their
# two-byte tags, and of the uuid's tag and length.
_CHUNK_FIELDS = 3 * (2 + 5) + 2 + 3


@dataclass(slots=True)
class OutgoingEntry:
    """One entry to be: a batch of messages, or a single message.

    `body` is uncompressed; if it holds sequence ids, it is a function of the first one, which is
    called once, when that is known. `num_messages` is None for a message that is not in a batch.
    `sequence_ids` are the lowest and the highest if the caller chooses them itself. Of a batch
    the key fields are those of its first message; `event_time`, `properties`, `deliver_at`
    (ms since the epoch) and `null_value` are for a single message only.
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
    callback: SendCallback | None = None

    @property
    def count(self) -> int:
        """Messages that the entry holds."""
        return 1 if self.num_messages is None else self.num_messages


@dataclass(slots=True)
class SendLimits:
    """What an entry is held against when it is encoded, fixed while a producer is open.

    With `chunking` a message goes in chunks if it has more than `chunk_size` bytes (0: no such
    bound), or more than the broker takes.
    """

    producer_name: str
    producer_id: int
    max_message_size: int
    compression: int = pb.NONE
    schema_version: bytes = b""
    chunking: bool = False
    chunk_size: int = 0
    topic: str | None = None


def encode_entry(
    entry: OutgoingEntry, first_sequence_id: int, limits: SendLimits
) -> list[PendingSend]:
    """Return the SENDs of an entry: one, or one for each chunk.

    Raises MessageTooLarge, before anything is sent, for what does not fit the broker's maximum
    message size, and InvalidRow for text that UTF-8 cannot express.
    """
    highest = first_sequence_id + entry.count - 1
    if entry.sequence_ids is not None:
        highest = entry.sequence_ids[1]
    body = entry.body(first_sequence_id) if callable(entry.body) else entry.body
    metadata = _metadata(entry, first_sequence_id, highest, limits)
    payload: Buffer = body
    if limits.compression != pb.NONE and len(body):
        payload = compress(limits.compression, body)
        metadata.compression = limits.compression
        metadata.uncompressed_size = len(body)
    encoded = _serialize(metadata, limits)
    size = len(encoded) + len(payload)
    can_chunk = limits.chunking and entry.num_messages is None
    wants_chunks = can_chunk and 0 < limits.chunk_size < len(payload)
    if size <= limits.max_message_size and not wants_chunks:
        command = _send_command(entry, first_sequence_id, highest, limits)
        return [
            PendingSend(
                command,
                encoded,
                payload,
                highest_sequence_id=highest,
                num_messages=entry.count,
                callback=entry.callback,
            )
        ]
    if not can_chunk:
        raise _too_large(size, len(encoded), limits, entry)
    return list(_chunks(entry, metadata, payload, limits))


def _metadata(
    entry: OutgoingEntry, sequence_id: int, highest: int, limits: SendLimits
) -> pb.MessageMetadata:
    metadata = pb.MessageMetadata(
        producer_name=limits.producer_name,
        sequence_id=sequence_id,
        publish_time=int(time.time() * 1000),
    )
    if entry.num_messages is not None:
        metadata.num_messages_in_batch = entry.num_messages
        metadata.highest_sequence_id = highest
    schema_version = entry.schema_version
    if schema_version is None:
        schema_version = limits.schema_version
    if schema_version:
        metadata.schema_version = schema_version
    if entry.txn is not None:
        metadata.txnid_most_bits = entry.txn.most_bits
        metadata.txnid_least_bits = entry.txn.least_bits
    try:
        _set_message_fields(metadata, entry)
    except (ValueError, TypeError) as error:
        raise InvalidRow(
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
        # Without it a broker that deduplicates remembers a batch by its lowest id alone.
        highest_sequence_id=highest if batched else None,
        txn=entry.txn,
        is_chunk=is_chunk,
    )


def _chunks(
    entry: OutgoingEntry,
    metadata: pb.MessageMetadata,
    payload: Buffer,
    limits: SendLimits,
) -> Iterator[PendingSend]:
    if len(payload) > _MAX_INT32:
        raise _too_large(len(payload), 0, limits, entry, "2 GiB, the most that chunks can hold")
    metadata.uuid = f"{limits.producer_name}-{metadata.sequence_id}"
    overhead = metadata.ByteSize() + _CHUNK_FIELDS
    room = limits.max_message_size - overhead
    if room <= 0:
        raise _too_large(overhead, overhead, limits, entry)
    parts = split_message(payload, min(room, limits.chunk_size or room))
    metadata.num_chunks_from_msg = len(parts)
    metadata.total_chunk_msg_size = len(payload)
    sequence_id = metadata.sequence_id
    for number, part in enumerate(parts):
        metadata.chunk_id = number
        last = number == len(parts) - 1
        yield PendingSend(
            _send_command(entry, sequence_id, sequence_id, limits, is_chunk=True),
            _serialize(metadata, limits),
            part,
            highest_sequence_id=sequence_id,
            num_messages=1 if last else 0,
            callback=entry.callback if last else None,
            chunk=number,
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
