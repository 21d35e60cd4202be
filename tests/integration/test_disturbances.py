"""Brokers restart, hang and unload topics: nothing is lost, repeated or out of order.

The brokers of these tests deduplicate, so every message arrives exactly once.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from pulsar_spark.engine.consumers.probe import Probe
from pulsar_spark.engine.consumers.reader import EntryReader
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.options import ProducerOptions, ReaderOptions
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.protocol.outgoing_messages import MessageFields
from tests.integration.brokers import Broker
from tests.integration.messages import (
    clustered,
    connected,
    end_of,
    official_read,
    read_rows,
    rows_of,
)
from tests.support.asking import connection_of
from tests.support.waiting import wait_until

Connect = Callable[..., Any]

BATCH = 20
# So small that most of the topic is still at the broker when a reader is interrupted.
QUEUE = 200

WAIT = 120.0


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


class Pace:
    """Pauses between entries, until `hurry` is called.

    So reading and writing last long enough to be disturbed, on any machine.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._hurried = threading.Event()

    def pause(self) -> None:
        """Wait before the next entry."""
        self._hurried.wait(self._seconds)

    def hurry(self) -> None:
        """Make no more pauses."""
        self._hurried.set()


AT_ONCE = Pace(0)


def write_numbered(
    broker: Broker, topic: str, count: int, pace: Pace = AT_ONCE, **options: Any
) -> int:
    """Write numbers in batches, with pauses between them; return the number of reconnects."""
    settings = ProducerOptions(batching_max_messages=BATCH, send_timeout=WAIT)
    with (
        clustered(broker, **options) as context,
        PartitionedProducer(context, topic, settings, partitions=0) as writer,
    ):
        for number in range(count):
            writer.send(MessageFields(b"%d" % number))
            if number % BATCH == 0:
                pace.pause()
        writer.flush(WAIT)
        assert writer.counts.acknowledged == count
        return writer.counts.reconnects


def read_slowly(broker: Broker, topic: str, pace: Pace, **options: Any) -> list[bytes | None]:
    """Read all that a topic holds, with a pause after each entry."""
    end = end_of(broker, topic)
    with connected(broker, **options) as pool:
        settings = ReaderOptions(receiver_queue_size=QUEUE, auto_scale=False)
        with EntryReader(pool, topic, EARLIEST_POSITION, end, settings) as reader:
            found: list[bytes | None] = []
            for entry in reader:
                found += [row.content.payload for row in rows_of(entry)]
                pace.pause()
            return found


def follow(broker: Broker, topic: str, count: int, **options: Any) -> list[bytes | None]:
    """Read a topic's new messages, until there were `count`."""
    deadline = time.monotonic() + WAIT
    found: list[bytes | None] = []
    with (
        connected(broker, **options) as pool,
        EntryReader(pool, topic, EARLIEST_POSITION) as reader,
    ):
        while len(found) < count:
            assert time.monotonic() < deadline, f"only {len(found)} of {count} messages came"
            entry = reader.next_entry(1.0)
            if entry is not None:
                found += [row.content.payload for row in rows_of(entry)]
    return found


@contextmanager
def in_background(*works: Callable[[], Any]) -> Iterator[list[Future[Any]]]:
    """Run functions on threads; all must succeed."""
    with ThreadPoolExecutor(len(works)) as threads:
        futures = [threads.submit(work) for work in works]
        yield futures
        for future in futures:
            future.result(WAIT)


@contextmanager
def traffic(
    broker: Broker, official_client: Connect, messages: int, **options: Any
) -> Iterator[Callable[[], bool]]:
    """Read, write and follow topics while the block runs; at the end all results must be exact.

    Yields a function that tells whether reader and writer are still running.
    """
    old, new, pace = broker.create_topic(), broker.create_topic(), Pace(0.1)
    write_numbered(broker, old, messages)
    with in_background(
        lambda: read_slowly(broker, old, pace, **options),
        lambda: write_numbered(broker, new, messages, pace, **options),
        lambda: follow(broker, new, messages, **options),
    ) as (read, written, followed):
        try:
            wait_until(lambda: broker.producers(new) and broker.subscriptions(old), "started")
            time.sleep(0.3)
            yield lambda: not read.done() and not written.done()
        finally:
            pace.hurry()
    assert read.result() == numbered(messages)
    assert followed.result() == numbered(messages)
    assert [row.content.payload for row in read_rows(broker, new)] == numbered(messages)
    client = official_client(broker.service_url)
    assert [found.data() for found in official_read(client, new, messages)] == numbered(messages)
    for topic in (old, new):
        broker.expect_no_trace(topic)


@pytest.mark.slow
@pytest.mark.fault(11, 12)
@pytest.mark.parametrize("kill", [False, True])
def test_a_broker_restarts_while_all_goes_on(
    tuned_broker: Broker, official_client: Connect, kill: bool
) -> None:
    with traffic(tuned_broker, official_client, 6_000) as going:
        assert going()
        tuned_broker.restart(kill=kill)


@pytest.mark.fault(14)
def test_topics_are_unloaded_all_the_time(tuned_broker: Broker, official_client: Connect) -> None:
    messages, pace = 20_000, Pace(0.02)
    old, new = tuned_broker.create_topic(), tuned_broker.create_topic()
    write_numbered(tuned_broker, old, messages)
    unloads = 0
    with in_background(
        lambda: read_slowly(tuned_broker, old, pace),
        lambda: write_numbered(tuned_broker, new, messages, pace),
        lambda: follow(tuned_broker, new, messages),
    ) as (read, written, followed):
        # No more than these: a slow broker is not done with one unload when the next one comes.
        while unloads < 30 and not (read.done() and written.done()):
            time.sleep(0.3)
            tuned_broker.unload(old)
            tuned_broker.unload(new)
            unloads += 1
            if unloads == 10:
                pace.hurry()
    assert unloads >= 5
    assert read.result() == numbered(messages)
    assert followed.result() == numbered(messages)
    assert written.result() >= 1
    client = official_client(tuned_broker.service_url)
    assert [found.data() for found in official_read(client, new, messages)] == numbered(messages)


@pytest.mark.fault(5)
def test_a_broker_that_hangs_is_noticed_and_survived(
    tuned_broker: Broker, official_client: Connect
) -> None:
    options = {"keep_alive_interval": 1.0, "connection_timeout": 2.0}
    with traffic(tuned_broker, official_client, 6_000, **options) as going:
        assert going()
        tuned_broker.pause()
        try:
            time.sleep(3.5)
        finally:
            tuned_broker.resume()


@pytest.mark.fault(5)
def test_a_writer_leaves_a_broker_that_hangs(tuned_broker: Broker) -> None:
    topic = tuned_broker.create_topic()
    options = {"keep_alive_interval": 0.5, "connection_timeout": 1.0}
    with (
        clustered(tuned_broker, **options) as context,
        PartitionedProducer(context, topic) as writer,
    ):
        writer.open()
        (producer,) = writer.producers
        tuned_broker.pause()
        try:
            writer.send(MessageFields(b"into the void"))
            writer.flush_batches()
            wait_until(lambda: not producer.is_connected, "noticed")
        finally:
            tuned_broker.resume()
        writer.flush(WAIT)
        assert writer.counts.reconnects >= 1
    assert [row.content.payload for row in read_rows(tuned_broker, topic)] == [b"into the void"]


@pytest.mark.fault(8, 9)
def test_callers_that_pause_keep_their_connections(tuned_broker: Broker) -> None:
    topic = tuned_broker.create_topic()
    write_numbered(tuned_broker, topic, 5_000)
    end = end_of(tuned_broker, topic)
    settings = ReaderOptions(receiver_queue_size=QUEUE, auto_scale=False)
    with (
        clustered(tuned_broker, keep_alive_interval=2.0) as context,
        EntryReader(context.pool, topic, EARLIEST_POSITION, end, settings) as reader,
        PartitionedProducer(context, topic) as writer,
    ):
        found = [reader.next_entry() for _ in range(3)]
        writer.send(MessageFields(b"before"))
        writer.flush()
        connection = connection_of(Lookup(context.pool), topic)
        before = tuned_broker.subscriptions(topic)
        # The broker sends PING every two seconds and does not wait much longer for the answer.
        time.sleep(5.0)
        assert tuned_broker.subscriptions(topic) == before
        found += reader
        writer.send(MessageFields(b"after"))
        writer.flush()
        assert writer.counts.reconnects == 0
        assert connection_of(Lookup(context.pool), topic) is connection
        rows = [row for entry in found if entry is not None for row in rows_of(entry)]
        assert [row.content.payload for row in rows] == numbered(5_000)


def ask(broker: Broker, topic: str, enough: Callable[[], bool]) -> int:
    """Ask for a topic's end and read it, again and again; the answers must not change."""
    expected = [row.content.payload for row in read_rows(broker, topic)]
    rounds = 0
    with connected(broker) as pool:
        lookup, probe = Lookup(pool), Probe(pool)
        last = lookup.last_message_id(topic)
        first = probe.first_entry_at(topic, EARLIEST_POSITION)
        assert first is not None
        while not enough():
            assert lookup.last_message_id(topic) == last
            assert probe.first_entry_at(topic, EARLIEST_POSITION) == first
            assert probe.first_entry_from_time(topic, first.publish_time) == first
            # A consumer that subscribes while the broker unloads the topic may see it empty.
            with EntryReader(pool, topic, EARLIEST_POSITION, Position.after(last)) as reader:
                found = [row.content.payload for entry in reader for row in rows_of(entry)]
            assert found == expected
            rounds += 1
            time.sleep(0.02)
    return rounds


@pytest.mark.fault(14)
def test_questions_are_answered_through_unloads(tuned_broker: Broker) -> None:
    topic = tuned_broker.create_topic()
    write_numbered(tuned_broker, topic, 200)
    began, stop = threading.Event(), threading.Event()

    def enough() -> bool:
        is_over = stop.is_set()
        began.set()
        return is_over

    with in_background(lambda: ask(tuned_broker, topic, enough)) as (asked,):
        try:
            # What the answers are compared with was asked before.
            assert began.wait(WAIT)
            for _ in range(20):
                time.sleep(0.15)
                tuned_broker.unload(topic)
        finally:
            stop.set()
    assert asked.result() > 0, "not one round of questions was answered"
    tuned_broker.expect_no_trace(topic)


@pytest.mark.slow
@pytest.mark.fault(10, 11)
def test_many_readers_writers_and_questions_come_back_after_a_restart(
    tuned_broker: Broker,
) -> None:
    partitions = 24
    topic, still = tuned_broker.create_topic(partitions=partitions), tuned_broker.create_topic()
    write_numbered(tuned_broker, still, 200)
    stop = threading.Event()
    settings = ProducerOptions(send_timeout=WAIT)
    got: list[list[bytes | None]] = [[] for _ in range(partitions)]
    with (
        clustered(tuned_broker) as context,
        PartitionedProducer(context, topic, settings) as writer,
        in_background(lambda: ask(tuned_broker, still, stop.is_set)) as (asked,),
    ):
        names = tuned_broker.partitions_of(topic, partitions)
        readers = [EntryReader(context.pool, name, EARLIEST_POSITION) for name in names]

        def drain() -> int:
            for reader, own in zip(readers, got, strict=True):
                while (entry := reader.next_entry(0.01)) is not None:
                    own += [row.content.payload for row in rows_of(entry)]
            return sum(map(len, got))

        try:
            for number in range(1, 601):
                writer.send(MessageFields(b"%d" % number, f"k{number % 200}"))
                if number % 200 == 0:
                    writer.flush(WAIT)
                    wait_until(lambda number=number: drain() == number, "all read", WAIT)  # type: ignore[misc]
                if number == 200:
                    tuned_broker.restart()
            rounds_before = asked.done()
        finally:
            stop.set()
            for reader in readers:
                reader.close()
        assert not rounds_before
    # Each partition is in its writer's order.
    numbers = [[int(found or b"") for found in own] for own in got]
    assert all(own == sorted(own) for own in numbers)
    assert sorted(itertools.chain(*numbers)) == list(range(1, 601))
    tuned_broker.expect_no_trace(still)
