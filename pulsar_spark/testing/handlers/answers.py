"""Error answers to each command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pulsar_spark.protocol import answers, commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb

_T = pb.BaseCommand
Refuse = Callable[[Any, int, str], pb.BaseCommand | None]


def _lookup(body: Any, code: int, message: str) -> pb.BaseCommand:
    failed = pb.CommandLookupTopicResponse.Failed
    return answers.lookup_response(body.request_id, failed, error=code, message=message)


def _send(body: Any, code: int, message: str) -> pb.BaseCommand:
    return answers.send_error(body.producer_id, body.sequence_id, code, message)


def _ack(body: Any, code: int, message: str) -> pb.BaseCommand | None:
    if not body.HasField("request_id"):
        return None
    return answers.ack_response(
        body.consumer_id, request_id=body.request_id, error=code, message=message
    )


def _typed(answer: str, error: str = "error", message_field: str = "message") -> Refuse:
    def refuse(body: Any, code: int, message: str) -> pb.BaseCommand:
        fields = {error: code, message_field: message}
        return commands.build(answer, request_id=body.request_id, **fields)

    return refuse


def _in_transaction(answer: str) -> Refuse:
    """Return how to refuse a command about a transaction, whose id the answer repeats."""

    def refuse(body: Any, code: int, message: str) -> pb.BaseCommand:
        named = ("txnid_least_bits", "txnid_most_bits")
        fields = {name: getattr(body, name) for name in named if body.HasField(name)}
        return commands.build(
            answer, request_id=body.request_id, error=code, message=message, **fields
        )

    return refuse


def _new_txn(body: Any, code: int, message: str) -> pb.BaseCommand:
    return commands.build(
        "NEW_TXN_RESPONSE",
        request_id=body.request_id,
        txnid_most_bits=body.tc_id,
        error=code,
        message=message,
    )


def _update(answer: str, id_field: str) -> Refuse:
    """Return how to refuse a command without a request id, whose answers are notifications."""

    def refuse(body: Any, code: int, message: str) -> pb.BaseCommand:
        fields = {id_field: getattr(body, id_field), "error": code, "message": message}
        return commands.build(answer, **fields)

    return refuse


_REFUSALS: dict[int, Refuse] = {
    _T.CONNECT: lambda _, code, message: answers.error(commands.NO_REQUEST_ID, code, message),
    _T.LOOKUP: _lookup,
    _T.PARTITIONED_METADATA: lambda body, code, message: answers.partitioned_metadata_response(
        body.request_id, error=code, message=message
    ),
    _T.SEND: _send,
    _T.ACK: _ack,
    _T.GET_SCHEMA: _typed("GET_SCHEMA_RESPONSE", "error_code", "error_message"),
    _T.GET_OR_CREATE_SCHEMA: _typed("GET_OR_CREATE_SCHEMA_RESPONSE", "error_code", "error_message"),
    _T.CONSUMER_STATS: _typed("CONSUMER_STATS_RESPONSE", "error_code", "error_message"),
    _T.TC_CLIENT_CONNECT_REQUEST: _typed("TC_CLIENT_CONNECT_RESPONSE"),
    _T.NEW_TXN: _new_txn,
    _T.ADD_PARTITION_TO_TXN: _in_transaction("ADD_PARTITION_TO_TXN_RESPONSE"),
    _T.ADD_SUBSCRIPTION_TO_TXN: _in_transaction("ADD_SUBSCRIPTION_TO_TXN_RESPONSE"),
    _T.END_TXN: _in_transaction("END_TXN_RESPONSE"),
    _T.END_TXN_ON_PARTITION: _in_transaction("END_TXN_ON_PARTITION_RESPONSE"),
    _T.END_TXN_ON_SUBSCRIPTION: _in_transaction("END_TXN_ON_SUBSCRIPTION_RESPONSE"),
    _T.WATCH_TC_ASSIGNMENTS: _update("WATCH_TC_ASSIGNMENTS_UPDATE", "watch_id"),
    _T.SCALABLE_TOPIC_LOOKUP: _update("SCALABLE_TOPIC_UPDATE", "session_id"),
    _T.SCALABLE_TOPIC_SUBSCRIBE: _typed("SCALABLE_TOPIC_SUBSCRIBE_RESPONSE"),
    _T.WATCH_SCALABLE_TOPICS: _update("WATCH_SCALABLE_TOPICS_UPDATE", "watch_id"),
}


def refusal(kind: int, body: Any, code: int, message: str) -> pb.BaseCommand | None:
    """Return the command that refuses a request, None if it has no answer."""
    if kind in _REFUSALS:
        return _REFUSALS[kind](body, code, message)
    if "request_id" not in body.DESCRIPTOR.fields_by_name:
        return None
    return answers.error(body.request_id, code, message)
