"""CRC32C against its published check values and a bit-by-bit implementation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.protocol.checksum import crc32c


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


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_several_buffers_count_as_one(parts: list[bytes]) -> None:
    joined = b"".join(parts)
    assert crc32c(*parts) == crc32c(joined) == bitwise_crc32c(joined)


def test_every_kind_of_buffer_is_taken() -> None:
    data = b"0123456789"
    assert crc32c(bytearray(data)) == crc32c(memoryview(b"x" + data)[1:]) == crc32c(data)


def test_nothing_has_checksum_zero() -> None:
    assert crc32c() == 0
