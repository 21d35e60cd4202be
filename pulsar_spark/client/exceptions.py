"""The official client's exception names, for programs that catch them.

Each is the class of `pulsar_spark.errors` for the same fault. `Interrupted` is what Ctrl-C
raises while a call waits.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from types import TracebackType

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
    RemoteProtocolError,
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
# A lookup that got something else than an answer. (Python's own LookupError is no such error.)
LookupError = RemoteProtocolError
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
NotAllowedError = NotAllowed
TransactionCoordinatorNotFoundError = TransactionCoordinatorNotFound
InvalidTxnStatusError = InvalidTxnStatus


class CumulativeAcknowledgementNotAllowedError(NotAllowed):
    """The subscription's type has no cumulative acknowledgements."""


class Interrupted(PulsarError, KeyboardInterrupt):
    """Ctrl-C came while a call waited. It is a KeyboardInterrupt, too."""


class _Interruptible(ContextDecorator):
    """Waits of a user's thread: a KeyboardInterrupt becomes `Interrupted`. Use `interruptible`."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, KeyboardInterrupt) and not isinstance(error, Interrupted):
            raise Interrupted("the call was interrupted while it waited") from None


interruptible = _Interruptible()

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
    "LookupError",
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
