"""Messages that a consumer has received and not returned yet."""

from __future__ import annotations

import threading

from pulsar_spark.client.dead_letters import LastDeliveries
from pulsar_spark.client.message import Message, messages_of, messages_of_rows
from pulsar_spark.client.values import MessageValues
from pulsar_spark.engine.consumers.delivery import Delivery
from pulsar_spark.engine.consumers.inbox import Inbox
from pulsar_spark.engine.consumers.rows import ReceivedRows
from pulsar_spark.errors import CorruptMessage, PulsarError


class IncomingMessages:
    """An inbox's messages, one by one or many at a time. Thread-safe.

    An entry that cannot be read raises an error once, or is acknowledged with `discard_corrupt`.
    The error that ends the inbox is raised every time.
    """

    def __init__(
        self,
        inbox: Inbox,
        values: MessageValues,
        last_deliveries: LastDeliveries | None,
        *,
        discard_corrupt: bool,
    ) -> None:
        self._inbox = inbox
        self._values = values
        self._last_deliveries = last_deliveries
        self._discard_corrupt = discard_corrupt
        self._lock = threading.Lock()
        # The following are guarded by _lock: the current delivery, and what is left of it.
        self._delivery: Delivery | None = None
        self._messages: list[Message] = []
        self._at = 0
        self._failed: PulsarError | None = None

    @property
    def over(self) -> bool:
        """Whether nothing is left but the error that ends the inbox."""
        return self._inbox.over

    @property
    def has_taken(self) -> bool:
        """Whether messages are left of those that were taken from the inbox together."""
        delivery = self._delivery
        return bool(self._messages) and delivery is not None and delivery.current

    def next(self) -> Message | None:
        """Return the next message, or None if there is none now; raises the error that is next."""
        with self._lock:
            return self._take(1)[0] if self._fill() else None

    def has_next(self) -> bool:
        """Whether `next` returns a message; raises as it does."""
        with self._lock:
            found = self._fill()
        if found:
            # Another thread may wait for it.
            self._inbox.wake()
        return found

    def collect(
        self, found: list[Message], most: int | None, left: int | None
    ) -> tuple[int | None, bool]:
        """Append messages to `found`: at most `most` of them, and at most `left` bytes.

        Returns how many bytes are left, and whether there are enough messages. Raises as `next`;
        if messages come before an error, the next call raises it.
        """
        with self._lock:
            try:
                while (most is None or len(found) < most) and self._fill():
                    count = len(self._messages) - self._at
                    if most is not None:
                        count = min(count, most - len(found))
                    if left is not None:
                        count, size = self._fitting(count, left, first=not found)
                        if not count:
                            return left, True
                        left -= size
                    found += self._take(count)
            except PulsarError as error:
                if not found:
                    raise
                self._failed = error
                return left, True
        return left, (left is not None and left <= 0) or len(found) == most

    def _fitting(self, count: int, left: int, *, first: bool) -> tuple[int, int]:
        """Return how many of the next messages fit into `left` bytes, and their size.

        The `first` of all may be larger.
        """
        assert self._delivery is not None
        content = self._delivery.content
        if isinstance(content, ReceivedRows) and count == content.rows and content.size <= left:
            return count, content.size
        taken = 0
        for number in range(count):
            size = len(self._messages[self._at + number].data())
            if taken + size > left and not (first and not number):
                return number, taken
            taken += size
            if taken >= left:
                return number + 1, taken
        return count, taken

    def _take(self, count: int) -> list[Message]:
        """Take messages of the current delivery."""
        delivery, at = self._delivery, self._at
        assert delivery is not None
        messages = self._messages[at : at + count]
        self._at = at + count
        if delivery.consumer.tracks_messages:
            for message in messages:
                delivery.consumer.track(message.message_id().unwrap())
        if self._at == len(self._messages):
            self._messages = []
            self._at = 0
            delivery.consumer.finish(delivery)
        # Another thread may find something now.
        self._inbox.wake()
        return messages

    def _fill(self) -> bool:
        """Make sure that messages are ready, if any have arrived."""
        if self.has_taken:
            return True
        self._messages, self._at = [], 0
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error
        while True:
            delivery = self._delivery = self._inbox.next()
            if delivery is None:
                return False
            self._messages = self._open(delivery)
            if self._messages:
                return True
            # Compaction left no message, or it is a dead letter, or it cannot be read.
            delivery.consumer.finish(delivery)

    def _open(self, delivery: Delivery) -> list[Message]:
        """Return the messages of a delivery."""
        content = delivery.content
        if isinstance(content, ReceivedRows):
            return messages_of_rows(content, self._values)
        try:
            messages = list(messages_of(content, self._values, delivery.left))
        except CorruptMessage as error:
            if not self._discard_corrupt:
                delivery.consumer.finish(delivery)
                raise error.with_context(topic=content.topic) from error.__cause__
            delivery.consumer.discard((content.ledger_id, content.entry_id), error)
            return []
        last = self._last_deliveries
        return [] if last is not None and last.takes(delivery, messages) else messages
