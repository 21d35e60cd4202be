"""Ranges split into pieces by asking for first entries."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_spark.engine.consumers.probe import EntryCount
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.spark.reading.range_splitter import Question, split_ranges


class Topics:
    """Topics as lists of (ledger, entry), which answer like a broker."""

    def __init__(self, **topics: list[tuple[int, int]]) -> None:
        self.topics = {name: sorted(entries) for name, entries in topics.items()}
        self.asked = 0
        self.rounds = 0

    def ask(self, questions: Sequence[Question]) -> list[EntryCount]:
        self.asked += len(questions)
        self.rounds += 1
        assert self.rounds < 1000
        return [self._count(topic, position) for topic, position in questions]

    def _count(self, topic: str, position: Position) -> EntryCount:
        entries = self.topics[topic]
        index = bisect_left(entries, (position.ledger_id, position.entry_id))
        before = Position(*entries[index - 1]) if index else Position(entries[0][0], -1)
        return EntryCount(before, len(entries) - index)

    def end(self, topic: str) -> Position:
        ledger, entry = self.topics[topic][-1]
        return Position(ledger, entry + 1)


def ledger(ledger_id: int, count: int) -> list[tuple[int, int]]:
    return [(ledger_id, entry) for entry in range(count)]


def sizes(topics: Topics, topic: str, pieces: list[tuple[Position, Position]]) -> list[int]:
    entries = topics.topics[topic]
    return [
        bisect_left(entries, end[:2]) - bisect_left(entries, start[:2]) for start, end in pieces
    ]


def split(
    topics: Topics,
    each: int = 1,
    in_all: int = 1,
    start: Position = EARLIEST_POSITION,
    first: Position | None = None,
) -> list[list[tuple[Position, Position]]]:
    ranges = [(name, start, topics.end(name), first) for name in topics.topics]
    pieces = split_ranges(ranges, each, in_all, topics.ask)
    for (_, begin, end, _), parts in zip(ranges, pieces, strict=True):
        assert parts[0][0] == begin
        assert parts[-1][1] == end
        assert all(left[1] == right[0] for left, right in pairwise(parts))
        assert all(low < high for low, high in parts)
    return pieces


def test_nothing_is_asked_where_nothing_is_to_be_split() -> None:
    topics = Topics(a=ledger(1, 100), b=ledger(2, 5))
    assert [len(parts) for parts in split(topics, 1, 2)] == [1, 1]
    assert topics.asked == 0


def test_one_ledger_is_cut_evenly_by_its_ids_alone() -> None:
    topics = Topics(a=ledger(7, 1000))
    (pieces,) = split(topics, 4)
    assert sizes(topics, "a", pieces) == [250, 250, 250, 250]
    assert topics.asked == 2
    (pieces,) = split(topics, 4, first=Position(7, 0))
    assert sizes(topics, "a", pieces) == [250, 250, 250, 250]
    (pieces,) = split(topics, 4, start=Position(7, 200))
    assert sizes(topics, "a", pieces) == [200, 200, 200, 200]
    assert topics.asked == 2


def test_several_ledgers_are_cut_evenly() -> None:
    topics = Topics(a=[*ledger(3, 5000), *ledger(9, 100), *ledger(10, 1), *ledger(40, 20_000)])
    (pieces,) = split(topics, 5)
    assert sizes(topics, "a", pieces) == [5020, 5020, 5020, 5020, 5021]
    (pieces,) = split(topics, 5, start=Position(3, 4000))
    assert set(sizes(topics, "a", pieces)) == {4220, 4221}
    assert topics.asked < 30


@pytest.mark.parametrize("parts", [4, 100])
@pytest.mark.parametrize("ledgers", [10, 100, 1000, 10_000])
@pytest.mark.parametrize("uneven", [False, True])
def test_any_number_of_ledgers_is_cut_evenly_with_a_few_questions_a_part(
    ledgers: int, parts: int, uneven: bool
) -> None:
    rng = random.Random(1)
    number, entries = 0, []
    for _ in range(ledgers):
        number += rng.choice([1, 2, 100, 5000]) if uneven else 3
        entries += ledger(number, rng.choice([1, 3, 40]) if uneven else 10)
    topics = Topics(a=entries)
    (pieces,) = split(topics, parts)
    found = sizes(topics, "a", pieces)
    assert len(found) == parts
    assert max(found) - min(found) <= 1
    assert topics.asked <= 30 * parts
    assert topics.rounds < 40


@pytest.mark.parametrize("count", [1, 10, 100])
def test_all_topics_are_asked_about_at_once(count: int) -> None:
    topics = Topics(
        **{f"t{n}": [e for i in range(50) for e in ledger(7 * i, 20)] for n in range(count)}
    )
    pieces = split(topics, 3)
    assert {len(parts) for parts in pieces} == {3}
    assert topics.rounds < 20
    assert topics.asked <= 30 * count


def test_a_topic_that_grows_meanwhile_is_cut_evenly() -> None:
    topics = Topics(a=[entry for number in range(60) for entry in ledger(number, 50)])
    end = topics.end("a")

    def growing(questions: Sequence[Question]) -> list[EntryCount]:
        last, count = topics.topics["a"][-1]
        topics.topics["a"] += [(last, count + 1 + more) for more in range(3000)]
        return topics.ask(questions)

    (pieces,) = split_ranges([("a", EARLIEST_POSITION, end, None)], 6, 1, growing)
    assert sizes(topics, "a", pieces) == [500] * 6


def test_holes_in_the_ids_are_no_harm() -> None:
    topics = Topics(a=[(1, entry) for entry in range(0, 9000, 7)] + ledger(2, 3))
    (pieces,) = split(topics, 3)
    assert sum(sizes(topics, "a", pieces)) == 1286 + 3
    assert len(pieces) == 3


def test_there_are_no_more_pieces_than_entries() -> None:
    topics = Topics(a=ledger(1, 2), b=ledger(2, 1))
    assert [len(parts) for parts in split(topics, 10)] == [2, 1]


def test_the_least_number_of_pieces_is_reached_by_cutting_the_largest() -> None:
    topics = Topics(a=ledger(1, 10_000), b=ledger(2, 10), c=ledger(3, 5000), d=ledger(4, 1))
    pieces = split(topics, 1, 12)
    counts = [len(parts) for parts in pieces]
    assert sum(counts) == 12
    assert counts[0] > counts[2] > counts[1] == counts[3] == 1


def test_a_range_that_starts_and_ends_inside_of_entries_keeps_its_ends() -> None:
    topics = Topics(a=ledger(1, 100))
    start, end = Position(1, 10, 3), Position(1, 90, 2)
    (pieces,) = split_ranges([("a", start, end, None)], 2, 1, topics.ask)
    assert pieces == [(start, Position(1, 50)), (Position(1, 50), end)]


def test_a_range_without_entries_stays_whole() -> None:
    topics = Topics(a=ledger(1, 100))
    whole = (Position(5, 0), Position(6, 0))
    assert split_ranges([("a", *whole, None)], 3, 1, topics.ask) == [[whole]]


@pytest.mark.parametrize("before", [None, Position(-1, -1), Position(1, 0), Position(2**62, 7)])
@pytest.mark.parametrize("entries", [0, 1, 2**40])
@pytest.mark.parametrize("falls", [False, True])
def test_a_broker_that_answers_anything_does_not_hold_the_planning_up(
    before: Position | None, entries: int, falls: bool
) -> None:
    asked = 0

    def ask(questions: Sequence[Question]) -> list[EntryCount]:
        nonlocal asked
        asked += len(questions)
        return [
            EntryCount(before, entries * (2 - falls * index)) for index in range(len(questions))
        ]

    (pieces,) = split_ranges([("a", EARLIEST_POSITION, Position(9, 9), None)], 3, 1, ask)
    assert pieces[0][0] == EARLIEST_POSITION
    assert pieces[-1][1] == Position(9, 9)
    assert all(left[1] == right[0] for left, right in pairwise(pieces))
    assert asked < 500


@pytest.mark.fault(63)
@settings(max_examples=200)
@given(
    st.dictionaries(
        st.integers(0, 50), st.sets(st.integers(0, 3000), min_size=1, max_size=40), min_size=1
    ),
    st.integers(1, 12),
    st.integers(1, 30),
)
def test_every_entry_is_in_exactly_one_piece(
    ledgers: dict[int, set[int]], each: int, in_all: int
) -> None:
    entries = [(number, entry) for number, found in ledgers.items() for entry in found]
    topics = Topics(a=entries)
    (pieces,) = split(topics, each, in_all)
    assert sum(sizes(topics, "a", pieces)) == len(entries)
