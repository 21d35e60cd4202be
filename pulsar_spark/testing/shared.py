"""Shared and Key_Shared subscriptions: entries are spread over several consumers."""

from __future__ import annotations

import heapq
import time
import zlib
from collections import Counter
from typing import TYPE_CHECKING

from pulsar_spark.errors import CorruptMessage, RemoteProtocolError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.batches import message_key
from pulsar_spark.protocol.frame_parts import parse_payload
from pulsar_spark.protocol.hashing import sticky_slot
from pulsar_spark.testing.consumers import Consumer, Range, ranges_of
from pulsar_spark.testing.cursor import Cursor
from pulsar_spark.testing.entry_log import Entry, Place
from pulsar_spark.testing.refusals import Refusal
from pulsar_spark.testing.subscription import MAX_READ_BYTES, MAX_READ_ENTRIES, Subscription

if TYPE_CHECKING:
    from pulsar_spark.testing.topic import Topic

# How many entries one consumer gets before the next one's turn, as in a real broker.
_TURN = 20
# How many entries are read ahead of those whose consumer cannot accept them now.
_MAX_LOOK_AHEAD = 20_000


class SharedSubscription(Subscription):
    """Shared: consumers take turns; entries are acknowledged or redelivered one by one."""

    ordered = False

    def __init__(self, topic: Topic, name: str, kind: int, cursor: Cursor, durable: bool) -> None:
        super().__init__(topic, name, kind, cursor, durable)
        self.redeliveries: Counter[Place] = Counter()
        self._owners: dict[Place, Consumer] = {}
        # Places to redeliver, or that were read but not delivered yet.
        self._replay: list[Place] = []
        self._delayed: list[tuple[int, Place]] = []
        self._turn = 0

    def conflicting_consumer(self, body: pb.CommandSubscribe) -> Consumer | None:
        """Return None: consumers of this kind never exclude each other."""
        if self.consumers and body.subType != self.kind:
            return self.consumers[0]
        return None

    def add(self, consumer: Consumer) -> None:
        """Connect a consumer."""
        if not self.consumers:
            self._start_over()
        self.consumers.append(consumer)

    def after_remove(self, consumer: Consumer) -> None:
        """Deliver the consumer's unacknowledged entries to others."""
        if not self.consumers:
            self._start_over()
            return
        for place in list(consumer.pending):
            self._give_back(consumer, place)
        self.wake()

    def _start_over(self) -> None:
        self._owners.clear()
        self._replay.clear()
        self._delayed.clear()
        self.redeliveries.clear()
        self.cursor.rewind()

    def forget(self, place: Place) -> None:
        """Remove an acknowledged entry from its consumer."""
        owner = self._owners.get(place)
        if owner is not None:
            was_blocked = self._is_blocked(owner)
            self._release(owner, place)
            if was_blocked and not self._is_blocked(owner):
                self.wake()
        self.redeliveries.pop(place, None)

    def redeliver(self, consumer: Consumer, places: list[Place]) -> None:
        """Redeliver entries that this consumer holds."""
        for place in places or list(consumer.pending):
            if place in consumer.pending:
                self._give_back(consumer, place)
                self.redeliveries[place] += 1
        consumer.unacked = sum(consumer.pending.values())
        self.wake()

    def _release(self, consumer: Consumer, place: Place) -> None:
        del consumer.pending[place], self._owners[place]

    def _give_back(self, consumer: Consumer, place: Place) -> None:
        self._release(consumer, place)
        heapq.heappush(self._replay, place)

    def _is_blocked(self, consumer: Consumer) -> bool:
        return len(consumer.pending) >= self.topic.options.max_unacked_messages

    def _takes(self, consumer: Consumer) -> bool:
        return consumer.can_take and not self._is_blocked(consumer)

    def deliver(self) -> bool:
        """Deliver to the consumers in turn, in one pass."""
        self._replay_due()
        left, size = MAX_READ_ENTRIES, 0
        while left > 0 and size < MAX_READ_BYTES:
            consumer = self._next_consumer()
            if consumer is None:
                return False
            for _ in range(min(_TURN, left)):
                entry = self._next_entry()
                if entry is None:
                    self.report_end()
                    return False
                self._hand_over(consumer, entry)
                left -= 1
                size += len(entry.data)
                if not self._takes(consumer):
                    break
        return True

    def _next_consumer(self) -> Consumer | None:
        top = sorted({consumer.priority for consumer in self.consumers})
        for priority in top:
            ranked = [consumer for consumer in self.consumers if consumer.priority == priority]
            for step in range(len(ranked)):
                consumer = ranked[(self._turn + step) % len(ranked)]
                if self._takes(consumer):
                    self._turn += step + 1
                    return consumer
        return None

    def _next_entry(self) -> Entry | None:
        while self._replay:
            entry = self.topic.log.get(heapq.heappop(self._replay))
            if entry is not None and not self._is_held(entry.place):
                return entry
        for entry in self.topic.log.walk(self.cursor.read_place):
            if self.topic.transactions.holds(entry.place):
                return None
            self.cursor.read_place = (entry.place[0], entry.place[1] + 1)
            if self.topic.transactions.is_aborted(entry):
                self.cursor.ack(entry.place)
                continue
            if self._is_held(entry.place) or self._is_early(entry):
                continue
            return entry
        return None

    def _is_held(self, place: Place) -> bool:
        return place in self._owners or self.cursor.is_acked(place)

    def _hand_over(self, consumer: Consumer, entry: Entry) -> None:
        if self.pass_on(consumer, entry, self.redeliveries.get(entry.place, 0)):
            consumer.pending[entry.place] = self.cursor.left_of(entry)
            self._owners[entry.place] = consumer

    # --- delayed messages: they wait on these kinds of subscription only ---

    def _is_early(self, entry: Entry) -> bool:
        if not entry.deliver_at or entry.deliver_at <= time.time() * 1000:
            return False
        heapq.heappush(self._delayed, (entry.deliver_at, entry.place))
        self.topic.loop.call_later(entry.deliver_at / 1000 - time.time(), self.wake)
        return True

    def _replay_due(self) -> None:
        now = time.time() * 1000
        while self._delayed and self._delayed[0][0] <= now:
            heapq.heappush(self._replay, heapq.heappop(self._delayed)[1])


class KeySharedSubscription(SharedSubscription):
    """Key_Shared: all entries of one key go to one consumer, in order.

    With sticky ranges a consumer serves the hash slots that it named. Otherwise the slots are
    spread over the consumers, and stay with them as others come and go.
    """

    def __init__(self, topic: Topic, name: str, kind: int, cursor: Cursor, durable: bool) -> None:
        super().__init__(topic, name, kind, cursor, durable)
        self._by_slot: dict[int, Consumer] = {}
        # Per slot: which consumers hold unacknowledged entries, and how many.
        self._holders: dict[int, Counter[Consumer]] = {}
        self._slots: dict[Place, int] = {}

    def conflicting_consumer(self, body: pb.CommandSubscribe) -> Consumer | None:
        """Return the consumer that serves a slot which the new one wants."""
        return super().conflicting_consumer(body) or self._in_conflict(ranges_of(body))

    def _in_conflict(self, ranges: list[Range]) -> Consumer | None:
        for other in self.consumers:
            if any(_overlap(mine, its) for mine in ranges for its in other.ranges):
                return other
        return None

    def add(self, consumer: Consumer) -> None:
        """Connect a consumer; raises Refusal if its ranges overlap those of another."""
        other = self._in_conflict(consumer.ranges)
        if other is not None:
            raise Refusal(pb.ConsumerAssignError, f"Range conflict with consumer {other.name}")
        super().add(consumer)
        self._by_slot.clear()

    def after_remove(self, consumer: Consumer) -> None:
        """Give the consumer's slots to the others."""
        self._by_slot.clear()
        super().after_remove(consumer)

    def deliver(self) -> bool:
        """Deliver each entry to its key's consumer, in one pass."""
        self._replay_due()
        waiting: list[Place] = []
        blocked: set[int] = set()
        left, size = MAX_READ_ENTRIES, 0
        more = True
        while left > 0 and size < MAX_READ_BYTES and len(waiting) < _MAX_LOOK_AHEAD:
            if not any(self._takes(consumer) for consumer in self.consumers):
                more = False
                break
            entry = self._next_entry()
            if entry is None:
                more = False
                break
            slot = self._slot(entry)
            consumer = self._consumer_of(slot)
            if slot in blocked or consumer is None or not self._may_take(consumer, slot):
                blocked.add(slot)
                waiting.append(entry.place)
                continue
            self._hand_over(consumer, entry)
            left -= 1
            size += len(entry.data)
        for place in waiting:
            heapq.heappush(self._replay, place)
        self.report_end()
        return more and left < MAX_READ_ENTRIES

    def forget(self, place: Place) -> None:
        """Release entries of the same key that waited for another consumer's acknowledgement."""
        held = place in self._owners
        super().forget(place)
        if held and self._replay:
            self.wake()

    def _may_take(self, consumer: Consumer, slot: int) -> bool:
        # A key moves only after its former consumer has acknowledged all its entries.
        holders = self._holders.get(slot)
        return self._takes(consumer) and not (holders and any(h is not consumer for h in holders))

    def _hand_over(self, consumer: Consumer, entry: Entry) -> None:
        super()._hand_over(consumer, entry)
        if entry.place in consumer.pending:
            slot = self._slots[entry.place] = self._slot(entry)
            self._holders.setdefault(slot, Counter())[consumer] += 1

    def _release(self, consumer: Consumer, place: Place) -> None:
        super()._release(consumer, place)
        slot = self._slots.pop(place)
        holders = self._holders[slot]
        holders[consumer] -= 1
        if not holders[consumer]:
            del holders[consumer]
        if not holders:
            del self._holders[slot]

    def _start_over(self) -> None:
        super()._start_over()
        self._holders.clear()
        self._slots.clear()

    def _slot(self, entry: Entry) -> int:
        if entry.slot is None:
            entry.slot = _slot_of(entry)
        return entry.slot

    def _consumer_of(self, slot: int) -> Consumer | None:
        if slot not in self._by_slot:
            chosen = self._choose(slot)
            if chosen is None:
                return None
            self._by_slot[slot] = chosen
        return self._by_slot[slot]

    def _choose(self, slot: int) -> Consumer | None:
        sticky = [consumer for consumer in self.consumers if consumer.ranges]
        if sticky:
            for consumer in sticky:
                if any(low <= slot <= high for low, high in consumer.ranges):
                    return consumer
            return None
        # The highest weight wins, so a consumer that leaves moves only its own slots.
        return max(
            self.consumers,
            key=lambda consumer: zlib.crc32(f"{consumer.name}/{slot}".encode()),
            default=None,
        )


def _overlap(one: Range, other: Range) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _slot_of(entry: Entry) -> int:
    try:
        metadata = parse_payload(memoryview(entry.data), verify=False).metadata
    except RemoteProtocolError:
        return 1
    return sticky_slot(sticky_key(metadata))


def sticky_key(metadata: pb.MessageMetadata) -> bytes:
    """Return the key by which an entry is assigned to a Key_Shared consumer."""
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    try:
        key = message_key(metadata)
    except CorruptMessage:
        # What is marked as base64 but is not counts as text.
        raw: str | bytes = metadata.partition_key
        key = raw.encode() if isinstance(raw, str) else raw
    return f"{metadata.producer_name}-{metadata.sequence_id}".encode() if key is None else key
