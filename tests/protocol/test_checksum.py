"""CRC32C against its published check values and a bit-by-bit implementation."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st


def bitwise_crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    "data, expected",
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_known_values(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_a_checksum_can_be_continued(head: bytes, rest: bytes) -> None:
    assert crc32c(rest, crc32c(head)) == bitwise_crc32c(head + rest)


def test_every_kind_of_buffer_is_taken() -> None:
    data = b"0123456789"
    assert crc32c(bytearray(data)) == crc32c(memoryview(b"x" + data)[1:]) == crc32c(data)
