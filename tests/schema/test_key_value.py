"""Splitting and joining payloads of key and value equals doing it row by row."""

from __future__ import annotations

import random
import struct
import time

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.schema.key_value import join_pairs, split_pairs

PART = st.none() | st.binary(max_size=20)
PAIRS = st.lists(st.none() | st.tuples(PART, PART), max_size=20)


def payload(key: bytes | None, value: bytes | None) -> bytes:
    return b"".join(
        struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
        for part in (key, value)
    )


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def by_hand(data: bytes) -> tuple[bytes | None, bytes | None] | None:
    parts: list[bytes | None] = []
    for _ in range(2):
        if len(data) < 4:
            return None
        (size,) = struct.unpack(">i", data[:4])
        data = data[4:]
        if size < -1 or size > len(data):
            return None
        parts.append(None if size == -1 else data[:size])
        data = data[max(size, 0) :]
    return None if data else (parts[0], parts[1])


@given(PAIRS)
def test_pairs_are_split_and_joined(pairs: list[tuple[bytes | None, bytes | None] | None]) -> None:
    payloads = [None if pair is None else payload(*pair) for pair in pairs]
    # A slice, like the rows of batches.
    keys, values, bad = split_pairs(binary(b"?", *payloads, b"?").slice(1, len(pairs)))
    for array in (keys, values):
        array.validate(full=True)
        assert array.type == pa.binary()
    assert not bad
    assert keys.to_pylist() == [pair and pair[0] for pair in pairs]
    assert values.to_pylist() == [pair and pair[1] for pair in pairs]
    joined = join_pairs(keys, values)
    joined.validate(full=True)
    assert joined.to_pylist() == [
        payload(None, None) if each is None else each for each in payloads
    ]


@given(PAIRS, st.integers(0, 5))
def test_slices_are_joined(
    pairs: list[tuple[bytes | None, bytes | None] | None], start: int
) -> None:
    keys = binary(*(pair and pair[0] for pair in pairs)).slice(start)
    values = binary(*(pair and pair[1] for pair in pairs)).slice(start)
    expected = [payload(*(pair or (None, None))) for pair in pairs[start:]]
    assert join_pairs(keys, values).to_pylist() == expected


@pytest.mark.fault(44)
@given(
    st.lists(
        st.none() | st.binary(max_size=12) | st.binary(max_size=8).map(lambda b: b"\0\0\0" + b)
    )
)
def test_any_bytes_are_a_pair_or_told_of(payloads: list[bytes | None]) -> None:
    check(payloads)


@pytest.mark.fault(44)
def test_damaged_payloads_are_a_pair_or_told_of() -> None:
    rng = random.Random(3)
    for _ in range(300):
        payloads: list[bytes | None] = []
        for _ in range(rng.randrange(1, 20)):
            data = bytearray(payload(rng.randbytes(rng.randrange(5)), rng.randbytes(3)))
            if rng.random() < 0.2:
                data[rng.randrange(len(data))] = rng.randrange(256)
            payloads.append(bytes(data[: len(data) - (rng.random() < 0.1)]))
        check(payloads)


def check(payloads: list[bytes | None]) -> None:
    keys, values, bad = split_pairs(binary(*payloads))
    expected = [None if data is None else by_hand(data) for data in payloads]
    assert keys.to_pylist() == [pair and pair[0] for pair in expected]
    assert values.to_pylist() == [pair and pair[1] for pair in expected]
    assert [each.row for each in bad] == [
        row
        for row, (data, pair) in enumerate(zip(payloads, expected, strict=True))
        if data is not None and pair is None
    ]
    assert all(each.reason and not each.field for each in bad)


@pytest.mark.fault(44)
@pytest.mark.parametrize(
    "data, told",
    [
        (b"", "before the key"),
        (b"\0\0\0\x05abc", "its key has 5 bytes, but 3 follow"),
        (b"\xff\xff\xff\xfe\0\0\0\0", "its key has -2 bytes"),
        (b"\x7f\xff\xff\xff\0\0\0\0", "its key has 2147483647 bytes"),
        (b"\x80\0\0\0\0\0\0\0", "its key has -2147483648 bytes"),
        (payload(b"k", b"v")[:-1], "its value has 1 bytes, but 0 follow"),
        (payload(b"k", None)[:-1] + b"\xfe", "its value has -2 bytes"),
        (b"\0\0\0\1k", "before the value"),
        (payload(b"k", b"v") + b"?", "1 bytes follow the value"),
        (payload(b"k", None) + b"?", "1 bytes follow the value"),
    ],
)
def test_an_invalid_pair_is_reported_and_the_others_are_decoded(data: bytes, told: str) -> None:
    good = payload(b"k", b"v")
    keys, values, bad = split_pairs(binary(good, data, None, good))
    assert keys.to_pylist() == [b"k", None, None, b"k"]
    assert values.to_pylist() == [b"v", None, None, b"v"]
    assert [each.row for each in bad] == [1]
    assert told in bad[0].reason


def test_many_pairs_take_little_time() -> None:
    raw = binary(*[payload(b"key", b"some value")] * 1_000_000)
    started = time.process_time()
    keys, values, bad = split_pairs(raw)
    joined = join_pairs(keys, values)
    # Row by row it takes more than ten seconds; this takes a tenth of a second.
    assert time.process_time() - started < 5
    assert joined.equals(raw)
    assert not bad
