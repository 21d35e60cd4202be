"""The errors of this package: one class for each kind of failure.

Every error says what happened and what to do. The topic, partition, message id, broker and role are
attributes, where they are known. No error text contains credentials: callers pass none, and text
from a broker goes through `redact`. Nor does one contain line breaks or characters that a terminal
would obey: peers choose some of these texts, and every error escapes its own (`printable`).

`LocalProtocolError` is a mistake of the calling code; `RemoteProtocolError` is a fault of the peer.
Errors that a broker returns are subclasses of `BrokerError`, chosen by `from_server_error`.
"""

from __future__ import annotations

import re
import string
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

from pulsar_spark.policies import (
    Policy,
    answer_of,
    named_policies,
)

_CONTEXT_FIELDS = ("topic", "partition", "message_id", "broker", "role")

# user:password@ in a URL, also with a slash in the password; not a port, and not a path with an @.
_IN_URL = re.compile(r"//(?P<secret>[^/\s]+|[^/@\s:]+:(?!\d{1,5}/)[^@\s]{1,256})@")
# There, it is the name of a container that comes first.
_CONTAINER = re.compile(r"(?:abfs|wasb)s?://[^/:@]*@", re.IGNORECASE)

# Tokens and passwords that a peer may echo: JWTs, "token:..." forms, and those in URLs. Each
# pattern runs in linear time on any text.
_SECRETS = (
    re.compile(r"(?P<secret>eyJ[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]*){0,2})"),
    re.compile(r"(?i)\b(?:token|password|secret)[:=]\s*(?P<secret>[^\s,;\"']+)"),
    re.compile(r"(?i)\b(?:bearer|basic)\s+(?P<secret>[A-Za-z0-9+/._~=-]{8,})"),
    _IN_URL,
    re.compile(r"(?P<secret>-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]*)"),
)

# Unicode's control and direction characters, surrogates and line separators.
UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
# A terminal's commands: what a peer may put into a secret, so that it shows and does not match.
_COMMAND = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours and cursors
    r"|(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f])[^\x00-\x1f\x7f-\x9f]*(?:\x07|\x1b\\|\x9c)"  # titles
    r"|\x1b[ -/]*[0-~]"
    rf"|{UNPRINTABLE.pattern}"
)

# Unlike `lower`, it leaves every character at its place.
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)

_MAX_PEER_TEXT = 1000
_MAX_TEXT = 64 * 1024


def redact(text: str | bytes, secrets: Iterable[str | bytes] = ()) -> str:
    """Return `text` with `secrets`, and what looks like a credential, replaced by ``***``.

    Secrets are found in any case of letters, and with control characters or a terminal's commands
    inside, too. Never raises,
    and the result can always be encoded: bytes that are not UTF-8 (protobuf returns such strings as
    bytes) are replaced, in `secrets` too, so that they still match.
    """
    shown = _decoded(text)
    known = {_decoded(secret) for secret in secrets}
    found = list(_secrets_in(shown, known))
    if UNPRINTABLE.search(shown):
        for ignored in (UNPRINTABLE, _COMMAND):
            found += _secrets_around(shown, known, ignored)
    pieces: list[str] = []
    end = 0
    for start, after in sorted(found):
        if start >= end:
            pieces += shown[end:start], "***"
        end = max(end, after)
    return "".join([*pieces, shown[end:]])


def _secrets_in(text: str, known: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield where `known` secrets, in any case, and what looks like one, begin and end."""
    lowered = text.translate(_LOWER)
    for secret in (one.translate(_LOWER) for one in known):
        at = lowered.find(secret) if secret else -1
        while at >= 0:
            yield at, at + len(secret)
            at = lowered.find(secret, at + len(secret))
    for pattern in _SECRETS:
        for match in pattern.finditer(text):
            yield match.span("secret")


def _secrets_around(
    text: str, known: Iterable[str], ignored: re.Pattern[str]
) -> Iterator[tuple[int, int]]:
    """As `_secrets_in`, for the text without what `ignored` matches; places are in the text."""
    # Where each kept piece begins: in the text, and among what is kept.
    begins, kept = array("Q", [0]), array("Q", [0])
    pieces: list[str] = []
    for match in ignored.finditer(text):
        piece = text[begins[-1] : match.start()]
        pieces.append(piece)
        begins.append(match.end())
        kept.append(kept[-1] + len(piece))
    pieces.append(text[begins[-1] :])

    def place(at: int) -> int:
        piece = bisect_right(kept, at) - 1
        return begins[piece] + at - kept[piece]

    for start, after in _secrets_in("".join(pieces), {ignored.sub("", one) for one in known}):
        yield place(start), place(after - 1) + 1


def without_credentials(url: str) -> str:
    """Return a URL, such as a checkpoint's, without the user name and password in it."""
    return url if _CONTAINER.match(url) else _IN_URL.sub("//***@", url)


def printable(text: str) -> str:
    """Return text as one line that is safe for a terminal: unprintable characters are escaped."""
    return UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


_LEAST_SECRET = 8


def holds_secret(text: str | bytes, secrets: Iterable[str | bytes]) -> bool:
    """Whether a name that a peer gave contains one of `secrets`, in any case of letters.

    Short ones do not count: they can be a part of a real name by chance.
    """
    shown = _decoded(text).casefold()
    known = (_decoded(secret).casefold() for secret in secrets)
    return any(len(secret) >= _LEAST_SECRET and secret in shown for secret in known)


def listed(texts: Iterable[str], most: int = 5) -> str:
    """Return the first of some texts, and how many more there are: "a, b and 3 more"."""
    found = list(texts)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def _decoded(text: str | bytes) -> str:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return data.decode("utf-8", "replace")


class PulsarError(Exception):
    """Base of all errors of this package; only its subclasses are raised.

    `what` is one sentence on what happened, `remedy` one on what to do. `retryable` says whether a
    retry can succeed without a change by the user. Texts are kept as they are shown: escaped, and
    cut if they are very long.
    """

    retryable = False

    tells_outcome = False
    """Whether it says what of a write is visible to readers."""

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
        self.what = _cut(printable(what), _MAX_TEXT)
        self.remedy = _cut(printable(remedy), _MAX_TEXT)
        self.topic = _shown(topic)
        self.partition = partition
        self.message_id = _shown(message_id)
        self.broker = _shown(broker)
        self.role = _shown(role)
        super().__init__(self._text())

    @property
    def fact(self) -> str:
        """What happened, and where: the text without the remedy."""
        context = [
            f"{field.replace('_', ' ')} {value}"
            for field in _CONTEXT_FIELDS
            if (value := getattr(self, field)) is not None
            # A sentence that names the topic is not told it again.
            and not (field == "topic" and value in self.what)
        ]
        return f"{self.what} [{', '.join(context)}]" if context else self.what

    def _text(self) -> str:
        text = self.fact
        if self.remedy:
            ends = text.endswith(".") or text != self.what
            text += f" {self.remedy}" if ends else f". {self.remedy}"
        return text

    def with_context(self, **context: Any) -> PulsarError:
        """Return a copy of the error with missing context fields filled in."""
        known = {field: getattr(self, field) for field in _CONTEXT_FIELDS}
        known.update({k: v for k, v in context.items() if known.get(k) is None})
        copy = type(self)(self.what, self.remedy, **known)
        copy.__cause__, copy.tells_outcome = self.__cause__, self.tells_outcome
        return copy

    def telling(self, outcome: str, remedy: str = "") -> PulsarError:
        """Return a copy of the error that also says what of a write is visible to readers."""
        known = {field: getattr(self, field) for field in _CONTEXT_FIELDS}
        copy = type(self)(f"{self.what}; {outcome}", remedy or self.remedy, **known)
        copy.tells_outcome = True
        return copy

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call the class with the composed text only and lose the fields.
        context = {field: getattr(self, field) for field in _CONTEXT_FIELDS}
        return _rebuild, (type(self), self.what, self.remedy, context)


def _shown(value: object) -> str | None:
    return None if value is None else _cut(printable(str(value)), _MAX_TEXT)


def _rebuild(
    kind: type[PulsarError], what: str, remedy: str, context: dict[str, Any]
) -> PulsarError:
    return kind(what, remedy, **context)


# --- what the user gave -------------------------------------------------------------------


class OptionError(PulsarError, ValueError):
    """An option is unknown, misspelt, contradictory or out of range.

    Cause: the option's name or value, or two options that exclude each other.

    Remedy: the error names the option. It says what a name from Kafka's source, Flink or a client
    is called here, or suggests the nearest valid one, if one is near; options.md lists them all.
    """


class InvalidTopicName(PulsarError, ValueError):
    """The text is not a valid Pulsar topic name.

    Cause: a tenant, namespace or topic part is empty or has characters that Pulsar forbids.

    Remedy: write `topic`, or `persistent://tenant/namespace/topic`.
    """


class InvalidMessageId(PulsarError, ValueError):
    """The text or bytes are not a valid message id or position.

    Cause: the text is not `ledger:entry[:partition[:batchIndex]]`, or the bytes are not those
    of `__messageId`.

    Remedy: copy the id from `__messageId`, or from `__ledgerId` and `__entryId`.
    """


class InvalidOffset(PulsarError, ValueError):
    """A starting or ending offset is invalid or does not match the topics.

    Cause: broken JSON, a topic that the query does not read, or a start after the end.

    Remedy: use `earliest`, `latest`, a message id, a time or an age; name only topics that the
    query reads.
    """


class UnsupportedFeature(PulsarError):
    """The feature is not implemented, or needs a newer Spark or broker.

    Cause: the option exists in Pulsar but not here, or the version of Spark or of the broker is too
    old.

    Remedy: the error names the version that you need, or the option to remove.
    """


class MissingDependency(PulsarError, ImportError):
    """A required package is not installed.

    Cause: a package that this one needs, or an extra such as `oauth2`, is not in this Python
    environment.

    Remedy: install what the error names, on the driver and on every executor.
    """


# Module that is missing → the package that has it, which every installation needs.
_REQUIRED = {
    "crc32c": "crc32c",
    "google": "protobuf",
    "google.protobuf": "protobuf",
    "lz4": "lz4",
    "pyarrow": "pyarrow",
    "pyspark": "pyspark",
}


def missing_package(error: ImportError, what: str = "pulsar-spark") -> MissingDependency | None:
    """Return the error for a package that `what` needs, None for another module."""
    package = _REQUIRED.get(error.name or "")
    if package is None:
        return None
    return MissingDependency(
        f"{what} needs the package {package}, which is not installed for {sys.executable}",
        f"Run: {sys.executable} -m pip install {package}",
    )


class InvalidRow(PulsarError, ValueError):
    """A row or a DataFrame cannot be written: wrong column, type or value.

    Cause: a reserved column has the wrong type, `__topic` is null, or a value does not fit its
    field.

    Remedy: cast or filter the column that the error names before writing.
    """


class WrongType(InvalidRow, TypeError):
    """A value has another Python type than the producer's schema takes.

    Cause: `PulsarProducer.send` takes bytes without a schema, and what its schema describes with
    one.

    Remedy: encode the value, or create the producer with a schema for it.
    """


class SchemaMismatch(PulsarError, ValueError):
    """The DataFrame does not match the topic's schema, or Spark cannot represent the schema.

    Cause: fields are missing, have another type, or have a type that Spark lacks.

    Remedy: the error lists every field: cast or rename them, or use `valueFormat=raw`.
    """


class MessageTooLarge(PulsarError):
    """The message is larger than the broker's maximum message size.

    Cause: one encoded row is larger than the broker's `maxMessageSize` (5 MiB by default).

    Remedy: set `pulsar.producer.chunkingEnabled=true`, compress, or write smaller rows.
    """


class ProducerQueueFull(PulsarError):
    """The producer's queue of unacknowledged messages is full.

    Cause: `PulsarProducer.send_async` is called faster than the broker acknowledges
    (backpressure).

    Remedy: raise `max_pending_messages`, or create the producer with
    `block_if_queue_full=True`.
    """

    retryable = True


# --- bytes and commands -------------------------------------------------------------------


class ProtocolError(PulsarError):
    """The binary protocol was violated.

    Cause: see its subclasses.

    Remedy: see its subclasses.
    """


class LocalProtocolError(ProtocolError):
    """The calling code did something that the protocol does not allow in this state.

    Cause: a command or message was built from inconsistent values.

    Remedy: correct the call; with Spark's own reads and writes, report it as a bug.
    """


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes or commands that the protocol does not allow.

    Cause: the address in `service.url` is not a Pulsar broker, or the broker has a bug.

    Remedy: check host and port; if they are right, report the error with the broker's version.
    """

    retryable = True


class CorruptMessage(PulsarError):
    """A message's bytes are damaged. It was not acknowledged and not skipped.

    Cause: see its subclasses.

    Remedy: start after the message id that the error names; save the message first if you need it.
    """


class ChecksumMismatch(CorruptMessage):
    """The CRC32C checksum of a message does not match.

    Cause: bytes were changed in transit, or on a bookie's disk.

    Remedy: retry; if the same message fails again, start after it and check the bookies.
    """


class CorruptBatch(CorruptMessage):
    """The content of a batch does not match its metadata.

    Cause: the producer wrote an invalid batch, or its bytes are damaged.

    Remedy: find the producer by `__producerName` of neighbouring messages; start after the message.
    """


class DecompressionError(CorruptMessage):
    """A payload does not decompress to its declared size.

    Cause: a damaged payload, or one that would exceed the limit (a decompression bomb).

    Remedy: find the producer by `__producerName` of neighbouring messages; start after the message.
    """


class UnsupportedCodec(CorruptMessage):
    """A payload is compressed with a codec that this package does not support.

    Cause: a newer client used a codec that was added to Pulsar later.

    Remedy: upgrade this package, or have the producer use LZ4, ZLIB, ZSTD or SNAPPY.
    """


class CryptoError(PulsarError):
    """A key for end-to-end encryption is missing or cannot be used.

    Cause: the file is not on this machine, is not PEM, or needs a password.

    Remedy: set the key as encryption.md says; nothing is sent without it.
    """


class EncryptedMessage(CryptoError):
    """A message is encrypted, and no key was set that can decrypt it.

    Cause: the producer uses end-to-end encryption.

    Remedy: set `pulsar.reader.cryptoPrivateKeyPath`, or skip such messages with
    `pulsar.reader.cryptoFailureAction=DISCARD`.
    """


# --- connections --------------------------------------------------------------------------


class ConnectError(PulsarError):
    """Connecting to a broker failed.

    Cause: a wrong address or port, a broker that is down, or a firewall in between.

    Remedy: check `service.url`, and that executors reach the brokers' advertised addresses.
    """

    retryable = True


class ConnectTimeout(ConnectError):
    """A host does not answer.

    Cause: a wrong address, a machine that is down, or a firewall that drops what is sent.

    Remedy: check `service.url`, and that this machine reaches the brokers' addresses.
    """


class IssuerUnreachable(ConnectError):
    """The issuer of OAuth2 tokens cannot be asked now.

    Cause: a wrong issuer URL, or an issuer that is down or overloaded.

    Remedy: check the issuer's URL in `pulsar.client.authParams`, and that this machine reaches it.
    """


class TlsError(ConnectError):
    """The TLS handshake failed: a certificate was rejected, or a file cannot be used.

    Cause: an unknown authority, a certificate for another host, an expired one, or an
    unreadable file.

    Remedy: see connecting.md, which has a table of these messages.
    """

    retryable = False


class ConnectionLost(PulsarError):
    """The connection to the broker was lost.

    Cause: the broker restarted, or the network failed. Reads and writes reconnect automatically.

    Remedy: if the query still fails, look at the broker's log.
    """

    retryable = True


class OperationTimeout(PulsarError, TimeoutError):
    """An operation timed out.

    Cause: the broker is overloaded or unreachable, or a read made no progress for
    `pollTimeout`. With transactions enabled, Pulsar can take a minute to answer about topics that
    it has just loaded.

    Remedy: check the broker; raise `pulsar.client.operationTimeoutMs`, for instance to 90000,
    `pollTimeout` or `sendTimeoutMs`.
    """


class BrokerUnreachable(ConnectError, OperationTimeout):
    """No broker could be connected to before the operation timed out.

    Cause: as of ConnectError, for so long that there is no time for another attempt. For
    `PulsarClient` also that no host of the service URL answers at all.

    Remedy: check `service.url`, and that executors reach the brokers' advertised addresses.
    """


class ClosedError(PulsarError):
    """The client, reader or producer is closed.

    Cause: the object was used after `close()`, or after its `with` block.

    Remedy: create a new one.
    """


class TransactionStateError(PulsarError):
    """The transaction is not open any more.

    Cause: it was committed or aborted, or it timed out.

    Remedy: begin a new transaction and repeat its work.
    """


class TransactionExpired(PulsarError):
    """A micro-batch or batch write was not written, because one of its transactions ended early.

    Cause: the transaction exceeded `transactionTimeout`, or was aborted by hand.

    Remedy: run it again; raise `transactionTimeout` if writing takes that long.
    """

    tells_outcome = True


class TopicLost(PulsarError):
    """A micro-batch, a batch write or a task has lost its rows: its topic is gone, or another one.

    Cause: the topic was deleted, made again or truncated while a task wrote to it; or between the
    tasks and the commit of an exactly-once sink, when it may also have been terminated.

    Remedy: run it again, to another topic if this one is terminated. Spark runs a task again.
    """


class TornBatch(PulsarError):
    """A part of a micro-batch or batch write was committed, the rest was lost.

    Cause: the driver ended while it committed, and was down for longer than `transactionTimeout`,
    a topic moved during a commit and Pulsar's coordinator left it out, or a topic was terminated,
    deleted or made again during a commit.

    Remedy: repair it by hand, as delivery.md says.
    """

    tells_outcome = True


class SinkStateError(PulsarError):
    """The records of an exactly-once sink do not match the query or job.

    Cause: another query, job or driver uses the same `sinkId`; the checkpoint is a new or an older
    one; what is committed comes again with other rows; or records are missing.

    Remedy: give each query and each job a `sinkId` of its own, and never change it. Otherwise do as
    the error says: it prints the command (`sink --accept`, `sink --reset`).
    """


class TransactionOutcomeUnknown(PulsarError):
    """It is unknown whether the transaction was committed or aborted.

    Cause: the answer was lost, and a coordinator forgets a transaction when it ends, so it cannot
    be asked again.

    Remedy: check what the transaction has written before you write it again.
    """


class DataLossError(PulsarError):
    """Messages were deleted before the query read them.

    Cause: retention or TTL deleted it, or the subscription or topic was removed.

    Remedy: set `failOnDataLoss=false` to continue with the remaining messages; for a topic that is
    gone also `waitingForNonExistedTopic=true`, or take it out of the query; lengthen retention; in
    a batch, `load()` the topic again; see streaming.md and reading.md.
    """


class DroppedAsDuplicate(PulsarError):
    """A broker that deduplicates dropped messages of a producer that it has never stored.

    Cause: the broker stored a later message of the producer without these ones. Pulsar 4.0.8 may do
    so when a topic is unloaded while it begins a ledger.

    Remedy: write the messages again under another producer name. Without a fixed name Spark does so
    when it runs the task again; with one, that leaves them out as known.
    """


class IncompleteWrite(PulsarError):
    """Fewer messages were acknowledged than rows were given.

    Cause: a fault of this package, or of a broker that counts its messages wrongly; a write that
    ends without this error has compared the two.

    Remedy: rows may be missing: write them again, and report it with the columns and options.
    """


class IncompleteMessage(DataLossError):
    """A chunked message is incomplete: the topic does not have all of its chunks.

    Cause: the producer failed while sending it, or retention deleted the first chunks, also after a
    stream had acknowledged them while the others were sent.

    Remedy: set `failOnDataLoss=false` to skip such messages, and a retention for the topic; for a
    consumer `discard_corrupt_messages=True`.
    """


# --- what a broker refuses ----------------------------------------------------------------


class BrokerError(PulsarError):
    """A broker answered with an error; `code` is its ServerError number.

    Cause: see its subclasses.

    Remedy: see its subclasses.
    """

    code = 0


class UnknownServerError(BrokerError):
    """The broker failed with an unspecified error.

    Cause: a bug or an overload of the broker; its message follows.

    Remedy: look at the broker's log.
    """

    retryable = True


class MetadataError(BrokerError):
    """The broker could not read or write its metadata.

    Cause: ZooKeeper or another metadata store is slow or down. Brokers also answer this where a
    policy is not met, such as encryptionRequired.

    Remedy: check the metadata store; the request was retried until its timeout.
    """

    code = 1
    retryable = True


class PersistenceError(BrokerError):
    """The broker could not read or write BookKeeper.

    Cause: bookies are down, read-only or out of disk.

    Remedy: check the bookies; the request was retried until its timeout.
    """

    code = 2
    retryable = True


class AuthenticationError(BrokerError):
    """The broker did not accept the credentials.

    Cause: a wrong or expired token, the wrong authentication method, or an unknown certificate.

    Remedy: check pulsar.client.authPluginClassName and pulsar.client.authParams; a token may have
    expired.
    """

    code = 3


class AuthorizationError(BrokerError):
    """The role may not do this.

    Cause: the role behind the credentials lacks `produce` or `consume` on the namespace.

    Remedy: grant the role the permission (pulsar-admin namespaces grant-permission).
    """

    code = 4


class AuthorizationUnavailable(AuthorizationError):
    """The broker could not check what the role may do.

    Cause: the broker cannot reach its metadata store at the moment, for example after a long pause.

    Remedy: check the metadata store; the request was retried until its timeout.
    """

    retryable = True


class ConsumerBusy(BrokerError):
    """Another consumer holds the subscription, or a limit on consumers is reached.

    Cause: two queries, or a query and another consumer, use the same subscription name; or a policy
    such as maxConsumersPerTopic.

    Remedy: if another query or consumer uses this subscription, give each its own name. Otherwise
    raise the limit on consumers, such as maxConsumersPerTopic.
    """

    code = 5


class ServiceNotReady(BrokerError):
    """The broker does not serve the topic at this moment.

    Cause: the topic is being loaded or moved to another broker (unload, load balancing).

    Remedy: it is retried automatically; if it persists, check the brokers.
    """

    code = 6
    retryable = True


class QuotaExceededHold(BrokerError):
    """The backlog quota is exceeded; the broker holds producers back.

    Cause: consumers are slower than producers, and the policy backlogQuota is to hold producers.

    Remedy: consume the backlog, or raise the policy backlogQuota (pulsar-admin namespaces
    set-backlog-quota, topicPolicies set-backlog-quota; backlogQuotaDefaultLimitBytes in
    broker.conf).
    """

    code = 7
    retryable = True


class QuotaExceeded(BrokerError):
    """The backlog quota is exceeded; the broker refuses messages.

    Cause: consumers are slower than producers, or an abandoned subscription keeps its backlog; the
    policy backlogQuota is to refuse producers.

    Remedy: consume the backlog, or raise the policy backlogQuota (pulsar-admin namespaces
    set-backlog-quota, topicPolicies set-backlog-quota; backlogQuotaDefaultLimitBytes in
    broker.conf).
    """

    code = 8


class BrokerChecksumError(BrokerError):
    """The broker received a message with a wrong checksum.

    Cause: bytes were changed between this process and the broker.

    Remedy: retry; if it happens again, check the network.
    """

    code = 9


class UnsupportedVersion(BrokerError):
    """The broker does not support a required protocol version.

    Cause: the broker is older than the feature.

    Remedy: upgrade the broker, or remove the option that needs it.
    """

    code = 10


class TopicNotFound(BrokerError):
    """The topic does not exist.

    Cause: a misspelt name, the wrong tenant or namespace, or a topic that was never created.

    Remedy: check the topic's name, tenant and namespace; reading never creates a topic.
    """

    code = 11


class SubscriptionNotFound(BrokerError):
    """The subscription does not exist.

    Cause: it was removed with `unsubscribe`, a policy expired it, or the policy
    autoSubscriptionCreation lets no client create it.

    Remedy: restart the query: it creates the subscription again at its checkpoint's position,
    unless the policy autoSubscriptionCreation forbids it.
    """

    code = 12


class ConsumerNotFound(BrokerError):
    """The broker does not know the consumer.

    Cause: the broker closed the consumer, for example because the topic moved.

    Remedy: none: readers subscribe again automatically.
    """

    code = 13
    retryable = True


class TooManyRequests(BrokerError):
    """The broker rejected a request because there are too many.

    Cause: more concurrent lookups or connections than the broker allows.

    Remedy: lower the parallelism, or raise the broker's limits.
    """

    code = 14
    retryable = True


class TopicTerminated(BrokerError):
    """The topic is terminated: it can be read but not written.

    Cause: somebody called `pulsar-admin topics terminate`.

    Remedy: write to another topic.
    """

    code = 15


class ProducerBusy(BrokerError):
    """The topic accepts no further producer, or none with this name.

    Cause: two writers use the same `producerName`, the broker still has an old connection, another
    producer has exclusive access, or a policy such as maxProducersPerTopic.

    Remedy: if pulsar.producer.producerName is set, give each writer its own name. Otherwise raise
    the limit on producers (maxProducersPerTopic), or close the one with exclusive access.
    """

    code = 16


class BrokerInvalidTopicName(BrokerError):
    """The broker does not accept the topic's name.

    Cause: the broker is stricter than Pulsar's rules, or the namespace does not exist.

    Remedy: check the name, and that its tenant and namespace exist.
    """

    code = 17


class IncompatibleSchema(BrokerError):
    """The schema is not compatible with the topic's schema.

    Cause: the namespace's compatibility strategy does not allow this schema evolution, or a policy
    such as schemaValidationEnforced does not allow to write without the topic's schema.

    Remedy: write with the topic's schema, or change its compatibility strategy.
    """

    code = 18


class ConsumerAssignError(BrokerError):
    """The broker could not assign the consumer to the subscription.

    Cause: no consumer could take over the subscription's hash range or partition.

    Remedy: check that all consumers of the subscription have the same type.
    """

    code = 19


class TransactionCoordinatorNotFound(BrokerError):
    """The broker is not the coordinator of the transaction.

    Cause: the coordinator is being loaded or moved, or transactions are switched off.

    Remedy: it is retried automatically, because coordinators move. If it persists, set
    transactionCoordinatorEnabled=true on all brokers, and run
    initialize-transaction-coordinator-metadata.
    """

    code = 20
    retryable = True


class InvalidTxnStatus(BrokerError):
    """The transaction is in a state that does not allow this.

    Cause: the transaction is already being ended, for example because it timed out.

    Remedy: begin a new transaction, with a longer timeout if need be.
    """

    code = 21


class NotAllowed(BrokerError):
    """A policy of the broker, the namespace or the topic does not allow this.

    Cause: a limit such as maxSubscriptionsPerTopic or maxTopicsPerNamespace, a type of subscription
    that is not enabled, something that is switched off, such as deduplication, a topic's
    `maxMessageSize` that is lower than the broker's, a longer delay of the delivery than
    `maxDeliveryDelayInMillis`, or a shadow topic, which only its source topic writes to.

    Remedy: check the policies of the broker, the namespace and the topic.
    """

    code = 22


class TransactionConflict(BrokerError):
    """Another transaction holds the acknowledgement.

    Cause: two transactions acknowledge the same message.

    Remedy: wait until the other transaction ends, or acknowledge the message only once.
    """

    code = 23


class TransactionNotFound(BrokerError):
    """The coordinator does not know the transaction.

    Cause: the transaction timed out and was aborted.

    Remedy: begin a new transaction, with a longer timeout if need be.
    """

    code = 24


class ProducerFenced(BrokerError):
    """Another producer took the topic's exclusive access.

    Cause: the topic is written with exclusive access, and another producer took it over.

    Remedy: only one exclusive producer can write: stop the other one.
    """

    code = 25


_BY_CODE: dict[int, type[BrokerError]] = {kind.code: kind for kind in BrokerError.__subclasses__()}

# A broker uses one code for a role that lacks a permission and for a check that it could not make.
_CHECK_FAILED = "Exception occurred while trying to authorize"


def described(kind: type[PulsarError]) -> dict[str, str]:
    """Return the sentences in the docstring of an error's class: its What, Cause and Remedy.

    Without docstrings (python -OO) there are none.
    """
    texts = f"What: {kind.__doc__ or ''}".split("\n\n")
    paragraphs = (" ".join(text.split()) for text in texts)
    pairs = (text.split(": ", 1) for text in paragraphs if ": " in text)
    return {name: text[0].upper() + text[1:] for name, text in pairs}


def policies() -> list[tuple[type[BrokerError], Policy]]:
    """Return the policies that errors name, each with the class of its error."""
    return [(_BY_CODE[code], policy) for code, policy in named_policies()]


_ANONYMOUS = "The broker wants credentials, and none were given"
_ANONYMOUS_REMEDY = (
    "Set pulsar.client.authPluginClassName and pulsar.client.authParams, give a command "
    "--token-file, or PulsarClient its authentication."
)


def from_server_error(
    code: int,
    message: str | bytes,
    secrets: Iterable[str | bytes] = (),
    *,
    anonymous: bool = False,
    **context: Any,
) -> BrokerError:
    """Return the error for a broker's ServerError `code`, with its `message`.

    The code alone chooses the class. A message that is known chooses the words: see `policies`. It
    is redacted; `secrets` are the credentials that were sent to the broker; `anonymous` says that
    the client has none to send.
    """
    kind = _BY_CODE.get(code, UnknownServerError)
    # Cut only after redacting: half a secret would not match.
    text = _cut(printable(redact(message, secrets).strip()), _MAX_PEER_TEXT)
    if kind is AuthorizationError and _CHECK_FAILED in text:
        kind = AuthorizationUnavailable
    known = answer_of(code, text)
    if known is not None:
        return kind(f"{known.what}: {text}", known.remedy, **context)
    told = described(kind)
    summary, remedy = told.get("What", kind.__name__).rstrip("."), told.get("Remedy", "")
    if anonymous and kind is AuthenticationError:
        summary, remedy = _ANONYMOUS, _ANONYMOUS_REMEDY
    return kind(f"{summary}: {text}" if text else summary, remedy, **context)
