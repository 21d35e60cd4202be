"""The front of one topic partition's backlog."""

from __future__ import annotations

import math

import pytest

from pulsar_spark.engine.consumers.probe import FoundEntry
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.spark.streaming.backlog_front import (
    NOTHING,
    Amount,
    Front,
    Steps,
)
from pulsar_spark.spark.streaming.entry_samples import EntryStatistics
from tests.spark.backlogs import Backlog


def run(backlog: Backlog, steps: Steps) -> None:
    answers: list[FoundEntry | None] | None = None
    while True:
        try:
            asked = next(steps) if answers is None else steps.send(answers)
        except StopIteration:
            return
        answers = [backlog.ask(position) for position in asked]


def front(backlog: Backlog, start: Position = EARLIEST_POSITION, samples: int = 64) -> Front:
    made = Front(start, backlog.end, samples)
    run(backlog, made.look())
    return made


def test_an_amount_is_added_and_subtracted_by_both_of_its_parts() -> None:
    assert Amount(1, 2).plus(Amount(1, math.inf)) == Amount(2, math.inf)
    assert Amount(5, 5).minus(Amount(2, 9)) == Amount(3, 0)


def test_experience_forgets_slowly() -> None:
    found = EntryStatistics()
    assert (found.mean, found.deviation) == (1.0, 0.0)
    for _ in range(10_000):
        found.add(1)
    assert (found.mean, found.deviation) == (1.0, 0.0)
    for _ in range(10_000):
        found.add(1000)
    assert found.mean > 800
    assert found.count < 5000


def test_nothing_to_read_takes_the_whole_range() -> None:
    backlog = Backlog([0, 0, 0])
    made = Front(EARLIEST_POSITION, Position(1, 3), 8)
    run(backlog, made.look())
    run(backlog, made.take(Amount(5, math.inf)))
    assert (made.cut, made.exhausted, made.used) == (Position(1, 3), True, NOTHING)


@pytest.mark.parametrize("indexed", [False, True])
def test_a_higher_limit_takes_more(indexed: bool) -> None:
    backlog = Backlog([2] * 100, per_ledger=30, indexed=indexed)
    made = front(backlog)
    for limit, cut in ((10, Position(1, 5)), (100, Position(4, 20)), (61, Position(4, 0))):
        run(backlog, made.take(Amount(limit, math.inf)))
        assert made.cut[:2] == cut[:2]
        assert not made.exhausted
    run(backlog, made.take(Amount(500, math.inf)))
    assert (made.cut, made.exhausted, made.used.messages) == (backlog.end, True, 200)


@pytest.mark.parametrize("indexed", [False, True])
def test_a_cut_inside_an_entry_tells_how_large_that_is(indexed: bool) -> None:
    backlog = Backlog([10] * 5, indexed=indexed)
    made = front(backlog)
    run(backlog, made.take(Amount(24, math.inf)))
    assert (made.cut, made.batch_size) == (Position(1, 2, 4), 10)
    made = front(backlog, made.cut)
    assert made.first is not None
    assert made.first.remaining == 6
    run(backlog, made.take(Amount(6, math.inf)))
    assert (made.cut, made.batch_size) == (Position(1, 3), 0)


def test_the_first_entry_is_taken_whatever_its_size() -> None:
    backlog = Backlog([10, 10])
    made = front(backlog)
    run(backlog, made.take(Amount(math.inf, 3)))
    assert made.cut == EARLIEST_POSITION
    made.take_first(math.inf)
    assert (made.cut, made.used.messages, made.exhausted) == (Position(1, 1), 10, False)
    made.take_first(4)
    assert (made.cut, made.used.messages, made.batch_size) == (Position(1, 0, 4), 4, 10)


def test_a_start_behind_a_ledger_begins_in_the_next_one() -> None:
    backlog = Backlog([1] * 20, per_ledger=10)
    made = front(backlog, Position(1, 10))
    run(backlog, made.take(Amount(4, math.inf)))
    assert made.cut == Position(4, 4)


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("messages", [10, 20])
def test_a_cut_between_ledgers_is_behind_an_entry(indexed: bool, messages: int) -> None:
    backlog = Backlog([1] * 40, per_ledger=10, indexed=indexed)
    found = front(backlog, Position(1, 0))
    run(backlog, found.take(Amount(messages, math.inf)))
    assert found.cut == Position({10: 1, 20: 4}[messages], 10)
    assert not found.exhausted
