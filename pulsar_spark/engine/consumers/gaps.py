"""Gaps in the entry ids that a reader's consumer is given: unused ids, or entries passed over.

Transaction markers, aborted transactions and compaction leave ids that are never delivered. But
brokers also move the cursor of a reader past entries that are still stored, when messages expire
(`messageTTL`, `expireMessages`), and then go on behind them without a word.

The cursor tells one from the other. A reader acknowledges nothing, so the position up to which its
subscription counts as acknowledged stays in front of the first entry that it was given, also behind
unused ids, unless somebody moved it. Only before that first entry the broker acknowledges unused
ids itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from pulsar_spark.errors import RemoteProtocolError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import MessageBlock
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, MessageIdAdv, Position


class Gap(NamedTuple):
    """The entry at `expected` should have come, and the one at `found` came.

    `is_first` says that the subscription was given nothing before. What is expected is
    EARLIEST_POSITION if the topic's first entry is not known.
    """

    expected: Position
    found: Position
    is_first: bool


class Gaps:
    """Looks for gaps in the blocks that one reader is given, session by session.

    Gaps behind `end` do not count. `first` is the first entry of the range, if it is known.
    """

    def __init__(self, end: Position | None, first: Position | None) -> None:
        self._end = end
        self._first = first
        # What should come next, and whether anything came in this session.
        self._next = EARLIEST_POSITION
        self._came = False

    def begin(self, start: Position) -> None:
        """A session starts at a position."""
        self._next = Position(*start[:2])
        if self._first is not None and self._first > self._next:
            self._next = Position(*self._first[:2])
        self._came = False

    def find(self, block: MessageBlock, position: Position) -> Gap | None:
        """Return the first gap before or in a block, the session's next one; None if there is none.

        Everything before `position` was taken. A frame that cannot be parsed ends the search:
        whoever decodes it says so.
        """
        is_first, self._came = not self._came, True
        expected = max(self._next, Position(*position[:2]))
        try:
            first, last = place_of(block, block.start), place_of(block, block.last)
            self._next = Position(last.ledger_id, last.entry_id + 1)
            if first <= expected:
                if last == Position(first.ledger_id, first.entry_id + block.count - 1):
                    return None
                is_first = False
                expected, first = _inside(block, first)
        except RemoteProtocolError:
            return None
        if self._end is not None and expected >= self._end:
            return None
        return Gap(expected, first, is_first)


@dataclass(slots=True)
class HeldBlocks:
    """Blocks that wait until a gap before or in them is explained, the first of theirs."""

    blocks: deque[MessageBlock] = field(default_factory=deque)
    gap: Gap | None = None

    def add(self, block: MessageBlock, gap: Gap | None) -> None:
        """Hold one more block, with its gap if it has one."""
        self.blocks.append(block)
        self.gap = self.gap or gap


def cursor_of(answer: pb.CommandGetLastMessageIdResponse) -> Position | None:
    """Return the position after what a subscription counts as acknowledged.

    None if the broker does not tell, as old ones.
    """
    if not answer.HasField("consumer_mark_delete_position"):
        return None
    marked = MessageIdAdv.from_pb(answer.consumer_mark_delete_position)
    return Position.after(MessageIdAdv(marked.ledger_id, marked.entry_id))


def place_of(block: MessageBlock, at: int) -> Position:
    """Return the entry in a block's frame that starts at `at`; raises RemoteProtocolError."""
    message_id = block.frame(at)[0].command.message.message_id
    return Position(message_id.ledgerId, message_id.entryId)


def _inside(block: MessageBlock, first: Position) -> tuple[Position, Position]:
    """Return what should follow the entries without a gap at a block's start, and what does."""
    frames = block.places(block.start, block.stop)

    def is_behind(index: int) -> bool:
        place = Position(first.ledger_id, first.entry_id + index)
        return place_of(block, frames[index]) != place

    index = bisect_left(range(len(frames)), True, key=is_behind)
    before = Position(first.ledger_id, first.entry_id + index)
    return before, place_of(block, frames[min(index, len(frames) - 1)])
