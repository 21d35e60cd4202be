"""Commands in brief: those that tests send often, with what they seldom vary.

Further fields have the protocol's names, as in `commands.build`.
"""

from __future__ import annotations

from typing import Any

from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb

# --- from clients, or from both sides ---


def subscribe(
    topic: str, subscription: str, consumer_id: int, request_id: int, **fields: Any
) -> pb.BaseCommand:
    """SUBSCRIBE, alone unless told otherwise."""
    fields.setdefault("subType", pb.CommandSubscribe.Exclusive)
    return commands.build(
        pb.CommandSubscribe,
        topic=topic,
        subscription=subscription,
        consumer_id=consumer_id,
        request_id=request_id,
        **fields,
    )


def close_producer(producer_id: int, request_id: int, **fields: Any) -> pb.BaseCommand:
    """CLOSE_PRODUCER."""
    return commands.build(
        pb.CommandCloseProducer, producer_id=producer_id, request_id=request_id, **fields
    )


def close_consumer(consumer_id: int, request_id: int, **fields: Any) -> pb.BaseCommand:
    """CLOSE_CONSUMER."""
    return commands.build(
        pb.CommandCloseConsumer, consumer_id=consumer_id, request_id=request_id, **fields
    )


# --- from brokers ---


def connected(server_version: str, **fields: Any) -> pb.BaseCommand:
    """CONNECTED, from a broker as new as this package."""
    return commands.build(
        pb.CommandConnected,
        server_version=server_version,
        protocol_version=commands.CLIENT_PROTOCOL_VERSION,
        **fields,
    )


def auth_challenge(
    server_version: str, method: str, challenge: bytes = b"PulsarAuthRefresh"
) -> pb.BaseCommand:
    """AUTH_CHALLENGE; without a challenge of its own, the credentials have expired."""
    return commands.build(
        pb.CommandAuthChallenge,
        server_version=server_version,
        challenge=pb.AuthData(auth_method_name=method, auth_data=challenge),
        protocol_version=commands.CLIENT_PROTOCOL_VERSION,
    )


def error(request_id: int, code: int, message: str) -> pb.BaseCommand:
    """ERROR."""
    return commands.build(pb.CommandError, request_id=request_id, error=code, message=message)


def lookup_response(request_id: int, response: int, **fields: Any) -> pb.BaseCommand:
    """LOOKUP_RESPONSE."""
    return commands.build(
        pb.CommandLookupTopicResponse, request_id=request_id, response=response, **fields
    )


def partitions_response(request_id: int, partitions: int) -> pb.BaseCommand:
    """PARTITIONED_METADATA_RESPONSE: success."""
    return commands.build(
        pb.CommandPartitionedTopicMetadataResponse,
        request_id=request_id,
        response=pb.CommandPartitionedTopicMetadataResponse.Success,
        partitions=partitions,
    )


def producer_success(request_id: int, producer_name: str, **fields: Any) -> pb.BaseCommand:
    """PRODUCER_SUCCESS."""
    return commands.build(
        pb.CommandProducerSuccess, request_id=request_id, producer_name=producer_name, **fields
    )


def send_receipt(
    producer_id: int, sequence_id: int, message_id: pb.MessageIdData, **fields: Any
) -> pb.BaseCommand:
    """SEND_RECEIPT."""
    return commands.build(
        pb.CommandSendReceipt,
        producer_id=producer_id,
        sequence_id=sequence_id,
        message_id=message_id,
        **fields,
    )


def send_error(producer_id: int, sequence_id: int, code: int, message: str) -> pb.BaseCommand:
    """SEND_ERROR."""
    return commands.build(
        pb.CommandSendError,
        producer_id=producer_id,
        sequence_id=sequence_id,
        error=code,
        message=message,
    )


def message(consumer_id: int, message_id: pb.MessageIdData, **fields: Any) -> pb.BaseCommand:
    """MESSAGE; its metadata and payload follow the command."""
    return commands.build(
        pb.CommandMessage, consumer_id=consumer_id, message_id=message_id, **fields
    )


def last_id_response(
    request_id: int, last: pb.MessageIdData, mark_delete: pb.MessageIdData | None = None
) -> pb.BaseCommand:
    """GET_LAST_MESSAGE_ID_RESPONSE."""
    return commands.build(
        pb.CommandGetLastMessageIdResponse,
        request_id=request_id,
        last_message_id=last,
        consumer_mark_delete_position=mark_delete,
    )
