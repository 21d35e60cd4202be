"""A stream's source on both brokers: every message once, whatever happens to topics and brokers."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from pulsar_spark.client import consumer
from pulsar_spark.client.backoff import Deadline
from pulsar_spark.client.consumer import TopicEnd
from pulsar_spark.client.pipeline import Job, retrying, run
from pulsar_spark.client.topic_writer import TopicWriter
from pulsar_spark.errors import ConsumerBusy, DataLossError
from pulsar_spark.protocol.batches import MessageFields
from pulsar_spark.protocol.message_id import Position
from pulsar_spark.spark.stream_offsets import StreamOffset
from pulsar_spark.spark.stream_options import Caps
from tests.integration.brokers import Broker, Real, as_real, wait_until
from tests.integration.java_peer import JavaContent, JavaPeer
from tests.integration.messages import clustered, read_rows
from tests.integration.streams import (
    Feed,
    backlog,
    feeding,
    in_order,
    remove_subscription,
    streaming,
)
from tests.spark.streams import NO_CAPS, Make, Query


@pytest.fixture
def make(broker: Broker) -> Iterator[Make]:
    with streaming(broker) as made:
        yield made


@pytest.fixture
def feed(broker: Broker) -> Iterator[Feed]:
    with feeding(broker) as made:
        yield made


@pytest.fixture
def tuned_make(tuned_broker: Broker) -> Iterator[Make]:
    with streaming(tuned_broker) as made:
        yield made


@pytest.fixture
def tuned_feed(tuned_broker: Broker) -> Iterator[Feed]:
    with feeding(tuned_broker) as made:
        yield made


def drained(broker: Broker, query: Query, *topics: str) -> None:
    """Let an idle query run until nothing of topics is left unacknowledged."""
    assert query.batch() == []
    name = query.start().subscription
    for topic in topics:
        wait_until(lambda t=topic: backlog(broker, t, name) == 0, f"{topic} has a backlog")  # type: ignore[misc]


@pytest.mark.fault(62)
def test_all_of_partitions_is_read_once_and_acknowledged(
    broker: Broker, make: Make, feed: Feed
) -> None:
    topic = broker.create_topic(partitions=3)
    partitions = broker.partitions_of(topic, 3)
    expected = [feed(partition, [0, 5, 1, 40]) for partition in partitions]
    query = make(topic, startingOffsets="earliest")
    assert query.batch() == [value for sent in expected for value in sent]
    drained(broker, query, *partitions)
    new = feed(partitions[1], [3, 0])
    query = query.restarted()
    assert query.batch() == new
    drained(broker, query, *partitions)


def test_a_start_inside_a_batch_is_exact(broker: Broker, make: Make, feed: Feed) -> None:
    topic = broker.create_topic()
    payloads = feed(topic, [10, 10])
    whole = make(topic, startingOffsets="earliest")
    end = whole.source.latest(whole.start(), NO_CAPS).positions[topic]
    first = Position(end.ledger_id, end.entry_id - 2)
    offset = f'{{"{topic}": "{first.ledger_id}:{first.entry_id}:-1:7"}}'
    query = make(topic, startingOffsets=offset)
    assert query.batch() == payloads[7:]
    drained(broker, query, topic)


def test_latest_begins_behind_what_is_there_and_loses_nothing_from_then_on(
    broker: Broker, make: Make, feed: Feed
) -> None:
    topic = broker.create_topic(partitions=2)
    feed(broker.partitions_of(topic, 2)[0], [5])
    query = make(topic)
    start = query.source.initial()
    new = feed(broker.partitions_of(topic, 2)[0], [5]) + feed(
        broker.partitions_of(topic, 2)[1], [5]
    )
    query.source.close()
    # The first batch was decided on, and nothing but its end was written down.
    end = query.source.latest(start, NO_CAPS)
    again = make(topic, offset=StreamOffset.from_json(end.to_json()))
    query.source.close()
    assert again.read(again.source.initial(), end) == new


@pytest.mark.fault(63)
def test_empty_topics_have_no_rows_and_take_no_time(broker: Broker, make: Make, feed: Feed) -> None:
    topic = broker.create_topic()
    query = make(topic, startingOffsets="earliest")
    started = time.monotonic()
    assert query.batch() == []
    assert query.batch() == []
    assert time.monotonic() - started < 15
    assert query.restarted().batch() == []
    new = feed(topic, [0])
    assert query.batch() == new
    broker.trim(topic)
    assert query.batch() == []
    new = feed(topic, [2])
    assert query.batch() == new
    drained(broker, query, topic)


@pytest.mark.fault(58, 61)
def test_ledgers_that_were_read_go_without_an_alarm(broker: Broker, make: Make, feed: Feed) -> None:
    topic = broker.create_topic()
    query = make(topic, startingOffsets="earliest")
    for number in range(4):
        new = feed(topic, [3, 0])
        assert query.batch() == new
        assert query.batch() == []
        if number % 2:
            broker.trim(topic)
        else:
            broker.roll_ledger(topic)
        assert query.batch() == []
        query = query.restarted()
    drained(broker, query, topic)


@pytest.mark.fault(58)
def test_what_is_trimmed_unread_is_data_loss(
    broker: Broker, make: Make, feed: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.create_topic()
    strict, loose = (
        make(topic, startingOffsets="earliest", failOnDataLoss=value) for value in ("true", "false")
    )
    feed(topic, [3])
    for query in (strict, loose):
        assert len(query.batch()) == 3
    feed(topic, [3])
    # Seen, and not yet read.
    for query in (strict, loose):
        query.source.latest(query.start(), Caps(1))
    broker.trim(topic)
    kept = feed(topic, [2, 2])
    with pytest.raises(DataLossError, match="are gone"):
        strict.batch()
    assert loose.batch() == kept
    assert "data was lost" in caplog.text
    drained(broker, loose, topic)


@pytest.mark.fault(57)
def test_new_partitions_are_read_from_their_beginning(
    broker: Broker, make: Make, feed: Feed
) -> None:
    topic = broker.create_topic(partitions=3)
    query = make(topic)
    query.batch()
    broker.add_partitions(topic, 6)
    new = feed(broker.partitions_of(topic, 6)[5], [4])
    assert query.batch() == new
    drained(broker, query, *broker.partitions_of(topic, 6))


@pytest.mark.fault(54)
def test_a_deleted_topic_is_data_loss(broker: Broker, make: Make, feed: Feed) -> None:
    one, two = (broker.create_topic() for _ in range(2))
    options = {"topics": f"{one},{two}", "startingOffsets": "earliest"}
    strict, loose = (make(None, failOnDataLoss=value, **options) for value in ("true", "false"))
    for topic in (one, two):
        feed(topic, [3])
    for query in (strict, loose):
        assert len(query.batch()) == 6
    broker.delete_topic(one)
    with pytest.raises(DataLossError, match="is gone"):
        strict.batch()
    new = feed(two, [2])
    assert loose.batch() == new
    assert set(loose.start().positions) == {two}


@pytest.mark.fault(55)
def test_a_topic_that_is_made_anew_is_data_loss_and_its_messages_are_read_once(
    broker: Broker, make: Make, feed: Feed
) -> None:
    topic = broker.create_topic()
    strict, loose = (
        make(topic, startingOffsets="earliest", failOnDataLoss=value) for value in ("true", "false")
    )
    feed(topic, [3])
    for query in (strict, loose):
        assert len(query.batch()) == 3
        query.source.close()
    broker.delete_topic(topic)
    broker.create_topic(topic)
    new = feed(topic, [2, 0])
    with pytest.raises(DataLossError, match=r"are gone|rolled back"):
        strict.restarted().batch()
    strict.source.close()
    loose = loose.restarted()
    assert loose.batch() == new
    assert loose.batch() == []
    new = feed(topic, [2])
    assert loose.batch() == new
    drained(broker, loose, topic)


@pytest.mark.fault(56)
def test_a_terminated_topic_is_read_to_its_end(broker: Broker, make: Make, feed: Feed) -> None:
    topic = broker.create_topic()
    payloads = feed(topic, [3, 0, 2])
    query = make(topic, startingOffsets="earliest")
    broker.terminate(topic)
    assert query.batch() == payloads
    drained(broker, query, topic)


@pytest.mark.fault(70)
def test_a_name_in_use_is_a_clear_error(
    broker: Broker, make: Make, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "BUSY_SECONDS", 1.5)
    topic = broker.create_topic()
    feed(topic, [3])
    first = make(topic, startingOffsets="earliest", subscription="mine")
    assert len(first.batch()) == 3
    with pytest.raises(ConsumerBusy, match="each its own name"):
        make(topic, subscription="mine").batch()
    assert first.batch() == []


@pytest.mark.fault(73)
def test_a_subscription_that_was_removed_is_made_again_where_the_query_stands(
    broker: Broker, make: Make, feed: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.create_topic()
    feed(topic, [3, 3])
    query = make(topic, startingOffsets="earliest", subscription="mine")
    assert len(query.batch()) == 6
    drained(broker, query, topic)
    # While it runs.
    remove_subscription(broker, topic, "mine")
    new = feed(topic, [4])
    assert query.batch() == new
    drained(broker, query, topic)
    # While it does not.
    query.source.close()
    remove_subscription(broker, topic, "mine")
    assert backlog(broker, topic, "mine") == -1
    new = feed(topic, [4, 0])
    query = query.restarted()
    end = query.source.latest(query.start(), NO_CAPS)
    assert "it is set to" in caplog.text
    wait_until(lambda: backlog(broker, topic, "mine") == 2, "what is unread is not held")
    assert query.read(query.start(), end) == new


@pytest.mark.fault(59)
def test_a_durable_subscription_keeps_what_nobody_else_would(
    broker: Broker, make: Make, feed: Feed
) -> None:
    if isinstance(broker, Real):
        namespace = f"public/gone-{time.time_ns()}"
        broker.own.admin("PUT", f"namespaces/{namespace}")
    else:
        namespace = broker.create_namespace()
    topic = broker.create_topic(broker.unique_topic(namespace=namespace))
    query = make(topic)
    query.batch()
    query.source.close()
    new = feed(topic, [3, 0])
    for _ in range(2):
        broker.unload(topic)
        new += feed(topic, [1])
    query = query.restarted()
    assert query.batch() == new
    drained(broker, query, topic)


@pytest.mark.fault(14)
def test_no_consumer_that_came_while_its_topic_was_let_go_is_believed(
    broker: Broker, feed: Feed
) -> None:
    topics = [broker.create_topic() for _ in range(2)]
    for topic in topics:
        feed(topic, [0, 0, 0])
    stop = threading.Event()

    def unload(topic: str) -> None:
        while not stop.wait(0.2):
            # What it meets while it unloads all the time is its own affair.
            with contextlib.suppress(Exception):
                broker.unload(topic)

    threads = [threading.Thread(target=unload, args=(topic,)) for topic in topics]
    for thread in threads:
        thread.start()
    found: list[int] = []
    try:
        with clustered(broker) as cluster:
            for number in range(100):
                one = consumer.DurableConsumer(cluster, topics[number % 2], "s", consumer.EARLIEST)
                found.append(run(partial(_end, one, Position(0, 1)), 100.0).last.entry_id)
                one.close()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert found == [2] * 100


def _end(one: consumer.DurableConsumer, known: Position, deadline: Deadline) -> Job[TopicEnd]:
    return retrying(lambda to: one.end_job(to, known), deadline)


def test_caps_hold_over_mixed_entries(broker: Broker, make: Make, feed: Feed) -> None:
    topic = broker.create_topic(partitions=2)
    rng = random.Random(7)
    expected = []
    for partition in broker.partitions_of(topic, 2):
        expected += feed(partition, [rng.choice([0, 0, 0, 1000]) for _ in range(60)])
    query = make(topic, startingOffsets="earliest")
    sizes, values = [], []
    while batch := query.batch(Caps(3000)):
        sizes.append(len(batch))
        values += batch
    assert sorted(values) == sorted(expected)
    assert max(sizes) <= 3000
    assert len(sizes) < len(expected) // 1000
    drained(broker, query, *broker.partitions_of(topic, 2))


def test_caps_are_exact_where_the_broker_stamps_an_index(
    tuned_broker: Broker, tuned_make: Make, tuned_feed: Feed
) -> None:
    topic = tuned_broker.create_topic()
    expected = tuned_feed(topic, [100, 0, 3, 50] * 30)
    query = tuned_make(topic, startingOffsets="earliest")
    sizes, values = [], []
    while batch := query.batch(Caps(777)):
        sizes.append(len(batch))
        values += batch
    assert values == expected
    assert sizes[:-1] == [777] * (len(sizes) - 1)
    drained(tuned_broker, query, topic)


@pytest.mark.fault(71, 73)
def test_a_stream_outlives_brokers_that_come_and_go(
    tuned_broker: Broker, tuned_make: Make, tuned_feed: Feed
) -> None:
    topic = tuned_broker.create_topic(partitions=2)
    partitions = tuned_broker.partitions_of(topic, 2)
    query = tuned_make(topic, startingOffsets="earliest")
    expected: dict[str, list[bytes]] = {partition: [] for partition in partitions}
    values: list[bytes] = []
    for number in range(6):
        for partition in partitions:
            expected[partition] += tuned_feed(partition, [5, 0])
        if number == 2:
            tuned_broker.restart()
        elif number == 4:
            query = query.restarted()
        elif number % 2:
            tuned_broker.unload(topic)
        values += query.batch()
    values += query.batch()
    assert sorted(values) == sorted(value for sent in expected.values() for value in sent)
    for payloads in expected.values():
        assert in_order([value for value in values if value in set(payloads)])
    drained(tuned_broker, query, *partitions)


@pytest.mark.fault(74)
def test_a_fixed_end_is_reached_while_messages_keep_coming(
    broker: Broker, make: Make, feed: Feed
) -> None:
    topic = broker.create_topic()
    expected = feed(topic, [0] * 50)
    query = make(topic, startingOffsets="earliest")
    query.source.fix_end()
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            feed(topic, [0])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        values: list[bytes] = []
        while batch := query.batch(Caps(20)):
            values += batch
    finally:
        stop.set()
        writer.join()
    assert values == expected


@pytest.mark.fault(76)
def test_two_hundred_partitions_without_news_cost_less_than_a_second(
    broker: Broker, make: Make
) -> None:
    topic = broker.create_topic(partitions=200)
    query = make(topic)
    query.batch()
    times = []
    for _ in range(5):
        started = time.monotonic()
        assert query.batch() == []
        times.append(time.monotonic() - started)
    # The best of them: the machine may be busy with something else.
    assert min(times) < 1.0


# --- what only a real broker does -----------------------------------------------------------------


@pytest.fixture(scope="module")
def java(request: pytest.FixtureRequest) -> Iterator[JavaPeer]:
    peer = JavaPeer(request.getfixturevalue("_distribution"))
    yield peer
    peer.close()


@pytest.mark.fault(61)
def test_transactions_end_batches_and_hold_them_back(
    broker: Broker, make: Make, request: pytest.FixtureRequest
) -> None:
    real = as_real(broker)
    java: JavaPeer = request.getfixturevalue("java")
    topic = real.create_topic()
    query = make(topic, startingOffsets="earliest")
    assert query.batch() == []
    number = 0
    for fate in ("commit", "abort", "plain", "abort", "commit", "abort"):
        sent = [JavaContent(b"%d" % (number + index)) for index in range(5)]
        number += 5
        java.write(real, topic, sent, transaction=None if fate == "plain" else fate)
        expected = [] if fate == "abort" else [content.value for content in sent]
        assert query.batch() == expected
        assert query.batch() == []
        if fate == "abort":
            # Nothing but aborted messages can be left, and ledgers that were read may go.
            real.unload(topic)
            query = query.restarted()
            assert query.batch() == []
    java.write(real, topic, [JavaContent(b"open")], transaction="leave")
    assert query.batch() == []


@pytest.mark.fault(60)
def test_a_compacted_topic_is_read_as_it_is_and_compacted(
    broker: Broker, make: Make, feed: Feed
) -> None:
    real = as_real(broker)
    topic = real.create_topic()
    raw, compacted = (
        make(topic, startingOffsets="earliest", readCompacted=value) for value in ("false", "true")
    )
    assert raw.batch() == compacted.batch() == []
    with clustered(real) as cluster, TopicWriter(cluster, topic) as writer:
        for number in range(30):
            writer.send(MessageFields(b"%d" % number, f"k{number % 3}"))
            writer.flush()
    real.compact(topic)
    assert raw.batch() == [b"%d" % number for number in range(30)]
    assert compacted.batch() == [b"27", b"28", b"29"]
    with clustered(real) as cluster, TopicWriter(cluster, topic) as writer:
        writer.send(MessageFields(b"30", "k1"))
        writer.flush()
        start = compacted.start()
        end = compacted.source.latest(start, NO_CAPS)
        for key, value in (("k1", b"31"), ("k0", None)):
            writer.send(MessageFields(value, key))
            writer.flush()
    real.compact(topic)

    def view() -> list[bytes | None]:
        return [row.content.payload for row in read_rows(real, topic, read_compacted=True)]

    wait_until(lambda: view() == [b"29", b"31", None], "it is not compacted")
    assert raw.batch() == [b"30", b"31", None]
    # The end of the range is a message that is gone.
    assert compacted.read(start, end) == []
    compacted.committed = end
    # This broker keeps the tombstone.
    assert compacted.batch() == [b"31", None]
    assert raw.batch() == compacted.batch() == []
