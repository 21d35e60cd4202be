"""A stream that rests, on both brokers: whatever its topics do meanwhile, it finds the news."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from pulsar_spark.client import PulsarClient
from tests.integration.brokers import Broker
from tests.integration.streams import Feed
from tests.spark.streams import NO_CAPS, Make, Query
from tests.support.waiting import wait_until


def trigger(query: Query) -> list[bytes]:
    return [] if query.source.rests() else query.batch(NO_CAPS)


def resting(query: Query) -> Query:
    wait_until(lambda: trigger(query) == [] and query.source.rests(), "it does not rest")
    return query


def expect(query: Query, new: list[bytes]) -> None:
    """Read what is new, before anything but a report tells of it."""
    found: list[bytes] = []
    until = time.monotonic() + 8
    while len(found) < len(new):
        found += trigger(query)
        assert time.monotonic() < until, "a message is withheld"
    assert found == new


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_what_a_transaction_held_back_is_found_when_it_ends(
    broker: Broker, make: Make, end: str
) -> None:
    topic = broker.create_topic()
    query = make(topic, startingOffsets="earliest")
    with (
        PulsarClient(broker.service_url) as client,
        client.create_producer(topic) as producer,
    ):
        producer.send(b"first")
        expect(query, [b"first"])
        for begun_before in (True, False):
            if not begun_before:
                resting(query)
            txn = client.new_transaction()
            producer.send(b"in it", txn=txn)
            producer.send(b"behind it")
            resting(query)
            getattr(txn, end)()
            expect(query, [*([b"in it"] if end == "commit" else []), b"behind it"])


def roll(broker: Broker, topic: str) -> None:
    broker.roll_ledger(topic)


def unload(broker: Broker, topic: str) -> None:
    broker.unload(topic)


def trim(broker: Broker, topic: str) -> None:
    broker.roll_ledger(topic)
    broker.trim(topic)


def compact(broker: Broker, topic: str) -> None:
    broker.compact(topic)


@pytest.mark.fault(71)
@pytest.mark.parametrize("change", [roll, unload, trim, compact])
def test_news_behind_a_change_of_the_topic_is_found(
    broker: Broker, make: Make, feed: Feed, change: Callable[[Broker, str], None]
) -> None:
    topic = broker.create_topic()
    query = make(topic, startingOffsets="earliest")
    expect(query, feed(topic, [3, 0]))
    resting(query)
    change(broker, topic)
    expect(query, feed(topic, [3, 0]))
