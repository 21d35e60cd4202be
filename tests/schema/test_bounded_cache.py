"""What a process keeps for its next tasks."""

from __future__ import annotations

from pulsar_spark.schema.bounded_cache import BoundedCache


def test_as_many_as_fit_are_kept_in_whatever_order_they_are_used() -> None:
    cache = BoundedCache[int, str](100, 1000)
    made = 0
    for _ in range(5):
        for number in range(100):
            if cache.get(number) is None:
                made += 1
                cache.put(number, str(number), 10)
    assert made == 100


def test_neither_the_number_nor_the_size_exceeds_its_limit() -> None:
    cache = BoundedCache[int, bytes](10, 1000)
    for number in range(95):
        cache.put(number, b"", 1)
        assert len(cache) <= 10
    assert cache.get(94) == b""
    cache.clear()
    for number in range(10):
        cache.put(number, bytes(300), 300)
        assert len(cache) <= 3
        assert cache.get(number) == bytes(300)


def test_what_is_larger_than_the_whole_is_kept_alone() -> None:
    cache = BoundedCache[str, bytes](10, 100)
    cache.put("small", b"", 10)
    cache.put("large", bytes(101), 101)
    assert cache.get("large") == bytes(101)
    assert cache.get("small") is None
    cache.put("small", b"", 10)
    assert cache.get("small") == b""
    assert cache.get("large") is None
