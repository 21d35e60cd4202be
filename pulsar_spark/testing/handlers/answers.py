"""Error answers to each command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb

_T = pb.BaseCommand
Refuse = Callable[[Any, int, str], pb.BaseCommand | None]


def _by(answer: Callable[..., Message], *repeated: str, **fields: Any) -> Refuse:
    """Return how to refuse a command by an answer, which repeats some fields of the command."""

    def refuse(body: Any, code: int, message: str) -> pb.BaseCommand | None:
        if "request_id" in repeated and not body.HasField("request_id"):
            # An ACK that asks for no answer.
            return None
        same = {name: getattr(body, name) for name in repeated if body.HasField(name)}
        return commands.build(answer, error=code, message=message, **same, **fields)

    return refuse


def _in_transaction(answer: Callable[..., Message]) -> Refuse:
    return _by(answer, "request_id", "txnid_least_bits", "txnid_most_bits")


def _by_code(answer: Callable[..., Message]) -> Refuse:
    """Return how to refuse by an answer whose fields for errors have longer names."""
    return lambda body, code, message: commands.build(
        answer, request_id=body.request_id, error_code=code, error_message=message
    )


def _new_txn(body: Any, code: int, message: str) -> pb.BaseCommand:
    return commands.build(
        pb.CommandNewTxnResponse,
        request_id=body.request_id,
        txnid_most_bits=body.tc_id,
        error=code,
        message=message,
    )


_REFUSALS: dict[int, Refuse] = {
    _T.CONNECT: _by(pb.CommandError, request_id=commands.NO_REQUEST_ID),
    _T.LOOKUP: _by(
        pb.CommandLookupTopicResponse, "request_id", response=pb.CommandLookupTopicResponse.Failed
    ),
    _T.PARTITIONED_METADATA: _by(
        pb.CommandPartitionedTopicMetadataResponse,
        "request_id",
        response=pb.CommandPartitionedTopicMetadataResponse.Failed,
    ),
    _T.SEND: _by(pb.CommandSendError, "producer_id", "sequence_id"),
    _T.ACK: _by(pb.CommandAckResponse, "consumer_id", "request_id"),
    _T.GET_SCHEMA: _by_code(pb.CommandGetSchemaResponse),
    _T.GET_OR_CREATE_SCHEMA: _by_code(pb.CommandGetOrCreateSchemaResponse),
    _T.CONSUMER_STATS: _by_code(pb.CommandConsumerStatsResponse),
    _T.TC_CLIENT_CONNECT_REQUEST: _by(pb.CommandTcClientConnectResponse, "request_id"),
    _T.NEW_TXN: _new_txn,
    _T.ADD_PARTITION_TO_TXN: _in_transaction(pb.CommandAddPartitionToTxnResponse),
    _T.ADD_SUBSCRIPTION_TO_TXN: _in_transaction(pb.CommandAddSubscriptionToTxnResponse),
    _T.END_TXN: _in_transaction(pb.CommandEndTxnResponse),
    _T.END_TXN_ON_PARTITION: _in_transaction(pb.CommandEndTxnOnPartitionResponse),
    _T.END_TXN_ON_SUBSCRIPTION: _in_transaction(pb.CommandEndTxnOnSubscriptionResponse),
    # Those without a request id are answered by notifications.
    _T.WATCH_TC_ASSIGNMENTS: _by(pb.CommandWatchTcAssignmentsUpdate, "watch_id"),
    _T.SCALABLE_TOPIC_LOOKUP: _by(pb.CommandScalableTopicUpdate, "session_id"),
    _T.SCALABLE_TOPIC_SUBSCRIBE: _by(pb.CommandScalableTopicSubscribeResponse, "request_id"),
    _T.WATCH_SCALABLE_TOPICS: _by(pb.CommandWatchScalableTopicsUpdate, "watch_id"),
}


def refusal(kind: int, body: Any, code: int, message: str) -> pb.BaseCommand | None:
    """Return the command that refuses a request, None if it has no answer."""
    if kind in _REFUSALS:
        return _REFUSALS[kind](body, code, message)
    if "request_id" not in body.DESCRIPTOR.fields_by_name:
        return None
    return commands.build(pb.CommandError, request_id=body.request_id, error=code, message=message)
