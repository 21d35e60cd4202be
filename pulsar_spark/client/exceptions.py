"""The official client's exception names, for programs that catch them.

Each is the class of `pulsar_spark.errors` for the same fault. `Interrupted` is what Ctrl-C
raises while a call waits.
"""

from __future__ import annotations

from pulsar_spark.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerChecksumError,
    ClosedError,
    ConnectError,
    ConnectionLost,
    ConsumerAssignError,
    ConsumerBusy,
    ConsumerNotFound,
    CryptoError,
    IncompatibleSchema,
    InvalidRow,
    InvalidTopicName,
    InvalidTxnStatus,
    MessageTooLarge,
    MetadataError,
    NotAllowed,
    OperationTimeout,
    OptionError,
    PersistenceError,
    ProducerBusy,
    ProducerFenced,
    ProducerQueueFull,
    PulsarError,
    QuotaExceeded,
    QuotaExceededHold,
    ServiceNotReady,
    SubscriptionNotFound,
    TooManyRequests,
    TopicNotFound,
    TopicTerminated,
    TransactionConflict,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
    UnknownServerError,
    UnsupportedFeature,
    UnsupportedVersion,
)

PulsarException = PulsarError
UnknownError = UnknownServerError
InvalidConfiguration = OptionError
InvalidUrl = OptionError
Timeout = OperationTimeout
ReadError = ConnectionLost
NotConnected = ConnectionLost
ErrorGettingAuthenticationData = AuthenticationError
BrokerMetadataError = MetadataError
BrokerPersistenceError = PersistenceError
ChecksumError = BrokerChecksumError
AlreadyClosed = ClosedError
ConsumerNotInitialized = ClosedError
ProducerNotInitialized = ClosedError
InvalidMessage = InvalidRow
TooManyLookupRequestException = TooManyRequests
ServiceUnitNotReady = ServiceNotReady
OperationNotSupported = UnsupportedFeature
ProducerBlockedQuotaExceededError = QuotaExceededHold
ProducerBlockedQuotaExceededException = QuotaExceeded
ProducerQueueIsFull = ProducerQueueFull
MemoryBufferIsFull = ProducerQueueFull
MessageTooBig = MessageTooLarge
UnsupportedVersionError = UnsupportedVersion
CumulativeAcknowledgementNotAllowedError = NotAllowed
NotAllowedError = NotAllowed
TransactionCoordinatorNotFoundError = TransactionCoordinatorNotFound
InvalidTxnStatusError = InvalidTxnStatus
Interrupted = KeyboardInterrupt

__all__ = [
    "AlreadyClosed",
    "AuthenticationError",
    "AuthorizationError",
    "BrokerMetadataError",
    "BrokerPersistenceError",
    "ChecksumError",
    "ConnectError",
    "ConsumerAssignError",
    "ConsumerBusy",
    "ConsumerNotFound",
    "ConsumerNotInitialized",
    "CryptoError",
    "CumulativeAcknowledgementNotAllowedError",
    "ErrorGettingAuthenticationData",
    "IncompatibleSchema",
    "Interrupted",
    "InvalidConfiguration",
    "InvalidMessage",
    "InvalidTopicName",
    "InvalidTxnStatusError",
    "InvalidUrl",
    "MemoryBufferIsFull",
    "MessageTooBig",
    "NotAllowedError",
    "NotConnected",
    "OperationNotSupported",
    "ProducerBlockedQuotaExceededError",
    "ProducerBlockedQuotaExceededException",
    "ProducerBusy",
    "ProducerFenced",
    "ProducerNotInitialized",
    "ProducerQueueIsFull",
    "PulsarException",
    "ReadError",
    "ServiceUnitNotReady",
    "SubscriptionNotFound",
    "Timeout",
    "TooManyLookupRequestException",
    "TopicNotFound",
    "TopicTerminated",
    "TransactionConflict",
    "TransactionCoordinatorNotFoundError",
    "TransactionNotFound",
    "UnknownError",
    "UnsupportedVersionError",
]
