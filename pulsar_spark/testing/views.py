"""Views for tests: plain, frozen copies of the broker's state."""

from __future__ import annotations

from dataclasses import dataclass

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.testing.entry_log import Place
from pulsar_spark.testing.subscription import Subscription
from pulsar_spark.testing.topic import Topic


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """A connected consumer; `permits` and `unacked` count messages."""

    name: str
    connection: int
    permits: int
    unacked: int
    delivered: int


@dataclass(frozen=True, slots=True)
class SubscriptionView:
    """A subscription; everything up to `mark_delete` is acknowledged.

    `backlog` counts entries that are not completely acknowledged.
    """

    name: str
    kind: str
    durable: bool
    mark_delete: MessageIdAdv
    read_position: MessageIdAdv
    backlog: int
    acked_beyond: int
    consumers: tuple[ConsumerView, ...]


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic or partition: its content, and its clients."""

    name: str
    entries: int
    messages_in: int
    stored_bytes: int
    ledgers: tuple[int, ...]
    first: MessageIdAdv
    last: MessageIdAdv | None
    producers: tuple[str, ...]
    subscriptions: tuple[str, ...]
    terminated: bool
    schema_versions: int


def _id(place: Place, partition: int, batch_index: int = -1) -> MessageIdAdv:
    return MessageIdAdv(place[0], place[1], partition, batch_index)


def subscription_view(subscription: Subscription) -> SubscriptionView:
    """Return a copy of a subscription's state."""
    cursor = subscription.cursor
    partition = subscription.topic.partition
    consumers = tuple(
        ConsumerView(
            name=consumer.name,
            connection=consumer.session.number,
            permits=consumer.permits,
            unacked=consumer.unacked,
            delivered=consumer.delivered_messages,
        )
        for consumer in subscription.consumers
    )
    return SubscriptionView(
        name=subscription.name,
        kind=pb.CommandSubscribe.SubType.Name(subscription.kind),
        durable=subscription.durable,
        mark_delete=_id(cursor.mark_delete, partition),
        read_position=_id(cursor.read_place, partition),
        backlog=cursor.backlog(),
        acked_beyond=len(cursor.acked),
        consumers=consumers,
    )


def topic_view(topic: Topic) -> TopicView:
    """Return a copy of a topic's state."""
    last = topic.last_message()
    return TopicView(
        name=topic.name,
        entries=topic.log.entries,
        messages_in=topic.log.messages,
        stored_bytes=topic.log.size,
        ledgers=topic.log.ledger_ids,
        first=_id(topic.log.first_place(), topic.partition),
        last=None if last is None else _id(last[0], topic.partition, last[1]),
        producers=tuple(sorted(topic.producers.by_name)),
        subscriptions=tuple(sorted(topic.subscriptions)),
        terminated=topic.terminated,
        schema_versions=len(topic.schemas),
    )
