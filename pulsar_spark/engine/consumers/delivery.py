"""What is taken from a consumer, and the queue of its blocks, within permits and memory."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

from pulsar_spark.engine.consumers.acknowledgments import EntryKey
from pulsar_spark.engine.consumers.entries import count_at, message_count
from pulsar_spark.engine.consumers.receiver_queue import BLOCK_OVERHEAD, Permits, memory_of
from pulsar_spark.engine.consumers.rows import ReceivedRows
from pulsar_spark.engine.memory import ReceiverBudget
from pulsar_spark.engine.options import ReaderOptions
from pulsar_spark.errors import PulsarError
from pulsar_spark.protocol.frame_parts import Frame, ReceivedEntry
from pulsar_spark.protocol.frames import MessageBlock
from pulsar_spark.protocol.message_id import MessageIdAdv

# Assumed size of a message before the first one arrives; see `Permits`.
_EXPECTED_SIZE = 16 * 1024


class MessageSource(Protocol):
    """One topic partition's messages: a consumer's, or a reader's. See `inbox.Inbox`."""

    @property
    def generation(self) -> int:
        """Counts how often all that was taken before became invalid."""

    @property
    def has_more(self) -> bool:
        """Whether `take` may find something."""

    @property
    def tracks_messages(self) -> bool:
        """Whether `track` must be called."""

    def take(self) -> Delivery | None:
        """Take the next messages, None if there are none now; raises if they cannot be read."""

    def track(self, message_id: MessageIdAdv) -> None:
        """A message was returned to the user."""

    def finish(self, delivery: Delivery) -> None:
        """All messages of a delivery were returned."""

    def discard(self, key: EntryKey, error: PulsarError) -> None:
        """Acknowledge an unreadable entry."""


class Delivery(NamedTuple):
    """Messages that were taken together: one entry's, or rows of many entries.

    With an entry, `left` has the bits of the messages to return; rows are all returned. `cost` and
    `size` are the permits and bytes that they hold until all are returned.
    """

    consumer: MessageSource
    content: ReceivedEntry | ReceivedRows
    left: int
    generation: int
    cost: int
    size: int

    @property
    def current(self) -> bool:
        """Whether it is still valid, or will be redelivered."""
        return self.generation == self.consumer.generation


class DeliveryQueue:
    """Delivered blocks, and the permits for more. Guarded by its owner's lock.

    What is taken must be given back when it is returned or dropped. Redelivery of everything starts
    a new generation, and nothing of the old one counts any more. With `size` 0 one message is
    fetched at a time, on request; of a batch all come at once, as brokers deliver entries whole.
    """

    def __init__(self, size: int, budget: ReceiverBudget) -> None:
        self.generation = 0
        self.queued_bytes = 0
        """Bytes of the blocks of which nothing was taken yet."""
        self._size = size
        self._budget = budget
        self._permits = Permits(
            ReaderOptions(receiver_queue_size=max(size, 1), auto_scale=False),
            budget,
            _EXPECTED_SIZE,
        )
        self._blocks: deque[MessageBlock] = deque()
        # The block that is being taken, and where its next entry starts.
        self._block: MessageBlock | None = None
        self._at = 0
        # The permits of what was taken and not given back.
        self._open = 0
        # With `size` 0: the permits that the broker has left, below 0 after a batch.
        self._left = 0

    @property
    def has_more(self) -> bool:
        """Whether an entry can be taken."""
        return self._block is not None or bool(self._blocks)

    def begin(self, max_message_size: int) -> int:
        """Return the initial permits of a new attachment."""
        permits = self._permits.begin(max_message_size)
        # What was requested and did not come is requested again.
        self._left = int(self._left > 0)
        return permits if self._size else self._left

    def put(self, block: MessageBlock) -> bool:
        """Queue a block and learn its message size; returns false if there is no room."""
        size = memory_of(block)
        if self.queued_bytes and self.queued_bytes + size > self._budget.share:
            self._permits.observe(max(_messages_of(block, block.start), 1), size)
            return False
        self._blocks.append(block)
        self.queued_bytes += size
        if not self._size:
            self._left -= _messages_of(block, block.start)
        return True

    def peek(self) -> tuple[MessageBlock, int] | None:
        """Return the next block, and where its next entry starts."""
        if self._block is None:
            if not self._blocks:
                return None
            self._block = self._blocks.popleft()
            self._at = self._block.start
            self.queued_bytes -= memory_of(self._block)
        return self._block, self._at

    def take(self, generation: int, at: int, permits: int) -> bool:
        """Take the current block's entries before `at`; they hold permits.

        Returns false if their generation has ended.
        """
        if generation != self.generation or self._block is None:
            return False
        self._at = at
        self._open += permits
        if at >= self._block.stop:
            self._block = None
        return True

    def give_back(self, generation: int, messages: int, size: int) -> int:
        """Messages that were taken were returned or dropped.

        Returns how many permits to give the broker now, often 0.
        """
        if generation != self.generation:
            return 0
        self._open -= messages
        permits = self._permits.consumed(max(messages, 1), size)
        return permits if self._size else 0

    def pull(self) -> int:
        """With `size` 0: return the permits that request a message, 0 if one is there or requested.

        They include those that the broker has overdrawn, without which it would deliver nothing.
        """
        if self._size or self._left > 0 or self._open or self.has_more:
            return 0
        permits = 1 - self._left
        self._left = 1
        return permits

    def forget(self) -> int:
        """Drop everything queued or taken, and start a new generation; return its permits."""
        dropped = self._open + sum(_messages_of(block, block.start) for block in self._blocks)
        if self._block is not None:
            dropped += _messages_of(self._block, self._at)
        self.generation += 1
        self._open = 0
        self._block = None
        self._blocks.clear()
        self.queued_bytes = 0
        return dropped

    def dropped(self, permits: int) -> int:
        """Permits whose messages will be redelivered on this attachment; returns as `give_back`."""
        if not permits or not self._size:
            return 0
        return self._permits.consumed(permits, BLOCK_OVERHEAD)


def cost_of(frame: Frame) -> int:
    """Return how many permits an entry uses, even a damaged one."""
    if ack_set := frame.command.message.ack_set:
        return max(sum((word % 2**64).bit_count() for word in ack_set), 1)
    return message_count(frame)


def _messages_of(block: MessageBlock, start: int) -> int:
    return sum(count_at(block, at, cost_of) for at in block.places(start, block.stop))
