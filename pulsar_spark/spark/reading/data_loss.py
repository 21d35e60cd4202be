"""Data loss of a stream, judged by its position, its subscription and its topic.

A topic has many ledgers, gaps in entry ids are normal, and ledgers that everybody has read are
deleted. So neither a gap nor a later ledger is a loss. What tells is the stream's own durable
subscription, which holds what was not read: it moves forward by the stream's acknowledgements
only. If it stands further on, others moved it, the broker expired messages, or it is not the one
that the stream had.
"""

from __future__ import annotations

import logging
from enum import Enum, auto

from pulsar_spark.errors import PulsarError
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position

logger = logging.getLogger(__name__)


class LossVerdict(Enum):
    """What became of the messages from a stream's position on."""

    KEPT = auto()
    ROLLED_BACK = auto()
    """The topic ends before the position: it is another topic of that name."""
    SKIPPED = auto()
    """The subscription stands behind messages that the stream has not read."""
    UNHELD = auto()
    """The subscription is at the end of the topic: it was created again, or emptied manually."""


def judge(
    position: Position, end: Position, done: Position | None, seen: Position | None = None
) -> LossVerdict:
    """Return what became of the messages from `position` on.

    `end` is the position behind the topic's last entry, EARLIEST_POSITION if it is empty, `done`
    the one up to which the subscription is acknowledged, `seen` the first end behind `position`
    that was met at an earlier look, if any. What a subscription has lost is still to be looked
    for: it may be stored yet.
    """
    if position == EARLIEST_POSITION:
        # Nothing was read yet, so there is nothing that the subscription could be compared with.
        return LossVerdict.KEPT
    entry = Position(*position[:2])
    if EARLIEST_POSITION != end < entry:
        return LossVerdict.ROLLED_BACK
    if done is None or done <= entry:
        return LossVerdict.KEPT
    unread = end > position
    # The entry before that end was not read, and it does not hold it any more.
    known_unread = seen is not None and position < seen <= done
    if unread and done >= end:
        return LossVerdict.UNHELD
    # At the beginning of a ledger it stands where all earlier ones were read and deleted.
    # An empty topic whose subscription was moved within a later ledger had messages there.
    emptied = end == EARLIEST_POSITION and done.ledger_id != position.ledger_id
    if done.entry_id > 0 and (unread or emptied):
        return LossVerdict.SKIPPED
    return LossVerdict.SKIPPED if known_unread else LossVerdict.KEPT


def keeps_from(first: Position | None, position: Position) -> bool:
    """Whether a topic keeps the entry at a position, its first one being at `first`, None for none.

    An entry is kept whole, wherever in it the position is.
    """
    return first is not None and first[:2] <= position[:2]


def report_loss(error: PulsarError, *, fail: bool) -> None:
    """Raise the error of a loss, or log it where failOnDataLoss is off."""
    if fail:
        raise error
    logger.warning("data was lost: %s", error)


def extent(start: Position, stop: Position | None, known: Position | None = None) -> str:
    """Return how many entries lie between two positions, in brackets, as far as can be told.

    Entries are counted within a ledger; how many earlier ones had nobody tells any more. `stop` is
    None for a topic's end, `known` an end that was seen earlier.
    """
    if stop is not None and stop.ledger_id == start.ledger_id:
        return f" ({_entries(start, stop)} at most)"
    if known is not None and known > start and known.ledger_id == start.ledger_id:
        return f" ({_entries(start, known)} at least)"
    return " (how many is not known: their ledgers are deleted)"


def _entries(start: Position, stop: Position) -> str:
    count = stop.entry_id - start.entry_id
    return f"{count} {'entry' if count == 1 else 'entries'}"
