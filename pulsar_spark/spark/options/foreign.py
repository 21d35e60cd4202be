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

# System, its names, the options here, and what differs.
_ROWS: tuple[tuple[str, str, str, str], ...] = (
    (KAFKA, "kafka.bootstrap.servers", "service.url", "It is written pulsar://host:6650."),
    (KAFKA, "subscribe", "topics", "Names are separated by commas, as there."),
    (
        KAFKA,
        "subscribePattern",
        "topicsPattern",
        "It must match the full name, without partition; tenant and namespace are literal.",
    ),
    (
        KAFKA,
        "assign",
        "topics",
        "A partition is named as a topic of its own: orders-partition-0.",
    ),
    (
        KAFKA,
        "maxOffsetsPerTrigger",
        "maxMessagesPerTrigger",
        "The same number; it counts messages of all topic partitions together.",
    ),
    (
        KAFKA,
        "minOffsetsPerTrigger",
        "minMessagesPerTrigger",
        "The same number; maxTriggerDelay has the same name.",
    ),
    (
        KAFKA,
        "maxRecordsPerPartition",
        "minPartitions",
        "Tasks are made by their number, not by records in each of them.",
    ),
    (KAFKA, "startingTimestamp", "startingTime", "The same milliseconds, or an ISO time."),
    (KAFKA, "endingTimestamp", "endingTime", "The same milliseconds, or an ISO time."),
    (
        KAFKA,
        "startingOffsetsByTimestamp",
        "startingTime",
        'As JSON per topic or partition: {"orders-partition-0": 1700000000000}.',
    ),
    (
        KAFKA,
        "endingOffsetsByTimestamp",
        "endingTime",
        'As JSON per topic or partition: {"orders-partition-0": 1700000000000}.',
    ),
    (
        KAFKA,
        "startingOffsetsByTimestampStrategy",
        "",
        "Leave it out: a time after the last message starts at the end.",
    ),
    (
        KAFKA,
        "kafka.group.id",
        "subscription",
        "It is durable and is for one query only: it keeps what the query has not read.",
    ),
    (KAFKA, "groupIdPrefix", "subscriptionPrefix", _SAME),
    (
        KAFKA,
        "includeHeaders",
        "",
        "Leave it out: the column __messageProperties is always there.",
    ),
    (KAFKA, "kafkaConsumer.pollTimeoutMs", "pollTimeout", "It is about reads without progress."),
    (
        KAFKA,
        "fetchOffset.numRetries fetchOffset.retryIntervalMs kafka.request.timeout.ms",
        "pulsar.client.operationTimeoutMs",
        "It is a time, retries included.",
    ),
    (KAFKA, "kafka.auto.offset.reset", "startingOffsets", "earliest or latest."),
    (
        KAFKA,
        "kafka.isolation.level",
        "",
        "Leave it out: messages of open and of aborted transactions are never read.",
    ),
    (
        KAFKA,
        "kafka.security.protocol",
        "service.url pulsar.client.authPluginClassName",
        "TLS is a service URL pulsar+ssl://host:6651; authentication is an option of its own.",
    ),
    (
        KAFKA,
        "kafka.sasl.*",
        "pulsar.client.authPluginClassName pulsar.client.authParams",
        "The methods are token, basic, tls, oauth2, or a class of your own.",
    ),
    (KAFKA, "kafka.ssl.*", "pulsar.client.tlsTrustCertsFilePath", _PEM),
    (KAFKA, "kafka.compression.type", "pulsar.producer.compressionType", _SAME),
    (KAFKA, "kafka.batch.size", "pulsar.producer.batchingMaxBytes", _SAME),
    (KAFKA, "kafka.linger.ms", "", _SENT_WHEN_FULL),
    (KAFKA, "kafka.acks", "deliveryGuarantee", "at-least-once waits for receipts, none does not."),
    (
        KAFKA,
        "kafka.max.request.size",
        "pulsar.producer.chunkingEnabled",
        "The broker sets the largest message; larger ones can be sent in chunks.",
    ),
    (KAFKA, "kafka.*", "", "Leave it out: it sets Kafka's own client."),
    (DATABRICKS, "pulsarClientAuthPluginClassName", "pulsar.client.authPluginClassName", _SAME),
    (DATABRICKS, "pulsarClientAuthParams", "pulsar.client.authParams", _SAME),
    (
        DATABRICKS,
        "pulsarClientUseKeyStoreTls pulsarClientTlsTrustStoreType pulsarClientTlsTrustStorePath "
        "pulsarClientTlsTrustStorePassword",
        "pulsar.client.tlsTrustCertsFilePath",
        _PEM,
    ),
    (
        DATABRICKS,
        "pulsarAdminAuthPlugin pulsarAdminAuthParams",
        "",
        "Leave it out: caps work without the admin port.",
    ),
    (SCALA, "topic.schema.class", "", "Leave it out: the topic's schema decides."),
    (
        FLINK,
        "pulsar.consumer.subscriptionName source.subscription-name",
        "subscription",
        "It is for one query only, which holds it exclusively.",
    ),
    (
        FLINK,
        "pulsar.consumer.subscriptionType source.subscription-type",
        "",
        _SEVERAL_TASKS,
    ),
    (
        FLINK,
        "pulsar.consumer.receiverQueueSize",
        "pulsar.reader.receiverQueueSize",
        _SAME,
    ),
    (
        FLINK,
        "pulsar.consumer.maxTotalReceiverQueueSizeAcrossPartitions",
        "pulsar.client.memoryLimitBytes",
        "It is in bytes.",
    ),
    (FLINK, "pulsar.consumer.readCompacted", "readCompacted", _SAME),
    (
        FLINK,
        "pulsar.consumer.cryptoFailureAction",
        "pulsar.reader.cryptoFailureAction",
        _SAME,
    ),
    (
        FLINK,
        "pulsar.consumer.topicsPattern",
        "topicsPattern",
        "Tenant and namespace are literal.",
    ),
    (
        FLINK,
        "pulsar.consumer.subscriptionInitialPosition",
        "startingOffsets",
        "earliest or latest.",
    ),
    (FLINK, "pulsar.consumer.*", "", _NO_READERS),
    (
        FLINK,
        "pulsar.source.partitionDiscoveryIntervalMs",
        "",
        _DISCOVERED,
    ),
    (
        FLINK,
        "pulsar.source.maxFetchRecords",
        "pulsar.reader.receiverQueueSize",
        "It is how much is prefetched; maxMessagesPerTrigger caps a micro-batch.",
    ),
    (
        FLINK,
        "pulsar.source.verifyInitialOffsets",
        "failOnDataLoss",
        "true fails if messages were deleted before they were read.",
    ),
    (
        FLINK,
        "pulsar.source.enableSchemaEvolution",
        "",
        "Leave it out: each message is read by the version of the schema it was written with.",
    ),
    (FLINK, "pulsar.source.*", "", "Leave it out: Spark's trigger and checkpoint decide on it."),
    (
        FLINK,
        "pulsar.sink.deliveryGuarantee",
        "deliveryGuarantee",
        "The same words; at-least-once is the default.",
    ),
    (
        FLINK,
        "pulsar.sink.transactionTimeoutMillis",
        "transactionTimeout",
        "The same number, or a duration such as 1h.",
    ),
    (
        FLINK,
        "pulsar.sink.messageKeyHash",
        "pulsar.producer.hashingScheme",
        "JavaStringHash or Murmur3_32Hash.",
    ),
    (
        FLINK,
        "pulsar.sink.enableSchemaEvolution",
        "valueFormat",
        "avro or json adds new columns to the topic's schema.",
    ),
    (FLINK, "pulsar.sink.*", "", _NOTHING),
    (
        FLINK,
        "pulsar.producer.producerCryptoFailureAction",
        "pulsar.producer.cryptoFailureAction",
        _SAME,
    ),
    (FLINK, "service-url", "service.url", _SAME),
    (FLINK, "admin-url", "", "Leave it out: the admin port is not used."),
    (
        FLINK,
        "source.start.message-id",
        "startingOffsets",
        'earliest, latest, or JSON per topic partition: {"orders-partition-0": "12:2"}. The '
        "message itself is read.",
    ),
    (FLINK, "source.start.publish-time", "startingTime", "The same milliseconds."),
    (
        FLINK,
        "source.stop.at-message-id source.stop.after-message-id",
        "endingOffsets",
        "Only in a batch read. The message itself is read, as with after-message-id.",
    ),
    (
        FLINK,
        "source.stop.at-publish-time",
        "endingTime",
        "Only in a batch read. The same milliseconds.",
    ),
    (
        FLINK,
        "sink.topic-routing-mode",
        "pulsar.producer.messageRoutingMode",
        "Messages with a key always go by the hash of it.",
    ),
    (
        FLINK,
        "sink.custom-topic-router",
        "",
        "Leave it out: the topic of a row is its column __topic.",
    ),
    (
        FLINK,
        "sink.message-delay-interval",
        "",
        "Leave it out: a row is delivered at the time in its column __deliverAt.",
    ),
    (FLINK, "value.format format", "valueFormat", "The topic's schema decides without it."),
    (FLINK, "key.format key.fields", "", "Leave it out: the key is the column __key."),
    (JAVA, "subscriptionName", "subscription", "It is for one query only."),
    (JAVA, "subscriptionType", "", _SEVERAL_TASKS),
    (JAVA, "subscriptionInitialPosition", "startingOffsets", "earliest or latest."),
    (PYTHON, "service_url", "service.url", _SAME),
    (
        PYTHON,
        "operation_timeout_seconds",
        "pulsar.client.operationTimeoutMs",
        "It is in milliseconds.",
    ),
    (PYTHON, "connection_timeout_ms", "pulsar.client.connectionTimeoutMs", _SAME),
    (PYTHON, "tls_trust_certs_file_path", "pulsar.client.tlsTrustCertsFilePath", _SAME),
    (
        PYTHON,
        "tls_allow_insecure_connection",
        "pulsar.client.tlsAllowInsecureConnection",
        _SAME,
    ),
    (
        PYTHON,
        "tls_validate_hostname",
        "pulsar.client.tlsHostnameVerificationEnable",
        "It is true by default.",
    ),
    (PYTHON, "tls_private_key_file_path", "pulsar.client.tlsKeyFilePath", _SAME),
    (PYTHON, "tls_certificate_file_path", "pulsar.client.tlsCertificateFilePath", _SAME),
    (PYTHON, "listener_name", "pulsar.client.listenerName", _SAME),
    (PYTHON, "subscription_name", "subscription", "It is for one query only."),
    (
        PYTHON,
        "consumer_type",
        "",
        _SEVERAL_TASKS,
    ),
    (
        PYTHON,
        "initial_position start_message_id",
        "startingOffsets",
        "earliest, latest, or JSON of topic partitions and message ids.",
    ),
    (PYTHON, "receiver_queue_size", "pulsar.reader.receiverQueueSize", _SAME),
    (PYTHON, "is_read_compacted", "readCompacted", _SAME),
    (
        PYTHON,
        "crypto_key_reader",
        "pulsar.reader.cryptoPrivateKeyPath pulsar.producer.cryptoPublicKeyPath",
        "They are PEM files; the first one is to read, the second one to write.",
    ),
    (PYTHON, "encryption_key", "pulsar.producer.encryptionKeys", _SAME),
    (PYTHON, "producer_name", "pulsar.producer.producerName", _SAME),
    (PYTHON, "send_timeout_millis", "pulsar.producer.sendTimeoutMs", _SAME),
    (PYTHON, "compression_type", "pulsar.producer.compressionType", _SAME),
    (PYTHON, "max_pending_messages", "pulsar.producer.maxPendingMessages", _SAME),
    (PYTHON, "batching_enabled", "pulsar.producer.batchingEnabled", "It is true by default."),
    (PYTHON, "batching_max_messages", "pulsar.producer.batchingMaxMessages", _SAME),
    (
        PYTHON,
        "batching_max_allowed_size_in_bytes",
        "pulsar.producer.batchingMaxBytes",
        _SAME,
    ),
    (
        PYTHON,
        "batching_max_publish_delay_ms",
        "",
        _SENT_WHEN_FULL,
    ),
    (PYTHON, "batching_type", "pulsar.producer.batcherBuilder", "DEFAULT or KEY_BASED."),
    (PYTHON, "chunking_enabled", "pulsar.producer.chunkingEnabled", _SAME),
    (PYTHON, "message_routing_mode", "pulsar.producer.messageRoutingMode", _SAME),
    (PYTHON, "access_mode", "pulsar.producer.accessMode", _SAME),
    (PYTHON, "use_tls", "service.url", "Write it as pulsar+ssl://host:6651."),
    (
        PYTHON,
        "crypto_failure_action",
        "pulsar.reader.cryptoFailureAction",
        "It is FAIL, DISCARD or CONSUME.",
    ),
    (
        PYTHON,
        "schema",
        "valueFormat",
        "The topic's schema decides without it; .schema(…) declares columns of JSON.",
    ),
    (PYTHON, "message_router", "", "Leave it out: a row's topic is its column __topic."),
    (PYTHON, "io_threads message_listener_threads concurrent_lookup_requests", "", _THREADS),
    (PYTHON, "log_conf_file_path logger stats_interval_in_seconds", "", _THREADS),
    (
        PYTHON,
        "max_pending_messages_across_partitions block_if_queue_full keep_freed_memory "
        "max_total_receiver_queue_size_across_partitions",
        "pulsar.client.memoryLimitBytes",
        "It bounds the memory of a task; a task waits when it is used up.",
    ),
    (
        PYTHON,
        "unacked_messages_timeout_ms negative_ack_redelivery_delay_ms ack_receipt_enabled "
        "negative_ack_redelivery_backoff batch_index_ack_enabled batch_receive_policy durable "
        "dead_letter_policy key_shared_policy enable_retry priority_level message_listener",
        "",
        _NO_READERS,
    ),
    (
        PYTHON,
        "start_message_rollback_seconds",
        "startingTime",
        "It is an age, such as -1h, or a time.",
    ),
    (PYTHON, "discard_corrupt_messages", "mode", "It is DROPMALFORMED."),
    (
        PYTHON,
        "pattern_auto_discovery_period",
        "",
        _DISCOVERED,
    ),
)

FOREIGN: tuple[Foreign, ...] = tuple(
    Foreign(system, tuple(names.split()), tuple(ours.split()), differs)
    for system, names, ours, differs in _ROWS
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
