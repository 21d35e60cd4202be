"""The client layer: sockets, threads and retries around the protocol core.

For users: `PulsarClient` and what its methods take and give, named as in the official Python
client. They are loaded when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulsar_spark.client.authentication import (
        Authentication,
        AuthenticationBasic,
        AuthenticationOauth2,
        AuthenticationTLS,
        AuthenticationToken,
    )
    from pulsar_spark.client.client import PulsarClient
    from pulsar_spark.client.consumer import (
        BrokerConsumerStats,
        ConsumerEventListener,
        PulsarConsumer,
    )
    from pulsar_spark.client.consumer_policies import (
        ConsumerBatchReceivePolicy,
        ConsumerDeadLetterPolicy,
        ConsumerKeySharedPolicy,
    )
    from pulsar_spark.client.encryption import (
        CryptoKeyReader,
        EncryptionContext,
        EncryptionKey,
    )
    from pulsar_spark.client.enums import (
        BatchingType,
        CompressionType,
        ConsumerCryptoFailureAction,
        ConsumerType,
        InitialPosition,
        KeySharedMode,
        PartitionsRoutingMode,
        ProducerAccessMode,
        RegexSubscriptionMode,
        Result,
    )
    from pulsar_spark.client.message import Message, MessageId
    from pulsar_spark.client.producer import PulsarProducer
    from pulsar_spark.client.reader import PulsarReader
    from pulsar_spark.client.schemas import BytesSchema, StringSchema
    from pulsar_spark.client.transaction import Transaction, TransactionState
    from pulsar_spark.engine.encryption import EncryptionKeyInfo


_HOMES = {
    "Authentication": "authentication",
    "AuthenticationBasic": "authentication",
    "AuthenticationOauth2": "authentication",
    "AuthenticationTLS": "authentication",
    "AuthenticationToken": "authentication",
    "BatchingType": "enums",
    "BrokerConsumerStats": "consumer",
    "BytesSchema": "schemas",
    "CompressionType": "enums",
    "ConsumerBatchReceivePolicy": "consumer_policies",
    "ConsumerCryptoFailureAction": "enums",
    "ConsumerDeadLetterPolicy": "consumer_policies",
    "ConsumerEventListener": "consumer",
    "ConsumerKeySharedPolicy": "consumer_policies",
    "ConsumerType": "enums",
    "CryptoKeyReader": "encryption",
    "EncryptionContext": "encryption",
    "EncryptionKey": "encryption",
    "EncryptionKeyInfo": "encryption",
    "InitialPosition": "enums",
    "KeySharedMode": "enums",
    "Message": "message",
    "MessageId": "message",
    "PartitionsRoutingMode": "enums",
    "ProducerAccessMode": "enums",
    "PulsarClient": "client",
    "PulsarConsumer": "consumer",
    "PulsarProducer": "producer",
    "PulsarReader": "reader",
    "RegexSubscriptionMode": "enums",
    "Result": "enums",
    "StringSchema": "schemas",
    "Transaction": "transaction",
    "TransactionState": "transaction",
}

__all__ = [
    "Authentication",
    "AuthenticationBasic",
    "AuthenticationOauth2",
    "AuthenticationTLS",
    "AuthenticationToken",
    "BatchingType",
    "BrokerConsumerStats",
    "BytesSchema",
    "CompressionType",
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
    "InitialPosition",
    "KeySharedMode",
    "Message",
    "MessageId",
    "PartitionsRoutingMode",
    "ProducerAccessMode",
    "PulsarClient",
    "PulsarConsumer",
    "PulsarProducer",
    "PulsarReader",
    "RegexSubscriptionMode",
    "Result",
    "StringSchema",
    "Transaction",
    "TransactionState",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
