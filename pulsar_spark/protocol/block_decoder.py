"""The BlockDecoder in pure Python: frames → rows → columns.

A frame has the command, optionally the broker's entry metadata, the checksum, metadata and payload
(`frames.py`). The decoder accepts fields as all writers send them: in the order of their numbers,
each once and with its wire type. Any other frame is SLOW.

Commands of one consumer differ only in the digits of the entry, so each serves as the template of
the next. One pattern reads the metadata that every message has, `entry_metadata.py` the rest.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, groupby, repeat
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

from pulsar_spark.errors import PulsarError
from pulsar_spark.protocol.batches import UnpackedBatch, unpack_batch, unpack_batches
from pulsar_spark.protocol.block_columns import (
    LAST_MILLIS,
    BlockColumns,
    LedgerEntries,
    PendingRows,
    UnusualFrame,
    are_equal,
)
from pulsar_spark.protocol.blocks import (
    COLUMNS,
    DONE,
    END,
    FULL,
    SLOW,
    BlockOptions,
    Decompress,
    FrameEnds,
    Place,
    Progress,
)
from pulsar_spark.protocol.checksum import extend_crc32c
from pulsar_spark.protocol.entry_metadata import (
    PLAIN_REST,
    RESTS,
    Metadata,
    Rest,
)
from pulsar_spark.protocol.even_frames import MIN_EVEN, Commands, EvenFrames, take_even
from pulsar_spark.protocol.metadata_columns import RestColumns, columns_of, read_rests
from pulsar_spark.protocol.opened_metadata import UnusualMetadata
from pulsar_spark.protocol.varints import (
    HIGHS,
    NUMBER,
    NUMBERS,
    SHORTEST,
    UnusualNumber,
)

_U32 = Struct(">I")
# Behind the checksum's magic: checksum, size of the metadata, the producer name's tag and size.
_HEAD = Struct(">IIBB")

_COMMAND = re.compile(
    # Sizes of frame and command, MESSAGE, consumer; the id: ledger, entry, partition; redelivery
    # count, consumer epoch.
    rb"....(\0\0\0(.)\x08\x09\x4a([\0-\x7f])\x08%b\x12([\0-\x7f])(\x08(%b)\x10))(%b)"
    rb"((?:\x18[\x80-\xff]{0,9}[\0-\x7f])?)((?:\x18(%b))?(?:\x28%b)?)"
    % (NUMBER, SHORTEST, SHORTEST, NUMBER, NUMBER),
    re.DOTALL,
).match
_BROKER_METADATA = re.compile(rb"(?:\x08%b)?(?:\x10(%b))?" % (NUMBER, NUMBER)).fullmatch
# Sequence id, publish time, size of the key.
_TIMES = re.compile(rb"\x10(%b)\x18(%b)(?:\x32([\0-\x7f]))?" % (NUMBER, NUMBER)).match
_PUBLISH_TIME = re.compile(rb"\x10%b\x18(%b)(?:\x32([\0-\x7f]))?" % (NUMBER, NUMBER)).match

_CHECKSUM = b"\x0e\x01"
_BROKER = b"\x0e\x02"

_MAX_INT = 2**31 - 1
_MAX_LONG = 2**63 - 1
# Other columns need more values per message.
_OF_MESSAGES = COLUMNS - {"producer_name", "sequence_id", "size", "replicated_from"}
_NAME = 0x0A  # tag of the producer's name
# Larger metadata of the broker is unusual.
_MAX_BROKER_METADATA = 64
# Of so many batches of the same size on average, those of one size are unpacked together.
_MANY = 4
# So many frames are looked at together.
_MOST_EVEN = 4096
# From this size on a view is faster than a copy.
_LARGE = 4096
# What batches repeat for their messages is counted entry by entry if it is longer: Pulsar's schema
# versions have eight bytes.
_SHORT = 16


_NOT_TAKEN = (
    UnusualFrame,
    UnusualNumber,
    UnusualMetadata,
    StructError,
    IndexError,
    PulsarError,
)


# --- the command --------------------------------------------------------------------------


_BYTES = [bytes((byte,)) for byte in range(256)]


class _Command(NamedTuple):
    """What the commands of one consumer's entries in one ledger share.

    A frame starts with its size, then `before`, then `digits` bytes of the entry, then `behind`,
    which ends with a magic number. An id starts with `id_head`.
    """

    before: bytes
    digits: int
    behind: bytes
    digits_at: int
    behind_at: int
    rest_at: int
    ledger_id: int
    redelivery_count: int
    id_head: bytes
    has_broker_metadata: bool
    unpack: Callable[[bytes, int], tuple[Any, ...]]


@lru_cache(64)
def _unpacks(before: int, digits: int, behind: int) -> Callable[[bytes, int], tuple[Any, ...]]:
    return Struct(f">I{before}sB{digits - 1}s{behind}sIIBB").unpack_from


# No command is this large.
_NO_COMMAND = _Command(b"\xff", 0, b"", 0, 0, 0, 0, 0, b"", False, _unpacks(1, 1, 0))


def _read_command(data: bytes, at: int) -> _Command:
    """Read the command of the frame at `at`; raises UnusualFrame."""
    found = _COMMAND(data, at)
    if found is None:
        raise UnusualFrame
    before, size, body_size, id_size, head, ledger, entry, partition, behind, redelivered = (
        found.groups()
    )
    end = found.end()
    magic = data[end : end + 2]
    message_id = len(head) + len(entry) + len(partition)
    # If all parts have their stated sizes, there is no other way to read them.
    if size[0] != end - at - 8 or body_size[0] != end - at - 12 or id_size[0] != message_id:
        raise UnusualFrame
    if magic not in (_CHECKSUM, _BROKER):
        raise UnusualFrame
    redelivery_count = NUMBERS[redelivered] if redelivered else 0
    if redelivery_count > _MAX_INT:
        raise UnusualFrame
    behind_at = 4 + len(before) + len(entry)
    behind = partition + behind + magic
    return _Command(
        before,
        len(entry),
        behind,
        4 + len(before),
        behind_at,
        behind_at + len(behind),
        NUMBERS[ledger],
        redelivery_count,
        head,
        magic == _BROKER,
        _unpacks(len(before), len(entry), len(behind)),
    )


# --- the decoder --------------------------------------------------------------------------


class PythonBlockDecoder:
    """Takes the frames of one reader, in order, into rows. Not thread-safe.

    See `blocks.BlockDecoder` for the contract. `decompress` handles codecs; it raises a
    PulsarError if it cannot.
    """

    def __init__(self, options: BlockOptions, decompress: Decompress) -> None:
        self._options = options
        self._decompress = decompress
        self._command = _NO_COMMAND
        # The partly taken batch, with the data and position of its frame.
        self._begun: tuple[bytes, int, UnpackedBatch] | None = None
        self._pending = PendingRows(options)
        self._filters = options.published_from is not None or options.published_before is not None
        # Whether the last frame was a single message; then the next may be one too.
        self._alone = False
        # Messages of the last frame's batch, if the next frames may be taken together; otherwise 0.
        self._batched = 0
        # The data of the last call in which frames that follow each other were not alike.
        self._uneven: bytes | None = None
        # Where the frames of the last call's data end, if that is known.
        self._ends: FrameEnds = None
        self._may_be_even = options.columns <= _OF_MESSAGES and not self._filters
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

    def decode(
        self, data: bytes, at: int, stop: int, position: Place, ends: FrameEnds = None, /
    ) -> Progress:
        """Take the frames of `data[at:stop]`, as `blocks.BlockDecoder.decode` says."""
        messages, status = 0, DONE
        self._ends = ends
        view = memoryview(data)
        # Frames that are not alike are taken one by one, without looking at all again for each.
        apart = data is self._uneven
        # Messages that were taken together in front of this frame, None if that was not tried.
        run: int | None = None
        try:
            while at < stop:
                if self._alone:
                    take = self._take_messages if apart else self._take_alone
                    at, count, position = take(data, view, at, stop, position)
                    messages += count
                    self._alone = count > 0
                    run = (run or 0) + count
                    continue
                if self._batched and not apart:
                    at, count, position = self._take_batches(data, at, stop, position)
                    messages += count
                    apart = count == 0
                    continue
                end, count, status, position = self._take_frame(data, view, at, position)
                messages += count
                if status != DONE:
                    break
                if run is not None and run < MIN_EVEN:
                    apart, self._uneven = True, data
                at, run = end, None
        except _NOT_TAKEN:
            status = SLOW
            self.slow_frames += 1
            if run is not None and run < MIN_EVEN:
                self._uneven = data
        return Progress(at, status, messages, position)

    def _take_frame(  # noqa: PLR0911, PLR0912, PLR0915 - calls would cost more than the rest
        self, data: bytes, view: memoryview, at: int, position: Place
    ) -> tuple[int, int, int, Place]:
        """Take the frame at `at`; return its end, its permits, status and new position.

        If it raises one of _NOT_TAKEN, nothing visible has changed.
        """
        options, pending, command = self._options, self._pending, self._command
        end = at + 4 + _U32.unpack_from(data, at)[0]
        digits_at, behind_at = at + command.digits_at, at + command.behind_at
        if not (
            data.startswith(command.before, at + 4) and data.startswith(command.behind, behind_at)
        ):
            command = self._command = _read_command(data, at)
            digits_at, behind_at = at + command.digits_at, at + command.behind_at
        digits = data[digits_at:behind_at]
        low = digits[0]
        if (low > 127) != (command.digits > 1):
            raise UnusualFrame
        entry = HIGHS[digits[1:]] | low & 127
        key = (command.ledger_id, entry)
        place = position[:2]
        range_end = options.end
        if range_end is not None and key >= place and (*key, 0) >= range_end:
            return at, 0, END, position

        head_at = at + command.rest_at
        index = None
        if command.has_broker_metadata:
            index, head_at = _read_broker_metadata(data, head_at)
        checksum, metadata_size, tag, name_size = _HEAD.unpack_from(data, head_at)
        body_at = head_at + 8 + metadata_size
        found = _TIMES(data, head_at + 10 + name_size)
        if found is None or tag != _NAME or name_size > 127 or body_at > end:
            raise UnusualFrame
        sequence, time, key_size = found.groups()
        key_at = rest_at = found.end()
        if key_size is not None:
            rest_at += key_size[0]
        rest = PLAIN_REST
        if rest_at < body_at:
            rest = RESTS[data[rest_at:body_at]]
        elif rest_at > body_at:
            if found.end(2) != body_at:
                raise UnusualFrame
            # What looked like a key belongs to the payload.
            key_size = None
        metadata = rest[0]
        count = metadata.messages or 1
        if key < place:
            return end, count, DONE, position

        first = position[2] if key == place else 0
        stop = count
        if range_end is not None and key == range_end[:2]:
            stop = min(stop, range_end[2])
        size = metadata_size + (metadata.uncompressed_size if metadata.codec else end - body_at)
        millis = NUMBERS[time[1:]] << 7 | time[0] & 127
        taken = self._takes(millis) if self._filters else True
        # What each message of a batch repeats.
        row_size = 0
        if pending.repeats and metadata.messages:
            row_size = pending.row_size(metadata, name_size)
        if taken and not pending.has_room(stop - first, size + row_size * (stop - first)):
            return at, 0, FULL, position
        # What was begun was checked.
        batch = None if self._begun is None else self._begun_batch(data, at)
        if batch is None and extend_crc32c(view[head_at + 4 : end]) != checksum:
            raise UnusualFrame
        next_position = (key[0], entry + 1, 0)
        if first >= stop:
            return end, count, DONE, next_position
        payload: bytes | memoryview
        if batch is not None:
            payload = batch.body
        elif metadata.codec:
            payload = self._decompressed(metadata, view[body_at:end])
        elif end - body_at > options.max_payload:
            raise UnusualFrame
        else:
            payload = data[body_at:end] if size < _LARGE else view[body_at:end]
        if not taken:
            return end, count, DONE, next_position
        head = command.id_head + digits
        name = data[head_at + 10 : found.start()]
        micros = min(millis, LAST_MILLIS) * 1000
        entry_fields = (
            key[0],
            entry,
            micros,
            sequence,
            name,
            metadata,
            command.redelivery_count,
            index,
        )
        if not metadata.messages:
            message_key = None if key_size is None else data[key_at:rest_at]
            pending.add_message(payload, message_key, head, entry_fields, rest, size)
            even = self._may_be_even and not metadata.codec and size < _LARGE
            self._alone, self._batched = even, 0
            return end, 1, DONE, next_position
        if batch is None:
            batch = unpack_batch(payload, count, with_metadata=pending.needs_metadata)
        reached = pending.add_messages(
            batch, first, stop, head, entry_fields, metadata_size, row_size
        )
        if reached < stop:
            self._begun = (data, at, batch)
            return at, 0, FULL, (key[0], entry, reached)
        self._begun = None
        self._batched = count if self._may_be_even and not metadata.codec else 0
        return end, count, DONE, next_position

    def _begun_batch(self, data: bytes, at: int) -> UnpackedBatch | None:
        """Return the batch of the frame at `at` if a part of it was taken."""
        begun = self._begun
        return begun[2] if begun is not None and begun[0] is data and begun[1] == at else None

    def _take_alone(
        self, data: bytes, view: memoryview, at: int, stop: int, position: Place
    ) -> tuple[int, int, Place]:
        """Take uncompressed messages outside of batches.

        Does the same as `_take_frame`, faster, for frames that it can handle. Returns where it
        stopped, the number of messages, and the new position.
        """
        try:
            taken = self._take_even(data, at, stop, position)
        except _NOT_TAKEN:
            taken = at, 0, position
        return taken if taken[1] else self._take_messages(data, view, at, stop, position)

    def _take_even(
        self, data: bytes, at: int, stop: int, position: Place
    ) -> tuple[int, int, Place]:
        """As `_take_messages`, for many frames with the same layout; takes none if they differ."""
        pending = self._pending
        room = self._options.max_rows - pending.rows
        even = self._find_even(data, at, stop, position, room, _LARGE)
        if even is None:
            return at, 0, position
        frames, entries, rests = even
        if any(each.codec or each.messages for each in _distinct(entries.metadata)):
            return at, 0, position
        count, end = len(frames.ends), frames.ends[-1]
        head, tail = self._command.id_head, pending.id_tail
        id_size, ids = _ids(head, frames.digits, tail)
        id_sizes = repeat(id_size, count)
        size = self._size_of(count, end - at)
        pending.add_messages_alone(frames.values, frames.keys, ids, id_sizes, entries, rests, size)
        return end, count, (entries.ledger_id, entries.entry_ids[-1] + 1, 0)

    def _take_batches(
        self, data: bytes, at: int, stop: int, position: Place
    ) -> tuple[int, int, Place]:
        """Take uncompressed batches in many frames with the same layout.

        As `_take_alone`. It stops at batches that `_take_frame` must take.
        """
        pending, head = self._pending, self._command.id_head
        room, taken = self._options.max_rows - pending.rows, 0
        largest = self._batched * _LARGE
        try:
            even = self._find_even(data, at, stop, position, room // self._batched, largest)
            if even is None:
                return at, 0, position
            frames, entries, _ = even
            distinct = _distinct(entries.metadata)
            if any(each.codec or not each.messages for each in distinct):
                return at, 0, position
            row_size = max(map(pending.row_size, distinct)) if pending.repeats else 0
            if row_size > _SHORT:
                return at, 0, position
            counts = [metadata.messages for metadata in entries.metadata]
            fitting = bisect_right(list(accumulate(counts)), room)
            size, heads = _ids(head, frames.digits)
            bodies = frames.values.copies()
            for run in _alike_in_size(bodies[:fitting]):
                begin, end = run.start, run.stop
                part = slice(begin, end)
                batch = unpack_batches(
                    bodies[part], counts[part], with_metadata=pending.needs_metadata
                )
                frames_end = frames.ends[end - 1]
                pending.add_batches(
                    batch,
                    counts[part],
                    [heads[row * size : (row + 1) * size] for row in run],
                    entries.part(part),
                    self._size_of(len(run), frames_end - at) + row_size * batch.count,
                )
                at, taken = frames_end, taken + batch.count
                position = (entries.ledger_id, entries.entry_ids[end - 1] + 1, 0)
        except _NOT_TAKEN:
            pass
        return at, taken, position

    def _find_even(
        self, data: bytes, at: int, stop: int, position: Place, most: int, largest: int
    ) -> tuple[EvenFrames, LedgerEntries, RestColumns | None] | None:
        """Find frames with the same layout, at most so many; None if they differ.

        Their metadata may have any fields.
        """
        options, pending, command = self._options, self._pending, self._command
        begin = at + command.digits_at
        digits = data[begin : begin + command.digits]
        ledger_id, entry = command.ledger_id, HIGHS[digits[1:]] | digits[0] & 127
        if options.end is not None:
            if ledger_id > options.end[0]:
                return None
            if ledger_id == options.end[0]:
                most = min(most, options.end[1] - entry)
        if (ledger_id, entry, 0) < position or ledger_id != position[0] or most < MIN_EVEN:
            return None
        if command.has_broker_metadata or not (
            data.startswith(command.before, at + 4)
            and data.startswith(command.behind, at + command.behind_at)
        ):
            return None
        even = take_even(
            data,
            at,
            self._find_ends(data, at, stop, min(most, _MOST_EVEN)),
            Commands(command.digits_at, command.behind_at, command.rest_at),
            entry,
            options.max_bytes - pending.nbytes,
            min(largest, options.max_payload),
        )
        if even is None:
            return None
        rests = read_rests(even.rests) if even.rests is not None else None
        entries = LedgerEntries(
            ledger_id,
            command.redelivery_count,
            range(entry, entry + len(even.ends)),
            even.micros,
            rests.metadata if rests is not None else (),
        )
        return even, entries, rests

    def _find_ends(self, data: bytes, at: int, stop: int, most: int) -> list[int]:
        """Return where the frames of `data[at:stop]` end, at most so many."""
        if self._ends is not None:
            first = bisect_right(self._ends, at)
            return self._ends[first : first + most].tolist()
        ends: list[int] = []
        while at < stop and len(ends) < most:
            at += 4 + _U32.unpack_from(data, at)[0]
            ends.append(at)
        return ends

    def _size_of(self, frames: int, size: int) -> int:
        """Return the bytes of metadata and payload of frames with the last command."""
        return size - frames * (self._command.rest_at + 8)

    def _take_messages(  # noqa: PLR0912, PLR0915 - calls would cost more than the rest
        self, data: bytes, view: memoryview, at: int, stop: int, position: Place
    ) -> tuple[int, int, Place]:
        """As `_take_alone`, one frame after the other."""
        options, pending, command = self._options, self._pending, self._command
        ledger_id, expected, first = position
        range_end = options.end or (_MAX_LONG, _MAX_LONG, 0)
        if command.ledger_id != ledger_id or ledger_id > range_end[0] or first:
            return at, 0, position
        last = range_end[1] if ledger_id == range_end[0] else _MAX_LONG
        room = options.max_rows - pending.rows
        room_for_bytes = options.max_bytes - pending.nbytes
        largest = min(_LARGE, options.max_payload)
        unpack, before, behind = command.unpack, command.before, command.behind
        head_to, many = command.rest_at, command.digits > 1
        id_head, id_tail, known_high, high_part = command.id_head, pending.id_tail, None, 0
        has_broker_metadata = command.has_broker_metadata
        values: list[bytes | memoryview | None] = []
        keys: list[bytes | None] = []
        ids: list[bytes] = []
        entries: list[int] = []
        times: list[int] = []
        rests: list[Rest] = []
        indexes: list[int | None] = []
        time_of, head_of, checksum_of = _PUBLISH_TIME, _HEAD.unpack_from, extend_crc32c
        index: int | None = None
        plain = True
        micros, last_time = 0, b""
        used = 0
        try:
            while at < stop and len(values) < room:
                fields = unpack(data, at)
                size, begin, low, high, after, checksum, metadata_size, tag, name_size = fields
                if begin != before or after != behind or (low > 127) != many:
                    break
                if high != known_high:
                    high_part, known_high, id_end = HIGHS[high], high, high + id_tail
                entry = high_part | low & 127
                if not expected <= entry < last:
                    break
                head_at = at + head_to
                if has_broker_metadata:
                    index, head_at = _read_broker_metadata(data, head_at)
                    checksum, metadata_size, tag, name_size = head_of(data, head_at)
                end = at + 4 + size
                body_at = head_at + 8 + metadata_size
                found = time_of(data, head_at + 10 + name_size)
                if found is None or tag != _NAME or name_size > 127 or body_at > end:
                    break
                size = end - head_at - 8
                if used + size > room_for_bytes or size > largest:
                    break
                time, key_size = found.groups()
                key = None
                rest_at = found.end()
                if key_size is not None:
                    key_at, rest_at = rest_at, rest_at + key_size[0]
                    key = data[key_at:rest_at]
                rest = PLAIN_REST
                if rest_at != body_at:
                    if rest_at > body_at:
                        break
                    plain = False
                    rest = RESTS[data[rest_at:body_at]]
                    if rest[0].codec or rest[0].messages:
                        break
                    pending.check_rest(rest, key)
                if checksum_of(view[head_at + 4 : end]) != checksum:
                    break
                rests.append(rest)
                values.append(data[body_at:end])
                keys.append(key)
                ids.append(id_head + _BYTES[low] + id_end)
                if time != last_time:
                    last_time = time
                    micros = min(NUMBERS[time[1:]] << 7 | time[0] & 127, LAST_MILLIS) * 1000
                entries.append(entry)
                times.append(micros)
                if has_broker_metadata:
                    indexes.append(index)
                expected = entry + 1
                used += size
                at = end
        except _NOT_TAKEN:
            pass
        columns = columns_of(rests) if rests and not plain else None
        metadata = columns.metadata if columns is not None else ()
        alone = LedgerEntries(
            ledger_id, command.redelivery_count, entries, times, metadata, indexes
        )
        sizes = map(len, ids)
        pending.add_messages_alone(values, keys, b"".join(ids), sizes, alone, columns, used)
        return at, len(values), (ledger_id, expected, 0)

    def _decompressed(self, metadata: Metadata, payload: memoryview) -> bytes | memoryview:
        body = self._decompress(
            metadata.codec, payload, metadata.uncompressed_size, self._options.max_payload
        )
        return memoryview(body) if isinstance(body, bytearray) else body

    def _takes(self, millis: int) -> bool:
        options = self._options
        if options.published_from is not None and millis < options.published_from:
            return False
        return options.published_before is None or millis < options.published_before


def _ids(head: bytes, digits: Sequence[bytes], tail: bytes = b"") -> tuple[int, bytes]:
    """Return the size of each id, and all ids, one after the other: head, digits and tail.

    The digits are given place by place.
    """
    first = head + bytes(len(digits)) + tail
    ids = bytearray(first * len(digits[0]))
    for at, column in enumerate(digits, len(head)):
        ids[at :: len(first)] = column
    return len(first), bytes(ids)


def _alike_in_size(bodies: Sequence[bytes]) -> Iterator[range]:
    """Yield runs of batches with the same size; one run of all if nearly each has its own."""
    if len(set(map(len, bodies))) > len(bodies) // _MANY:
        yield range(len(bodies))
        return
    stop = 0
    for _, run in groupby(bodies, len):
        start = stop
        stop += sum(1 for _ in run)
        yield range(start, stop)


def _distinct(metadata: Sequence[Metadata]) -> Sequence[Metadata]:
    """Return each kind of metadata at least once."""
    return metadata[:1] if metadata and are_equal(metadata) else metadata


def _read_broker_metadata(data: bytes, at: int) -> tuple[int | None, int]:
    """Return the broker's index, if any, and where the checksum's magic number ends."""
    size: int = _U32.unpack_from(data, at)[0]
    end = at + 4 + size
    found = _BROKER_METADATA(data, at + 4, end) if size <= _MAX_BROKER_METADATA else None
    if found is None or data[end : end + 2] != _CHECKSUM:
        raise UnusualFrame
    return NUMBERS[found[1]] if found[1] else None, end + 2
