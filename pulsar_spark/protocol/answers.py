"""Builders of commands that only brokers send: answers to requests, and notifications.

As in `commands.py`, arguments have the protocol's names, and None is not sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import CLIENT_PROTOCOL_VERSION, build


def connected(
    server_version: str,
    *,
    protocol_version: int = CLIENT_PROTOCOL_VERSION,
    max_message_size: int | None = None,
    feature_flags: pb.FeatureFlags | None = None,
) -> pb.BaseCommand:
    """CONNECTED: the answer to CONNECT."""
    return build(
        "CONNECTED",
        server_version=server_version,
        protocol_version=protocol_version,
        max_message_size=max_message_size,
        feature_flags=feature_flags,
    )


def auth_challenge(server_version: str, auth_method_name: str, challenge: bytes) -> pb.BaseCommand:
    """AUTH_CHALLENGE: the credentials have expired, or the login has another step."""
    data = pb.AuthData(auth_method_name=auth_method_name, auth_data=challenge)
    return build(
        "AUTH_CHALLENGE",
        server_version=server_version,
        challenge=data,
        protocol_version=CLIENT_PROTOCOL_VERSION,
    )


def success(request_id: int) -> pb.BaseCommand:
    """SUCCESS: a request without an answer of its own was carried out."""
    return build("SUCCESS", request_id=request_id)


def error(request_id: int, code: int, message: str) -> pb.BaseCommand:
    """ERROR: a request failed, with a ServerError `code`."""
    return build("ERROR", request_id=request_id, error=code, message=message)


def lookup_response(
    request_id: int,
    response: int,
    *,
    broker_service_url: str | None = None,
    broker_service_url_tls: str | None = None,
    authoritative: bool | None = None,
    proxy_through_service_url: bool | None = None,
    error: int | None = None,
    message: str | None = None,
) -> pb.BaseCommand:
    """LOOKUP_RESPONSE: Connect, Redirect or Failed."""
    return build(
        "LOOKUP_RESPONSE",
        request_id=request_id,
        response=response,
        brokerServiceUrl=broker_service_url,
        brokerServiceUrlTls=broker_service_url_tls,
        authoritative=authoritative,
        proxy_through_service_url=proxy_through_service_url,
        error=error,
        message=message,
    )


def partitioned_metadata_response(
    request_id: int,
    *,
    partitions: int | None = None,
    error: int | None = None,
    message: str | None = None,
) -> pb.BaseCommand:
    """PARTITIONED_METADATA_RESPONSE: a number of partitions, or an error."""
    kind = pb.CommandPartitionedTopicMetadataResponse
    return build(
        "PARTITIONED_METADATA_RESPONSE",
        request_id=request_id,
        response=kind.Success if error is None else kind.Failed,
        partitions=partitions,
        error=error,
        message=message,
    )


def get_topics_of_namespace_response(
    request_id: int,
    topics: Sequence[str],
    *,
    filtered: bool = False,
    topics_hash: str | None = None,
    changed: bool = True,
) -> pb.BaseCommand:
    """GET_TOPICS_OF_NAMESPACE_RESPONSE: topic names, or that nothing `changed`."""
    return build(
        "GET_TOPICS_OF_NAMESPACE_RESPONSE",
        request_id=request_id,
        topics=list(topics),
        filtered=filtered,
        topics_hash=topics_hash,
        changed=changed,
    )


def get_schema_response(
    request_id: int,
    *,
    schema: pb.Schema | None = None,
    schema_version: bytes | None = None,
) -> pb.BaseCommand:
    """GET_SCHEMA_RESPONSE: a schema and its version."""
    return build(
        "GET_SCHEMA_RESPONSE",
        request_id=request_id,
        schema=schema,
        schema_version=schema_version,
    )


def get_or_create_schema_response(request_id: int, schema_version: bytes) -> pb.BaseCommand:
    """GET_OR_CREATE_SCHEMA_RESPONSE: the version of a schema."""
    return build(
        "GET_OR_CREATE_SCHEMA_RESPONSE", request_id=request_id, schema_version=schema_version
    )


def producer_success(
    request_id: int,
    producer_name: str,
    *,
    last_sequence_id: int = -1,
    schema_version: bytes = b"",
    topic_epoch: int | None = None,
    producer_ready: bool = True,
) -> pb.BaseCommand:
    """PRODUCER_SUCCESS: the producer is open, or waits for access (`producer_ready` false)."""
    return build(
        "PRODUCER_SUCCESS",
        request_id=request_id,
        producer_name=producer_name,
        last_sequence_id=last_sequence_id,
        schema_version=schema_version,
        topic_epoch=topic_epoch,
        producer_ready=producer_ready,
    )


def send_receipt(
    producer_id: int,
    sequence_id: int,
    message_id: pb.MessageIdData,
    highest_sequence_id: int | None = None,
) -> pb.BaseCommand:
    """SEND_RECEIPT: the entry is stored."""
    return build(
        "SEND_RECEIPT",
        producer_id=producer_id,
        sequence_id=sequence_id,
        message_id=message_id,
        highest_sequence_id=highest_sequence_id,
    )


def send_error(producer_id: int, sequence_id: int, code: int, message: str) -> pb.BaseCommand:
    """SEND_ERROR: the entry is not stored, with a ServerError `code`."""
    return build(
        "SEND_ERROR",
        producer_id=producer_id,
        sequence_id=sequence_id,
        error=code,
        message=message,
    )


def message(
    consumer_id: int,
    message_id: pb.MessageIdData,
    *,
    redelivery_count: int | None = None,
    ack_set: Sequence[int] = (),
    consumer_epoch: int | None = None,
) -> pb.BaseCommand:
    """MESSAGE: deliver one entry; its metadata and payload follow the command."""
    return build(
        "MESSAGE",
        consumer_id=consumer_id,
        message_id=message_id,
        redelivery_count=redelivery_count,
        ack_set=list(ack_set),
        consumer_epoch=consumer_epoch,
    )


def ack_response(
    consumer_id: int,
    *,
    request_id: int | None = None,
    error: int | None = None,
    message: str | None = None,
) -> pb.BaseCommand:
    """ACK_RESPONSE: an ACK with a request id was carried out, or failed."""
    return build(
        "ACK_RESPONSE",
        consumer_id=consumer_id,
        request_id=request_id,
        error=error,
        message=message,
    )


def get_last_message_id_response(
    request_id: int,
    last_message_id: pb.MessageIdData,
    consumer_mark_delete_position: pb.MessageIdData | None = None,
) -> pb.BaseCommand:
    """GET_LAST_MESSAGE_ID_RESPONSE: the topic's last id, and where the subscription stands."""
    return build(
        "GET_LAST_MESSAGE_ID_RESPONSE",
        request_id=request_id,
        last_message_id=last_message_id,
        consumer_mark_delete_position=consumer_mark_delete_position,
    )


def reached_end_of_topic(consumer_id: int) -> pb.BaseCommand:
    """REACHED_END_OF_TOPIC: the topic is terminated and everything was delivered."""
    return build("REACHED_END_OF_TOPIC", consumer_id=consumer_id)


def active_consumer_change(consumer_id: int, is_active: bool) -> pb.BaseCommand:
    """ACTIVE_CONSUMER_CHANGE: a Failover consumer became active, or no longer is."""
    return build("ACTIVE_CONSUMER_CHANGE", consumer_id=consumer_id, is_active=is_active)


def consumer_stats_response(request_id: int, **fields: Any) -> pb.BaseCommand:
    """CONSUMER_STATS_RESPONSE, with the interface's own field names."""
    return build("CONSUMER_STATS_RESPONSE", request_id=request_id, **fields)


def topic_migrated(
    resource_id: int,
    resource_type: int,
    *,
    broker_service_url: str | None = None,
    broker_service_url_tls: str | None = None,
) -> pb.BaseCommand:
    """TOPIC_MIGRATED: the producer's or consumer's topic lives in another cluster now."""
    return build(
        "TOPIC_MIGRATED",
        resource_id=resource_id,
        resource_type=resource_type,
        brokerServiceUrl=broker_service_url,
        brokerServiceUrlTls=broker_service_url_tls,
    )
