"""The BlockDecoder in pure Python, the plain reference: frames → rows → columns.

A frame is (Pulsar binary protocol, "Framing" and "Message metadata")::

    u32 size of the rest, u32 size of the command, BaseCommand with a CommandMessage
    [u16 0x0e02, u32 size, BrokerEntryMetadata]     from brokers that add an index or a time
    [u16 0x0e01, u32 CRC32C of all that follows]
    u32 size, MessageMetadata
    payload: one message's, or a batch (`batches.py`)

Protobuf parses each part, and `block_columns.py` collects rows. Entries that are encrypted, chunks,
markers or damaged are SLOW.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from google.protobuf.message import DecodeError

from pulsar_spark.errors import PulsarError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.batches import message_key, unpack_batch
from pulsar_spark.protocol.block_columns import BlockColumns, PendingRows, TakenEntry
from pulsar_spark.protocol.blocks import (
    DONE,
    END,
    FULL,
    SLOW,
    BlockOptions,
    Decompress,
    Place,
    Progress,
)
from pulsar_spark.protocol.checksum import extend_crc32c
from pulsar_spark.protocol.compression import codec_of
from pulsar_spark.protocol.frame_parts import (
    MAGIC_BROKER_ENTRY_METADATA,
    MAGIC_CHECKSUM,
    parse,
)
from pulsar_spark.protocol.message_id import MessageIdAdv

_U32 = Struct(">I")
_TWO_U32 = Struct(">II")
_MAGIC_AND_U32 = Struct(">HI")
_MAX_LONG = 2**63 - 1
# The first bytes of fields: what does not contain them has none, which costs less to find.
_ACK_SET, _COMPRESSION, _KEYS, _MARKER, _CHUNKS = 0x20, 0x40, 0x6A, 0xA0, 0xD8
_MESSAGE, _NONE = pb.BaseCommand.MESSAGE, pb.NONE
_parse_command = pb.BaseCommand.FromString
_parse_metadata = pb.MessageMetadata.FromString


class _RareFrame(Exception):
    """The frame needs to be opened first."""


class PythonBlockDecoder:
    """Takes the frames of one reader, in order, into rows. Not thread-safe.

    See `blocks.BlockDecoder` for the contract. `decompress` handles codecs; it raises a
    PulsarError if it cannot.
    """

    def __init__(self, options: BlockOptions, decompress: Decompress) -> None:
        self._options = options
        self._decompress = decompress
        self._pending = PendingRows(options)
        # A batch of which a part was taken, and the frame that it came in.
        self._begun: tuple[bytes, int, TakenEntry] | None = None
        self.slow_frames = 0

    @property
    def rows(self) -> int:
        """Rows that are pending."""
        return self._pending.rows

    @property
    def nbytes(self) -> int:
        """Bytes that are pending, of all that counts towards `max_bytes`."""
        return self._pending.nbytes

    def take(self) -> BlockColumns | None:
        """Return and remove the pending rows, None if there are none."""
        if not self._pending.rows:
            return None
        taken, self._pending = self._pending, PendingRows(self._options)
        return BlockColumns(taken)

    def decode(self, data: bytes, at: int, stop: int, position: Place, /) -> Progress:
        """Take the frames of `data[at:stop]`, as `blocks.BlockDecoder.decode` says."""
        messages, status = 0, DONE
        try:
            while at < stop:
                end = at + 4 + _U32.unpack_from(data, at)[0]
                status, cost, position = self._take(data, at, end, position)
                if status != DONE:
                    break
                at, messages = end, messages + cost
        except (_RareFrame, PulsarError, DecodeError, StructError):
            self.slow_frames += 1
            status = SLOW
        return Progress(at, status, messages, position)

    def _take(self, data: bytes, at: int, end: int, position: Place) -> tuple[int, int, Place]:
        """Take the frame `data[at:end]`: return the status, its permits, and the next position.

        If it raises, it has added no row.
        """
        begun, self._begun = self._begun, None
        if begun is not None and begun[0] is data and begun[1] == at:
            return self._take_messages(begun[2], data, at, position)
        place = at + 8 + _TWO_U32.unpack_from(data, at)[1]
        encoded = data[at + 8 : place]
        base = _parse_command(encoded)
        command = base.message
        # Without a body, the body lacks required fields.
        if base.type != _MESSAGE or not command.IsInitialized():
            raise _RareFrame
        if _ACK_SET in encoded and command.ack_set:
            raise _RareFrame
        message_id = command.message_id
        key = ledger_id, entry_id = message_id.ledgerId, message_id.entryId
        if ledger_id > _MAX_LONG or entry_id >= _MAX_LONG:
            raise _RareFrame
        options, passed = self._options, key < position[:2]
        if options.end is not None and not passed and (*key, 0) >= options.end:
            return END, 0, position
        magic, number = _MAGIC_AND_U32.unpack_from(data, place)
        index = None
        if magic == MAGIC_BROKER_ENTRY_METADATA:
            stamp_at, place = place + 6, place + 6 + number
            stamp = parse(pb.BrokerEntryMetadata, data[stamp_at:place])
            index = stamp.index if stamp.HasField("index") else None
            magic, number = _MAGIC_AND_U32.unpack_from(data, place)
        if magic == MAGIC_CHECKSUM:
            place += 6
            if not passed and extend_crc32c(memoryview(data)[place:end]) != number:
                raise _RareFrame
        payload_at = place + 4 + _U32.unpack_from(data, place)[0]
        encoded = data[place + 4 : payload_at]
        metadata = _parse_metadata(encoded)
        count = metadata.num_messages_in_batch
        if payload_at > end or count < 1 or not metadata.IsInitialized():
            raise _RareFrame
        if passed:
            return DONE, count, position
        codec = codec_of(metadata) if _COMPRESSION in encoded else _NONE
        payload = memoryview(data)[payload_at:end]
        redelivered = command.redelivery_count
        entry = TakenEntry(key, redelivered, metadata, index, payload, codec, len(encoded))
        if (_KEYS in encoded or _MARKER in encoded or _CHUNKS in encoded) and _is_rare(entry):
            raise _RareFrame
        if message_id.HasField("first_chunk_message_id") and not entry.is_batch:
            entry.first_chunk = MessageIdAdv.from_pb(message_id).first_chunk
        return self._take_messages(entry, data, at, position)

    def _take_messages(
        self, entry: TakenEntry, data: bytes, at: int, position: Place
    ) -> tuple[int, int, Place]:
        """Take the wanted messages of an entry, or as many as there is room for."""
        key, count, end = entry.key, entry.metadata.num_messages_in_batch, self._options.end
        first = position[2] if key == position[:2] else 0
        stop = count if end is None or key != end[:2] else min(count, end[2])
        done = DONE, count, (key[0], key[1] + 1, 0)
        if first >= stop:
            return done
        is_wanted = self._is_wanted(entry.metadata.publish_time)
        if is_wanted and not self._pending.has_room(entry, stop - first):
            return FULL, 0, position
        if entry.codec != _NONE:
            self._decompress_payload(entry)
        if not is_wanted:
            return done
        if entry.is_batch:
            self._unpack(entry)
        elif entry.metadata.partition_key_b64_encoded:
            self._check_key(entry.metadata)
        reached = self._pending.add(entry, first, stop)
        if reached == stop:
            return done
        self._begun = data, at, entry
        return FULL, 0, (*key, reached)

    def _is_wanted(self, publish_time: int) -> bool:
        since, before = self._options.published_from, self._options.published_before
        if since is not None and publish_time < since:
            return False
        return before is None or publish_time < before

    def _decompress_payload(self, entry: TakenEntry) -> None:
        size, limit = entry.metadata.uncompressed_size, self._options.max_payload
        entry.payload = self._decompress(entry.codec, entry.payload, size, limit)
        entry.codec = _NONE

    def _unpack(self, entry: TakenEntry) -> None:
        """Unpack a batch, unless that is done."""
        if entry.batch is None:
            batch = unpack_batch(entry.payload, entry.metadata.num_messages_in_batch)
            for index in batch.base64:
                self._check_key(batch.metadata_of(index))
            entry.batch = batch

    def _check_key(self, own: pb.MessageMetadata | pb.SingleMessageMetadata) -> None:
        if "key" in self._options.columns:
            message_key(own)


def _is_rare(entry: TakenEntry) -> bool:
    """Whether an entry is encrypted, a marker, or a chunk."""
    metadata = entry.metadata
    is_chunk = metadata.num_chunks_from_msg > 1 and not entry.is_batch
    return is_chunk or bool(metadata.encryption_keys) or metadata.HasField("marker_type")
