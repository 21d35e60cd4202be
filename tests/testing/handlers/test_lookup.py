"""Lookups, partitions, lists of topics."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing import EmbeddedBroker
from tests.testing.wire_client import WireClient

Start = Callable[..., EmbeddedBroker]
Dial = Callable[..., WireClient]
PREFIX = "persistent://public/default/"


@pytest.mark.fault(17)
def test_a_single_broker_answers_like_a_standalone_one(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    body = client.request("LOOKUP", topic="t").body
    assert body.response == pb.CommandLookupTopicResponse.Connect
    assert body.brokerServiceUrl == broker.service_url
    assert body.authoritative
    assert body.proxy_through_service_url
    assert broker.topics() == []


@pytest.mark.parametrize("kind", ["LOOKUP", "PARTITIONED_METADATA"])
def test_names_that_are_none_are_refused(client: WireClient, kind: str) -> None:
    body = client.request(kind, topic="persistent://a/b").body
    assert body.error == pb.InvalidTopicName


def test_partitions_are_told_and_not_made(broker: EmbeddedBroker, client: WireClient) -> None:
    broker.create_topic("p", partitions=3)
    broker.create_topic("plain")

    def ask(topic: str, create: bool = True) -> pb.CommandPartitionedTopicMetadataResponse:
        answer = client.request(
            "PARTITIONED_METADATA", topic=topic, metadata_auto_creation_enabled=create
        )
        body: pb.CommandPartitionedTopicMetadataResponse = answer.body
        return body

    assert ask("p").partitions == 3
    assert ask("plain", create=False).partitions == 0
    assert ask("p-partition-1", create=False).partitions == 0
    missing = ask("missing", create=False)
    assert (missing.error, missing.message) == (pb.TopicNotFound, "")
    assert ask("missing").partitions == 0
    assert len(broker.topics()) == 4


def test_namespaces_can_be_unknown(start_broker: Start, dial: Dial) -> None:
    client = dial(start_broker(namespaces=("public/default",)))
    for asked in ("PARTITIONED_METADATA", "LOOKUP"):
        body = client.request(asked, topic="persistent://no/such/t").body
        assert (body.error, body.message) == (pb.TopicNotFound, "Namespace not found"), asked
    coordinator = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"
    assert client.request("LOOKUP", topic=coordinator).body.brokerServiceUrl


def test_topics_of_a_namespace(broker: EmbeddedBroker, client: WireClient) -> None:
    broker.create_topic("p", partitions=2)
    broker.create_topic("other")
    client.produce("non-persistent://public/default/n")

    def ask(**fields: object) -> pb.CommandGetTopicsOfNamespaceResponse:
        answer = client.request("GET_TOPICS_OF_NAMESPACE", namespace="public/default", **fields)
        body: pb.CommandGetTopicsOfNamespaceResponse = answer.body
        return body

    everything = ask()
    assert list(everything.topics) == [
        PREFIX + "other", PREFIX + "p-partition-0", PREFIX + "p-partition-1",
    ]  # fmt: skip
    assert not everything.filtered
    assert everything.changed
    unchanged = ask(topics_hash=everything.topics_hash)
    assert not unchanged.changed
    assert list(unchanged.topics) == []
    matching = ask(topics_pattern=PREFIX + "p")
    assert matching.filtered
    assert len(matching.topics) == 2
    long = ask(topics_pattern=PREFIX + "p" + "()" * 20)
    assert not long.filtered
    assert len(long.topics) == 3
    assert len(ask(mode=pb.CommandGetTopicsOfNamespace.NON_PERSISTENT).topics) == 1
    assert len(ask(mode=pb.CommandGetTopicsOfNamespace.ALL).topics) == 4


def test_a_pattern_that_is_none_is_refused(client: WireClient) -> None:
    answer = client.request(
        "GET_TOPICS_OF_NAMESPACE", namespace="public/default", topics_pattern="((("
    )
    assert answer.body.error == pb.MetadataError


def test_watchers_are_told_of_changes(broker: EmbeddedBroker, client: WireClient) -> None:
    broker.create_topic("a1")
    started = client.request(
        "WATCH_TOPIC_LIST", watcher_id=4, namespace="public/default",
        topics_pattern=PREFIX + "a.*",
    ).body  # fmt: skip
    assert list(started.topic) == [PREFIX + "a1"]
    broker.create_topic("a2")
    broker.create_topic("b")
    update = client.expect("WATCH_TOPIC_UPDATE").body
    assert (update.watcher_id, list(update.new_topics)) == (4, [PREFIX + "a2"])
    broker.delete_topic("a1")
    update = client.expect("WATCH_TOPIC_UPDATE").body
    assert list(update.deleted_topics) == [PREFIX + "a1"]
    known = client.request(
        "WATCH_TOPIC_LIST", watcher_id=4, namespace="public/default",
        topics_pattern=PREFIX + "a.*", topics_hash=update.topics_hash,
    ).body  # fmt: skip
    assert list(known.topic) == []
    assert client.request("WATCH_TOPIC_LIST_CLOSE", watcher_id=4).name == "SUCCESS"
    broker.create_topic("a3")
    client.nothing_came()


def test_watchers_of_long_patterns_are_refused(client: WireClient) -> None:
    answer = client.request(
        "WATCH_TOPIC_LIST", watcher_id=4, namespace="public/default", topics_pattern="x" * 51
    )
    assert answer.body.error == pb.NotAllowedError
