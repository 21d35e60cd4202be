"""Bytes of a broken or malicious peer, for tests."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

VARINT, FIXED64, LENGTH, GROUP, END_GROUP, FIXED32 = range(6)

EXTREMES = [
    *(0, 1, 2, 5, 99, 127, 128, 1000, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63),
    *(2**64 - 1, 2**64 - 2),
]
TEXTS = [
    *(b"", b"\0", b"a", b"=", b"x" * 300, "ä€😀".encode()),
    *(b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80"),
]
SIZES = [0, 1, 2**31 - 1, 2**31, 2**32 - 1]

# The correct wire type by a field's kind.
_WIRE_TYPES = {
    FieldDescriptor.TYPE_STRING: LENGTH,
    FieldDescriptor.TYPE_BYTES: LENGTH,
    FieldDescriptor.TYPE_MESSAGE: LENGTH,
    FieldDescriptor.TYPE_DOUBLE: FIXED64,
    FieldDescriptor.TYPE_FIXED64: FIXED64,
}


def number(value: int) -> bytes:
    """Return a number of up to 64 bits as protobuf writes it."""
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def field(rng: random.Random, place: int, wire_type: int, content: bytes) -> bytes:
    """Return a field of a wire type; `content` is for LENGTH, other values are random."""
    tag = number(place << 3 | wire_type)
    if wire_type == VARINT:
        return tag + number(rng.choice(EXTREMES))
    if wire_type == LENGTH:
        return tag + number(len(content)) + content
    if wire_type == GROUP:
        return tag + number(place << 3 | VARINT) + b"\x05" + number(place << 3 | END_GROUP)
    return tag + rng.randbytes(8 if wire_type == FIXED64 else 4)


def fields(rng: random.Random, kind: Any, most: int = 4, depth: int = 3) -> bytes:
    """Return some fields of a message: extreme values, of the right wire type or another."""
    parts = []
    for _ in range(rng.randint(0, most if kind.fields else 0)):
        known = rng.choice(kind.fields)
        wire_type = _WIRE_TYPES.get(known.type, VARINT)
        if rng.random() < 0.15:
            wire_type = rng.choice((VARINT, FIXED64, LENGTH, GROUP, FIXED32))
        content = rng.choice(TEXTS)
        if known.message_type is not None and depth:
            content = fields(rng, known.message_type, most, depth - 1)
        parts.append(field(rng, known.number, wire_type, content))
    return b"".join(parts)


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Return data with some bytes changed, cut off, inserted or removed."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) + 1)
        what = rng.randrange(5)
        if what == 0:
            changed[at : at + 1] = bytes([rng.randrange(256)])
        elif what == 1:
            changed[at : at + 1] = bytes([rng.choice((0, 1, 127, 128, 254, 255))])
        elif what == 2:
            del changed[at : at + rng.randint(1, 9)]
        elif what == 3:
            changed[at:at] = rng.randbytes(rng.randint(1, 9))
        elif len(changed) > 4:
            changed[at : at + 4] = rng.choice(SIZES).to_bytes(4, "big")
    return bytes(changed)
