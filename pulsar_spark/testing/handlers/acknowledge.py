"""Commands of acknowledgement and redelivery."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing.handlers.transact import check_enabled, transaction_of
from pulsar_spark.testing.refusals import Refusal
from pulsar_spark.testing.subscription import PendingAck, Subscription
from pulsar_spark.testing.topic import place_of

if TYPE_CHECKING:
    from pulsar_spark.testing.session import Session


def ack(session: Session, body: pb.CommandAck) -> None:
    """Acknowledge entries one by one or cumulatively, whole or by batch index."""
    consumer = session.consumers.get(body.consumer_id)
    if consumer is None:
        # Without an answer, as brokers do.
        return
    subscription = consumer.subscription
    if body.HasField("txnid_most_bits"):
        check_enabled(session)
        subscription.ack_in(transaction_of(body), consumer, _acks(subscription, body))
    elif body.ack_type == pb.CommandAck.Cumulative:
        if len(body.message_id) != 1:
            raise Refusal(pb.NotAllowedError, "A cumulative ack names exactly one message")
        last = body.message_id[0]
        subscription.ack_cumulative(consumer, place_of(last), list(last.ack_set))
    else:
        for one in body.message_id:
            subscription.ack(consumer, place_of(one), list(one.ack_set))
    if body.HasField("request_id"):
        topic, consumer_id = subscription.topic.name, consumer.consumer_id
        session.answer(body, pb.CommandAckResponse, topic, consumer_id=consumer_id)
    subscription.report_end()


def _acks(subscription: Subscription, body: pb.CommandAck) -> list[PendingAck]:
    cumulative = body.ack_type == pb.CommandAck.Cumulative
    if cumulative and (len(body.message_id) != 1 or not subscription.ordered):
        raise Refusal(pb.NotAllowedError, "A cumulative ack of a transaction cannot be taken here")
    return [PendingAck(place_of(one), list(one.ack_set), cumulative) for one in body.message_id]


def redeliver(session: Session, body: pb.CommandRedeliverUnacknowledgedMessages) -> None:
    """Redeliver what a consumer has not acknowledged."""
    consumer = session.consumers.get(body.consumer_id)
    if consumer is None:
        return
    if body.HasField("consumer_epoch"):
        consumer.epoch = body.consumer_epoch
    consumer.subscription.redeliver(consumer, [place_of(one) for one in body.message_ids])
