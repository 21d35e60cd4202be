"""Rules apply to the named commands, as often as they say."""

from __future__ import annotations

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing import EmbeddedBroker
from pulsar_spark.testing.rules import is_of
from tests.testing.wire_client import WireClient


def refused(client: WireClient, topic: str = "t") -> bool:
    failed = pb.CommandLookupTopicResponse.Failed
    return bool(client.request("LOOKUP", topic=topic).body.response == failed)


def test_a_rule_strikes_once_unless_told_otherwise(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    rule = broker.faults.error("LOOKUP", "ServiceNotReady")
    assert [refused(client) for _ in range(3)] == [True, False, False]
    assert rule.hits == 1


def test_times_and_after(broker: EmbeddedBroker, client: WireClient) -> None:
    broker.faults.error("LOOKUP", "ServiceNotReady", times=2, after=1)
    assert [refused(client) for _ in range(5)] == [False, True, True, False, False]


def test_a_rule_without_end_is_removed(broker: EmbeddedBroker, client: WireClient) -> None:
    with broker.faults.error("LOOKUP", "ServiceNotReady", times=None) as rule:
        assert all(refused(client) for _ in range(4))
    assert not refused(client)
    assert rule.hits == 4
    broker.faults.error("LOOKUP", "ServiceNotReady", times=None)
    broker.faults.clear()
    assert not refused(client)


def test_rules_apply_one_after_the_other(broker: EmbeddedBroker, client: WireClient) -> None:
    broker.faults.error("LOOKUP", "ServiceNotReady")
    broker.faults.error("LOOKUP", "TooManyRequests")
    codes = [client.request("LOOKUP", topic="t").body.error for _ in range(2)]
    assert codes == [pb.ServiceNotReady, pb.TooManyRequests]


def test_a_topic_means_its_partitions_too(broker: EmbeddedBroker, client: WireClient) -> None:
    broker.create_topic("p", partitions=2)
    broker.faults.error("LOOKUP", "ServiceNotReady", times=None, topic="p")
    assert refused(client, "p-partition-1")
    assert refused(client, "persistent://public/default/p")
    assert not refused(client, "other")
    broker.faults.clear()
    broker.faults.error("LOOKUP", "ServiceNotReady", times=None, topic="p-partition-1")
    assert not refused(client, "p-partition-0")


def test_a_predicate_chooses(broker: EmbeddedBroker, client: WireClient) -> None:
    client.produce("t")
    broker.faults.error("SEND", "UnknownError", when=lambda seen: seen.body.sequence_id == 2)
    answers = [client.publish().name for _ in range(4)]
    assert answers == ["SEND_RECEIPT", "SEND_RECEIPT", "SEND_ERROR", "SEND_RECEIPT"]


def test_a_predicate_can_ask_what_was_seen(broker: EmbeddedBroker, client: WireClient) -> None:
    broker.faults.error("LOOKUP", "UnknownError", when=lambda _: broker.faults.seen("LOOKUP") == 2)
    assert [refused(client) for _ in range(3)] == [False, True, False]


def test_partitions_are_of_their_topic() -> None:
    topic = "persistent://public/default/p"
    assert is_of(topic, topic)
    assert is_of(topic + "-partition-3", topic)
    assert not is_of(topic, topic + "-partition-3")
    assert not is_of(topic + "q", topic)
    assert not is_of(None, topic)
    assert not is_of("no name at all://", topic)
