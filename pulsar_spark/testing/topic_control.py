"""What a test can do to a broker's topics, from any thread."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pulsar_spark.errors import TopicNotFound, from_server_error
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.frame_parts import parse_payload
from pulsar_spark.protocol.message_id import EARLIEST, MessageIdAdv, Position
from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.testing.policies import NAMES, TopicPolicies
from pulsar_spark.testing.refusals import Refusal
from pulsar_spark.testing.topic import Topic
from pulsar_spark.testing.transactions import COORDINATOR
from pulsar_spark.testing.views import (
    SubscriptionView,
    TopicView,
    subscription_view,
    topic_view,
)

if TYPE_CHECKING:
    from pulsar_spark.testing.server import Server

T = TypeVar("T")


class TopicControl(ABC):
    """Creates, changes, deletes and shows topics. Names can have any notation.

    Methods that take a topic apply to all its partitions; those that return a state, to one of
    them. They raise InvalidTopicName for an invalid name, TopicNotFound for a missing topic.
    """

    @abstractmethod
    def _call(self, function: Callable[[Server], T]) -> T:
        """Run a function on the broker's thread and return its result."""

    def create_topic(self, name: str, partitions: int = 0, *, ledger_id: int | None = None) -> str:
        """Create a topic, with or without partitions; returns its full name.

        `ledger_id` is its first ledger's id. Raises NotAllowed if it exists, ValueError for a
        negative number of partitions.
        """
        if partitions < 0:
            raise ValueError(f"partitions={partitions}: the number of partitions is 0 or more")
        parsed = TopicName.parse(name)
        self._call(lambda server: server.topics.create(parsed, partitions, ledger_id))
        return str(parsed)

    def add_partitions(self, name: str, partitions: int) -> None:
        """Increase a partitioned topic's number of partitions to `partitions`."""
        parsed = TopicName.parse(name)
        self._call(lambda server: server.topics.add_partitions(parsed, partitions))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its partitions, subscriptions and schemas; disconnects clients."""

        def delete(server: Server) -> None:
            topics = self._topics_of(server, name)
            for topic in topics:
                topic.close_producers()
                topic.close_consumers()
            server.topics.delete(TopicName.parse(name))

        self._call(delete)

    def set_policies(self, name: str, policies: TopicPolicies) -> None:
        """Set what a topic allows from now on; what it has already stays."""

        def set_them(server: Server) -> None:
            self._topics_of(server, name)
            own = server.topics.namespaces.of_topic(TopicName.parse(name))
            own.update({field: getattr(policies, field) for field in NAMES})
            server.topics.apply_policies()

        self._call(set_them)

    def terminate_topic(self, name: str) -> None:
        """Terminate a topic; consumers learn that it ends."""
        self._for_each(name, lambda topic: topic.terminate())

    def unload(self, name: str, assigned_broker_url: str | None = None) -> None:
        """Unload a topic: disconnect its clients, which may reconnect at once; it continues in a
        new ledger.
        """

        def unload(topic: Topic) -> None:
            topic.close_producers(assigned_broker_url)
            topic.close_consumers(assigned_broker_url)
            topic.reload()

        self._for_each(name, unload)

    def move(self, name: str, broker: int, *, assign: bool = True) -> None:
        """Move a topic to another broker; with `assign` its clients get the new address."""

        def move(server: Server) -> None:
            url = server.service_url(broker) if assign else None
            for topic in self._topics_of(server, name):
                server.topics.move(topic.name, broker)
                topic.close_producers(url)
                topic.close_consumers(url)

        self._call(move)

    def move_coordinator(self, broker: int) -> None:
        """Make another of the brokers the transaction coordinator."""
        self._call(lambda server: server.topics.move(COORDINATOR, broker))

    def open_transactions(self) -> dict[TxnId, tuple[str, ...]]:
        """The open transactions, and the topics in each."""
        return self._call(
            lambda server: {
                txn: tuple(sorted(found.partitions))
                for txn, found in server.coordinator.open.items()
            }
        )

    def roll_ledger(self, name: str) -> None:
        """Close a topic's ledger: the next entry has id 0 in a new one."""
        self._for_each(name, lambda topic: topic.log.roll())

    def skip_entries(self, name: str, count: int = 1) -> None:
        """Use up entry ids without messages, as transaction markers do."""
        self._for_each(name, lambda topic: topic.log.skip(count))

    def trim(self, name: str, before: MessageIdAdv | Position | None = None) -> None:
        """Drop a topic's entries before a position (all for None), as retention does."""

        def trim(topic: Topic) -> None:
            topic.trim(topic.log.end_place() if start is None else (start[0], start[1]))

        start = Position.before(before) if isinstance(before, MessageIdAdv) else before
        self._for_each(name, trim)

    def compact(self, name: str) -> None:
        """Compact a topic: readers with `readCompacted` get each key's last message.

        They get no messages without a key, and no keys whose last message is empty. Raises
        UnsupportedCodec if there are ZSTD or SNAPPY batches.
        """
        self._for_each(name, lambda topic: topic.compact())

    def expire_messages(self, name: str, subscription: str | None, older_than: float) -> None:
        """Acknowledge a subscription's messages that were published at least so many seconds ago.

        None for all subscriptions, those of readers too. As TTL expiry does. Raises
        SubscriptionNotFound.
        """
        before = int((time.time() - older_than) * 1000)

        def expire(topic: Topic) -> None:
            if subscription is None:
                topic.expire_all(before)
            else:
                topic.expire(subscription, before)

        self._for_each(name, expire)

    def create_subscription(
        self, name: str, subscription: str, start: MessageIdAdv = EARLIEST
    ) -> None:
        """Create a durable subscription at a message, which it gets; does nothing if it exists."""

        def create(topic: Topic) -> None:
            topic.add_subscription(subscription, (start.ledger_id, start.entry_id))

        self._for_each(name, create)

    def reset_subscription(self, name: str, subscription: str, start: MessageIdAdv | int) -> None:
        """Move a subscription to a message, or to the first one since a time in ms.

        Its consumers are disconnected, and may reconnect. Raises SubscriptionNotFound.
        """

        def reset(topic: Topic) -> None:
            if isinstance(start, int):
                topic.reset(subscription, topic.log.first_published_at(start))
            else:
                topic.reset(subscription, (start.ledger_id, start.entry_id))

        self._for_each(name, reset)

    def move_readers(self, name: str) -> int:
        """As `Faults.move_readers`."""
        return sum(self._for_each(name, lambda topic: topic.move_readers()))

    def collect_inactive(self) -> list[str]:
        """Delete topics without producers and subscriptions; returns their names."""

        def collect(server: Server) -> list[str]:
            gone = [name for name, topic in server.topics.topics.items() if topic.is_inactive]
            for name in gone:
                server.topics.delete(TopicName.parse(name))
            return gone

        return self._call(collect)

    def append(self, name: str, entry: bytes, *, messages: int | None = None) -> MessageIdAdv:
        """Store an entry without a producer: what follows the command of a SEND.

        The topic, or partition, must exist. Raises CorruptMessage or RemoteProtocolError for
        damaged bytes, unless `messages` gives their number of messages.
        """
        if messages is None:
            metadata = parse_payload(memoryview(entry)).metadata
        else:
            metadata = pb.MessageMetadata(num_messages_in_batch=messages)

        def append(topic: Topic) -> MessageIdAdv:
            ledger_id, entry_id = topic.append(entry, metadata)
            return MessageIdAdv(ledger_id, entry_id, topic.partition)

        return self._call(lambda server: append(self._one(server, name)))

    def topics(self) -> list[str]:
        """The full names of all topics, with single partitions."""
        return self._call(lambda server: sorted(server.topics.topics))

    def stats(self, name: str) -> TopicView:
        """The state of a topic or one partition, and its clients."""
        return self._call(lambda server: topic_view(self._one(server, name)))

    def remove_subscription(self, name: str, subscription: str) -> None:
        """Remove a subscription of a topic or all its partitions, even with connected consumers."""
        self._for_each(name, lambda topic: topic.remove_subscription(subscription))

    def subscriptions(self, name: str) -> dict[str, SubscriptionView]:
        """The subscriptions of a plain topic or one partition, by name."""
        return self._call(
            lambda server: {
                found.name: subscription_view(found)
                for found in self._one(server, name).subscriptions.values()
            }
        )

    def close_clients(
        self,
        name: str,
        *,
        producers: bool = True,
        consumers: bool = True,
        assigned_broker_url: str | None = None,
    ) -> int:
        """Close a topic's producers and consumers; returns how many."""

        def close(topic: Topic) -> int:
            count = topic.close_producers(assigned_broker_url) if producers else 0
            return count + (topic.close_consumers(assigned_broker_url) if consumers else 0)

        return sum(self._for_each(name, close))

    def migrate(self, name: str, url: str | None, url_tls: str | None = None) -> int:
        """Tell a topic's producers and consumers that it moved to another cluster."""
        return sum(self._for_each(name, lambda topic: topic.migrate(url, url_tls)))

    def _for_each(self, name: str, function: Callable[[Topic], T]) -> list[T]:
        def run(server: Server) -> list[T]:
            return [function(topic) for topic in self._topics_of(server, name)]

        return self._call(run)

    @staticmethod
    def _topics_of(server: Server, name: str) -> list[Topic]:
        found = server.topics.parts(TopicName.parse(name))
        if not found:
            raise TopicNotFound("the embedded broker has no such topic", topic=name)
        return found

    def _one(self, server: Server, name: str) -> Topic:
        found = self._topics_of(server, name)
        if len(found) != 1 or found[0].name != str(TopicName.parse(name)):
            raise TopicNotFound(
                "this is a partitioned topic", "Name one partition of it.", topic=name
            )
        return found[0]


def translated(function: Callable[[Server], T], server: Server) -> T:
    """Call a function; convert a refusal to the error that a client would get."""
    try:
        return function(server)
    except Refusal as refusal:
        raise from_server_error(refusal.code, refusal.message) from None
