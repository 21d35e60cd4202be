"""Batches: many messages in the payload of one entry.

    u32 size of metadata   big endian
    SingleMessageMetadata  protobuf, that many bytes
    payload                as many bytes as the metadata's payload_size says
    ... once per message, with nothing in between or after

Pulsar binary protocol, Batch messages. Compression and encryption apply to the whole body, and are
already undone here. A payload is a batch if MessageMetadata has num_messages_in_batch, even if that
is 1. `outgoing_batches.py` writes batches.
"""

from __future__ import annotations

import base64
import binascii
from array import array
from bisect import bisect_right
from struct import Struct
from struct import error as StructError

from google.protobuf.message import DecodeError

from pulsar_spark.errors import CorruptBatch, CorruptMessage
from pulsar_spark.protocol import pulsar_api_pb2 as pb

# Four bytes of length, then the required payload_size: a tag and at least one digit.
_MIN_MESSAGE = 6
# Offsets are signed 32-bit numbers, as in Arrow.
_MAX_BODY = 2**31 - 1
# Bytes slice faster than views, so bodies with messages smaller than this are copied.
_COPY_BELOW = 4096
# A few compressed bytes can be millions of messages: no more metadata than this is kept.
_MOST_KEPT = 10_000

# The first bytes of fields: what does not contain them has none, which costs less to find.
_PROPERTIES, _COMPACTED, _BASE64 = 0x0A, 0x20, 0x30
_U32 = Struct(">I")
_parse_metadata = pb.SingleMessageMetadata.FromString


class UnpackedBatch:
    """Where a batch's messages are in its `body`, and their metadata.

    Indexes count from 0 in the entry. `compacted` are those of messages removed by compaction (skip
    them; their indexes still count), and `base64` those whose keys are in base64, ascending.
    """

    __slots__ = ("_ends", "_kept", "base64", "body", "compacted", "count", "may_have_properties")

    def __init__(self, body: bytes | memoryview, count: int) -> None:
        self.body = body
        self.count = count
        self.compacted = array("i")
        self.base64 = array("i")
        self.may_have_properties = False
        # Where messages end.
        self._ends = array("i")
        # The metadata of the first messages.
        self._kept: list[pb.SingleMessageMetadata] = []

    def end(self, index: int) -> int:
        """Return where message `index` ends in the body; -1 is before the first one."""
        return self._ends[index] if index >= 0 else 0

    def fitting(
        self, first: int, stop: int, max_rows: int, max_bytes: int, row_size: int = 0
    ) -> tuple[int, int]:
        """Return how far messages from `first` on, before `stop`, fit into so many rows and bytes.

        Also returns their size. Each has `row_size` bytes besides its part of the body. The first
        one always fits.
        """
        begin, high = self.end(first - 1), min(stop, first + max_rows)
        size = self.end(high - 1) - begin + row_size * (high - first)
        if size <= max_bytes:
            return high, size

        def size_to(high: int) -> int:
            return self.end(high - 1) - begin + row_size * (high - first)

        high = first + max(bisect_right(range(first + 1, high), max_bytes, key=size_to), 1)
        return high, size_to(high)

    def payload(self, index: int) -> bytes | memoryview:
        """Return the payload of message `index`, empty for a null value."""
        end = self._ends[index]
        return self.body[end - self.metadata_of(index).payload_size : end]

    def payloads(self, rows: range | None = None) -> list[bytes | memoryview]:
        """Return the payloads of messages that follow each other, or of all."""
        body, ends = self.body, self._ends if rows is None else self._ends[rows.start : rows.stop]
        pairs = zip(self.metadata(rows), ends, strict=True)
        return [body[end - metadata.payload_size : end] for metadata, end in pairs]

    def metadata_of(self, index: int) -> pb.SingleMessageMetadata:
        """Return the metadata of message `index`."""
        if index < len(self._kept):
            return self._kept[index]
        end = self.end(index - 1)
        size = _U32.unpack_from(self.body, end)[0]
        return _parse_metadata(bytes(self.body[end + 4 : end + 4 + size]))

    def metadata(self, rows: range | None = None) -> list[pb.SingleMessageMetadata]:
        """Return the metadata of messages that follow each other, or of all."""
        rows = range(self.count) if rows is None else rows
        if rows.stop <= len(self._kept):
            return self._kept[rows.start : rows.stop]
        return list(map(self.metadata_of, rows))

    def values(self) -> list[bytes | memoryview | None]:
        """Return the payloads, None for null values."""
        pairs = zip(self.metadata(), self.payloads(), strict=True)
        return [None if metadata.null_value else payload for metadata, payload in pairs]


def unpack_batch(body: bytes | bytearray | memoryview, num_messages: int) -> UnpackedBatch:
    """Find the `num_messages` messages of a batch in its decompressed `body`.

    Raises CorruptBatch unless the body has exactly that many well-formed messages; allocates
    nothing before it knows that the number is possible.
    """
    size = len(body)
    if num_messages < 1:
        raise CorruptBatch(f"a batch claims to have {num_messages} messages")
    if num_messages * _MIN_MESSAGE > size:
        raise CorruptBatch(
            f"a batch claims to have {num_messages} messages, more than its {size} bytes can hold"
        )
    if size > _MAX_BODY:
        raise CorruptBatch(f"a batch of {size} bytes is larger than any message can be")
    is_small = size < num_messages * _COPY_BELOW
    batch = UnpackedBatch(bytes(body) if is_small else memoryview(body), num_messages)
    end = _unpack(batch, size)
    if end != size:
        raise CorruptBatch(f"{size - end} bytes follow the last of {num_messages} messages")
    return batch


def _unpack(batch: UnpackedBatch, size: int) -> int:
    """Find all messages; return where the last one ends."""
    body, count, end, index = batch.body, batch.count, 0, 0
    keep, add_end, read_size = batch._kept.append, batch._ends.append, _U32.unpack_from
    try:
        for index in range(count):
            begin = end + 4
            start = begin + read_size(body, end)[0]
            data = bytes(body[begin:start])
            metadata = _parse_metadata(data)
            payload_size = metadata.payload_size
            end = start + payload_size
            if end > size or payload_size < 0:
                raise _cut(batch, index, begin, start, payload_size)
            # The parser accepts missing required fields: payload_size (then 0), and those of
            # properties.
            has_properties = _PROPERTIES in data
            if (not payload_size or has_properties) and not metadata.IsInitialized():
                raise _corrupt(index, count, "lacks a required field")
            batch.may_have_properties |= has_properties
            add_end(end)
            if _COMPACTED in data and metadata.compacted_out:
                batch.compacted.append(index)
            if _BASE64 in data and metadata.partition_key_b64_encoded:
                batch.base64.append(index)
            if index < _MOST_KEPT:
                keep(metadata)
    except StructError:
        raise CorruptBatch(f"a batch ends before message {index} of {count}") from None
    except (DecodeError, UnicodeDecodeError):
        if start > size:
            raise _cut(batch, index, begin, start, 0) from None
        raise _corrupt(index, count, "is damaged") from None
    return end


def _cut(batch: UnpackedBatch, index: int, begin: int, start: int, size: int) -> CorruptBatch:
    """Return the error for a message that does not end in its batch."""
    count, left = batch.count, len(batch.body)
    if start > left:
        return CorruptBatch(
            f"the metadata of message {index} of {count} has {start - begin} bytes, "
            f"but its batch ends after {left - begin}"
        )
    if size < 0:
        return _corrupt(index, count, f"says that the payload has {size} bytes")
    return CorruptBatch(
        f"message {index} of {count} has {size} bytes, but its batch ends after {left - start}"
    )


def _corrupt(index: int, count: int, why: str) -> CorruptBatch:
    return CorruptBatch(f"the metadata of message {index} of {count} {why}")


def message_key(metadata: pb.SingleMessageMetadata | pb.MessageMetadata) -> bytes | None:
    """Return a message's key as bytes: a string key's UTF-8, or the decoded base64.

    None without a key. Raises CorruptMessage if a key claims to be base64 and is not.
    """
    text: str | bytes = metadata.partition_key
    if not text and not metadata.HasField("partition_key"):
        return None
    # Protobuf returns bytes if a string is not UTF-8; keep such keys as they are.
    key = text.encode() if isinstance(text, str) else text
    if not metadata.partition_key_b64_encoded:
        return key
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error:
        raise CorruptMessage("the key of a message is marked as base64, but is not") from None
