"""Commands, made of the class of their body and its fields.

`build` makes every command of either side, `request` those that get an id when they are sent.
Functions of their own have CONNECT, which says what this package can do, and SEND, for speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, ParamSpec

from google.protobuf.message import Message

from pulsar_spark.errors import LocalProtocolError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import BODY_FIELDS

CLIENT_PROTOCOL_VERSION = 21
"""The newest protocol version that this package speaks."""

NO_REQUEST_ID = 2**64 - 1
"""Request id of a command that expects no answer, such as a broker's own CLOSE_CONSUMER."""

BODIES: dict[Callable[..., Message], tuple[int, str]] = {
    type(getattr(pb.BaseCommand(), name)): (number, name) for number, name in BODY_FIELDS.items()
}
"""The type of command that has a body of each class, and the body's field."""

P = ParamSpec("P")


class TxnId(NamedTuple):
    """A transaction's id: `most_bits` is the coordinator, `least_bits` its counter."""

    most_bits: int
    least_bits: int


def build(body: Callable[P, Message], /, *_: P.args, **fields: P.kwargs) -> pb.BaseCommand:
    """Return the command with a body of a class, such as `pb.CommandLookupTopic`.

    Fields have the protocol's names; those that are None are left out. Raises LocalProtocolError
    for an unknown field, and for values of a wrong type or out of range.
    """
    return _made(body, fields)


def request(
    body: Callable[P, Message], /, *_: P.args, **fields: P.kwargs
) -> Callable[[int], pb.BaseCommand]:
    """Return what builds a command with these fields and a request id; see `build`."""
    return lambda request_id: _made(body, dict(fields, request_id=request_id))


def _made(body: Callable[..., Message], fields: Mapping[str, Any]) -> pb.BaseCommand:
    number, name = BODIES[body]
    # In one call: a body made on its own would be copied.
    content: dict[str, Any] = {"type": number, name: fields}
    try:
        return pb.BaseCommand(**content)
    except (TypeError, ValueError) as error:
        kind = pb.BaseCommand.Type.Name(number)
        raise LocalProtocolError(f"{kind} cannot be built: {error}") from None


def key_values(pairs: Iterable[tuple[str, str]]) -> list[pb.KeyValue]:
    """Return pairs as the protocol has them."""
    return [pb.KeyValue(key=key, value=value) for key, value in pairs]


def txn_fields(txn: TxnId) -> dict[str, Any]:
    """Return the two fields that name a transaction in commands."""
    return {"txnid_least_bits": txn.least_bits, "txnid_most_bits": txn.most_bits}


def connect(
    client_version: str,
    *,
    auth_method_name: str = "none",
    auth_data: bytes | None = None,
    proxy_to_broker_url: str | None = None,
) -> pb.BaseCommand:
    """CONNECT: the first command of a client. `proxy_to_broker_url` is ``host:port``."""
    flags = pb.FeatureFlags(
        supports_auth_refresh=True,
        supports_broker_entry_metadata=True,
        supports_partial_producer=True,
        supports_get_partitioned_metadata_without_auto_creation=True,
    )
    return build(
        pb.CommandConnect,
        client_version=client_version,
        auth_method_name=auth_method_name,
        auth_data=auth_data,
        proxy_to_broker_url=proxy_to_broker_url,
        protocol_version=CLIENT_PROTOCOL_VERSION,
        feature_flags=flags,
    )


def send(
    producer_id: int,
    sequence_id: int,
    num_messages: int = 1,
    *,
    highest_sequence_id: int | None = None,
    txn: TxnId | None = None,
    is_chunk: bool | None = None,
) -> pb.BaseCommand:
    """SEND: publish one entry; its metadata and payload follow the command."""
    command = pb.BaseCommand(type=pb.BaseCommand.SEND)
    body = command.send
    # Called once per message without batching, where `build` would take twice the time.
    try:
        body.producer_id = producer_id
        body.sequence_id = sequence_id
        body.num_messages = num_messages
        if highest_sequence_id is not None:
            body.highest_sequence_id = highest_sequence_id
        if is_chunk is not None:
            body.is_chunk = is_chunk
        if txn is not None:
            body.txnid_least_bits = txn.least_bits
            body.txnid_most_bits = txn.most_bits
    except (TypeError, ValueError) as error:
        raise LocalProtocolError(f"SEND cannot be built: {error}") from None
    return command
