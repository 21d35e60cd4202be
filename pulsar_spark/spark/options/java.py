"""The Java client's configuration keys that have no option here.

Jobs written for the Scala connector set them. Most tune threads and caches that do not exist here;
they are logged and ignored. Keys that choose whom to trust or where to connect are never ignored:
their error names the equivalent here.
"""

from __future__ import annotations

from pulsar_spark.engine.connections.tls import TO_PEM

_CLIENT = """
    serviceUrlQuarantineInitDurationMs serviceUrlQuarantineMaxDurationMs lookupTimeoutMs
    statsIntervalSeconds numIoThreads
    numListenerThreads connectionsPerBroker connectionMaxIdleSeconds useTcpNoDelay
    concurrentLookupRequest maxLookupRequest maxNumberOfRejectedRequestPerConnection
    requestTimeoutMs readTimeoutMs autoCertRefreshSeconds initialBackoffIntervalNanos
    maxBackoffIntervalNanos enableBusyWait sslProvider enableTransaction clock dnsLookupBindAddress
    dnsLookupBindPort dnsServerAddresses description lookupProperties openTelemetry
    maxConcurrentLookupRequests
"""
_READER = """
    topicName topicNames startMessageId startMessageFromRollbackDurationInSec readerListener
    readerName subscriptionRolePrefix subscriptionName messageCrypto resetIncludeHead keyHashRanges
    poolMessages autoUpdatePartitions autoUpdatePartitionsIntervalSeconds readerInterceptorList
    maxPendingChunkedMessage autoAckOldestChunkedMessageOnQueueFull
    expireTimeOfIncompleteChunkedMessageMillis subscriptionMode subscriptionInitialPosition
"""
_PRODUCER = """
    topicName blockIfQueueFull maxPendingMessagesAcrossPartitions customMessageRouter
    batchingMaxPublishDelayMicros batchingPartitionSwitchFrequencyByPublishDelay
    chunkMaxMessageSize messageCrypto initialSequenceId autoUpdatePartitions
    autoUpdatePartitionsIntervalSeconds multiSchema lazyStartPartitionedProducers properties
    isNonPartitionedTopicExpected isReplProducer initialSubscriptionName
"""

_TRUST = (
    "Give the certificates as PEM files: pulsar.client.tlsTrustCertsFilePath, "
    f"tlsCertificateFilePath and tlsKeyFilePath. {TO_PEM}"
)
_ROUTE = "Connections go to the brokers, or to a Pulsar proxy whose address is service.url."
_AUTH = "Set pulsar.client.authPluginClassName and pulsar.client.authParams."
_KEYS = "Set pulsar.reader.cryptoPrivateKeyPath or pulsar.producer.cryptoPublicKeyPath."


def _keys(prefix: str, names: str) -> dict[str, str]:
    return {f"{prefix}.{name}".lower(): f"{prefix}.{name}" for name in names.split()}


IGNORED: dict[str, str] = {
    **_keys("pulsar.client", _CLIENT),
    **_keys("pulsar.reader", _READER),
    **_keys("pulsar.producer", _PRODUCER),
}
"""Lower-case key → key, for valid keys that have no effect here."""

_CLIENT_PREFIX = "pulsar.client."

IGNORED_PREFIX = "pulsar.admin."
"""All keys of Java's admin client: this package does not use the admin port."""

REFUSED: dict[str, tuple[str, str]] = {
    key.lower(): (key, remedy)
    for keys, remedy in (
        (
            "useKeyStoreTls tlsKeyStoreType tlsKeyStorePath tlsKeyStorePassword tlsTrustStoreType "
            "tlsTrustStorePath tlsTrustStorePassword sslFactoryPlugin sslFactoryPluginParams",
            _TRUST,
        ),
        ("serviceUrlProvider", "Name all brokers in service.url: pulsar://h1:6650,h2:6650."),
        ("useTls", "Write the address as pulsar+ssl://host:6651 in service.url."),
        ("tlsCiphers tlsProtocols", "The system's OpenSSL configuration decides on them."),
        ("authentication authParamMap originalPrincipal", _AUTH),
        ("socks5ProxyAddress socks5ProxyUsername socks5ProxyPassword", _ROUTE),
    )
    for key in (f"pulsar.client.{name}" for name in keys.split())
} | {
    "pulsar.reader.cryptokeyreader": ("pulsar.reader.cryptoKeyReader", _KEYS),
    "pulsar.producer.cryptokeyreader": ("pulsar.producer.cryptoKeyReader", _KEYS),
}
"""Lower-case key → (key, what to do instead): ignoring these would change security."""

HARMLESS_VALUES = {"pulsar.client.usekeystoretls": "false", "pulsar.client.usetls": "false"}
"""Values of refused keys that change nothing."""

UNPREFIXED: dict[str, str] = {
    key.removeprefix(_CLIENT_PREFIX): key
    for key in (*IGNORED, *REFUSED)
    if key.startswith(_CLIENT_PREFIX)
}
"""Lower-case key without prefix → lower-case key, for the client's keys only: those of readers and
producers, such as topicName, resemble other options.
"""
