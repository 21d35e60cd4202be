"""The methods with which tests change topics."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_spark.errors import (
    CorruptMessage,
    InvalidTopicName,
    NotAllowed,
    SubscriptionNotFound,
    TopicNotFound,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import encode_payload_command
from pulsar_spark.protocol.message_id import LATEST, MessageIdAdv, Position
from pulsar_spark.testing import EmbeddedBroker
from tests.testing.wire_client import WireClient

Start = Callable[..., EmbeddedBroker]
Dial = Callable[..., WireClient]


def test_topics_have_full_names(broker: EmbeddedBroker) -> None:
    assert broker.create_topic("t") == "persistent://public/default/t"
    assert broker.create_topic("a/b/p", partitions=2) == "persistent://a/b/p"
    assert broker.topics() == [
        "persistent://a/b/p-partition-0",
        "persistent://a/b/p-partition-1",
        "persistent://public/default/t",
    ]


def test_wrong_names_are_errors(broker: EmbeddedBroker) -> None:
    broker.create_topic("p", partitions=2)
    with pytest.raises(NotAllowed):
        broker.create_topic("p")
    with pytest.raises(InvalidTopicName):
        broker.create_topic("a/b")
    with pytest.raises(TopicNotFound):
        broker.unload("missing")
    with pytest.raises(TopicNotFound, match="one partition"):
        broker.stats("p")
    with pytest.raises(NotAllowed):
        broker.add_partitions("p", 1)


@pytest.mark.parametrize("partitions", [-1, -4])
def test_a_topic_cannot_have_a_negative_number_of_partitions(
    partitions: int, broker: EmbeddedBroker
) -> None:
    with pytest.raises(ValueError, match=f"partitions={partitions}"):
        broker.create_topic("p", partitions=partitions)
    assert broker.topics() == []
    # The name is still free.
    broker.create_topic("p", partitions=1)


def test_partitions_are_added(broker: EmbeddedBroker, client: WireClient) -> None:
    broker.create_topic("p", partitions=2)
    broker.add_partitions("p", 4)
    assert client.request("PARTITIONED_METADATA", topic="p").body.partitions == 4


def test_entries_can_be_stored_without_a_producer(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    broker.create_topic("t")
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=3
    )
    command = pb.BaseCommand(
        type=pb.BaseCommand.SEND, send=pb.CommandSend(producer_id=0, sequence_id=0)
    )
    head, body = encode_payload_command(command, metadata.SerializeToString(), b"body")
    entry = bytes(head)[8 + command.ByteSize() :] + bytes(body)
    first = broker.append("t", entry)
    assert (first.entry_id, broker.stats("t").messages_in) == (0, 3)
    damaged = entry[:-1] + b"?"
    with pytest.raises(CorruptMessage):
        broker.append("t", damaged)
    broker.append("t", damaged, messages=3)
    client.subscribe("t")
    assert client.payloads(2) == [b"body", b"bod?"]


def test_ledgers_roll_when_they_are_full_or_on_demand(start_broker: Start, dial: Dial) -> None:
    broker = start_broker(max_entries_per_ledger=2)
    client = dial(broker)
    client.produce("t")
    places = [client.publish().place for _ in range(3)]
    broker.roll_ledger("t")
    places.append(client.publish().place)
    assert [entry for _, entry in places] == [0, 1, 0, 0]
    assert len({ledger for ledger, _ in places}) == 3


def test_ledger_ids_can_be_chosen(broker: EmbeddedBroker, client: WireClient) -> None:
    broker.create_topic("t", ledger_id=500)
    client.produce("t")
    assert client.publish().place == (500, 0)
    broker.delete_topic("t")
    broker.create_topic("t", ledger_id=3)
    client.produce("t")
    assert client.publish().place == (3, 0)


@pytest.mark.parametrize("kind", [MessageIdAdv, Position])
def test_trimming_takes_ids_and_positions(
    broker: EmbeddedBroker, client: WireClient, kind: type[MessageIdAdv] | type[Position]
) -> None:
    client.produce("t")
    places = [client.publish().place for _ in range(3)]
    broker.trim("t", before=kind(*places[1]))
    assert broker.stats("t").entries == 2
    assert broker.stats("t").first == MessageIdAdv(*places[1])


@pytest.mark.fault(15)
def test_topics_move_between_brokers(start_broker: Start) -> None:
    broker = start_broker(brokers=2)
    assert len(set(broker.service_urls)) == 2
    broker.create_topic("t")
    broker.move("t", 1, assign=False)
    first, second = (WireClient(int(url.rpartition(":")[2])) for url in broker.service_urls)
    for asked in (first, second):
        found = asked.request("LOOKUP", topic="t").body
        assert found.response == pb.CommandLookupTopicResponse.Connect
        assert found.brokerServiceUrl == broker.service_urls[1]
        assert not found.proxy_through_service_url
    assert first.produce("t").body.error == pb.ServiceNotReady
    second.produce("t")
    broker.move("t", 0)
    closed = second.expect("CLOSE_PRODUCER").body
    assert closed.assignedBrokerServiceUrl == broker.service_urls[0]
    for client in (first, second):
        client.close()


def test_clients_can_be_sent_away(broker: EmbeddedBroker, client: WireClient) -> None:
    broker.create_topic("p", partitions=2)
    for partition in range(2):
        client.produce(f"p-partition-{partition}", partition)
    client.subscribe("p-partition-0")
    assert broker.close_clients("p", producers=False) == 1
    assert broker.close_clients("p") == 2


def test_a_subscription_can_be_removed_whoever_is_connected(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    broker.create_topic("p", partitions=2)
    client.subscribe("p-partition-0", subscription="s")
    broker.remove_subscription("p", "s")
    client.expect("CLOSE_CONSUMER")
    assert broker.subscriptions("p-partition-0") == {}
    broker.remove_subscription("p", "none")


def test_a_subscription_can_be_created_and_moved(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    broker.create_topic("t")
    client.produce("t")
    client.publish()
    second = client.publish()
    broker.create_subscription("t", "all")
    broker.create_subscription("t", "none", LATEST)
    # Whether it exists does not matter.
    broker.create_subscription("t", "all", LATEST)
    client.subscribe("t", "all")
    assert {name: one.backlog for name, one in broker.subscriptions("t").items()} == {
        "all": 2,
        "none": 0,
    }
    place = second.body.message_id
    broker.reset_subscription("t", "all", MessageIdAdv(place.ledgerId, place.entryId))
    client.expect("CLOSE_CONSUMER")
    assert broker.subscriptions("t")["all"].backlog == 1
    broker.reset_subscription("t", "none", 0)
    assert broker.subscriptions("t")["none"].backlog == 2
    with pytest.raises(SubscriptionNotFound):
        broker.reset_subscription("t", "other", LATEST)
