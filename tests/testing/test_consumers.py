"""Deliveries to a consumer, and the permits that they use."""

from __future__ import annotations

from collections.abc import Callable

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing import EmbeddedBroker
from tests.testing.wire_client import WireClient

S = pb.CommandSubscribe


def test_messages_name_partition_and_epoch(broker: EmbeddedBroker, client: WireClient) -> None:
    name = broker.create_topic("p", partitions=2) + "-partition-1"
    client.produce(name)
    client.publish()
    client.subscribe(name, "exclusive", consumer_id=0, consumer_epoch=4)
    client.subscribe(name, "shared", consumer_id=1, kind=S.Shared, consumer_epoch=4)
    exclusive = client.messages(1, 0)[0].body
    shared = client.messages(1, 1)[0].body
    assert exclusive.message_id.partition == shared.message_id.partition == 1
    assert exclusive.consumer_epoch == 4
    assert not shared.HasField("consumer_epoch")
    assert not shared.HasField("redelivery_count")


def test_a_topic_without_partitions_is_partition_minus_one(client: WireClient) -> None:
    client.produce("t")
    client.publish()
    client.subscribe("t")
    assert client.messages(1)[0].body.message_id.partition == -1


def test_permits_fall_by_the_messages_delivered(broker: EmbeddedBroker, client: WireClient) -> None:
    client.produce("t")
    client.publish(batch=7)
    client.publish()
    client.subscribe("t", permits=10)
    message = client.messages(2)[0]
    (consumer,) = broker.subscriptions("t")["sub"].consumers
    assert (consumer.permits, consumer.delivered, consumer.unacked) == (2, 8, 8)
    client.ack(message)
    client.request("CONSUMER_STATS", consumer_id=0)
    (consumer,) = broker.subscriptions("t")["sub"].consumers
    assert consumer.unacked == 1


def test_bits_that_are_acknowledged_cost_nothing(
    start_broker: Callable[..., EmbeddedBroker], dial: Callable[..., WireClient]
) -> None:
    broker = start_broker(batch_index_ack=True)
    client = dial(broker)
    client.produce("t")
    client.publish(batch=8)
    client.subscribe("t", permits=10)
    message = client.messages(1)[0]
    message.body.message_id.ack_set.append(0b11)
    client.ack(message)
    client.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=0)
    client.messages(1)
    (consumer,) = broker.subscriptions("t")["sub"].consumers
    assert consumer.permits == 0
