"""SingleMessageMetadata written without protobuf, which is too slow for every message.

Most of it has one of two shapes (in hex; numbers as protobuf writes them; the key is optional):

    [12 size key] 18 payload_size 40 sequence_id
"""

from __future__ import annotations

from functools import lru_cache, partial
from struct import Struct

from pulsar_spark.protocol.memo import Memo
from pulsar_spark.protocol.varints import encode_number, sized

_U32 = Struct(">I")


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
