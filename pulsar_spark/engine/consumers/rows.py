"""Messages that a consumer takes as rows of a block, without an object per entry.

A block decoder takes usual frames. Everything else (partly acknowledged entries, redelivery,
damage) `consumer` opens entry by entry, where this one stops. Rarely used fields
are read from the frame on access.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import Final, Literal

from pulsar_spark.engine.codecs import decompress
from pulsar_spark.engine.consumers.entries import EntryDecoder, count_at
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import (
    FULL,
    LAST_MILLIS,
    ArrowBuffer,
    BlockDecoder,
    BlockOptions,
    Columns,
    Decompress,
    Place,
    Progress,
)
from pulsar_spark.protocol.frame_parts import ReceivedEntry
from pulsar_spark.protocol.frames import MessageBlock
from pulsar_spark.protocol.implementation import make_decoder
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, MessageIdAdv
from pulsar_spark.protocol.validation import as_text

MOST_ROWS: Final = 1000
"""At most this many messages are taken together."""
MOST_BYTES: Final = 128 * 1024
"""About this many bytes too: a message that is kept keeps all of them in memory."""
# From these sizes of frames and of their messages on, to open entries costs little by comparison,
# and copies less.
_LARGE_FRAME: Final = 16 * 1024
_LARGE_MESSAGE: Final = 2 * 1024

_COLUMNS = frozenset(
    {
        "value",
        "key",
        "ledger_id",
        "entry_id",
        "batch_index",
        "message_id",
        "publish_time",
        "event_time",
        "properties",
        "schema_version",
        "redelivery_count",
    }
)
# The client's memory limit was applied before, when columns were decoded.
_ANY_SIZE = 2**31 - 1


class ReceivedRows:
    """Messages of one topic partition as rows, in the order of their frames.

    Lists of fields are made for all rows at once, on first access. None stands for a field that
    columns don't have; the entry has it.
    """

    cluster: int | None = None
    """That of the message ids."""

    def __init__(
        self, topic: str, partition: int, columns: Columns, frames: bytes, *, whole: bool
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.rows = columns.rows
        self._decoded = columns
        self._columns = columns.columns
        self._frames = frames
        self._whole = whole
        self.offsets = _numbers(columns.columns["value"][1], "i")
        """Where the payloads start and end in `payloads`."""
        self.payloads = bytes(columns.columns["value"][2])
        self._opened: tuple[int, ReceivedEntry] | None = None

    @property
    def size(self) -> int:
        """Bytes of all payloads."""
        return self.offsets[-1] - self.offsets[0]

    @property
    def held(self) -> int:
        """Bytes of the frames; incomplete ones are estimated by the size of their rows."""
        whole = len(self._frames)
        return whole if self._whole else min(self.size, whole)

    def payload(self, row: int) -> bytes:
        """The payload, empty for a null value."""
        offsets = self.offsets
        return self.payloads[offsets[row] : offsets[row + 1]]

    def is_null(self, row: int) -> bool:
        """Whether the value is null."""
        return not _is_valid(self._columns["value"][0], row)

    def message_id(self, row: int) -> MessageIdAdv:
        """Where the message is stored."""
        ledgers, entries, indexes = self._places
        index = indexes[row]
        size = 0 if index < 0 else self._decoded.locate(row)[3]
        return MessageIdAdv(
            ledgers[row], entries[row], self.partition, index, size, None, self.cluster
        )

    @property
    def first(self) -> tuple[int, int]:
        """Ledger and entry of the first message."""
        return self._decoded.locate(0)[:2]

    @cached_property
    def serialized_ids(self) -> list[bytes]:
        """The message ids, as official clients serialize them."""
        column = self._columns["message_id"]
        return _slices(column[1], bytes(column[2]))

    @cached_property
    def keys(self) -> list[str | None]:
        """The keys as text, empty without one; None if it may be base64."""
        column = self._columns["key"]
        validity, offsets, data, nulls = column
        if nulls == self.rows:
            return [""] * self.rows
        exact = self._decoded.is_exact
        found = [key if exact else None for key in _texts(offsets, bytes(data))]
        if validity is None:
            return found
        return [key if _is_valid(validity, row) else "" for row, key in enumerate(found)]

    @cached_property
    def publish_times(self) -> list[int | None]:
        """Milliseconds since the epoch; None if after the year 9999."""
        column = self._columns["publish_time"]
        return [_known_millis(micros) for micros in _view(column[1], "q")]

    @cached_property
    def event_times(self) -> list[int | None]:
        """Milliseconds since the epoch, 0 if not set; None if after the year 9999."""
        column = self._columns["event_time"]
        validity, times, nulls = column
        if nulls == self.rows:
            return [0] * self.rows
        return [
            _known_millis(micros) if _is_valid(validity, row) else 0
            for row, micros in enumerate(_view(times, "q"))
        ]

    @cached_property
    def with_properties(self) -> frozenset[int]:
        """The rows with properties."""
        column = self._columns["properties"]
        edges = enumerate(pairwise(_numbers(column[0], "i")))
        return frozenset(row for row, (start, stop) in edges if stop > start)

    def schema_version(self, row: int) -> bytes:
        """The schema version, empty without one."""
        column = self._columns["schema_version"]
        if not _is_valid(column[0], row):
            return b""
        offsets = _view(column[1], "i")
        return bytes(column[2])[offsets[row] : offsets[row + 1]]

    @property
    def redelivered(self) -> bool:
        """Whether any message was delivered before."""
        column = self._columns["redelivery_count"]
        return any(_view(column[1], "i"))

    def fields(self, row: int) -> pb.MessageMetadata | pb.SingleMessageMetadata:
        """A message's own metadata, from its frame."""
        return self.entry(row).fields(self.batch_index(row))

    def batch_index(self, row: int) -> int:
        """The message's index in its batch, -1 outside of one."""
        return self._places[2][row]

    @cached_property
    def _edges(self) -> tuple[list[int], list[int]]:
        """Rows where entries end, and where their frames start."""
        ledgers, entries, _ = self._places
        groups = groupby(zip(ledgers, entries, strict=True))
        ends = list(accumulate(sum(1 for _ in rows) for _, rows in groups))
        return ends, self._block().places(0, len(self._frames))

    def entry(self, row: int) -> ReceivedEntry:
        """The entry of a message, from its frame."""
        ends, frames = self._edges
        number = bisect_right(ends, row)
        if self._opened is None or self._opened[0] != number:
            frame = self._block().frame(frames[number])[0]
            entry = EntryDecoder(
                self.topic, EARLIEST_POSITION, None, _ANY_SIZE, in_order=False
            ).decode(frame)
            assert entry is not None
            self._opened = number, entry
        return self._opened[1]

    @cached_property
    def _places(self) -> tuple[list[int], list[int], list[int]]:
        """Ledgers, entries and batch indexes."""
        found = self._columns
        ledgers, entries = (_numbers(found[name][1], "q") for name in ("ledger_id", "entry_id"))
        return ledgers, entries, _numbers(found["batch_index"][1], "i")

    def _block(self) -> MessageBlock:
        return MessageBlock(0, self._frames, 0, len(self._frames), 0)


class RowDecoder:
    """Turns the usual frames of a consumer's blocks into rows."""

    def __init__(
        self,
        topic: str,
        partition: int,
        most_rows: int,
        limit: int,
        make: Callable[[BlockOptions, Decompress], BlockDecoder] = make_decoder,
    ) -> None:
        self._topic = topic
        self._partition = partition
        most_rows = max(min(most_rows, MOST_ROWS), 1)
        self._decoder = make(
            BlockOptions(topic, partition, _COLUMNS, None, most_rows, MOST_BYTES, limit),
            decompress,
        )
        # A partly taken batch: its block, where its frame starts, and the next position.
        self._within: tuple[MessageBlock, int, Place] | None = None
        # A block of large frames, and whether rows suit it.
        self._sampled: tuple[MessageBlock, bool] | None = None
        # A block of which entries are opened one by one up to a place.
        self._left: tuple[MessageBlock, int] | None = None

    def leave(self, block: MessageBlock, end: int) -> None:
        """Have the entries of a block opened one by one up to the place `end`."""
        self._left = block, end

    def suits(self, block: MessageBlock, at: int) -> bool:
        """Whether to take rows from `at` on: messages are small, and none has to be opened.

        The frame at `at` shows whether the messages of large frames are.
        """
        if self._left is not None and self._left[0] is block and at < self._left[1]:
            return False
        if block.size <= block.count * _LARGE_FRAME:
            return True
        if self._sampled is None or self._sampled[0] is not block:
            size = block.end(at) - at
            suits = size <= MOST_BYTES and size <= count_at(block, at) * _LARGE_MESSAGE
            self._sampled = block, suits
        return self._sampled[1]

    def is_within(self, block: MessageBlock, at: int) -> bool:
        """Whether the frame at `at` is a partly taken batch."""
        within = self._within
        return within is not None and within[0] is block and within[1] == at

    def take(
        self, block: MessageBlock, at: int, floor: Place
    ) -> tuple[ReceivedRows | None, Progress]:
        """Take frames from `at` on; return their rows, and how far they reach.

        There are no rows if the first frame has to be opened, or if some messages are skipped,
        because they are before `floor` or removed by compaction: these entries are left.
        """
        start, begun = floor, 0
        if self._within is not None and self.is_within(block, at):
            start = self._within[2]
            begun = start[2]
        self._within = None
        progress = self._decoder.decode(block.data, at, block.stop, start)
        columns = self._decoder.take()
        reached = progress.position[2] if progress.status == FULL else 0
        if columns is None or columns.rows != progress.messages - begun + reached:
            self.leave(block, progress.at)
            return None, progress
        end = progress.at
        if reached:
            self._within = block, end, progress.position
            end = block.end(end)
        frames = block.data[at:end]
        whole = not (begun or reached)
        rows = ReceivedRows(self._topic, self._partition, columns, frames, whole=whole)
        return rows, progress


def _is_valid(validity: bytes | None, row: int) -> bool:
    return validity is None or bool(validity[row >> 3] >> (row & 7) & 1)


def _known_millis(micros: int) -> int | None:
    # Later times are cut to the last one.
    millis = micros // 1000
    return millis if millis < LAST_MILLIS else None


def _view(numbers: ArrowBuffer, kind: Literal["i", "q"]) -> memoryview[int]:
    plain = numbers if isinstance(numbers, bytes | array) else bytes(numbers)
    return memoryview(plain).cast("B").cast(kind)


def _numbers(numbers: ArrowBuffer, kind: Literal["i", "q"]) -> list[int]:
    return _view(numbers, kind).tolist()


def _slices(offsets: ArrowBuffer, data: bytes) -> list[bytes]:
    edges = _numbers(offsets, "i")
    return [data[start:stop] for start, stop in pairwise(edges)]


def _texts(offsets: ArrowBuffer, data: bytes) -> list[str]:
    if data.isascii():
        text, edges = data.decode(), _numbers(offsets, "i")
        return [text[start:stop] for start, stop in pairwise(edges)]
    return [as_text(part) for part in _slices(offsets, data)]
