"""A stream's lag, as reported to Spark's listeners, on both brokers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark.sql.streaming.datasource", reason="needs Spark 4.2")

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pulsar_spark.engine.consumers.probe import Probe
from pulsar_spark.progress import QueryLag, lag
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.spark.options.stream import Caps
from tests.integration.brokers import Broker
from tests.integration.messages import clustered
from tests.integration.streams import Feed
from tests.spark.streams import Make, Query
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Watching(StreamingQueryListener):
    """Records the lag after each batch of a query, by the batch's id."""

    def __init__(self) -> None:
        self.found: dict[int, QueryLag] = {}
        self.errors: list[Exception] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        try:
            self.found[event.progress.batchId] = lag(event)
        except Exception as error:
            self.errors.append(error)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass


@pytest.fixture
def watching(spark: SparkSession) -> Iterator[Watching]:
    made = Watching()
    spark.streams.addListener(made)
    yield made
    spark.streams.removeListener(made)


def test_a_listener_learns_what_each_batch_leaves_behind(
    spark: SparkSession, broker: Broker, feed: Feed, watching: Watching, tmp_path: Path
) -> None:
    topic = broker.create_topic(partitions=2)
    for partition in broker.partitions_of(topic, 2):
        feed(partition, [0] * 30)
    options = {
        "service.url": broker.service_url,
        "topic": topic,
        "startingOffsets": "earliest",
        "maxMessagesPerTrigger": "20",
    }
    writer = spark.readStream.format("pulsar").options(**options).load().writeStream
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).format("noop")
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    wait_until(lambda: len(watching.found) >= 3, "the listener hears nothing")
    assert watching.errors == []
    found = [watching.found[number] for number in sorted(watching.found)]
    assert [part.entries for part in found] == [40, 20, 0]
    assert [part.messages for part in found] == [40, 20, 0]
    # Neither twenty nor ten entries per partition are all inspected; no number is exact.
    assert [part.messages_estimated for part in found] == [True, True, False]
    assert {part.topic for part in found[0].partitions} == set(broker.partitions_of(topic, 2))
    assert found[0].bytes is not None
    assert found[0].seconds is not None
    assert 0 <= found[0].seconds < 100
    last = query.lastProgress
    assert last is not None
    for given in (last, last.sources[0], last.json):
        assert lag(given) == found[-1]


def behind(query: Query) -> QueryLag:
    """Return the report of a source after it planned a batch."""
    source = query.source
    report, left, end = source.report(), source.lag(), source.last
    assert report is not None
    assert end is not None
    told = {**report.to_json(), "lag": {topic: of.to_json() for topic, of in left.items()}}
    return lag({"endOffset": end.to_json(), "latestOffset": told})


def test_entries_are_counted_over_ledgers_and_inside_batches(
    broker: Broker, make: Make, feed: Feed
) -> None:
    topic = broker.create_topic()
    total = 0
    query = make(topic, startingOffsets="earliest")
    assert query.batch() == []
    for _ in range(3):
        feed(topic, [5, 0, 20])
        total += 26
        broker.roll_ledger(topic)
    feed(topic, [3] * 4)
    total += 12
    read = query.batch(Caps(6))
    found = behind(query)
    assert found.entries == 13 - 2
    assert found.messages is not None
    assert found.messages_estimated
    assert 0 < found.messages < 3 * total
    while batch := query.batch(Caps(10)):
        read += batch
    assert len(read) == total
    assert behind(query) == QueryLag(tuple(behind(query).partitions))
    assert (behind(query).entries, behind(query).messages) == (0, 0)


def test_messages_are_counted_where_the_broker_stamps_an_index(
    tuned_broker: Broker, tuned_make: Make, tuned_feed: Feed
) -> None:
    topic = tuned_broker.create_topic()
    written = tuned_feed(topic, [100, 0, 3, 50] * 60)
    query = tuned_make(topic, startingOffsets="earliest")
    read = 0
    while batch := query.batch(Caps(3333)):
        read += len(batch)
        found = behind(query)
        assert found.messages == len(written) - read
        assert not found.messages_estimated
    assert read == len(written)


def test_the_oldest_message_that_is_left_tells_the_age(
    broker: Broker, make: Make, feed: Feed
) -> None:
    topic = broker.create_topic()
    feed(topic, [0, 0])
    first = time.time()
    query = make(topic, startingOffsets="earliest")
    query.batch(Caps(1))
    time.sleep(0.5)
    age = behind(query).seconds
    assert age is not None
    # Publish times are by the producers' clocks.
    assert 0.4 < age <= time.time() - first + 5
    query.batch()
    assert behind(query).seconds == 0


def test_an_idle_stream_is_not_asked_what_is_left(
    broker: Broker, make: Make, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.create_topic(partitions=3)
    feed(broker.partitions_of(topic, 3)[1], [3, 3])
    query = make(topic, startingOffsets="earliest")
    query.batch()
    asked: list[object] = []
    monkeypatch.setattr(Probe, "first_entries_at", lambda _, questions: asked.append(questions))
    monkeypatch.setattr(Probe, "entries_from", lambda _, questions: asked.append(questions))
    assert query.batch() == []
    assert behind(query).messages == 0
    assert asked == []


def test_entries_from_a_position_on_are_counted_by_both_brokers(broker: Broker, feed: Feed) -> None:
    topic = broker.create_topic()
    feed(topic, [2, 0, 7])
    broker.roll_ledger(topic)
    feed(topic, [1, 1])
    with clustered(broker) as context:
        last = context.lookup.last_message_id(topic)
        places = [
            (EARLIEST_POSITION, 5),
            (Position(last.ledger_id, 0), 2),
            (Position(last.ledger_id, 1), 1),
            (Position(last.ledger_id, 2), 0),
        ]
        probe = Probe(context.pool)
        assert probe.entries_from([(topic, at) for at, _ in places]) == [n for _, n in places]
        first = probe.first_entry_at(topic, EARLIEST_POSITION)
        assert first is not None
        start = first.start.ledger_id
        inside = [(Position(start, 1), 4), (Position(start, 2), 3), (Position(start, 50), 2)]
        assert probe.entries_from([(topic, at) for at, _ in inside]) == [n for _, n in inside]
    broker.expect_no_trace(topic)
