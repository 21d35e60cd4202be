"""Messages deleted while a range is read, on both brokers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from pulsar_spark.client import PulsarClient
from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.consumers.probe import LedgerEnd, Probe
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.engine.producers import producer_session
from pulsar_spark.errors import DataLossError
from pulsar_spark.protocol.message_id import Position
from pulsar_spark.spark.options.read import parse_read_options
from pulsar_spark.spark.reading.batch_reader import PulsarBatchReader, infer_schema
from tests.integration.brokers import Broker
from tests.spark.readings import Reading, behind
from tests.spark.streams import NO_CAPS, Make
from tests.spark.topics import read as read_batch
from tests.spark.topics import rows_of, values

pulsar = pytest.importorskip("pulsar", reason="pulsar-client is not installed")

ENTRIES = 20

pytestmark = pytest.mark.fault(101)


@pytest.fixture
def client(broker: Broker, official_client: Callable[..., Any]) -> Any:
    return official_client(broker.service_url)


def write(
    client: Any, topic: str, entries: int = ENTRIES, *, keys: int = ENTRIES
) -> list[tuple[int, int]]:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [
        producer.send(b"%d" % number, partition_key=f"k{number % keys}")
        for number in range(entries)
    ]
    producer.close()
    return [(found.ledger_id(), found.entry_id()) for found in ids]


@pytest.mark.fault(55)
@pytest.mark.parametrize("again", [0, ENTRIES])
def test_a_topic_that_is_made_again_while_it_is_read_is_a_loss(
    broker: Broker, client: Any, read: Callable[..., Reading], again: int
) -> None:
    topic = broker.create_topic()
    places = write(client, topic)
    reading = read(topic, behind(places))
    assert reading.take(3) == places[:3]
    broker.delete_topic(topic)
    broker.create_topic(topic)
    if again:
        write(client, topic, again)
    with pytest.raises(DataLossError, match="while they were read"):
        reading.rest()


@pytest.mark.fault(58)
@pytest.mark.parametrize("taken", [3, ENTRIES])
def test_a_topic_that_is_truncated_while_it_is_read_is_a_loss(
    broker: Broker, client: Any, read: Callable[..., Reading], taken: int
) -> None:
    topic = broker.create_topic()
    places = write(client, topic)
    broker.roll_ledger(topic)
    places += write(client, topic)
    reading = read(topic, behind(places))
    assert reading.take(taken) == places[:taken]
    broker.trim(topic)
    with pytest.raises(DataLossError, match="while they were read"):
        reading.rest()


@pytest.mark.fault(58)
@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("how", ["truncated", "made again"])
def test_what_is_deleted_after_a_batch_is_planned_is_a_loss(
    broker: Broker, client: Any, make: Make, rolled: bool, how: str
) -> None:
    topic = broker.create_topic()
    write(client, topic, 5)
    query = make(topic, startingOffsets="earliest")
    assert len(query.batch()) == 5
    write(client, topic)
    if rolled:
        broker.roll_ledger(topic)
        write(client, topic)
    start = query.start()
    plan = query.source.plan(start, query.source.latest(start, NO_CAPS))
    if how == "truncated":
        broker.trim(topic)
    else:
        broker.delete_topic(topic)
        broker.create_topic(topic)
    write(client, topic, 2 * ENTRIES)
    with pytest.raises(DataLossError, match="between planning and reading"):
        query.values(plan)


@pytest.mark.fault(58)
@pytest.mark.parametrize("planned", [False, True])
def test_a_ledger_that_a_stream_has_read_may_be_deleted(
    broker: Broker, client: Any, make: Make, planned: bool
) -> None:
    topic = broker.create_topic()
    write(client, topic, 5)
    query = make(topic, startingOffsets="earliest")
    assert len(query.batch()) == 5
    assert query.batch() == []
    broker.trim(topic)
    write(client, topic)
    start = query.start()
    end = query.source.latest(start, NO_CAPS)
    if not planned:
        # As in a checkpoint of an earlier version.
        end = replace(end, firsts={})
    assert len(query.values(query.source.plan(start, end))) == ENTRIES


@pytest.mark.fault(58)
def test_ledgers_that_were_read_may_be_deleted(
    broker: Broker, client: Any, read: Callable[..., Reading]
) -> None:
    topic = broker.create_topic()
    places = write(client, topic)
    reading = read(topic, Position(places[-1][0] + 1000, 0))
    assert reading.take(ENTRIES) == places
    broker.trim(topic)
    places += write(client, topic)
    reading.rest()


@pytest.mark.fault(63)
def test_ledgers_tell_where_they_end(broker: Broker, client: Any) -> None:
    topic = broker.create_topic()
    first = write(client, topic, 7)
    broker.roll_ledger(topic)
    second = write(client, topic, 3)
    with ConnectionPool(ClientOptions(broker.service_url)) as pool:
        probe = Probe(pool)
        assert probe.ledger_end(topic, first[0][0]) == LedgerEnd(6, Position(*second[0]))
        assert probe.ledger_end(topic, second[0][0]) == LedgerEnd(2, None)
        broker.trim(topic)
        third = write(client, topic, 2)
        assert probe.ledger_end(topic, first[0][0]) is None
        assert probe.ledger_end(topic, third[0][0]) == LedgerEnd(third[-1][1], None)


@pytest.mark.fault(63)
def test_a_ledger_of_another_topic_is_not_there(broker: Broker, client: Any) -> None:
    topic, other = broker.create_topic(), broker.create_topic()
    first = write(client, topic, 3)
    between = write(client, other, 5)
    broker.roll_ledger(topic)
    last = write(client, topic, 2)
    broker.roll_ledger(other)
    newest = write(client, other, 1)
    assert first[0][0] < between[0][0] < last[0][0] < newest[0][0]
    with ConnectionPool(ClientOptions(broker.service_url)) as pool:
        ledgers = [(topic, place[0][0]) for place in (first, between, last, newest)]
        assert Probe(pool).last_entries_in(ledgers) == [2, None, 1, None]


@pytest.mark.fault(60)
@pytest.mark.parametrize("how", ["truncated", "made again"])
def test_the_compacted_view_of_a_topic_that_was_not_compacted_is_judged_like_the_topic(
    broker: Broker, client: Any, read: Callable[..., Reading], how: str
) -> None:
    topic = broker.create_topic()
    places = write(client, topic)
    reading = read(topic, behind(places), compacted=True)
    reading.take(3)
    if how == "truncated":
        broker.trim(topic)
    else:
        broker.compact(topic)
        broker.delete_topic(topic)
        broker.create_topic(topic)
    write(client, topic)
    with pytest.raises(DataLossError, match="while they were read"):
        reading.rest()


@pytest.mark.fault(60)
@pytest.mark.parametrize("taken", [0, 3])
def test_what_was_compacted_and_then_deleted_is_no_loss(
    broker: Broker, client: Any, read: Callable[..., Reading], taken: int
) -> None:
    topic = broker.create_topic()
    places = write(client, topic, keys=5)
    reading = read(topic, behind(places), compacted=True, start=Position(*places[0]))
    assert reading.take(taken) == places[:taken]
    broker.compact(topic)
    broker.trim(topic)
    assert reading.rest()[-5:] == places[-5:]


@pytest.mark.fault(60)
def test_a_compacted_view_is_planned_after_its_ledgers_were_deleted(
    broker: Broker, client: Any
) -> None:
    topic = broker.create_topic()
    write(client, topic, keys=5)
    broker.compact(topic)
    broker.trim(topic)
    options = parse_read_options(
        {"service.url": broker.service_url, "topic": topic, "readCompacted": "true"}
    )
    reader = PulsarBatchReader(options, infer_schema(options))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert [row["value"] for row in rows_of(batches)] == [b"%d" % n for n in range(15, 20)]


@pytest.mark.fault(60)
@pytest.mark.parametrize("begins", ["at the earliest", "at an entry"])
def test_a_compacted_view_with_gaps_is_read_after_its_ledgers_were_deleted(
    broker: Broker, client: Any, read: Callable[..., Reading], begins: str
) -> None:
    topic = broker.create_topic()
    producer = client.create_producer(topic, batching_enabled=False)
    keys = [0, 1, 2, 3, 0, 4, 5, 1, 6, 7, 8, 9, 2, 10]
    ids = [producer.send(b"x", partition_key=f"k{key}") for key in keys]
    producer.close()
    last = {
        key: (found.ledger_id(), found.entry_id()) for key, found in zip(keys, ids, strict=True)
    }
    broker.compact(topic)
    broker.trim(topic)
    later = write(client, topic, 4)
    start = {} if begins == "at the earliest" else {"start": Position(*min(last.values()))}
    assert (
        read(topic, behind(later), compacted=True, **start).rest() == sorted(last.values()) + later
    )


@pytest.mark.fault(60)
def test_a_topic_tells_whether_it_was_ever_compacted(broker: Broker, client: Any) -> None:
    topic = broker.create_topic()
    write(client, topic, 3)
    with ConnectionPool(ClientOptions(broker.service_url)) as pool:
        probe = Probe(pool)
        assert probe.are_compacted([topic] * 8) == [False] * 8
        broker.expect_no_trace(topic)
        broker.compact(topic)
        assert broker.subscriptions(topic) == {"__compaction"}
        assert probe.are_compacted([topic] * 8) == [True] * 8
        broker.trim(topic)
        broker.unload(topic)
        assert probe.is_compacted(topic)
        # Some brokers compact no topic without messages.
        write(client, topic, 3)
        broker.compact(topic)
        broker.delete_topic(topic)
        broker.create_topic(topic)
        assert not probe.is_compacted(topic)


@pytest.mark.fault(61)
def test_aborted_transactions_at_the_ends_of_a_topic_are_no_loss(broker: Broker) -> None:
    """Split or not, and though bounds name what was aborted, in whole ledgers of its own too."""
    topic = broker.create_transactional_topic(0)
    entries: list[tuple[str, bytes | None]] = []
    with PulsarClient(broker.service_url, operation_timeout_seconds=60) as client:
        for ledger in ("AA", "A", "C.", "A"):
            for kind in ledger:
                producer = client.create_producer(topic, batching_enabled=False)
                txn = None if kind == "." else client.new_transaction()
                for number in range(3):
                    value = b"%d" % (len(entries) + number)
                    found = producer.send(value, txn=txn)
                    place = f"{found.ledger_id()}:{found.entry_id()}"
                    entries.append((place, None if kind == "A" else value))
                producer.close()
                if txn is not None:
                    txn.abort() if kind == "A" else txn.commit()
            if ledger != "A" or len(entries) < 12:
                broker.roll_ledger(topic)
    last = len(entries) - 1
    bounds = [(None, None), (0, None), (7, last), (None, 1), (4, 8), (last, None), (13, last)]
    for first, end in bounds:
        given = {"startingOffsets": first, "endingOffsets": end}
        named = {
            option: json.dumps({topic: entries[number][0]})
            for option, number in given.items()
            if number is not None
        }
        stop = None if end is None else end + 1
        wanted = [value for _, value in entries[first or 0 : stop] if value is not None]
        for splits in ("1", "2", "5"):
            options = {"topic": topic, **named, "partitionsPerTopicPartition": splits}
            assert values(broker, options) == wanted, (named, splits)


@pytest.mark.fault(93, 94)
@pytest.mark.parametrize(
    "skew,transactional",
    # With a clock that is fast, markers are out of order: publishTimeTolerance is for that.
    [(-3600_000, False), (-3600_000, True), (-150_000, True), (600_000, False), (50_000, True)],
)
def test_times_are_those_of_producers_whatever_their_clock_is(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, skew: int, transactional: bool
) -> None:
    """Brokers search by their own times, too: of closed ledgers, and of transactions' markers."""
    topic = broker.create_transactional_topic(0)
    now, started = producer_session._now(), count()
    monkeypatch.setattr(producer_session, "_now", lambda: now + skew + 10 * next(started))
    with PulsarClient(broker.service_url, operation_timeout_seconds=60) as client:
        for ledger in range(3):
            if ledger:
                broker.roll_ledger(topic)
            producer = client.create_producer(topic, batching_enabled=False)
            for number in range(4):
                txn = client.new_transaction() if transactional else None
                producer.send(b"%d" % (4 * ledger + number), txn=txn)
                if txn is not None:
                    txn.commit()
            producer.close()
    rows = read_batch(broker, {"topic": topic, "startingTime": "0"})
    assert [row["value"] for row in rows] == [b"%d" % number for number in range(12)]
    times = [round(row["__publishTime"].timestamp() * 1000) for row in rows]
    assert times == sorted(times)
    for first, end in ((0, 5), (0, 11), (3, 9), (6, 7), (8, 11)):
        bounds = {"startingTime": str(times[first]), "endingTime": str(times[end])}
        wanted = [b"%d" % number for number in range(first, end)]
        assert values(broker, {"topic": topic, **bounds}) == wanted
    assert values(broker, {"topic": topic, "endingTime": str(times[-1] + 1)})[-1] == b"11"
