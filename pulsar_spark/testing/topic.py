"""A topic that producers and consumers connect to: not partitioned, or one partition."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.testing.compaction import CompactedLog, compact
from pulsar_spark.testing.consumers import Consumer
from pulsar_spark.testing.cursor import Cursor
from pulsar_spark.testing.entry_log import (
    EARLIEST_PLACE,
    LATEST_PLACE,
    Entry,
    EntryLog,
    Place,
    Usage,
)
from pulsar_spark.testing.policies import TopicPolicies
from pulsar_spark.testing.producers import TopicProducers
from pulsar_spark.testing.quotas import COMPACTION
from pulsar_spark.testing.refusals import Refusal
from pulsar_spark.testing.schemas import SchemaHistory
from pulsar_spark.testing.shared import KeySharedSubscription, SharedSubscription
from pulsar_spark.testing.subscription import SingleSubscription, Subscription
from pulsar_spark.testing.transactions import TransactionBuffer

if TYPE_CHECKING:
    from pulsar_spark.testing.options import BrokerOptions

_S = pb.CommandSubscribe
_KINDS: dict[int, type[Subscription]] = {
    _S.Exclusive: SingleSubscription,
    _S.Failover: SingleSubscription,
    _S.Shared: SharedSubscription,
    _S.Key_Shared: KeySharedSubscription,
}

_NO_MORE = (
    "org.apache.bookkeeper.mledger.ManagedLedgerException$ManagedLedgerTerminatedException: "
    "Managed ledger was already terminated"
)


class Topic:
    """A topic's entries, producers and subscriptions. Lives on the broker's thread."""

    def __init__(
        self,
        name: TopicName,
        options: BrokerOptions,
        loop: asyncio.AbstractEventLoop,
        schemas: SchemaHistory,
        new_ledger_id: Callable[[], int],
        usage: Usage,
    ) -> None:
        self.name = str(name)
        self.partition = name.partition_index
        self.persistent = name.is_persistent
        self.schemas = schemas
        self.log = EntryLog(new_ledger_id, options.max_entries_per_ledger, usage)
        self.producers = TopicProducers()
        self.subscriptions: dict[str, Subscription] = {}
        self.transactions = TransactionBuffer()
        self.compacted = CompactedLog()
        self.terminated = False
        self.policies = TopicPolicies()
        # The highest stored sequence id per producer name, with deduplication.
        self.sequence_ids: dict[str, int] = {}
        self.options = options
        self.loop = loop

    # --- entries ---

    def append(self, data: Buffer, metadata: pb.MessageMetadata, txn: TxnId | None = None) -> Place:
        """Store the content of a SEND, and wake the consumers; returns its place."""
        messages = 0
        if metadata.HasField("num_messages_in_batch"):
            messages = max(1, metadata.num_messages_in_batch)
        entry = Entry(data, messages, metadata.publish_time, max(0, metadata.deliver_at_time), txn)
        if metadata.HasField("txnid_most_bits"):
            entry.written_in = TxnId(metadata.txnid_most_bits, metadata.txnid_least_bits)
        if not self.persistent:
            return self._pass_through(entry)
        self.log.append(entry)
        self.transactions.add(entry)
        if self.options.expose_entry_metadata:
            entry.broker_timestamp = time.time_ns() // 1_000_000
            entry.broker_metadata = pb.BrokerEntryMetadata(
                broker_timestamp=entry.broker_timestamp, index=entry.index
            ).SerializeToString()
        for subscription in self.subscriptions.values():
            subscription.wake()
        return entry.place

    def _pass_through(self, entry: Entry) -> Place:
        """Pass an entry of a non-persistent topic to consumers with permits; it is not stored."""
        entry.place = (0, 0)
        for subscription in self.subscriptions.values():
            takers = [consumer for consumer in subscription.consumers if consumer.can_take]
            if isinstance(subscription, SingleSubscription):
                takers = [consumer for consumer in takers if consumer is subscription.active]
            if takers:
                takers[self.log.messages % len(takers)].deliver(entry)
        self.log.messages += entry.count
        return entry.place

    def end_transaction(self, txn: TxnId, *, commit: bool) -> None:
        """Show a transaction's messages to consumers, or drop them; a marker uses an entry id.

        Raises Refusal if the topic is terminated.
        """
        if self.terminated:
            raise Refusal(pb.PersistenceError, _NO_MORE)
        self.transactions.end(txn, commit=commit)
        self.log.skip(1)
        for subscription in self.subscriptions.values():
            subscription.wake()

    def last_message(self, *, compacted: bool = False) -> tuple[Place, int] | None:
        """Place and batch index of the last deliverable message, None if there is none."""
        entry = self.log.last(self.transactions.shows)
        if compacted and (entry is None or entry.place <= self.compacted.horizon):
            left = self.compacted.entries
            entry = left[-1] if left else None
        return None if entry is None else (entry.place, entry.last_batch_index)

    def compact(self) -> None:
        """From now on, readers of the compacted topic only get each key's last message so far."""
        entries = self.walk(EARLIEST_PLACE, compacted=True)
        self.compacted = compact(entry for entry in entries if self.transactions.shows(entry))
        # As in a real broker, this subscription keeps what is not compacted.
        self.add_subscription(COMPACTION)
        if (held := self.subscriptions.get(COMPACTION)) is not None:
            held.cursor.ack_cumulative(self.compacted.horizon)

    def walk(self, place: Place, *, compacted: bool) -> Iterator[Entry]:
        """The entries at and after a place, oldest first, compacted or not."""
        horizon = self.compacted.horizon
        if compacted and place <= horizon:
            yield from self.compacted.walk(place)
            place = (horizon[0], horizon[1] + 1)
        yield from self.log.walk(place)

    def expire(self, subscription: str, before: int) -> None:
        """Acknowledge messages published before a time in ms, up to the first newer one.

        Raises Refusal if there is no such subscription.
        """
        cursor = self._subscription(subscription).cursor
        for entry in self.log.walk(cursor.after_acked):
            if entry.publish_time >= before:
                break
            cursor.ack_cumulative(entry.place)

    def expire_all(self, before: int) -> None:
        """As `expire` for all subscriptions, those of readers too."""
        for name in self.subscriptions:
            if name != COMPACTION:
                self.expire(name, before)

    def skip(self, subscription: str, count: int | None = None) -> None:
        """Acknowledge a subscription's next entries, or all; raises Refusal as `expire`."""
        cursor = self._subscription(subscription).cursor
        if count is None or count >= cursor.backlog():
            cursor.ack_cumulative(self.log.end_place())
            return
        for entry in list(islice(cursor.left(), count)):
            cursor.ack(entry.place)

    def reset(self, subscription: str, start: Place, ack_set: Sequence[int] = ()) -> None:
        """Move a subscription, and close its consumers; raises Refusal as `expire`."""
        for gone in self._subscription(subscription).seek(start, list(ack_set)):
            gone.session.close_consumer(gone)

    def _subscription(self, name: str) -> Subscription:
        if name not in self.subscriptions:
            raise Refusal(pb.SubscriptionNotFound, f"there is no subscription {name}")
        return self.subscriptions[name]

    def move_readers(self) -> int:
        """Acknowledge everything for the non-durable subscriptions; return how many there are."""
        readers = [found for found in self.subscriptions.values() if not found.durable]
        for reader in readers:
            reader.cursor.ack_cumulative(self.log.end_place())
        return len(readers)

    def trim(self, before: Place) -> None:
        """Drop the entries before a place."""
        self.log.trim(before)
        for subscription in self.subscriptions.values():
            subscription.cursor.forget_trimmed()

    def reload(self) -> None:
        """Continue in a new ledger, as after the topic was loaded again."""
        self.log.reload()
        for subscription in self.subscriptions.values():
            subscription.cursor.unload()

    def terminate(self) -> None:
        """Accept no more messages; consumers are told once they have acknowledged all."""
        self.terminated = True
        self.close_producers()
        for subscription in self.subscriptions.values():
            subscription.report_end()

    # --- subscriptions ---

    def subscribe(self, body: pb.CommandSubscribe) -> Subscription:
        """Return the subscription that a SUBSCRIBE names, created or changed in kind if necessary.

        Raises Refusal if it has consumers of another kind, or only one of the two is durable.
        """
        subscription = self.subscriptions.get(body.subscription)
        kind = int(body.subType)
        if kind not in _KINDS:
            raise Refusal(pb.NotAllowedError, f"unknown subscription type {kind}")
        durable = body.durable and self.persistent
        if subscription is None:
            cursor = self._cursor(self._start(body))
            if body.read_compacted and cursor.read_place == self.log.first_place():
                # Entries that were trimmed are still in the compacted topic.
                cursor.read_place, cursor.mark_delete = EARLIEST_PLACE, EARLIEST_PLACE
            subscription = _KINDS[kind](self, body.subscription, kind, cursor, durable)
        elif subscription.durable != durable:
            existing = "Durable" if subscription.durable else "NonDurable"
            raise Refusal(
                pb.NotAllowedError, f"{existing} subscription with the same name already exists."
            )
        elif subscription.consumers and subscription.kind != kind:
            raise Refusal(pb.ConsumerBusy, "Subscription is of different type")
        elif subscription.kind != kind:
            awaiting_return = subscription.awaiting_return
            subscription = _KINDS[kind](self, subscription.name, kind, subscription.cursor, durable)
            subscription.awaiting_return = awaiting_return
            subscription.cursor.rewind()
        self.subscriptions[subscription.name] = subscription
        return subscription

    def add_subscription(self, name: str, start: Place = EARLIEST_PLACE) -> None:
        """Create a durable subscription that has no consumer yet, unless it exists."""
        if self.persistent and name not in self.subscriptions:
            cursor = self._cursor(start)
            self.subscriptions[name] = SingleSubscription(self, name, _S.Exclusive, cursor, True)

    def _cursor(self, start: Place) -> Cursor:
        return Cursor(self.log, start, batch_index_ack=self.options.batch_index_ack)

    def _start(self, body: pb.CommandSubscribe) -> Place:
        if not body.durable and body.HasField("start_message_id"):
            place = place_of(body.start_message_id)
            if body.start_message_rollback_duration_sec and place == EARLIEST_PLACE:
                since = time.time() - body.start_message_rollback_duration_sec
                return self.log.first_published_at(int(since * 1000))
            # After the end, the initial position decides, as in a real broker.
            if place <= self.log.end_place():
                return place
        return EARLIEST_PLACE if body.initialPosition == _S.Earliest else LATEST_PLACE

    def release(self, consumer: Consumer) -> None:
        """Disconnect a consumer; a non-durable subscription ends with its last one."""
        subscription = consumer.subscription
        subscription.remove(consumer)
        if (
            not subscription.durable
            and not subscription.consumers
            and not subscription.awaiting_return
            and self.subscriptions.get(subscription.name) is subscription
        ):
            del self.subscriptions[subscription.name]

    def remove_subscription(self, name: str) -> None:
        """Forget a subscription with its cursor, if there is one, and close its consumers."""
        if (found := self.subscriptions.pop(name, None)) is None:
            return
        gone, found.consumers = found.consumers, []
        for consumer in gone:
            consumer.session.close_consumer(consumer)

    # --- connections ---

    def close_producers(self, assigned_broker_url: str | None = None) -> int:
        """Close all producers, as a broker does when it unloads the topic."""
        gone = self.producers.all()
        for producer in gone:
            self.producers.remove(producer, promote=False)
            producer.session.close_producer(producer, assigned_broker_url)
        return len(gone)

    def close_consumers(self, assigned_broker_url: str | None = None) -> int:
        """Close all consumers; only durable subscriptions stay."""
        gone = self.consumers
        for consumer in gone:
            consumer.session.close_consumer(consumer, assigned_broker_url)
            self.release(consumer)
        return len(gone)

    def migrate(self, url: str | None, url_tls: str | None) -> int:
        """Tell all clients that the topic moved to another cluster; returns how many."""
        clients = [
            (producer.session, producer.producer_id, pb.CommandTopicMigrated.Producer)
            for producer in self.producers.all()
        ] + [
            (consumer.session, consumer.consumer_id, pb.CommandTopicMigrated.Consumer)
            for consumer in self.consumers
        ]
        for session, number, kind in clients:
            command = commands.build(
                pb.CommandTopicMigrated,
                resource_id=number,
                resource_type=kind,
                brokerServiceUrl=url,
                brokerServiceUrlTls=url_tls,
            )
            session.send(command, self.name)
        return len(clients)

    def forget_connections(self) -> None:
        """Reset as after a restart: nobody is connected, and non-durable subscriptions are gone."""
        for subscription in list(self.subscriptions.values()):
            if not subscription.durable:
                del self.subscriptions[subscription.name]

    @property
    def consumers(self) -> list[Consumer]:
        """The connected consumers of all subscriptions."""
        return [one for found in self.subscriptions.values() for one in found.consumers]

    @property
    def deduplicates(self) -> bool:
        """Whether messages with sequence ids that were stored are dropped."""
        own = self.policies.deduplication
        return self.options.deduplication if own is None else own

    @property
    def is_inactive(self) -> bool:
        """Whether the topic has neither producers nor subscriptions."""
        return not self.producers.by_name and not self.subscriptions


def place_of(message_id: pb.MessageIdData) -> Place:
    """Return a wire message id's place; 2^64-1 is -1 here."""
    return _signed(message_id.ledgerId), _signed(message_id.entryId)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def message_id(place: Place) -> pb.MessageIdData:
    """Return a place as a message id on the wire."""
    return pb.MessageIdData(ledgerId=place[0] % 2**64, entryId=place[1] % 2**64)
