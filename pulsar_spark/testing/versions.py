"""What an embedded broker with an old protocol version does not understand."""

from __future__ import annotations

from collections.abc import Mapping

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol import versions
from pulsar_spark.testing.actions import Incoming

_T = pb.BaseCommand
_MAGIC = b"\x0e\x01"

TOLD_SINCE: Mapping[int, int] = {
    _T.CLOSE_PRODUCER: versions.CLOSING,
    _T.CLOSE_CONSUMER: versions.CLOSING,
    _T.REACHED_END_OF_TOPIC: versions.END_OF_TOPIC,
    _T.ACTIVE_CONSUMER_CHANGE: versions.ACTIVE_CONSUMER,
}
"""The first version whose clients understand each notification."""


def not_understood(command: Incoming, version: int) -> str | None:
    """Return the part of a command that a version does not understand, None if it does."""
    needed = versions.FIRST_VERSIONS.get(command.kind, 0)
    if version < needed:
        return f"{_T.Type.Name(command.kind)} came with version {needed}"
    body = command.body
    if command.kind == _T.SUBSCRIBE:
        return _subscribe(body, version)
    if command.kind == _T.ACK:
        return _ack(body, version)
    if command.kind == _T.SEND and version < versions.CHECKSUMS:
        payload = command.payload
        if payload is not None and bytes(payload[: len(_MAGIC)]) == _MAGIC:
            return f"checksums came with version {versions.CHECKSUMS}"
    return None


def _subscribe(body: pb.CommandSubscribe, version: int) -> str | None:
    if body.subType == pb.CommandSubscribe.Key_Shared and version < versions.KEY_SHARED:
        return f"Key_Shared came with version {versions.KEY_SHARED}"
    if body.schema.type == pb.Schema.AutoConsume and version < versions.AUTO_CONSUME:
        return f"AutoConsume came with version {versions.AUTO_CONSUME}"
    return None


def _ack(body: pb.CommandAck, version: int) -> str | None:
    if len(body.message_id) > 1 and version < versions.SEVERAL_ACKS:
        return f"acknowledgements of several messages came with version {versions.SEVERAL_ACKS}"
    if body.HasField("request_id") and version < versions.ACK_RECEIPTS:
        return f"answers to acknowledgements came with version {versions.ACK_RECEIPTS}"
    return None
