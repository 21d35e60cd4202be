"""Exclusive and Failover: one consumer at a time gets everything, in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from struct import pack

import pytest

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing import EmbeddedBroker
from tests.testing.wire_client import WireClient, names

S = pb.CommandSubscribe
Start = Callable[..., EmbeddedBroker]
Dial = Callable[..., WireClient]


def batch_of(count: int) -> bytes:
    single = pb.SingleMessageMetadata(payload_size=0).SerializeToString()
    return (pack(">I", len(single)) + single) * count


def test_a_second_exclusive_consumer_is_refused(broker: EmbeddedBroker, dial: Dial) -> None:
    first, second = dial(broker), dial(broker)
    first.subscribe("t")
    asked = second.ask("SUBSCRIBE", topic="t", subscription="sub", subType=0, consumer_id=0)
    # The broker sends PING to the first consumer before it rejects the second.
    first.expect("PING")
    assert second.answer(asked).body.error == pb.ConsumerBusy


def test_consumers_of_another_kind_are_refused(client: WireClient) -> None:
    client.subscribe("t", kind=S.Shared)
    refused = client.subscribe("t", consumer_id=1, kind=S.Failover)
    assert refused.body.error == pb.ConsumerBusy


def test_the_kind_can_change_between_consumers(broker: EmbeddedBroker, client: WireClient) -> None:
    client.produce("t")
    client.subscribe("t", kind=S.Shared)
    client.publish(b"m")
    client.messages(1)
    client.request("CLOSE_CONSUMER", consumer_id=0)
    client.subscribe("t", kind=S.Exclusive)
    assert client.payloads(1) == [b"m"]
    assert broker.subscriptions("t")["sub"].kind == "Exclusive"


def test_names_are_either_durable_or_not(client: WireClient) -> None:
    client.subscribe("t", "sub")
    clash = client.subscribe("t", "sub", consumer_id=2, durable=False)
    assert clash.body.error == pb.NotAllowedError


@pytest.mark.parametrize("permits,first,third", [(1, 1, 2), (5, 5, 10), (10, 10, 10)])
def test_permits_count_messages_and_deliveries_entries(
    client: WireClient, permits: int, first: int, third: int
) -> None:
    """As in Pulsar 4.0.8: a batch uses a permit per message, but one permit suffices to send it."""
    client.produce("t")
    for number in range(20):
        client.publish(batch_of(10), batch=10, sequence_id=number * 10)
    client.subscribe("t", permits=permits)
    client.messages(first)
    client.nothing_came()
    client.flow(permits)
    client.nothing_came()
    client.flow(first * 10)
    client.messages(third)
    client.nothing_came()


def test_precise_flow_overruns_by_less_than_a_batch(start_broker: Start, dial: Dial) -> None:
    client = dial(start_broker(precise_flow=True))
    client.produce("t")
    for number in range(20):
        client.publish(batch_of(10), batch=10, sequence_id=number * 10)
    client.subscribe("t", permits=1)
    client.messages(1)
    client.flow(34)
    client.messages(3)
    client.flow(5)
    client.nothing_came()
    client.flow(1)
    client.messages(1)


def test_one_pass_is_bounded_by_entries_and_bytes(client: WireClient) -> None:
    client.produce("t")
    for _ in range(150):
        client.publish(batch_of(10), batch=10)
    client.subscribe("t", permits=1000)
    client.messages(100)
    client.nothing_came()
    client.produce("large")
    for _ in range(8):
        client.publish(bytes(1_000_000), batch=1000)
    client.subscribe("large", consumer_id=1, permits=1000)
    client.messages(6, 1)
    client.nothing_came()


def test_redelivery_goes_back_to_what_is_not_acknowledged(client: WireClient) -> None:
    client.produce("t")
    for number in range(3):
        client.publish(f"{number}".encode())
    client.subscribe("t", consumer_epoch=0)
    messages = client.messages(3)
    client.ack(messages[1])
    # This type of subscription ignores the ids.
    client.send(
        "REDELIVER_UNACKNOWLEDGED_MESSAGES",
        consumer_id=0,
        message_ids=[messages[2].body.message_id],
        consumer_epoch=1,
    )
    again = client.messages(2)
    assert [message.payload for message in again] == [b"0", b"2"]
    assert [message.body.consumer_epoch for message in again] == [1, 1]
    assert not any(message.body.redelivery_count for message in again)


@pytest.mark.parametrize("counts,bits", [(True, [0b101]), (False, [])])
def test_a_partly_acknowledged_batch_comes_again_with_its_bits_or_whole(
    start_broker: Start, dial: Dial, counts: bool, bits: list[int]
) -> None:
    client = dial(start_broker(batch_index_ack=counts))
    client.produce("t")
    client.publish(batch_of(3), batch=3)
    client.subscribe("t")
    message = client.messages(1)[0]
    message.body.message_id.ack_set.append(0b101)
    client.ack(message)
    client.request("CLOSE_CONSUMER", consumer_id=0)
    client.subscribe("t", permits=1)
    assert list(client.messages(1)[0].body.ack_set) == bits


def test_failover_consumers_take_turns(client: WireClient) -> None:
    client.produce("t")
    client.subscribe("t", kind=S.Failover, consumer_name="b")
    assert client.expect("ACTIVE_CONSUMER_CHANGE").body.is_active
    client.subscribe("t", kind=S.Failover, consumer_id=1, consumer_name="a")
    change = client.expect("ACTIVE_CONSUMER_CHANGE").body
    assert (change.consumer_id, change.is_active) == (1, False)
    client.publish(b"m0")
    client.publish(b"m1")
    client.ack(client.messages(2)[0])
    client.request("CLOSE_CONSUMER", consumer_id=0)
    change = client.expect("ACTIVE_CONSUMER_CHANGE").body
    assert (change.consumer_id, change.is_active) == (1, True)
    assert client.payloads(1, 1) == [b"m1"]


def test_a_better_priority_takes_over(client: WireClient) -> None:
    client.subscribe("t", kind=S.Failover, priority_level=1)
    client.expect("ACTIVE_CONSUMER_CHANGE")
    client.subscribe("t", kind=S.Failover, consumer_id=1, priority_level=0)
    changes = [client.expect("ACTIVE_CONSUMER_CHANGE").body for _ in range(3)]
    assert [(each.consumer_id, each.is_active) for each in changes] == [
        (1, False),
        (0, False),
        (1, True),
    ]


def test_partitions_are_spread_over_failover_consumers(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    name = broker.create_topic("p", partitions=2)
    for partition in range(2):
        for number, consumer in enumerate("ab"):
            client.subscribe(
                f"{name}-partition-{partition}",
                kind=S.Failover,
                consumer_id=partition * 2 + number,
                consumer_name=consumer,
            )
    client.produce(f"{name}-partition-0", 0)
    client.produce(f"{name}-partition-1", 1)
    client.publish(producer_id=0)
    client.publish(producer_id=1)
    assert client.messages(1, 0)[0].body.message_id.partition == 0
    assert client.messages(1, 3)[0].body.message_id.partition == 1


def test_failover_waits_as_long_as_it_is_told(start_broker: Start, dial: Dial) -> None:
    client = dial(start_broker(failover_delay=0.2))
    client.produce("t")
    client.publish()
    began = time.monotonic()
    client.subscribe("t", kind=S.Failover)
    client.messages(1)
    assert time.monotonic() - began >= 0.19


def test_a_seek_sends_all_consumers_away(client: WireClient) -> None:
    client.produce("t")
    places = [client.publish(f"{n}".encode()).place for n in range(3)]
    client.subscribe("t")
    client.messages(3)
    asked = client.ask("SEEK", consumer_id=0, message_id=_id(places[1]))
    client.answer(asked)
    assert "CLOSE_CONSUMER" in names(client.unread)
    client.subscribe("t")
    assert client.payloads(2) == [b"1", b"2"]


def _id(place: tuple[int, int]) -> pb.MessageIdData:
    return pb.MessageIdData(ledgerId=place[0], entryId=place[1])
