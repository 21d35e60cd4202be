"""A stream's source on both brokers: every message once, whatever topics and brokers do."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from functools import partial

import pytest

from pulsar_spark.client import PulsarClient
from pulsar_spark.engine import attaching
from pulsar_spark.engine.consumers import subscription
from pulsar_spark.engine.consumers.subscription import TopicEnd
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.operations import Operation, run
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.engine.retry import retrying
from pulsar_spark.errors import ConsumerBusy, DataLossError
from pulsar_spark.protocol.message_id import Position
from pulsar_spark.protocol.outgoing_messages import MessageFields
from pulsar_spark.spark.options.stream import Caps
from pulsar_spark.spark.streaming.stream_offset import StreamOffset
from tests.integration.brokers import Broker
from tests.integration.messages import clustered
from tests.integration.spark_io import official
from tests.integration.streams import (
    POINTS,
    Checkpoint,
    Feed,
    backlog,
    drained,
    in_order,
    remove_subscription,
    run_query,
)
from tests.spark.streams import NO_CAPS, Make
from tests.support.waiting import wait_until


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
    # The first batch was planned, and only its end was logged.
    end = query.source.latest(start, NO_CAPS)
    again = make(topic, offset=StreamOffset.from_json(end.to_json()))
    query.source.close()
    assert again.read(again.source.initial(), end) == new


@pytest.mark.fault(70)
def test_a_name_in_use_is_a_clear_error(
    broker: Broker, make: Make, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attaching, "BUSY_SECONDS", 1.5)
    topic = broker.create_topic()
    feed(topic, [3])
    first = make(topic, startingOffsets="earliest", subscription="mine")
    assert len(first.batch()) == 3
    with pytest.raises(ConsumerBusy, match="each its own name"):
        make(topic, subscription="mine").batch()
    assert first.batch() == []


@pytest.mark.fault(70)
def test_a_name_that_others_share_is_a_clear_error(
    broker: Broker, make: Make, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulsar = pytest.importorskip("pulsar", reason="pulsar-client is not installed")
    monkeypatch.setattr(attaching, "BUSY_SECONDS", 1.5)
    topic = broker.create_topic()
    feed(topic, [0] * 3)
    with official(broker) as client:
        other = client.subscribe(topic, "shared", consumer_type=pulsar.ConsumerType.Shared)
        with pytest.raises(ConsumerBusy, match="each its own name"):
            make(topic, subscription="shared", startingOffsets="earliest").batch()
        other.close()
    assert backlog(broker, topic, "shared") == 0


@pytest.mark.fault(71)
@pytest.mark.parametrize("point", POINTS)
def test_a_query_that_is_killed_anywhere_reads_every_message_once(
    broker: Broker, make: Make, feed: Feed, point: str
) -> None:
    topic = broker.create_topic(partitions=2)
    partitions = broker.partitions_of(topic, 2)
    checkpoint = Checkpoint()
    expected: list[bytes] = []
    options = {"startingOffsets": "earliest", "subscription": "mine"}
    for number in range(5):
        for partition in partitions:
            expected += feed(partition, [4, 0, 3])
        query = make(topic, **options)
        run_query(query, checkpoint, "" if number % 2 else point, Caps(9))
        query.source.close()
    query = make(topic, **options)
    while run_query(query, checkpoint, caps=Caps(9)):
        pass
    assert sorted(checkpoint.values) == sorted(expected)
    for partition in partitions:
        wait_until(partial(lambda at: backlog(broker, at, "mine") == 0, partition), "a backlog")


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
            # Errors of this thread, which unloads all the time, do not matter.
            with contextlib.suppress(Exception):
                broker.unload(topic)

    threads = [threading.Thread(target=unload, args=(topic,)) for topic in topics]
    for thread in threads:
        thread.start()
    found: list[int] = []
    try:
        with clustered(broker) as context:
            for number in range(100):
                one = subscription.HeldSubscription(
                    context, topics[number % 2], "s", subscription.EARLIEST
                )
                found.append(run(partial(_end, one, Position(0, 1)), 100.0).last.entry_id)
                one.close()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert found == [2] * 100


def _end(
    one: subscription.HeldSubscription, known: Position, deadline: Deadline
) -> Operation[TopicEnd]:
    one.quiet_end(known)
    return retrying(one.end_operation, deadline)


def test_a_time_to_start_from_is_exact(broker: Broker, make: Make, feed: Feed) -> None:
    topic = broker.create_topic(partitions=2)
    for partition in broker.partitions_of(topic, 2):
        feed(partition, [3, 0])
    time.sleep(0.05)
    now = int(time.time() * 1000)
    time.sleep(0.05)
    new = [value for at in broker.partitions_of(topic, 2) for value in feed(at, [2, 0])]
    query = make(topic, startingTime=str(now))
    start = query.start()
    query.source.close()
    # It is fixed at the query's first start.
    later = str(now + 3_600_000)
    query = make(topic, startingTime=later, offset=StreamOffset.from_json(start.to_json()))
    assert query.batch() == new


def test_bytes_are_capped(broker: Broker, make: Make) -> None:
    topic = broker.create_topic(partitions=2)
    partitions = broker.partitions_of(topic, 2)
    payload = b"x" * 1000
    with clustered(broker) as context:
        for partition in partitions:
            with PartitionedProducer(context, partition) as writer:
                for _ in range(60):
                    writer.send(MessageFields(payload))
                    writer.flush()
    query = make(topic, startingOffsets="earliest")
    sizes = []
    while batch := query.batch(Caps(max_bytes=22_000)):
        sizes.append(len(batch))
    assert sum(sizes) == 120
    # An entry is a few bytes larger than its payload.
    assert max(sizes) <= 22
    assert min(sizes[:-1]) >= 18
    drained(broker, query, *partitions)


def test_a_batch_waits_for_a_least_number_of_messages(
    broker: Broker, make: Make, feed: Feed
) -> None:
    topic = broker.create_topic(partitions=2)
    one, two = broker.partitions_of(topic, 2)
    query = make(topic, startingOffsets="earliest")
    query.batch()
    caps = Caps(min_messages=30, max_delay=60.0)
    new = feed(one, [7, 0, 0])
    assert query.batch(caps) == []
    new += feed(two, [25])
    assert query.batch(caps) == new
    late = feed(two, [3])
    assert query.batch(caps) == []
    assert query.batch(Caps(min_messages=30, max_delay=0.0)) == late
    drained(broker, query, one, two)


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


@pytest.mark.parametrize("cap", [3, 7, 40])
def test_caps_hold_where_transactions_leave_markers_and_aborted_messages(
    broker: Broker, make: Make, cap: int
) -> None:
    topic = broker.create_topic()
    expected: list[bytes] = []
    with PulsarClient(broker.service_url) as client, client.create_producer(topic) as producer:
        for number in range(12):
            txn = client.new_transaction()
            values = [b"%d-%d" % (number, index) for index in range(5)]
            for value in values:
                producer.send(value, txn=txn)
            if number % 3:
                txn.commit()
                expected += values
            else:
                txn.abort()
    query = make(topic, startingOffsets="earliest")
    started, found = time.monotonic(), []
    while batch := query.batch(Caps(cap)):
        assert len(batch) <= cap
        found += batch
    assert found == expected
    # Nothing waits for an entry that never comes: a wait is a second at least.
    assert time.monotonic() - started < 30


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


@pytest.mark.slow
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


@pytest.mark.fault(74)
def test_a_topic_that_is_lost_on_the_way_to_a_fixed_end_is_data_loss(
    broker: Broker, make: Make, feed: Feed
) -> None:
    one, two = (broker.create_topic() for _ in range(2))
    options = {"topics": f"{one},{two}", "startingOffsets": "earliest"}
    strict, loose = (make(None, failOnDataLoss=value, **options) for value in ("true", "false"))
    for topic in (one, two):
        feed(topic, [0] * 20)
    for query in (strict, loose):
        query.source.fix_end()
        assert len(query.batch(Caps(20))) == 20
    broker.delete_topic(one)
    with pytest.raises(DataLossError, match="is gone"):
        strict.batch(Caps(20))
    left = []
    while batch := loose.batch(Caps(20)):
        left += batch
    assert len(left) == 10


@pytest.mark.fault(76)
def test_two_hundred_partitions_without_news_cost_little_time(broker: Broker, make: Make) -> None:
    topic = broker.create_topic(partitions=200)
    query = make(topic)
    query.batch()
    times = []
    for _ in range(5):
        started = time.monotonic()
        assert query.batch() == []
        times.append(time.monotonic() - started)
    # A tenth of a second on an idle machine; here the best attempt counts, as tests share theirs.
    assert min(times) < 5.0
