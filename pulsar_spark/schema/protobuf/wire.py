"""Protobuf's wire format for columns: a tag (number << 3 | wire type) and a payload.

All arrays are of bytes, without nulls.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.schema.arrow.arrays import binaries, constant, joined
from pulsar_spark.schema.arrow.varints import varint

VARINT, FIXED64, DELIMITED, START_GROUP, END_GROUP, FIXED32 = range(6)

_BINARY = pa.binary()
_INT32 = pa.int32()


def tag(number: int, wire_type: int) -> bytes:
    """Return the bytes before each payload of a field."""
    return varint(number << 3 | wire_type)


def signed(value: int) -> bytes:
    """Return a whole number that may be negative; then it has all 64 bits, whatever its type.

    Encoding, Signed Integers.
    """
    return varint(value & 2**64 - 1)


def behind(head: bytes, values: pa.Array) -> pa.Array:
    """Return each value's bytes after `head`."""
    return joined([constant(head), values], len(values)) if head else values


def delimited(values: pa.Array, head: bytes = b"") -> pa.Array:
    """Return each value's bytes with their length before them, after `head`."""
    lengths = pc.binary_length(values).dictionary_encode()
    distinct = [head + varint(length) for length in lengths.dictionary.to_pylist()]
    return joined([binaries(distinct).take(lengths.indices), values], len(values))


def regrouped(parts: pa.Array, places: pa.Array) -> pa.Array:
    """Return rows that join the parts between these indexes, without copying."""
    _, offsets, data = parts.buffers()
    ends = pa.Array.from_buffers(_INT32, len(parts) + 1, [None, offsets], offset=parts.offset)
    taken = ends.take(places)
    return pa.Array.from_buffers(_BINARY, len(places) - 1, [None, taken.buffers()[1], data])
