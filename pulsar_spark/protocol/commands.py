"""Builders: one function per command, from plain values to a `BaseCommand`.

Commands that clients or both sides send; `answers.py` has those that only brokers send. Arguments
have the protocol's names; None is not sent. `build` makes any command by the name of its type, for
those without a function here (topic list watchers, scalable topics, the brokers' own transaction
commands).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pulsar_spark.errors import LocalProtocolError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import BODY_FIELDS

CLIENT_PROTOCOL_VERSION = 21
"""The newest protocol version that this package speaks."""

NO_REQUEST_ID = 2**64 - 1
"""Request id of a command that expects no answer, such as a broker's own CLOSE_CONSUMER."""


# Transactions up to the low watermark are over: -1 as brokers read it, below all of them.
_NO_LOW_WATERMARK = 2**64 - 1


class TxnId(NamedTuple):
    """A transaction's id: `most_bits` is the coordinator, `least_bits` its counter."""

    most_bits: int
    least_bits: int


def build(kind: str, **fields: Any) -> pb.BaseCommand:
    """Return the command of the type named `kind`, such as ``"LOOKUP"``.

    Fields that are None are left out. Raises LocalProtocolError for an unknown type or field, and
    for values of a wrong type or out of range.
    """
    try:
        number = pb.BaseCommand.Type.Value(kind)
        content: dict[str, Any] = {"type": number, BODY_FIELDS[number]: fields}
        return pb.BaseCommand(**content)
    except (TypeError, ValueError) as error:
        raise LocalProtocolError(f"{kind} cannot be built: {error}") from None


def key_values(items: Mapping[str, str] | None) -> list[pb.KeyValue]:
    """Return a mapping as the protocol's list of pairs."""
    return [pb.KeyValue(key=key, value=value) for key, value in (items or {}).items()]


def txn_fields(txn: TxnId | None) -> dict[str, int]:
    """Return the two fields that name a transaction in commands, none for None."""
    if txn is None:
        return {}
    return {"txnid_least_bits": txn.least_bits, "txnid_most_bits": txn.most_bits}


# --- connection -----------------------------------------------------------------------------


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
        "CONNECT",
        client_version=client_version,
        auth_method_name=auth_method_name,
        auth_data=auth_data,
        proxy_to_broker_url=proxy_to_broker_url,
        protocol_version=CLIENT_PROTOCOL_VERSION,
        feature_flags=flags,
    )


def auth_response(client_version: str, auth_method_name: str, auth_data: bytes) -> pb.BaseCommand:
    """AUTH_RESPONSE: fresh credentials, in answer to an AUTH_CHALLENGE."""
    data = pb.AuthData(auth_method_name=auth_method_name, auth_data=auth_data)
    return build(
        "AUTH_RESPONSE",
        client_version=client_version,
        response=data,
        protocol_version=CLIENT_PROTOCOL_VERSION,
    )


def ping() -> pb.BaseCommand:
    """PING: is the other side still there?"""
    return build("PING")


def pong() -> pb.BaseCommand:
    """PONG: yes."""
    return build("PONG")


# --- lookup and metadata --------------------------------------------------------------------


def lookup(
    topic: str,
    request_id: int,
    *,
    authoritative: bool = False,
    advertised_listener_name: str | None = None,
) -> pb.BaseCommand:
    """LOOKUP: which broker serves a topic partition?"""
    return build(
        "LOOKUP",
        topic=topic,
        request_id=request_id,
        authoritative=authoritative,
        advertised_listener_name=advertised_listener_name,
    )


def partitioned_metadata(
    topic: str, request_id: int, *, auto_create: bool = False
) -> pb.BaseCommand:
    """PARTITIONED_METADATA: how many partitions has a topic? By default it is not created."""
    return build(
        "PARTITIONED_METADATA",
        topic=topic,
        request_id=request_id,
        metadata_auto_creation_enabled=auto_create,
    )


def get_topics_of_namespace(
    namespace: str,
    request_id: int,
    *,
    mode: int = pb.CommandGetTopicsOfNamespace.PERSISTENT,
    topics_pattern: str | None = None,
    topics_hash: str | None = None,
) -> pb.BaseCommand:
    """GET_TOPICS_OF_NAMESPACE: the topics (partitions one by one) of ``tenant/namespace``."""
    return build(
        "GET_TOPICS_OF_NAMESPACE",
        namespace=namespace,
        request_id=request_id,
        mode=mode,
        topics_pattern=topics_pattern,
        topics_hash=topics_hash,
    )


def get_schema(topic: str, request_id: int, schema_version: bytes | None = None) -> pb.BaseCommand:
    """GET_SCHEMA: a topic's schema, the latest unless a version (8 bytes) is given."""
    return build("GET_SCHEMA", topic=topic, request_id=request_id, schema_version=schema_version)


def get_or_create_schema(topic: str, request_id: int, schema: pb.Schema) -> pb.BaseCommand:
    """GET_OR_CREATE_SCHEMA: register a schema with a topic, or find its version."""
    return build("GET_OR_CREATE_SCHEMA", topic=topic, request_id=request_id, schema=schema)


# --- producers ------------------------------------------------------------------------------


def producer(
    topic: str,
    producer_id: int,
    request_id: int,
    *,
    producer_name: str | None = None,
    user_provided_producer_name: bool = False,
    epoch: int = 0,
    encrypted: bool = False,
    metadata: Mapping[str, str] | None = None,
    schema: pb.Schema | None = None,
    access_mode: int = pb.Shared,
    topic_epoch: int | None = None,
    txn_enabled: bool = False,
    initial_subscription_name: str | None = None,
) -> pb.BaseCommand:
    """PRODUCER: open a producer on a topic partition."""
    return build(
        "PRODUCER",
        topic=topic,
        producer_id=producer_id,
        request_id=request_id,
        producer_name=producer_name,
        user_provided_producer_name=user_provided_producer_name,
        epoch=epoch,
        encrypted=encrypted,
        metadata=key_values(metadata),
        schema=schema,
        producer_access_mode=access_mode,
        topic_epoch=topic_epoch,
        txn_enabled=txn_enabled,
        initial_subscription_name=initial_subscription_name,
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


def close_producer(
    producer_id: int,
    request_id: int,
    *,
    assigned_broker_url: str | None = None,
    assigned_broker_url_tls: str | None = None,
) -> pb.BaseCommand:
    """CLOSE_PRODUCER, from either side; a broker can say where the topic went."""
    return build(
        "CLOSE_PRODUCER",
        producer_id=producer_id,
        request_id=request_id,
        assignedBrokerServiceUrl=assigned_broker_url,
        assignedBrokerServiceUrlTls=assigned_broker_url_tls,
    )


# --- consumers ------------------------------------------------------------------------------


def subscribe(
    topic: str,
    subscription: str,
    consumer_id: int,
    request_id: int,
    *,
    sub_type: int = pb.CommandSubscribe.Exclusive,
    consumer_name: str | None = None,
    priority_level: int = 0,
    durable: bool = True,
    start_message_id: pb.MessageIdData | None = None,
    start_message_rollback_duration_sec: int | None = None,
    initial_position: int = pb.CommandSubscribe.Latest,
    read_compacted: bool = False,
    force_topic_creation: bool = False,
    metadata: Mapping[str, str] | None = None,
    subscription_properties: Mapping[str, str] | None = None,
    schema: pb.Schema | None = None,
    key_shared_meta: pb.KeySharedMeta | None = None,
    replicate_subscription_state: bool | None = None,
    consumer_epoch: int | None = None,
) -> pb.BaseCommand:
    """SUBSCRIBE: attach a consumer to a subscription of a topic partition.

    `start_message_id` counts only for a subscription that is not durable; a durable one starts
    at `initial_position` when it is created.
    """
    return build(
        "SUBSCRIBE",
        topic=topic,
        subscription=subscription,
        subType=sub_type,
        consumer_id=consumer_id,
        request_id=request_id,
        consumer_name=consumer_name,
        priority_level=priority_level,
        durable=durable,
        start_message_id=start_message_id,
        start_message_rollback_duration_sec=start_message_rollback_duration_sec,
        initialPosition=initial_position,
        read_compacted=read_compacted,
        force_topic_creation=force_topic_creation,
        metadata=key_values(metadata),
        subscription_properties=key_values(subscription_properties),
        schema=schema,
        keySharedMeta=key_shared_meta,
        replicate_subscription_state=replicate_subscription_state,
        consumer_epoch=consumer_epoch,
    )


def flow(consumer_id: int, permits: int) -> pb.BaseCommand:
    """FLOW: the broker may deliver `permits` more messages."""
    return build("FLOW", consumer_id=consumer_id, messagePermits=permits)


def ack(
    consumer_id: int,
    message_ids: Sequence[pb.MessageIdData],
    *,
    cumulative: bool = False,
    request_id: int | None = None,
    properties: Iterable[pb.KeyLongValue] = (),
    validation_error: int | None = None,
    txn: TxnId | None = None,
) -> pb.BaseCommand:
    """ACK: messages are done; with a request id the broker answers by ACK_RESPONSE."""
    kind = pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual
    return build(
        "ACK",
        consumer_id=consumer_id,
        ack_type=kind,
        message_id=list(message_ids),
        request_id=request_id,
        properties=list(properties),
        validation_error=validation_error,
        **txn_fields(txn),
    )


def redeliver_unacknowledged_messages(
    consumer_id: int,
    message_ids: Sequence[pb.MessageIdData] = (),
    *,
    consumer_epoch: int | None = None,
) -> pb.BaseCommand:
    """REDELIVER_UNACKNOWLEDGED_MESSAGES: send these again, or everything if none is named."""
    return build(
        "REDELIVER_UNACKNOWLEDGED_MESSAGES",
        consumer_id=consumer_id,
        message_ids=list(message_ids),
        consumer_epoch=consumer_epoch,
    )


def seek(
    consumer_id: int,
    request_id: int,
    *,
    message_id: pb.MessageIdData | None = None,
    publish_time: int | None = None,
) -> pb.BaseCommand:
    """SEEK: move a subscription to a message id, or to a publish time (ms since the epoch)."""
    if (message_id is None) == (publish_time is None):
        raise LocalProtocolError("SEEK takes either a message id or a publish time")
    return build(
        "SEEK",
        consumer_id=consumer_id,
        request_id=request_id,
        message_id=message_id,
        message_publish_time=publish_time,
    )


def get_last_message_id(consumer_id: int, request_id: int) -> pb.BaseCommand:
    """GET_LAST_MESSAGE_ID: the last message that a consumer of the topic can be sent."""
    return build("GET_LAST_MESSAGE_ID", consumer_id=consumer_id, request_id=request_id)


def consumer_stats(consumer_id: int, request_id: int) -> pb.BaseCommand:
    """CONSUMER_STATS: rates and backlog of a consumer's subscription."""
    return build("CONSUMER_STATS", consumer_id=consumer_id, request_id=request_id)


def unsubscribe(consumer_id: int, request_id: int, *, force: bool | None = None) -> pb.BaseCommand:
    """UNSUBSCRIBE: remove the consumer's subscription, by `force` with others connected."""
    return build("UNSUBSCRIBE", consumer_id=consumer_id, request_id=request_id, force=force)


def close_consumer(
    consumer_id: int,
    request_id: int,
    *,
    assigned_broker_url: str | None = None,
    assigned_broker_url_tls: str | None = None,
) -> pb.BaseCommand:
    """CLOSE_CONSUMER, from either side; a broker can say where the topic went."""
    return build(
        "CLOSE_CONSUMER",
        consumer_id=consumer_id,
        request_id=request_id,
        assignedBrokerServiceUrl=assigned_broker_url,
        assignedBrokerServiceUrlTls=assigned_broker_url_tls,
    )


# --- transactions ---------------------------------------------------------------------------


def tc_client_connect_request(request_id: int, tc_id: int) -> pb.BaseCommand:
    """TC_CLIENT_CONNECT_REQUEST: announce a client to a transaction coordinator."""
    return build("TC_CLIENT_CONNECT_REQUEST", request_id=request_id, tc_id=tc_id)


def new_txn(request_id: int, tc_id: int, ttl_millis: int) -> pb.BaseCommand:
    """NEW_TXN: begin a transaction that the coordinator aborts after `ttl_millis`."""
    return build("NEW_TXN", request_id=request_id, tc_id=tc_id, txn_ttl_millis=ttl_millis)


def add_partition_to_txn(request_id: int, txn: TxnId, partitions: Sequence[str]) -> pb.BaseCommand:
    """ADD_PARTITION_TO_TXN: these topic partitions will be written in the transaction."""
    return build(
        "ADD_PARTITION_TO_TXN",
        request_id=request_id,
        partitions=list(partitions),
        **txn_fields(txn),
    )


def add_subscription_to_txn(
    request_id: int, txn: TxnId, subscriptions: Sequence[pb.Subscription]
) -> pb.BaseCommand:
    """ADD_SUBSCRIPTION_TO_TXN: these subscriptions will be acknowledged in the transaction."""
    return build(
        "ADD_SUBSCRIPTION_TO_TXN",
        request_id=request_id,
        subscription=list(subscriptions),
        **txn_fields(txn),
    )


def end_txn(request_id: int, txn: TxnId, action: int) -> pb.BaseCommand:
    """END_TXN: commit or abort a transaction (`pb.COMMIT`, `pb.ABORT`)."""
    return build("END_TXN", request_id=request_id, txn_action=action, **txn_fields(txn))


def end_txn_on_partition(request_id: int, txn: TxnId, topic: str, action: int) -> pb.BaseCommand:
    """END_TXN_ON_PARTITION: write the marker of an ended transaction to a topic partition.

    Coordinators send it; brokers accept it from superusers too. Its low watermark aborts nothing.
    """
    return build(
        "END_TXN_ON_PARTITION",
        request_id=request_id,
        topic=topic,
        txn_action=action,
        txnid_least_bits_of_low_watermark=_NO_LOW_WATERMARK,
        **txn_fields(txn),
    )
