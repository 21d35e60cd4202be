"""Compaction: keeps each key's last message, at its old place."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import replace

from crc32c import crc32c

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.batches import message_key, unpack_batch
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.compression import Codecs, codec_of
from pulsar_spark.protocol.frame_parts import MAGIC_CHECKSUM, ReceivedEntry, parse_payload
from pulsar_spark.testing.entry_log import NOWHERE, Entry, Place

_U32 = struct.Struct(">I")
_CHECKSUM = struct.Struct(">HI")
_CODECS = Codecs()
_LIMIT = 256 * 1024**2

# A message outside a batch has the index -1.
_Spot = tuple[Place, int]


class CompactedLog:
    """The entries that compaction left up to `horizon`; later ones are not compacted.

    A batch's messages keep their indexes; removed ones are marked.
    """

    __slots__ = ("_places", "entries", "horizon")

    def __init__(self, entries: Iterable[Entry] = (), horizon: Place = NOWHERE) -> None:
        self.entries = list(entries)
        self.horizon = horizon
        self._places = [entry.place for entry in self.entries]

    def walk(self, place: Place) -> Iterator[Entry]:
        """The entries at and after a place, oldest first."""
        yield from self.entries[bisect_left(self._places, place) :]


def compact(entries: Iterable[Entry]) -> CompactedLog:
    """Return the compacted entries: each key's last message, unless it is empty.

    Messages without a key are removed. Raises UnsupportedCodec for ZSTD and SNAPPY batches.
    """
    found = list(entries)
    last: dict[bytes, _Spot] = {}
    for entry in found:
        for index, key, size in _messages(entry):
            if key is not None and size:
                last[key] = (entry.place, index)
            elif key is not None:
                last.pop(key, None)
    kept: dict[Place, set[int]] = {}
    for place, index in last.values():
        kept.setdefault(place, set()).add(index)
    left = [_without_others(entry, kept[entry.place]) for entry in found if entry.place in kept]
    return CompactedLog(left, found[-1].place if found else NOWHERE)


def _messages(entry: Entry) -> Iterator[tuple[int, bytes | None, int]]:
    """Yield index, key and size of each message."""
    metadata, body = _opened(entry)
    if not _is_open_batch(entry, metadata):
        yield -1, message_key(metadata), len(body)
        return
    batch = unpack_batch(body, entry.messages)
    for index, fields in enumerate(batch.metadata()):
        if index not in batch.compacted:
            yield index, message_key(fields), len(batch.payload(index))


def _without_others(entry: Entry, kept: set[int]) -> Entry:
    """Return an entry in which all other messages of the batch are marked as removed."""
    metadata, body = _opened(entry)
    if not _is_open_batch(entry, metadata) or len(kept) == entry.messages:
        return entry
    batch = unpack_batch(body, entry.messages)
    parts: list[bytes] = []
    for index, fields in enumerate(batch.metadata()):
        payload = bytes(batch.payload(index)) if index in kept else b""
        if index not in kept:
            fields = pb.SingleMessageMetadata(compacted_out=True)
        fields.payload_size = len(payload)
        head = fields.SerializeToString()
        parts += [_U32.pack(len(head)), head, payload]
    metadata.compression = pb.NONE
    metadata.ClearField("uncompressed_size")
    told = metadata.SerializeToString()
    rest = b"".join([_U32.pack(len(told)), told, *parts])
    data = _CHECKSUM.pack(MAGIC_CHECKSUM, crc32c(rest)) + rest
    return replace(entry, data=data)


def _opened(entry: Entry) -> tuple[pb.MessageMetadata, bytes]:
    parts = parse_payload(memoryview(entry.data))
    body = parts.payload
    if _is_open_batch(entry, parts.metadata):
        body = memoryview(body_of(parts))
    return parts.metadata, bytes(body)


def body_of(parts: ReceivedEntry) -> Buffer:
    """Return an entry's content, decompressed unless it is encrypted; raises UnsupportedCodec."""
    metadata = parts.metadata
    if metadata.encryption_keys:
        return parts.payload
    size = metadata.uncompressed_size
    return _CODECS.decompress(codec_of(metadata), parts.payload, size, _LIMIT)


def _is_open_batch(entry: Entry, metadata: pb.MessageMetadata) -> bool:
    """Whether it is a batch that a broker can read; an encrypted one counts as one message."""
    return entry.messages > 0 and not metadata.encryption_keys
