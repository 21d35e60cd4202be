"""Messages → SEND frames: the SendEncoder, its plain reference, and its choice.

Columns of messages in, bytes out, many frames at a time. The reference builds each command and each
metadata with protobuf, entry by entry; the compiled one writes the same bytes. What is rare, chunks
and encryption, only the former does: `encode_entry`.

Pulsar binary protocol, sections "Payload commands", "Batch messages" and "Chunked messages".
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from struct import Struct
from typing import Protocol, TypeVar

from pulsar_spark.errors import LocalProtocolError, MessageTooLarge
from pulsar_spark.protocol import commands, implementation
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.batches import unpack_batch
from pulsar_spark.protocol.blocks import Buffer, Decompress
from pulsar_spark.protocol.chunks import split_message
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.compression import Codecs, codec_of
from pulsar_spark.protocol.frame_parts import parse_payload
from pulsar_spark.protocol.frames import encode_payload_command
from pulsar_spark.protocol.outgoing_messages import (
    OutgoingMessages,
    fields_in_batch,
    fields_outside,
)

E = TypeVar("E")

Compress = Callable[[int, Buffer], Buffer]
"""Compresses a whole payload; the first argument is the codec's number."""

_CODECS = Codecs()
_U32 = Struct(">I")
_MAX_INT32 = 2**31 - 1
END_OF_IDS = 2**63
"""A sequence id is a number of 63 bits."""
# The maximum size of num_chunks_from_msg, total_chunk_msg_size and chunk_id with their two-byte
# tags, and of the uuid's tag and length.
_CHUNK_FIELDS = 3 * (2 + 5) + 2 + 3

# A column's messages are encoded together up to this size or number; the payload of an entry that
# is as large alone is not copied.
BLOCK_BYTES = 256 * 1024
BLOCK_MESSAGES = 2000
LARGE_ENTRY = 32 * 1024
# The maximum size of a message in a batch besides its payload, key and fields.
_PER_MESSAGE = 40


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
    more than the broker accepts. `cipher` returns the next message's cipher. With `txn` all
    messages belong to that transaction.
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
    def largest_in_block(self) -> int:
        """The size from which an entry has a block of its own, and may be chunked."""
        if not self.chunking or not self.chunk_size:
            return LARGE_ENTRY
        # What counts is the size after compression, which can be more than before.
        return min(
            LARGE_ENTRY, self.chunk_size if self.compression == pb.NONE else self.chunk_size // 2
        )

    @property
    def common(self) -> bytes:
        """What all entries have in their metadata: the schema's version, the transaction."""
        metadata = pb.MessageMetadata()
        if self.schema_version:
            metadata.schema_version = self.schema_version
        if self.txn is not None:
            metadata.txnid_least_bits = self.txn.least_bits
            metadata.txnid_most_bits = self.txn.most_bits
        return metadata.SerializePartialToString()


class SendEncoder(Protocol):
    """Encodes the messages of an open producer, whose id, name and schema are fixed.

    The broker's maximum message size is not checked: see `overhead`.
    """

    @property
    def overhead(self) -> int:
        """Maximum size of an entry's metadata, besides its key and fields."""

    def encode(
        self,
        payloads: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        fields: Sequence[bytes] | None,
        sequence_ids: int | Sequence[int],
        publish_time: int,
        per_entry: int,
        *,
        by_highest: bool = False,
    ) -> tuple[list[Buffer], Sequence[int]]:
        """Return the frames of columns of messages, see `OutgoingMessages`, and where each ends.

        Frames are one buffer; a single one with a large payload is two, and the payload is not
        copied. `sequence_ids` are the first one, from which they count up, or each message's own.
        `publish_time` is in milliseconds. Each batch has `per_entry` messages, the last one the
        rest; one message alone is not batched. A batch has the lowest and the highest of its ids;
        `by_highest`, the latter only.
        Raises ValueError for columns of different lengths and ids that do not increase.
        """


class PythonSendEncoder:
    """The SendEncoder in pure Python: the reference for the compiled one."""

    def __init__(
        self,
        producer_id: int,
        producer_name: str,
        common: bytes = b"",
        compression: int = pb.NONE,
        compress: Compress = _CODECS.compress,
    ) -> None:
        self._producer_id = producer_id
        self._producer_name = producer_name
        self._common = common
        self._compression = compression
        self._compress = compress
        self.overhead = len(producer_name.encode()) + len(common) + 140
        """Maximum size of an entry's metadata, besides its key and fields."""

    def encode(
        self,
        payloads: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        fields: Sequence[bytes] | None,
        sequence_ids: int | Sequence[int],
        publish_time: int,
        per_entry: int,
        *,
        by_highest: bool = False,
    ) -> tuple[list[Buffer], Sequence[int]]:
        """Return the frames of columns of messages, see `SendEncoder.encode`."""
        payloads = list(payloads)
        keys = None if keys is None else list(keys)
        fields = None if fields is None else list(fields)
        ids = checked_ids(sequence_ids, len(payloads))
        if any(column is not None and len(column) != len(payloads) for column in (keys, fields)):
            raise ValueError("columns must be of equal length")
        if None in payloads or (fields is not None and None in fields):
            raise TypeError("only keys may be None")
        frames: list[list[Buffer]] = []
        for start in range(0, len(payloads), per_entry):
            part = slice(start, start + per_entry)
            metadata, payload = self.entry(
                payloads[part],
                None if keys is None else keys[part],
                None if fields is None else fields[part],
                ids[part],
                publish_time,
                by_highest=by_highest,
            )
            frames.append(self.frame(metadata, payload))
        ends = array("q", accumulate(sum(map(len, frame)) for frame in frames))
        if len(frames) == 1 and len(frames[0][1]) >= LARGE_ENTRY:
            return frames[0], ends
        return [b"".join(buffer for frame in frames for buffer in frame)], ends

    def entry(
        self,
        payloads: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        fields: Sequence[bytes] | None,
        ids: Sequence[int],
        publish_time: int,
        *,
        by_highest: bool = False,
    ) -> tuple[pb.MessageMetadata, Buffer]:
        """Return the metadata and the payload, compressed, of an entry of some messages."""
        payload: Buffer = payloads[0]
        metadata = pb.MessageMetadata(
            producer_name=self._producer_name,
            sequence_id=ids[-1] if by_highest else ids[0],
            publish_time=publish_time,
        )
        if keys is not None and (key := keys[0]) is not None:
            metadata.partition_key = key.decode()
        if len(payloads) > 1:
            payload = batch_body(payloads, keys, fields, ids)
            metadata.num_messages_in_batch = len(payloads)
            metadata.highest_sequence_id = ids[-1]
            if fields is not None and fields[0]:
                first = pb.MessageMetadata.FromString(fields[0])
                if first.partition_key_b64_encoded:
                    metadata.partition_key_b64_encoded = True
                if first.HasField("ordering_key"):
                    metadata.ordering_key = first.ordering_key
        elif fields is not None:
            metadata.MergeFromString(fields[0])
        if self._compression != pb.NONE and len(payload):
            metadata.compression = self._compression
            metadata.uncompressed_size = len(payload)
            payload = self._compress(self._compression, payload)
        metadata.MergeFromString(self._common)
        return metadata, payload

    def frame(
        self, metadata: pb.MessageMetadata, payload: Buffer, *, is_chunk: bool | None = None
    ) -> list[Buffer]:
        """Return an entry's frame: all before its payload, and the payload."""
        txn = None
        if metadata.HasField("txnid_most_bits"):
            txn = TxnId(metadata.txnid_most_bits, metadata.txnid_least_bits)
        # Without the highest id a broker with deduplication remembers only a batch's lowest.
        has_highest = metadata.HasField("highest_sequence_id")
        command = commands.send(
            self._producer_id,
            metadata.sequence_id,
            metadata.num_messages_in_batch,
            highest_sequence_id=metadata.highest_sequence_id if has_highest else None,
            txn=txn,
            is_chunk=is_chunk,
        )
        return encode_payload_command(command, metadata.SerializeToString(), payload)


def batch_body(
    payloads: Sequence[bytes],
    keys: Sequence[bytes | None] | None,
    fields: Sequence[bytes] | None,
    ids: Sequence[int],
) -> bytes:
    """Return what a batch contains: the size and the metadata of each message, and its payload."""
    parts: list[bytes] = []
    for index, payload in enumerate(payloads):
        if fields is None or not fields[index]:
            metadata = pb.SingleMessageMetadata()
        else:
            metadata = fields_in_batch(fields[index])
        if keys is not None and (key := keys[index]) is not None:
            metadata.partition_key = key.decode()
        metadata.payload_size = len(payload)
        metadata.sequence_id = ids[index]
        encoded = metadata.SerializeToString()
        parts += (_U32.pack(len(encoded)), encoded, payload)
    return b"".join(parts)


def checked_ids(given: int | Sequence[int], count: int) -> Sequence[int]:
    """Return the sequence ids of so many messages; raises ValueError if these are none."""
    ids = range(given, given + count) if isinstance(given, int) else given
    increase = isinstance(given, int) or all(map(int.__lt__, given, given[1:]))
    if len(ids) != count or not count or ids[0] < 0 or ids[-1] >= END_OF_IDS or not increase:
        raise ValueError("no messages, or no sequence ids for them")
    return ids


def make_encoder(limits: SendLimits) -> SendEncoder:
    """Return a new encoder for a producer, compiled if possible."""
    implementation.log_implementation()
    native = implementation.native
    encoder: type[SendEncoder] = PythonSendEncoder if native is None else native.SendEncoder
    return _new(encoder, limits)


def _new(kind: Callable[..., E], limits: SendLimits) -> E:
    return kind(
        limits.producer_id,
        limits.producer_name,
        limits.common,
        limits.compression,
        limits.compress,
    )


def block_of(
    messages: OutgoingMessages, per_entry: int, start: int, most: int, large: int = LARGE_ENTRY
) -> tuple[int, int]:
    """Return where a block of complete entries ends, and roughly the size of its largest entry.

    It has at most `most` messages, but at least one entry's. An entry of `large` bytes has its own
    block.
    """
    stop = min(start + per_entry, len(messages))
    largest = messages.size(start, stop) + _PER_MESSAGE * (stop - start)
    if largest >= large or most <= stop - start:
        return stop, largest
    edges = messages.edges()
    end = min(start + most, len(messages))
    last = bisect_right(edges, edges[start] + BLOCK_BYTES, start + 1, end + 1) - 1
    if last < len(messages):
        last -= (last - start) % per_entry
    if last <= start:
        return stop, largest
    entries = [*edges[start:last:per_entry], edges[last]]
    sizes = list(map(sub, entries[1:], entries))
    room = large - _PER_MESSAGE * per_entry
    if max(sizes) >= room:
        number = next(number for number, size in enumerate(sizes) if size >= room)
        sizes = sizes[:number]
        last = start + number * per_entry
    if last <= start:
        return stop, largest
    return last, max(sizes) + _PER_MESSAGE * min(per_entry, last - start)


# --- one entry at a time ----------------------------------------------------------------------


def encode_entry(
    messages: OutgoingMessages,
    first: int,
    limits: SendLimits,
    publish_time: int,
    *,
    by_highest: bool = False,
) -> tuple[int, Iterator[list[Buffer]]]:
    """Return an entry's frames, and how many there are: one, or one for each chunk.

    Its messages have ids from `first` on, if they have none of their own. A chunk is a copy of its
    part. Raises MessageTooLarge for an entry that exceeds the broker's maximum message size, and
    LocalProtocolError for ids that no messages can have.
    """
    reference = _new(PythonSendEncoder, limits)
    try:
        ids = checked_ids(first if messages.sequence_ids is None else messages.sequence_ids,
                          len(messages))  # fmt: skip
    except ValueError as error:
        raise LocalProtocolError(f"an entry cannot be encoded: {error}") from None
    metadata, payload = reference.entry(
        messages.payloads, messages.keys, messages.fields, ids, publish_time, by_highest=by_highest
    )
    cipher = None
    if limits.cipher is not None:
        cipher = limits.cipher()
        cipher.announce(metadata)
    metadata_size = metadata.ByteSize()
    size = metadata_size + len(payload) + (0 if cipher is None else cipher.overhead)
    can_chunk = limits.chunking and len(messages) == 1
    wants_chunks = can_chunk and 0 < limits.chunk_size < len(payload)
    if size <= limits.max_message_size and not wants_chunks:
        if cipher is not None:
            payload = cipher.encrypt(metadata, payload)
        return 1, iter([reference.frame(metadata, payload)])
    if can_chunk:
        return _chunks(reference, metadata, payload, limits, cipher)
    raise _too_large(size, metadata_size, limits, len(messages))


def _chunks(
    reference: PythonSendEncoder,
    metadata: pb.MessageMetadata,
    payload: Buffer,
    limits: SendLimits,
    cipher: PayloadCipher | None,
) -> tuple[int, Iterator[list[Buffer]]]:
    if len(payload) > _MAX_INT32:
        raise _too_large(len(payload), 0, limits, 1, "2 GiB, the most that chunks can hold")
    metadata.uuid = f"{limits.producer_name}-{metadata.sequence_id}"
    overhead = metadata.ByteSize() + _CHUNK_FIELDS
    if cipher is not None:
        overhead += cipher.overhead
    room = limits.max_message_size - overhead
    if room <= 0:
        raise _too_large(overhead, overhead, limits, 1)
    parts = split_message(payload, min(room, limits.chunk_size or room))
    metadata.num_chunks_from_msg = len(parts)
    metadata.total_chunk_msg_size = len(payload)

    def frames() -> Iterator[list[Buffer]]:
        for number, part in enumerate(parts):
            metadata.chunk_id = number
            # A view would keep the whole message in memory until its last chunk is acknowledged.
            own = bytes(part) if cipher is None else cipher.encrypt(metadata, part)
            yield reference.frame(metadata, own, is_chunk=True)

    return len(parts), frames()


def _too_large(
    size: int, metadata_size: int, limits: SendLimits, count: int, most: str | None = None
) -> MessageTooLarge:
    what = "a message" if count == 1 else f"a batch of {count} messages"
    limit = most or f"{limits.max_message_size} bytes, the most that the broker takes"
    return MessageTooLarge(
        f"{what} has {size} bytes ({metadata_size} of them metadata, keys and properties), which "
        f"is more than {limit}",
        "Make it smaller, compress it, set chunkingEnabled (without batching), or raise the "
        "broker's maxMessageSize.",
        topic=limits.topic,
    )


def messages_of(frame: Buffer, decompress: Decompress) -> tuple[OutgoingMessages, bool]:
    """Return the messages of a batch's SEND frame, with their ids, and whether it is `by_highest`.

    The payload is not encrypted.
    """
    data = memoryview(frame)
    parts = parse_payload(data[8 + int.from_bytes(data[4:8], "big") :], verify=False)
    metadata = parts.metadata
    limit = max(metadata.uncompressed_size, len(parts.payload))
    body = decompress(codec_of(metadata), parts.payload, metadata.uncompressed_size, limit)
    count = metadata.num_messages_in_batch
    batch = unpack_batch(bytes(body), count)
    messages = OutgoingMessages([])
    for index in range(count):
        own = batch.metadata_of(index)
        messages.append(bytes(batch.payload(index)), *fields_outside(own), own.sequence_id)
    return messages, metadata.sequence_id == metadata.highest_sequence_id
