"""SENDs: from messages and batches to the bytes of their frames.

The usual cases use templates: only sequence ids, times, keys and sizes vary in command and
metadata, and they are written without protobuf, with the same bytes. A `SendEncoder` turns columns
of messages into many frames at a time: plain buffers in, bytes out. `encode_entry` handles rare
cases (chunks, transactions) and fields of single messages.

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
from typing import NamedTuple, Protocol

from google.protobuf.message import EncodeError

from pulsar_spark.errors import InvalidRow, MessageTooLarge
from pulsar_spark.protocol import commands, implementation
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.batches import (
    MessageFields,
    UniformMessages,
    encode_uniform_batch,
    uniform_parts,
)
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.checksum import extend_crc32c
from pulsar_spark.protocol.chunks import split_message
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.compression import Codecs
from pulsar_spark.protocol.frames import MAGIC_CHECKSUM, encode_payload_command
from pulsar_spark.protocol.single_metadata import encode_number, number_runs, property_name, sized

Compress = Callable[[int, Buffer], Buffer]
"""Compresses a whole payload; the first argument is the codec's number."""

_CODECS = Codecs()
_MAX_INT32 = 2**31 - 1
# The maximum size of num_chunks_from_msg, total_chunk_msg_size and chunk_id with their two-byte
# tags, and of the uuid's tag and length.
_CHUNK_FIELDS = 3 * (2 + 5) + 2 + 3

_U32 = Struct(">I")
_SIZES = Struct(">II")
_MAGIC = Struct(">H").pack(MAGIC_CHECKSUM)
# A frame's bytes besides command, metadata and payload: two sizes, magic number and checksum.
_FRAMING = 4 + 2 + 4 + 4

# BaseCommand { type: SEND, send: … } up to the body's length; bodies have less than 128 bytes.
_SEND = b"\x08\x06\x32"
# CommandSend.num_messages of a message outside of a batch.
_ONE_MESSAGE = b"\x18\x01"


# A column's messages are encoded together up to this size or number; an entry that is as large
# alone is not copied.
BLOCK_BYTES = 256 * 1024
BLOCK_MESSAGES = 2000
LARGE_ENTRY = 32 * 1024
# The maximum size of a message in a batch besides its payload and key.
_PER_MESSAGE = 40

# --- columns of messages ------------------------------------------------------------------


class Sends(NamedTuple):
    """One producer's frames in order; frame i ends at ``ends[i]`` of `data`."""

    data: bytes
    ends: Sequence[int]


class SendEncoder(Protocol):
    """Encodes the messages of an open producer, whose id, name and schema are fixed.

    Messages have a payload, perhaps a string key in UTF-8, and in batches `fields`, see
    `UniformMessages`. Sequence ids count up from the first one. `publish_time` is in milliseconds.
    The broker's maximum message size is not checked: see `overhead`.
    """

    @property
    def overhead(self) -> int:
        """Maximum size of an entry's metadata, besides its key."""

    def encode(
        self,
        payloads: Sequence[bytes],
        keys: Sequence[bytes] | None,
        first_sequence_id: int,
        publish_time: int,
        per_entry: int,
        fields: Sequence[bytes] | None = None,
    ) -> tuple[bytes, Sequence[int]]:
        """Return the frames of a column of messages, and where each ends.

        Each batch has `per_entry` messages, the last one the rest; with 1 nothing is batched. A
        rest of one message is not batched either. Messages outside of batches have no `fields`.
        """

    def body(
        self,
        payloads: Sequence[bytes],
        keys: Sequence[bytes] | None,
        first_sequence_id: int,
        fields: Sequence[bytes] | None = None,
    ) -> bytes:
        """Return the body of a batch, for `frame`."""

    def frame(
        self,
        body: bytes,
        first_sequence_id: int,
        publish_time: int,
        key: bytes | None = None,
        num_messages: int = 1,
    ) -> tuple[bytes, Buffer]:
        """Return one entry's frame; `body` is its compressed payload.

        More than one message are a batch, whose key is its first message's.
        """


class PythonSendEncoder:
    """The SendEncoder in pure Python: the reference for the compiled one."""

    def __init__(
        self,
        producer_id: int,
        producer_name: str,
        schema_version: bytes = b"",
        compression: int = pb.NONE,
        compress: Compress = _CODECS.compress,
        txn: TxnId | None = None,
        bodies: SendEncoder | None = None,
    ) -> None:
        self.compression = compression
        self._bodies = bodies
        self._compress = compress
        name = producer_name.encode()
        # The metadata's fields in their order: producer_name, sequence_id (the tag), …
        self._name = b"\x0a" + encode_number(len(name)) + name + b"\x10"
        self._version = b""
        if schema_version:
            self._version = b"\x82\x01" + encode_number(len(schema_version)) + schema_version
        in_command, in_metadata = _txn_fields(txn)
        self._version += in_metadata
        self._txn = in_command
        self._one_message = _ONE_MESSAGE + in_command
        self._producer = b"\x08" + encode_number(producer_id) + b"\x10"
        self.overhead = len(self._name) + len(self._version) + 128
        """Maximum size of an entry's metadata, besides its key."""

    def encode(
        self,
        payloads: Sequence[bytes],
        keys: Sequence[bytes] | None,
        first_sequence_id: int,
        publish_time: int,
        per_entry: int,
        fields: Sequence[bytes] | None = None,
    ) -> Sends:
        """Return the frames of a column of messages, see `SendEncoder.encode`."""
        if self.compression == pb.NONE and per_entry == 1:
            return self._singles(payloads, keys, first_sequence_id, publish_time)
        frames: list[bytes] = []
        parts: Sequence[bytes] = ()
        if per_entry > 1 and self._bodies is None:
            parts = uniform_parts(payloads, first_sequence_id, keys, fields)
        each = len(parts) // len(payloads)
        for start in range(0, len(payloads), per_entry):
            stop = min(start + per_entry, len(payloads))
            key = None if keys is None else keys[start]
            if stop - start == 1:
                body = payloads[start]
            elif self._bodies is None:
                body = b"".join(parts[start * each : stop * each])
            else:
                own_keys = None if keys is None else keys[start:stop]
                own_fields = None if fields is None else fields[start:stop]
                body = self.body(
                    payloads[start:stop], own_keys, first_sequence_id + start, own_fields
                )
            first = first_sequence_id + start
            head, payload = self.frame(body, first, publish_time, key, stop - start)
            frames.append(head + payload)
        return Sends(b"".join(frames), array("q", accumulate(map(len, frames))))

    def body(
        self,
        payloads: Sequence[bytes],
        keys: Sequence[bytes] | None,
        first_sequence_id: int,
        fields: Sequence[bytes] | None = None,
    ) -> bytes:
        """Return the body of a batch, for `frame`."""
        if self._bodies is not None:
            return self._bodies.body(payloads, keys, first_sequence_id, fields)
        return encode_uniform_batch(payloads, first_sequence_id, keys, fields)

    def frame(
        self,
        body: bytes,
        first_sequence_id: int,
        publish_time: int,
        key: bytes | None = None,
        num_messages: int = 1,
    ) -> tuple[bytes, Buffer]:
        """Return the frame of one entry, see `SendEncoder.frame`."""
        digits = encode_number(first_sequence_id)
        metadata = [self._name, digits, b"\x18", encode_number(publish_time)]
        command = [self._producer, digits, b"\x18", encode_number(num_messages), self._txn]
        if key is not None:
            metadata += (b"\x32", encode_number(len(key)), key)
        payload: Buffer = body
        if self.compression != pb.NONE and body:
            payload = self._compress(self.compression, body)
            metadata += (b"\x40", encode_number(self.compression), b"\x48")
            metadata.append(encode_number(len(body)))
        highest = b""
        if num_messages > 1:
            highest = encode_number(first_sequence_id + num_messages - 1)
            metadata += (b"\x58", encode_number(num_messages))
            command += (b"\x30", highest)
        metadata.append(self._version)
        if highest:
            metadata += (b"\xc0\x01", highest)
        return frame_head(b"".join(command), b"".join(metadata), payload), payload

    def _singles(
        self,
        payloads: Sequence[bytes],
        keys: Sequence[bytes] | None,
        first_sequence_id: int,
        publish_time: int,
    ) -> Sends:
        behind_id = b"\x18" + encode_number(publish_time)
        parts: list[bytes] = []
        sizes: list[int] = []
        index = 0
        for run in number_runs(first_sequence_id, len(payloads)):
            stop = index + len(run)
            command = self._producer + run[0] + self._one_message
            command_head = _SEND + bytes((len(command),)) + self._producer
            command_size = len(_SEND) + 1 + len(command)
            # The metadata's size for a message without a key.
            size = len(self._name) + len(run[0]) + len(behind_id) + len(self._version)
            fixed = _FRAMING + command_size + size
            own = payloads[index:stop]
            if keys is None:
                self._plain_run(
                    parts, run, own, behind_id + self._version, size, (command_head, command_size)
                )
                sizes += [4 + fixed + len(payload) for payload in own]
            else:
                own_keys = keys[index:stop]
                sizes += self._keyed_run(
                    parts, run, own, own_keys, behind_id, size, (command_head, command_size)
                )
            index = stop
        return Sends(b"".join(parts), array("q", accumulate(sizes)))

    def _plain_run(
        self,
        parts: list[bytes],
        run: list[bytes],
        payloads: Sequence[bytes],
        behind_id: bytes,
        metadata_size: int,
        command: tuple[bytes, int],
    ) -> None:
        """Add frames of messages without keys, whose ids all have the same number of digits."""
        command_head, command_size = command
        fixed = _FRAMING + command_size + metadata_size
        before_id = _U32.pack(metadata_size) + self._name
        behind_command = self._one_message + _MAGIC
        heads: dict[int, bytes] = {}
        pack, checksum = _U32.pack, extend_crc32c
        for digits, payload in zip(run, payloads, strict=True):
            size = len(payload)
            head = heads.get(size)
            if head is None:
                head = heads[size] = _SIZES.pack(fixed + size, command_size) + command_head
            body = before_id + digits + behind_id + payload
            parts += (head, digits, behind_command, pack(checksum(body)), body)

    def _keyed_run(
        self,
        parts: list[bytes],
        run: list[bytes],
        payloads: Sequence[bytes],
        keys: Sequence[bytes],
        behind_id: bytes,
        metadata_size: int,
        command: tuple[bytes, int],
    ) -> list[int]:
        """As `_plain_run`, for messages with keys; return the frames' sizes."""
        command_head, command_size = command
        behind_command = self._one_message + _MAGIC
        version = self._version
        around: dict[int, tuple[bytes, bytes, int]] = {}
        pack, checksum = _U32.pack, extend_crc32c
        sizes: list[int] = []
        for digits, payload, key in zip(run, payloads, keys, strict=True):
            found = around.get(len(key))
            if found is None:
                tag = b"\x32" + encode_number(len(key))
                size = metadata_size + len(tag) + len(key)
                before_id = pack(size) + self._name
                found = around[len(key)] = (
                    before_id,
                    behind_id + tag,
                    _FRAMING + command_size + size,
                )
            before_id, before_key, fixed = found
            fixed += len(payload)
            body = b"".join((before_id, digits, before_key, key, version, payload))
            parts += (
                _SIZES.pack(fixed, command_size),
                command_head,
                digits,
                behind_command,
                pack(checksum(body)),
                body,
            )
            sizes.append(4 + fixed)
        return sizes


def make_encoder(
    producer_id: int,
    producer_name: str,
    schema_version: bytes,
    compression: int,
    compress: Compress,
    txn: TxnId | None = None,
) -> SendEncoder:
    """Return a new encoder for a producer, compiled if possible.

    With `txn` all messages belong to that transaction.
    """
    implementation.tell()
    given = (producer_id, producer_name, schema_version, compression, compress)
    compiled: SendEncoder | None = None
    if implementation.native is not None:
        compiled = implementation.native.SendEncoder(*given)
    if compiled is not None and txn is None:
        return compiled
    # The compiled one does not support transactions; it encodes the batches' bodies.
    return PythonSendEncoder(*given, txn, compiled)


def _txn_fields(txn: TxnId | None) -> tuple[bytes, bytes]:
    """Return the transaction's fields in CommandSend and in MessageMetadata."""
    if txn is None:
        return b"", b""
    least, most = encode_number(txn.least_bits), encode_number(txn.most_bits)
    return b"\x20" + least + b"\x28" + most, b"\xb0\x01" + least + b"\xb8\x01" + most


def frame_head(send: bytes, metadata: bytes, payload: Buffer) -> bytes:
    """Return a frame's bytes before the payload; `send` is the command's body."""
    command = _SEND + encode_number(len(send)) + send
    sized = _U32.pack(len(metadata)) + metadata
    checksum = extend_crc32c(payload, extend_crc32c(sized))
    total = _FRAMING + len(command) + len(metadata) + len(payload)
    return b"".join((_SIZES.pack(total, len(command)), command, _MAGIC, _U32.pack(checksum), sized))


def block_of(messages: UniformMessages, per_entry: int, start: int, most: int) -> tuple[int, int]:
    """Return where a block of complete entries ends, and roughly the size of its largest entry.

    It has at most `most` messages, but at least one entry's. A large entry has its own block.
    """
    stop = min(start + per_entry, len(messages))
    first = sum(messages.part(start, stop).sizes())
    largest = first + _PER_MESSAGE * (stop - start)
    if largest >= LARGE_ENTRY:
        return stop, largest
    # At most as many messages as would fit if all entries were like the first.
    most = min(most, per_entry * (2 * BLOCK_BYTES // max(first, 1)))
    sums = list(accumulate(messages.part(start, start + most).sizes()))
    count = bisect_right(sums, BLOCK_BYTES)
    if start + count < len(messages):
        count = count // per_entry * per_entry
    entries = sums[per_entry - 1 : count : per_entry]
    if count % per_entry:
        entries.append(sums[count - 1])
    sizes = list(map(sub, entries, [0, *entries]))
    room = LARGE_ENTRY - _PER_MESSAGE * per_entry
    if max(sizes) >= room:
        number = next(number for number, size in enumerate(sizes) if size >= room)
        sizes = sizes[:number]
        count = number * per_entry
    if not count:
        return stop, largest
    return start + count, max(sizes) + _PER_MESSAGE * min(per_entry, count)


# --- messages with fields -----------------------------------------------------------------


def encode_messages(
    messages: Sequence[MessageFields],
    first_sequence_id: int,
    publish_time: int,
    limits: SendLimits,
    most_bytes: int,
) -> Sends:
    """Return the frames of the first messages, each outside of a batch.

    Continues while sequence ids count up, up to about `most_bytes` bytes. Stops before a message
    that needs `encode_entry`: one that is too large, has its own sequence id, or has invalid
    values.
    """
    name = limits.producer_name.encode()
    before_id = b"\x0a" + encode_number(len(name)) + name + b"\x10"
    behind_id = b"\x18" + encode_number(publish_time)
    version = b""
    if limits.schema_version:
        version = b"\x82\x01" + sized(limits.schema_version)
    in_command, in_metadata = _txn_fields(limits.txn)
    version += in_metadata
    producer = b"\x08" + encode_number(limits.producer_id) + b"\x10"
    frames: list[Buffer] = []
    ends = array("q")
    total = 0
    for index, message in enumerate(messages):
        payload: Buffer = message.payload or b""
        if message.sequence_id is not None or len(payload) > most_bytes or total >= most_bytes:
            break
        try:
            before, behind = _fields(message)
        except (AttributeError, TypeError, ValueError):
            break
        compressed = b""
        if limits.compression != pb.NONE and payload:
            size = encode_number(len(payload))
            payload = limits.compress(limits.compression, payload)
            compressed = b"\x40" + encode_number(limits.compression) + b"\x48" + size
        digits = encode_number(first_sequence_id + index)
        event_time = b""
        if message.event_time:
            event_time = b"\x60" + encode_number(message.event_time)
        metadata = b"".join(
            (before_id, digits, behind_id, before, compressed, event_time, version, behind)
        )
        if len(metadata) + len(payload) > limits.max_message_size:
            break
        head = frame_head(producer + digits + _ONE_MESSAGE + in_command, metadata, payload)
        frames += (head, payload)
        total += len(head) + len(payload)
        ends.append(total)
    return Sends(b"".join(frames), ends)


def _fields(message: MessageFields) -> tuple[bytes, bytes]:
    """Return a message's fields in MessageMetadata, before and after those of its entry.

    Raises ValueError and others for invalid values.
    """
    before = behind = b""
    if not 0 <= message.event_time < 2**64:
        raise ValueError("the event time is out of range")
    if message.properties:
        before = b"".join(
            b"\x22" + sized(property_name(name) + b"\x12" + sized(value.encode()))
            for name, value in message.properties
        )
    if message.key is not None:
        before += b"\x32" + sized(message.key.encode())
        if message.key_is_base64:
            behind = b"\x88\x01\x01"
    if message.ordering_key is not None:
        behind += b"\x92\x01" + sized(message.ordering_key)
    if message.payload is None:
        behind += b"\xc8\x01\x01"
    if message.null_key:
        behind += b"\xf0\x01\x01"
    return before, behind


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
class Solo:
    """Fields that only a message outside of a batch can have; with any of them it is sent alone."""

    deliver_at: int = 0
    replicate_to: tuple[str, ...] = ()
    txn: TxnId | None = None


def single_entry(
    message: MessageFields, callback: Callable[..., None] | None = None, solo: Solo | None = None
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
    if solo is not None:
        entry.deliver_at = solo.deliver_at
        entry.replicate_to = solo.replicate_to
        entry.txn = solo.txn
    if message.sequence_id is not None:
        entry.sequence_ids = (message.sequence_id, message.sequence_id)
    return entry


def uniform_entry(
    messages: UniformMessages, callback: Callable[..., None] | None = None
) -> OutgoingEntry:
    """Return a column of messages as one entry; a single message is not batched."""
    if len(messages) == 1:
        return single_entry(messages.messages()[0], callback)
    payloads, keys, fields = messages.payloads, messages.keys, messages.fields
    return OutgoingEntry(
        lambda first: encode_uniform_batch(payloads, first, keys, fields),
        num_messages=len(payloads),
        partition_key=None if keys is None else keys[0].decode(),
        callback=callback,
    )


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
