"""Base-128 integers, as in Avro and protobuf: seven bits per byte, lowest first.

All bytes except the last have their highest bit set. Signed numbers are zigzag-encoded first (0,
-1, 1, -2, … become 0, 1, 2, 3, …): in Avro always, in protobuf for some types.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from pulsar_spark.protocol.varints import varint
from pulsar_spark.schema.arrow.arithmetic import number
from pulsar_spark.schema.arrow.arrays import binaries, offsets_of

__all__ = ("varint", "varints", "zigzag")

_INT32, _UINT64 = pa.int32(), pa.uint64()
# Numbers of one or two bytes are looked up.
_SMALL = 1 << 14


def zigzag(value: int) -> bytes:
    """Encode a signed number with zigzag."""
    return varint((value << 1) ^ (value >> 63))


def varints(values: pa.Array) -> pa.Array:
    """Encode 64-bit numbers as unsigned ones."""
    if not len(values):
        return binaries([])
    values = values.view(_UINT64)
    largest = pc.max(values).as_py()
    if largest < _SMALL:
        return _small().take(values)
    data = values.buffers()[1].slice(values.offset * 8, len(values) * 8)
    packed = _packed_class()(
        numbers=memoryview(data).cast("B").cast("Q").tolist()
    ).SerializeToString()
    offsets = offsets_of(_lengths(values, largest))
    # The numbers come after their tag and size.
    body = pa.py_buffer(packed).slice(len(packed) - offsets[-1].as_py())
    return pa.Array.from_buffers(pa.binary(), len(values), [None, offsets.buffers()[1], body])


def _lengths(values: pa.Array, largest: int) -> pa.Array:
    lengths = number(1, _INT32)
    for bits in range(7, 64, 7):
        if largest >> bits == 0:
            break
        longer = pc.greater_equal(values, number(1 << bits, _UINT64))
        lengths = pc.add(longer.cast(_INT32), lengths)
    return lengths


@cache
def _small() -> pa.Array:
    return binaries([varint(value) for value in range(_SMALL)])


@cache
def _packed_class() -> Any:
    """Return a message class with a list of numbers: protobuf packs them faster than Python."""
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
