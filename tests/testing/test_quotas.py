"""What a broker does from time to time; integration/test_policies.py compares both brokers."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.testing import BacklogQuota, EmbeddedBroker, Retention, TopicPolicies
from tests.support.waiting import wait_until
from tests.testing.wire_client import WireClient

Start = Callable[..., EmbeddedBroker]
Dial = Callable[..., WireClient]


def quick(start_broker: Start, **policies: object) -> EmbeddedBroker:
    """A broker with policies for all topics, which it looks at all the time."""
    given = TopicPolicies(**policies)  # type: ignore[arg-type]
    broker = start_broker(policies=given, policy_check_interval=0.05)
    broker.create_topic("t")
    return broker


def written(client: WireClient, age: float, count: int = 3) -> None:
    """Publish messages that are so many seconds old."""
    client.produce("t")
    for _ in range(count):
        client.publish(publish_time=int((time.time() - age) * 1000))


def test_what_is_older_than_its_time_to_live_is_acknowledged_for_readers_too(
    start_broker: Start, dial: Dial
) -> None:
    broker = quick(start_broker, message_ttl=60)
    client = dial(broker)
    client.subscribe("t", "s", consumer_id=0)
    client.read("t", consumer_id=1)
    broker.compact("t")
    written(client, 3600)
    client.publish()
    expected = [1, 1]
    wait_until(
        lambda: (
            sorted(
                found.backlog for name, found in broker.subscriptions("t").items() if name[0] != "_"
            )
            == expected
        ),
        "they do not expire",
    )
    assert broker.subscriptions("t")["__compaction"].backlog == 4


def test_a_quota_by_age_closes_producers_and_ends_with_the_backlog(
    start_broker: Start, dial: Dial
) -> None:
    broker = quick(start_broker, backlog_age=BacklogQuota(60, "producer_exception"))
    client = dial(broker)
    client.subscribe("t", "s")
    written(client, 3600, count=1)
    assert client.expect("CLOSE_PRODUCER")
    assert client.request("PRODUCER", topic="t", producer_id=1).name == "ERROR"
    broker.expire_messages("t", "s", 0)
    assert client.request("PRODUCER", topic="t", producer_id=2).name == "PRODUCER_SUCCESS"


def test_eviction_by_age_acknowledges_what_is_too_old(start_broker: Start, dial: Dial) -> None:
    broker = quick(start_broker, backlog_age=BacklogQuota(60, "consumer_backlog_eviction"))
    client = dial(broker)
    client.subscribe("t", "s")
    written(client, 3600)
    client.publish()
    wait_until(lambda: broker.subscriptions("t")["s"].backlog == 1, "they are not evicted")
    client.nothing_came("CLOSE_PRODUCER")


def test_without_durable_subscriptions_there_is_no_backlog(start_broker: Start, dial: Dial) -> None:
    broker = quick(start_broker, backlog_size=BacklogQuota(100), backlog_age=BacklogQuota(1))
    client = dial(broker)
    client.read("t")
    written(client, 3600)
    assert client.request("PRODUCER", topic="t", producer_id=1).name == "PRODUCER_SUCCESS"


def test_a_quota_needs_a_policy_that_there_is() -> None:
    with pytest.raises(ValueError, match="consumer_backlog_eviction"):
        BacklogQuota(1, "none")
    with pytest.raises(ValueError, match="FORWARD_TRANSITIVE"):
        TopicPolicies(schema_compatibility="none")


def test_what_is_set_for_a_topic_precedes_what_is_set_for_the_broker(
    start_broker: Start, dial: Dial
) -> None:
    broker = start_broker(policies=TopicPolicies(max_producers=1))
    client = dial(broker)
    client.produce("t")
    assert client.request("PRODUCER", topic="t", producer_id=1).name == "ERROR"
    broker.set_policies("t", TopicPolicies())
    assert client.request("PRODUCER", topic="t", producer_id=2).name == "PRODUCER_SUCCESS"


def in_four_ledgers(client: WireClient, age: float = 3600) -> None:
    """Publish 35 messages, ten in a ledger, of 100 kB each."""
    client.produce("t")
    for _ in range(35):
        client.publish(bytes(100_000), publish_time=int((time.time() - age) * 1000))


@pytest.mark.parametrize(
    "retention,left",
    [
        (None, 35),
        (Retention(-1, -1), 35),
        (Retention(0, 0), 5),
        (Retention(30, -1), 5),
        (Retention(90, -1), 35),
        (Retention(-1, 1), 15),
        (Retention(-1, 2), 25),
        (Retention(90, 1), 15),
    ],
)
def test_ledgers_beyond_the_retention_are_deleted(
    start_broker: Start, dial: Dial, retention: Retention | None, left: int
) -> None:
    policies = TopicPolicies(retention=retention)
    broker = start_broker(policies=policies, policy_check_interval=0.05, max_entries_per_ledger=10)
    broker.create_topic("t")
    in_four_ledgers(dial(broker))
    wait_until(lambda: broker.stats("t").entries <= left, "they are not deleted")
    time.sleep(0.2)
    assert broker.stats("t").entries == left


def test_what_a_durable_subscription_needs_is_kept_but_not_what_a_reader_does(
    start_broker: Start, dial: Dial
) -> None:
    broker = start_broker(
        policies=TopicPolicies(retention=Retention(0, 0)),
        policy_check_interval=0.05,
        max_entries_per_ledger=10,
    )
    broker.create_topic("t")
    client = dial(broker)
    client.read("t", consumer_id=1)
    client.subscribe("t", "s", consumer_id=2)
    in_four_ledgers(client)
    time.sleep(0.2)
    assert broker.stats("t").entries == 35
    first = broker.stats("t").ledgers[2]
    broker.reset_subscription("t", "s", MessageIdAdv(first, 5))
    wait_until(lambda: broker.stats("t").entries == 15, "they are not deleted")
    assert broker.stats("t").ledgers[0] == first
