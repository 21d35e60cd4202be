"""The BlockDecoder in pure Python, the plain reference: frames → rows → columns.

Protobuf parses each part of a frame (`frame_parts.py`), and `block_columns.py` collects rows.
Entries that are encrypted, chunks, markers or damaged are SLOW.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from google.protobuf.message import DecodeError

from pulsar_spark.errors import PulsarError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.batches import message_key
from pulsar_spark.protocol.block_columns import BlockColumns
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
from pulsar_spark.protocol.compression import codec_of
from pulsar_spark.protocol.frame_parts import ReceivedEntry, parse_payload
from pulsar_spark.protocol.message_id import MessageIdAdv, as_signed_int

_U32 = Struct(">I")
_TWO_U32 = Struct(">II")
_MAX_LONG = 2**63 - 1
# The first bytes of fields: what does not contain them has none, which costs less to find.
_ACK_SET, _COMPRESSION, _KEYS, _MARKER, _CHUNKS = 0x20, 0x40, 0x6A, 0xA0, 0xD8
_MESSAGE, _NONE = pb.BaseCommand.MESSAGE, pb.NONE
_parse_command = pb.BaseCommand.FromString


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
        self._takes_any_time = options.published_from is options.published_before is None
        self._pending = BlockColumns(options)
        # A batch of which a part was taken, and the frame that it came in.
        self._begun: tuple[bytes, int, ReceivedEntry] | None = None
        self.slow_frames = 0

    @property
    def rows(self) -> int:
        """Rows that are pending."""
        return self._pending.rows

    def take(self) -> BlockColumns | None:
        """Return and remove the pending rows, None if there are none."""
        if not self._pending.rows:
            return None
        taken, self._pending = self._pending, BlockColumns(self._options)
        return taken.build()

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
        end_of_range, passed = self._options.end, key < position[:2]
        if end_of_range is not None and not passed and (*key, 0) >= end_of_range:
            return END, 0, position
        entry = parse_payload(data, place, end, verify=not passed)
        encoded, count = entry.metadata_bytes, entry.metadata.num_messages_in_batch
        if count < 1:
            raise _RareFrame
        if passed:
            return DONE, count, position
        if (_KEYS in encoded or _MARKER in encoded or _CHUNKS in encoded) and _is_rare(entry):
            raise _RareFrame
        entry.ledger_id, entry.entry_id = key
        if redelivered := command.redelivery_count:
            entry.redelivery_count = as_signed_int(redelivered)
        if message_id.HasField("first_chunk_message_id") and not entry.is_batch:
            entry.first_chunk = MessageIdAdv.from_pb(message_id).first_chunk
        return self._take_messages(entry, data, at, position)

    def _take_messages(
        self, entry: ReceivedEntry, data: bytes, at: int, position: Place
    ) -> tuple[int, int, Place]:
        """Take the wanted messages of an entry, or as many as there is room for."""
        metadata, key, end = entry.metadata, (entry.ledger_id, entry.entry_id), self._options.end
        count = metadata.num_messages_in_batch
        first = position[2] if key == position[:2] else 0
        stop = count if end is None or key != end[:2] else min(count, end[2])
        done = DONE, count, (key[0], key[1] + 1, 0)
        codec = _NONE
        if entry.batch is None and _COMPRESSION in entry.metadata_bytes:
            codec = codec_of(metadata)
        if first >= stop:
            return done
        is_wanted = self._takes_any_time or self._options.takes_time(metadata.publish_time)
        size = metadata.uncompressed_size if codec != _NONE else len(entry.payload)
        size += len(entry.metadata_bytes)
        if is_wanted and not self._pending.has_room(entry, size, stop - first):
            return FULL, 0, position
        if codec != _NONE:
            size, limit = metadata.uncompressed_size, self._options.max_payload
            entry.payload = self._decompress(codec, entry.payload, size, limit)
        if not is_wanted:
            return done
        if entry.is_batch:
            self._unpack(entry)
        elif metadata.partition_key_b64_encoded:
            self._check_key(metadata)
        reached = self._pending.add(entry, first, stop)
        if reached == stop:
            return done
        self._begun = data, at, entry
        return FULL, 0, (*key, reached)

    def _unpack(self, entry: ReceivedEntry) -> None:
        """Unpack a batch, unless that is done."""
        if entry.batch is None:
            batch = entry.unpack()
            for index in batch.base64:
                self._check_key(batch.metadata_of(index))

    def _check_key(self, own: pb.MessageMetadata | pb.SingleMessageMetadata) -> None:
        if "key" in self._options.columns:
            message_key(own)


def _is_rare(entry: ReceivedEntry) -> bool:
    """Whether an entry is encrypted, a marker, or a chunk."""
    metadata = entry.metadata
    is_chunk = metadata.num_chunks_from_msg > 1 and not entry.is_batch
    return is_chunk or bool(metadata.encryption_keys) or metadata.HasField("marker_type")
