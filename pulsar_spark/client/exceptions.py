"""The official client's exception names, for programs that catch them.

Each is the class of `pulsar_spark.errors` for the same fault. `Interrupted` is what Ctrl-C
raises while a call waits.
"""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ContextDecorator
from types import TracebackType
from typing import TypeVar

from pulsar_spark import errors
from pulsar_spark.engine.deadline import result_within

T = TypeVar("T")

AlreadyClosed = errors.ClosedError
AuthenticationError = errors.AuthenticationError
AuthorizationError = errors.AuthorizationError
BrokerMetadataError = errors.MetadataError
BrokerPersistenceError = errors.PersistenceError
ChecksumError = errors.BrokerChecksumError
ConnectError = errors.ConnectError
ConsumerAssignError = errors.ConsumerAssignError
ConsumerBusy = errors.ConsumerBusy
ConsumerNotFound = errors.ConsumerNotFound
ConsumerNotInitialized = errors.ClosedError
CryptoError = errors.CryptoError
ErrorGettingAuthenticationData = errors.AuthenticationError
IncompatibleSchema = errors.IncompatibleSchema
InvalidConfiguration = errors.OptionError
InvalidMessage = errors.InvalidRow
InvalidTopicName = errors.InvalidTopicName
InvalidTxnStatusError = errors.InvalidTxnStatus
InvalidUrl = errors.OptionError
# A lookup that got something else than an answer. (Python's own LookupError is no such error.)
LookupError = errors.RemoteProtocolError
MemoryBufferIsFull = errors.ProducerQueueFull
MessageTooBig = errors.MessageTooLarge
NotAllowedError = errors.NotAllowed
NotConnected = errors.ConnectionLost
OperationNotSupported = errors.UnsupportedFeature
ProducerBlockedQuotaExceededError = errors.QuotaExceededHold
ProducerBlockedQuotaExceededException = errors.QuotaExceeded
ProducerBusy = errors.ProducerBusy
ProducerFenced = errors.ProducerFenced
ProducerNotInitialized = errors.ClosedError
ProducerQueueIsFull = errors.ProducerQueueFull
PulsarException = errors.PulsarError
ReadError = errors.ConnectionLost
ServiceUnitNotReady = errors.ServiceNotReady
SubscriptionNotFound = errors.SubscriptionNotFound
Timeout = errors.OperationTimeout
TooManyLookupRequestException = errors.TooManyRequests
TopicNotFound = errors.TopicNotFound
TopicTerminated = errors.TopicTerminated
TransactionConflict = errors.TransactionConflict
TransactionCoordinatorNotFoundError = errors.TransactionCoordinatorNotFound
TransactionNotFound = errors.TransactionNotFound
UnknownError = errors.UnknownServerError
UnsupportedVersionError = errors.UnsupportedVersion


class CumulativeAcknowledgementNotAllowedError(errors.NotAllowed):
    """The subscription's type has no cumulative acknowledgements."""


class Interrupted(errors.PulsarError, KeyboardInterrupt):
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


def receipt_of(future: Future[T], what: str, seconds: float, topic: str, grace: float = 0.0) -> T:
    """Wait for the receipt of `what`, some `grace` longer than so many seconds; raises its error.

    Raises OperationTimeout if there is none in time.
    """
    try:
        with interruptible:
            return result_within(future, seconds + grace)
    except FutureTimeout as error:
        if isinstance(error, errors.PulsarError):
            raise
        text = f"{what} had no receipt within {seconds:g} s"
        raise errors.OperationTimeout(text, topic=topic) from None


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
