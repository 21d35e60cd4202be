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
    """An option is unknown, misspelt, contradictory or out of range.

    Cause: the option's name or value, or two options that exclude each other.

    Remedy: the error names the option and suggests the nearest valid one; options.md lists them
    all.
    """


class InvalidTopicName(PulsarError, ValueError):
    """A text is not the name of a Pulsar topic.

    Cause: a tenant, namespace or topic part is empty or holds characters that Pulsar forbids.

    Remedy: write `topic`, or `persistent://tenant/namespace/topic`.
    """


class InvalidMessageId(PulsarError, ValueError):
    """A text or bytes are not a message id or a position.

    Cause: the text is not `ledger:entry[:partition[:batchIndex]]`, or the bytes are not those
    of `__messageId`.

    Remedy: copy the id from `__messageId`, or from `__ledgerId` and `__entryId`.
    """


class InvalidOffset(PulsarError, ValueError):
    """A starting or ending offset cannot be understood or does not fit the topics.

    Cause: broken JSON, a topic that the query does not read, or a start after the end.

    Remedy: use `earliest`, `latest`, a message id, a time or an age; name only topics that the
    query reads.
    """


class UnsupportedFeature(PulsarError):
    """What was asked for is not built, or needs a newer Spark or broker.

    Cause: the option exists in Pulsar but not here, or this Spark or broker version is too old
    for it.

    Remedy: the error names the version that has it, or the option to leave out.
    """


class MissingDependency(PulsarError, ImportError):
    """An optional package is needed and not installed.

    Cause: an extra such as `oauth2` or `native` is not in this Python environment.

    Remedy: install the extra that the error names, on the driver and on every executor.
    """


class InvalidRow(PulsarError, ValueError):
    """A row or a data frame cannot be written: wrong column, type or value.

    Cause: a reserved column has the wrong type, `__topic` is null, or a value does not fit its
    field.

    Remedy: cast or filter the column that the error names before writing.
    """


class SchemaMismatch(PulsarError, ValueError):
    """The columns of a data frame do not fit a topic's schema, or a schema cannot be columns.

    Cause: fields are missing, of another type, or have no counterpart in Spark.

    Remedy: the error lists every field: cast or rename them, or use `valueFormat=raw`.
    """


class MessageTooLarge(PulsarError):
    """A message does not fit the broker's maximum message size.

    Cause: one row, encoded, is larger than the broker's `maxMessageSize` (5 MiB by default).

    Remedy: set `pulsar.producer.chunkingEnabled=true`, compress, or write smaller rows.
    """


class ProducerQueueFull(PulsarError):
    """A producer holds as many unacknowledged messages as it may, and is not to wait.

    Cause: `PulsarProducer.send_async` is called faster than the broker acknowledges
    (backpressure).

    Remedy: raise `max_pending_messages`, or create the producer with
    `block_if_queue_full=True`.
    """

    retryable = True


# --- bytes and commands -------------------------------------------------------------------


class ProtocolError(PulsarError):
    """The rules of the binary protocol were broken.

    Cause: see its subclasses.

    Remedy: see its subclasses.
    """


class LocalProtocolError(ProtocolError):
    """The calling code asked for something that the protocol does not allow now.

    Cause: a command or message was built from values that do not belong together.

    Remedy: correct the call; with Spark's own reads and writes, report it as a bug.
    """


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes or commands that the protocol does not allow.

    Cause: `service.url` leads to something that is not a Pulsar broker, or to one that is
    damaged.

    Remedy: check host and port; if they are right, report the error with the broker's version.
    """

    retryable = True


class CorruptMessage(PulsarError):
    """A message's bytes are damaged. It was not acknowledged and not skipped.

    Cause: see its subclasses.

    Remedy: start behind the message id that the error names, after you have saved what you can
    of it.
    """


class ChecksumMismatch(CorruptMessage):
    """The CRC32C of a message is not the one that was stored with it.

    Cause: bytes changed on the way, or on a bookie's disk.

    Remedy: run it again; if the same message fails, read from behind it and check the bookies.
    """


class CorruptBatch(CorruptMessage):
    """The body of a batch does not hold what its metadata says.

    Cause: the producer wrote a broken batch, or its bytes are damaged.

    Remedy: find the producer by `__producerName` of the messages around; read from behind the
    message.
    """


class DecompressionError(CorruptMessage):
    """A payload does not decompress to its declared size.

    Cause: a broken payload, or one that would grow beyond the limit (a decompression bomb).

    Remedy: find the producer by `__producerName` of the messages around; read from behind the
    message.
    """


class UnsupportedCodec(CorruptMessage):
    """A payload is compressed with a codec that this package does not know.

    Cause: a newer client wrote with a codec that was added to Pulsar since.

    Remedy: upgrade this package, or have the producer use LZ4, ZLIB, ZSTD or SNAPPY.
    """


class CryptoError(PulsarError):
    """A key of end-to-end encryption is missing or cannot be used.

    Cause: a file that is not on this machine, that is not PEM, or that needs a password.

    Remedy: give the key as docs/encryption.md says; nothing is sent without it.
    """


class EncryptedMessage(CryptoError):
    """A message is encrypted and no key for it was given, or none that decrypts it.

    Cause: the producer uses end-to-end encryption.

    Remedy: set `pulsar.reader.cryptoPrivateKeyPath`, or `cryptoFailureAction` to leave such
    messages out.
    """


# --- connections --------------------------------------------------------------------------


class ConnectError(PulsarError):
    """No connection to a broker could be made.

    Cause: a wrong address or port, a broker that is down, or a firewall in between.

    Remedy: check `service.url`, and that executors reach the brokers' advertised addresses.
    """

    retryable = True


class TlsError(ConnectError):
    """TLS was not agreed on: a certificate that is not accepted, a file that cannot be used.

    Cause: an unknown authority, a certificate for another host, an expired one, or an
    unreadable file.

    Remedy: see connecting.md, which has a table of these messages.
    """

    retryable = False


class ConnectionLost(PulsarError):
    """An established connection ended.

    Cause: the broker restarted, or the network broke. Reads and writes reconnect by themselves.

    Remedy: if it fails a query all the same, see the log for what the broker was doing.
    """

    retryable = True


class OperationTimeout(PulsarError, TimeoutError):
    """Something did not happen before its deadline.

    Cause: the broker is overloaded or unreachable, or a read made no progress for
    `pollTimeout`.

    Remedy: check the broker; raise `pulsar.client.operationTimeoutMs`, `pollTimeout` or
    `sendTimeoutMs`.
    """


class ClosedError(PulsarError):
    """The client, reader or producer is closed.

    Cause: the object was used after `close()`, or after its `with` block.

    Remedy: create a new one.
    """


class TransactionStateError(PulsarError):
    """A transaction is not open any more.

    Cause: it was committed or aborted before, or it was open for longer than its timeout.

    Remedy: begin a new transaction, and do all of its work again.
    """


class TransactionExpired(PulsarError):
    """A micro-batch, or a batch write, was not written: a transaction of it is gone.

    Cause: it was open for longer than `transactionTimeout`, or an administrator has aborted it.

    Remedy: run it again, and raise `transactionTimeout` if writing takes so long.
    """


class TornBatch(PulsarError):
    """Of the transactions of a micro-batch or a batch write some are committed, others gone.

    Cause: the driver was away for longer than `transactionTimeout` between two commits.

    Remedy: repair it by hand, as `docs/delivery.md` says.
    """


class SinkStateError(PulsarError):
    """The records of an exactly-once sink do not fit what is to be written, or are not its own.

    Cause: the sinkId was used by another query or job, its topic of records is used by something
    else, or was changed by hand.

    Remedy: give each query and each job a `sinkId` of its own, which stays the same for it.
    """


class TransactionOutcomeUnknown(PulsarError):
    """A transaction was to be ended, and no answer tells whether it was.

    Cause: the answer to the commit or abort was lost, and the coordinator forgets a transaction
    when it ends, so that asking again tells nothing.

    Remedy: look for what the transaction has written before it is written again.
    """


class DataLossError(PulsarError):
    """Data that the query should have read is gone from the topic.

    Cause: retention or TTL deleted it, or the subscription or topic was removed.

    Remedy: set `failOnDataLoss=false` to go on with what is left; lengthen retention; see
    streaming.md.
    """


class IncompleteMessage(DataLossError):
    """A message was sent in chunks, and the topic does not hold all of them.

    Cause: the producer died in the middle, or retention deleted the first chunks.

    Remedy: set `failOnDataLoss=false` to skip such messages.
    """


# --- what a broker refuses ----------------------------------------------------------------


class BrokerError(PulsarError):
    """A broker answered with an error; `code` is its ServerError number.

    Cause: see its subclasses.

    Remedy: see its subclasses.
    """

    code = 0


class UnknownServerError(BrokerError):
    """The broker met an error that it did not name.

    Cause: a bug or an overload in the broker; its own text follows.
    """

    retryable = True


class MetadataError(BrokerError):
    """The broker could not read or write its metadata.

    Cause: ZooKeeper or another metadata store is slow or down.
    """

    code = 1
    retryable = True


class PersistenceError(BrokerError):
    """The broker could not read or write BookKeeper.

    Cause: bookies are down, read-only or out of disk.
    """

    code = 2
    retryable = True


class AuthenticationError(BrokerError):
    """The broker did not accept the credentials.

    Cause: a wrong or expired token, the wrong method, or a certificate that the broker does not
    know.
    """

    code = 3


class AuthorizationError(BrokerError):
    """The role may not do this.

    Cause: the role behind the credentials lacks `produce` or `consume` on the namespace.
    """

    code = 4


class ConsumerBusy(BrokerError):
    """Another consumer holds the subscription.

    Cause: two queries, or a query and another consumer, use one subscription name.
    """

    code = 5


class ServiceNotReady(BrokerError):
    """The broker does not serve the topic at this moment.

    Cause: the topic is being loaded or moved to another broker (unload, load balancing).
    """

    code = 6
    retryable = True


class QuotaExceededHold(BrokerError):
    """The backlog quota is exceeded; the broker holds producers back.

    Cause: consumers are slower than producers, and the namespace's policy holds producers.
    """

    code = 7
    retryable = True


class QuotaExceeded(BrokerError):
    """The backlog quota is exceeded; the broker refuses messages.

    Cause: consumers are slower than producers, or an abandoned subscription keeps its backlog.
    """

    code = 8


class BrokerChecksumError(BrokerError):
    """The broker found a wrong checksum on a message that it was sent.

    Cause: bytes changed between this process and the broker.
    """

    code = 9


class UnsupportedVersion(BrokerError):
    """The broker does not speak a version that this needs.

    Cause: the broker is older than the feature.
    """

    code = 10


class TopicNotFound(BrokerError):
    """The topic does not exist.

    Cause: a misspelt name, the wrong tenant or namespace, or a topic that nobody has created.
    """

    code = 11


class SubscriptionNotFound(BrokerError):
    """The subscription does not exist.

    Cause: it was removed, by `unsubscribe` or because the namespace expires idle subscriptions.
    """

    code = 12


class ConsumerNotFound(BrokerError):
    """The broker does not know the consumer.

    Cause: the broker closed the consumer, as when a topic moves.
    """

    code = 13
    retryable = True


class TooManyRequests(BrokerError):
    """The broker is asked too much at once.

    Cause: more lookups or connections at once than the broker allows.
    """

    code = 14
    retryable = True


class TopicTerminated(BrokerError):
    """The topic is terminated: it can be read, not written.

    Cause: somebody called `pulsar-admin topics terminate`.
    """

    code = 15


class ProducerBusy(BrokerError):
    """A producer of this name is connected to the topic already.

    Cause: two writers use the same `producerName`, or an old connection is not given up yet.
    """

    code = 16


class BrokerInvalidTopicName(BrokerError):
    """The broker does not accept the topic's name.

    Cause: the broker is stricter than Pulsar's rules, or the namespace does not exist.
    """

    code = 17


class IncompatibleSchema(BrokerError):
    """The schema does not fit the one of the topic.

    Cause: schema evolution that the namespace's compatibility strategy does not allow.
    """

    code = 18


class ConsumerAssignError(BrokerError):
    """The broker could not assign the consumer to the subscription.

    Cause: no consumer could take the subscription's hash range or partition.
    """

    code = 19


class TransactionCoordinatorNotFound(BrokerError):
    """The broker is not the coordinator of the transaction.

    Cause: the coordinator is being loaded or moved, or transactions are switched off.
    """

    code = 20
    retryable = True


class InvalidTxnStatus(BrokerError):
    """The transaction is in a state that does not allow this.

    Cause: the transaction is being ended in another way, as when its timeout passed.
    """

    code = 21


class NotAllowed(BrokerError):
    """The broker or the namespace's policies do not allow this.

    Cause: a policy of the broker or the namespace, such as deduplication or topic creation
    being off.
    """

    code = 22


class TransactionConflict(BrokerError):
    """Another transaction holds the acknowledgement.

    Cause: two transactions acknowledge the same message.
    """

    code = 23


class TransactionNotFound(BrokerError):
    """The coordinator does not know the transaction.

    Cause: the transaction's timeout passed, so that it was aborted and forgotten.
    """

    code = 24


class ProducerFenced(BrokerError):
    """Another producer took the topic's exclusive access.

    Cause: the topic is written with exclusive access, and another producer took it over.
    """

    code = 25


_BY_CODE: dict[int, type[BrokerError]] = {kind.code: kind for kind in BrokerError.__subclasses__()}

_REMEDIES: dict[type[PulsarError], str] = {
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
    UnknownServerError: "Look at the broker's log at that time.",
    MetadataError: "Check the metadata store; the request was retried until its timeout.",
    PersistenceError: "Check the bookies; the request was retried until its timeout.",
    ServiceNotReady: "Nothing, if it passes: it is retried. Else check the brokers' health.",
    BrokerChecksumError: "Run it again; if it comes back, check the network.",
    UnsupportedVersion: "Upgrade the broker, or leave out the option that needs it.",
    SubscriptionNotFound: (
        "Restart the query: it makes the subscription again, where its checkpoint stands."
    ),
    ConsumerNotFound: "Nothing, if it passes: readers subscribe again by themselves.",
    BrokerInvalidTopicName: "Check the name, and that its tenant and namespace exist.",
    ConsumerAssignError: "Check that all consumers of the subscription are of one type.",
    TransactionCoordinatorNotFound: (
        "Set transactionCoordinatorEnabled=true on the brokers, and run "
        "initialize-transaction-coordinator-metadata."
    ),
    InvalidTxnStatus: "Begin a new transaction, with a longer timeout if need be.",
    TransactionConflict: (
        "Wait for the other transaction to end, or let one consumer have the message."
    ),
    TransactionNotFound: "Begin a new transaction, with a longer timeout if need be.",
}


def remedy_of(kind: type[PulsarError]) -> str:
    """Return what to do about a broker's refusal of this kind; empty where that is not known."""
    return _REMEDIES.get(kind, "")


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
    return kind(f"{summary}: {text}", remedy_of(kind), **context)
