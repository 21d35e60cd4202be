"""64-bit hashes of byte strings and numbers, in columns: the compiled function and its reference.

A value's hash is made of its CRC32C, its CRC32 (zlib's), its length and a seed, mixed so that
neither sums nor differences of hashes cancel: equal values have equal hashes, on any machine and
with either implementation, and others differ but for a chance of 1 in 2^64. They are no protection
against values that were made to have equal ones.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.protocol import implementation
from pulsar_spark.protocol.byte_column import ByteColumn, sizes_of
from pulsar_spark.protocol.checksum import extend_crc32c
from pulsar_spark.schema.arrow.arithmetic import number
from pulsar_spark.schema.arrow.arrays import from_words, integers
from pulsar_spark.schema.arrow.byte_column import byte_values, without_nulls

_INT64, _UINT64 = pa.int64(), pa.uint64()
_MASK = 2**64 - 1
# An odd number: the golden ratio's.
_PER_BYTE = 0x9E3779B97F4A7C15
# The last step of splitmix64, as shifts and factors.
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_NOTHING = number(0, _UINT64)
# How many bytes are hashed together.
_TOGETHER = 64 * 1024


def hash_column(column: pa.Array, seed: int) -> pa.Array:
    """Return the hash of each value of a binary or text column, 0 for a null."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    values = column.cast(pa.large_binary() if large else pa.binary())
    if not values.null_count:
        return hash_values(byte_values(values), seed)
    # Where a null is, some bytes may be.
    bare = pa.Array.from_buffers(
        values.type, len(values), [None, *values.buffers()[1:]], offset=values.offset
    )
    return pc.if_else(values.is_valid(), hash_values(byte_values(bare), seed), _NOTHING)


def hash_values(values: Sequence[bytes | None], seed: int) -> pa.Array:
    """Return the hash of each value, 0 for None."""
    if implementation.native is None:
        return python_hashes(values, seed)
    # Arrow's values are copied first: so that they stay in a core's cache.
    step = max(len(values), 1)
    if isinstance(values, ByteColumn):
        size = values.edges[-1] - values.edges[0]
        step = max(step * _TOGETHER // max(size, 1), 1)
    hashes = bytearray()
    for start in range(0, len(values), step):
        hashes += implementation.native.hash_values(values[start : start + step], seed)
    return pa.Array.from_buffers(_UINT64, len(values), [None, pa.py_buffer(hashes)])


def hash_numbers(column: pa.Array, seed: int) -> pa.Array:
    """Return the hash of each number of a column of 64-bit ones without nulls."""
    return mixed(pc.add(column.cast(_UINT64), number(seed, _UINT64)))


def mixed(words: pa.Array) -> pa.Array:
    """Return numbers of 64 bits in each of which all bits depend on all of the given one's."""
    for shift, factor in _STEPS:
        words = pc.multiply(_folded(words, shift), number(factor, _UINT64))
    return _folded(words, _LAST_SHIFT)


def _folded(words: pa.Array, shift: int) -> pa.Array:
    return pc.bit_wise_xor(words, pc.shift_right(words, number(shift, _UINT64)))


def python_hashes(values: Sequence[bytes | None], seed: int) -> pa.Array:
    """Return the hash of each value, 0 for None, without compiled code of our own."""
    present, nulls = without_nulls(values)
    checksums = pc.bit_wise_or(
        pc.shift_left(_words(map(extend_crc32c, present)), number(32, _UINT64)),
        _words(map(crc32, present)),
    )
    lengths = integers(sizes_of(present), _INT64).cast(_UINT64)
    hashes = hash_numbers(pc.add(checksums, pc.multiply(lengths, number(_PER_BYTE, _UINT64))), seed)
    return hashes if nulls is None else pc.if_else(nulls, _NOTHING, hashes)


def _words(numbers: Iterable[int]) -> pa.Array:
    return from_words(array("I", numbers), pa.uint32()).cast(_UINT64)
