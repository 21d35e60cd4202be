"""Names that options have in other systems → the option here, and what differs.

People bring jobs from Kafka's source, from Flink, from Databricks or from a client. An unknown name
is looked up here before any similarity is: `maxOffsetsPerTrigger` resembles a cap of bytes, and
means one of messages. What the Scala connector and Java's client have is accepted as it is
(`table.py`, `java.py`), so only what is called otherwise here stands in this table.
"""

from __future__ import annotations

from dataclasses import dataclass

from pulsar_spark.spark.options.java import REFUSED
from pulsar_spark.spark.options.table import BY_NAME


@dataclass(frozen=True, slots=True)
class Foreign:
    """Names that mean the same in one system.

    `ours` are keys of options, none if there is no such option. `differs` is one or more sentences
    on what is not the same, or why the option can be left out. A name that ends with `*` is a
    prefix.
    """

    system: str
    names: tuple[str, ...]
    ours: tuple[str, ...]
    differs: str

    @property
    def remedy(self) -> str:
        """What to write instead, as sentences."""
        if not self.ours:
            return f"It is an option of {self.system}. {self.differs}"
        here = " and ".join(repr(key) for key in self.ours)
        return f"It is an option of {self.system}; here, write {here}. {self.differs}".rstrip()


KAFKA = "Kafka's source"
DATABRICKS = "Databricks' read_pulsar"
FLINK = "Flink's Pulsar connector"
PYTHON = "Pulsar's Python client"
JAVA = "Pulsar's Java client"
SCALA = "the Scala connector"

_PEM = REFUSED["pulsar.client.usekeystoretls"][1].strip()
_NO_READERS = (
    "Leave it out: the messages are read by readers, which acknowledge nothing by themselves."
)
_SEVERAL_TASKS = (
    "Leave it out: partitionsPerTopicPartition lets several tasks read a topic partition."
)
_DISCOVERED = "Leave it out: a stream finds new topics and partitions by itself."
_SENT_WHEN_FULL = "Leave it out: a batch is sent when it is full, and at the end of the task."
_THREADS = "Leave it out: there are no such threads, caches or logs to set."
_NOTHING = "Leave it out: nothing like it exists here."
_SAME = ""

# Of each system: names, the options here, and what differs.
_ROWS: dict[str, tuple[tuple[str, str, str], ...]] = {
    KAFKA: (
        ("kafka.bootstrap.servers", "service.url", "It is written pulsar://host:6650."),
        ("subscribe", "topics", "Names are separated by commas, as there."),
        (
            "subscribePattern",
            "topicsPattern",
            "It must match the full name, without partition; tenant and namespace are literal.",
        ),
        ("assign", "topics", "A partition is named as a topic of its own: orders-partition-0."),
        (
            "maxOffsetsPerTrigger",
            "maxMessagesPerTrigger",
            "The same number; it counts messages of all topic partitions together.",
        ),
        (
            "minOffsetsPerTrigger",
            "minMessagesPerTrigger",
            "The same number; maxTriggerDelay has the same name.",
        ),
        (
            "maxRecordsPerPartition",
            "minPartitions",
            "Tasks are made by their number, not by records in each of them.",
        ),
        ("startingTimestamp", "startingTime", "The same milliseconds, or an ISO time."),
        ("endingTimestamp", "endingTime", "The same milliseconds, or an ISO time."),
        (
            "startingOffsetsByTimestamp",
            "startingTime",
            'As JSON per topic or partition: {"orders-partition-0": 1700000000000}.',
        ),
        (
            "endingOffsetsByTimestamp",
            "endingTime",
            'As JSON per topic or partition: {"orders-partition-0": 1700000000000}.',
        ),
        (
            "startingOffsetsByTimestampStrategy",
            "",
            "Leave it out: a time after the last message starts at the end.",
        ),
        (
            "kafka.group.id",
            "subscription",
            "It is durable and is for one query only: it keeps what the query has not read.",
        ),
        ("groupIdPrefix", "subscriptionPrefix", _SAME),
        ("includeHeaders", "", "Leave it out: the column __messageProperties is always there."),
        ("kafkaConsumer.pollTimeoutMs", "pollTimeout", "It is about reads without progress."),
        (
            "fetchOffset.numRetries fetchOffset.retryIntervalMs kafka.request.timeout.ms",
            "pulsar.client.operationTimeoutMs",
            "It is a time, retries included.",
        ),
        ("kafka.auto.offset.reset", "startingOffsets", "earliest or latest."),
        (
            "kafka.isolation.level",
            "",
            "Leave it out: messages of open and of aborted transactions are never read.",
        ),
        (
            "kafka.security.protocol",
            "service.url pulsar.client.authPluginClassName",
            "TLS is a service URL pulsar+ssl://host:6651; authentication is an option of its own.",
        ),
        (
            "kafka.sasl.*",
            "pulsar.client.authPluginClassName pulsar.client.authParams",
            "The methods are token, basic, tls, oauth2, or a class of your own.",
        ),
        ("kafka.ssl.*", "pulsar.client.tlsTrustCertsFilePath", _PEM),
        ("kafka.compression.type", "pulsar.producer.compressionType", _SAME),
        ("kafka.batch.size", "pulsar.producer.batchingMaxBytes", _SAME),
        ("kafka.linger.ms", "", _SENT_WHEN_FULL),
        ("kafka.acks", "deliveryGuarantee", "at-least-once waits for receipts, none does not."),
        (
            "kafka.max.request.size",
            "pulsar.producer.chunkingEnabled",
            "The broker sets the largest message; larger ones can be sent in chunks.",
        ),
        ("kafka.*", "", "Leave it out: it sets Kafka's own client."),
    ),
    DATABRICKS: (
        ("pulsarClientAuthPluginClassName", "pulsar.client.authPluginClassName", _SAME),
        ("pulsarClientAuthParams", "pulsar.client.authParams", _SAME),
        (
            "pulsarClientUseKeyStoreTls pulsarClientTlsTrustStoreType "
            "pulsarClientTlsTrustStorePath pulsarClientTlsTrustStorePassword",
            "pulsar.client.tlsTrustCertsFilePath",
            _PEM,
        ),
        (
            "pulsarAdminAuthPlugin pulsarAdminAuthParams",
            "",
            "Leave it out: caps work without the admin port.",
        ),
    ),
    SCALA: (("topic.schema.class", "", "Leave it out: the topic's schema decides."),),
    FLINK: (
        (
            "pulsar.consumer.subscriptionName source.subscription-name",
            "subscription",
            "It is for one query only, which holds it exclusively.",
        ),
        ("pulsar.consumer.subscriptionType source.subscription-type", "", _SEVERAL_TASKS),
        ("pulsar.consumer.receiverQueueSize", "pulsar.reader.receiverQueueSize", _SAME),
        (
            "pulsar.consumer.maxTotalReceiverQueueSizeAcrossPartitions",
            "pulsar.client.memoryLimitBytes",
            "It is in bytes.",
        ),
        ("pulsar.consumer.readCompacted", "readCompacted", _SAME),
        ("pulsar.consumer.cryptoFailureAction", "pulsar.reader.cryptoFailureAction", _SAME),
        ("pulsar.consumer.topicsPattern", "topicsPattern", "Tenant and namespace are literal."),
        ("pulsar.consumer.subscriptionInitialPosition", "startingOffsets", "earliest or latest."),
        ("pulsar.consumer.*", "", _NO_READERS),
        ("pulsar.source.partitionDiscoveryIntervalMs", "", _DISCOVERED),
        (
            "pulsar.source.maxFetchRecords",
            "pulsar.reader.receiverQueueSize",
            "It is how much is prefetched; maxMessagesPerTrigger caps a micro-batch.",
        ),
        (
            "pulsar.source.verifyInitialOffsets",
            "failOnDataLoss",
            "true fails if messages were deleted before they were read.",
        ),
        (
            "pulsar.source.enableSchemaEvolution",
            "",
            "Leave it out: each message is read by the version of the schema it was written with.",
        ),
        ("pulsar.source.*", "", "Leave it out: Spark's trigger and checkpoint decide on it."),
        (
            "pulsar.sink.deliveryGuarantee",
            "deliveryGuarantee",
            "The same words; at-least-once is the default.",
        ),
        (
            "pulsar.sink.transactionTimeoutMillis",
            "transactionTimeout",
            "The same number, or a duration such as 1h.",
        ),
        (
            "pulsar.sink.messageKeyHash",
            "pulsar.producer.hashingScheme",
            "JavaStringHash or Murmur3_32Hash.",
        ),
        (
            "pulsar.sink.enableSchemaEvolution",
            "valueFormat",
            "avro or json adds new columns to the topic's schema.",
        ),
        ("pulsar.sink.*", "", _NOTHING),
        (
            "pulsar.producer.producerCryptoFailureAction",
            "pulsar.producer.cryptoFailureAction",
            _SAME,
        ),
        ("service-url", "service.url", _SAME),
        ("admin-url", "", "Leave it out: the admin port is not used."),
        (
            "source.start.message-id",
            "startingOffsets",
            'earliest, latest, or JSON per topic partition: {"orders-partition-0": "12:2"}. The '
            "message itself is read.",
        ),
        ("source.start.publish-time", "startingTime", "The same milliseconds."),
        (
            "source.stop.at-message-id source.stop.after-message-id",
            "endingOffsets",
            "Only in a batch read. The message itself is read, as with after-message-id.",
        ),
        (
            "source.stop.at-publish-time",
            "endingTime",
            "Only in a batch read. The same milliseconds.",
        ),
        (
            "sink.topic-routing-mode",
            "pulsar.producer.messageRoutingMode",
            "Messages with a key always go by the hash of it.",
        ),
        ("sink.custom-topic-router", "", "Leave it out: the topic of a row is its column __topic."),
        (
            "sink.message-delay-interval",
            "",
            "Leave it out: a row is delivered at the time in its column __deliverAt.",
        ),
        ("value.format format", "valueFormat", "The topic's schema decides without it."),
        ("key.format key.fields", "", "Leave it out: the key is the column __key."),
    ),
    JAVA: (
        ("subscriptionName", "subscription", "It is for one query only."),
        ("subscriptionType", "", _SEVERAL_TASKS),
        ("subscriptionInitialPosition", "startingOffsets", "earliest or latest."),
    ),
    PYTHON: (
        ("service_url", "service.url", _SAME),
        ("operation_timeout_seconds", "pulsar.client.operationTimeoutMs", "It is in milliseconds."),
        ("connection_timeout_ms", "pulsar.client.connectionTimeoutMs", _SAME),
        ("tls_trust_certs_file_path", "pulsar.client.tlsTrustCertsFilePath", _SAME),
        ("tls_allow_insecure_connection", "pulsar.client.tlsAllowInsecureConnection", _SAME),
        (
            "tls_validate_hostname",
            "pulsar.client.tlsHostnameVerificationEnable",
            "It is true by default.",
        ),
        ("tls_private_key_file_path", "pulsar.client.tlsKeyFilePath", _SAME),
        ("tls_certificate_file_path", "pulsar.client.tlsCertificateFilePath", _SAME),
        ("listener_name", "pulsar.client.listenerName", _SAME),
        ("subscription_name", "subscription", "It is for one query only."),
        ("consumer_type", "", _SEVERAL_TASKS),
        (
            "initial_position start_message_id",
            "startingOffsets",
            "earliest, latest, or JSON of topic partitions and message ids.",
        ),
        ("receiver_queue_size", "pulsar.reader.receiverQueueSize", _SAME),
        ("is_read_compacted", "readCompacted", _SAME),
        (
            "crypto_key_reader",
            "pulsar.reader.cryptoPrivateKeyPath pulsar.producer.cryptoPublicKeyPath",
            "They are PEM files; the first one is to read, the second one to write.",
        ),
        ("encryption_key", "pulsar.producer.encryptionKeys", _SAME),
        ("producer_name", "pulsar.producer.producerName", _SAME),
        ("send_timeout_millis", "pulsar.producer.sendTimeoutMs", _SAME),
        ("compression_type", "pulsar.producer.compressionType", _SAME),
        ("max_pending_messages", "pulsar.producer.maxPendingMessages", _SAME),
        ("batching_enabled", "pulsar.producer.batchingEnabled", "It is true by default."),
        ("batching_max_messages", "pulsar.producer.batchingMaxMessages", _SAME),
        ("batching_max_allowed_size_in_bytes", "pulsar.producer.batchingMaxBytes", _SAME),
        ("batching_max_publish_delay_ms", "", _SENT_WHEN_FULL),
        ("batching_type", "pulsar.producer.batcherBuilder", "DEFAULT or KEY_BASED."),
        ("chunking_enabled", "pulsar.producer.chunkingEnabled", _SAME),
        ("message_routing_mode", "pulsar.producer.messageRoutingMode", _SAME),
        ("access_mode", "pulsar.producer.accessMode", _SAME),
        ("use_tls", "service.url", "Write it as pulsar+ssl://host:6651."),
        (
            "crypto_failure_action",
            "pulsar.reader.cryptoFailureAction",
            "It is FAIL, DISCARD or CONSUME.",
        ),
        (
            "schema",
            "valueFormat",
            "The topic's schema decides without it; .schema(…) declares columns of JSON.",
        ),
        ("message_router", "", "Leave it out: a row's topic is its column __topic."),
        ("io_threads message_listener_threads concurrent_lookup_requests", "", _THREADS),
        ("log_conf_file_path logger stats_interval_in_seconds", "", _THREADS),
        (
            "max_pending_messages_across_partitions block_if_queue_full keep_freed_memory "
            "max_total_receiver_queue_size_across_partitions",
            "pulsar.client.memoryLimitBytes",
            "It bounds the memory of a task; a task waits when it is used up.",
        ),
        (
            "unacked_messages_timeout_ms negative_ack_redelivery_delay_ms ack_receipt_enabled "
            "negative_ack_redelivery_backoff batch_index_ack_enabled batch_receive_policy "
            "durable dead_letter_policy key_shared_policy enable_retry priority_level "
            "message_listener",
            "",
            _NO_READERS,
        ),
        ("start_message_rollback_seconds", "startingTime", "It is an age, such as -1h, or a time."),
        ("discard_corrupt_messages", "mode", "It is DROPMALFORMED."),
        ("pattern_auto_discovery_period", "", _DISCOVERED),
    ),
}

FOREIGN: tuple[Foreign, ...] = tuple(
    Foreign(system, tuple(names.split()), tuple(ours.split()), differs)
    for system, rows in _ROWS.items()
    for names, ours, differs in rows
)
"""All rows, grouped by system; of two that fit a name, the first one counts."""

_EXACT = {
    name.lower(): foreign
    for foreign in reversed(FOREIGN)
    for name in foreign.names
    if not name.endswith("*")
}
_PREFIXES = [
    (name[:-1].lower(), foreign)
    for foreign in FOREIGN
    for name in foreign.names
    if name.endswith("*")
]


def foreign_option(name: str) -> Foreign | None:
    """Return what another system calls by this name, in any case of letters; None if nothing."""
    lower = name.lower()
    if lower in BY_NAME:
        return None
    found = _EXACT.get(lower)
    return found or next(
        (foreign for prefix, foreign in _PREFIXES if lower.startswith(prefix)), None
    )
