"""MESSAGE frames that are laid out alike, taken by columns.

Entries that follow each other on a topic: in front of their keys and payloads the same bytes have
the same places in every frame. So they are compared in strides, place by place over all frames, in
place of frame by frame. Payloads and keys may have any sizes; producers that take turns are looked
at each by itself where their names or numbers differ in size.

Whatever is not alike is left to the decoder, which takes such frames one by one.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from operator import add, gt, sub
from struct import pack
from sys import byteorder
from typing import NamedTuple

from pulsar_spark.protocol.block_columns import LAST_MILLIS, Keys, Slices, cut, quick_to_cut
from pulsar_spark.protocol.checksum import extend_crc32c
from pulsar_spark.protocol.varints import NUMBER, are_numbers, number_columns, read_numbers

MIN_EVEN = 16
"""Fewer frames than that are not worth it."""
_MAX_PRODUCERS = 16
# Times of fewer digits, with their tag, are before LAST_MILLIS.
_FAR = 7
_SIZE = 4  # bytes of a frame's size, which is in front of the rest

# Of metadata: the name's size; behind the name tags and digits of sequence id and publish time, and
# the tag of the key.
_NAME_SIZE = re.compile(rb"\x0a([\0-\x7f])", re.DOTALL).match
_TIMES = re.compile(rb"\x10(%b)\x18(%b)(\x32)?" % (NUMBER, NUMBER)).match


class Commands(NamedTuple):
    """Where the parts of the commands lie, counted from where their frames begin.

    Digits of the entry, which alone vary, and what follows the commands: a checksum.
    """

    entry_at: int
    entry_end: int
    checksum_at: int


class EvenFrames(NamedTuple):
    """What frames hold, in columns; their entries are consecutive.

    There are the frame's end, publish time (µs), key, and payload. `rests` is what the metadata has
    behind the key, None where none has more. `digits` has the entries' digits place by place.
    """

    ends: list[int]
    digits: list[bytes]
    micros: list[int]
    keys: Keys
    rests: list[bytes] | None
    values: Slices


class _Layout(NamedTuple):
    """Where parts of one producer's metadata lie, counted from where it begins.

    The tags of sequence id and publish time, what follows the time, and the `width` of all that:
    with a key, its tag and size belong to it.
    """

    sequence_at: int
    time_at: int
    time_end: int
    width: int

    @property
    def has_key(self) -> bool:
        """Whether there are keys."""
        return self.width > self.time_end


class _Heads(NamedTuple):
    """Of each frame: publish time (µs), and where its key begins and ends, the same without one.

    `key_sizes` is None if no frame has a key. With `is_plain`, nothing follows the keys.
    """

    micros: list[int]
    keys_at: list[int]
    keys_end: list[int]
    key_sizes: Sequence[int] | None
    is_plain: bool


def take_even(
    data: bytes,
    at: int,
    ends: list[int],
    commands: Commands,
    first_entry: int,
    most_bytes: int,
    largest: int,
) -> EvenFrames | None:
    """Take frames from `at` on, of those with these `ends`; None if too few of them are alike.

    They have at most `most_bytes` bytes of metadata and payloads, and none of them has more than
    `largest`. Their checksums are right. The first one has that entry, and a command that was read.
    """
    checksum_at = commands.checksum_at
    before = checksum_at + 8
    layout = _read_layout(data, at + before)
    width = before + (layout.width if layout else 0)
    starts = [at, *ends[:-1]]
    while starts and starts[-1] + width > len(data):
        # The last ones are too small.
        starts.pop()
    count = _count_fitting(starts, ends, before, most_bytes, largest)
    digits = number_columns(first_entry, count)
    count = len(digits[0])
    if count < MIN_EVEN:
        return None
    # What does not fit follows, and numbers of entries with more digits.
    del starts[count:], ends[count:]
    heads = b"".join([data[start : start + width] for start in starts])
    if not _are_alike(heads, width, commands, digits):
        return None
    found = layout and _read_heads(heads, width, before, layout, starts)
    found = found or _read_producers(data, [start + before for start in starts])
    if found is None:
        return None
    micros, keys_at, keys_end, key_sizes, is_plain = found
    bodies, rests = keys_end, None
    if not is_plain:
        metadata_sizes = _as_numbers(_words(heads, checksum_at + 4, width))
        bodies = [start + before + size for start, size in zip(starts, metadata_sizes, strict=True)]
        rests = cut(data, keys_end, bodies) if keys_end != bodies else None
    sizes = list(map(sub, ends, bodies))
    source, checked_at = quick_to_cut(data, sizes), checksum_at + 4
    checksums = [
        extend_crc32c(source[start + checked_at : end])
        for start, end in zip(starts, ends, strict=True)
    ]
    # Nothing ends before it begins: so nothing reaches into what follows it.
    if (
        min(sizes) < 0
        or (rests is not None and any(map(gt, keys_end, bodies)))
        or pack(f">{count}I", *checksums) != _words(heads, checksum_at, width)
    ):
        return None
    keys = _cut_keys(data, keys_at, keys_end, key_sizes)
    return EvenFrames(ends, digits, micros, keys, rests, Slices(data, bodies, ends, sizes))


def _count_fitting(
    starts: list[int], ends: list[int], before: int, most_bytes: int, largest: int
) -> int:
    """Return how many frames do not have too many bytes, until one has.

    The first `before` bytes of each do not count.
    """
    count = len(starts)
    if not count or (
        ends[count - 1] - starts[0] - before * count <= most_bytes
        and max(map(sub, ends, starts)) <= before + largest
    ):
        return count
    sizes = [end - start - before for start, end in zip(starts, ends, strict=False)]
    fits = (
        size <= largest and total <= most_bytes
        for size, total in zip(sizes, accumulate(sizes), strict=True)
    )
    return next((row for row, fit in enumerate(fits) if not fit), count)


def _cut_keys(data: bytes, begins: list[int], ends: list[int], sizes: Sequence[int] | None) -> Keys:
    """Return the keys; an empty one stands for none."""
    if sizes is None:
        return [None] * len(begins)
    if 0 in sizes:
        return [key or None for key in cut(data, begins, ends)]
    return Slices(data, begins, ends, sizes)


def _are_alike(heads: bytes, width: int, commands: Commands, digits: list[bytes]) -> bool:
    """Whether all commands are like the first one, but for entries with these digits."""
    entry_at, entry_end, checksum_at = commands
    count = len(digits[0])
    for at in (*range(_SIZE, entry_at), *range(entry_end, checksum_at)):
        if heads[at::width] != heads[at : at + 1] * count:
            return False
    return digits == [heads[at::width] for at in range(entry_at, entry_end)]


def _words(heads: bytes, at: int, width: int) -> bytes:
    """Return the four bytes at a place of all heads."""
    found = bytearray(len(heads) // width * 4)
    for place in range(4):
        found[place::4] = heads[at + place :: width]
    return bytes(found)


def _as_numbers(words: bytes) -> list[int]:
    """Return the numbers of four bytes each."""
    numbers = array("I", words)
    if byteorder == "little":
        numbers.byteswap()
    return numbers.tolist()


# --- metadata -----------------------------------------------------------------------------


def _read_producers(data: bytes, begins: list[int]) -> _Heads | None:
    """Read metadata of producers that take turns; None where that of one is not alike."""
    names = [data[begin + 2 : begin + 2 + data[begin + 1]] for begin in begins]
    distinct = set(names)
    count = len(names)
    if not 1 < len(distinct) <= min(_MAX_PRODUCERS, count // MIN_EVEN):
        return None
    micros, keys_at, keys_end = [0] * count, [0] * count, [0] * count
    for name in distinct:
        rows = [row for row, of in enumerate(names) if of == name]
        its_begins = [begins[row] for row in rows]
        layout = _read_layout(data, its_begins[0])
        if layout is None:
            return None
        width = layout.width
        heads = b"".join([data[begin : begin + width] for begin in its_begins])
        if len(heads) != width * len(rows):
            return None
        found = _read_heads(heads, width, 0, layout, its_begins)
        if found is None:
            return None
        for row, time, key_at, key_end in zip(rows, *found[:3], strict=True):
            micros[row], keys_at[row], keys_end[row] = time, key_at, key_end
    return _Heads(micros, keys_at, keys_end, list(map(sub, keys_end, keys_at)), is_plain=False)


def _read_layout(data: bytes, at: int) -> _Layout | None:
    """Return the layout of metadata, None if it begins in an unusual way."""
    name = _NAME_SIZE(data, at)
    found = name and _TIMES(data, at + 2 + name[1][0])
    if not found:
        return None
    time_end = found.end(2) - at
    width = time_end if found[3] is None else time_end + 2
    return _Layout(found.start() - at, found.start(2) - 1 - at, time_end, width)


def _read_heads(
    heads: bytes, width: int, at: int, layout: _Layout, starts: list[int]
) -> _Heads | None:
    """Read metadata, `at` in heads of this width; None if some has another layout."""
    count = len(starts)
    sequence_at, time_at, time_end = (at + place for place in layout[:3])
    fixed = [at, at + 1, sequence_at, time_at, *([time_end] if layout.has_key else ())]
    numbers = ((sequence_at + 1, time_at), (time_at + 1, time_end))
    if any(heads[at::width] != heads[at : at + 1] * count for at in fixed) or not all(
        are_numbers(heads, begin, end, width) for begin, end in numbers
    ):
        return None
    micros = read_numbers(heads, time_at + 1, time_end, width, factor=1000)
    if time_end - time_at > _FAR and max(micros) > 1000 * LAST_MILLIS:
        return None
    before_key = at + layout.width
    keys_at = [start + before_key for start in starts]
    if not layout.has_key:
        is_plain = _are_sizes(heads, width, at - 4, bytes([layout.width]) * count)
        return _Heads(micros, keys_at, keys_at, None, is_plain)
    key_sizes = heads[time_end + 1 :: width]
    # None is long; an empty one could not be told from none.
    if not key_sizes.isascii() or 0 in key_sizes:
        return None
    is_plain = _are_sizes(heads, width, at - 4, key_sizes.translate(_increased(layout.width)))
    return _Heads(micros, keys_at, list(map(add, keys_at, key_sizes)), key_sizes, is_plain)


def _are_sizes(heads: bytes, width: int, at: int, sizes: bytes) -> bool:
    """Whether the metadata has these sizes, if they are in the heads."""
    return (
        at >= 0
        and heads[at + 3 :: width] == sizes
        and all(heads[at + place :: width] == bytes(len(sizes)) for place in range(3))
    )


@lru_cache(16)
def _increased(number: int) -> bytes:
    """Return a table that adds a number to each byte up to 127; what is too large becomes 0."""
    sums = range(number, number + 128)
    return bytes([0 if each > 255 else each for each in sums]) + bytes(128)
