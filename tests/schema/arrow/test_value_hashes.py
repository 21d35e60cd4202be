"""Hashes of values: both implementations, whatever columns the values are in."""

from __future__ import annotations

import random
from collections.abc import Sequence
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.protocol.checksum import crc32c
from pulsar_spark.schema.arrow import value_hashes
from pulsar_spark.schema.arrow.byte_column import byte_values
from pulsar_spark.schema.arrow.value_hashes import (
    hash_column,
    hash_numbers,
    hash_values,
    mixed,
    python_hashes,
)

SEED = 0x0123456789ABCDEF
VALUES = [b"", b"a", None, b"\0", b"\xff" * 300, None, "ключ".encode()]
# Never to be changed: digests of rows are stored.
GOLDEN = {
    b"": 0xB2C058E4EBB5112C,
    b"a": 0xBE48FF36733E0983,
    b"\0": 0x87045F04C9FC5342,
    b"123456789": 0x6CAE9337E30136E6,
    b"\xff" * 300: 0x5B950BE0144AC7FB,
}
GOLDEN_NUMBERS = {
    0: 0xB2C058E4EBB5112C,
    1: 0x179533CFF272025A,
    1_700_000_000_000: 0x9700C1A6DD15E0A6,
    2**63 - 1: 0x933679864A51CED6,
}
MASK = 2**64 - 1

pytestmark = pytest.mark.usefixtures("each_implementation")


def one_by_one(values: Sequence[bytes | None], seed: int = SEED) -> list[int]:
    """Return hashes by the definition, with Python's numbers."""
    return [
        0
        if value is None
        else mix((crc32c(value) << 32 | crc32(value)) + len(value) * 0x9E3779B97F4A7C15 + seed)
        for value in values
    ]


def mix(word: int) -> int:
    word &= MASK
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ word >> 27) * 0x94D049BB133111EB & MASK
    return word ^ word >> 31


def test_hashes_are_what_they_always_were() -> None:
    assert hash_values(list(GOLDEN), SEED).to_pylist() == list(GOLDEN.values())
    numbers = pa.array(list(GOLDEN_NUMBERS), pa.int64())
    assert hash_numbers(numbers, SEED).to_pylist() == list(GOLDEN_NUMBERS.values())


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()], ids=str
)
@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("cut", [slice(None), slice(1, None), slice(3, 5), slice(2, 3), slice(0)])
def test_a_hash_does_not_depend_on_the_columns_type(
    kind: pa.DataType, encoded: bool, cut: slice
) -> None:
    texts = [None if value is None else value.replace(b"\xff", b"f") for value in VALUES]
    column = pa.array(texts, pa.binary()).cast(kind)
    column = column.dictionary_encode() if encoded else column
    found = hash_column(column[cut], SEED)
    assert found.type == pa.uint64()
    assert found.null_count == 0
    assert found.to_pylist() == one_by_one(texts[cut])


def test_bytes_behind_a_null_do_not_count() -> None:
    there = pa.array([True, False, True]).buffers()[1]
    _, offsets, data = pa.array([b"a", b"hidden", b"b"]).buffers()
    column = pa.Array.from_buffers(pa.binary(), 3, [there, offsets, data])
    assert hash_column(column, SEED).to_pylist() == one_by_one([b"a", None, b"b"])


def test_text_that_is_not_utf8_is_hashed_as_its_bytes() -> None:
    column = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff"]).buffers())
    assert hash_column(column, SEED).to_pylist() == one_by_one([b"a", b"\xff"])


@given(st.lists(st.none() | st.binary(max_size=600)), st.integers(0, MASK))
def test_both_implementations_follow_the_definition(values: list[bytes | None], seed: int) -> None:
    expected = one_by_one(values, seed)
    assert python_hashes(values, seed).to_pylist() == expected
    assert hash_values(values, seed).to_pylist() == expected
    assert hash_column(pa.array(values, pa.binary()), seed).to_pylist() == expected


def test_values_are_hashed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(1)
    values = [dice.randbytes(dice.choice([0, 1, 50, 5000])) for _ in range(300)]
    column = byte_values(pa.array([b"skipped", *values], pa.binary())[1:])
    for together in (1, 1000, 100_000, 10**9):
        monkeypatch.setattr(value_hashes, "_TOGETHER", together)
        assert hash_values(column, SEED).to_pylist() == one_by_one(values)


def test_numbers_are_mixed_one_to_one() -> None:
    words = [0, 1, 2, MASK, 1 << 63, SEED]
    assert mixed(pa.array(words, pa.uint64())).to_pylist() == [mix(word) for word in words]
    numbers = pa.array([0, 1, 2**63 - 1], pa.int64())
    expected = [mix(number + SEED) for number in numbers.to_pylist()]
    assert hash_numbers(numbers, SEED).to_pylist() == expected
