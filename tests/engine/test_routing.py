"""Routing: keys as in the official clients, other messages in runs."""

from __future__ import annotations

import random
from base64 import b64encode
from collections import Counter

import pytest

from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.routing import (
    JAVA_STRING_HASH,
    MURMUR3_32_HASH,
    PartitionRouter,
)
from pulsar_spark.errors import OptionError
from pulsar_spark.protocol.hashing import CACHED_LENGTH

# Printed by the Java client's hash classes: key, java mod 4, murmur mod 4. A bytes key is base64.
VECTORS: list[tuple[str | bytes, int, int]] = [
    ("", 0, 0),
    ("a", 1, 2),
    ("key", 3, 0),
    ("user-1", 3, 3),
    ("clé-ü", 3, 3),
    ("鍵", 1, 0),
    ("apple", 2, 0),
    ("banana", 1, 3),
    ("😀", 3, 2),
    ("0123456789abcdef", 0, 3),
    (bytes.fromhex("0001fe"), 3, 1),
    (b"\xff", 0, 1),
    (bytes.fromhex("00000007"), 1, 3),
]


def utf8(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else b64encode(key)


@pytest.mark.parametrize("key,java,murmur", VECTORS)
def test_a_key_goes_to_the_partition_of_the_java_client(
    key: str | bytes, java: int, murmur: int
) -> None:
    assert PartitionRouter(4).partition_of(utf8(key)) == java
    assert PartitionRouter(4, hashing_scheme="Murmur3_32Hash").partition_of(utf8(key)) == murmur


def test_a_column_of_keys_is_routed_as_its_keys_are_also_when_partitions_are_added() -> None:
    keys = [utf8(key) for key, _, _ in VECTORS] * 3
    router = PartitionRouter(97)
    for _ in range(2):
        assert router.route(keys) == [router.partition_of(key) for key in keys]
    router.grow(98)
    assert router.route(keys) == [PartitionRouter(98).partition_of(key) for key in keys]


@pytest.mark.parametrize("scheme", [JAVA_STRING_HASH, MURMUR3_32_HASH])
def test_long_keys_are_not_kept_and_each_is_hashed_once_for_a_column(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = PartitionRouter(7, hashing_scheme=scheme)
    hashed: list[bytes] = []
    own = router._hash

    def counted(key: bytes) -> int:
        hashed.append(key)
        return own(key)

    monkeypatch.setattr(router, "_hash", counted)
    short = [b"s%d" % number for number in range(10)]
    long = [b"l%d" % number * 100 for number in range(10)]
    for _ in range(3):
        hashed.clear()
        routes = router.route([*short, *long] * 20)
        assert routes == [own(key) % 7 for key in (*short, *long)] * 20
        assert sorted(set(hashed)) == sorted(hashed)
        assert set(long) <= set(hashed)
    assert not set(short) & set(hashed)
    assert sum(len(key) for key in router._cache if key is not None) <= 10 * CACHED_LENGTH


def test_the_longest_key_that_is_kept_is_as_long_as_its_limit() -> None:
    router = PartitionRouter(7)
    router.route([b"k" * CACHED_LENGTH, b"k" * (CACHED_LENGTH + 1)])
    assert [*router._cache] == [b"k" * CACHED_LENGTH]


def test_messages_without_a_key_take_turns_by_runs() -> None:
    router = PartitionRouter(3, run_length=2, rng=random.Random(1))
    first = router.current
    expected = [(first + run) % 3 for run in (0, 0, 1, 1, 2, 2, 0)]
    assert router.route([None] * 7) == expected


def test_the_next_partition_has_its_turn_when_a_batch_ends_early() -> None:
    router = PartitionRouter(3, run_length=10)
    first = router.next_unkeyed()
    router.advance()
    assert router.next_unkeyed() == (first + 1) % 3


def test_a_run_goes_on_over_messages_with_a_key() -> None:
    router = PartitionRouter(2, run_length=3)
    first = router.current
    assert router.route([None, b"a", None, b"a", None, None]) == [
        first,
        1,
        first,
        1,
        first,
        1 - first,
    ]


def test_single_partition_mode_keeps_messages_without_a_key_together() -> None:
    router = PartitionRouter(5, routing_mode="SinglePartition")
    assert len(set(router.route([None] * 20))) == 1
    router.advance()
    assert router.next_unkeyed() == router.current
    assert router.partition_of(b"a") == PartitionRouter(5).partition_of(b"a")


def test_many_writers_begin_at_different_partitions() -> None:
    starts = Counter(PartitionRouter(4).current for _ in range(200))
    assert len(starts) == 4


@pytest.mark.parametrize("partitions", [0, 1])
def test_a_topic_with_one_partition_needs_no_hash(partitions: int) -> None:
    router = PartitionRouter(partitions)
    assert router.route([b"a", None, b""]) == [0, 0, 0]
    assert router.partition_of(b"a") == 0


def test_an_unknown_scheme_or_mode_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(OptionError, match="Murmur3_32Hash"):
        ProducerOptions(hashing_scheme="Boost")
    with pytest.raises(OptionError, match="SinglePartition"):
        ProducerOptions(routing_mode="Custom")
