"""Names that options have elsewhere: what a user is told who brings them."""

from __future__ import annotations

import inspect

import pytest

from pulsar_spark.client import PulsarClient
from pulsar_spark.errors import InvalidOffset, OptionError
from pulsar_spark.spark.offsets import EARLIEST_BOUND, START_OPTIONS, parse_bounds
from pulsar_spark.spark.options.foreign import FOREIGN, KAFKA, foreign_option
from pulsar_spark.spark.options.java import IGNORED, REFUSED, UNPREFIXED
from pulsar_spark.spark.options.resolve import resolve
from pulsar_spark.spark.options.table import BY_NAME, Scope

SECRET = "canary-7b1f"
BASE = {"service.url": "pulsar://localhost:6650"}

# All options of Spark's Kafka source and sink.
KAFKAS = """
    kafka.bootstrap.servers subscribe subscribePattern assign startingOffsets endingOffsets
    startingOffsetsByTimestamp endingOffsetsByTimestamp startingTimestamp endingTimestamp
    startingOffsetsByTimestampStrategy failOnDataLoss minPartitions maxRecordsPerPartition
    maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay fetchOffset.numRetries
    fetchOffset.retryIntervalMs kafkaConsumer.pollTimeoutMs groupIdPrefix includeHeaders topic
    kafka.group.id kafka.sasl.jaas.config kafka.fetch.max.bytes
"""


def told(name: str) -> str:
    with pytest.raises(OptionError) as caught:
        resolve({**BASE, name: SECRET}, Scope.READ)
    assert SECRET not in str(caught.value)
    assert name in str(caught.value)
    return str(caught.value)


@pytest.mark.fault(99)
@pytest.mark.parametrize(
    "name,ours,differs",
    [
        ("subscribe", "topics", "commas"),
        ("subscribePattern", "topicsPattern", "literal"),
        ("assign", "topics", "orders-partition-0"),
        ("maxOffsetsPerTrigger", "maxMessagesPerTrigger", "messages"),
        ("minOffsetsPerTrigger", "minMessagesPerTrigger", "same number"),
        ("kafka.bootstrap.servers", "service.url", "pulsar://host:6650"),
        ("kafka.group.id", "subscription", "one query only"),
        ("groupIdPrefix", "subscriptionPrefix", "Kafka's source"),
        ("kafka.sasl.jaas.config", "pulsar.client.authParams", "token"),
        ("kafka.ssl.truststore.location", "pulsar.client.tlsTrustCertsFilePath", "PEM"),
        ("startingTimestamp", "startingTime", "milliseconds"),
        ("pulsarClientAuthParams", "pulsar.client.authParams", "Databricks"),
        ("pulsar.consumer.subscriptionName", "subscription", "Flink"),
        ("pulsar.sink.deliveryGuarantee", "deliveryGuarantee", "at-least-once"),
        ("pulsar.source.maxFetchRecords", "pulsar.reader.receiverQueueSize", "prefetched"),
        ("source.start.publish-time", "startingTime", "milliseconds"),
        ("service-url", "service.url", "Flink"),
        ("service_url", "service.url", "Python"),
        ("operation_timeout_seconds", "pulsar.client.operationTimeoutMs", "milliseconds"),
        ("batching_max_allowed_size_in_bytes", "pulsar.producer.batchingMaxBytes", "Python"),
        ("subscription_name", "subscription", "one query only"),
    ],
)
def test_a_name_from_elsewhere_is_told_the_option_here_and_what_differs(
    name: str, ours: str, differs: str
) -> None:
    for written in (name, name.upper()):
        text = told(written)
        assert repr(ours) in text
        assert differs in text
        assert "Did you mean" not in text


@pytest.mark.parametrize(
    "name,why",
    [
        ("includeHeaders", "__messageProperties"),
        ("kafka.fetch.max.bytes", "Kafka's own client"),
        ("pulsar.consumer.ackTimeoutMillis", "acknowledge nothing"),
        ("pulsar.source.partitionDiscoveryIntervalMs", "by itself"),
        ("pulsarAdminAuthParams", "without the admin port"),
        ("key.fields", "__key"),
    ],
)
def test_a_name_without_an_option_here_is_told_why_it_can_be_left_out(name: str, why: str) -> None:
    text = told(name)
    assert "Leave it out" in text
    assert why in text


def test_every_option_that_is_named_exists_and_no_foreign_name_is_one_of_ours() -> None:
    for foreign in FOREIGN:
        assert all(BY_NAME[key.lower()].key == key for key in foreign.ours), foreign
        assert foreign.ours or foreign.differs.startswith("Leave it out: "), foreign
        assert not foreign.differs or foreign.differs.endswith("."), foreign
        for name in foreign.names:
            lower = name.lower()
            assert not {lower} & (BY_NAME.keys() | IGNORED.keys() | REFUSED.keys()), name
            assert lower not in UNPREFIXED, name


def test_no_name_stands_twice() -> None:
    names = [name.lower() for foreign in FOREIGN for name in foreign.names]
    assert sorted(set(names)) == sorted(names)


def test_every_option_of_kafkas_source_is_known() -> None:
    for name in KAFKAS.split():
        foreign = foreign_option(name)
        assert name.lower() in BY_NAME or (foreign and foreign.system == KAFKA), name


# What is no setting, but what to read or write, or has another meaning without its method.
NO_SETTINGS = {
    *("self", "topic", "authentication", "properties", "initial_sequence_id"),
    *("lazy_start_partitioned_producers", "auto_update_partitions_interval_seconds"),
    *("consumer_name", "reader_name", "subscription_role_prefix", "reader_listener"),
    *("broker_consumer_stats_cache_time_ms", "replicate_subscription_state_enabled"),
    *("max_pending_chunked_message", "auto_ack_oldest_chunked_message_on_queue_full"),
    *("start_message_id_inclusive", "regex_subscription_mode", "subscription_properties"),
    *("consumer_event_listener",),
}


@pytest.mark.parametrize("method", ["__init__", "create_producer", "subscribe", "create_reader"])
def test_every_setting_of_the_python_client_is_known(method: str) -> None:
    names = set(inspect.signature(getattr(PulsarClient, method)).parameters) - NO_SETTINGS
    assert {name for name in names if foreign_option(name) is None} == set()


@pytest.mark.parametrize("option", START_OPTIONS)
def test_offsets_as_kafkas_source_takes_them_are_told_how_they_are_written_here(
    option: str,
) -> None:
    with pytest.raises(InvalidOffset) as caught:
        parse_bounds(option, '{"orders": {"0": 23, "1": -2}}', EARLIEST_BOUND)
    assert "Kafka" in str(caught.value)
    assert '"my-topic-partition-0"' in str(caught.value)
