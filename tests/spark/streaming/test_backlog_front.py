"""The front of one topic partition's backlog."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from pulsar_spark.engine.consumers.probe import FoundEntry
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.spark.streaming.backlog_front import (
    NOTHING,
    Allowance,
    Amount,
    Front,
    Steps,
)
from pulsar_spark.spark.streaming.entry_samples import EntryStatistics
from tests.spark.backlogs import Backlog

ALLOWED = Allowance(64, 4096, 1 << 20)


def run(backlog: Backlog, steps: Steps) -> None:
    answers: list[Sequence[FoundEntry]] | None = None
    while True:
        try:
            looks = next(steps) if answers is None else steps.send(answers)
        except StopIteration:
            return
        answers = [backlog.look(look) for look in looks]


def front(backlog: Backlog, start: Position = EARLIEST_POSITION) -> Front:
    made = Front(random.Random(0))
    made.begin(start, backlog.end)
    return made


def take(
    made: Front, backlog: Backlog, messages: float, size: float = math.inf, *, looks: int = 64
) -> None:
    limit, allowance = Amount(messages, size), ALLOWED._replace(looks=looks)
    run(backlog, made.read(limit, allowance))
    run(backlog, made.take(limit, allowance))


def test_an_amount_is_added_and_subtracted_by_both_of_its_parts() -> None:
    assert Amount(1, 2).plus(Amount(1, math.inf)) == Amount(2, math.inf)
    assert Amount(5, 5).minus(Amount(2, 9)) == Amount(3, 0)
    assert Amount(5, 5).within(Amount(5, math.inf))
    assert not Amount(5, 5).within(Amount(math.inf, 4))


def test_experience_forgets_slowly() -> None:
    found = EntryStatistics()
    assert (found.mean, found.deviation, found.mean_size) == (1.0, 0.0, 0.0)
    for _ in range(10_000):
        found.add(1000, 50)
    assert (found.mean, found.deviation, found.mean_size) == (1000.0, 0.0, 50.0)
    found.add(1, 1)
    assert (found.largest, found.largest_size) == (1000, 50)
    for _ in range(20_000):
        found.add(1, 1)
    assert found.mean < 20
    assert (found.largest, found.largest_size) == (1, 1)
    assert found.count < 5000


def test_nothing_to_read_takes_the_whole_range() -> None:
    backlog = Backlog([0, 0, 0])
    made = Front(random.Random(0))
    made.begin(EARLIEST_POSITION, Position(1, 3))
    take(made, backlog, 5)
    assert (made.cut, made.exhausted, made.used) == (Position(1, 3), True, NOTHING)


@pytest.mark.parametrize("indexed", [False, True])
def test_a_higher_limit_takes_more(indexed: bool) -> None:
    backlog = Backlog([2] * 100, per_ledger=30, indexed=indexed)
    made = front(backlog)
    for limit, cut in ((10, Position(1, 5)), (100, Position(4, 20)), (121, Position(7, 0, 1))):
        take(made, backlog, limit)
        assert made.cut == cut
        assert not made.exhausted
    take(made, backlog, 500)
    assert (made.cut, made.exhausted, made.used.messages) == (backlog.end, True, 200)


@pytest.mark.parametrize("indexed", [False, True])
def test_a_cut_inside_an_entry_tells_how_large_that_is(indexed: bool) -> None:
    backlog = Backlog([10] * 5, indexed=indexed)
    made = front(backlog)
    take(made, backlog, 24)
    assert (made.cut, made.batch_size) == (Position(1, 2, 4), 10)
    asked = backlog.asked
    made.begin(made.cut, backlog.end)
    assert made.first is not None
    assert made.first.remaining == 6
    take(made, backlog, 6)
    assert (made.cut, made.batch_size) == (Position(1, 3), 0)
    # That entry was known.
    assert backlog.asked == asked


def test_the_first_entry_is_taken_whatever_its_size() -> None:
    backlog = Backlog([10, 10])
    made = front(backlog)
    take(made, backlog, math.inf, 3)
    assert made.cut == EARLIEST_POSITION
    made.take_first(math.inf)
    assert (made.cut, made.used.messages, made.exhausted) == (Position(1, 1), 10, False)
    made.take_first(4)
    assert (made.cut, made.used.messages, made.batch_size) == (Position(1, 0, 4), 4, 10)


def test_a_start_behind_a_ledger_begins_in_the_next_one() -> None:
    backlog = Backlog([1] * 20, per_ledger=10)
    made = front(backlog, Position(1, 10))
    take(made, backlog, 4)
    assert made.cut == Position(4, 4)


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("messages", [10, 20])
def test_a_cut_between_ledgers_is_behind_an_entry(indexed: bool, messages: int) -> None:
    backlog = Backlog([1] * 40, per_ledger=10, indexed=indexed)
    found = front(backlog, Position(1, 0))
    take(found, backlog, messages)
    assert found.cut == Position({10: 1, 20: 4}[messages], 10)
    assert not found.exhausted


@pytest.mark.parametrize("per_ledger", [100, 7000])
@pytest.mark.parametrize("size", [1, 9])
@pytest.mark.parametrize("messages", [5000, 40_000])
def test_an_index_is_found_far_beyond_what_is_read(
    size: int, messages: int, per_ledger: int
) -> None:
    rng = random.Random(size)
    entries = [rng.randint(1, size) for _ in range(60_000)]
    backlog = Backlog(entries, indexed=True, per_ledger=per_ledger)
    made = front(backlog, Position(1, 0))
    take(made, backlog, messages)
    assert backlog.count(Position(1, 0), made.cut) == made.used.messages <= messages
    # A look finds the next ledger, not those behind it.
    assert made.used.messages == messages or per_ledger < 1000
    assert backlog.asked < 600


def test_without_looks_entries_are_taken_to_be_as_large_as_any_that_was_seen() -> None:
    backlog = Backlog([5, 5, 20, 5] * 200)
    made = front(backlog, Position(1, 0))
    run(backlog, made.read(Amount(1000, math.inf), Allowance(1, 64, 1 << 20)))
    run(backlog, made.take(Amount(1000, math.inf), Allowance(0, 64, 1 << 20)))
    # 64 entries have 560 messages; the others may have 20 each.
    assert made.cut == Position(1, 64 + (1000 - 560) // 20)
    # The same without any that was seen, but the last one.
    unseen = front(backlog, Position(1, 0))
    unseen.begin(Position(1, 0), backlog.end, 5)
    assert unseen.most(NOTHING) == Amount(5 * 800, math.inf)
    assert unseen.most(Amount(20, 7)) == Amount(20 * 800, 7 * 800)


def test_the_only_entry_is_known_by_the_last_message() -> None:
    made = Front(random.Random(0))
    made.begin(Position(1, 5), Position(1, 6), 30)
    assert made.most(Amount(100, 1)).messages == 30
    made.begin(Position(1, 5, 10), Position(1, 6), 30)
    assert made.most(Amount(100, 1)).messages == 20


def test_a_backlog_in_other_ledgers_may_have_any_number_of_messages() -> None:
    made = Front(random.Random(0))
    made.begin(Position(1, 5), Position(2, 6), 30)
    assert made.most(Amount(100, 1)) == Amount(math.inf, math.inf)
