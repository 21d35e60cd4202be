"""When a stream lost data, and when it only looks so."""

from __future__ import annotations

import pytest

from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.spark.reading.data_loss import LossVerdict, extent, judge

EMPTY = EARLIEST_POSITION


@pytest.mark.parametrize(
    "position,end,done",
    [
        # Nothing was read yet, and nothing is acknowledged.
        (EMPTY, Position(5, 3), Position(5, 0)),
        (EMPTY, EMPTY, Position(5, 0)),
        (EMPTY, EMPTY, None),
        # All read and acknowledged; new messages, if any, are in the same or a later ledger.
        (Position(5, 3), Position(5, 3), Position(5, 3)),
        (Position(5, 3), Position(5, 9), Position(5, 3)),
        (Position(5, 3), Position(7, 2), Position(5, 3)),
        # The acknowledgement is still under way, or was lost with the broker.
        (Position(5, 3), Position(5, 3), Position(4, 0)),
        # The ledger was deleted after it was read, and the subscription moved to the next one.
        (Position(5, 3), EMPTY, Position(7, 0)),
        (Position(5, 3), Position(7, 2), Position(7, 0)),
        # Transaction markers after the last read message.
        (Position(5, 3), Position(5, 3), Position(5, 5)),
        # Inside a batch, only the entries before it are acknowledged.
        (Position(5, 3, 2), Position(5, 4), Position(5, 3)),
        # A broker that does not report it.
        (Position(5, 3), Position(7, 2), None),
    ],
)
def test_gaps_later_ledgers_and_late_acknowledgements_are_no_loss(
    position: Position, end: Position, done: Position | None
) -> None:
    assert judge(position, end, done) is LossVerdict.KEPT
    assert judge(position, end, done, seen=position) is LossVerdict.KEPT


def test_what_is_unread_in_a_later_ledger_only_is_no_loss_of_the_ledgers_before() -> None:
    # The ledger was deleted after it was read; newer messages were seen, and are still stored.
    position, seen = Position(5, 3), Position(7, 2)
    assert judge(position, Position(7, 2), Position(7, 0), seen) is LossVerdict.KEPT
    assert judge(position, Position(7, 9), Position(7, 0), seen) is LossVerdict.KEPT


@pytest.mark.parametrize(
    "position,end,done",
    [
        # Markers that were passed while they were stored, and are deleted now.
        (Position(5, 3), EMPTY, Position(5, 5)),
        (Position(5, 3), EMPTY, Position(7, 0)),
        (Position(5, 3), Position(7, 2), Position(5, 5)),
        # A subscription of that name which the query took over.
        (EMPTY, Position(5, 8), Position(5, 5)),
        (EMPTY, EMPTY, Position(5, 5)),
    ],
)
def test_what_a_subscription_had_passed_when_nothing_was_unread_is_no_loss(
    position: Position, end: Position, done: Position
) -> None:
    seen = Position(5, 5)
    assert judge(position, end, done, seen, held=Position(5, 5)) is LossVerdict.KEPT


@pytest.mark.fault(55)
def test_a_topic_that_ends_before_the_position_is_another_one() -> None:
    assert judge(Position(5, 3), Position(2, 9), Position(2, 9)) is LossVerdict.ROLLED_BACK
    assert judge(Position(5, 3), Position(5, 2), None) is LossVerdict.ROLLED_BACK


@pytest.mark.fault(58)
@pytest.mark.parametrize(
    "end,done,seen",
    [
        # Moved within the ledger, or into a later one.
        (Position(5, 9), Position(5, 6), None),
        (Position(7, 9), Position(7, 2), None),
        # It is at a ledger's beginning, but there were unread messages before.
        (Position(7, 9), Position(7, 0), Position(5, 8)),
        (EMPTY, Position(7, 0), Position(5, 8)),
        (EMPTY, Position(5, 8), Position(5, 8)),
        # Everything is deleted, and there were other messages at its position.
        (EMPTY, Position(8, 100), None),
        (EMPTY, Position(5, 5), None),
    ],
)
def test_a_subscription_that_others_moved_does_not_hold_what_is_unread(
    end: Position, done: Position, seen: Position | None
) -> None:
    assert judge(Position(5, 3), end, done, seen) is LossVerdict.SKIPPED


@pytest.mark.fault(73)
def test_a_subscription_behind_everything_was_created_anew() -> None:
    assert judge(Position(5, 3), Position(5, 9), Position(5, 9)) is LossVerdict.UNHELD
    assert judge(Position(5, 3), Position(8, 1), Position(8, 1)) is LossVerdict.UNHELD


@pytest.mark.parametrize(
    "stop,known,text",
    [
        (Position(5, 4), None, "(1 entry at most)"),
        (Position(5, 13), Position(5, 7), "(10 entries at most)"),
        (Position(7, 2), Position(5, 8), "(5 entries at least)"),
        (None, Position(5, 8), "(5 entries at least)"),
        (None, None, "not known"),
        (Position(7, 2), Position(6, 8), "not known"),
    ],
)
def test_how_much_was_lost_is_told_as_far_as_it_is_known(
    stop: Position | None, known: Position | None, text: str
) -> None:
    assert text in extent(Position(5, 3), stop, known)
