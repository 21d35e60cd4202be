"""Two clusters that replicate to each other: replicated messages are read, markers are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from pyspark.sql import functions as F

from pulsar_spark.client import InitialPosition, MessageId, PulsarClient
from tests.integration.brokers import Real
from tests.integration.spark_io import SparkRow, load, rows, save
from tests.support.real_broker import AdminError, OwnBroker, rest_path
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.real_broker, pytest.mark.timeout(600)]

NAMESPACE = "geo/replicated"
DEDUPLICATED = "geo/deduplicated"
SETTINGS = {
    "replicatedSubscriptionsSnapshotFrequencyMillis": "200",
    "replicationPolicyCheckDurationSeconds": "5",
}


class Clusters(NamedTuple):
    """Two clusters that replicate to each other."""

    west: Real
    east: Real

    def topic(self, namespace: str = NAMESPACE) -> str:
        """Return a topic that exists in both."""
        topic = self.west.unique_topic(namespace=namespace)
        for cluster in self:
            try:
                cluster.create_topic(topic)
            except AdminError as error:
                # A broker may have passed the topic on to the other cluster already.
                if error.status != HTTPStatus.CONFLICT:
                    raise
        return topic


@pytest.fixture(scope="module")
def clusters(request: pytest.FixtureRequest) -> Iterator[Clusters]:
    distribution = request.getfixturevalue("_distribution")
    brokers = {
        name: OwnBroker(distribution, SETTINGS | {"clusterName": name}) for name in ("west", "east")
    }
    try:
        for broker in brokers.values():
            broker.start()
        for broker in brokers.values():
            for name, other in brokers.items():
                if other is not broker:
                    place = {
                        "serviceUrl": other.admin_url,
                        "brokerServiceUrl": other.service_url,
                    }
                    broker.admin("PUT", f"clusters/{name}", place)
            tenant = NAMESPACE.partition("/")[0]
            rights = {"adminRoles": [], "allowedClusters": list(brokers)}
            broker.admin("PUT", f"tenants/{tenant}", rights)
            policies: dict[str, object] = {
                "replication_clusters": list(brokers),
                "retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
            }
            broker.admin("PUT", f"namespaces/{NAMESPACE}", policies)
            policies["deduplicationEnabled"] = True
            broker.admin("PUT", f"namespaces/{DEDUPLICATED}", policies)
        yield Clusters(*(Real(broker) for broker in brokers.values()))
    finally:
        for broker in brokers.values():
            broker.close()


@pytest.fixture
def west(clusters: Clusters) -> Iterator[PulsarClient]:
    with PulsarClient(clusters.west.service_url, operation_timeout_seconds=60) as client:
        yield client


@pytest.fixture
def east(clusters: Clusters) -> Iterator[PulsarClient]:
    with PulsarClient(clusters.east.service_url, operation_timeout_seconds=60) as client:
        yield client


def receive(client: PulsarClient, topic: str, count: int) -> list[bytes]:
    with client.create_reader(topic, MessageId.earliest) as reader:
        return [reader.read_next(timeout_millis=60_000).data() for _ in range(count)]


def table(spark: SparkSession, cluster: Real, topic: str) -> list[SparkRow]:
    return rows(load(spark, cluster, topic, {"includeMetadata": True}))


def test_rows_name_the_cluster_that_they_come_from(
    spark: SparkSession, clusters: Clusters, west: PulsarClient, east: PulsarClient
) -> None:
    topic = clusters.topic()
    single = west.create_producer(topic)
    batched = west.create_producer(topic, batching_enabled=True)
    single.send(b"w1", properties={"a": "b"}, partition_key="k", event_timestamp=7)
    for number in range(3):
        batched.send_async(b"w2.%d" % number, None)
    batched.flush()
    from_west = [b"w1", b"w2.0", b"w2.1", b"w2.2"]
    assert receive(east, topic, 4) == from_west
    east.create_producer(topic).send(b"e1")
    assert receive(west, topic, 5) == [*from_west, b"e1"]
    origins = {clusters.west: [None] * 4 + ["east"], clusters.east: ["west"] * 4 + [None]}
    for cluster, expected in origins.items():
        found = table(spark, cluster, topic)
        assert [row.value for row in found] == [*from_west, b"e1"]
        assert [row.replicated_from for row in found] == expected
        # The replicating broker adds a property of its own.
        assert found[0].properties["a"] == "b"
        assert (found[0].key, found[0].event_time) == (b"k", 7)


def test_rows_can_be_written_back_as_they_were_read(
    spark: SparkSession, clusters: Clusters, west: PulsarClient, east: PulsarClient
) -> None:
    source, copy = clusters.topic(DEDUPLICATED), clusters.topic(DEDUPLICATED)
    producer = west.create_producer(source)
    sent = [b"%d" % number for number in range(8)]
    for value in sent:
        producer.send(value, properties={"a": "b"})
    assert receive(east, source, len(sent)) == sent
    frame = load(spark, clusters.east, source, {"includeMetadata": True})
    assert all(len(row.properties) == 2 for row in rows(frame))
    # Places that do not increase are those of duplicates.
    for value in reversed(sent):
        save(frame.where(F.col("value") == F.lit(value)), clusters.east, copy)
    assert receive(west, copy, len(sent)) == sent[::-1]


def test_a_message_goes_where_it_is_told_to(
    clusters: Clusters, west: PulsarClient, east: PulsarClient, official_client: Callable[..., Any]
) -> None:
    topic = clusters.topic()
    producer = west.create_producer(topic)
    producer.send(b"stays by name", replication_clusters=["west"])
    producer.send(b"stays", disable_replication=True)
    producer.send(b"goes by name", replication_clusters=["east"])
    producer.send(b"goes")
    assert receive(east, topic, 2) == [b"goes by name", b"goes"]
    pulsar = pytest.importorskip("pulsar")
    official = official_client(clusters.east.service_url)
    reader = official.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(60_000).data() for _ in range(2)] == [b"goes by name", b"goes"]
    assert not reader.has_message_available()
    assert len(receive(west, topic, 4)) == 4


def test_a_replicated_subscription_goes_on_in_the_other_cluster_and_its_markers_are_no_rows(
    spark: SparkSession, clusters: Clusters, west: PulsarClient, east: PulsarClient
) -> None:
    topic = clusters.topic()
    producer = west.create_producer(topic)
    consumer = west.subscribe(
        topic,
        "mine",
        initial_position=InitialPosition.Earliest,
        replicate_subscription_state_enabled=True,
    )
    sent: list[bytes] = []

    def moved() -> bool:
        """Whether the other cluster has received the acknowledgements, including one more."""
        sent.append(b"%d" % len(sent))
        producer.send(sent[-1])
        consumer.acknowledge(consumer.receive(60_000))
        stats = clusters.east.own.admin("GET", f"{rest_path(topic)}/stats")
        known = stats["subscriptions"].get("mine")
        return known is not None and known["msgBacklog"] < len(sent) // 2

    wait_until(moved, "the subscription is not replicated", 120.0)
    consumer.close()
    for value in (b"unread", b"too"):
        sent.append(value)
        producer.send(value)
    with east.subscribe(topic, "mine") as there:
        found = [there.receive(60_000).data()]
        while found[-1] != b"too":
            found.append(there.receive(60_000).data())
    assert len(found) < len(sent)
    assert found == sent[-len(found) :]
    for cluster in clusters:
        seen = table(spark, cluster, topic)
        assert [row.value for row in seen] == sent
        stored = cluster.own.admin("GET", f"{rest_path(topic)}/internalStats")["numberOfEntries"]
        assert stored > len({(row.ledger_id, row.entry_id) for row in seen}), "there are no markers"
