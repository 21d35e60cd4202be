"""The option table: key, aliases, default, parser, help and scope of each option."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, auto
from functools import partial
from itertools import chain
from typing import Any

from pulsar_spark.spark.options.parsers import (
    Parser,
    avro_name,
    avro_namespace,
    boolean,
    choice,
    integer,
    keys_by_name,
    milliseconds,
    plain_seconds,
    size,
    text,
    text_list,
    text_or_none,
    within,
)

_MAX_TASKS = 100_000
_MAX_INT = 2**31 - 1
_MAX_BYTES = 2**63 - 1


class Scope(Flag):
    """What an option applies to."""

    READ = auto()
    STREAM_READ = auto()
    WRITE = auto()
    STREAM_WRITE = auto()
    READS = READ | STREAM_READ
    WRITES = WRITE | STREAM_WRITE
    BOTH = READS | WRITES


NOWHERE = Scope(0)


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `default` is text for `parse`, or None if there is no default.

    Docs show `shown_default` if `default` is not clear enough. Values in `unbuilt` are documented
    but not supported yet. A `secret` value is never shown; one of its `aliases` has a name by which
    Spark hides it too (`redaction`).
    """

    key: str
    parse: Parser
    help: str
    scope: Scope = Scope.BOTH
    default: str | None = None
    shown_default: str | None = None
    aliases: tuple[str, ...] = ()
    secret: bool = False
    unbuilt: tuple[str, ...] = ()

    @property
    def default_value(self) -> Any:
        """The parsed default."""
        return None if self.default is None else self.parse(self.default)


_reads = partial(Option, scope=Scope.READS)
_streams = partial(Option, scope=Scope.STREAM_READ)
_writes = partial(Option, scope=Scope.WRITES)


def _client(name: str, parse: Parser, help: str, **more: Any) -> Option:
    return Option(f"pulsar.client.{name}", parse, help, **more)


def _reader(name: str, parse: Parser, help: str, **more: Any) -> Option:
    return _reads(f"pulsar.reader.{name}", parse, help, **more)


def _producer(name: str, parse: Parser, help: str, **more: Any) -> Option:
    return _writes(f"pulsar.producer.{name}", parse, help, **more)


_COUNT = within(integer, 1, _MAX_INT)

_CONNECT: tuple[Option, ...] = (
    Option(
        "service.url",
        text,
        "The cluster: `pulsar://h1:6650,h2:6650` or `pulsar+ssl://…`; all hosts are tried. "
        "`http://h:8080` and `https://…` name the brokers' web service, for lookups by REST.",
        shown_default="required",
        aliases=("serviceUrl", "pulsar.client.serviceUrl"),
    ),
    Option(
        "admin.url",
        text,
        "Accepted for the Scala connector's jobs; not needed, ignored.",
        aliases=("adminUrl",),
    ),
    _client(
        "authPluginClassName",
        text,
        "Authentication method: `token`, `basic`, `tls`, `oauth2`, the Java class's name, or a "
        "class of your own as `module:Class`. See connecting.md.",
    ),
    _client(
        "authParams",
        text_or_none,
        "Credentials as for the Java client: `token:…`, `file:///…` (read at each use), or JSON; "
        "also `env:NAME`.",
        secret=True,
        aliases=("pulsar.client.authParamsSecret",),
    ),
    _client(
        "tlsTrustCertsFilePath",
        text,
        "Certificates of trusted authorities: a PEM file on every machine, or PEM text as "
        "`content:-----BEGIN …`.",
        shown_default="the system's",
    ),
    _client(
        "tlsCertificateFilePath",
        text,
        "The client's certificate, PEM as a file or content.",
    ),
    _client(
        "tlsKeyFilePath",
        text,
        "The key of that certificate, PEM as a file or content.",
        secret=True,
        aliases=("pulsar.client.tlsKeySecret",),
    ),
    _client(
        "tlsAllowInsecureConnection",
        boolean,
        "`true`: any certificate is accepted, with a warning; an attacker can then read and change "
        "messages.",
        default="false",
    ),
    _client(
        "tlsHostnameVerificationEnable",
        boolean,
        "Whether to verify that the broker's certificate is for its host name.",
        default="true",
    ),
    _client(
        "proxyServiceUrl",
        text,
        "Address of an SNI proxy, such as Apache Traffic Server, as `pulsar+ssl://host:4443`; all "
        "connections to brokers go there, but not lookups with an `https://` service URL. Set the "
        "address of a Pulsar proxy as `service.url` instead.",
    ),
    _client(
        "proxyProtocol",
        choice("SNI"),
        "Protocol of that proxy.",
        shown_default="required with `proxyServiceUrl`",
    ),
    _client("listenerName", text, "Name of the brokers' advertised listener to connect to."),
)

_READ: tuple[Option, ...] = (
    Option(
        "topic",
        text,
        'One topic, as a short or full name, also of one partition; or `.load("topic")`, '
        '`.save("topic")`. On write it wins over the column `__topic`.',
        shown_default="to read: one of `topic`, `topics`, `topicsPattern`",
    ),
    _reads("topics", text_list, "Topics to read, separated by commas."),
    _reads(
        "topicsPattern",
        text,
        "Topics to read, as a regular expression that must match the full name without "
        "`-partition-N`. Tenant and namespace are literal; a pattern without them means "
        "`public/default`. System topics and non-persistent ones never match.",
    ),
    _reads(
        "startingOffsets",
        text,
        "`earliest`, `latest` (streams), or JSON: topic or partition → `earliest`, `latest`, "
        "`ledger:entry[:partition[:batchIndex]]`, an ISO time, an age such as `-1h`, or the Scala "
        "connector's array of bytes. Inclusive. What the JSON leaves out begins at `earliest` in "
        "a batch, at `latest` in a stream.",
        shown_default="batch `earliest`, stream `latest`",
    ),
    Option(
        "endingOffsets",
        text,
        "As `startingOffsets`, for the end of a batch. Message ids are inclusive; `latest` is "
        "fixed when the read is planned.",
        Scope.READ,
        shown_default="`latest`",
    ),
    _reads(
        "startingTime",
        text,
        "First publish time to read: milliseconds, ISO-8601 (UTC without a zone), an age such as "
        "`-1h`, or JSON per topic: what that leaves out begins at `earliest` in a batch, at "
        "`latest` in a stream. Not together with `startingOffsets`.",
    ),
    Option(
        "endingTime",
        text,
        "Publish time at which a batch ends (exclusive), in the format of `startingTime`. Not "
        "together with `endingOffsets`.",
        Scope.READ,
    ),
    _reads(
        "publishTimeTolerance",
        milliseconds(0),
        "How far publish times on a topic may be out of order. Searches by time extend this far "
        "beyond both ends; messages that are further out of order can be missed.",
        default="1m",
    ),
    Option(
        "valueFormat",
        choice("auto", "raw", "avro", "json", "string", "protobuf"),
        "`auto`: the topic's schema decides. `raw`: `value binary`. To read topics without a "
        "schema: `json` with `.schema(…)`, `string`, and `avro` or `protobuf` with `valueSchema`. "
        "On write `avro`, `json`: new columns are added to the topic's schema; `string`. See "
        "schemas.md.",
        default="auto",
    ),
    _reads(
        "valueSchema",
        text,
        "The schema of values that are read with `valueFormat` `avro` or `protobuf`: an Avro "
        "definition as text, a descriptor set (`protoc --descriptor_set_out`) as base64, or the "
        "path or `file://` URL of a file with one of these on the driver.",
    ),
    _reads(
        "valueMessage",
        text,
        "The message in `valueSchema` that values are, with `valueFormat=protobuf`: its full name, "
        "or the end of it if only one message has that.",
    ),
    _reads(
        "mode",
        choice("FAILFAST", "PERMISSIVE", "DROPMALFORMED"),
        "How to handle values that cannot be decoded: fail the query, set their columns to null, "
        "or drop the row.",
        default="FAILFAST",
    ),
    _reads(
        "jsonCoercion",
        choice("lossless", "java"),
        "Which JSON values of another type than the field's are read: those that lose nothing, or "
        "also numbers that Java's client cuts off. See schemas.md.",
        default="lossless",
    ),
    _reads(
        "columnNameOfCorruptRecord",
        text,
        "Name of the last column, which `mode` PERMISSIVE adds: the bytes of values that cannot be "
        "decoded.",
        default="_corrupt_record",
    ),
    _reads(
        "includeMetadata",
        boolean,
        "Adds the position and producer columns (columns.md).",
        default="false",
    ),
    _reads(
        "allowDifferentTopicSchemas",
        boolean,
        "`true`: topics with different schemas are read together, as raw `value`; `false`: they "
        "are an error.",
        default="false",
    ),
    _reads(
        "failOnDataLoss",
        boolean,
        "`true`: fail if messages, or chunks of one, were deleted before they were read, for "
        "example by retention or TTL. `false`: continue, and log what was lost.",
        default="true",
    ),
    _reads(
        "readCompacted",
        boolean,
        "Reads the compacted view of the topics. Once a topic was compacted, `failOnDataLoss` "
        "cannot tell lost messages from compacted ones.",
        default="false",
        aliases=("pulsar.reader.readCompacted",),
    ),
    _reader(
        "cryptoPrivateKeyPath",
        keys_by_name,
        "Private key that decrypts messages: a PEM file on every machine, PEM text, or JSON of "
        "name → one of these.",
        secret=True,
        aliases=("pulsar.reader.cryptoPrivateKeySecret",),
    ),
    _reader(
        "cryptoFailureAction",
        choice("FAIL", "DISCARD", "CONSUME"),
        "What to do with an entry that cannot be decrypted: fail, drop it and log how many, or "
        "return its encrypted bytes as one row (in a stream, with the entry's first message).",
        default="FAIL",
    ),
)

_STREAMS: tuple[Option, ...] = (
    _streams(
        "maxMessagesPerTrigger",
        _COUNT,
        "Maximum number of messages in a micro-batch (backpressure); batched entries are split.",
    ),
    _streams(
        "maxBytesPerTrigger",
        within(size, 0, _MAX_BYTES, " bytes"),
        "Maximum bytes of a micro-batch, as stored (backpressure); 0 is no limit. At least one "
        "entry is read.",
    ),
    _streams(
        "minMessagesPerTrigger",
        _COUNT,
        "Minimum number of messages in a micro-batch: it waits for them, at most "
        "`maxTriggerDelay`. The first micro-batch after a start does not wait.",
    ),
    _streams(
        "maxTriggerDelay",
        milliseconds(0),
        "How long a stream waits for `minMessagesPerTrigger`.",
        default="15m",
    ),
    _streams(
        "subscription",
        text,
        "Name of a stream's durable subscription, one on each topic partition. Each query needs "
        "its own.",
        shown_default="generated once, kept in the checkpoint",
        aliases=("predefinedSubscription",),
    ),
    _reads(
        "subscriptionPrefix",
        text,
        "First part of generated subscription names. Streams need the role's name here where a "
        "namespace wants all names to begin with it (`set-subscription-auth-mode Prefix`).",
        shown_default="`spark-pulsar`",
    ),
    _streams(
        "waitingForNonExistedTopic",
        boolean,
        "`true`: a stream waits for topics that do not exist yet. Give it `.schema(…)` or a "
        "`valueFormat`: otherwise it reads bytes, and fails if a topic comes with a schema.",
        default="false",
    ),
)

_WRITE: tuple[Option, ...] = (
    _writes(
        "deliveryGuarantee",
        choice("at-least-once", "exactly-once", "none"),
        "`at-least-once`; `exactly-once` by transactions; `none`: a task does not wait for "
        "receipts, failures are logged and counted.",
        default="at-least-once",
    ),
    _writes(
        "sinkId",
        text,
        "Name of an exactly-once sink; it must be the same at every start of the query or job.",
        shown_default="the writer's option `checkpointLocation`",
    ),
    _writes(
        "sinkStateTopic",
        text,
        "Topic for the records of an exactly-once sink; nothing else may write to it.",
        shown_default="derived from `sinkId`, in the topic's namespace",
    ),
    Option(
        "sinkRunId",
        text,
        "Name of a run of an exactly-once batch write within its `sinkId`, such as its date: a run "
        "that is committed is left out when it comes again.",
        Scope.WRITE,
    ),
    _writes(
        "sinkRepeats",
        choice("identical", "first"),
        "What a repeated micro-batch or run of an exactly-once sink may write: `identical`: the "
        "rows that were committed; `first`: anything, what was committed first stays.",
        default="identical",
    ),
    _writes(
        "transactionTimeout",
        milliseconds(1000),
        "Timeout of a transaction of the exactly-once sink: how long a micro-batch may take, and "
        "how long the driver may be down.",
        default="1h",
    ),
    _writes(
        "schema.name",
        avro_name,
        "Record name of the schema that a write registers on a topic without a schema.",
        shown_default="`topLevelRecord`",
    ),
    _writes(
        "schema.namespace",
        avro_namespace,
        "Record namespace of that schema, such as `com.example`.",
    ),
    _writes(
        "keyEncoding",
        choice("auto", "bytes"),
        "`auto`: a binary key that is valid UTF-8 is sent as text. `bytes`: every key is sent "
        "base64 with its flag.",
        default="auto",
    ),
    _producer(
        "messageRoutingMode",
        choice("RoundRobinPartition", "SinglePartition"),
        "How to choose a partition for messages without a key.",
        default="RoundRobinPartition",
    ),
    _producer(
        "hashingScheme",
        choice("JavaStringHash", "Murmur3_32Hash"),
        "Hash function that maps a key to a partition.",
        default="JavaStringHash",
    ),
    _producer(
        "compressionType",
        choice("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"),
        "Compression of the messages' payloads.",
        default="NONE",
    ),
    _producer(
        "producerName",
        text,
        "Name of the producers. The first task uses this name, the others add their number. With "
        "the column `__sequenceId` rows are deduplicated: see effectively-once.md.",
        shown_default="chosen by the broker",
    ),
    _producer(
        "accessMode",
        choice("Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing"),
        "Access mode of the producers. With several tasks only `Shared` works.",
        default="Shared",
    ),
    _producer(
        "encryptionKeys",
        text_list,
        "Names of the keys to encrypt with; any one of the private keys can decrypt. Needs "
        "`pulsar-spark[crypto]`.",
        shown_default="no encryption",
    ),
    _producer(
        "cryptoPublicKeyPath",
        keys_by_name,
        "Public key for these names: a PEM file on every machine, PEM text, or JSON of name → one "
        "of these.",
    ),
    _producer(
        "cryptoFailureAction",
        choice("FAIL", "SEND"),
        "What to do with a message that cannot be encrypted.",
        default="FAIL",
        unbuilt=("SEND",),
    ),
)

_TUNING: tuple[Option, ...] = (
    _reads(
        "partitionsPerTopicPartition",
        within(integer, 1, _MAX_TASKS),
        "How many Spark tasks read one topic partition.",
        default="1",
    ),
    _reads(
        "minPartitions",
        within(integer, 1, _MAX_TASKS),
        "Minimum number of Spark tasks of a read: topic partitions are split to reach it.",
    ),
    _reads(
        "pollTimeout",
        milliseconds(1),
        "How long a read waits without progress before it fails.",
        default="120s",
        aliases=("pollTimeoutMs",),
    ),
    _reader(
        "receiverQueueSize",
        within(integer, 1, 1_000_000),
        "Number of messages to prefetch. If unset, the reader starts at 1000 and adapts.",
        shown_default="1000, then adapted",
    ),
    _producer("batchingEnabled", boolean, "Whether messages are sent in batches.", default="true"),
    _producer(
        "batchingMaxMessages", _COUNT, "Maximum number of messages in a batch.", default="1000"
    ),
    _producer(
        "batchingMaxBytes",
        within(size, 1, _MAX_BYTES, " bytes"),
        "Maximum bytes of a batch.",
        default="128k",
    ),
    _producer(
        "batcherBuilder",
        choice("DEFAULT", "KEY_BASED"),
        "Which messages share a batch: any, or only those with the same key (for Key_Shared "
        "subscriptions).",
        default="DEFAULT",
    ),
    _producer(
        "chunkingEnabled",
        boolean,
        "Whether to split messages above the broker's maximum size into chunks; needs "
        "`batchingEnabled=false`.",
        default="false",
    ),
    _producer(
        "maxPendingMessages",
        within(integer, 0, _MAX_INT),
        "Maximum number of messages of a producer that wait for receipts; 0: limited by memory "
        "only.",
        default="0",
    ),
    _producer(
        "sendTimeoutMs",
        milliseconds(0),
        "How long a task waits for the next receipt before it fails; 0: for as long as it takes.",
        default="30000",
    ),
    _client(
        "operationTimeoutMs",
        milliseconds(1),
        "Request timeout, including retries.",
        default="30000",
    ),
    _client(
        "connectionTimeoutMs",
        milliseconds(1),
        "Timeout of one attempt to connect.",
        default="10000",
    ),
    _client(
        "keepAliveIntervalSeconds",
        within(plain_seconds, 1, 3600, " seconds"),
        "Interval between PING commands.",
        default="30",
    ),
    _client(
        "memoryLimitBytes",
        within(size, 1 << 20, _MAX_BYTES, " bytes"),
        "Maximum memory of a task for messages that were received but not decoded yet, or sent but "
        "not acknowledged yet.",
        default="64m",
    ),
    _client(
        "maxLookupRedirects",
        within(integer, 0, 1000),
        "Maximum number of redirects that a lookup follows.",
        default="20",
    ),
)

GROUPS: dict[str, tuple[Option, ...]] = {
    "Connect": _CONNECT,
    "What to read": _READ,
    "Streams": _STREAMS,
    "Write": _WRITE,
    "Tuning": _TUNING,
}
"""All options, in the groups of their page."""

OPTIONS: tuple[Option, ...] = tuple(chain.from_iterable(GROUPS.values()))

BY_NAME: dict[str, Option] = {
    name.lower(): option for option in OPTIONS for name in (option.key, *option.aliases)
}
"""Key or alias in lower case → option."""
