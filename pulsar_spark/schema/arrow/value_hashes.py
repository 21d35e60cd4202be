"""64-bit hashes of byte strings and numbers, in columns: the compiled function and its reference.

A value of more than 16 bytes is told by its CRC32C and its CRC32 (zlib's), a shorter one by the two
numbers that its bytes are. That, its length, a seed and perhaps a word (a hash that it goes onto)
are mixed so that sums of hashes do not cancel. Equal values have equal hashes, on any machine and
with either implementation, and others differ but for a chance of 1 in 2^64. They do not protect
against values that were made to have equal ones.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from pulsar_spark.protocol import implementation
from pulsar_spark.protocol.byte_column import ByteColumn, sizes_of
from pulsar_spark.schema.arrow.arithmetic import number
from pulsar_spark.schema.arrow.arrays import as_words, from_words, integers
from pulsar_spark.schema.arrow.byte_column import byte_values, without_nulls

_INT64, _UINT64 = pa.int64(), pa.uint64()
_SHORT = 16
# Odd numbers.
_PER_BYTE = 0x9E3779B97F4A7C15
_PER_HEAD = 0xD6E8FEB86659FD93
# The last step of splitmix64, as shifts and factors.
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
# About how many bytes are hashed together: they are copied first, and then in the cache.
_TOGETHER = 256 * 1024


def hash_column(column: pa.Array, seed: int, words: pa.Array | int = 0) -> pa.Array:
    """Return the hashes of a binary or text column, as `hash_values`."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    values = column.cast(pa.large_binary() if large else pa.binary())
    if not values.null_count:
        return hash_values(byte_values(values), seed, words)
    # Where a null is, some bytes may be.
    buffers = [None, *values.buffers()[1:]]
    bare = pa.Array.from_buffers(values.type, len(values), buffers, offset=values.offset)
    hashes = hash_values(byte_values(bare), seed, words)
    onto = number(words, _UINT64) if isinstance(words, int) else words
    return pc.if_else(values.is_valid(), hashes, onto)


def hash_values(values: Sequence[bytes | None], seed: int, words: pa.Array | int = 0) -> pa.Array:
    """Return each value's hash onto its word, which can be the same for all.

    None leaves the word as it is.
    """
    if implementation.native is None:
        return python_hashes(values, seed, words)
    step = max(len(values), 1)
    if isinstance(values, ByteColumn):
        step = max(step * _TOGETHER // max(values.edges[-1] - values.edges[0], 1), 1)
    hashes: list[bytes] = []
    for start in range(0, len(values), step):
        some = values[start : start + step]
        if isinstance(words, int):
            hashes.append(implementation.native.hash_values(some, seed, words))
        else:
            onto = as_words(words.slice(start, len(some)), "Q").tobytes()
            hashes.append(implementation.native.hash_values(some, seed, 0, onto))
    return pa.Array.from_buffers(_UINT64, len(values), [None, pa.py_buffer(b"".join(hashes))])


def python_hashes(values: Sequence[bytes | None], seed: int, words: pa.Array | int = 0) -> pa.Array:
    """Return the same as `hash_values`, without compiled code of our own."""
    if isinstance(words, int):
        words = pa.repeat(number(words, _UINT64), len(values))
    present, nulls = without_nulls(values)
    sizes = sizes_of(present)
    lengths = integers(sizes, _INT64).cast(_UINT64)
    told = pc.add(_told(present, sizes), pc.multiply(lengths, number(_PER_BYTE, _UINT64)))
    hashes = hash_numbers(told, seed, words)
    return hashes if nulls is None else pc.if_else(nulls, words, hashes)


def _told(values: Sequence[bytes], sizes: Sequence[int]) -> pa.Array:
    if max(sizes, default=0) <= _SHORT:
        return _two_numbers(values)
    if min(sizes) > _SHORT:
        return _checksums(values)
    is_long = pc.greater(integers(sizes, _INT64), number(_SHORT))
    return pc.if_else(is_long, _checksums(values), _two_numbers(values))


def _checksums(values: Sequence[bytes]) -> pa.Array:
    high, low = (
        from_words(array("I", map(function, values)), pa.uint32()).cast(_UINT64)
        for function in (crc32c, crc32)
    )
    return pc.bit_wise_or(pc.shift_left(high, number(32, _UINT64)), low)


def _two_numbers(values: Sequence[bytes]) -> pa.Array:
    """Return what tells a short value, and anything for others."""
    numbers = array("Q", b"".join([value[:_SHORT].ljust(_SHORT, b"\0") for value in values]))
    if sys.byteorder == "big":
        numbers.byteswap()
    heads, tails = (from_words(numbers[start::2], _UINT64) for start in (0, 1))
    return pc.add(pc.multiply(heads, number(_PER_HEAD, _UINT64)), tails)


def hash_numbers(column: pa.Array, seed: int, words: pa.Array) -> pa.Array:
    """Return the hash of each number, none of them null or negative, onto its word."""
    mixed = pc.add(pc.add(column.cast(_UINT64), words), number(seed, _UINT64))
    for shift, factor in _STEPS:
        mixed = pc.multiply(_folded(mixed, shift), number(factor, _UINT64))
    return _folded(mixed, _LAST_SHIFT)


def _folded(words: pa.Array, shift: int) -> pa.Array:
    return pc.bit_wise_xor(words, pc.shift_right(words, number(shift, _UINT64)))
