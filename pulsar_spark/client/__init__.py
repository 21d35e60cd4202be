"""The client layer: sockets, threads and retries around the protocol core.

Public names: `PulsarClient` and the types of its parameters and results, named as in the
official Python client. What needs more than itself is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pulsar_spark.client import exceptions
from pulsar_spark.client.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    KeySharedMode,
    LoggerLevel,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
    Result,
    SchemaType,
)
from pulsar_spark.client.exceptions import *  # noqa: F403

if TYPE_CHECKING:
    from pulsar_spark.client import schema as schema
    from pulsar_spark.client.authentication import (
        Authentication,
        AuthenticationBasic,
        AuthenticationOauth2,
        AuthenticationTLS,
        AuthenticationToken,
    )
    from pulsar_spark.client.client import Client, PulsarClient
    from pulsar_spark.client.consumer import Consumer, ConsumerEventListener, PulsarConsumer
    from pulsar_spark.client.consumer_policies import (
        ConsumerBatchReceivePolicy,
        ConsumerDeadLetterPolicy,
        ConsumerKeySharedPolicy,
        MultiplierRedeliveryBackoff,
    )
    from pulsar_spark.client.consumer_stats import BrokerConsumerStats
    from pulsar_spark.client.encryption import (
        CryptoKeyReader,
        EncryptionContext,
        EncryptionKey,
    )
    from pulsar_spark.client.loggers import ConsoleLogger, FileLogger
    from pulsar_spark.client.message import Message, MessageId
    from pulsar_spark.client.producer import Producer, PulsarProducer
    from pulsar_spark.client.reader import PulsarReader, Reader
    from pulsar_spark.client.schema import (
        AutoConsumeSchema,
        AvroSchema,
        BytesSchema,
        JsonSchema,
        KeyValueSchema,
        PrimitiveSchema,
        ProtobufNativeSchema,
        StringSchema,
    )
    from pulsar_spark.client.service_info import (
        AutoClusterFailover,
        ServiceInfo,
        ServiceInfoProvider,
    )
    from pulsar_spark.client.table_view import TableView
    from pulsar_spark.client.transaction import Transaction, TransactionState
    from pulsar_spark.engine.encryption import EncryptionKeyInfo


_HOMES = {
    "Authentication": "authentication",
    "AuthenticationBasic": "authentication",
    "AuthenticationOauth2": "authentication",
    "AuthenticationTLS": "authentication",
    "AuthenticationToken": "authentication",
    "AutoClusterFailover": "service_info",
    "AutoConsumeSchema": "schema",
    "AvroSchema": "schema",
    "BrokerConsumerStats": "consumer_stats",
    "BytesSchema": "schema",
    "Client": "client",
    "Consumer": "consumer",
    "ConsoleLogger": "loggers",
    "ConsumerBatchReceivePolicy": "consumer_policies",
    "ConsumerDeadLetterPolicy": "consumer_policies",
    "ConsumerEventListener": "consumer",
    "ConsumerKeySharedPolicy": "consumer_policies",
    "CryptoKeyReader": "encryption",
    "EncryptionContext": "encryption",
    "EncryptionKey": "encryption",
    "EncryptionKeyInfo": "encryption",
    "FileLogger": "loggers",
    "JsonSchema": "schema",
    "KeyValueSchema": "schema",
    "Message": "message",
    "MessageId": "message",
    "MultiplierRedeliveryBackoff": "consumer_policies",
    "PrimitiveSchema": "schema",
    "Producer": "producer",
    "ProtobufNativeSchema": "schema",
    "PulsarClient": "client",
    "PulsarConsumer": "consumer",
    "PulsarProducer": "producer",
    "PulsarReader": "reader",
    "Reader": "reader",
    "ServiceInfo": "service_info",
    "ServiceInfoProvider": "service_info",
    "StringSchema": "schema",
    "TableView": "table_view",
    "Transaction": "transaction",
    "TransactionState": "transaction",
}

__all__ = [
    "Authentication",
    "AuthenticationBasic",
    "AuthenticationOauth2",
    "AuthenticationTLS",
    "AuthenticationToken",
    "AutoClusterFailover",
    "AutoConsumeSchema",
    "AvroSchema",
    "BatchingType",
    "BrokerConsumerStats",
    "BytesSchema",
    "Client",
    "CompressionType",
    "ConsoleLogger",
    "Consumer",
    "ConsumerBatchReceivePolicy",
    "ConsumerCryptoFailureAction",
    "ConsumerDeadLetterPolicy",
    "ConsumerEventListener",
    "ConsumerKeySharedPolicy",
    "ConsumerType",
    "CryptoKeyReader",
    "EncryptionContext",
    "EncryptionKey",
    "EncryptionKeyInfo",
    "FileLogger",
    "InitialPosition",
    "JsonSchema",
    "KeySharedMode",
    "KeyValueSchema",
    "LoggerLevel",
    "Message",
    "MessageId",
    "MultiplierRedeliveryBackoff",
    "PartitionsRoutingMode",
    "PrimitiveSchema",
    "Producer",
    "ProducerAccessMode",
    "ProtobufNativeSchema",
    "PulsarClient",
    "PulsarConsumer",
    "PulsarProducer",
    "PulsarReader",
    "Reader",
    "RegexSubscriptionMode",
    "Result",
    "SchemaType",
    "ServiceInfo",
    "ServiceInfoProvider",
    "StringSchema",
    "TableView",
    "Transaction",
    "TransactionState",
]
__all__ += exceptions.__all__


def __getattr__(name: str) -> Any:
    # The official package has this module as an attribute too.
    if name == "schema":
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "schema"})
