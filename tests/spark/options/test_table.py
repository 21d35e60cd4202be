"""The table of options is consistent with itself and with the interface."""

from __future__ import annotations

from contextlib import suppress

import pytest

from pulsar_spark.spark.options import java as java_options
from pulsar_spark.spark.options.parsers import CENTURY
from pulsar_spark.spark.options.table import OPTIONS, Option, Scope

DOCUMENTED = """
    service.url serviceUrl admin.url topic topics topicsPattern startingOffsets endingOffsets
    startingTime endingTime valueFormat valueSchema valueMessage mode
    columnNameOfCorruptRecord includeMetadata allowDifferentTopicSchemas failOnDataLoss
    pollTimeout pollTimeoutMs publishTimeTolerance
    waitingForNonExistedTopic partitionsPerTopicPartition minPartitions maxBytesPerTrigger
    maxMessagesPerTrigger minMessagesPerTrigger maxTriggerDelay subscription
    predefinedSubscription subscriptionPrefix readCompacted deliveryGuarantee sinkId
    sinkStateTopic transactionTimeout schema.name schema.namespace keyEncoding
    pulsar.client.authPluginClassName pulsar.client.authParams
    pulsar.client.tlsTrustCertsFilePath pulsar.client.tlsCertificateFilePath
    pulsar.client.tlsKeyFilePath pulsar.client.tlsAllowInsecureConnection
    pulsar.client.tlsHostnameVerificationEnable pulsar.client.operationTimeoutMs
    pulsar.client.connectionTimeoutMs pulsar.client.keepAliveIntervalSeconds
    pulsar.client.memoryLimitBytes pulsar.client.maxLookupRedirects pulsar.client.listenerName
    pulsar.reader.receiverQueueSize pulsar.reader.cryptoPrivateKeyPath
    pulsar.reader.cryptoFailureAction pulsar.producer.compressionType
    pulsar.producer.batchingEnabled pulsar.producer.batchingMaxMessages
    pulsar.producer.batchingMaxBytes pulsar.producer.hashingScheme
    pulsar.producer.messageRoutingMode pulsar.producer.producerName
    pulsar.producer.sendTimeoutMs pulsar.producer.maxPendingMessages
    pulsar.producer.chunkingEnabled pulsar.producer.accessMode pulsar.producer.encryptionKeys
    pulsar.producer.cryptoPublicKeyPath
"""

NAMES = [name for option in OPTIONS for name in (option.key, *option.aliases)]


def test_every_name_is_there_once() -> None:
    lowered = [name.lower() for name in NAMES]
    assert len(set(lowered)) == len(lowered)


def test_no_option_is_also_a_key_that_is_ignored_or_refused() -> None:
    lowered = {name.lower() for name in NAMES}
    assert not lowered & set(java_options.IGNORED)
    assert not lowered & set(java_options.REFUSED)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_each_option_has_help_a_scope_and_a_default_that_it_accepts(option: Option) -> None:
    assert option.help.endswith(".")
    assert option.scope & Scope.BOTH
    if option.default is not None:
        assert option.default_value == option.parse(option.default)
    else:
        assert option.default_value is None


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_each_number_time_and_size_has_an_upper_bound(option: Option) -> None:
    for text in ("9" * 18, "9" * 18 + "d", "9" * 18 + "g"):
        with suppress(ValueError):
            parsed = option.parse(text)
            if isinstance(parsed, (int, float)):
                assert parsed <= (2**63 - 1 if isinstance(parsed, int) else CENTURY / 1000)


def test_credentials_and_keys_are_marked_as_secret() -> None:
    secret = {option.key for option in OPTIONS if option.secret}
    assert secret == {
        "pulsar.client.authParams",
        "pulsar.client.tlsKeyFilePath",
        "pulsar.reader.cryptoPrivateKeyPath",
    }


def test_the_options_of_the_interface_are_there() -> None:
    assert set(DOCUMENTED.split()) <= set(NAMES)
