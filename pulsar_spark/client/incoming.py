"""What a consumer was delivered and has not given out: messages, made of one entry at a time."""

from __future__ import annotations

import threading
from collections import deque

from pulsar_spark.client.dead_letters import LastDeliveries
from pulsar_spark.client.message import Message, messages_of
from pulsar_spark.client.values import MessageValues
from pulsar_spark.engine.consumers.delivery import Delivery
from pulsar_spark.engine.consumers.inbox import Inbox
from pulsar_spark.errors import CorruptMessage, PulsarError


class IncomingMessages:
    """The messages of an inbox, one by one or many at a time. Thread-safe.

    An entry that cannot be read is an error, once, or is acknowledged with `discard_corrupt`. The
    error that ends the inbox stays.
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
        # The following are guarded by _lock: an entry that was taken, and what is left of it.
        self._delivery: Delivery | None = None
        self._messages: deque[Message] = deque()
        self._failed: PulsarError | None = None

    def next(self) -> Message | None:
        """Return the next message, None if there is none now; raises the error that is next."""
        with self._lock:
            if not self._fill():
                return None
            return self._take_one()

    def collect(
        self, found: list[Message], most: int | None, left: int | None
    ) -> tuple[int | None, bool]:
        """Add messages to those that were found, up to `most`, and up to `left` bytes.

        Returns the bytes that there may be more, and whether these are enough. Raises as `next`;
        where there are messages before an error, it comes with the next call.
        """
        with self._lock:
            try:
                return self._collect(found, most, left)
            except PulsarError as error:
                if not found:
                    raise
                self._failed = error
                return left, True

    def _collect(
        self, found: list[Message], most: int | None, left: int | None
    ) -> tuple[int | None, bool]:
        while (most is None or len(found) < most) and self._fill():
            if left is None and self._take_all(found, most):
                continue
            messages = self._messages
            while messages and (most is None or len(found) < most):
                if left is not None:
                    size = len(messages[0].data())
                    if found and size > left:
                        return left, True
                    left -= size
                found.append(self._take_one())
        return left, (left is not None and left <= 0) or len(found) == most

    def _take_all(self, found: list[Message], most: int | None) -> bool:
        """Take all that is left of an entry, if there is room for it."""
        delivery, messages = self._delivery, self._messages
        assert delivery is not None
        if delivery.consumer.keeps_books or (
            most is not None and len(found) + len(messages) > most
        ):
            return False
        found.extend(messages)
        messages.clear()
        delivery.consumer.finish(delivery)
        return True

    def _take_one(self) -> Message:
        delivery = self._delivery
        assert delivery is not None
        message = self._messages.popleft()
        if delivery.consumer.keeps_books:
            delivery.consumer.given_out(delivery, message.message_id().batch_index())
        if not self._messages:
            delivery.consumer.finish(delivery)
        # Another thread may have something now.
        self._inbox.wake()
        return message

    def _fill(self) -> bool:
        """Make sure that there are messages to take, if there are any."""
        delivery = self._delivery
        if self._messages and delivery is not None and delivery.current:
            return True
        self._messages.clear()
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error
        while True:
            delivery = self._delivery = self._inbox.next()
            if delivery is None:
                return False
            if self._open(delivery):
                return True

    def _open(self, delivery: Delivery) -> bool:
        """Make messages of an entry; return whether there are any."""
        entry = delivery.entry
        try:
            self._messages.extend(messages_of(entry, self._values, delivery.left))
        except CorruptMessage as error:
            self._messages.clear()
            delivery.consumer.finish(delivery)
            if not self._discard_corrupt:
                raise error.with_context(topic=entry.topic) from error.__cause__
            delivery.consumer.discard((entry.ledger_id, entry.entry_id), error)
            return False
        last = self._last_deliveries
        if last is not None and last.takes(delivery, list(self._messages)):
            self._messages.clear()
        if not self._messages:
            # Compaction left nothing of it, or it is a dead letter.
            delivery.consumer.finish(delivery)
        return bool(self._messages)
