"""Key hashes against values printed by the Java client 4.0.8 and slow, separate implementations."""

from __future__ import annotations

import base64
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.protocol.hashing import java_string_hash, murmur3_32, sticky_slot

# (key, JavaStringHash, mod 4, Murmur3_32Hash, mod 4, Key_Shared slot)
VECTORS = [
    ("", 0, 0, 0, 0, 1),
    ("a", 97, 1, 1009084850, 2, 27058),
    ("key", 106079, 3, 1654417988, 0, 27204),
    ("user-1", 1311451823, 3, 2023917411, 3, 34659),
    ("clé-ü", 94871567, 3, 1105370823, 3, 40647),
    ("鍵", 37749, 1, 1288634188, 0, 65356),
    ("apple", 93029210, 2, 1880549520, 0, 59536),
    ("banana", 751128421, 1, 1969367983, 3, 11183),
    ("😀", 1772899, 3, 1051995898, 2, 12026),
    ("0123456789abcdef", 285443752, 0, 919068895, 3, 57567),
]
# The same for keys of bytes, which are hashed as base64 text.
BYTES_VECTORS = [
    ("0001fe", 2001155, 3, 2028688493, 1, 63895),
    ("ff", 1516488, 0, 915668409, 1, 61709),
    ("00000007", 1094725397, 1, 1488517619, 3, 57340),
]


@pytest.mark.parametrize("key, java, java4, murmur, murmur4, slot", VECTORS)
def test_string_keys_hash_as_in_java(
    key: str, java: int, java4: int, murmur: int, murmur4: int, slot: int
) -> None:
    assert (java_string_hash(key), java_string_hash(key) % 4) == (java, java4)
    assert (murmur3_32(key.encode()), murmur3_32(key.encode()) % 4) == (murmur, murmur4)
    assert sticky_slot(key.encode()) == slot


@pytest.mark.parametrize("key, java, java4, murmur, murmur4, slot", BYTES_VECTORS)
def test_bytes_keys_hash_as_their_base64_text(
    key: str, java: int, java4: int, murmur: int, murmur4: int, slot: int
) -> None:
    text = base64.b64encode(bytes.fromhex(key)).decode()
    assert (java_string_hash(text), java_string_hash(text) % 4) == (java, java4)
    assert (murmur3_32(text.encode()), murmur3_32(text.encode()) % 4) == (murmur, murmur4)
    assert sticky_slot(bytes.fromhex(key)) == slot


def slow_java_hash(key: str) -> int:
    value = 0
    for char in key:
        code = ord(char)
        units = [code]
        if code > 0xFFFF:
            units = [0xD800 + (code - 0x10000 >> 10), 0xDC00 + (code - 0x10000 & 0x3FF)]
        for unit in units:
            value = (31 * value + unit) % 2**32
    return value % 2**31


def slow_murmur(data: bytes) -> int:
    def rotate(word: int, by: int) -> int:
        return int(f"{word:032b}"[by:] + f"{word:032b}"[:by], 2)

    def scramble(block: bytes) -> int:
        word = sum(byte << 8 * i for i, byte in enumerate(block))
        return rotate(word * 0xCC9E2D51 % 2**32, 15) * 0x1B873593 % 2**32

    value = 0
    rest = len(data) - len(data) % 4
    for i in range(0, rest, 4):
        value = (rotate(value ^ scramble(data[i : i + 4]), 13) * 5 + 0xE6546B64) % 2**32
    value ^= scramble(data[rest:]) ^ len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        value = (value ^ value >> shift) * factor % 2**32
    return (value ^ value >> 16) % 2**31


@given(st.text(max_size=100) | st.text(st.characters(max_codepoint=127), max_size=100))
def test_java_string_hash_equals_a_plain_loops(key: str) -> None:
    assert java_string_hash(key) == slow_java_hash(key)


@given(st.binary(max_size=100))
def test_murmur_equals_a_plain_loops(data: bytes) -> None:
    assert murmur3_32(data) == slow_murmur(data)
    assert 1 <= sticky_slot(data) <= 65535


@pytest.mark.parametrize("size", [64, 65, 511, 512, 513, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("alphabet", ["abc\x7f\x00", "aé鍵😀"])
def test_long_keys_hash_block_by_block_to_the_same(size: int, alphabet: str) -> None:
    key = "".join(random.Random(size).choices(alphabet, k=size))
    assert java_string_hash(key) == slow_java_hash(key)
    assert murmur3_32(key.encode()) == slow_murmur(key.encode())


def test_a_key_of_one_mebibyte_is_hashed() -> None:
    key = "k" * 2**20
    assert java_string_hash(key) == slow_java_hash(key)


def test_half_a_surrogate_pair_counts_as_one_unit() -> None:
    assert java_string_hash("\ud83d") == 0xD83D
