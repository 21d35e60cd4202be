"""The options of a read, checked against each other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql.types import StructType

from pulsar_spark.engine.authentication.parameters import auth_options
from pulsar_spark.engine.encryption import PemKeys
from pulsar_spark.engine.lookups.topic_patterns import TopicPattern
from pulsar_spark.engine.options import ClientOptions, ReaderOptions, TlsOptions
from pulsar_spark.errors import OptionError, UnsupportedFeature, listed
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.protocol.topic_name import TopicName, topic_of
from pulsar_spark.schema.table.record_batches import MAX_ROWS
from pulsar_spark.spark.offsets import (
    EARLIEST_BOUND,
    END_OPTIONS,
    LATEST_BOUND,
    START_OPTIONS,
    BoundKind,
    OffsetSpec,
    parse_bounds,
)
from pulsar_spark.spark.options.resolve import TO_TOPICS, Values, resolve
from pulsar_spark.spark.options.table import NOWHERE, Scope
from pulsar_spark.spark.options.value_schema import given_schema


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read; plain data.

    Either `topics` (full names) or `pattern` is set. Times are milliseconds. A `waiting` stream
    starts even if its topics do not exist yet.
    """

    client: ClientOptions
    reader: ReaderOptions
    topics: tuple[str, ...]
    pattern: TopicPattern | None
    starting: OffsetSpec
    ending: OffsetSpec
    publish_time_tolerance: int
    value_format: str
    value_schema: SchemaInfo | None = field(repr=False)
    """The schema of values whose format is given, None for JSON: there the columns define it."""
    mode: str
    corrupt_column: str
    json_coercion: str
    include_metadata: bool
    allow_different_schemas: bool
    fail_on_data_loss: bool
    partitions_per_topic_partition: int
    min_partitions: int | None
    waiting: bool = False
    batch_rows: int = MAX_ROWS
    """At most so many rows are read before the first of them are given out."""
    query: StructType | None = None
    """The columns of the query."""
    inferred: bool = False
    """Whether these were inferred from the topics at planning, not chosen by the user."""

    @property
    def raw(self) -> bool:
        """Whether values are read as bytes."""
        return self.value_format == "raw"

    def includes(self, topic: str) -> bool:
        """Whether a topic, or topic partition, is one of those to read, if it exists."""
        if self.pattern is not None:
            return bool(self.pattern.select([topic]))
        return not {topic, topic_of(topic)}.isdisjoint(self.topics)


def parse_read_options(
    options: Mapping[str, str], scope: Scope = Scope.READ, told: Scope = NOWHERE
) -> ReadOptions:
    """Parse the options of a batch read, of a stream (STREAM_READ) or of any read (READS).

    `told` is as in `resolve`. Raises OptionError, InvalidOffset or UnsupportedFeature that names
    the option.
    """
    return read_options(resolve(options, scope, told), options, scope)


def read_options(values: Values, options: Mapping[str, str], scope: Scope) -> ReadOptions:
    """Return a read's options from the resolved `values` of `options`."""
    client = client_options(values)
    topics, pattern = _topics(values, options)
    prefix = values["subscriptionPrefix"]
    return ReadOptions(
        client=client,
        reader=ReaderOptions(
            receiver_queue_size=values["pulsar.reader.receiverQueueSize"] or 1000,
            auto_scale="pulsar.reader.receiverQueueSize" not in values,
            memory_budget=values["pulsar.client.memoryLimitBytes"],
            read_compacted=values["readCompacted"],
            poll_timeout=values["pollTimeout"],
            skip_incomplete=not values["failOnDataLoss"],
            crypto_keys=crypto_keys(values, "pulsar.reader.cryptoPrivateKeyPath"),
            crypto_failure_action=values["pulsar.reader.cryptoFailureAction"],
            **({"subscription_prefix": prefix} if prefix else {}),
        ),
        topics=topics,
        pattern=pattern,
        starting=_bounds(values, START_OPTIONS, scope),
        ending=_bounds(values, END_OPTIONS, scope),
        publish_time_tolerance=round(values["publishTimeTolerance"] * 1000),
        value_format=values["valueFormat"],
        value_schema=given_schema(values),
        mode=values["mode"],
        corrupt_column=values["columnNameOfCorruptRecord"],
        json_coercion=values["jsonCoercion"],
        include_metadata=values["includeMetadata"],
        allow_different_schemas=values["allowDifferentTopicSchemas"],
        fail_on_data_loss=values["failOnDataLoss"],
        partitions_per_topic_partition=values["partitionsPerTopicPartition"],
        min_partitions=values["minPartitions"],
        waiting=bool(values.by_key.get("waitingForNonExistedTopic")),
    )


def client_options(values: Values) -> ClientOptions:
    """Return the client's options for a read or a write.

    Raises OptionError for a missing or invalid service URL and for mismatched credentials.
    """
    if values["service.url"] is None:
        raise OptionError(
            "service.url is required",
            "Set it to pulsar://host:6650. Spark does not pass the options of CREATE TABLE to "
            "queries: see docs/sql.md.",
        )
    proxy = values["pulsar.client.proxyServiceUrl"]
    if (proxy is None) != (values["pulsar.client.proxyProtocol"] is None):
        raise OptionError(
            "pulsar.client.proxyServiceUrl and pulsar.client.proxyProtocol must be set together",
            "Set both, the latter to SNI. Pulsar's own proxy belongs in service.url.",
        )
    return ClientOptions(
        proxy_service_url=proxy,
        service_url=values["service.url"],
        operation_timeout=values["pulsar.client.operationTimeoutMs"],
        connection_timeout=values["pulsar.client.connectionTimeoutMs"],
        keep_alive_interval=values["pulsar.client.keepAliveIntervalSeconds"],
        max_lookup_redirects=values["pulsar.client.maxLookupRedirects"],
        listener_name=values["pulsar.client.listenerName"],
        auth=auth_options(
            values["pulsar.client.authPluginClassName"],
            values["pulsar.client.authParams"],
            values["pulsar.client.tlsTrustCertsFilePath"],
        ),
        tls=TlsOptions(
            trust_certs_file=values["pulsar.client.tlsTrustCertsFilePath"],
            certificate_file=values["pulsar.client.tlsCertificateFilePath"],
            key_file=values["pulsar.client.tlsKeyFilePath"],
            allow_insecure=values["pulsar.client.tlsAllowInsecureConnection"],
            verify_hostname=values["pulsar.client.tlsHostnameVerificationEnable"],
        ),
        memory_limit=values["pulsar.client.memoryLimitBytes"],
    )


def crypto_keys(values: Values, option: str) -> PemKeys | None:
    """Return an option's keys for end-to-end encryption."""
    return None if values[option] is None else PemKeys(option, values[option])


def single_topic(values: Values) -> str | None:
    """Return the full name in `topic`, `.load(…)` or `.save(…)`, or None.

    Raises OptionError for several names and for two different ones; InvalidTopicName.
    """
    reads = "topics" in values.by_key
    several = "Name several topics with the option topics." if reads else TO_TOPICS
    names = {str(_topic(name, several)) for name in (values["topic"], values.path) if name}
    if len(names) > 1:
        raise OptionError(
            "topic and the path of load() or save() name different topics: "
            f"{listed(sorted(names))}",
            "Give one of them.",
        )
    return names.pop() if names else None


def _topic(name: str, several: str) -> TopicName:
    if "," in name:
        raise OptionError("topic contains a comma", several)
    return TopicName.parse(name.strip())


def _topics(
    values: Values, options: Mapping[str, str]
) -> tuple[tuple[str, ...], TopicPattern | None]:
    single = single_topic(values)
    several = values["topics"] or _paths(options)
    pattern = values["topicsPattern"]
    given = [
        name
        for name, value in (("topic", single), ("topics", several), ("topicsPattern", pattern))
        if value
    ]
    if len(given) != 1:
        raise OptionError(
            f"{' and '.join(given)} cannot be used together" if given else "no topic is given",
            "Set one of topic, topics and topicsPattern.",
        )
    if pattern:
        return (), TopicPattern.parse(pattern)
    names = (single,) if single else tuple(str(TopicName.parse(name)) for name in several)
    for name in names:
        if not TopicName.parse(name).is_persistent:
            raise UnsupportedFeature(
                "a non-persistent topic cannot be read from Spark: its broker stores nothing, so "
                "there is no range of messages to read, or to read again when a task is retried",
                "Use pulsar_spark.client.PulsarClient, or a persistent topic.",
                topic=name,
            )
    return tuple(dict.fromkeys(names)), None


def _paths(options: Mapping[str, str]) -> list[str]:
    """Return the names in `.load([…])`, which Spark passes as a JSON array."""
    text = next((value for name, value in options.items() if name.lower() == "paths"), "[]")
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise OptionError("paths is not a JSON array of topics", "Set the option topics.")
    return names


def _bounds(values: Values, keys: tuple[str, str], scope: Scope) -> OffsetSpec:
    """Return where a read starts or ends: by position or by time, not by both."""
    default, refused = LATEST_BOUND, BoundKind.EARLIEST
    if keys == START_OPTIONS:
        default = LATEST_BOUND if scope is Scope.STREAM_READ else EARLIEST_BOUND
        refused = BoundKind.LATEST
    elif scope is Scope.STREAM_READ:
        return OffsetSpec(keys[0], LATEST_BOUND)
    given = [key for key in keys if values[key] is not None]
    if len(given) > 1:
        raise OptionError(f"{' and '.join(keys)} cannot be used together", "Set one of them.")
    key = given[0] if given else keys[0]
    text = values[key] if given else str(default)
    return parse_bounds(key, text, default, refused if scope is Scope.READ else None)
