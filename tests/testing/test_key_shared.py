"""Key_Shared: one key, one consumer, in order."""

from __future__ import annotations

from collections import defaultdict

import pytest

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.hashing import sticky_slot
from pulsar_spark.testing.shared import sticky_key
from tests.testing.wire_client import WireClient

S = pb.CommandSubscribe


def join(
    client: WireClient, consumer_id: int, *ranges: tuple[int, int], permits: int = 1000
) -> int:
    meta = None
    if ranges:
        meta = pb.KeySharedMeta(
            keySharedMode=pb.STICKY,
            hashRanges=[pb.IntRange(start=low, end=high) for low, high in ranges],
        )
    answer = client.subscribe(
        "t",
        kind=S.Key_Shared,
        consumer_id=consumer_id,
        consumer_name=f"c{consumer_id}",
        keySharedMeta=meta,
        permits=permits,
    )
    return answer.body.error if answer.name == "ERROR" else -1


@pytest.mark.parametrize(
    "metadata,expected",
    [
        ({"partition_key": "key"}, b"key"),
        ({"partition_key": "AAH+", "partition_key_b64_encoded": True}, b"\x00\x01\xfe"),
        ({"partition_key": "not base64!", "partition_key_b64_encoded": True}, b"not base64!"),
        ({"partition_key": "key", "ordering_key": b"o"}, b"o"),
        ({}, b"p-7"),
    ],
)
def test_the_sticky_key_of_an_entry(metadata: dict[str, object], expected: bytes) -> None:
    built = pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=0, **metadata)  # type: ignore[arg-type]
    assert sticky_key(built) == expected


def test_a_key_that_is_no_text_is_a_sticky_key_too() -> None:
    built = pb.MessageMetadata(
        producer_name="p", sequence_id=7, publish_time=0, partition_key="KEY!"
    )
    for is_base64 in (False, True):
        built.partition_key_b64_encoded = is_base64
        sent = built.SerializeToString().replace(b"KEY!", b"\xff\xfeY!")
        assert sticky_key(pb.MessageMetadata.FromString(sent)) == b"\xff\xfeY!"


def test_each_key_stays_with_one_consumer_in_order(client: WireClient) -> None:
    for consumer_id in range(3):
        join(client, consumer_id)
    client.produce("t")
    for number in range(120):
        client.publish(f"{number}".encode(), partition_key=f"k{number % 12}")
    owners = defaultdict(set)
    order = defaultdict(list)
    for _ in range(120):
        message = client.expect("MESSAGE")
        key = message.entry.metadata.partition_key
        owners[key].add(message.body.consumer_id)
        order[key].append(int(message.payload))
    assert all(len(each) == 1 for each in owners.values())
    assert all(each == sorted(each) for each in order.values())
    assert len(set().union(*owners.values())) > 1


def test_sticky_ranges_decide(client: WireClient) -> None:
    assert join(client, 0, (0, 32767)) == -1
    assert join(client, 1, (32768, 65535)) == -1
    client.produce("t")
    for number in range(20):
        client.publish(partition_key=f"k{number}")
    for _ in range(20):
        message = client.expect("MESSAGE")
        slot = sticky_slot(message.entry.metadata.partition_key.encode())
        assert message.body.consumer_id == int(slot > 32767)


def test_overlapping_ranges_are_refused(client: WireClient) -> None:
    join(client, 0, (0, 40000))
    assert join(client, 1, (40000, 65535)) == pb.ConsumerAssignError


def test_slots_that_nobody_serves_wait(client: WireClient) -> None:
    slot = sticky_slot(b"key")
    join(client, 0, (slot + 1, slot + 1))
    client.produce("t")
    client.publish(partition_key="key")
    client.nothing_came()
    join(client, 1, (slot, slot))
    client.messages(1, 1)


def test_a_key_changes_hands_only_when_it_is_acknowledged(client: WireClient) -> None:
    slot = sticky_slot(b"key")
    join(client, 0, (slot, slot), permits=1)
    client.produce("t")
    client.publish(b"0", partition_key="key")
    client.publish(b"1", partition_key="key")
    client.publish(b"other", partition_key="elsewhere")
    (first,) = client.messages(1)
    join(client, 1, (0, slot - 1), (slot + 1, 65535))
    assert client.payloads(1, 1) == [b"other"]
    client.nothing_came()
    client.ack(first)
    client.flow(1)
    assert client.payloads(1) == [b"1"]


def test_what_a_consumer_leaves_keeps_its_order(client: WireClient) -> None:
    join(client, 0)
    client.produce("t")
    for number in range(5):
        client.publish(f"{number}".encode(), partition_key="key")
    client.ack(client.messages(5)[0])
    join(client, 1)
    client.request("CLOSE_CONSUMER", consumer_id=0)
    assert client.payloads(4, 1) == [b"1", b"2", b"3", b"4"]
