"""Subscriptions: their consumers, and how entries are dispatched.

This is the base class, and the kind with one active consumer (Exclusive, Failover); `shared.py` has
the kinds that spread entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.testing.consumers import Consumer
from pulsar_spark.testing.cursor import Cursor
from pulsar_spark.testing.entry_log import Entry, Place
from pulsar_spark.testing.refusals import Refusal

if TYPE_CHECKING:
    from pulsar_spark.testing.topic import Topic

# Maximum number of entries per pass, so that connections take turns, as in a real broker.
MAX_READ_ENTRIES = 100
MAX_READ_BYTES = 5 * 1024 * 1024


class PendingAck(NamedTuple):
    """An acknowledgement in an open transaction."""

    place: Place
    ack_set: list[int]
    cumulative: bool


class Subscription:
    """A subscription of a topic: its cursor and its consumers.

    `kind` is the SubType of its current, or last, consumers.
    """

    ordered = True
    """Whether one consumer gets all entries in order."""

    def __init__(self, topic: Topic, name: str, kind: int, cursor: Cursor, durable: bool) -> None:
        self.topic = topic
        self.name = name
        self.kind = kind
        self.cursor = cursor
        self.durable = durable
        self.consumers: list[Consumer] = []
        # Set while a seek has closed the consumers: they will reconnect.
        self.awaiting_return = False
        self._scheduled = False
        self._pending_acks: dict[TxnId, list[tuple[Consumer, PendingAck]]] = {}

    # --- consumers ---

    def add(self, consumer: Consumer) -> None:
        """Connect a consumer, or raise Refusal; call `started` once the consumer knows."""
        raise NotImplementedError

    def started(self, consumer: Consumer) -> None:
        """The consumer knows that it is subscribed."""
        self.awaiting_return = False
        self.report_end()

    def remove(self, consumer: Consumer) -> None:
        """Disconnect a consumer; its unacknowledged entries are redelivered."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            self.after_remove(consumer)

    def after_remove(self, consumer: Consumer) -> None:
        """React to the loss of a consumer."""
        raise NotImplementedError

    def conflicting_consumer(self, body: pb.CommandSubscribe) -> Consumer | None:
        """Return the consumer that a new one would have to replace."""
        raise NotImplementedError

    # --- delivery ---

    def wake(self) -> None:
        """Schedule a delivery."""
        if not self._scheduled and self.consumers:
            self._scheduled = True
            self.topic.loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        if self.consumers and self.deliver():
            self.wake()

    def deliver(self) -> bool:
        """Deliver for one pass. Returns whether to continue at once."""
        raise NotImplementedError

    def pass_on(self, consumer: Consumer, entry: Entry, redelivery_count: int = 0) -> bool:
        """Deliver an entry unless it is already acknowledged; returns whether it was delivered."""
        if self.cursor.is_acked(entry.place):
            return False
        remaining = self.cursor.partial.get(entry.place, 0) if self.cursor.partial else 0
        consumer.deliver(entry, redelivery_count=redelivery_count, remaining=remaining)
        return True

    # --- acknowledgement ---

    def ack(
        self, consumer: Consumer, place: Place, ack_set: list[int], *, committed: bool = False
    ) -> None:
        """Acknowledge one entry, or some of its messages; `committed` in a transaction."""
        # Whether acknowledgements are kept with those of transactions, as in a real broker.
        keeps = not self.ordered and self.topic.options.transactions
        entry = self.topic.log.get(place)
        before = 1 if entry is None else self.cursor.left_of(entry)
        if self.cursor.ack(place, ack_set, keeps=keeps, committed=committed):
            self.forget(place)
        left = 0 if entry is None else self.cursor.left_of(entry)
        consumer.unacked = max(0, consumer.unacked - (before - left))

    def ack_cumulative(self, consumer: Consumer, place: Place, ack_set: list[int]) -> None:
        """Acknowledge everything up to an entry; raises Refusal on shared subscriptions."""
        if not self.ordered:
            raise Refusal(pb.NotAllowedError, "Cumulative ack is not allowed on shared consumers")
        self.cursor.ack_cumulative(place, ack_set)
        consumer.unacked = 0

    def ack_in(self, txn: TxnId, consumer: Consumer, acks: list[PendingAck]) -> None:
        """Acknowledge when a transaction commits, and prevent others from doing so before."""
        for other, pending in self._pending_acks.items():
            taken = {ack.place for _, ack in pending} if other != txn else set()
            if any(ack.place in taken for ack in acks):
                raise Refusal(pb.TransactionConflict, f"Another transaction, {other}, has acked it")
        if any(self.cursor.is_acked(ack.place) for ack in acks):
            raise Refusal(pb.TransactionConflict, "The message is acknowledged already")
        self._pending_acks.setdefault(txn, []).extend((consumer, ack) for ack in acks)

    def end_transaction(self, txn: TxnId, *, commit: bool) -> None:
        """Carry out a transaction's acknowledgements, or redeliver its messages."""
        again: dict[Consumer, list[Place]] = {}
        for consumer, ack in self._pending_acks.pop(txn, ()):
            if not commit:
                again.setdefault(consumer, []).append(ack.place)
            elif ack.cumulative:
                self.ack_cumulative(consumer, ack.place, ack.ack_set)
            else:
                self.ack(consumer, ack.place, ack.ack_set, committed=True)
        for consumer, places in again.items():
            if consumer in self.consumers:
                self.redeliver(consumer, places)
        self.report_end()

    def forget(self, place: Place) -> None:
        """An entry was completely acknowledged."""

    def redeliver(self, consumer: Consumer, places: list[Place]) -> None:
        """Redeliver these entries, or all unacknowledged ones if none are named."""
        raise NotImplementedError

    def seek(self, start: Place, ack_set: list[int]) -> list[Consumer]:
        """Move the cursor; returns the consumers that this closes."""
        gone, self.consumers = self.consumers, []
        for consumer in gone:
            self.after_remove(consumer)
        self.awaiting_return = bool(gone)
        self.cursor.reset(start, ack_set)
        return gone

    def report_end(self) -> None:
        """Tell consumers if the topic is terminated and everything was acknowledged."""
        if not self.topic.terminated or self.cursor.backlog():
            return
        for consumer in self.consumers:
            if not consumer.end_reported:
                consumer.end_reported = True
                command = commands.build(
                    pb.CommandReachedEndOfTopic, consumer_id=consumer.consumer_id
                )
                consumer.session.send(command, self.topic.name)


class SingleSubscription(Subscription):
    """Exclusive and Failover: one consumer at a time gets everything, in order."""

    def __init__(self, topic: Topic, name: str, kind: int, cursor: Cursor, durable: bool) -> None:
        super().__init__(topic, name, kind, cursor, durable)
        self.active: Consumer | None = None
        # A Failover consumer that takes over first waits for the failover delay.
        self._activated = False

    def conflicting_consumer(self, body: pb.CommandSubscribe) -> Consumer | None:
        """Return the connected consumer, unless both are Failover consumers."""
        if self.consumers and pb.CommandSubscribe.Exclusive in (self.kind, body.subType):
            return self.consumers[0]
        return None

    def add(self, consumer: Consumer) -> None:
        """Connect a consumer; it becomes active if it is the first, or has a better priority."""
        if self.kind == pb.CommandSubscribe.Exclusive and self.consumers:
            raise Refusal(pb.ConsumerBusy, "Exclusive consumer is already connected")
        self.consumers.append(consumer)
        if self.active is not None:
            self._tell(consumer, False)

    def started(self, consumer: Consumer) -> None:
        """Let the new consumer take over if it ranks first now."""
        super().started(consumer)
        self._elect()

    def after_remove(self, consumer: Consumer) -> None:
        """Let the next consumer take over at the first unacknowledged entry."""
        if self.active is consumer:
            self.active = None
            self.cursor.rewind()
        self._elect()

    def _elect(self) -> None:
        best = self._first()
        if best is self.active:
            return
        if self.active is not None:
            self._tell(self.active, False)
        self.active = best
        self._activated = False
        self.cursor.rewind()
        if best is None:
            return
        delay = self.topic.options.failover_delay
        if self.kind == pb.CommandSubscribe.Failover and delay:
            self.topic.loop.call_later(delay, lambda: self._activate(best))
        else:
            self._activate(best)

    def _first(self) -> Consumer | None:
        if not self.consumers:
            return None
        top = min(consumer.priority for consumer in self.consumers)
        ranked = [consumer for consumer in self.consumers if consumer.priority == top]
        if self.topic.partition < 0:
            return self.active if self.active in ranked else ranked[0]
        # Partitions are spread over the consumers, sorted by name.
        ranked.sort(key=lambda consumer: consumer.name)
        return ranked[self.topic.partition % len(ranked)]

    def _activate(self, consumer: Consumer) -> None:
        if self.active is consumer and not self._activated:
            self._activated = True
            self._tell(consumer, True)
            self.wake()

    def _tell(self, consumer: Consumer, is_active: bool) -> None:
        if self.kind == pb.CommandSubscribe.Failover:
            command = commands.build(
                pb.CommandActiveConsumerChange,
                consumer_id=consumer.consumer_id,
                is_active=is_active,
            )
            consumer.session.send(command, self.topic.name)

    def deliver(self) -> bool:
        """Deliver to the active consumer within its permits, in one pass."""
        consumer = self.active
        if consumer is None or not self._activated or not consumer.can_take:
            return False
        left = consumer.entries_wanted(MAX_READ_ENTRIES, precise=self.topic.options.precise_flow)
        size = 0
        entries = self.topic.walk(self.cursor.read_place, compacted=consumer.read_compacted)
        for entry in entries:
            if not left or size >= MAX_READ_BYTES:
                return consumer.can_take
            if self.topic.transactions.holds(entry.place):
                break
            if entry.place != self.cursor.read_place and not consumer.read_compacted:
                self.cursor.pass_unused(entry.place)
            self.cursor.read_place = (entry.place[0], entry.place[1] + 1)
            if self.topic.transactions.is_aborted(entry):
                self.cursor.ack(entry.place)
                continue
            if self.pass_on(consumer, entry):
                size += len(entry.data)
            left -= 1
        else:
            if not consumer.read_compacted:
                self.cursor.pass_unused(self.topic.log.end_place())
        self.report_end()
        return False

    def redeliver(self, consumer: Consumer, places: list[Place]) -> None:
        """Redeliver all unacknowledged entries, whatever places are named."""
        if consumer is self.active:
            self.cursor.rewind()
            consumer.unacked = 0
            self.wake()
