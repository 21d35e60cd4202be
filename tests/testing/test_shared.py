"""Shared: entries are distributed, acknowledged and redelivered one by one."""

from __future__ import annotations

import time
from collections.abc import Callable

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing import EmbeddedBroker
from tests.testing.wire_client import WireClient

S = pb.CommandSubscribe


def shared(client: WireClient, consumer_id: int = 0, **fields: object) -> None:
    answer = client.subscribe("t", kind=S.Shared, consumer_id=consumer_id, **fields)  # type: ignore[arg-type]
    assert answer.name == "SUCCESS"


def publish(client: WireClient, count: int) -> None:
    client.produce("t")
    for number in range(count):
        client.publish(f"{number}".encode())


def test_consumers_get_entries_in_turn(client: WireClient) -> None:
    shared(client, 0)
    shared(client, 1)
    publish(client, 100)
    both = client.payloads(50, 0) + client.payloads(50, 1)
    assert sorted(map(int, both)) == list(range(100))
    client.nothing_came()


def test_one_without_permits_is_passed_over(client: WireClient) -> None:
    shared(client, 0, permits=5)
    shared(client, 1)
    publish(client, 50)
    assert len(client.payloads(5, 0)) + len(client.payloads(45, 1)) == 50


def test_what_a_consumer_leaves_goes_to_others(client: WireClient) -> None:
    shared(client, 0)
    publish(client, 3)
    client.ack(client.messages(3)[1])
    shared(client, 1)
    client.request("CLOSE_CONSUMER", consumer_id=0)
    again = client.messages(2, 1)
    assert [message.payload for message in again] == [b"0", b"2"]


def test_redelivered_entries_are_counted(client: WireClient) -> None:
    shared(client)
    publish(client, 3)
    first = client.messages(3)[1]
    for count in (1, 2):
        client.send(
            "REDELIVER_UNACKNOWLEDGED_MESSAGES",
            consumer_id=0,
            message_ids=[first.body.message_id],
        )
        (again,) = client.messages(1)
        assert (again.payload, again.body.redelivery_count) == (b"1", count)


def test_redelivery_without_ids_means_all(client: WireClient) -> None:
    shared(client)
    publish(client, 3)
    client.ack(client.messages(3)[0])
    client.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=0)
    assert client.payloads(2) == [b"1", b"2"]


def test_too_much_unacknowledged_stops_delivery(
    start_broker: Callable[..., EmbeddedBroker], dial: Callable[..., WireClient]
) -> None:
    client = dial(start_broker(max_unacked_messages=3))
    shared(client)
    publish(client, 5)
    messages = client.messages(3)
    client.nothing_came("MESSAGE")
    client.ack(messages[0])
    assert client.payloads(1) == [b"3"]


def test_a_better_priority_is_served_first(client: WireClient) -> None:
    shared(client, 0, priority_level=1)
    shared(client, 1, priority_level=0, permits=4)
    publish(client, 6)
    assert client.payloads(4, 1) == [b"0", b"1", b"2", b"3"]
    assert client.payloads(2, 0) == [b"4", b"5"]


def test_delayed_messages_wait_on_shared_subscriptions_only(client: WireClient) -> None:
    shared(client, 0)
    client.subscribe("t", "exclusive", consumer_id=1)
    client.produce("t")
    due = int(time.time() * 1000) + 300
    client.publish(b"late", deliver_at_time=due)
    client.publish(b"now")
    assert client.payloads(2, 1) == [b"late", b"now"]
    assert client.payloads(1, 0) == [b"now"]
    assert client.payloads(1, 0) == [b"late"]
    assert time.time() * 1000 >= due


def test_seeking_starts_over(client: WireClient) -> None:
    shared(client, 0)
    shared(client, 1)
    publish(client, 4)
    client.request("SEEK", consumer_id=0, message_publish_time=0)
    assert {client.expect("CLOSE_CONSUMER").body.consumer_id for _ in range(2)} == {0, 1}
    client.unread.clear()
    shared(client, 0)
    assert client.payloads(4) == [b"0", b"1", b"2", b"3"]
