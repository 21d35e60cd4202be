"""Columns of protobuf's encoded parts: a binary array with the bytes of each row.

Protocol Buffers, Encoding: a record is a tag (number << 3 | wire type) and a payload: a base 128
varint, four or eight bytes (little endian), or a length and as many bytes. All here works on whole
arrays without nulls; rows and lists are put together by offsets into the same bytes.
"""

from __future__ import annotations

from functools import cache
from struct import Struct
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from pulsar_spark.schema.arrow.arrays import binaries, integers

VARINT, FIXED64, DELIMITED, START_GROUP, END_GROUP, FIXED32 = range(6)

_BINARY = pa.binary()
_INT32 = pa.int32()
_UINT64 = pa.uint64()
_LONG = Struct("=Q")
_SMALL = 1 << 14


def varint(number: int) -> bytes:
    """Return a number of at most 64 bits without a sign, its lowest seven bits first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def tag(number: int, wire_type: int) -> bytes:
    """Return what stands before each payload of a field."""
    return varint(number << 3 | wire_type)


def constant(value: bytes) -> pa.Scalar:
    """Return bytes as Arrow's functions take them."""
    return binaries([value])[0]


@cache
def number(value: int, kind: pa.DataType) -> pa.Scalar:
    """Return an integer as Arrow's functions take them, of a type of 32 or 64 bits."""
    if kind == _UINT64:
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(_LONG.pack(value))])[0]
    return integers([value], kind)[0]


def joined(*parts: Any) -> pa.Array:
    """Return the rows of arrays and constants, one part after the other."""
    return pc.binary_join_element_wise(*parts, _nothing())


def varints(numbers: pa.Array, head: bytes = b"") -> pa.Array:
    """Return unsigned 64-bit numbers as varints, each after `head`."""
    encoded = _varints(numbers)
    return joined(constant(head), encoded) if head else encoded


def fixed(numbers: pa.Array, head: bytes = b"") -> pa.Array:
    """Return the bytes of numbers of a fixed width, each after `head`."""
    width = numbers.type.bit_width // 8
    data = numbers.buffers()[1].slice(numbers.offset * width, len(numbers) * width)
    plain = pa.Array.from_buffers(pa.binary(width), len(numbers), [None, data]).cast(_BINARY)
    return joined(constant(head), plain) if head else plain


def delimited(values: pa.Array, head: bytes = b"") -> pa.Array:
    """Return bytes with their lengths before them, each after `head`."""
    lengths = pc.binary_length(values).dictionary_encode()
    distinct = [head + varint(length) for length in lengths.dictionary.to_pylist()]
    return joined(binaries(distinct).take(lengths.indices), values)


def positions(lengths: pa.Array) -> pa.Array:
    """Return the places between parts of these lengths; true is one, false is none."""
    sums = pc.cumulative_sum(lengths.cast(_INT32))
    return pa.concat_arrays([integers([0], _INT32), sums])


def regrouped(parts: pa.Array, places: pa.Array) -> pa.Array:
    """Return rows of the parts that are between these places, without a copy."""
    _, offsets, data = parts.buffers()
    ends = pa.Array.from_buffers(_INT32, len(parts) + 1, [None, offsets], offset=parts.offset)
    taken = ends.take(places)
    return pa.Array.from_buffers(_BINARY, len(places) - 1, [None, taken.buffers()[1], data])


@cache
def _nothing() -> pa.Scalar:
    return constant(b"")


@cache
def _small_varints() -> pa.Array:
    return binaries([varint(value) for value in range(_SMALL)])


@cache
def _packed_class() -> Any:
    """Return a message with a list of numbers: protobuf packs them faster than Python can."""
    file = FileDescriptorProto(name="packed.proto", package="packed", syntax="proto3")
    file.message_type.add(name="Packed").field.add(
        name="numbers",
        number=1,
        type=FieldDescriptorProto.TYPE_UINT64,
        label=FieldDescriptorProto.LABEL_REPEATED,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("packed.Packed"))


def _varints(numbers: pa.Array) -> pa.Array:
    if not len(numbers):
        return binaries([])
    largest = pc.max(numbers).as_py()
    if largest < _SMALL:
        return _small_varints().take(numbers)
    data = numbers.buffers()[1].slice(numbers.offset * 8, len(numbers) * 8)
    values = memoryview(data).cast("B").cast("Q").tolist()
    packed = _packed_class()(numbers=values).SerializeToString()
    places = positions(_varint_lengths(numbers, largest))
    # The numbers follow their tag and their size.
    body = pa.py_buffer(packed).slice(len(packed) - places[-1].as_py())
    return pa.Array.from_buffers(_BINARY, len(numbers), [None, places.buffers()[1], body])


def _varint_lengths(numbers: pa.Array, largest: int) -> pa.Array:
    lengths = number(1, _INT32)
    for bits in range(7, 64, 7):
        if largest >> bits == 0:
            break
        longer = pc.greater_equal(numbers, number(1 << bits, _UINT64))
        lengths = pc.add(longer.cast(_INT32), lengths)
    return lengths
