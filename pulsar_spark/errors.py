"""The errors of this package: one class per kind of trouble.

Every error says what happened and what to do about it, and carries the topic, partition,
message id, broker and role it concerns as attributes where they are known. No error text
holds a credential: callers pass none, and text that a broker sent goes through `redact`.

`LocalProtocolError` is a mistake of the calling code; `RemoteProtocolError` is a fault of the
peer. The broker's own refusals are subclasses of `BrokerError`, found by `from_server_error`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_CONTEXT_FIELDS = ("topic", "partition", "message_id", "broker", "role")

# Tokens and passwords that a peer may echo: JWTs, "token:..." forms, and user:password@ in URLs.
# Each takes time in proportion to the text, whatever the text.
_SECRETS = (
    (re.compile(r"eyJ[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]*){0,2}"), "***"),
    (re.compile(r"(?i)\b(token|password|secret)([:=]\s*)[^\s,;\"']+"), r"\1\2***"),
    (re.compile(r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9+/._~=-]{8,}"), r"\1\2***"),
    (re.compile(r"//[^/@\s]+@"), "//***@"),
    (re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]*"), "***"),
)

_MAX_PEER_TEXT = 1000


def redact(text: str | bytes, secrets: Iterable[str | bytes] = ()) -> str:
    """Return `text` with `secrets`, and what looks like a credential, replaced by ``***``.

    Never raises, and the result can always be encoded: what is not Unicode (protobuf hands out
    bytes where a string is not UTF-8) is replaced, in `secrets` too, so that they are still found.
    """
    shown = _printable(text)
    # The longest first: one may hold another.
    for secret in sorted(map(_printable, secrets), key=len, reverse=True):
        if secret:
            shown = shown.replace(secret, "***")
    for pattern, replacement in _SECRETS:
        shown = pattern.sub(replacement, shown)
    return shown


def _printable(text: str | bytes) -> str:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return data.decode("utf-8", "replace")


class PulsarError(Exception):
    """Base of all errors of this package; only its subclasses are raised.

    `what` is one sentence on what happened, `remedy` one on what to do. `retryable` tells
    whether trying the same again can succeed without a change by the user.
    """

    retryable = False

    def __init__(
        self,
        what: str,
        remedy: str = "",
        *,
        topic: str | None = None,
        partition: int | None = None,
        message_id: object | None = None,
        broker: str | None = None,
        role: str | None = None,
    ) -> None:
        if type(self) is PulsarError:
            raise TypeError("raise a subclass of PulsarError, not PulsarError itself")
        self.what = what
        self.remedy = remedy
        self.topic = topic
        self.partition = partition
        self.message_id = None if message_id is None else str(message_id)
        self.broker = broker
        self.role = role
        super().__init__(self._text())

    def _text(self) -> str:
        context = [
            f"{field.replace('_', ' ')} {value}"
            for field in _CONTEXT_FIELDS
            if (value := getattr(self, field)) is not None
        ]
        text = self.what
        if context:
            text += f" [{', '.join(context)}]"
        if self.remedy:
            text += f" {self.remedy}" if text.endswith((".", "]")) else f". {self.remedy}"
        return text

    def with_context(self, **context: Any) -> PulsarError:
        """Return a copy of the error with missing context fields filled in."""
        known = {field: getattr(self, field) for field in _CONTEXT_FIELDS}
        known.update({k: v for k, v in context.items() if known.get(k) is None})
        copy = type(self)(self.what, self.remedy, **known)
        copy.__cause__ = self.__cause__
        return copy

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call the class with the composed text only and lose the fields.
        context = {field: getattr(self, field) for field in _CONTEXT_FIELDS}
        return _rebuild, (type(self), self.what, self.remedy, context)


def _rebuild(
    kind: type[PulsarError], what: str, remedy: str, context: dict[str, Any]
) -> PulsarError:
    return kind(what, remedy, **context)


# --- what the user gave -------------------------------------------------------------------


class OptionError(PulsarError, ValueError):
    """An option is unknown, misspelt, contradictory or out of range."""


class InvalidTopicName(PulsarError, ValueError):
    """A text is not the name of a Pulsar topic."""


class InvalidMessageId(PulsarError, ValueError):
    """A text or bytes are not a message id or a position."""


class InvalidOffset(PulsarError, ValueError):
    """A starting or ending offset cannot be understood or does not fit the topics."""


class UnsupportedFeature(PulsarError):
    """What was asked for is not built, or needs a newer Spark or broker."""


class MissingDependency(PulsarError, ImportError):
    """An optional package is needed and not installed."""


class InvalidRow(PulsarError, ValueError):
    """A row or a data frame cannot be written: wrong column, type or value."""


class SchemaMismatch(PulsarError, ValueError):
    """The columns of a data frame do not fit a topic's schema, or a schema cannot be columns."""


class MessageTooLarge(PulsarError):
    """A message does not fit the broker's maximum message size."""


class ProducerQueueFull(PulsarError):
    """A producer holds as many unacknowledged messages as it may, and is not to wait."""

    retryable = True


# --- bytes and commands -------------------------------------------------------------------


class ProtocolError(PulsarError):
    """The rules of the binary protocol were broken."""


class LocalProtocolError(ProtocolError):
    """The calling code asked for something that the protocol does not allow now."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes or commands that the protocol does not allow."""

    retryable = True


class CorruptMessage(PulsarError):
    """A message's bytes are damaged. It was not acknowledged and not skipped."""


class ChecksumMismatch(CorruptMessage):
    """The CRC32C of a message is not the one that was stored with it."""


class CorruptBatch(CorruptMessage):
    """The body of a batch does not hold what its metadata says."""


class DecompressionError(CorruptMessage):
    """A payload does not decompress to its declared size."""


class UnsupportedCodec(CorruptMessage):
    """A payload is compressed with a codec that this package does not know."""


class EncryptedMessage(PulsarError):
    """A message is encrypted and no key for it was given."""


# --- connections --------------------------------------------------------------------------


class ConnectError(PulsarError):
    """No connection to a broker could be made."""

    retryable = True


class TlsError(ConnectError):
    """TLS was not agreed on: a certificate that is not accepted, a file that cannot be used."""

    retryable = False


class ConnectionLost(PulsarError):
    """An established connection ended."""

    retryable = True


class OperationTimeout(PulsarError, TimeoutError):
    """Something did not happen before its deadline."""


class ClosedError(PulsarError):
    """The client, reader or producer is closed."""


class DataLossError(PulsarError):
    """Data that the query should have read is gone from the topic."""


class IncompleteMessage(DataLossError):
    """A message was sent in chunks, and the topic does not hold all of them."""


# --- what a broker refuses ----------------------------------------------------------------


class BrokerError(PulsarError):
    """A broker answered with an error; `code` is its ServerError number."""

    code = 0


class UnknownServerError(BrokerError):
    """The broker met an error that it did not name."""

    retryable = True


class MetadataError(BrokerError):
    """The broker could not read or write its metadata."""

    code = 1
    retryable = True


class PersistenceError(BrokerError):
    """The broker could not read or write BookKeeper."""

    code = 2
    retryable = True


class AuthenticationError(BrokerError):
    """The broker did not accept the credentials."""

    code = 3


class AuthorizationError(BrokerError):
    """The role may not do this."""

    code = 4


class ConsumerBusy(BrokerError):
    """Another consumer holds the subscription."""

    code = 5


class ServiceNotReady(BrokerError):
    """The broker does not serve the topic at this moment."""

    code = 6
    retryable = True


class QuotaExceededHold(BrokerError):
    """The backlog quota is exceeded; the broker holds producers back."""

    code = 7
    retryable = True


class QuotaExceeded(BrokerError):
    """The backlog quota is exceeded; the broker refuses messages."""

    code = 8


class BrokerChecksumError(BrokerError):
    """The broker found a wrong checksum on a message that it was sent."""

    code = 9


class UnsupportedVersion(BrokerError):
    """The broker does not speak a version that this needs."""

    code = 10


class TopicNotFound(BrokerError):
    """The topic does not exist."""

    code = 11


class SubscriptionNotFound(BrokerError):
    """The subscription does not exist."""

    code = 12


class ConsumerNotFound(BrokerError):
    """The broker does not know the consumer."""

    code = 13
    retryable = True


class TooManyRequests(BrokerError):
    """The broker is asked too much at once."""

    code = 14
    retryable = True


class TopicTerminated(BrokerError):
    """The topic is terminated: it can be read, not written."""

    code = 15


class ProducerBusy(BrokerError):
    """A producer of this name is connected to the topic already."""

    code = 16


class BrokerInvalidTopicName(BrokerError):
    """The broker does not accept the topic's name."""

    code = 17


class IncompatibleSchema(BrokerError):
    """The schema does not fit the one of the topic."""

    code = 18


class ConsumerAssignError(BrokerError):
    """The broker could not assign the consumer to the subscription."""

    code = 19


class TransactionCoordinatorNotFound(BrokerError):
    """The broker is not the coordinator of the transaction."""

    code = 20
    retryable = True


class InvalidTxnStatus(BrokerError):
    """The transaction is in a state that does not allow this."""

    code = 21


class NotAllowed(BrokerError):
    """The broker or the namespace's policies do not allow this."""

    code = 22


class TransactionConflict(BrokerError):
    """Another transaction holds the acknowledgement."""

    code = 23


class TransactionNotFound(BrokerError):
    """The coordinator does not know the transaction."""

    code = 24


class ProducerFenced(BrokerError):
    """Another producer took the topic's exclusive access."""

    code = 25


_BY_CODE: dict[int, type[BrokerError]] = {kind.code: kind for kind in BrokerError.__subclasses__()}

_REMEDIES: dict[type[BrokerError], str] = {
    AuthenticationError: (
        "Check pulsar.client.authPluginClassName and pulsar.client.authParams; a token can have "
        "expired."
    ),
    AuthorizationError: (
        "Grant the role the permission (pulsar-admin namespaces grant-permission)."
    ),
    TopicNotFound: "Check the topic's name, tenant and namespace; reading never creates a topic.",
    ConsumerBusy: "Another query or consumer uses this subscription: give each its own name.",
    ProducerBusy: "Leave pulsar.producer.producerName out, or give each writer its own.",
    QuotaExceeded: "Consume the backlog, or raise the namespace's backlog quota.",
    QuotaExceededHold: "Consume the backlog, or raise the namespace's backlog quota.",
    TopicTerminated: "Write to another topic.",
    IncompatibleSchema: "Write with the topic's schema, or change its compatibility strategy.",
    ProducerFenced: "Only one exclusive producer can write: stop the other one.",
    TooManyRequests: "Lower the parallelism, or raise the broker's limits.",
    NotAllowed: "The broker's or the namespace's policies refuse this.",
}


def from_server_error(
    code: int, message: str | bytes, secrets: Iterable[str | bytes] = (), **context: Any
) -> BrokerError:
    """Return the error for a broker's ServerError `code`, with its `message`.

    The message is redacted; `secrets` are the credentials that the broker was given.
    """
    kind = _BY_CODE.get(code, UnknownServerError)
    # Cut only then: half a secret is not found.
    text = redact(message, secrets)[:_MAX_PEER_TEXT].strip() or "the broker gave no reason"
    summary = (kind.__doc__ or "").split("\n")[0].rstrip(".")
    return kind(f"{summary}: {text}", _REMEDIES.get(kind, ""), **context)
