"""Hashes of values: both implementations, whatever columns the values are in."""

from __future__ import annotations

import random
from collections.abc import Sequence
from zlib import crc32

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.protocol import implementation
from pulsar_spark.schema.arrow import value_hashes
from pulsar_spark.schema.arrow.byte_column import byte_values
from pulsar_spark.schema.arrow.value_hashes import (
    hash_column,
    hash_numbers,
    hash_values,
    python_hashes,
)

SEED = 0x0123456789ABCDEF
VALUES = [b"", b"a", None, b"\0", b"\xff" * 300, None, "ключ".encode(), b"f" * 16, b"f" * 17]
# Never to be changed: digests of rows are stored.
GOLDEN = {
    b"": 0xB2C058E4EBB5112C,
    b"a": 0xCF2CC5DA79F12EDD,
    b"\0": 0x157A3807A48FAA9D,
    b"123456789": 0x769FCEB9CE346B42,
    b"1234567890123456": 0xDAC51B1508815061,
    b"12345678901234567": 0xF91AD3972B57118E,
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


def one_by_one(
    values: Sequence[bytes | None], seed: int = SEED, words: Sequence[int] | None = None
) -> list[int]:
    """Return hashes by the definition, with Python's numbers."""
    return [
        word if value is None else mix(told(value) + len(value) * 0x9E3779B97F4A7C15 + seed + word)
        for value, word in zip(values, words or [0] * len(values), strict=True)
    ]


def told(value: bytes) -> int:
    if len(value) > 16:
        return crc32c(value) << 32 | crc32(value)
    head, tail = (int.from_bytes(part, "little") for part in (value[:8], value[8:]))
    return head * 0xD6E8FEB86659FD93 + tail


def mix(word: int) -> int:
    word &= MASK
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ word >> 27) * 0x94D049BB133111EB & MASK
    return word ^ word >> 31


def test_hashes_are_what_they_always_were() -> None:
    assert hash_values(list(GOLDEN), SEED).to_pylist() == list(GOLDEN.values())
    numbers = pa.array(list(GOLDEN_NUMBERS), pa.int64())
    nothing = pa.array([0] * len(GOLDEN_NUMBERS), pa.uint64())
    assert hash_numbers(numbers, SEED, nothing).to_pylist() == list(GOLDEN_NUMBERS.values())


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


BINARY = st.binary(max_size=20) | st.binary(max_size=600)
HASHED = st.lists(st.tuples(st.none() | BINARY, st.integers(0, MASK)))


@given(HASHED, st.integers(0, MASK))
def test_both_implementations_follow_the_definition(
    hashed: list[tuple[bytes | None, int]], seed: int
) -> None:
    values = [value for value, _ in hashed]
    numbers = [word for _, word in hashed]
    column = pa.array(values, pa.binary())
    behind = pa.array([1, *numbers], pa.uint64())[1:]
    for words, onto in ((None, 0), ([SEED] * len(values), SEED), (numbers, behind)):
        expected = one_by_one(values, seed, words)
        assert python_hashes(values, seed, onto).to_pylist() == expected
        assert hash_values(values, seed, onto).to_pylist() == expected
        assert hash_column(column, seed, onto).to_pylist() == expected


def test_values_are_hashed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(1)
    values = [dice.randbytes(dice.choice([0, 1, 50, 5000])) for _ in range(300)]
    column = byte_values(pa.array([b"skipped", *values], pa.binary())[1:])
    words = [dice.getrandbits(64) for _ in values]
    for together in (1, 1000, 100_000, 10**9):
        monkeypatch.setattr(value_hashes, "_TOGETHER", together)
        found = hash_values(column, SEED, pa.array(words, pa.uint64()))
        assert found.to_pylist() == one_by_one(values, SEED, words)


def test_numbers_are_mixed_one_to_one() -> None:
    numbers, words = [0, 1, 2**63 - 1], [MASK, 0, SEED]
    found = hash_numbers(pa.array(numbers, pa.int64()), SEED, pa.array(words, pa.uint64()))
    expected = [mix(number + SEED + word) for number, word in zip(numbers, words, strict=True)]
    assert found.to_pylist() == expected


def test_there_is_a_word_for_each_value() -> None:
    if implementation.native is not None:
        with pytest.raises(ValueError, match="a word for each value"):
            implementation.native.hash_values([b"a", None], SEED, 0, bytes(15))
