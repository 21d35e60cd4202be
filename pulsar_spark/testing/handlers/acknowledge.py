"""Acknowledgements, and their contrary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsar_spark.protocol import answers
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing.actions import Incoming
from pulsar_spark.testing.refusals import Refusal
from pulsar_spark.testing.topic import place_of

if TYPE_CHECKING:
    from pulsar_spark.testing.session import Session


def ack(session: Session, command: Incoming) -> None:
    """Acknowledge entries one by one or up to one, wholly or by index inside a batch."""
    body: pb.CommandAck = command.body
    consumer = session.consumers.get(body.consumer_id)
    if consumer is None:
        if body.HasField("request_id"):
            raise Refusal(pb.ConsumerNotFound, "Consumer not found")
        return
    if body.HasField("txnid_most_bits"):
        raise Refusal(pb.NotAllowedError, "Transactions are not enabled")
    subscription = consumer.subscription
    if body.ack_type == pb.CommandAck.Cumulative:
        if len(body.message_id) != 1:
            raise Refusal(pb.NotAllowedError, "A cumulative ack names exactly one message")
        last = body.message_id[0]
        subscription.ack_cumulative(consumer, place_of(last), list(last.ack_set))
    else:
        for one in body.message_id:
            subscription.ack(consumer, place_of(one), list(one.ack_set))
    if body.HasField("request_id"):
        answer = answers.ack_response(consumer.consumer_id, request_id=body.request_id)
        session.send(answer, subscription.topic.name)
    subscription.report_end()


def redeliver(session: Session, command: Incoming) -> None:
    """Deliver again what a consumer has not acknowledged."""
    body: pb.CommandRedeliverUnacknowledgedMessages = command.body
    consumer = session.consumers.get(body.consumer_id)
    if consumer is None:
        return
    if body.HasField("consumer_epoch"):
        consumer.epoch = body.consumer_epoch
    consumer.subscription.redeliver(consumer, [place_of(one) for one in body.message_ids])
