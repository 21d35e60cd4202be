"""Consumers subscribe, get permits, seek, send requests and leave."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing import EmbeddedBroker
from pulsar_spark.testing.topic import place_of
from tests.testing.wire_client import EARLIEST, LATEST, WireClient, id_of, names

S = pb.CommandSubscribe
Start = Callable[..., EmbeddedBroker]
Dial = Callable[..., WireClient]


def publish(client: WireClient, count: int) -> list[tuple[int, int]]:
    client.produce("t")
    return [
        client.publish(f"{number}".encode(), publish_time=1000 + number * 10).place
        for number in range(count)
    ]


def test_nothing_is_delivered_without_permits(client: WireClient) -> None:
    publish(client, 3)
    client.subscribe("t", permits=0)
    client.nothing_came()
    client.flow(2)
    assert client.payloads(2) == [b"0", b"1"]
    client.nothing_came()


def test_flow_without_permits_ends_the_connection(client: WireClient) -> None:
    client.subscribe("t", permits=0)
    client.flow(0)
    assert client.closed()


def test_subscribing_without_creating(broker: EmbeddedBroker, client: WireClient) -> None:
    refused = client.subscribe("missing", force_topic_creation=False)
    assert refused.body.error == pb.TopicNotFound
    assert "persistent://public/default/missing does not exist" in refused.body.message
    assert broker.topics() == []


@pytest.mark.parametrize(
    "topic,kind",
    [("t", S.Shared), ("t", S.Key_Shared), ("non-persistent://public/default/t", S.Exclusive)],
)
def test_compacted_reading_needs_one_consumer_and_storage(
    client: WireClient, topic: str, kind: int
) -> None:
    refused = client.subscribe(topic, kind=kind, read_compacted=True)
    assert refused.body.error == pb.NotAllowedError


def test_compacted_reading_gives_everything(client: WireClient) -> None:
    publish(client, 2)
    client.subscribe("t", read_compacted=True)
    assert client.payloads(2) == [b"0", b"1"]


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize(
    "target,expected",
    [
        ({"entry": 2}, [2, 3, 4]),
        ({"entry": 100}, []),
        ({"id": EARLIEST}, [0, 1, 2, 3, 4]),
        ({"id": LATEST}, []),
        ({"time": 1015}, [2, 3, 4]),
        ({"time": 1020}, [2, 3, 4]),
        ({"time": 0}, [0, 1, 2, 3, 4]),
        ({"time": 5000}, []),
    ],
)
def test_a_seek_wins_over_all_start_positions(
    client: WireClient, durable: bool, target: dict[str, object], expected: list[int]
) -> None:
    places = publish(client, 5)
    options: dict[str, object] = {"durable": durable}
    if not durable:
        options["start_message_id"] = id_of(places[1])
    client.subscribe("t", **options)  # type: ignore[arg-type]
    client.messages(5 if durable else 4)
    fields: dict[str, object] = {}
    if "time" in target:
        fields["message_publish_time"] = target["time"]
    else:
        entry = target.get("entry")
        fields["message_id"] = target.get("id") or id_of((places[0][0], entry))  # type: ignore[arg-type]
    answer = client.request("SEEK", consumer_id=0, **fields)
    assert answer.name == "SUCCESS"
    # The consumer is closed before the seek is answered.
    assert names(client.unread) == ["CLOSE_CONSUMER"]
    client.unread.clear()
    client.subscribe("t", **options)  # type: ignore[arg-type]
    assert [message.place[1] for message in client.messages(len(expected))] == expected
    client.nothing_came()


def test_a_seek_into_a_batch_leaves_the_rest_of_it(start_broker: Start, dial: Dial) -> None:
    client = dial(start_broker(batch_index_ack=True))
    client.produce("t")
    place = client.publish(batch=4).place
    client.subscribe("t")
    client.messages(1)
    client.request("SEEK", consumer_id=0, message_id=id_of(place, ack_set=[0b1100]))
    client.subscribe("t")
    assert list(client.messages(1)[0].body.ack_set) == [0b1100]


def test_a_seek_to_nowhere_is_refused(client: WireClient) -> None:
    client.subscribe("t")
    assert client.request("SEEK", consumer_id=0).body.error == pb.MetadataError


@pytest.mark.parametrize("kind", ["SEEK", "GET_LAST_MESSAGE_ID", "UNSUBSCRIBE"])
def test_unknown_consumers_are_refused(client: WireClient, kind: str) -> None:
    assert "Consumer not found" in str(client.request(kind, consumer_id=5).body)


@pytest.mark.fault(63)
def test_the_last_message_of_an_empty_topic_is_none(client: WireClient) -> None:
    client.subscribe("t")
    body = client.request("GET_LAST_MESSAGE_ID", consumer_id=0).body
    assert place_of(body.last_message_id) == (-1, -1)
    assert (body.last_message_id.partition, body.last_message_id.batch_index) == (-1, -1)
    assert place_of(body.consumer_mark_delete_position)[1] == -1


def test_the_last_message_and_the_mark(broker: EmbeddedBroker, client: WireClient) -> None:
    name = broker.create_topic("p", partitions=2) + "-partition-1"
    client.produce(name)
    first = client.publish().place
    last = client.publish(batch=3).place
    client.subscribe(name)
    client.ack(client.messages(2)[0])
    body = client.request("GET_LAST_MESSAGE_ID", consumer_id=0).body
    assert place_of(body.last_message_id) == last
    assert (body.last_message_id.partition, body.last_message_id.batch_index) == (1, 2)
    assert place_of(body.consumer_mark_delete_position) == first


def test_non_persistent_topics_have_no_last_message(client: WireClient) -> None:
    client.subscribe("non-persistent://public/default/t")
    answer = client.request("GET_LAST_MESSAGE_ID", consumer_id=0)
    assert answer.body.error == pb.UnknownError


def test_consumer_stats(client: WireClient) -> None:
    publish(client, 3)
    client.subscribe("t", kind=S.Shared, consumer_name="me", permits=10)
    client.messages(3)
    body = client.request("CONSUMER_STATS", consumer_id=0).body
    assert (body.consumerName, body.type) == ("me", "Shared")
    assert (body.availablePermits, body.unackedMessages, body.msgBacklog) == (7, 3, 3)


def test_closing_an_unknown_consumer_succeeds(client: WireClient) -> None:
    assert client.request("CLOSE_CONSUMER", consumer_id=5).name == "SUCCESS"


def test_unsubscribing_removes_the_subscription(broker: EmbeddedBroker, client: WireClient) -> None:
    publish(client, 1)
    client.subscribe("t")
    client.ack(client.messages(1)[0])
    assert client.request("UNSUBSCRIBE", consumer_id=0).name == "SUCCESS"
    assert broker.subscriptions("t") == {}
    client.subscribe("t")
    assert client.payloads(1) == [b"0"]


def test_others_keep_a_shared_subscription(broker: EmbeddedBroker, client: WireClient) -> None:
    client.subscribe("t", kind=S.Shared)
    client.subscribe("t", kind=S.Shared, consumer_id=1)
    assert client.request("UNSUBSCRIBE", consumer_id=0).body.error == pb.MetadataError
    assert client.request("UNSUBSCRIBE", consumer_id=0, force=True).name == "SUCCESS"
    assert client.expect("CLOSE_CONSUMER").body.consumer_id == 1
    assert broker.subscriptions("t") == {}


def test_a_consumers_schema_is_adopted_or_checked(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    string = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")
    number = pb.Schema(name="i", type=pb.Schema.Int32, schema_data=b"")
    auto = pb.Schema(name="a", type=pb.Schema.AutoConsume, schema_data=b"")
    assert client.subscribe("t", "first", schema=string).name == "SUCCESS"
    assert broker.stats("t").schema_versions == 1
    refused = client.subscribe("t", "second", consumer_id=1, schema=number)
    assert refused.body.error == pb.IncompatibleSchema
    assert client.subscribe("t", "third", consumer_id=2, schema=auto).name == "SUCCESS"
    client.produce("used")
    refused = client.subscribe("used", consumer_id=3, schema=string)
    assert refused.body.error == pb.IncompatibleSchema
    assert broker.subscriptions("used") == {}
