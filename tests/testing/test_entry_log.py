"""Entries keep their order and ids across ledgers, gaps and trimming."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.testing.entry_log import Entry, EntryLog, Place, Usage


def entry(size: int = 1, *, messages: int = 0, publish_time: int = 0) -> Entry:
    return Entry(bytes(size), messages, publish_time, 0)


def new_log(max_entries: int = 1000, first_ledger: int = 1, usage: Usage | None = None) -> EntryLog:
    return EntryLog(itertools.count(first_ledger).__next__, max_entries, usage)


def filled(count: int, max_entries: int = 1000) -> EntryLog:
    log = new_log(max_entries)
    for _ in range(count):
        log.append(entry())
    return log


def places(log: EntryLog, start: Place = (-1, -1)) -> list[Place]:
    return [each.place for each in log.walk(start)]


def test_entry_ids_restart_in_each_ledger() -> None:
    log = filled(5, max_entries=2)
    assert places(log) == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]
    assert log.ledger_ids == (1, 2, 3)
    assert log.end_place() == (3, 1)


def test_index_counts_messages_and_is_that_of_the_last_one() -> None:
    log = new_log()
    for messages in (0, 3, 2):
        log.append(entry(messages=messages))
    assert [each.index for each in log.walk((-1, -1))] == [0, 3, 5]
    assert [each.last_batch_index for each in log.walk((-1, -1))] == [-1, 2, 1]


def test_rolling_an_unused_ledger_replaces_it() -> None:
    log = new_log()
    log.roll()
    assert list(log.ledger_ids) == [2]
    log.append(entry())
    log.roll()
    assert list(log.ledger_ids) == [2, 3]
    assert log.first_place() == (2, 0)


@pytest.mark.parametrize(
    "start,expected",
    [
        ((-1, -1), (1, 0)),
        ((1, 1), (1, 1)),
        ((1, 2), (2, 0)),
        ((1, 1000), (2, 0)),
        ((0, 7), (1, 0)),
        ((2, 2), None),
        ((9, 0), None),
    ],
)
def test_next_entry_is_found_over_ledgers(start: Place, expected: Place | None) -> None:
    found = filled(4, max_entries=2).next_at(start)
    assert (found and found.place) == expected


def test_gaps_use_up_ids_and_hold_nothing() -> None:
    log = filled(1)
    log.skip(3)
    log.append(entry())
    assert places(log) == [(1, 0), (1, 4)]
    assert log.get((1, 2)) is None
    assert log.entries == 2
    assert log.count_from((1, 1)) == 1
    found = log.last()
    assert found is not None
    assert found.place == (1, 4)


def test_last_entry_skips_gaps_and_empty_ledgers() -> None:
    log = filled(2)
    log.skip(1)
    log.roll()
    found = log.last()
    assert found is not None
    assert found.place == (1, 1)
    assert new_log().last() is None


def test_trimming_frees_bytes_and_keeps_later_ids() -> None:
    usage = Usage()
    log = new_log(2, usage=usage)
    for _ in range(5):
        log.append(entry(10))
    assert usage.stored_bytes == log.size == 50
    assert log.trim((2, 1)) == 30
    assert places(log) == [(2, 1), (3, 0)]
    assert log.first_place() == (2, 1)
    assert usage.stored_bytes == log.size == 20
    log.trim(log.end_place())
    assert places(log) == []
    assert log.last() is None
    assert log.append(entry()) == (3, 1)


def test_discarding_gives_all_memory_back() -> None:
    usage = Usage()
    log = new_log(usage=usage)
    log.append(entry(10))
    log.discard()
    assert usage.stored_bytes == 0


def test_search_by_time_takes_the_first_entry_not_older() -> None:
    log = new_log(2)
    for time in (10, 20, 20, 30):
        log.append(entry(publish_time=time))
    assert log.first_published_at(0) == (1, 0)
    assert log.first_published_at(20) == (1, 1)
    assert log.first_published_at(21) == (2, 1)
    assert log.first_published_at(31) == log.end_place()


def test_search_by_time_prefers_the_brokers_time() -> None:
    log = new_log()
    for time in (10, 20):
        stamped = entry(publish_time=99)
        stamped.broker_timestamp = time
        log.append(stamped)
    assert log.first_published_at(11) == (1, 1)


steps = st.lists(
    st.one_of(
        st.just(("append", 0)),
        st.just(("roll", 0)),
        st.tuples(st.just("skip"), st.integers(1, 3)),
        st.tuples(st.just("trim"), st.integers(0, 20)),
    ),
    max_size=40,
)


@given(steps=steps, max_entries=st.integers(1, 4))
def test_log_holds_what_a_plain_list_holds(steps: list[tuple[str, int]], max_entries: int) -> None:
    log = new_log(max_entries)
    model: list[Place] = []
    for step, number in steps:
        if step == "append":
            model.append(log.append(entry()))
        elif step == "roll":
            log.roll()
        elif step == "skip":
            log.skip(number)
        else:
            before = model[number] if number < len(model) else log.end_place()
            log.trim(before)
            model = [place for place in model if place >= before]
        assert places(log) == model == sorted(model)
        assert log.entries == log.size == len(model)
        for start in [*model, log.end_place()]:
            assert log.count_from(start) == sum(place >= start for place in model)
