"""Decimals of at most 64 bits as columns: numbers → bytes, highest byte first.

Avro 1.12 specification, Logical Types, Decimal: the unscaled number in two's complement, in as few
bytes as possible or in a fixed number. Wider decimals are converted one by one.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.schema.arrow.arithmetic import ONE, even_numbers, number, zeros

WIDTH = 8
"""Maximum size in bytes of such a decimal."""
DIGITS = 18
"""All numbers with at most this many digits are small enough."""

_INT64 = pa.int64()
_64 = number(64)
_EIGHT = number(8)
# The swaps that reverse a word: single bytes, then pairs, then halves.
_SWAPS = tuple(
    (number(int.from_bytes(bytes.fromhex(digits), "big")), number(bits))
    for digits, bits in (("00ff" * 4, 8), ("0000ffff" * 2, 16), ("00000000ffffffff", 32))
)


def swapped(words: pa.Array) -> pa.Array:
    """Return words with reversed bytes."""
    for mask, bits in _SWAPS:
        low = pc.shift_left(pc.bit_wise_and(words, mask), bits)
        words = pc.bit_wise_or(low, pc.bit_wise_and(pc.shift_right(words, bits), mask))
    return words


def to_words(numbers: pa.Array, sizes: pa.Array | pa.Scalar) -> pa.Array:
    """Return words whose lowest bytes hold numbers; `sizes` has their number of bytes, 1 to 8."""
    return swapped(pc.shift_left(numbers, pc.subtract(_64, pc.multiply(sizes, _EIGHT))))


def sizes_of(numbers: pa.Array) -> pa.Array:
    """Return the minimum number of bytes for each number."""
    sizes = pc.add(zeros(len(numbers)), ONE)
    # A negative number needs as many as its complement.
    positive = pc.if_else(pc.less(numbers, number(0)), pc.bit_wise_not(numbers), numbers)
    for size in range(1, WIDTH):
        larger = pc.greater_equal(positive, number(2 ** (8 * size - 1)))
        if not larger.true_count:
            break
        sizes = pc.add(sizes, larger.cast(_INT64))
    return sizes


def beyond(numbers: pa.Array, digits: int) -> pa.Array:
    """Return where numbers have more digits."""
    if digits > DIGITS:
        return pc.less(numbers, numbers)
    return pc.greater(pc.abs(numbers).view(pa.uint64()), number(10**digits - 1).cast(pa.uint64()))


def without_points(values: pa.Array) -> pa.Array:
    """Return the unscaled numbers of decimals of at most DIGITS digits, without nulls."""
    halves = pa.Array.from_buffers(
        _INT64, 2 * len(values), [None, values.buffers()[1]], offset=2 * values.offset
    )
    return halves.take(even_numbers(len(values)))
