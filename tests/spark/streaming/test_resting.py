"""A stream without news asks its brokers little, and learns of news at once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import pytest

from pulsar_spark.engine.consumers import news_watch
from pulsar_spark.spark.options.stream import Caps
from pulsar_spark.spark.streaming import source
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.streams import NO_CAPS, Make, Query, queries
from tests.spark.topics import full, store, store_many
from tests.support.waiting import wait_until

REQUESTS = (
    "GET_LAST_MESSAGE_ID",
    "SUBSCRIBE",
    "FLOW",
    "LOOKUP",
    "PARTITIONED_METADATA",
    "GET_TOPICS_OF_NAMESPACE",
    "CLOSE_CONSUMER",
    "CONSUMER_STATS",
)


@pytest.fixture
def make(broker: EmbeddedBroker) -> Iterator[Make]:
    with queries(broker.service_url) as made:
        yield made


def asked(broker: EmbeddedBroker) -> int:
    return sum(broker.faults.seen(name, direction="in") for name in REQUESTS)


def trigger(query: Query, caps: Caps = NO_CAPS) -> list[bytes]:
    """Ask for the latest offset as the reader does, and read what is new."""
    return [] if query.source.rests() else query.batch(caps)


def resting(query: Query, broker: EmbeddedBroker) -> Query:
    """Return the query when it rests: all that it read is acknowledged, and brokers watch."""
    wait_until(lambda: trigger(query) == [] and query.source.rests(), "it does not rest", 240)
    return query


@pytest.mark.parametrize("partitions", [1, 10, 100, 1000])
def test_an_idle_trigger_is_one_request_however_many_partitions_there_are(
    broker: EmbeddedBroker, make: Make, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow this machine is.
    monkeypatch.setattr(news_watch, "_OFTEN_SECONDS", 600.0)
    monkeypatch.setattr(news_watch, "_BELIEVED_SECONDS", 600.0)
    broker.create_topic("t", partitions)
    for number in range(partitions):
        store(broker, f"t-partition-{number}", [b"first"])
    query = make(startingOffsets="earliest")
    assert len(query.batch()) == partitions
    resting(query, broker)
    rests = 0
    before = asked(broker)
    while rests < 50 and query.source.rests():
        rests += 1
    # And once a second the number of partitions.
    assert asked(broker) - before <= 2 * rests + 2
    assert rests > 5


@pytest.mark.parametrize("partitions", [1, 20, 300])
def test_news_of_any_partition_is_in_the_next_batch(
    broker: EmbeddedBroker, make: Make, partitions: int
) -> None:
    broker.create_topic("t", partitions)
    query = make(startingOffsets="earliest")
    for number in {0, partitions // 2, partitions - 1}:
        resting(query, broker)
        new = store_many(broker, f"t-partition-{number}", 20)
        assert trigger(query) == new


def test_a_query_rests_again_after_each_message(broker: EmbeddedBroker, make: Make) -> None:
    broker.create_topic("t", 3)
    query = make(startingOffsets="earliest")
    for number in range(4):
        resting(query, broker)
        value = b"%d" % number
        store(broker, f"t-partition-{number % 3}", [value], batched=number % 2 == 0)
        assert trigger(query) == [value]


def test_a_query_with_unread_messages_does_not_rest(broker: EmbeddedBroker, make: Make) -> None:
    broker.create_topic("t")
    query = make(startingOffsets="earliest")
    query.batch()
    store_many(broker, "t", 20)
    waiting = Caps(min_messages=1000, max_delay=600.0)
    for _ in range(40):
        assert query.batch(waiting) == []
        assert not query.source.rests()


def unload(broker: EmbeddedBroker) -> None:
    broker.faults.unload("t-partition-1")


def disconnect(broker: EmbeddedBroker) -> None:
    broker.faults.disconnect()


def close_consumers(broker: EmbeddedBroker) -> None:
    broker.faults.close_consumers(full("t-partition-1"))


@pytest.mark.fault(71)
@pytest.mark.parametrize("disturb", [unload, disconnect, close_consumers])
def test_news_is_found_after_a_disturbance(
    broker: EmbeddedBroker, make: Make, disturb: Callable[[EmbeddedBroker], None]
) -> None:
    broker.create_topic("t", 3)
    query = make(startingOffsets="earliest")
    resting(query, broker)
    disturb(broker)
    new = store_many(broker, "t-partition-1", 20)
    wait_until(lambda: not query.source.rests(), "the query rests")
    assert query.batch() == new
    resting(query, broker)


def test_new_partitions_and_topics_are_found_at_rest(broker: EmbeddedBroker, make: Make) -> None:
    broker.create_topic("a-1", 2)
    named = make("a-1", startingOffsets="earliest")
    pattern = make(None, topicsPattern="a-.*", startingOffsets="earliest")
    resting(named, broker)
    resting(pattern, broker)
    broker.add_partitions("a-1", 4)
    new = store_many(broker, "a-1-partition-3", 10)
    wait_until(lambda: trigger(named) == new, "the new partition is not found")
    resting(pattern, broker)
    broker.create_topic("a-2")
    new = store_many(broker, "a-2", 10)
    wait_until(lambda: trigger(pattern) == new, "the new topic is not found")


def test_a_watch_that_a_policy_forbids_is_done_without(
    broker: EmbeddedBroker, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t")
    query = make(startingOffsets="earliest")
    query.batch()
    with broker.faults.error("SUBSCRIBE", "NotAllowedError", times=None) as refused:
        for _ in range(30):
            assert trigger(query) == []
            assert not query.source.rests()
    # It is not tried again at each trigger.
    assert refused.hits == 1
    new = store_many(broker, "t", 10)
    assert trigger(query) == new


def test_a_broker_that_reports_nothing_is_asked_after_a_while(
    broker: EmbeddedBroker, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news_watch, "_BELIEVED_SECONDS", 0.3)
    monkeypatch.setattr(news_watch, "_SPREAD_SECONDS", 0.0)
    monkeypatch.setattr(source, "_REST_SECONDS", 0.3)
    broker.create_topic("t", 2)
    query = make(startingOffsets="earliest")
    resting(query, broker)
    with broker.faults.drop("MESSAGE", times=None):
        new = store_many(broker, "t-partition-1", 10)
        wait_until(lambda: not query.source.rests(), "the query rests")
        offset = query.source.latest(query.start(), NO_CAPS)
    assert query.read(query.start(), offset) == new


def test_nobody_watches_after_the_end(broker: EmbeddedBroker, make: Make) -> None:
    broker.create_topic("t", 3)
    query = make(startingOffsets="earliest")
    resting(query, broker)
    query.source.close()
    wait_until(
        lambda: all(
            not view.consumers
            for number in range(3)
            for view in broker.subscriptions(full(f"t-partition-{number}")).values()
        ),
        "a consumer is left",
    )


@pytest.mark.slow
@pytest.mark.fault(71)
@pytest.mark.parametrize("seed", range(4))
def test_no_message_waits_long_whatever_happens_to_those_who_watch(
    broker: EmbeddedBroker, make: Make, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(news_watch, "_BELIEVED_SECONDS", 0.2)
    monkeypatch.setattr(news_watch, "_SPREAD_SECONDS", 0.2)
    monkeypatch.setattr(news_watch, "_REFUSED_SECONDS", 0.1)
    monkeypatch.setattr(source, "_REST_SECONDS", 0.2)
    rng = random.Random(seed)
    broker.create_topic("t", 3)
    query = make(startingOffsets="earliest")
    partitions = [f"t-partition-{number}" for number in range(3)]
    disturbances: list[Callable[[str], object]] = [
        broker.unload,
        broker.roll_ledger,
        lambda one: broker.faults.disconnect(),
        lambda one: broker.faults.close_consumers(full(one)),
        lambda one: broker.faults.move_readers(full(one)),
        lambda one: broker.faults.drop("MESSAGE", times=2),
        lambda one: broker.faults.drop("FLOW", times=1),
        lambda one: broker.faults.error("SUBSCRIBE", "ServiceNotReady", times=1),
        lambda one: broker.faults.error("GET_LAST_MESSAGE_ID", "ServiceNotReady", times=1),
        lambda one: broker.faults.close("GET_LAST_MESSAGE_ID", times=1),
        lambda one: broker.faults.delay("MESSAGE", 0.2, times=2),
    ]
    sent: list[bytes] = []
    found: list[bytes] = []
    for number in range(12):
        if rng.random() < 0.7:
            resting(query, broker)
        for disturb in rng.sample(disturbances, rng.choice([0, 1, 1, 2])):
            disturb(rng.choice(partitions))
        if rng.random() < 0.8:
            value = b"%d" % number
            store(broker, rng.choice(partitions), [value], batched=rng.random() < 0.5)
            sent.append(value)
        until = time.monotonic() + 10
        while len(found) < len(sent):
            found += trigger(query)
            assert time.monotonic() < until, "a message is withheld"
    assert sorted(found) == sorted(sent)
