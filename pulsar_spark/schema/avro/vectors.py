"""Avro's numbers and bytes as columns: each step handles many values, with Arrow's kernels.

For each value a step takes the eight bytes at its position as one word, and works on all words at
once: a number's bytes end at the first byte without its high bit, and its seven-bit groups are
joined in three rounds of masks and shifts. There is no work per value in Python, so a value costs
about ten nanoseconds per kernel.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.schema.arrow.arithmetic import ONE, ZERO, even_numbers, number
from pulsar_spark.schema.arrow.arrays import integers

_INT64 = pa.int64()
_BYTES = pa.binary()
_UINT16 = pa.uint16()
# How many bytes can be read after the end of the data, at any position.
_PADDING = 32


def _word(digits: str) -> pa.Scalar:
    return number(int.from_bytes(bytes.fromhex(digits), "big", signed=True))


_TWO, _THREE, _FOUR, _SEVEN, _EIGHT = (number(value) for value in (2, 3, 4, 7, 8))
_NINE, _56, _62, _32, _127 = (number(value) for value in (9, 56, 62, 32, 127))
_BYTE = number(255)
_U7, _U127 = (number(value).cast(pa.uint8()) for value in (7, 127))
_LOW_HALF = number(2**32 - 1)
HIGH_BITS = _word("80" * 8)
LOW_BITS = _word("01" * 8)
SEVENS = _word("7f" * 8)
_NO_SIGN = number(2**63 - 1)
# Each round masks the lower and the upper group of a pair, and shifts the upper one down.
ROUNDS = (
    (_word("007f" * 4), _word("7f00" * 4), ONE),
    (_word("00003fff" * 2), _word("3fff0000" * 2), _TWO),
    (_word("000000000fffffff"), _word("0fffffff00000000"), _FOUR),
)


class Window:
    """The bytes of many values, with words at any position."""

    def __init__(self, data: pa.Buffer) -> None:
        self.size = data.size
        self._count = self.size // 8 + _PADDING // 8
        padded = data.to_pybytes() + bytes(8 * self._count + 8 - self.size)
        buffer = pa.py_buffer(padded)
        # The words that start at each of the eight offsets.
        shifted = [
            pa.Array.from_buffers(_INT64, self._count, [None, buffer.slice(place, 8 * self._count)])
            for place in range(8)
        ]
        self._words = pa.concat_arrays(shifted)
        self._stride = number(self._count)
        self._bytes = pa.Array.from_buffers(pa.uint8(), len(padded), [None, buffer])
        self._buffer = buffer

    def words(self, places: pa.Array) -> pa.Array:
        """Return the eight bytes at each position, lowest first."""
        row = pc.multiply(pc.bit_wise_and(places, _SEVEN), self._stride)
        return self._words.take(pc.add(row, pc.shift_right(places, _THREE)))

    def bytes_at(self, places: pa.Array) -> pa.Array:
        """Return the byte at each position."""
        return self._bytes.take(places)

    def slices(self, starts: pa.Array, ends: pa.Array) -> pa.Array:
        """Return the bytes between each pair of positions."""
        count = len(starts)
        if not count:
            return pa.nulls(0, _BYTES)
        # As 32-bit numbers these are start, end, start, end: the offsets of the slices and the gaps
        # between them.
        edges = pc.bit_wise_or(pc.shift_left(ends, _32), starts).buffers()[1]
        parts = pa.Array.from_buffers(_BYTES, 2 * count - 1, [None, edges, self._buffer])
        return parts.take(even_numbers(count))

    def varints(self, places: pa.Array) -> tuple[pa.Array, pa.Array | pa.Scalar, pa.Array | None]:
        """Return each position's number, its length, and where it is invalid.

        The last is None if all are valid: at most 10 bytes and 64 bits.
        """
        first = self.bytes_at(places)
        if (pc.max(first).as_py() or 0) < 128:
            return _small().take(first), ONE, None
        more = pc.shift_right(first, _U7)
        second = pc.multiply(self.bytes_at(pc.add(places, ONE)), more)
        if pc.max(second).as_py() < 128:
            upper = pc.shift_left(second.cast(_UINT16), _U7.cast(_UINT16))
            both = pc.bit_wise_or(pc.bit_wise_and(first, _U127).cast(_UINT16), upper)
            return _small().take(both), pc.add(more.cast(_INT64), ONE), None
        words = self.words(places)
        mask, lengths, longest = _ends(words)
        raw = pc.bit_wise_and(pc.bit_wise_and(words, mask), SEVENS)
        # Each round joins twice as many groups, and most numbers have few.
        for low, high, shift in ROUNDS[: (longest - 1).bit_length()]:
            moved = pc.shift_right(pc.bit_wise_and(raw, high), shift)
            raw = pc.bit_wise_or(pc.bit_wise_and(raw, low), moved)
        long = _without_end(words) if longest == 8 else None
        if long is None:
            return _unzigzag(raw), lengths, None
        return self._long_varints(places, raw, lengths, long)

    def varint_sizes(self, places: pa.Array) -> tuple[pa.Array | pa.Scalar, pa.Array | None]:
        """Return the lengths of the numbers at these positions, and where they are invalid."""
        if (pc.max(self.bytes_at(places)).as_py() or 0) < 128:
            return ONE, None
        words = self.words(places)
        _, sizes, longest = _ends(words)
        if longest < 8 or _without_end(words) is None:
            return sizes, None
        return self.varints(places)[1:]

    def _long_varints(
        self, places: pa.Array, raw: pa.Array, lengths: pa.Array, long: pa.Array
    ) -> tuple[pa.Array, pa.Array, pa.Array]:
        rest = self.words(pc.add(places, _EIGHT))
        ninth = pc.bit_wise_and(rest, _BYTE)
        tenth = pc.bit_wise_and(pc.shift_right(rest, _EIGHT), _BYTE)
        has_tenth = pc.greater(ninth, _127)
        top = pc.shift_left(pc.bit_wise_and(ninth, _127), _56)
        # Arrow does not shift by 63 in one step.
        sign = pc.shift_left(pc.shift_left(tenth, _62), ONE)
        last = pc.if_else(has_tenth, sign, ZERO)
        raw = pc.if_else(long, pc.bit_wise_or(pc.bit_wise_or(raw, top), last), raw)
        more = pc.if_else(has_tenth, number(10), _NINE)
        invalid = pc.and_(long, pc.and_(has_tenth, pc.greater(tenth, ONE)))
        return _unzigzag(raw), pc.if_else(long, more, lengths), invalid


def _ends(words: pa.Array) -> tuple[pa.Array, pa.Array, int]:
    """Return words with all bits set up to the first byte without its high bit.

    Also returns their numbers of bytes, 8 if there is no such byte, and the largest of these.
    """
    ends = pc.bit_wise_and(pc.bit_wise_not(words), HIGH_BITS)
    mask = pc.bit_wise_xor(ends, pc.subtract(ends, ONE))
    ones = pc.multiply(pc.bit_wise_and(mask, LOW_BITS), LOW_BITS)
    sizes = pc.shift_right(ones, _56)
    return mask, sizes, pc.max(sizes).as_py()


def _without_end(words: pa.Array) -> pa.Array | None:
    """Return where all bytes of a word have their high bit, None if nowhere."""
    found = pc.equal(pc.bit_wise_and(words, HIGH_BITS), HIGH_BITS)
    return found if found.true_count else None


def _unzigzag(raw: pa.Array) -> pa.Array:
    half = pc.bit_wise_and(pc.shift_right(raw, ONE), _NO_SIGN)
    return pc.bit_wise_xor(half, pc.negate(pc.bit_wise_and(raw, ONE)))


def halves(words: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the lower and upper 32 bits of words, as unsigned numbers."""
    low = pc.bit_wise_and(words, _LOW_HALF)
    return low, pc.bit_wise_and(pc.shift_right(words, _32), _LOW_HALF)


@cache
def _small() -> pa.Array:
    """Return the decoded values of all numbers of one or two bytes."""
    return integers([(number >> 1) ^ -(number & 1) for number in range(1 << 14)], _INT64)
