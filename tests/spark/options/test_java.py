"""Configuration keys of Java's client that have no option here."""

from __future__ import annotations

import pytest

from pulsar_spark.spark.options import java as java_options
from pulsar_spark.spark.options.table import OPTIONS


def test_ignored_and_refused_keys_are_apart_and_filed_in_lower_case() -> None:
    assert not set(java_options.IGNORED) & set(java_options.REFUSED)
    for lower, key in java_options.IGNORED.items():
        assert lower == key.lower()
    for lower, (key, remedy) in java_options.REFUSED.items():
        assert lower == key.lower()
        assert remedy


def test_what_chooses_whom_to_trust_or_where_to_connect_is_refused() -> None:
    for name in ("useKeyStoreTls", "tlsTrustStorePath", "socks5ProxyAddress", "sslFactoryPlugin"):
        assert f"pulsar.client.{name}".lower() in java_options.REFUSED


def test_harmless_values_belong_to_refused_keys() -> None:
    assert set(java_options.HARMLESS_VALUES) <= set(java_options.REFUSED)


def test_without_the_prefix_no_key_is_taken_for_an_option() -> None:
    names = {name.lower() for option in OPTIONS for name in (option.key, *option.aliases)}
    assert not names & set(java_options.UNPREFIXED)
    assert "topicname" not in java_options.UNPREFIXED


# The fields of ClientConfigurationData, ReaderConfigurationData and ProducerConfigurationData in
# Pulsar 4.0.8, and additions of later versions.
FIELDS = {
    "client": """
        serviceUrl serviceUrlProvider authentication authPluginClassName authParams authParamMap
        originalPrincipal operationTimeoutMs lookupTimeoutMs statsIntervalSeconds numIoThreads
        numListenerThreads connectionsPerBroker connectionMaxIdleSeconds useTcpNoDelay useTls
        tlsKeyFilePath tlsCertificateFilePath tlsTrustCertsFilePath tlsAllowInsecureConnection
        tlsHostnameVerificationEnable sslFactoryPlugin sslFactoryPluginParams
        concurrentLookupRequest maxLookupRequest maxLookupRedirects
        maxNumberOfRejectedRequestPerConnection keepAliveIntervalSeconds connectionTimeoutMs
        requestTimeoutMs readTimeoutMs autoCertRefreshSeconds initialBackoffIntervalNanos
        maxBackoffIntervalNanos enableBusyWait listenerName useKeyStoreTls sslProvider
        tlsKeyStoreType tlsKeyStorePath tlsKeyStorePassword tlsTrustStoreType tlsTrustStorePath
        tlsTrustStorePassword tlsCiphers tlsProtocols memoryLimitBytes proxyServiceUrl
        proxyProtocol enableTransaction clock dnsLookupBindAddress dnsLookupBindPort
        dnsServerAddresses socks5ProxyAddress socks5ProxyUsername socks5ProxyPassword description
        lookupProperties openTelemetry
        serviceUrlQuarantineInitDurationMs serviceUrlQuarantineMaxDurationMs
    """,
    "reader": """
        topicNames startMessageId startMessageFromRollbackDurationInSec receiverQueueSize
        readerListener readerName subscriptionRolePrefix subscriptionName cryptoKeyReader
        cryptoFailureAction messageCrypto readCompacted resetIncludeHead keyHashRanges
        poolMessages autoUpdatePartitions autoUpdatePartitionsIntervalSeconds
        readerInterceptorList maxPendingChunkedMessage autoAckOldestChunkedMessageOnQueueFull
        expireTimeOfIncompleteChunkedMessageMillis subscriptionMode subscriptionInitialPosition
    """,
    "producer": """
        topicName producerName sendTimeoutMs blockIfQueueFull maxPendingMessages
        maxPendingMessagesAcrossPartitions messageRoutingMode hashingScheme cryptoFailureAction
        customMessageRouter batchingMaxPublishDelayMicros
        batchingPartitionSwitchFrequencyByPublishDelay batchingMaxMessages batchingMaxBytes
        batchingEnabled batcherBuilder chunkingEnabled chunkMaxMessageSize cryptoKeyReader
        messageCrypto encryptionKeys compressionType initialSequenceId autoUpdatePartitions
        autoUpdatePartitionsIntervalSeconds multiSchema accessMode lazyStartPartitionedProducers
        properties isNonPartitionedTopicExpected isReplProducer initialSubscriptionName
    """,
}


@pytest.mark.parametrize("owner", FIELDS)
def test_every_key_of_javas_client_is_known(owner: str) -> None:
    options = {name.lower() for option in OPTIONS for name in (option.key, *option.aliases)}
    known = options | set(java_options.IGNORED) | set(java_options.REFUSED)
    keys = [f"pulsar.{owner}.{name}".lower() for name in FIELDS[owner].split()]
    assert [key for key in keys if key not in known] == []
