"""What each protocol version added, and how to adapt commands to older brokers.

`PulsarApi.proto`, ProtocolVersion. Both ends use the older of their versions, which CONNECT and
CONNECTED state. Optional features are left out for an older broker; required ones raise an error
that names the version. Compression (3) and batches (4) concern only clients: brokers of any version
store them unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

from pulsar_spark.errors import RemoteProtocolError, UnsupportedFeature
from pulsar_spark.protocol import pulsar_api_pb2 as pb

KEEP_ALIVE = 1
CLOSING = 5
"""Brokers close single producers and consumers; earlier they closed the connection."""
CHECKSUMS = 6
BINARY_LOOKUP = 7
END_OF_TOPIC = 9
ACTIVE_CONSUMER = 12
SEVERAL_ACKS = 12
TOPICS_OF_NAMESPACE = 12
KEY_SHARED = 14
ACK_RECEIPTS = 17
COORDINATOR_CONNECT = 19
AUTO_CONSUME = 21

_T = pb.BaseCommand

FIRST_VERSIONS: Mapping[int, int] = {
    _T.PING: KEEP_ALIVE,
    _T.PONG: KEEP_ALIVE,
    _T.REDELIVER_UNACKNOWLEDGED_MESSAGES: 2,
    _T.LOOKUP: BINARY_LOOKUP,
    _T.PARTITIONED_METADATA: BINARY_LOOKUP,
    _T.CONSUMER_STATS: 8,
    _T.GET_LAST_MESSAGE_ID: 12,
    _T.GET_TOPICS_OF_NAMESPACE: TOPICS_OF_NAMESPACE,
    _T.GET_SCHEMA: 13,
    _T.AUTH_RESPONSE: 14,
    _T.GET_OR_CREATE_SCHEMA: 15,
    _T.TC_CLIENT_CONNECT_REQUEST: COORDINATOR_CONNECT,
}
"""The version that added a client's command; others always existed, or have no version."""

_REMEDIES: Mapping[int, str] = {
    _T.GET_SCHEMA: "Read with valueFormat=raw, or use a newer broker.",
}

_SIZES = Struct(">II")
_MAGIC = b"\x0e\x01"
_CHECKSUM_BYTES = len(_MAGIC) + 4


def for_peer(command: pb.BaseCommand, version: int) -> list[pb.BaseCommand]:
    """Return what to send for a command to a broker of some version; usually the same.

    May change the command. Raises UnsupportedFeature if the broker is too old.
    """
    check_speaks(command.type, version)
    if command.type == _T.ACK:
        return _acks(command, version)
    if command.type == _T.SUBSCRIBE:
        _adapt_subscribe(command.subscribe, version)
    return [command]


def check_speaks(kind: int, version: int) -> None:
    """Raise UnsupportedFeature if a broker's version lacks a type of command."""
    needed = FIRST_VERSIONS.get(kind, 0)
    if version < needed:
        raise too_old(_T.Type.Name(kind), needed, version, _REMEDIES.get(kind, ""))


def too_old(what: str, needed: int, version: int, remedy: str = "") -> UnsupportedFeature:
    """Return the error for a broker whose version lacks a feature."""
    return UnsupportedFeature(
        f"the broker speaks version {version} of the protocol, and {what} came with version "
        f"{needed}",
        remedy or "Use a newer broker.",
    )


def answers_acks(version: int) -> bool:
    """Whether a broker's version can answer acknowledgements."""
    return version >= ACK_RECEIPTS


def _acks(command: pb.BaseCommand, version: int) -> list[pb.BaseCommand]:
    """Return an acknowledgement without newer fields, split into single messages if necessary."""
    ack = command.ack
    if not answers_acks(version):
        ack.ClearField("request_id")
    if version >= SEVERAL_ACKS or len(ack.message_id) <= 1:
        return [command]
    ids = list(ack.message_id)
    ack.ClearField("message_id")
    found = []
    for message_id in ids:
        one = pb.BaseCommand()
        one.CopyFrom(command)
        one.ack.message_id.add().CopyFrom(message_id)
        found.append(one)
    return found


def _adapt_subscribe(subscribe: pb.CommandSubscribe, version: int) -> None:
    if subscribe.subType == pb.CommandSubscribe.Key_Shared and version < KEY_SHARED:
        raise too_old(
            "the subscription type Key_Shared",
            KEY_SHARED,
            version,
            "Subscribe as Shared, or use a newer broker.",
        )
    if subscribe.schema.type == pb.Schema.AutoConsume and version < AUTO_CONSUME:
        subscribe.ClearField("schema")


def without_checksums(frames: bytes) -> bytes:
    """Return complete SEND frames as brokers before CHECKSUMS expect them."""
    parts = []
    at = 0
    while at < len(frames):
        total, command = _SIZES.unpack_from(frames, at)
        end, behind = at + _SIZES.size // 2 + total, at + _SIZES.size + command
        if end > len(frames) or frames[behind : behind + len(_MAGIC)] != _MAGIC:
            raise RemoteProtocolError("a frame has no checksum where one is to be taken away")
        rest = frames[behind + _CHECKSUM_BYTES : end]
        parts += [
            _SIZES.pack(total - _CHECKSUM_BYTES, command),
            frames[at + _SIZES.size : behind],
            rest,
        ]
        at = end
    return b"".join(parts)
