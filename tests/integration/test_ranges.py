"""Ranges are read exactly, wherever they begin and end, and whatever happened to the topic."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.consumers.probe import FoundEntry, Probe
from pulsar_spark.engine.consumers.reader import EntryReader
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.options import ProducerOptions, ReaderOptions
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.errors import TopicNotFound, TopicTerminated
from pulsar_spark.protocol.message_id import (
    EARLIEST,
    EARLIEST_POSITION,
    LATEST_POSITION,
    MessageIdAdv,
    Position,
)
from pulsar_spark.protocol.outgoing_messages import MessageFields
from tests.integration.brokers import Broker
from tests.integration.conftest import TUNED_ENTRIES_PER_LEDGER
from tests.integration.messages import (
    Content,
    Row,
    clustered,
    connected,
    official_content,
    official_write,
    read_entries,
    read_rows,
    rows_of,
)

pulsar = pytest.importorskip("pulsar", reason="pulsar-client is not installed")

Connect = Callable[..., Any]

FAR = Position(2**62, 0, 0)


@pytest.fixture
def client(broker: Broker, official_client: Connect) -> Any:
    return official_client(broker.service_url)


def write_batches(client: Any, topic: str, sizes: list[int]) -> None:
    """Write batches of these sizes with the official client; 0 is a message outside a batch."""
    number = itertools.count()
    options = {"batching_max_publish_delay_ms": 60_000, "batching_max_messages": 1000}
    batched = client.create_producer(topic, batching_enabled=True, **options)
    plain = client.create_producer(topic, batching_enabled=False)
    for size in sizes:
        contents = [Content(b"%d" % next(number)) for _ in range(size or 1)]
        official_write(batched if size else plain, contents)
    batched.close()
    plain.close()


def before(row: Row) -> Position:
    return Position.before(row.message_id)


def values(rows: list[Row]) -> list[bytes | None]:
    return [row.content.payload for row in rows]


def read(
    pool: ConnectionPool, topic: str, start: Position, end: Position, **options: Any
) -> list[Row]:
    settings = ReaderOptions(**{"poll_timeout": 60.0, **options})
    with EntryReader(pool, topic, start, end, settings) as reader:
        return [row for entry in reader for row in rows_of(entry)]


@pytest.mark.fault(61, 62, 63)
def test_every_range_is_exact(broker: Broker, client: Any) -> None:
    topic = broker.create_topic()
    write_batches(client, topic, [5, 0, 1, 7])
    broker.roll_ledger(topic)
    write_batches(client, topic, [0])
    broker.roll_ledger(topic)
    write_batches(client, topic, [3, 0, 2])
    rows = read_rows(broker, topic)
    assert values(rows) == [b"%d" % n for n in (*range(14), 0, *range(6))]
    assert len({row.message_id.ledger_id for row in rows}) == 3
    places = [EARLIEST_POSITION, *map(before, rows), Position.after(rows[-1].message_id)]
    # Positions where nothing is stored: after a batch, after a ledger, and in no ledger.
    places += [
        Position(row.message_id.ledger_id, row.message_id.entry_id + more, index)
        for row in rows[::5]
        for more, index in ((0, 99), (9, 0))
    ]
    places += [Position(rows[0].message_id.ledger_id - 1, 5)]
    pairs = [(start, end) for start in places for end in places if end != EARLIEST_POSITION]
    chosen = random.Random(1).sample(pairs, 100)
    with connected(broker) as pool:
        for start, end in chosen:
            expected = [row for row in rows if start <= before(row) < end]
            assert values(read(pool, topic, start, end)) == values(expected), (start, end)
    broker.expect_no_trace(topic)


@pytest.mark.fault(63)
def test_an_empty_topic_has_nothing_and_takes_no_time(broker: Broker) -> None:
    topic = broker.create_topic()
    started = time.monotonic()
    with connected(broker) as pool:
        assert Lookup(pool).last_message_id(topic) == EARLIEST
        assert read(pool, topic, EARLIEST_POSITION, FAR) == []
        assert read(pool, topic, EARLIEST_POSITION, Position.after(EARLIEST)) == []
        assert read(pool, topic, Position(5, 5), FAR) == []
        assert Probe(pool).first_entry_at(topic, EARLIEST_POSITION) is None
        assert Probe(pool).first_entry_from_time(topic, 0) is None
    assert time.monotonic() - started < 15


@pytest.mark.fault(63)
@pytest.mark.parametrize("batching", [True, False])
def test_one_message(broker: Broker, client: Any, batching: bool) -> None:
    topic = broker.create_topic()
    client.create_producer(topic, batching_enabled=batching).send(b"one")
    (row,) = read_rows(broker, topic)
    here, behind = before(row), Position.after(row.message_id)
    with connected(broker) as pool:
        for start in (EARLIEST_POSITION, here):
            for end in (behind, FAR):
                assert values(read(pool, topic, start, end)) == [b"one"]
            assert read(pool, topic, start, here) == []
        assert read(pool, topic, behind, FAR) == []


@pytest.mark.fault(63)
def test_entries_are_counted_from_any_position_even_in_ledgers_of_other_topics(
    broker: Broker, client: Any
) -> None:
    topic, other = broker.create_topic(), broker.create_topic()
    for name in (topic, other, topic, other, topic):
        write_batches(client, name, [3, 0, 2, 0])
        broker.roll_ledger(name)
    write_batches(client, topic, [1])
    places = list(dict.fromkeys(before(row)[:2] for row in read_rows(broker, topic)))
    first, last = places[0][0], places[-1][0]
    assert len({ledger for ledger, _ in places}) < last - first
    asked = [
        Position(ledger, entry) for ledger in range(first, last + 2) for entry in (0, 2, 2**31)
    ]
    with connected(broker) as pool:
        found = Probe(pool).counts_at([(topic, position) for position in asked])
    for position, count in zip(asked, found, strict=True):
        earlier = [place for place in places if place < position[:2]]
        expected = earlier[-1] if earlier else (first, -1)
        assert count == (Position(*expected), len(places) - len(earlier)), position
    broker.expect_no_trace(topic)


@pytest.mark.fault(62, 63)
def test_what_was_trimmed_is_not_waited_for(broker: Broker, client: Any) -> None:
    topic = broker.create_topic()
    write_batches(client, topic, [4, 0])
    gone = read_rows(broker, topic)
    broker.trim(topic)
    first, last = before(gone[1]), Position.after(gone[-1].message_id)
    with connected(broker) as pool:
        for start in (EARLIEST_POSITION, first):
            for end in (last, FAR):
                assert read(pool, topic, start, end) == []
        assert Probe(pool).first_entry_at(topic, first) is None
    write_batches(client, topic, [2, 3])
    with connected(broker) as pool:
        rows = read(pool, topic, first, FAR)
        assert values(rows) == [b"0", b"1", b"2", b"3", b"4"]
        assert values(read(pool, topic, EARLIEST_POSITION, before(rows[3]))) == values(rows[:3])
        assert read(pool, topic, EARLIEST_POSITION, last) == []
        found = Probe(pool).first_entry_at(topic, first)
        assert found is not None
        assert found.start == before(rows[0])
        assert Lookup(pool).last_message_id(topic) == rows[-1].message_id


@pytest.mark.fault(63)
def test_the_last_message_is_still_known_when_its_ledger_is_rolled(
    broker: Broker, client: Any
) -> None:
    topic = broker.create_topic()
    write_batches(client, topic, [2])
    broker.roll_ledger(topic)
    with connected(broker) as pool:
        last = Lookup(pool).last_message_id(topic)
        assert values(read(pool, topic, EARLIEST_POSITION, Position.after(last))) == [b"0", b"1"]
        assert values(read(pool, topic, EARLIEST_POSITION, FAR)) == [b"0", b"1"]


@pytest.mark.fault(63)
def test_a_range_over_many_ledgers(tuned_broker: Broker, official_client: Connect) -> None:
    topic = tuned_broker.create_topic()
    client = official_client(tuned_broker.service_url)
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    official_write(producer, [Content(b"%d" % number) for number in range(1050)])
    rows = read_rows(tuned_broker, topic)
    assert values(rows) == [b"%d" % number for number in range(1050)]
    ledgers = [row.message_id.ledger_id for row in rows]
    # The real broker begins a new ledger slightly later than configured.
    assert len(set(ledgers)) >= 1050 // (2 * TUNED_ENTRIES_PER_LEDGER)
    edges = [index for index in range(1, 1050) if ledgers[index] != ledgers[index - 1]]
    with connected(tuned_broker) as pool:
        for edge in edges[:3]:
            for start, stop in ((edge - 1, edge), (edge, edge + 1), (edge - 2, edge + 2)):
                found = read(pool, topic, before(rows[start]), before(rows[stop]))
                assert values(found) == values(rows[start:stop])
        for found_entry, edge in zip(
            Probe(pool).first_entries_at(
                [(topic, Position.after(rows[edge - 1].message_id)) for edge in edges]
            ),
            edges,
            strict=True,
        ):
            assert isinstance(found_entry, FoundEntry)
            assert found_entry.start == before(rows[edge])


@pytest.mark.fault(56)
def test_a_terminated_topic_is_read_to_its_end_and_refuses_writers(
    broker: Broker, client: Any
) -> None:
    topic = broker.create_topic()
    write_batches(client, topic, [3, 0])
    with clustered(broker) as context:
        writer = PartitionedProducer(context, topic).open()
        broker.terminate(topic)
        started = time.monotonic()
        writer.send(MessageFields(b"too late"))
        with pytest.raises(TopicTerminated):
            writer.flush()
        assert time.monotonic() - started < 25
        with pytest.raises(TopicTerminated):
            writer.send(MessageFields(b"still too late"))
        writer.abort()
        with pytest.raises(TopicTerminated):
            PartitionedProducer(context, topic).open()
    expected = [b"0", b"1", b"2", b"3"]
    with connected(broker) as pool:
        assert values(read(pool, topic, EARLIEST_POSITION, FAR)) == expected
        with EntryReader(pool, topic, EARLIEST_POSITION) as reader:
            entries = [reader.next_entry(60), reader.next_entry(60)]
            assert [e.wanted.stop for e in entries if e is not None] == [3, 1]
            assert reader.next_entry(0.5) is None
        with EntryReader(pool, topic, LATEST_POSITION) as reader:
            assert reader.next_entry(0.5) is None
        last = Lookup(pool).last_message_id(topic)
        assert values(read(pool, topic, EARLIEST_POSITION, Position.after(last))) == expected


@pytest.mark.fault(65)
def test_the_ends_of_many_topics_at_once(broker: Broker, client: Any) -> None:
    topic = broker.create_topic(partitions=60)
    names = broker.partitions_of(topic, 60)
    producer = client.create_producer(topic, batching_enabled=True)
    # About half of the partitions get nothing.
    sent = [producer.send(b"x", partition_key=f"k{number}") for number in range(45)]
    producer.close()
    expected = dict.fromkeys(names, EARLIEST)
    for found in sorted(sent, key=lambda found: (found.ledger_id(), found.entry_id())):
        expected[names[found.partition()]] = MessageIdAdv(
            found.ledger_id(), found.entry_id(), found.partition(), found.batch_index()
        )
    missing = broker.unique_topic("missing")
    with connected(broker) as pool:
        lookup = Lookup(pool)
        assert lookup.partitions(topic) == 60
        answers = lookup.last_message_ids([*names, missing])
        assert isinstance(answers.pop(missing), TopicNotFound)
        ends = {
            name: (found.ledger_id, found.entry_id)
            for name, found in answers.items()
            if isinstance(found, MessageIdAdv)
        }
        assert ends == {name: (end.ledger_id, end.entry_id) for name, end in expected.items()}
        questions = [(name, EARLIEST_POSITION) for name in names]
        found_entries = Probe(pool).first_entries_at(questions)
        assert [found is not None for found in found_entries] == [
            expected[name] != EARLIEST for name in names
        ]
        # The lookup has not created it.
        assert missing not in lookup.topics_of_namespace("public/default")
    for name in names[:5]:
        broker.expect_no_trace(name)


@pytest.mark.fault(65)
def test_what_does_not_exist_is_an_error_and_stays_away(broker: Broker) -> None:
    missing = broker.unique_topic("missing")
    with connected(broker) as pool:
        with pytest.raises(TopicNotFound):
            Lookup(pool).last_message_id(missing)
        with pytest.raises(TopicNotFound):
            Probe(pool).first_entry_at(missing, EARLIEST_POSITION)
        with pytest.raises(TopicNotFound), EntryReader(pool, missing, EARLIEST_POSITION) as reader:
            reader.next_entry(60)
        assert missing not in Lookup(pool).topics_of_namespace("public/default")


@pytest.mark.fault(65)
@pytest.mark.parametrize("name", ["a%20b", "ünï-日本", "x-partition-y", "a b+c&d=e", "🐟"])
def test_topics_with_odd_names(broker: Broker, client: Any, name: str) -> None:
    topic = broker.unique_topic(name)
    with clustered(broker) as context, PartitionedProducer(context, topic) as writer:
        writer.send(MessageFields(b"here"))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert reader.read_next(60_000).data() == b"here"
    reader.close()
    assert values(read_rows(broker, topic)) == [b"here"]
    with connected(broker) as pool:
        assert topic in Lookup(pool).topics_of_namespace("public/default")


def test_entries_are_found_by_position(broker: Broker, client: Any) -> None:
    topic = broker.create_topic()
    write_batches(client, topic, [3, 0, 1])
    broker.roll_ledger(topic)
    write_batches(client, topic, [0, 4])
    rows = read_rows(broker, topic)
    places = [EARLIEST_POSITION, *map(before, rows)]
    places += [Position(found.ledger_id, found.entry_id, 99) for found in places[1:]]
    places += [Position(rows[4].message_id.ledger_id, 99), Position.after(rows[-1].message_id)]
    with connected(broker) as pool:
        answers = Probe(pool).first_entries_at([(topic, found) for found in places])
    sizes = {row.message_id: row.entry.num_messages_in_batch for row in rows}
    for asked, answer in zip(places, answers, strict=True):
        expected = next((row for row in rows if before(row) >= asked), None)
        if expected is None:
            assert answer is None
            continue
        assert isinstance(answer, FoundEntry)
        assert answer.start == before(expected)
        assert answer.messages == sizes[expected.message_id]
        assert answer.publish_time == expected.entry.publish_time
        assert answer.size == expected.received.size
    broker.expect_no_trace(topic)


def test_entries_are_found_by_time(broker: Broker, client: Any) -> None:
    topic = broker.create_topic()
    for number in range(6):
        write_batches(client, topic, [2 if number % 2 else 0])
        time.sleep(0.03)
        if number == 3:
            broker.roll_ledger(topic)
    rows = read_rows(broker, topic)
    times = sorted({row.entry.publish_time for row in rows})
    asked = [0, *times, *(found + 1 for found in times), int(time.time() * 1000) + 60_000]
    with connected(broker) as pool:
        answers = Probe(pool).first_entries_from_time([(topic, found) for found in asked])
    for moment, answer in zip(asked, answers, strict=True):
        expected = next((row for row in rows if row.entry.publish_time >= moment), None)
        if expected is None:
            # For a time after all messages, brokers answer with the end, or with the last message.
            assert answer is None or (
                isinstance(answer, FoundEntry) and answer.start >= before(rows[-2])
            )
        else:
            assert isinstance(answer, FoundEntry)
            assert answer.start == before(expected)
    broker.expect_no_trace(topic)


@pytest.mark.fault(33)
def test_what_the_broker_stamps_on_entries_is_read(
    tuned_broker: Broker, official_client: Connect
) -> None:
    topic = tuned_broker.create_topic()
    started = int(time.time() * 1000)
    write_batches(official_client(tuned_broker.service_url), topic, [4, 0, 1, 3])
    with clustered(tuned_broker) as context, PartitionedProducer(context, topic) as writer:
        writer.send(MessageFields(b"ours"))
    entries = read_entries(tuned_broker, topic)
    stamps = [entry.broker_entry_metadata for entry in entries]
    # The index of an entry is that of its last message.
    assert [stamp.index for stamp in stamps if stamp is not None] == [3, 4, 5, 8, 9]
    ended = int(time.time() * 1000)
    for stamp in stamps:
        assert stamp is not None
        assert started <= stamp.broker_timestamp <= ended
    with connected(tuned_broker) as pool:
        place = Position(entries[3].ledger_id, entries[3].entry_id, 1)
        found = Probe(pool).first_entry_at(topic, place)
        assert found is not None
        assert (found.index, found.messages, found.start) == (8, 3, place)
        stamp = stamps[3]
        assert stamp is not None
        assert found.broker_time == stamp.broker_timestamp
        by_time = Probe(pool).first_entry_from_time(topic, started)
        assert by_time is not None
        assert by_time.index == 3


@pytest.mark.fault(60)
@pytest.mark.parametrize("batching", [True, False])
def test_the_compacted_view_is_read_to_its_end(broker: Broker, client: Any, batching: bool) -> None:
    topic = broker.create_topic()
    options = ProducerOptions(batching_enabled=batching, batching_max_messages=10)
    with clustered(broker) as context, PartitionedProducer(context, topic, options) as writer:
        for number in range(100):
            writer.send(MessageFields(b"%d" % number, f"k{number % 7}"))
        # Tombstones: a null value, and for compaction an empty one too.
        writer.send(MessageFields(None, "k0"))
        writer.send(MessageFields(b"", "k1"))
    raw = read_rows(broker, topic)
    assert len(raw) == 102
    broker.compact(topic)
    assert len(read_rows(broker, topic)) == 102
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    theirs = []
    while reader.has_message_available():
        theirs.append(reader.read_next(60_000))
    reader.close()
    rows = read_rows(broker, topic, read_compacted=True)
    # The official client shows messages compacted out of a batch as empty ones.
    assert [row.content for row in rows] == [
        official_content(message) for message in theirs if message.partition_key()
    ]
    kept = {row.content.key: row.content.payload for row in rows if row.content.payload}
    assert kept == {f"k{number % 7}": b"%d" % number for number in range(93, 98)}
    # If compaction has removed the end, the reader does not wait for it.
    middle = before(raw[50])
    started = time.monotonic()
    assert read_rows(broker, topic, end=middle, read_compacted=True) == []
    assert read_rows(broker, topic, start=middle, read_compacted=True)[0].content.payload == b"93"
    assert time.monotonic() - started < 15
