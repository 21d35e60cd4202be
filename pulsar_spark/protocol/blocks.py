"""Blocks: the MESSAGE frames of one socket read → columns, without an object per message.

Two implementations fulfil this contract: `block_decoder` in pure Python, the reference, and the
compiled kernel. `implementation` chooses between them.
A block is handled in two steps. On the receive thread `scan_messages` finds the run of one
consumer's frames; on the reading thread a BlockDecoder turns them into rows. It stops before a rare
or damaged frame, whose entry is opened first (`engine/consumers/entries.py`), so that errors and
rare features have one home.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from pulsar_spark.protocol.varints import NUMBERS

CONTRACT: Final = 16
"""Version of this contract, of `send_encoder.SendEncoder` and of the values' hashes.

Compiled code with another version is refused.
"""

DONE: Final = 0
"""All frames were taken."""
FULL: Final = 1
"""There is no room for more: `take()` the rows, if there are any, and continue there."""
END: Final = 2
"""The next frame is at or after the end of the range."""
SLOW: Final = 3
"""The next frame's entry has to be opened first; nothing of it was taken."""

LAST_MILLIS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999; columns cut later times to it.

Spark SQL and Python have no later times.
"""

Buffer = bytes | bytearray | memoryview
Place = tuple[int, int, int]
"""A position: ledger, entry, batch index."""

Decompress = Callable[[int, Buffer, int, int], Buffer]
"""Codec, data, exact decompressed size, maximum acceptable size → bytes."""


class Memory(Protocol):
    """Memory of compiled code, which stays as it is while something refers to this object."""

    @property
    def address(self) -> int:
        """Where it starts."""

    @property
    def size(self) -> int:
        """Its size in bytes."""

    def __bytes__(self) -> bytes:
        """Return a copy."""


ArrowBuffer: TypeAlias = "bytes | array[int] | Memory"
BinaryColumn: TypeAlias = "tuple[bytes | None, ArrowBuffer, ArrowBuffer, int]"
"""Validity (None: no nulls), int32 offsets, data, number of nulls; for binary and text."""
FixedColumn: TypeAlias = "tuple[bytes | None, ArrowBuffer, int]"
"""Validity (None: no nulls), data, number of nulls."""
VersionRuns: TypeAlias = "tuple[list[bytes], bytes | array[int], bytes | array[int]]"
"""Distinct schema versions, b"" for none; the int32 first row of each run of rows with the same
version; each run's int32 index among the versions.
"""
MapColumn: TypeAlias = "tuple[ArrowBuffer, BinaryColumn, BinaryColumn]"
"""int32 offsets of the maps, their keys, their values."""


@dataclass(frozen=True, slots=True)
class BlockOptions:
    """What to read from a topic partition; plain data.

    `partition` goes into message ids, -1 if not partitioned. `end` is the exclusive end of the
    range. A Columns has at most `max_rows` rows, and about `max_bytes` bytes of metadata and
    payloads unless one message has more. What a batch shares (producer's name, schema version,
    source cluster) counts for each of its messages where its column is wanted, because the column
    repeats it. No payload is decompressed to more than `max_payload` bytes. Entries published (ms)
    before `published_from`, or at or after `published_before`, are skipped.
    """

    topic: str
    partition: int
    columns: frozenset[str]
    end: Place | None
    max_rows: int
    max_bytes: int
    max_payload: int
    published_from: int | None = None
    published_before: int | None = None

    def takes_time(self, publish_time: int) -> bool:
        """Whether entries published then (ms) are not skipped."""
        since, before = self.published_from, self.published_before
        return (since or 0) <= publish_time and (before is None or publish_time < before)


class Progress(NamedTuple):
    """How far a BlockDecoder came: `at` in the data, `position` on the topic.

    `messages` is the permits of the frames taken or skipped.
    """

    at: int
    status: int
    messages: int
    position: Place


class Columns(Protocol):
    """Rows as buffers in Arrow's layout."""

    @property
    def rows(self) -> int:
        """How many rows there are."""

    @property
    def nbytes(self) -> int:
        """The size of all buffers."""

    @property
    def is_exact(self) -> bool:
        """Whether keys and event times are as they were sent.

        False if some may not be: a key in base64 is decoded, an event time after the year 9999 is
        its last millisecond.
        """

    @property
    def columns(self) -> Mapping[str, Any]:
        """The requested columns, by their names in `block_columns.COLUMNS`."""

    @property
    def version_runs(self) -> VersionRuns:
        """Which rows were written with which schema version."""

    def locate(self, row: int) -> tuple[int, int, int, int]:
        """Return ledger, entry, batch index (-1) and batch size (0) of the message in a row."""


class BlockDecoder(Protocol):
    """Turns a reader's frames, in order, into rows. Not thread-safe."""

    @property
    def rows(self) -> int:
        """Rows that are pending."""

    @property
    def slow_frames(self) -> int:
        """How many frames were left to be opened so far."""

    def decode(self, data: bytes, at: int, stop: int, position: Place, /) -> Progress:
        """Take the frames of `data[at:stop]`, complete MESSAGE frames of one consumer.

        Skips entries before `position`; the entry at it starts with its batch index. Never raises
        because of the frames' content: what opens an entry tells of damage.
        """

    def take(self) -> Columns | None:
        """Return and remove the pending rows, None if there are none."""


# --- scanning -----------------------------------------------------------------------------

_U32 = Struct(">I")
# A number of up to 64 bits.
_V = rb"(?:[\x80-\xff]{0,8}[\0-\x7f]|[\x80-\xff]{9}[\0\1])"
# Sizes, and the consumer.
_MESSAGE = re.compile(rb"....\0\0\0(.)\x08\x09\x4a([\0-\x7f])\x08(%b)" % _V, re.DOTALL)
# Sizes, then producer, sequence id, ledger, entry, highest id.
_RECEIPT = re.compile(
    rb"\0\0\0(.)\0\0\0(.)\x08\x07\x3a([\0-\x7f])(\x08%b)\x10(%b)\x1a([\0-\x7f])"
    rb"(\x08(%b)\x10(%b)(?:\x18%b)?)(?:\x20(%b))?" % ((_V,) * 6),
    re.DOTALL,
)


def scan_messages(data: bytes, at: int, limit: int) -> tuple[int, int, int, int]:
    """Return what is known of the MESSAGE frames that start at `at`.

    That is their end, consumer and number, and where the last one starts. They are the longest run
    of complete frames of one consumer. The consumer is -1 if there is none: another or an unusual
    command, an incomplete frame, one longer than `limit` bytes. Reads sizes and first bytes only.
    """
    starts, unpack, stop = data.startswith, _U32.unpack_from, len(data)
    known, identity, least, count, last = b"", b"", 0, 0, at
    while True:
        # Consecutive commands usually start with the same bytes.
        if not count or not starts(known, at + 4):
            frame = _MESSAGE.match(data, at)
            if frame is None:
                break
            command_size, body_size, consumer = frame.groups()
            if not len(consumer) < body_size[0] == command_size[0] - 4:
                break
            if count and consumer != identity:
                break
            known, identity, least = frame[0][4:], consumer, command_size[0] + 4
        (size,) = unpack(data, at)
        end = at + 4 + size
        if end > stop or not least <= size <= limit:
            break
        at, last, count = end, at, count + 1
    return at, _signed(identity) if count else -1, count, last


def scan_receipts(data: bytes, at: int, limit: int) -> tuple[int, int, array[int]]:
    """Return end, producer and contents of the SEND_RECEIPT frames that start at `at`.

    They are the longest run of complete frames of one producer in the brokers' usual layout. Each
    has four signed numbers: sequence id, highest sequence id (a batch's; otherwise the sequence
    id), ledger, entry. The producer is -1 if there is none.
    """
    found = array("q")
    match, add, identity = _RECEIPT.match, found.extend, b""
    last_ledger, ledger_id = b"", 0
    while (receipt := match(data, at)) is not None:
        size, command_size, body_size, producer, sequence, *rest = receipt.groups()
        id_size, message_id, ledger, entry, top = rest
        end = receipt.end()
        total = end - at
        # If all parts have their stated sizes, there is no other way to read them.
        if size[0] != total - 4 or command_size[0] != total - 8 or body_size[0] != total - 12:
            break
        if id_size[0] != len(message_id) or size[0] > limit:
            break
        if found and producer != identity:
            break
        identity = producer
        highest = sequence_id = _signed(sequence)
        # Brokers send 2^64-1 or 0 if there is none.
        if top is not None and top != _NONE:
            highest = max(_signed(top), sequence_id)
        if ledger != last_ledger:
            last_ledger, ledger_id = ledger, _signed(ledger)
        add((sequence_id, highest, ledger_id, _signed(entry)))
        at = end
    return at, _signed(identity[1:]) if found else -1, found


def _signed(digits: bytes) -> int:
    # Consecutive numbers share all digits except the first.
    value = NUMBERS[digits[1:]] << 7 | digits[0] & 127
    # Java's numbers are signed.
    return value - 2**64 if value > _MAX_LONG else value


_NONE = b"\xff" * 9 + b"\x01"
_MAX_LONG = 2**63 - 1
