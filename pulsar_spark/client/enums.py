"""Enums of `PulsarClient`, with the names and numbers of the official Python client."""

from __future__ import annotations

from enum import IntEnum
from operator import index
from typing import TypeVar

from pulsar_spark.client import exceptions
from pulsar_spark.errors import (
    BrokerInvalidTopicName,
    BrokerUnreachable,
    ConnectionLost,
    OptionError,
    PulsarError,
)


class _Choice(IntEnum):
    """An enum whose text is the official client's, such as "Result.Ok"."""

    # From Python 3.11 on, `IntEnum` prints the number.
    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


ChoiceT = TypeVar("ChoiceT", bound=IntEnum)


def choice(kind: type[ChoiceT], value: object, name: str) -> ChoiceT:
    """Return a parameter's enum value; accepts whole numbers, and the official client's enums too.

    Raises OptionError that names the parameter.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return kind(index(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise OptionError(
            f"{name} is {value!r}, which is none of {', '.join(map(str, kind))}"
        ) from None


class CompressionType(_Choice):
    """How payloads are compressed."""

    NONE = 0
    LZ4 = 1
    ZLib = 2
    ZSTD = 3
    SNAPPY = 4


class ConsumerType(_Choice):
    """How the consumers of a subscription share its messages."""

    Exclusive = 0
    Shared = 1
    Failover = 2
    KeyShared = 3


class InitialPosition(_Choice):
    """Where a new subscription starts."""

    Latest = 0
    Earliest = 1


class KeySharedMode(_Choice):
    """Who chooses the keys that a consumer of a Key_Shared subscription gets."""

    AutoSplit = 0
    Sticky = 1


class RegexSubscriptionMode(_Choice):
    """Which topics a pattern matches."""

    PersistentOnly = 0
    NonPersistentOnly = 1
    AllTopics = 2


class PartitionsRoutingMode(_Choice):
    """How messages without a key are spread over partitions."""

    UseSinglePartition = 0
    RoundRobinDistribution = 1
    CustomPartition = 2


class BatchingType(_Choice):
    """Which messages share a batch: any, or those with the same key."""

    Default = 0
    KeyBased = 1


class ProducerAccessMode(_Choice):
    """Whether other producers may write to the topic."""

    Shared = 0
    Exclusive = 1
    WaitForExclusive = 2
    ExclusiveWithFencing = 3


class ConsumerCryptoFailureAction(_Choice):
    """What a reader or consumer does with a message that it cannot decrypt."""

    FAIL = 0
    DISCARD = 1
    CONSUME = 2


class SchemaType(_Choice):
    """A schema's type, as `schema_type()` of `schema_info()` returns it; some only Java has."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    BYTES = -1
    AUTO_CONSUME = -3
    AUTO_PUBLISH = -4


class LoggerLevel(_Choice):
    """Log level."""

    Debug = 0
    Info = 1
    Warn = 2
    Error = 3


class Result(_Choice):
    """Result passed to callbacks, such as that of `send_async`."""

    Ok = 0
    UnknownError = 1
    InvalidConfiguration = 2
    Timeout = 3
    LookupError = 4
    ConnectError = 5
    ReadError = 6
    AuthenticationError = 7
    AuthorizationError = 8
    ErrorGettingAuthenticationData = 9
    BrokerMetadataError = 10
    BrokerPersistenceError = 11
    ChecksumError = 12
    ConsumerBusy = 13
    NotConnected = 14
    AlreadyClosed = 15
    InvalidMessage = 16
    ConsumerNotInitialized = 17
    ProducerNotInitialized = 18
    ProducerBusy = 19
    TooManyLookupRequestException = 20
    InvalidTopicName = 21
    InvalidUrl = 22
    ServiceUnitNotReady = 23
    OperationNotSupported = 24
    ProducerBlockedQuotaExceededError = 25
    ProducerBlockedQuotaExceededException = 26
    ProducerQueueIsFull = 27
    MessageTooBig = 28
    TopicNotFound = 29
    SubscriptionNotFound = 30
    ConsumerNotFound = 31
    UnsupportedVersionError = 32
    TopicTerminated = 33
    CryptoError = 34
    IncompatibleSchema = 35
    ConsumerAssignError = 36
    CumulativeAcknowledgementNotAllowedError = 37
    TransactionCoordinatorNotFoundError = 38
    InvalidTxnStatusError = 39
    NotAllowedError = 40
    TransactionConflict = 41
    TransactionNotFound = 42
    ProducerFenced = 43
    MemoryBufferIsFull = 44
    Interrupted = 45


# By the exceptions' names, which are the results'; of several names of an error, by the first one.
_RESULTS: dict[type[PulsarError], Result] = {
    **{
        getattr(exceptions, result.name): result
        for result in reversed(Result)
        if hasattr(exceptions, result.name)
    },
    BrokerUnreachable: Result.Timeout,
    BrokerInvalidTopicName: Result.InvalidTopicName,
    ConnectionLost: Result.NotConnected,
}


def result_of(error: PulsarError | None) -> Result:
    """Return the official client's result code for an error; Ok without an error."""
    if error is None:
        return Result.Ok
    kinds = (kind for kind in type(error).__mro__ if kind in _RESULTS)
    return _RESULTS.get(next(kinds, PulsarError), Result.UnknownError)
