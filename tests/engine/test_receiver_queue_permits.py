from __future__ import annotations

import random

from pulsar_spark.engine.consumers.receiver_queue import BLOCK_OVERHEAD, Permits
from pulsar_spark.engine.memory import ReceiverBudget
from pulsar_spark.engine.options import MIB, ReaderOptions

MAX_MESSAGE = 5 * MIB


def permits(**options: object) -> Permits:
    given = ReaderOptions(**options)  # type: ignore[arg-type]
    found = Permits(given, ReceiverBudget(given.memory_budget))
    found.begin(MAX_MESSAGE)
    return found


def test_the_first_permits_fit_the_memory_if_all_messages_are_as_large_as_allowed() -> None:
    assert permits().outstanding == 12
    assert permits(memory_budget=MIB).outstanding == 1
    assert permits(memory_budget=64 * MIB, receiver_queue_size=5).outstanding == 5


def test_small_messages_in_large_batches_get_hundreds_of_thousands() -> None:
    found = permits()
    assert found.consumed(1000, 105_000) > 200_000
    assert 200_000 < found.outstanding < 64 * MIB / 100


def test_large_messages_get_few() -> None:
    found = permits()
    for _ in range(100):
        found.consumed(1, MAX_MESSAGE)
        assert found.outstanding * MAX_MESSAGE <= 64 * MIB


def test_without_scaling_the_queue_size_is_the_bound() -> None:
    found = permits(auto_scale=False, receiver_queue_size=100)
    for _ in range(1000):
        found.consumed(1, 10)
        assert 0 < found.outstanding <= 100


def test_permits_are_given_again_at_half() -> None:
    found = permits(auto_scale=False, receiver_queue_size=100)
    found.consumed(1, 10)
    given = [found.consumed(1, 10) for _ in range(200)]
    assert set(given) == {0, 50}
    assert given.index(50) in range(45, 50)


def test_a_broker_that_sent_more_than_it_might_is_waited_for() -> None:
    found = permits()
    # Twelve permits were used by twelve entries of a thousand messages.
    total = found.outstanding + sum(found.consumed(1000, 105_000) for _ in range(12))
    assert found.outstanding == total - 12_000
    assert found.outstanding > 100_000


def test_permits_are_given_for_the_sizes_seen_lately() -> None:
    rng = random.Random(7)
    found = permits()
    largest = 0.0
    for _ in range(5000):
        size = int(10 ** rng.uniform(1, 6))
        largest = max(size, largest * 0.9)
        if found.consumed(1, size):
            assert found.outstanding * largest <= 64 * MIB


def test_tiny_blocks_count_with_what_their_objects_cost() -> None:
    found = permits()
    for _ in range(100):
        found.consumed(1, 1)
    assert found.outstanding * BLOCK_OVERHEAD <= 64 * MIB


def test_a_new_consumer_begins_with_what_is_known() -> None:
    found = permits()
    found.consumed(1000, 105_000)
    assert found.begin(MAX_MESSAGE) > 200_000
