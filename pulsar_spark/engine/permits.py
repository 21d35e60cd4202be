"""How many messages a reader lets its broker send.

Brokers count permits in messages, memory is counted in bytes. So the size of messages is
estimated from what arrives, and the permits follow it: hundreds of thousands for small messages
in large batches, a handful for large ones.
"""

from __future__ import annotations

from pulsar_spark.engine.options import ReaderOptions

ENTRY_OVERHEAD = 1536
"""Bytes that an undecoded entry costs besides those of its payload."""

# Half of the memory is asked for: entries vary, and brokers may send some more than they may.
_FILL = 0.5
# The estimate falls slowly and rises at once, for entries larger than expected are the danger.
_DECAY = 0.98
_MAX_PERMITS = 5_000_000


class Permits:
    """The permits of one reader's consumer; belongs to the thread that reads."""

    def __init__(self, options: ReaderOptions, max_message_size: int) -> None:
        self._options = options
        self._max_message_size = max_message_size
        self._bytes_per_message: float | None = None
        self._outstanding = 0

    @property
    def outstanding(self) -> int:
        """Messages that may still come, or came and were not consumed yet.

        Below 0 after a broker has sent more than it might.
        """
        return self._outstanding

    def begin(self, max_message_size: int) -> int:
        """Return the first permits of a new consumer, of which the broker knows none yet."""
        self._max_message_size = max_message_size
        self._outstanding = self._target()
        return self._outstanding

    def consumed(self, messages: int, size: int) -> int:
        """Note an entry of `size` bytes, and return how many permits to give now, often 0."""
        each = (size + ENTRY_OVERHEAD) / messages
        known = self._bytes_per_message
        self._bytes_per_message = each if known is None else max(each, known * _DECAY)
        self._outstanding -= messages
        target = self._target()
        if self._outstanding > target // 2:
            return 0
        permits = min(target - self._outstanding, _MAX_PERMITS)
        self._outstanding += permits
        return permits

    def _target(self) -> int:
        options = self._options
        each = self._bytes_per_message
        if each is None:
            # As if all entries were as large as the broker allows.
            first = options.memory_budget // (self._max_message_size + ENTRY_OVERHEAD)
            return max(1, min(first, options.receiver_queue_size))
        target = max(1, min(int(options.memory_budget * _FILL / each), _MAX_PERMITS))
        return target if options.auto_scale else min(target, options.receiver_queue_size)
