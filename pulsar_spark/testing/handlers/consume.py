"""Consumers: subscribing, permits, seeking, leaving."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.states import State
from pulsar_spark.testing.consumers import Consumer
from pulsar_spark.testing.entry_log import NOWHERE
from pulsar_spark.testing.refusals import Refusal
from pulsar_spark.testing.schemas import is_stored
from pulsar_spark.testing.topic import Topic, message_id, place_of
from pulsar_spark.testing.topic_store import parse_topic

if TYPE_CHECKING:
    from pulsar_spark.testing.session import Session

_S = pb.CommandSubscribe
# A real broker's text for an unknown consumer id.
_UNKNOWN_CONSUMER = "Consumer not found"
_MAX_PERMITS = 2**31 - 1


def subscribe(session: Session, body: pb.CommandSubscribe) -> Coroutine[Any, Any, None] | None:
    """Connect a consumer to a subscription, created if it does not exist."""
    name = parse_topic(body.topic)
    session.check_owns(str(name))
    if not body.subscription.strip():
        raise Refusal(pb.ProducerBusy, "Empty subscription name")
    if body.read_compacted and (
        not name.is_persistent or body.subType not in (_S.Exclusive, _S.Failover)
    ):
        raise Refusal(
            pb.NotAllowedError, "readCompacted only allowed on failover or exclusive subscriptions"
        )
    topic = session.server.topics.open(name, create=body.force_topic_creation)
    topic.policies.check_subscribe(topic, body)
    if body.HasField("schema") and is_stored(body.schema):
        _check_schema(topic, body.schema)
    existing = topic.subscriptions.get(body.subscription)
    rival = existing.conflicting_consumer(body) if existing is not None else None
    if rival is not None:
        return _contest(session, topic, body, rival)
    _connect(session, topic, body)
    return None


async def _contest(
    session: Session, topic: Topic, body: pb.CommandSubscribe, rival: Consumer
) -> None:
    """Subscribe once it is known whether the current consumer is still alive."""
    if not await rival.session.is_alive():
        rival.session.consumers.pop(rival.consumer_id, None)
        topic.release(rival)
    # The client may have given up meanwhile.
    waits = session.core.conversation.consumer(body.consumer_id) is State.OPENING
    if session.open and waits:
        _connect(session, topic, body)


def _connect(session: Session, topic: Topic, body: pb.CommandSubscribe) -> None:
    subscription = topic.subscribe(body)
    consumer = Consumer(session, subscription, body, body.consumer_name or f"c{session.number}")
    try:
        subscription.add(consumer)
    except Refusal:
        topic.release(consumer)
        raise
    session.consumers[consumer.consumer_id] = consumer
    session.answer(body, pb.CommandSuccess, topic.name)
    subscription.started(consumer)


def _check_schema(topic: Topic, schema: pb.Schema) -> None:
    """Register a consumer's schema on an unused topic, otherwise check its compatibility."""
    idle = not len(topic.schemas) and not topic.log.messages and not len(topic.producers)
    if idle and not topic.consumers:
        topic.policies.add_schema(topic.schemas, schema)
    else:
        topic.schemas.check_reader(schema, topic.policies.schema_compatibility)


def _consumer(session: Session, consumer_id: int) -> Consumer:
    consumer = session.consumers.get(consumer_id)
    if consumer is None:
        raise Refusal(pb.MetadataError, _UNKNOWN_CONSUMER)
    return consumer


def flow(session: Session, body: pb.CommandFlow) -> None:
    """Grant permits, counted in messages."""
    if not body.messagePermits:
        session.server.note(f"connection {session.number}: FLOW without permits")
        session.disconnect()
        return
    consumer = session.consumers.get(body.consumer_id)
    if consumer is not None:
        consumer.permits = min(consumer.permits + body.messagePermits, _MAX_PERMITS)
        consumer.subscription.wake()


def seek(session: Session, body: pb.CommandSeek) -> None:
    """Move a subscription: close its consumers, then answer."""
    consumer = _consumer(session, body.consumer_id)
    subscription = consumer.subscription
    topic = subscription.topic
    ack_set: list[int] = []
    if body.HasField("message_id"):
        start = place_of(body.message_id)
        ack_set = list(body.message_id.ack_set)
    elif body.HasField("message_publish_time"):
        start = topic.log.first_published_at(body.message_publish_time)
    else:
        raise Refusal(pb.MetadataError, "Message id and message publish time were not present")
    topic.reset(subscription.name, start, ack_set)
    session.answer(body, pb.CommandSuccess, topic.name)


def last_message_id(session: Session, body: pb.CommandGetLastMessageId) -> None:
    """Return the topic's last message, and the subscription's mark-delete position."""
    consumer = _consumer(session, body.consumer_id)
    topic = consumer.subscription.topic
    if not topic.persistent:
        raise Refusal(pb.UnknownError, "A non-persistent topic has no last message")
    place, batch_index = topic.last_message(compacted=consumer.read_compacted) or (NOWHERE, -1)
    last = message_id(place)
    last.partition = topic.partition
    last.batch_index = batch_index
    session.answer(
        body,
        pb.CommandGetLastMessageIdResponse,
        topic.name,
        last_message_id=last,
        consumer_mark_delete_position=message_id(consumer.subscription.cursor.mark_delete),
    )


def stats(session: Session, body: pb.CommandConsumerStats) -> None:
    """Return a consumer's statistics; for an unknown one, end the connection as a broker does."""
    consumer = session.consumers.get(body.consumer_id)
    if consumer is None:
        session.server.note(f"connection {session.number}: CONSUMER_STATS of an unknown consumer")
        session.disconnect()
        return
    subscription = consumer.subscription
    session.answer(
        body,
        pb.CommandConsumerStatsResponse,
        subscription.topic.name,
        consumerName=consumer.name,
        availablePermits=max(0, consumer.permits),
        unackedMessages=consumer.unacked,
        blockedConsumerOnUnackedMsgs=False,
        address=f"connection {session.number}",
        type=_S.SubType.Name(subscription.kind),
        msgBacklog=subscription.cursor.backlog(),
    )


def close_consumer(session: Session, body: pb.CommandCloseConsumer) -> None:
    """Remove a consumer; its unacknowledged messages go to others."""
    consumer = session.consumers.pop(body.consumer_id, None)
    topic = None if consumer is None else consumer.subscription.topic
    if consumer is not None:
        consumer.subscription.topic.release(consumer)
    session.answer(body, pb.CommandSuccess, None if topic is None else topic.name)


def unsubscribe(session: Session, body: pb.CommandUnsubscribe) -> None:
    """Close a consumer, and remove its subscription if it was the only one."""
    consumer = _consumer(session, body.consumer_id)
    subscription = consumer.subscription
    topic = subscription.topic
    if len(subscription.consumers) > 1 and not body.force:
        raise Refusal(pb.MetadataError, "Unconnected or shared consumer attempting to unsubscribe")
    del session.consumers[body.consumer_id]
    topic.remove_subscription(subscription.name)
    session.answer(body, pb.CommandSuccess, topic.name)
