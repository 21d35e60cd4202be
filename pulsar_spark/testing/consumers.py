"""One consumer of a subscription, as its broker sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.ack_sets import ack_longs
from pulsar_spark.testing.entry_log import Entry, Place

if TYPE_CHECKING:
    from pulsar_spark.testing.session import Session
    from pulsar_spark.testing.subscription import Subscription

# How fast the average number of messages per entry changes, as in a real broker.
_AVERAGE_WEIGHT = 0.9

Range = tuple[int, int]


def ranges_of(body: pb.CommandSubscribe) -> list[Range]:
    """The hash slots that a Key_Shared consumer wants for itself, both ends included."""
    return [(one.start, one.end) for one in body.keySharedMeta.hashRanges]


class Consumer:
    """A connected consumer: its permits, and on shared subscriptions its unacknowledged entries.

    Permits count messages and can fall below zero, because entries are delivered whole. `pending`
    maps delivered places to their number of messages.
    """

    def __init__(
        self, session: Session, subscription: Subscription, body: pb.CommandSubscribe, name: str
    ) -> None:
        self.session = session
        self.subscription = subscription
        self.consumer_id = body.consumer_id
        self.name = name
        self.priority = body.priority_level
        self.epoch: int | None = body.consumer_epoch if body.HasField("consumer_epoch") else None
        self.ranges = ranges_of(body)
        self.read_compacted = body.read_compacted
        self.properties = {one.key: one.value for one in body.metadata}
        self.permits = 0
        self.unacked = 0
        self.delivered_messages = 0
        self.pending: dict[Place, int] = {}
        self.end_reported = False
        self._average = 0.0
        # Reused for every delivery, because building a command costs more than sending it.
        self._command = commands.build(
            pb.CommandMessage,
            consumer_id=self.consumer_id,
            message_id=pb.MessageIdData(
                ledgerId=0, entryId=0, partition=subscription.topic.partition
            ),
        )

    @property
    def can_take(self) -> bool:
        """Whether the consumer has permits and its connection accepts more bytes."""
        return self.permits > 0 and self.session.writable

    def entries_wanted(self, most: int, *, precise: bool) -> int:
        """How many entries to read for it: one per permit, or by the average if `precise`."""
        wanted = self.permits
        if precise:
            wanted = round(self.permits / max(1.0, self._average))
        return max(1, min(most, wanted))

    def deliver(self, entry: Entry, *, redelivery_count: int = 0, remaining: int = 0) -> None:
        """Send an entry; `remaining` has the bits of a partly acknowledged batch, or 0."""
        message: pb.CommandMessage = self._command.message
        message.message_id.ledgerId, message.message_id.entryId = entry.place
        del message.ack_set[:]
        if redelivery_count:
            message.redelivery_count = redelivery_count
        else:
            message.ClearField("redelivery_count")
        if self.epoch is not None and self.subscription.ordered:
            message.consumer_epoch = self.epoch
        count = entry.count
        if remaining:
            message.ack_set.extend(ack_longs(remaining))
            count = bin(remaining).count("1")
        self.permits -= count
        self.unacked += count
        self.delivered_messages += count
        if self._average:
            self._average = self._average * _AVERAGE_WEIGHT + count * (1 - _AVERAGE_WEIGHT)
        else:
            self._average = count
        self.session.deliver(self._command, entry, self.subscription.topic.name)
