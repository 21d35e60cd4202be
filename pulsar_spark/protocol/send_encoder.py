"""Columns of messages → SEND frames: the SendEncoder, its reference in pure Python, and its choice.

Many frames at a time: plain buffers in, bytes out. Only sequence ids, times, keys and sizes vary in
command and metadata, so templates write them without protobuf, with the same bytes.

Pulsar binary protocol, sections "Payload commands" and "Batch messages".
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import add, sub
from struct import Struct
from typing import NamedTuple, Protocol

from pulsar_spark.protocol import implementation
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.checksum import extend_crc32c
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.compression import Codecs
from pulsar_spark.protocol.frame_parts import MAGIC_CHECKSUM
from pulsar_spark.protocol.memo import Memo
from pulsar_spark.protocol.outgoing_batches import (
    UniformMessages,
    encode_uniform_batch,
    uniform_parts,
)
from pulsar_spark.protocol.varints import encode_number, number_runs, sized

Compress = Callable[[int, Buffer], Buffer]
"""Compresses a whole payload; the first argument is the codec's number."""

_CODECS = Codecs()

_U32 = Struct(">I")
_SIZES = Struct(">II")
_MAGIC = Struct(">H").pack(MAGIC_CHECKSUM)
# A frame's bytes besides command, metadata and payload: two sizes, magic number and checksum.
_FRAMING = 4 + 2 + 4 + 4

# BaseCommand { type: SEND, send: … } up to the body's length; bodies have less than 128 bytes.
_SEND = b"\x08\x06\x32"
# CommandSend.num_messages of a message outside of a batch.
ONE_MESSAGE = b"\x18\x01"

# A column's messages are encoded together up to this size or number; an entry that is as large
# alone is not copied.
BLOCK_BYTES = 256 * 1024
BLOCK_MESSAGES = 2000
LARGE_ENTRY = 32 * 1024
# The maximum size of a message in a batch besides its payload and key.
_PER_MESSAGE = 40


# The tag and size of a key, by its size.
_KEY_HEADS: Memo[int, bytes] = Memo(lambda size: b"\x32" + encode_number(size))


class Sends(NamedTuple):
    """One producer's frames in order; frame i ends at ``ends[i]`` of `data`."""

    data: bytes
    ends: Sequence[int]


class SendEncoder(Protocol):
    """Encodes the messages of an open producer, whose id, name and schema are fixed.

    Messages have a payload, perhaps a string key in UTF-8, and perhaps `fields`: columns, see
    `UniformMessages`. Sequence ids count up from the first one. `publish_time` is in milliseconds.
    The broker's maximum message size is not checked: see `overhead`.
    """

    @property
    def overhead(self) -> int:
        """Maximum size of an entry's metadata, besides its key or fields."""

    def encode(
        self,
        payloads: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        first_sequence_id: int,
        publish_time: int,
        per_entry: int,
        fields: Sequence[bytes] | None = None,
    ) -> tuple[bytes, Sequence[int]]:
        """Return the frames of a column of messages, and where each ends.

        Of `keys` beside `fields`, which have them too, some may be None: then there is no key.
        Each batch has `per_entry` messages, the last one the rest; with 1 nothing is batched, and
        `fields` are unbatched ones. A rest of one message is not batched either. Raises ValueError
        for `fields` with such a rest; compiled, also for unbatched ones of compressed payloads.
        """

    def body(
        self,
        payloads: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
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
        in_command, in_metadata = encode_txn(txn)
        self._version += in_metadata
        self._txn = in_command
        self._one_message = ONE_MESSAGE + in_command
        self._producer = b"\x08" + encode_number(producer_id) + b"\x10"
        # The last answer of `_around_numbers`, and what it answered.
        self._around = (-1, -1), (b"", b"", b"")
        self.overhead = len(self._name) + len(self._version) + 128
        """Maximum size of an entry's metadata, besides its key or fields."""

    def encode(
        self,
        payloads: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        first_sequence_id: int,
        publish_time: int,
        per_entry: int,
        fields: Sequence[bytes] | None = None,
    ) -> Sends:
        """Return the frames of a column of messages, see `SendEncoder.encode`."""
        payloads = list(payloads)
        keys = None if keys is None else list(keys)
        fields = None if fields is None else list(fields)
        if self.compression == pb.NONE and per_entry == 1:
            return self._singles(payloads, keys, first_sequence_id, publish_time, fields)
        if fields is not None and len(payloads) % per_entry == 1:
            raise ValueError("messages that are left one by one have no fields")
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
            own = None if fields is None or per_entry > 1 else fields[start]
            head, payload = self.frame(body, first, publish_time, key, stop - start, own)
            frames.append(head + payload)
        return Sends(b"".join(frames), array("q", accumulate(map(len, frames))))

    def body(
        self,
        payloads: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
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
        fields: bytes | None = None,
    ) -> tuple[bytes, Buffer]:
        """Return the frame of one entry, see `SendEncoder.frame`; `fields` replace its key."""
        digits = encode_number(first_sequence_id)
        behind_id, in_metadata, in_command = self._around_numbers(publish_time, num_messages)
        highest = b""
        if num_messages > 1:
            highest = encode_number(first_sequence_id + num_messages - 1)
        in_key = fields or (b"" if key is None else b"\x32" + sized(key))
        payload: Buffer = body
        if self.compression != pb.NONE and body:
            payload = self._compress(self.compression, body)
            in_key += b"\x40" + encode_number(self.compression)
            in_key += b"\x48" + encode_number(len(body))
        metadata = b"".join((self._name, digits, behind_id, in_key, in_metadata, highest))
        command = b"".join((self._producer, digits, in_command, highest))
        return frame_head(command, metadata, payload), payload

    def _around_numbers(self, publish_time: int, num_messages: int) -> tuple[bytes, bytes, bytes]:
        """Return what entries with this time and number have around their ids and keys.

        In the metadata behind the sequence id and up to the highest one, and the latter in the
        command.
        """
        wanted = publish_time, num_messages
        known, around = self._around
        if known != wanted:
            number = encode_number(num_messages)
            in_metadata, in_command = self._version, b"\x18" + number + self._txn
            if num_messages > 1:
                in_metadata = b"\x58" + number + self._version + b"\xc0\x01"
                in_command += b"\x30"
            around = b"\x18" + encode_number(publish_time), in_metadata, in_command
            self._around = wanted, around
        return around

    def _singles(
        self,
        payloads: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        first_sequence_id: int,
        publish_time: int,
        fields: Sequence[bytes] | None,
    ) -> Sends:
        if fields is None and keys is not None:
            sizes_of_keys = map(len, keys)  # type: ignore[arg-type]
            fields = list(map(add, map(_KEY_HEADS.__getitem__, sizes_of_keys), keys))
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
            sized_command = command_head, command_size
            if fields is None:
                self._plain_run(parts, run, own, behind_id + self._version, size, sized_command)
                sizes += [4 + fixed + len(payload) for payload in own]
            else:
                sizes += self._run_with_fields(
                    parts, run, own, fields[index:stop], behind_id, size, sized_command
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

    def _run_with_fields(
        self,
        parts: list[bytes],
        run: list[bytes],
        payloads: Sequence[bytes],
        fields: Sequence[bytes],
        behind_id: bytes,
        metadata_size: int,
        command: tuple[bytes, int],
    ) -> list[int]:
        """As `_plain_run`, for messages whose keys are in their fields; return the sizes."""
        command_head, command_size = command
        behind_command = self._one_message + _MAGIC
        name, version, besides = self._name, self._version, _FRAMING + command_size
        pack, pack_sizes, checksum = _U32.pack, _SIZES.pack, extend_crc32c
        sizes: list[int] = []
        for digits, payload, own in zip(run, payloads, fields, strict=True):
            size = metadata_size + len(own)
            body = b"".join((pack(size), name, digits, behind_id, own, version, payload))
            size += besides + len(payload)
            parts += (
                pack_sizes(size, command_size),
                command_head,
                digits,
                behind_command,
                pack(checksum(body)),
                body,
            )
            sizes.append(4 + size)
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
    implementation.log_implementation()
    given = (producer_id, producer_name, schema_version, compression, compress)
    compiled: SendEncoder | None = None
    if implementation.native is not None:
        compiled = implementation.native.SendEncoder(*given)
    if compiled is not None and txn is None:
        return compiled
    # The compiled one does not support transactions; it encodes the batches' bodies.
    return PythonSendEncoder(*given, txn, compiled)


def encode_txn(txn: TxnId | None) -> tuple[bytes, bytes]:
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
    largest = messages.size(start, stop) + _PER_MESSAGE * (stop - start)
    if largest >= LARGE_ENTRY:
        return stop, largest
    edges = messages.edges()
    end = min(start + most, len(messages))
    last = bisect_right(edges, edges[start] + BLOCK_BYTES, start + 1, end + 1) - 1
    if last < len(messages):
        last -= (last - start) % per_entry
    entries = [*edges[start:last:per_entry], edges[last]]
    sizes = list(map(sub, entries[1:], entries))
    room = LARGE_ENTRY - _PER_MESSAGE * per_entry
    if max(sizes) >= room:
        number = next(number for number, size in enumerate(sizes) if size >= room)
        sizes = sizes[:number]
        last = start + number * per_entry
    if last <= start:
        return stop, largest
    return last, max(sizes) + _PER_MESSAGE * min(per_entry, last - start)
