"""SingleMessageMetadata without protobuf, which is too slow for every message.

Nearly all metadata, as official clients write it, has one of two shapes (in hex; numbers as
protobuf writes them; optional fields in brackets):

    [12 size key] 18 payload_size [30 00] [40 sequence_id]

This module recognises and writes these shapes. Metadata that differs in any bit is left to
protobuf.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from pulsar_spark.errors import InvalidRow
from pulsar_spark.protocol.blocks import NUMBERS

# Tags: field number * 8 + wire type.
PROPERTIES = 0x0A
PARTITION_KEY = 0x12
PAYLOAD_SIZE = 0x18
KEY_IS_BASE64 = 0x30
SEQUENCE_ID = 0x40
# Of a property.
_NAME, _VALUE = 0x0A, 0x12

_U32 = Struct(">I")
CONTINUING_DIGITS = bytes(range(128, 256))
# A tenth digit can overflow 64 bits: leave such numbers to protobuf.
_MAX_DIGITS = 9
NUMBER = rb"[\x80-\xff]{0,8}[\0-\x7f]"
"""Pattern of a number of up to nine digits, so below 2^63."""
_MAX_LONG = 2**63 - 1


def is_sequence_id(field: bytes) -> bool:
    """Whether `field` is sequence_id's tag and one complete number of up to nine digits."""
    return (
        2 <= len(field) <= 1 + _MAX_DIGITS
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


class OpenedMetadata(NamedTuple):
    """What metadata with properties or an event time holds; the time is 0 without one.

    A repeated property keeps its first place and its last value. Texts may be no UTF-8.
    """

    properties: dict[bytes, bytes]
    key: bytes | None
    payload_size: int
    event_time: int


# Numbers of one digit; others raise IndexError.
_SMALL = range(128)
# Behind the payload's size: event time, "the key is not base64", sequence id.
_BEHIND_SIZE = re.compile(rb"(?:\x28(%b))?(?:\x30\0)?(?:\x40%b)?" % (NUMBER, NUMBER)).fullmatch


def open_metadata(data: bytes) -> OpenedMetadata | None:
    """Read metadata in this shape; None for any other:

    [0a size 0a size name 12 size value]* [12 size key] 18 payload_size [28 event_time] [30 00]
    [40 sequence_id]
    """
    key = None
    try:
        properties, at = _read_properties(data)
        if data[at] == PARTITION_KEY:
            key_at = at + 2
            at = key_at + _SMALL[data[at + 1]]
            key = data[key_at:at]
        if data[at] != PAYLOAD_SIZE:
            return None
        size = data[at + 1]
        at += 2
        if size > 127:
            size = size & 127 | _SMALL[data[at]] << 7
            at += 1
    except IndexError:
        return None
    behind = _BEHIND_SIZE(data, at)
    if behind is None:
        return None
    time = behind[1]
    event_time = NUMBERS[time[1:]] << 7 | time[0] & 127 if time else 0
    return OpenedMetadata(properties, key, size, event_time)


def _read_properties(data: bytes) -> tuple[dict[bytes, bytes], int]:
    """Return properties, and where they end; raises IndexError for another shape."""
    properties: dict[bytes, bytes] = {}
    at = 0
    while data[at] == PROPERTIES:
        size, tag, name_size = data[at + 1], data[at + 2], data[at + 3]
        name_at = at + 4
        name_end = name_at + name_size
        value_size = data[name_end + 1]
        value_at = name_end + 2
        at += 2 + size
        if (
            tag != _NAME
            or data[name_end] != _VALUE
            or (size | name_size | value_size) > 127
            or value_at + value_size != at
        ):
            raise IndexError
        properties[data[name_at:name_end]] = data[value_at:at]
    return properties, at


def encode_number(value: int) -> bytes:
    """Encode a non-negative number as protobuf does: seven bits per byte, lowest first."""
    if value < 128:
        return _FINAL[value]
    return _CONTINUED[value & 127] + _encode_higher(value >> 7)


# Consecutive sequence ids and times share all digits except the first.
_encode_higher = lru_cache(4096)(encode_number)
_FINAL = [bytes((digit,)) for digit in range(128)]
_CONTINUED = [bytes((digit | 128,)) for digit in range(128)]


def number_runs(first: int, count: int) -> Iterator[list[bytes]]:
    """Yield `count` encoded numbers from `first` on, in lists of numbers of equal length."""
    end = first + count
    run: list[bytes] = []
    while first < end:
        # Up to here the numbers differ only in their first digit.
        stop = min((first | 127) + 1, end)
        low = first & 127
        if first > 127:
            rest = encode_number(first >> 7)
            block = [digit + rest for digit in _CONTINUED[low : low + stop - first]]
        else:
            block = _FINAL[low : low + stop - first]
        if run and len(run[0]) != len(block[0]):
            yield run
            run = []
        run += block
        first = stop
    yield run


_MAX_HEADS = 4096


class _BySize(dict[int, bytes]):
    """Bytes that depend on a size, made once; cleared when it is full."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, size: int) -> bytes:
        found = self._make(size)
        if len(self) >= _MAX_HEADS:
            self.clear()
        self[size] = found
        return found


def _head(digits: int, size: int) -> bytes:
    field = PAYLOAD_SIZES[size]
    return _U32.pack(len(field) + digits) + field


def _key_head(behind: int, size: int) -> bytes:
    field = b"\x12" + encode_number(size)
    return _U32.pack(len(field) + size + behind) + field


def _metadata_size(digits: int, size: int) -> bytes:
    return _U32.pack(size + digits)


# Between a key and a sequence id's digits, by payload size.
PAYLOAD_SIZES = _BySize(lambda size: b"\x18" + encode_number(size) + b"\x40")
# Before a sequence id's digits, without a key, by payload size; before the metadata, by its size
# before these digits. There are at most nine of them.
HEADS = [_BySize(partial(_head, digits)) for digits in range(10)]
METADATA_SIZES = [_BySize(partial(_metadata_size, digits)) for digits in range(10)]
# Before a key, by its size. Behind it are two tags, and payload size and sequence id, each of
# up to nine digits.
KEY_HEADS = [_BySize(partial(_key_head, behind)) for behind in range(21)]


def encode_metadata(
    payload: bytes | None,
    sequence_id: int,
    properties: Sequence[tuple[str, str]],
    key: str | None,
    event_time: int,
    key_is_base64: bool,
    ordering_key: bytes | None,
    null_key: bool,
) -> bytes:
    """Return a message's metadata, with the same bytes as protobuf but faster.

    `payload` None is a null value. Raises InvalidRow for an event time out of range or text that is
    not valid Unicode.
    """
    if not 0 <= event_time <= _MAX_LONG:
        raise InvalidRow(f"{event_time} cannot be an event time in milliseconds")
    data = b""
    try:
        if properties:
            data = b"".join(b"\x0a" + sized(_pair(*pair)) for pair in properties)
        if key is not None:
            data += b"\x12" + sized(key.encode())
    except UnicodeEncodeError:
        raise InvalidRow("a key or property holds half of a surrogate pair") from None
    data += b"\x18" + encode_number(0 if payload is None else len(payload))
    if event_time:
        data += b"\x28" + encode_number(event_time)
    if key_is_base64 and key is not None:
        data += b"\x30\x01"
    if ordering_key is not None:
        data += b"\x3a" + sized(ordering_key)
    data += b"\x40" + encode_number(sequence_id)
    if payload is None:
        data += b"\x48\x01"
    if null_key:
        data += b"\x50\x01"
    return data


def _pair(name: str, value: str) -> bytes:
    return property_name(name) + b"\x12" + sized(value.encode())


@lru_cache(1024)
def property_name(name: str) -> bytes:
    """Return a KeyValue's first field; raises UnicodeEncodeError."""
    return b"\x0a" + sized(name.encode())


def sized(data: bytes) -> bytes:
    """Return bytes with their length before them, as in protobuf."""
    size = len(data)
    return (_FINAL[size] if size < 128 else encode_number(size)) + data
