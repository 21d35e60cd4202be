"""SingleMessageMetadata written without protobuf, which is too slow for every message.

Most of it has one of two shapes (in hex; numbers as protobuf writes them; the key is optional):

    [12 size key] 18 payload_size 40 sequence_id
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from struct import Struct

from pulsar_spark.errors import InvalidRow
from pulsar_spark.protocol.memo import Memo
from pulsar_spark.protocol.varints import encode_number, sized

_U32 = Struct(">I")
_MAX_LONG = 2**63 - 1


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
