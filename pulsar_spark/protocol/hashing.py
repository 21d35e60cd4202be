"""Hash functions that map keys to partitions, identical to those of the Java client.

Results have 31 bits; the partition is the hash modulo the number of partitions. A bytes key is
hashed as its base64 text.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

_MASK31 = 0x7FFFFFFF
_MASK32 = 0xFFFFFFFF

# Keys repeat, and every row is routed: cache the hashes of short keys. Both limits keep a cache
# below about 1 MiB.
CACHED_LENGTH = 64
"""Nobody keeps what longer keys are mapped to: a cache of many would take gigabytes."""
_CACHED_KEYS = 8192

# Horner's rule over bytes is a loop in Python, but `int(digits, 31)` is the same sum in C.
# Digits go up to 30 only, so a byte is split into a quotient and a remainder by 31.
_DIGITS = b"0123456789abcdefghijklmnopqrstu"
_REMAINDERS = bytes(_DIGITS[byte % 31] for byte in range(256))
_QUOTIENTS = bytes(_DIGITS[byte // 31] for byte in range(256))
# int() takes quadratic time and refuses more than 4,300 digits: hash long keys in blocks.
_BLOCK = 512
_BLOCK_FACTOR = pow(31, _BLOCK, 2**32)
# Below this many bytes the plain loop is faster.
_LOOP_LENGTH = 8


def java_string_hash(key: str) -> int:
    """Return Java's `String.hashCode` of `key`, with 31 bits: the scheme JavaStringHash.

    It uses UTF-16 code units. Lone surrogates count as in Java.
    """
    if len(key) <= CACHED_LENGTH:
        return _java_cached(key)
    return _java_hash(key)


def murmur3_32(data: bytes) -> int:
    """Return MurmurHash3 (x86, 32 bits, seed 0) with 31 bits: the scheme Murmur3_32Hash."""
    if len(data) <= CACHED_LENGTH:
        return _murmur_cached(bytes(data))
    return _murmur(data)


def sticky_slot(data: bytes) -> int:
    """Return the hash slot, 1 to 65535, of a key on Key_Shared subscriptions."""
    return murmur3_32(data) % 65536 or 1


def _java_hash(key: str) -> int:
    if key.isascii():
        return _horner31(key.encode()) & _MASK31
    units = key.encode("utf-16-be", "surrogatepass")
    return (256 * _horner31(units[0::2]) + _horner31(units[1::2])) & _MASK31


def _horner31(data: bytes) -> int:
    """Return the sum of data[i] * 31^(len - 1 - i), correct modulo 2^32."""
    if len(data) < _LOOP_LENGTH:
        value = 0
        for byte in data:
            value = value * 31 + byte
        return value
    if len(data) <= _BLOCK:
        return int(data.translate(_REMAINDERS), 31) + 31 * int(data.translate(_QUOTIENTS), 31)
    # The short block comes first, so that all other blocks have the same factor.
    head = len(data) % _BLOCK
    value = _horner31(data[:head])
    for start in range(head, len(data), _BLOCK):
        value = (value * _BLOCK_FACTOR + _horner31(data[start : start + _BLOCK])) & _MASK32
    return value


_java_cached = lru_cache(_CACHED_KEYS)(_java_hash)

_WORD = Struct("<I")


def _murmur(data: bytes) -> int:
    size = len(data)
    whole = size & ~3
    value = 0
    for (word,) in _WORD.iter_unpack(data[:whole]):
        scrambled = word * 0xCC9E2D51 & _MASK32
        # Bits above the 32nd do not reach the masked product, so the rotation needs no mask.
        value ^= (scrambled << 15 | scrambled >> 17) * 0x1B873593 & _MASK32
        value = ((value << 13 | value >> 19) * 5 + 0xE6546B64) & _MASK32
    if whole != size:
        scrambled = int.from_bytes(data[whole:], "little") * 0xCC9E2D51 & _MASK32
        value ^= (scrambled << 15 | scrambled >> 17) * 0x1B873593 & _MASK32
    value ^= size
    value = (value ^ value >> 16) * 0x85EBCA6B & _MASK32
    value = (value ^ value >> 13) * 0xC2B2AE35 & _MASK32
    return (value ^ value >> 16) & _MASK31


_murmur_cached = lru_cache(_CACHED_KEYS)(_murmur)
