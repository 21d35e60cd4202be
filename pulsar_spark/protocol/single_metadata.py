"""SingleMessageMetadata without protobuf, which is too slow for every message.

Nearly all metadata, as official clients write it, has one of two shapes (in hex; numbers as
protobuf writes them; optional fields in brackets):

    [12 size key] 18 payload_size [30 00] [40 sequence_id]

This module recognises and writes these shapes. Metadata that differs in any bit is left to
protobuf.
"""

from __future__ import annotations

from functools import lru_cache, partial
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from pulsar_spark.protocol.memo import Memo
from pulsar_spark.protocol.varints import CONTINUING_DIGITS, MAX_DIGITS, encode_number, sized

# Tags: field number * 8 + wire type.
PROPERTIES = 0x0A
PARTITION_KEY = 0x12
PAYLOAD_SIZE = 0x18
KEY_IS_BASE64 = 0x30
SEQUENCE_ID = 0x40

_U32 = Struct(">I")


def is_sequence_id(field: bytes) -> bool:
    """Whether `field` is sequence_id's tag and one complete number of up to nine digits."""
    return (
        2 <= len(field) <= 1 + MAX_DIGITS
        and field[0] == SEQUENCE_ID
        and field[-1] < 128
        and not field[1:-1].translate(None, CONTINUING_DIGITS)
    )


class Layout(NamedTuple):
    """Offsets in a batch's first message; a missing key or missing digits are empty ranges."""

    has_key: bool
    key_at: int
    key_end: int
    digits_at: int
    start: int
    stop: int


def layout_of(body: bytes) -> Layout | None:
    """Return the first message's layout if its shape is usual."""
    try:
        start = 4 + _U32.unpack_from(body)[0]
        at = key_at = key_end = 4
        has_key = body[4] == PARTITION_KEY and body[5] < 128
        if has_key:
            key_at = 6
            at = key_end = key_at + body[5]
        if body[at] != PAYLOAD_SIZE:
            return None
        size = body[at + 1]
        at += 2
        if size >= 128:
            if body[at] >= 128:
                return None
            size = size & 127 | body[at] << 7
            at += 1
        if at < start and body[at] == KEY_IS_BASE64 and not body[at + 1]:
            at += 2
    except (StructError, IndexError):
        return None
    if at == start:
        return Layout(has_key, key_at, key_end, at, start, start + size)
    if not is_sequence_id(body[at:start]):
        return None
    return Layout(has_key, key_at, key_end, at + 1, start, start + size)


def _head(digits: int, size: int) -> bytes:
    field = PAYLOAD_SIZES[size]
    return _U32.pack(len(field) + digits) + field


def _key_head(behind: int, size: int) -> bytes:
    field = b"\x12" + encode_number(size)
    return _U32.pack(len(field) + size + behind) + field


def _metadata_size(digits: int, size: int) -> bytes:
    return _U32.pack(size + digits)


# Between a key and a sequence id's digits, by payload size.
PAYLOAD_SIZES: Memo[int, bytes] = Memo(lambda size: b"\x18" + encode_number(size) + b"\x40")
# Before a sequence id's digits, without a key, by payload size; before the metadata, by its size
# before these digits. There are at most nine of them.
HEADS = [Memo(partial(_head, digits)) for digits in range(10)]
METADATA_SIZES = [Memo(partial(_metadata_size, digits)) for digits in range(10)]
# Before a key, by its size. Behind it are two tags, and payload size and sequence id, each of
# up to nine digits.
KEY_HEADS = [Memo(partial(_key_head, behind)) for behind in range(21)]


@lru_cache(1024)
def property_name(name: str) -> bytes:
    """Return a KeyValue's first field; raises UnicodeEncodeError."""
    return b"\x0a" + sized(name.encode())
