"""Types of arguments, checked first: a wrong one is a ValueError, as in the official client."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import IntEnum
from types import NoneType
from typing import Any

from pulsar_spark.client.authentication import Authentication
from pulsar_spark.client.consumer_policies import (
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    MultiplierRedeliveryBackoff,
)
from pulsar_spark.client.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
    choice,
)
from pulsar_spark.client.loggers import ConsoleLogger, FileLogger
from pulsar_spark.client.message import MessageId
from pulsar_spark.errors import OptionError

TIME = (int, float)
_OPTIONAL_TEXT = (str, NoneType)
_OPTIONAL_DICT = (dict, NoneType)
_OPTIONAL_CALLABLE = (Callable, NoneType)

CLIENT: Mapping[str, Any] = {
    "service_url": str,
    "authentication": (Authentication, NoneType),
    "operation_timeout_seconds": TIME,
    "io_threads": int,
    "message_listener_threads": int,
    "concurrent_lookup_requests": int,
    "log_conf_file_path": _OPTIONAL_TEXT,
    "stats_interval_in_seconds": int,
    "use_tls": bool,
    "tls_trust_certs_file_path": _OPTIONAL_TEXT,
    "tls_allow_insecure_connection": bool,
    "tls_validate_hostname": bool,
    "logger": (logging.Logger, ConsoleLogger, FileLogger, NoneType),
    "connection_timeout_ms": TIME,
    "listener_name": _OPTIONAL_TEXT,
    "tls_private_key_file_path": _OPTIONAL_TEXT,
    "tls_certificate_file_path": _OPTIONAL_TEXT,
    "keep_freed_memory": bool,
}

PRODUCER: Mapping[str, Any] = {
    "topic": str,
    "producer_name": _OPTIONAL_TEXT,
    "initial_sequence_id": (int, NoneType),
    "send_timeout_millis": TIME,
    "compression_type": CompressionType,
    "max_pending_messages": int,
    "max_pending_messages_across_partitions": int,
    "block_if_queue_full": bool,
    "batching_enabled": bool,
    "batching_max_messages": int,
    "batching_max_allowed_size_in_bytes": int,
    "batching_max_publish_delay_ms": TIME,
    "chunking_enabled": bool,
    "message_routing_mode": PartitionsRoutingMode,
    "lazy_start_partitioned_producers": bool,
    "properties": _OPTIONAL_DICT,
    "batching_type": BatchingType,
    "encryption_key": (str, list, tuple, NoneType),
    "access_mode": ProducerAccessMode,
    "message_router": _OPTIONAL_CALLABLE,
    "auto_update_partitions_interval_seconds": TIME,
}

READER: Mapping[str, Any] = {
    "topic": str,
    "start_message_id": MessageId,
    "reader_listener": _OPTIONAL_CALLABLE,
    "receiver_queue_size": int,
    "reader_name": _OPTIONAL_TEXT,
    "subscription_role_prefix": _OPTIONAL_TEXT,
    "is_read_compacted": bool,
    "start_message_id_inclusive": bool,
    "crypto_failure_action": ConsumerCryptoFailureAction,
    "auto_update_partitions_interval_seconds": TIME,
}

CONSUMER: Mapping[str, Any] = {
    "subscription_name": str,
    "consumer_type": ConsumerType,
    "message_listener": _OPTIONAL_CALLABLE,
    "receiver_queue_size": int,
    "max_total_receiver_queue_size_across_partitions": int,
    "consumer_name": _OPTIONAL_TEXT,
    "unacked_messages_timeout_ms": (*TIME, NoneType),
    "broker_consumer_stats_cache_time_ms": TIME,
    "negative_ack_redelivery_delay_ms": TIME,
    "is_read_compacted": bool,
    "properties": _OPTIONAL_DICT,
    "pattern_auto_discovery_period": TIME,
    "initial_position": InitialPosition,
    "replicate_subscription_state_enabled": bool,
    "max_pending_chunked_message": int,
    "auto_ack_oldest_chunked_message_on_queue_full": bool,
    "start_message_id_inclusive": bool,
    "batch_receive_policy": (ConsumerBatchReceivePolicy, NoneType),
    "key_shared_policy": (ConsumerKeySharedPolicy, NoneType),
    "batch_index_ack_enabled": bool,
    "regex_subscription_mode": RegexSubscriptionMode,
    "dead_letter_policy": (ConsumerDeadLetterPolicy, NoneType),
    "crypto_failure_action": ConsumerCryptoFailureAction,
    "ack_receipt_enabled": bool,
    "priority_level": int,
    "subscription_properties": _OPTIONAL_DICT,
    "durable": bool,
    "start_message_id": (MessageId, NoneType),
    "start_message_rollback_seconds": (int, NoneType),
    "negative_ack_redelivery_backoff": (MultiplierRedeliveryBackoff, NoneType),
    "discard_corrupt_messages": bool,
    "auto_update_partitions_interval_seconds": TIME,
    "enable_retry": bool,
}

TABLE_VIEW: Mapping[str, Any] = {
    "topic": str,
    "subscription_name": _OPTIONAL_TEXT,
    "auto_update_partitions_interval_seconds": TIME,
}


def check_types(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Check a call's arguments, by their names; raises OptionError.

    Enums may also be numbers, or those of the official client.
    """
    for name, kinds in wanted.items():
        if isinstance(kinds, type) and issubclass(kinds, IntEnum):
            choice(kinds, given[name], name)
        else:
            check_type(kinds, given[name], name)


def check_type(kinds: Any, value: object, name: str) -> None:
    """Check one argument: `kinds` is a type, or several of them; raises OptionError."""
    if not isinstance(value, kinds):
        several = kinds if isinstance(kinds, tuple) else (kinds,)
        names = " or ".join("None" if kind is NoneType else kind.__name__ for kind in several)
        raise OptionError(
            f"{name} is a value of the type {type(value).__name__}, it must be {names}"
        )


def seconds(timeout_millis: float | None) -> float | None:
    """Return a timeout in seconds; raises OptionError if it is no number."""
    if timeout_millis is None:
        return None
    check_type(TIME, timeout_millis, "timeout_millis")
    return timeout_millis / 1000
