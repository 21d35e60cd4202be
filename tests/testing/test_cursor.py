"""A cursor knows what is acknowledged, to the message, and the next read position."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.protocol.ack_sets import ack_bits, ack_longs
from pulsar_spark.protocol.message_id import EARLIEST, LATEST
from pulsar_spark.testing.cursor import Cursor
from pulsar_spark.testing.entry_log import Entry, EntryLog, Place

FIRST: Place = (EARLIEST.ledger_id, EARLIEST.entry_id)
END: Place = (LATEST.ledger_id, LATEST.entry_id)


def log_of(*sizes: int, max_entries: int = 1000) -> EntryLog:
    log = EntryLog(itertools.count(1).__next__, max_entries)
    for messages in sizes:
        log.append(Entry(b"x", messages, 0, 0))
    return log


def cursor_over(log: EntryLog, start: Place = FIRST, *, batch_index_ack: bool = True) -> Cursor:
    return Cursor(log, start, batch_index_ack=batch_index_ack)


@pytest.mark.parametrize(
    "longs,bits", [([5], 0b101), ([-1], 2**64 - 1), ([0, 1], 2**64), ([-(2**63)], 2**63)]
)
def test_ack_sets_are_bits_of_longs(longs: list[int], bits: int) -> None:
    assert ack_bits(longs) == bits
    assert ack_longs(bits) == longs


@pytest.mark.parametrize(
    "start,read",
    [
        (FIRST, (1, 0)),
        (END, (2, 1)),
        ((1, 1), (1, 1)),
        ((1, 7), (1, 7)),
        ((0, 0), (1, 0)),
        ((9, 9), (2, 1)),
    ],
)
def test_start_is_clamped_to_what_there_is(start: Place, read: Place) -> None:
    cursor = cursor_over(log_of(0, 0, 0, max_entries=2), start)
    assert cursor.read_place == read
    # After a ledger's end, too, it is the ledger's last entry.
    assert cursor.mark_delete == (read[0], min(read[1], 2) - 1)


def test_at_the_beginning_of_a_ledger_the_mark_is_the_last_entry_before() -> None:
    log = log_of(0, 0, 0, max_entries=2)
    assert cursor_over(log, (2, 0)).mark_delete == (1, 1)
    log.roll()
    assert cursor_over(log, END).mark_delete == (2, 0)
    log.trim((2, 0))
    assert cursor_over(log, (1, 1)).mark_delete == (2, -1)


def test_acks_out_of_order_move_the_mark_when_the_gap_closes() -> None:
    cursor = cursor_over(log_of(0, 0, 0, max_entries=2))
    cursor.ack((1, 1))
    assert (cursor.mark_delete, cursor.backlog()) == ((1, -1), 2)
    cursor.ack((1, 0))
    assert (cursor.mark_delete, cursor.backlog()) == ((1, 1), 1)
    cursor.ack((2, 0))
    assert (cursor.mark_delete, cursor.backlog()) == ((2, 0), 0)
    assert cursor.acked == set()


def test_ack_of_what_does_not_exist_changes_nothing() -> None:
    cursor = cursor_over(log_of(0))
    assert not cursor.ack((7, 7))
    cursor.ack_cumulative((1, 500))
    assert cursor.mark_delete == (1, 0)


def test_a_batch_is_acknowledged_index_by_index() -> None:
    cursor = cursor_over(log_of(3, 3))
    assert not cursor.ack((1, 0), [0b110])
    assert cursor.partial == {(1, 0): 0b110}
    assert not cursor.ack((1, 0), [0b101])
    assert cursor.partial == {(1, 0): 0b100}
    assert cursor.ack((1, 0), [0b011])
    assert cursor.partial == {}
    assert cursor.mark_delete == (1, 0)


def test_acks_inside_a_batch_are_ignored_where_that_is_off() -> None:
    cursor = cursor_over(log_of(3), batch_index_ack=False)
    assert not cursor.ack((1, 0), [0b110])
    assert cursor.partial == {}
    assert cursor.ack((1, 0))


def test_what_transactions_acknowledged_inside_a_batch_outlasts_the_loaded_topic() -> None:
    cursor = cursor_over(log_of(4, 4, 4), batch_index_ack=False)
    cursor.ack((1, 0), [0b1110], committed=True)
    cursor.ack((1, 0), [0b1101], keeps=True)
    cursor.ack((1, 1), [0b1101], keeps=True)
    assert cursor.partial == {(1, 0): 0b1100, (1, 1): 0b1101}
    cursor.unload()
    assert cursor.partial == {(1, 0): 0b1110}
    # It does not make up for an acknowledgement that is ignored.
    assert not cursor.ack((1, 0), [0b0001])
    assert cursor.ack((1, 0), [0b0001], committed=True)
    cursor.unload()
    assert (cursor.mark_delete, cursor.partial) == ((1, 0), {})


def test_cumulative_ack_inside_a_batch_goes_to_the_entry_before() -> None:
    cursor = cursor_over(log_of(0, 0, 3))
    cursor.ack((1, 1))
    cursor.ack_cumulative((1, 2), [0b100])
    assert cursor.mark_delete == (1, 1)
    assert cursor.partial == {(1, 2): 0b100}
    cursor.ack_cumulative((1, 2))
    assert (cursor.mark_delete, cursor.partial) == ((1, 2), {})


def test_cumulative_ack_never_goes_back() -> None:
    cursor = cursor_over(log_of(0, 0, 0))
    cursor.ack_cumulative((1, 1))
    cursor.ack_cumulative((1, 0))
    assert cursor.mark_delete == (1, 1)


def test_rewind_goes_to_the_first_unacknowledged_entry() -> None:
    cursor = cursor_over(log_of(0, 0, 0))
    cursor.read_place = (1, 3)
    cursor.ack((1, 0))
    cursor.rewind()
    assert cursor.read_place == (1, 1)


def test_reset_forgets_acknowledgements() -> None:
    cursor = cursor_over(log_of(3, 3))
    cursor.ack((1, 0))
    cursor.reset((1, 0), [0b110])
    assert cursor.backlog() == 2
    assert cursor.partial == {(1, 0): 0b110}


def test_trimmed_entries_count_as_acknowledged() -> None:
    log = log_of(0, 0, 0, 0)
    cursor = cursor_over(log)
    cursor.ack((1, 2))
    log.trim((1, 2))
    cursor.forget_trimmed()
    assert cursor.mark_delete == (1, 2)
    assert cursor.read_place == (1, 2)
    assert cursor.backlog() == 1


@given(
    count=st.integers(1, 12),
    max_entries=st.integers(1, 4),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 11)), max_size=30),
)
def test_cursor_acknowledges_what_a_set_would(
    count: int, max_entries: int, steps: list[tuple[bool, int]]
) -> None:
    log = log_of(*[0] * count, max_entries=max_entries)
    places = [entry.place for entry in log.walk(FIRST)]
    cursor = cursor_over(log)
    left = set(places)
    for cumulative, number in steps:
        place = places[number % count]
        if cumulative:
            cursor.ack_cumulative(place)
            left = {other for other in left if other > place}
        else:
            cursor.ack(place)
            left.discard(place)
        assert {each for each in places if not cursor.is_acked(each)} == left
        assert cursor.backlog() == len(left)
        cursor.rewind()
        following = log.next_at(cursor.read_place)
        assert following is None or following.place == min(left, default=following.place)
