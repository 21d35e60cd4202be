"""Batches: many messages in the payload of one entry.

    u32 size of metadata   big endian
    SingleMessageMetadata  protobuf, that many bytes
    payload                as many bytes as the metadata's payload_size says
    ... once per message, with nothing in between or after

Pulsar binary protocol, Batch messages. Compression and encryption apply to the whole body, and are
already undone here. A payload is a batch if MessageMetadata has num_messages_in_batch, even if that
is 1.

Reading finds all payloads in one pass over the body, without an object per message; protobuf parses
only metadata of an unusual shape. `outgoing_batches.py` writes batches.
"""

from __future__ import annotations

import base64
import binascii
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, chain, islice, pairwise
from struct import Struct, iter_unpack
from struct import error as StructError
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from pulsar_spark.errors import CorruptBatch, CorruptMessage
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.opened_metadata import Opened, may_run, open_metadata, open_run
from pulsar_spark.protocol.single_metadata import (
    KEY_IS_BASE64,
    PARTITION_KEY,
    PAYLOAD_SIZE,
    PROPERTIES,
    SEQUENCE_ID,
    Layout,
    is_sequence_id,
    layout_of,
)
from pulsar_spark.protocol.varints import CONTINUING_DIGITS

# Four bytes of length, then the required payload_size: a tag and at least one digit.
_MIN_MESSAGE = 6
# Offsets are signed 32-bit numbers, as in Arrow.
_MAX_BODY = 2**31 - 1
# If messages are smaller than this on average, copy the body: bytes slice faster.
_COPY_BELOW = 4096
_CACHED_COUNT = 10_000
# Objects for messages are kept in batches up to these sizes, and made for as many at once.
_MOST_KEPT = 50_000
_MOST_KEPT_BYTES = 4 << 20
# So many messages with properties or event times, which are larger objects.
_RUN = 1024

_U32 = Struct(">I")
# The size of the metadata and the metadata's first four bytes.
_HEAD = Struct(">IBBBB")
_BEHIND_KEY = Struct(">BBB")
_parse_metadata = pb.SingleMessageMetadata.FromString


class UnpackedBatch:
    """Where a batch's messages are in its body, and what is special about some of them.

    `body` and `edges` give the payloads: payload i is ``body[edges[2 * i]:edges[2 * i + 1]]``. As
    an array of int32, `edges` can be the offsets of an Arrow binary array over the body, whose even
    elements are the payloads.

    `nulls` are the indexes of null values, `compacted` those of messages removed by compaction
    (skip them; their indexes still count), both ascending. Indexes count from 0 in the entry.
    Metadata is parsed on request and not kept, because a few compressed bytes can be millions of
    messages; so pass the `rows` you need, or none for all. What `keys`, `extras` and `opened` need
    is kept only for batches of usual sizes; of larger ones they read these rows again.
    """

    __slots__ = (
        "_all_keys", "_edges", "_has_base64", "_is_large", "_keeps", "_keys", "_opened", "_part",
        "_payloads", "_start", "_stride", "_unusual", "body", "compacted", "count", "nulls",
    )  # fmt: skip

    def __init__(self, body: bytes | memoryview, count: int, keeps: bool) -> None:
        self.body = body
        self.count = count
        self._edges: memoryview[int] | None = None
        # If all messages are laid out alike: where the first payload starts, bytes per message.
        self._start = self._stride = 0
        self.nulls = array("i")
        self.compacted = array("i")
        # Whether metadata is kept; whether some is there that was not, and those messages of it
        # that were read last, as a batch of their own.
        self._keeps = keeps
        self._is_large = False
        self._part: tuple[int, UnpackedBatch] | None = None
        # Messages with more than a sequence id and a string key, ascending.
        self._unusual = array("i")
        self._keys: dict[int, bytes] = {}
        self._has_base64 = False
        # All keys, in place of `_keys`.
        self._all_keys: Sequence[bytes] = ()
        # Of unusual messages that were opened without protobuf; None once one was not.
        self._opened: dict[int, Opened] | None = {}
        # All payloads, if they were sliced already.
        self._payloads: Sequence[bytes] = ()

    @property
    def edges(self) -> memoryview[int]:
        """Where payloads begin and end in the body, alternating."""
        if self._edges is None:
            self._edges = _even_edges(self._start, self._stride, self.count)
        return self._edges

    def end(self, index: int) -> int:
        """Return where message `index` ends in the body; -1 is before the first one."""
        if self._stride:
            return (index + 1) * self._stride
        return self.edges[2 * index + 1] if index >= 0 else 0

    def fitting(
        self, first: int, stop: int, max_rows: int, max_bytes: int, row_size: int = 0
    ) -> tuple[int, int]:
        """Return how far messages from `first` on, before `stop`, fit into so many rows and bytes.

        Also returns their size. Each has `row_size` bytes besides its part of the body. The first
        one always fits.
        """
        begin = self.end(first - 1)
        high = min(stop, first + max_rows)
        size = self.end(high - 1) - begin + row_size * (high - first)
        if size <= max_bytes:
            return high, size

        def size_to(high: int) -> int:
            return self.end(high - 1) - begin + row_size * (high - first)

        high = first + max(bisect_right(range(first + 1, high), max_bytes, key=size_to), 1)
        return high, size_to(high)

    @property
    def has_extras(self) -> bool:
        """Whether `extras` may return any."""
        return self._is_large or len(self._unusual) > 0

    def keys(self, rows: Sequence[int] | None = None) -> list[bytes | None] | None:
        """Return each message's key as bytes (base64 decoded), None for a missing key.

        None if none of them has a key, or if the batch was unpacked without metadata.
        """
        if self._is_large:
            part, inside = self._part_with(rows)
            return part.keys(inside)
        if self._all_keys:
            if rows is None or len(rows) == self.count:
                return list(self._all_keys)
            return list(map(self._all_keys.__getitem__, rows))
        found = self._keys
        if not found:
            return None
        if len(found) == self.count and (rows is None or len(rows) == self.count):
            return list(found.values())
        return list(map(found.get, range(self.count) if rows is None else rows))

    def has_base64_keys(self, rows: Sequence[int] | None = None) -> bool:
        """Whether some of the `keys` may have been in base64."""
        if self._is_large:
            part, inside = self._part_with(rows)
            return part.has_base64_keys(inside)
        return self._has_base64

    def extras(self, rows: Sequence[int] | None = None) -> dict[int, pb.SingleMessageMetadata]:
        """Return, by index, the metadata of messages that may have more than a sequence id and a
        string key; none if it was unpacked without metadata.
        """
        if self._is_large:
            part, inside = self._part_with(rows)
            first = rows[0] if rows else 0
            return {first + index: metadata for index, metadata in part.extras(inside).items()}
        unusual: Sequence[int] = self._unusual
        if rows is not None and len(unusual):
            if not rows:
                return {}
            unusual = unusual[bisect_left(unusual, rows[0]) : bisect_right(unusual, rows[-1])]
            if len(rows) <= rows[-1] - rows[0]:
                wanted = frozenset(rows)
                unusual = [row for row in unusual if row in wanted]
        return dict(zip(unusual, self.metadata(unusual), strict=True))

    def opened(self, rows: range) -> dict[int, Opened] | None:
        """Return, by index, metadata of messages that may have properties or an event time.

        None if some of the batch's messages may have more than that; see `extras`.
        """
        if self._is_large:
            part, _ = self._part_with(rows)
            own = part.opened(range(part.count))
            return own and {rows.start + index: opened for index, opened in own.items()}
        found = self._opened
        if found is None or len(found) != len(self._unusual):
            return None
        if len(rows) == self.count:
            return found
        return {row: found[row] for row in rows if row in found}

    def _part_with(self, rows: Sequence[int] | None) -> tuple[UnpackedBatch, Sequence[int]]:
        """Return messages from the first to the last of the rows as a batch, and the rows in it."""
        rows = range(self.count) if rows is None else rows
        first, stop = (rows[0], rows[-1] + 1) if rows else (0, 1)
        part = self._part
        if part is None or part[0] != first or part[1].count != stop - first:
            body = memoryview(self.body)[self.end(first - 1) : self.end(stop - 1)]
            part = self._part = first, _unpack(body, stop - first, True, keeps=True)
        if len(rows) == stop - first:
            return part[1], range(len(rows))
        return part[1], [row - first for row in rows]

    def left(self, rows: range) -> Sequence[int]:
        """Return those rows that compaction has not removed."""
        gone = frozenset(_among(self.compacted, rows)) if self.compacted else ()
        return [row for row in rows if row not in gone] if gone else rows

    def payload(self, index: int) -> bytes | memoryview:
        """Return the payload of message `index`, empty for a null value."""
        return self.body[self.edges[2 * index] : self.edges[2 * index + 1]]

    def values(self, rows: Sequence[int] | None = None) -> list[bytes | memoryview | None]:
        """Return the payloads, in order, None for null values."""
        every = range(self.count) if rows is None else rows
        if isinstance(every, range):
            found: list[bytes | memoryview | None] = [*self.payloads(every)]
            for null in _among(self.nulls, every) if self.nulls else ():
                found[null - every.start] = None
            return found
        nulls = frozenset(_among(self.nulls, every))
        return [None if row in nulls else self.payload(row) for row in every]

    def sizes(self, rows: Sequence[int]) -> list[int]:
        """Return the sizes of payloads."""
        edges = self.edges
        return [edges[2 * row + 1] - edges[2 * row] for row in rows]

    def payloads(self, rows: range | None = None) -> list[bytes | memoryview]:
        """Return the payloads, in order."""
        if self._payloads:
            return list(self._payloads if rows is None else self._payloads[rows.start : rows.stop])
        if self._stride:
            every = range(self.count) if rows is None else rows
            body = self.body[every.start * self._stride : every.stop * self._stride]
            return _cut(body, self._start, self._stride, self._stride)
        body, edges = self.body, self.edges
        if rows is not None:
            edges = edges[2 * rows.start : 2 * rows.stop]
        return [body[start:stop] for start, stop in zip(edges[0::2], edges[1::2], strict=True)]

    def metadata_of(self, index: int) -> pb.SingleMessageMetadata:
        """Return the metadata of message `index`, parsed again."""
        begin = self.edges[2 * index - 1] if index else 0
        return _parse_metadata(bytes(self.body[begin + 4 : self.edges[2 * index]]))

    def metadata(self, rows: Sequence[int] | None = None) -> list[pb.SingleMessageMetadata]:
        """Return metadata of messages, parsed again, if `extras` is not enough."""
        return [self.metadata_of(row) for row in (range(self.count) if rows is None else rows)]


def _among(indexes: array[int], rows: Sequence[int]) -> array[int]:
    """Return those of the ascending `indexes` that are from the first to the last of the rows."""
    if not indexes or not rows:
        return indexes[:0]
    return indexes[bisect_left(indexes, rows[0]) : bisect_right(indexes, rows[-1])]


def unpack_batch(
    body: bytes | memoryview, num_messages: int, *, with_metadata: bool
) -> UnpackedBatch:
    """Find the `num_messages` messages of a batch in its decompressed `body`.

    Keys and extras are collected if `with_metadata`. Raises CorruptBatch unless the body has
    exactly that many well-formed messages; allocates nothing before it knows that the number is
    possible.
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
    keeps = num_messages <= _MOST_KEPT and size <= _MOST_KEPT_BYTES
    batch = _unpack(body, num_messages, with_metadata, keeps=keeps)
    batch._is_large = with_metadata and not keeps
    return batch


def _unpack(
    body: bytes | memoryview, count: int, with_metadata: bool, *, keeps: bool
) -> UnpackedBatch:
    """Unpack a batch that may have so many messages; check metadata, and keep it if it `keeps`."""
    keeps = with_metadata and keeps
    if isinstance(body, bytes) or len(body) < count * _COPY_BELOW:
        body = bytes(body)
        batch = _unpack_even(body, count, keeps)
        if batch is None:
            batch = _unpack_fast(body, count, with_metadata, keeps=keeps)
        if batch is not None:
            return batch
    return _unpack_carefully(body, count, with_metadata, keeps=keeps)


def unpack_batches(
    bodies: Sequence[bytes], counts: Sequence[int], *, with_metadata: bool
) -> UnpackedBatch:
    """Unpack batches as if they were one batch, which is faster; raises as `unpack_batch`."""
    batch = unpack_batch(b"".join(bodies), sum(counts), with_metadata=with_metadata)
    for stop, end in zip(accumulate(counts), accumulate(map(len, bodies)), strict=True):
        if batch.end(stop - 1) != end:
            raise CorruptBatch("a batch has fewer or more messages than it claims to have")
    return batch


def _unpack_carefully(
    body: bytes | memoryview, count: int, with_metadata: bool, *, keeps: bool = True
) -> UnpackedBatch:
    """Unpack any batch, one message at a time: the reference for the fast paths."""
    batch = UnpackedBatch(body, count, keeps)
    edges = array("i")
    size = len(body)
    position = 0
    for index in range(count):
        if size - position < 4:
            raise CorruptBatch(f"a batch ends before message {index} of {count}")
        begin = position + 4
        start = begin + _U32.unpack_from(body, position)[0]
        if start > size:
            raise CorruptBatch(
                f"the metadata of message {index} of {count} has {start - begin} bytes, "
                f"but its batch ends after {size - begin}"
            )
        position = start + _take_metadata(batch, index, bytes(body[begin:start]), with_metadata)
        if position > size:
            raise CorruptBatch(
                f"message {index} of {count} has {position - start} bytes, "
                f"but its batch ends after {size - start}"
            )
        edges.append(start)
        edges.append(position)
    if position != size:
        raise CorruptBatch(f"{size - position} bytes follow the last of {count} messages")
    batch._edges = memoryview(edges)
    return batch


def _take_run(batch: UnpackedBatch, indexes: range, body: bytes, at: int, edges: list[int]) -> int:
    """Take those of the messages that are like unusual ones before; return their number."""
    run, run_edges = open_run(body, at, len(indexes))
    edges += run_edges
    if batch._keeps and run:
        indexes = indexes[: len(run)]
        batch._unusual.extend(indexes)
        if batch._opened is not None:
            batch._opened.update(zip(indexes, run, strict=True))
        keys = [opened[2] for opened in run]
        batch._keys.update(
            (number, key) for number, key in zip(indexes, keys, strict=True) if key is not None
        )
    return len(run)


def _take_unusual(batch: UnpackedBatch, index: int, data: bytes, with_metadata: bool) -> int:
    """As `_take_metadata`, without protobuf where nothing is rare."""
    opened = open_metadata(data)
    if opened is None:
        batch._opened = None
        return _take_metadata(batch, index, data, with_metadata)
    if batch._keeps:
        batch._unusual.append(index)
        if batch._opened is not None:
            batch._opened[index] = opened
        if opened[2] is not None:
            batch._keys[index] = opened[2]
    return opened[3]


def _take_metadata(batch: UnpackedBatch, index: int, data: bytes, with_metadata: bool) -> int:
    """Parse the metadata of message `index`, keep special fields, and return payload_size."""
    try:
        metadata = _parse_metadata(data)
    except (DecodeError, UnicodeDecodeError):
        raise _corrupt_metadata(batch, index, "is damaged") from None
    size = metadata.payload_size
    # The parser accepts missing required fields: payload_size (then 0) and those of properties.
    # Checking is slow, and without this byte there are no properties.
    if (size == 0 or PROPERTIES in data) and not metadata.IsInitialized():
        raise _corrupt_metadata(batch, index, "lacks a required field")
    if size < 0:
        raise _corrupt_metadata(batch, index, f"says that the payload has {size} bytes")
    if metadata.null_value:
        batch.nulls.append(index)
    if metadata.compacted_out:
        batch.compacted.append(index)
    key = message_key(metadata) if with_metadata else None
    if batch._keeps:
        batch._unusual.append(index)
        if key is not None:
            batch._keys[index] = key
            batch._has_base64 = batch._has_base64 or metadata.partition_key_b64_encoded
    return size


def _corrupt_metadata(batch: UnpackedBatch, index: int, why: str) -> CorruptBatch:
    return CorruptBatch(f"the metadata of message {index} of {batch.count} {why}")


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


def _unpack_fast(
    body: bytes, count: int, with_metadata: bool, *, keeps: bool
) -> UnpackedBatch | None:
    """Unpack a batch whose metadata has mostly the usual shapes; None if anything is wrong."""
    batch = UnpackedBatch(body, count, keeps)
    first = range(min(count, _MOST_KEPT))
    try:
        # Numbers need less memory in an array, but a list is filled faster.
        edges = array("i", _take_messages(batch, body, first, 0, with_metadata))
        for begin in range(_MOST_KEPT, count, _MOST_KEPT):
            others = range(begin, min(begin + _MOST_KEPT, count))
            edges += array("i", _take_messages(batch, body, others, edges[-1], with_metadata))
    except (StructError, IndexError, OverflowError):
        return None
    # Positions only grow, so one check at the end shows that all were inside.
    if edges[-1] != len(body):
        return None
    batch._edges = memoryview(edges)
    return batch


def _take_messages(  # noqa: PLR0912 - a call per message would cost more than the rest
    batch: UnpackedBatch, body: bytes, indexes: range, position: int, with_metadata: bool
) -> list[int]:
    """Take messages of a batch from a position on; return where their payloads begin and end.

    Alternating; the last one may end behind the body. Raises StructError or IndexError if anything
    is wrong.
    """
    edges: list[int] = []
    add_edge = edges.append
    keeps, keys = batch._keeps, batch._keys
    # The last seen digits of a sequence id except the first: equal for 128 messages in a row.
    known: bytes | None = None
    rest = iter(indexes)
    for index in rest:
        metadata_size, tag, digit, digit2, _ = _HEAD.unpack_from(body, position)
        start = position + 4 + metadata_size
        at = position + 6
        if tag == PARTITION_KEY and digit < 128:
            key_at = at
            key_end = at + digit
            tag, digit, digit2 = _BEHIND_KEY.unpack_from(body, key_end)
            at = key_end + 2
        else:
            key_at = 0
        size = -1
        if tag == PAYLOAD_SIZE:
            if digit < 128:
                size = digit
            elif digit2 < 128:
                size = digit & 127 | digit2 << 7
                at += 1
            # Now `at` is after the payload size. Java marks each text key as not base64.
            if at < start and body[at] == KEY_IS_BASE64 and not body[at + 1]:
                at += 2
            if at != start and (
                body[at] != SEQUENCE_ID or body[at + 1] < 128 or body[at + 2 : start] != known
            ):
                if is_sequence_id(body[at:start]):
                    known = body[at + 2 : start] or None
                else:
                    size = -1
        if size < 0:
            if start > len(body):
                raise IndexError
            if may_run(body, position):
                most = min(indexes.stop - index, _RUN)
                taken = _take_run(batch, range(index, index + most), body, position, edges)
                if taken:
                    position = edges[-1]
                    next(islice(rest, taken - 1, taken - 1), None)
                    continue
            size = _take_unusual(batch, index, body[position + 4 : start], with_metadata)
        elif key_at and keeps:
            keys[index] = body[key_at:key_end]
        position = start + size
        add_edge(start)
        add_edge(position)
    return edges


def _unpack_even(body: bytes, count: int, keeps: bool) -> UnpackedBatch | None:
    """Unpack a batch whose messages all have the same layout.

    None if they differ, or if the layout is unusual.
    """
    stride, rest = divmod(len(body), count)
    if rest:
        return None
    unpack = _unpack_few if count <= _MAX_FIELDS else _unpack_many
    return unpack(body, stride, count, keeps)


def _unpack_many(body: bytes, stride: int, count: int, keeps: bool) -> UnpackedBatch | None:
    """As `_unpack_even`, by comparing bytes in strides."""
    layout = layout_of(body)
    if layout is None or layout.stop != stride:
        return None
    # All bytes that determine the layout must be equal in all messages: everything before the
    # payload except the key and the digits of the sequence id.
    for offset in chain(range(layout.key_at), range(layout.key_end, layout.digits_at)):
        if body[offset::stride] != body[offset : offset + 1] * count:
            return None
    last = layout.start - 1
    for offset in range(layout.digits_at, last):
        if body[offset::stride].translate(None, CONTINUING_DIGITS):
            return None
    if layout.digits_at <= last and not body[last::stride].isascii():
        return None
    batch = UnpackedBatch(body, count, keeps)
    batch._start, batch._stride = layout.start, stride
    if keeps and layout.has_key:
        batch._all_keys = _cut(body, layout.key_at, layout.key_end, stride)
    return batch


def _cut(body: bytes | memoryview, begin: int, end: int, stride: int) -> list[Any]:
    """Return the bytes from `begin` to `end` of each `stride` bytes."""
    return [part for (part,) in iter_unpack(f">{begin}x{end - begin}s{stride - end}x", body)]


class _Fields(NamedTuple):
    """How to cut small batches whose messages all have the same layout.

    `unpack` returns for each message: the bytes before the key, the key, the bytes before the
    sequence id's digits, the digits, and the payload.
    """

    layout: Layout
    behind_key: bytes
    unpack: Callable[[bytes], tuple[bytes, ...]]


def _unpack_few(body: bytes, stride: int, count: int, keeps: bool) -> UnpackedBatch | None:
    """As `_unpack_even`, by slicing all fields of all messages at once."""
    # Consecutive batches usually have the same sizes, and so the same cuts.
    sizes = (body[:_SIZES], stride, count)
    fields = _CUTS.get(sizes)
    parts = fields.unpack(body) if fields is not None else ()
    if fields is None or parts[2] != fields.behind_key:
        layout = layout_of(body)
        if layout is None or layout.stop != stride:
            return None
        fields = _fields(layout, body, count)
        if len(_CUTS) >= _MAX_CUTS:
            _CUTS.clear()
        _CUTS[sizes] = fields
        parts = fields.unpack(body)
    layout = fields.layout
    heads, digits = parts[0::5], b"".join(parts[3::5])
    number = layout.start - layout.digits_at
    if (
        heads.count(heads[0]) != count
        or parts[2::5].count(fields.behind_key) != count
        or not digits[number - 1 :: number or 1].isascii()
        or any(digits[at::number].translate(None, CONTINUING_DIGITS) for at in range(number - 1))
    ):
        return None
    batch = UnpackedBatch(body, count, keeps)
    batch._start, batch._stride = layout.start, stride
    batch._payloads = parts[4::5]
    if keeps and layout.has_key:
        batch._all_keys = parts[1::5]
    return batch


def _fields(layout: Layout, body: bytes, count: int) -> _Fields:
    edges = (0, layout.key_at, layout.key_end, layout.digits_at, layout.start, layout.stop)
    one = "".join(f"{stop - start}s" for start, stop in pairwise(edges))
    return _Fields(layout, body[layout.key_end : layout.digits_at], Struct(one * count).unpack)


# For more messages strides are faster, and fields would need too much memory.
_MAX_FIELDS = 64
_MAX_CUTS = 256
# From the first message: size of its metadata, tag and size of the key.
_SIZES = 6
_CUTS: dict[tuple[bytes, int, int], _Fields] = {}


def _even_edges(start: int, stride: int, count: int) -> memoryview[int]:
    if count <= _CACHED_COUNT:
        return _cached_edges(start, stride, count)
    return _make_edges(start, stride, count)


def _make_edges(start: int, stride: int, count: int) -> memoryview[int]:
    edges = array("i", bytes(8 * count))
    end = stride * count
    edges[0::2] = array("i", range(start, end + 1, stride))
    edges[1::2] = array("i", range(stride, end + 1, stride))
    return memoryview(edges).toreadonly()


# Consecutive batches of a topic often have the same layout.
_cached_edges = lru_cache(8)(_make_edges)
