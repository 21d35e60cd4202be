"""The official client's parameters as the engine's options.

`given` has the arguments of a method of `PulsarClient` by their names (`checked_arguments`). All of
these functions raise OptionError for values that cannot be used. The numbers of enums are those of
the protocol.
"""

from __future__ import annotations

import secrets
from typing import Any

from pulsar_spark.client.encryption import key_reader
from pulsar_spark.client.enums import (
    BatchingType,
    PartitionsRoutingMode,
    ProducerAccessMode,
)
from pulsar_spark.client.message import MessageId
from pulsar_spark.client.schema import Schema, check_schema
from pulsar_spark.engine.encryption import EncryptionOptions
from pulsar_spark.engine.options import ConsumerOptions, ProducerOptions, ReaderOptions
from pulsar_spark.engine.producers.routing import ROUND_ROBIN, SINGLE_PARTITION
from pulsar_spark.errors import OptionError
from pulsar_spark.protocol.message_id import LATEST_POSITION, Position

_ROUTING = {
    PartitionsRoutingMode.UseSinglePartition: SINGLE_PARTITION,
    PartitionsRoutingMode.RoundRobinDistribution: ROUND_ROBIN,
    PartitionsRoutingMode.CustomPartition: ROUND_ROBIN,
}
# The official client's minimum: a message must have time to be acknowledged.
_LEAST_ACK_TIMEOUT_MS = 10_000


def producer_options(
    given: Any, partitions: int, schema: Schema, encryption: EncryptionOptions | None
) -> ProducerOptions:
    """Return how a producer of `create_producer` sends to each of its partitions."""
    return ProducerOptions(
        compression=int(given.compression_type),
        batching_enabled=given.batching_enabled,
        batching_max_messages=given.batching_max_messages,
        # With 0 each message goes alone, as with any size below its own.
        batching_max_bytes=max(given.batching_max_allowed_size_in_bytes, 1),
        batching_max_delay=given.batching_max_publish_delay_ms / 1000,
        batching_by_key=given.batching_type is BatchingType.KeyBased,
        send_timeout=max(given.send_timeout_millis, 0) / 1000,
        max_pending_messages=_most_pending(given, partitions),
        routing_mode=_ROUTING[given.message_routing_mode],
        producer_name=given.producer_name or None,
        initial_sequence_id=given.initial_sequence_id,
        access_mode=int(given.access_mode),
        chunking_enabled=given.chunking_enabled,
        schema=schema.registered(),
        properties=tuple((given.properties or {}).items()),
        encryption=encryption,
        # Others announce their transactions by a second producer, which this one keeps out.
        txn_enabled=given.access_mode is not ProducerAccessMode.Shared,
        waits_for_name=False,
    )


def _most_pending(given: Any, partitions: int) -> int:
    """Return how many messages of each partition may be pending; 0 if there is no such limit."""
    most: int = given.max_pending_messages
    across: int = given.max_pending_messages_across_partitions
    # As in the official client, a topic without partitions is not limited by what all of them
    # share, and 0 takes away both limits of those that have some.
    if not partitions:
        return most
    return min(most, max(across // partitions, 1)) if across else 0


def reader_options(given: Any) -> tuple[ReaderOptions, Schema]:
    """Return how a reader of `create_reader` fetches, and the schema of its values."""
    keys, schema = key_reader(given.crypto_key_reader), check_schema(given.schema)
    options = ReaderOptions(
        receiver_queue_size=max(given.receiver_queue_size, 1),
        read_compacted=given.is_read_compacted,
        subscription_prefix=given.subscription_role_prefix or "reader",
        crypto_keys=keys,
        crypto_failure_action=given.crypto_failure_action.name,
        schema=schema.registered(),
    )
    return options, schema


def consumer_options(given: Any) -> tuple[ConsumerOptions, Schema]:
    """Return how a consumer of `subscribe` subscribes, and the schema of its values."""
    keys, schema = key_reader(given.crypto_key_reader), check_schema(given.schema)
    backoff, key_shared = given.negative_ack_redelivery_backoff, given.key_shared_policy
    timeout = given.unacked_messages_timeout_ms or 0
    if timeout and timeout < _LEAST_ACK_TIMEOUT_MS:
        raise OptionError(
            f"unacked_messages_timeout_ms is {timeout}",
            f"It must be at least {_LEAST_ACK_TIMEOUT_MS}, or None.",
        )
    most_chunked = 0
    if given.auto_ack_oldest_chunked_message_on_queue_full:
        most_chunked = max(given.max_pending_chunked_message, 1)
    options = ConsumerOptions(
        given.subscription_name,
        kind=int(given.consumer_type),
        consumer_name=given.consumer_name or secrets.token_hex(5),
        durable=given.durable,
        start=_start_of(given.start_message_id, given.start_message_id_inclusive),
        start_age=given.start_message_rollback_seconds,
        start_inclusive=given.start_message_id_inclusive,
        initial=int(given.initial_position),
        receiver_queue_size=given.receiver_queue_size,
        read_compacted=given.is_read_compacted,
        properties=tuple((given.properties or {}).items()),
        subscription_properties=tuple((given.subscription_properties or {}).items()),
        priority_level=given.priority_level,
        replicated=given.replicate_subscription_state_enabled,
        key_shared=None if key_shared is None else key_shared._rules,
        schema=schema.registered(),
        ack_receipts=given.ack_receipt_enabled,
        batch_index_acks=given.batch_index_ack_enabled,
        nack_delay=given.negative_ack_redelivery_delay_ms / 1000,
        nack_backoff=None if backoff is None else backoff._backoff,
        ack_timeout=timeout / 1000,
        discard_corrupt=given.discard_corrupt_messages,
        max_chunked=most_chunked,
        crypto_keys=keys,
        crypto_failure_action=given.crypto_failure_action.name,
    )
    return options, schema


def _start_of(message_id: MessageId | None, inclusive: bool) -> Position:
    if message_id is None:
        return LATEST_POSITION
    wanted = message_id.unwrap()
    return Position.before(wanted) if inclusive else Position.after(wanted)
