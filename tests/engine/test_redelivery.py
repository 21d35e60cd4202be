"""When entries are due for redelivery."""

from __future__ import annotations

import queue

import pytest

from pulsar_spark.engine.consumers.acknowledgments import EntryKey
from pulsar_spark.engine.consumers.outstanding import DueEntries
from pulsar_spark.engine.options import RedeliveryBackoff
from pulsar_spark.engine.timers import Timers
from pulsar_spark.errors import OptionError
from pulsar_spark.protocol.message_id import Position

DueQueue = queue.SimpleQueue[list[EntryKey]]


@pytest.fixture
def due_entries() -> DueQueue:
    return queue.SimpleQueue()


def test_what_is_due_together_comes_together_and_once(
    timers: Timers, due_entries: DueQueue
) -> None:
    due = DueEntries(timers, 0.1, due_entries.put)
    for entry in range(100):
        due.put((1, entry), 0.05)
    found: list[EntryKey] = []
    while len(found) < 100:
        found += due_entries.get(timeout=30)
    assert sorted(found) == [(1, entry) for entry in range(100)]
    assert not len(due)


def test_what_is_done_does_not_come(timers: Timers, due_entries: DueQueue) -> None:
    due = DueEntries(timers, 0.1, due_entries.put)
    for entry in range(5):
        due.put((1, entry), 0.05)
    due.discard((1, 4))
    due.discard_before(Position(1, 2, 3))
    due.put((2, 0), 0.2)
    found: list[EntryKey] = []
    while (2, 0) not in found:
        found += due_entries.get(timeout=30)
    assert sorted(found) == [(1, 2), (1, 3), (2, 0)]


def test_the_last_word_on_an_entry_counts(timers: Timers, due_entries: DueQueue) -> None:
    due = DueEntries(timers, 0.1, due_entries.put)
    due.put((1, 0), 3600)
    due.put((1, 1), 0.01)
    due.put((1, 0), 0.01)
    found = due_entries.get(timeout=30)
    while len(found) < 2:
        found += due_entries.get(timeout=30)
    assert sorted(found) == [(1, 0), (1, 1)]
    due.put((1, 2), 0.01)
    due.close()
    due.put((1, 3), 0.01)
    assert not len(due)
    assert not timers.waiting


def test_pauses_grow_to_their_limit() -> None:
    backoff = RedeliveryBackoff(1.0, 60.0, 2.0)
    assert [backoff.delay(count) for count in (0, 1, 5, 6, 1000)] == [1, 2, 32, 60, 60]
    with pytest.raises(OptionError):
        RedeliveryBackoff(factor=0.5)
