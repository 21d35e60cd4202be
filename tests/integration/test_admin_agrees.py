"""The admin interface shows our clients as it shows the official ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulsar_spark import client as package
from pulsar_spark.client import (
    ConsumerType,
    InitialPosition,
    ProducerAccessMode,
    PulsarClient,
)
from tests.integration.brokers import Broker, Real, as_real
from tests.support.real_broker import rest_path
from tests.support.waiting import wait_until

official = pytest.importorskip("pulsar", reason="pulsar-client is not installed")

RECEIVE_MS = 60_000
Connect = Callable[..., Any]


@pytest.fixture
def real(broker: Broker) -> Real:
    return as_real(broker)


def stats(real: Real, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = real.own.admin("GET", f"{rest_path(topic)}/stats")
    return found


@pytest.mark.slow
def test_both_clients_are_shown_with_what_they_were_given(
    real: Real, client: PulsarClient, official_client: Connect, topic: str
) -> None:
    clients = {"ours": (package, client), "theirs": (official, official_client(real.service_url))}
    opened: list[Any] = []
    for name, (module, made) in clients.items():
        own = {"subscription_properties": {"kept": "with it"}} if name == "ours" else {}
        opened += [
            made.subscribe(
                topic,
                name,
                module.ConsumerType.Failover,
                consumer_name=f"c-{name}",
                properties={"team": "a", "größe": "ß"},
                **own,
            ),
            made.create_producer(topic, f"p-{name}", properties={"team": "b"}),
        ]
    found = stats(real, topic)
    for name in clients:
        subscription = found["subscriptions"][name]
        assert (subscription["type"], subscription["durable"]) == ("Failover", True)
        assert subscription["activeConsumerName"] == f"c-{name}"
        (consumer,) = subscription["consumers"]
        assert consumer["metadata"] == {"team": "a", "größe": "ß"}
        (producer,) = (one for one in found["publishers"] if one["producerName"] == f"p-{name}")
        assert producer["metadata"] == {"team": "b"}
        assert producer["accessMode"] == "Shared"
    assert found["subscriptions"]["ours"]["subscriptionProperties"] == {"kept": "with it"}
    for one in opened:
        one.close()
    exclusive = client.create_producer(topic, access_mode=ProducerAccessMode.Exclusive)
    (producer,) = stats(real, topic)["publishers"]
    assert producer["accessMode"] == "Exclusive"
    exclusive.close()


COUNTS = ("unackedMessages", "msgBacklog")


def test_the_broker_counts_the_same_for_both_clients(
    real: Real, client: PulsarClient, official_client: Connect, topic: str
) -> None:
    with client.create_producer(topic) as producer:
        for number in range(10):
            producer.send(b"%d" % number)
    counted: list[dict[str, Any]] = []
    for module, made in ((package, client), (official, official_client(real.service_url))):
        consumer = made.subscribe(
            topic,
            module.__name__,
            module.ConsumerType.Shared,
            initial_position=module.InitialPosition.Earliest,
            receiver_queue_size=100,
        )
        for number in range(10):
            message = consumer.receive(RECEIVE_MS)
            if number < 4:
                consumer.acknowledge(message)

        def seen(name: str = module.__name__) -> dict[str, Any]:
            subscription = stats(real, topic)["subscriptions"][name]
            (one,) = subscription["consumers"]
            return {**one, "msgBacklog": subscription["msgBacklog"]}

        # Acknowledgements are grouped, and sent after some time; the broker counts both one by one.
        wait_until(
            lambda: {name: seen()[name] for name in COUNTS} == dict.fromkeys(COUNTS, 6),
            "they are not acknowledged",
        )
        found = seen()
        counted.append({name: found[name] for name in COUNTS})
        counted[-1]["permits"] = found["availablePermits"]
        if module is package:
            told = consumer.get_broker_consumer_stats()
            assert (told.unacked_messages, told.msg_backlog) == (6, 6)
            assert told.available_permits == found["availablePermits"]
            assert told.consumer_name == found["consumerName"]
            assert (told.address, told.connected_since) == (
                found["address"],
                found["connectedSince"],
            )
            assert told.type == "Shared"
            assert not told.blocked_consumer_on_unacked_msgs
        consumer.close()
    assert counted[0] == counted[1]
    assert counted[0]["permits"] == 90


def test_properties_of_a_cumulative_acknowledgement_are_kept_with_the_subscription(
    real: Real, client: PulsarClient, topic: str
) -> None:
    with client.create_producer(topic) as producer:
        producer.send(b"1")
    with client.subscribe(
        topic, "s", initial_position=InitialPosition.Earliest, ack_receipt_enabled=True
    ) as consumer:
        message = consumer.receive(RECEIVE_MS)
        properties = {"round": 7, "of": 1 << 40}
        consumer.acknowledge_cumulative(message, properties=properties)

        def kept() -> dict[str, int]:
            internal = real.own.admin("GET", f"{rest_path(topic)}/internalStats")
            found: dict[str, int] = internal["cursors"]["s"]["properties"]
            return found

        # The receipt comes before they are stored.
        wait_until(lambda: kept() == properties, "the properties are not kept")


def test_a_consumer_with_a_better_priority_is_served_first(
    broker: Broker, client: PulsarClient, topic: str
) -> None:
    later, first = (
        client.subscribe(topic, "s", ConsumerType.Shared, priority_level=level) for level in (1, 0)
    )
    with client.create_producer(topic) as producer:
        for number in range(20):
            producer.send(b"%d" % number)
    # Its permits cover all messages, so nothing is left for the other one.
    assert [int(first.receive(RECEIVE_MS).data()) for _ in range(20)] == list(range(20))
    first.close()
    assert sorted(int(later.receive(RECEIVE_MS).data()) for _ in range(20)) == list(range(20))


@pytest.mark.slow
def test_of_failover_consumers_the_one_with_the_better_priority_is_active(
    broker: Broker, client: PulsarClient, topic: str
) -> None:
    # By its name, the other one would be next.
    first = client.subscribe(topic, "s", ConsumerType.Failover, consumer_name="a", priority_level=1)
    second = client.subscribe(
        topic, "s", ConsumerType.Failover, consumer_name="b", priority_level=0
    )
    with client.create_producer(topic) as producer:
        producer.send(b"1")
        assert second.receive(RECEIVE_MS).data() == b"1"
        second.close()
        producer.send(b"2")
        # A broker that was reading when the consumer left delivers the newer message first.
        assert first.receive(RECEIVE_MS).data() in (b"1", b"2")
