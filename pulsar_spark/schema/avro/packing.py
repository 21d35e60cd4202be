"""The bytes of Avro's numbers, texts and lists in columns: arrays → binary arrays.

What `avro/vectors` does for reading, the other way round: the seven-bit groups of all numbers are
spread over the bytes of words, and the bytes that count are picked out by one bitmap.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.schema.arrow.arrays import binaries, list_array
from pulsar_spark.schema.avro.vectors import (
    HIGH_BITS,
    LOW_BITS,
    ONE,
    ROUNDS,
    SEVENS,
    ZERO,
    number,
    numbers,
    zeros,
)

_INT64 = pa.int64()
_BYTES = pa.binary()
_56, _7, _8 = (number(value) for value in (56, 7, 8))
_LOW_56 = number(2**56 - 1)
_127, _128 = number(127), number(128)

EMPTY = binaries([b""])[0]
_ENDS = binaries([b"", b"\0"])


def constant(data: bytes) -> pa.Scalar:
    """Return bytes as a scalar."""
    return binaries([data])[0]


def joined(parts: Sequence[pa.Array | pa.Scalar], count: int) -> pa.Array:
    """Return, for each of `count` rows, the bytes of all parts; scalars are the same in each."""
    found = pc.binary_join_element_wise(*parts, EMPTY) if parts else EMPTY
    if isinstance(found, pa.Scalar):
        return binaries([found.as_py()]).take(zeros(count))
    return found


def varints(values: pa.Array) -> list[pa.Array]:
    """Return 64-bit numbers as Avro writes them: one or two parts, to be joined."""
    signs = pc.negate(pc.less(values, ZERO).cast(_INT64))
    zigzag = pc.bit_wise_xor(pc.shift_left(values, ONE), signs)
    limits = pc.min_max(zigzag).as_py()
    low, high = limits["min"] or 0, limits["max"] or 0
    if low >= 0 and high < 128:
        single = zigzag.cast(pa.uint8()).buffers()[1]
        return [fixed_sized(single, 1, len(values))]
    raw = pc.bit_wise_and(zigzag, _LOW_56)
    for lower, upper, shift in reversed(ROUNDS):
        moved = pc.bit_wise_and(pc.shift_left(raw, shift), upper)
        raw = pc.bit_wise_or(pc.bit_wise_and(raw, lower), moved)
    # A byte is followed by another one if there is anything in those above it.
    above = raw
    for bits in (8, 16, 32):
        above = pc.bit_wise_or(above, pc.shift_right(above, number(bits)))
    above = pc.add(pc.shift_right(above, _8), SEVENS)
    followed = pc.bit_wise_and(above, HIGH_BITS)
    counted = pc.multiply(pc.shift_right(followed, _7), LOW_BITS)
    sizes = pc.add(pc.shift_right(counted, _56), ONE)
    words = pc.bit_wise_or(raw, followed)
    if low >= 0 and high < 2**56:
        return [packed(words, sizes)]
    return _long_varints(zigzag, words, sizes)


def _long_varints(zigzag: pa.Array, words: pa.Array, sizes: pa.Array) -> list[pa.Array]:
    top = pc.bit_wise_and(pc.shift_right(zigzag, _56), number(255))
    is_long = pc.greater(top, ZERO)
    words = pc.if_else(is_long, pc.bit_wise_or(words, HIGH_BITS), words)
    sizes = pc.if_else(is_long, _8, sizes)
    has_tenth = pc.greater(top, _127)
    # The tenth byte can only be 1.
    tail = pc.if_else(has_tenth, pc.bit_wise_or(top, number(0x100)), top)
    return [
        packed(words, sizes),
        packed(tail, pc.add(is_long.cast(_INT64), has_tenth.cast(_INT64))),
    ]


def packed(words: pa.Array, sizes: pa.Array) -> pa.Array:
    """Return the lowest bytes of each word, so many as `sizes` says, none to 8."""
    count = len(words)
    bitmap = pc.subtract(pc.shift_left(pc.add(zeros(count), ONE), sizes), ONE)
    keep = pa.Array.from_buffers(
        pa.bool_(), 8 * count, [None, bitmap.cast(pa.uint8()).buffers()[1]]
    )
    data = pa.Array.from_buffers(pa.uint8(), 8 * count, [None, words.buffers()[1]])
    return pa.Array.from_buffers(
        _BYTES, count, [None, offsets_of(sizes), data.filter(keep).buffers()[1]]
    )


def offsets_of(sizes: pa.Array) -> pa.Buffer:
    """Return the 32-bit offsets of parts of these sizes."""
    ends = pc.cumulative_sum(sizes)
    return pa.concat_arrays([zeros(1), ends]).cast(pa.int32()).buffers()[1]


def fixed_sized(data: pa.Buffer, size: int, count: int) -> pa.Array:
    """Return the bytes of values that lie one after another, each of the same size."""
    offsets = pc.multiply(numbers(count + 1), number(size)).cast(pa.int32()).buffers()[1]
    return pa.Array.from_buffers(_BYTES, count, [None, offsets, data])


def texts(values: pa.Array) -> list[pa.Array]:
    """Return bytes or text behind their lengths: parts to be joined."""
    return [*varints(pc.binary_length(values).cast(_INT64)), values.cast(_BYTES)]


def booleans(values: pa.Array) -> pa.Array:
    """Return truth values as bytes."""
    return binaries([b"\0", b"\1"]).take(values.cast(_INT64))


def blocks(sizes: pa.Array, items: pa.Array) -> list[pa.Array]:
    """Return lists of items, so many as `sizes` says, in one block each: parts to be joined."""
    lists = list_array(offsets_of(sizes), items, pa.list_(_BYTES), len(sizes))
    ends = _ENDS.take(pc.greater(sizes, ZERO).cast(_INT64))
    return [*varints(sizes), pc.binary_join(lists, EMPTY), ends]
