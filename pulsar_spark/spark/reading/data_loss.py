"""Data loss of a stream, judged by its position, subscription and topic.

Ledger ids and entry ids normally have gaps, and fully read ledgers are deleted, so neither a gap
nor a later ledger is a loss. The stream's own durable subscription shows a loss: it retains unread
messages, and only the stream's acknowledgements move it forward. If it is further ahead, somebody
moved it, or the broker expired messages. The exception is the beginning of a ledger: some brokers
move it there when everything before was read, too.
"""

from __future__ import annotations

from enum import Enum, auto

from pulsar_spark.errors import PulsarError
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position

logger = get_logger(__name__)

GO_ON = "Start a query with a new checkpoint, or set failOnDataLoss=false to go on."
"""The remedy for a stream."""


class LossVerdict(Enum):
    """What happened to the messages from a stream's position on."""

    KEPT = auto()
    ROLLED_BACK = auto()
    """The topic ends before the position: it is another topic with the same name."""
    SKIPPED = auto()
    """The subscription has passed messages that the stream has not read."""
    UNHELD = auto()
    """The subscription is at the end of the topic: it was cleared by hand."""


def judge(
    position: Position,
    end: Position,
    done: Position | None,
    seen: Position | None = None,
    held: Position = EARLIEST_POSITION,
) -> LossVerdict:
    """Return what happened to the messages from `position` on.

    `end` is the position after the topic's last entry, EARLIEST_POSITION if it is empty; everything
    before `done` is acknowledged; `seen` is the first end after `position` that was observed
    earlier, if any; `held` is where the subscription was when nothing before it was unread.
    Messages that the subscription lost may still be stored: check that next.
    """
    entry = Position(*position[:2])
    if EARLIEST_POSITION != end < entry:
        return LossVerdict.ROLLED_BACK
    needed = max(entry, held)
    if done is None or done <= needed:
        return LossVerdict.KEPT
    unread = end > position
    if unread and done >= end:
        return LossVerdict.UNHELD
    # It passed entries that were not read. If the topic ends before them, they are no messages.
    if done.entry_id > 0 and (unread or end == EARLIEST_POSITION):
        return LossVerdict.SKIPPED
    # The entry before that end was not read, and the subscription no longer retains it.
    known_unread = seen is not None and needed < seen <= done
    return LossVerdict.SKIPPED if known_unread else LossVerdict.KEPT


def keeps_from(first: Position | None, position: Position) -> bool:
    """Whether a topic retains the entry at a position, given its first entry (None if it is empty).

    Entries are retained as a whole, wherever the position is inside. So are ledgers, which may
    begin with unused ids.
    """
    if first is None:
        return False
    is_there = position.begins_ledger and first.ledger_id == position.ledger_id
    return is_there or first[:2] <= position[:2]


def report_loss(error: PulsarError, *, fail: bool) -> None:
    """Raise a loss as an error, or log it if failOnDataLoss is off."""
    if fail:
        raise error
    logger.warning("data was lost: %s; the read goes on", error.fact)


def extent(start: Position, stop: Position | None, known: Position | None = None) -> str:
    """Return how many entries are between two positions, in brackets, if that is known.

    Entries are counted within a ledger; the size of earlier, deleted ledgers is unknown. `stop` is
    None for a topic's end, `known` an end observed earlier.
    """
    if stop is not None and stop.ledger_id == start.ledger_id:
        return f" ({_entries(start, stop)} at most)"
    if known is not None and known > start and known.ledger_id == start.ledger_id:
        return f" ({_entries(start, known)} at least)"
    return " (how many is not known: their ledgers are deleted)"


def _entries(start: Position, stop: Position) -> str:
    count = stop.entry_id - start.entry_id
    return f"{count} {'entry' if count == 1 else 'entries'}"
