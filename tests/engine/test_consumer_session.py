from __future__ import annotations

import time

import pytest

from pulsar_spark.engine import consumer_session
from pulsar_spark.engine.consumer_session import TemporaryConsumer, unique_name
from pulsar_spark.engine.context import ConnectionPool
from pulsar_spark.engine.lookup import Lookup
from pulsar_spark.engine.retry import Deadline
from pulsar_spark.errors import ConnectionLost, TopicNotFound
from pulsar_spark.protocol.message_id import EARLIEST_POSITION
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.scripted_broker import Entry, ScriptedBroker, T
from tests.engine.test_connection import connected
from tests.engine.topics import add_batch, quick
from tests.support.waiting import wait_until

TOPIC = "persistent://public/default/t"


def test_names_are_unique() -> None:
    assert len({unique_name("x") for _ in range(100)}) == 100


def test_it_is_sent_single_entries_and_leaves_nothing_behind() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        for number in range(3):
            add_batch(broker, TOPIC, [b"%d" % number])
        connection = Lookup(pool).connection(TOPIC)
        with TemporaryConsumer(connection, TOPIC) as consumer:
            consumer.subscribe(EARLIEST_POSITION, Deadline(5)).result(5)
            assert list(broker.subscriptions(TOPIC)) == [consumer.name]
            assert not broker.subscriptions(TOPIC)[consumer.name].durable
            last = consumer.last_message_id(Deadline(5)).result(5)
            assert last.last_message_id.entryId == 2
            assert consumer.stats(Deadline(5)).result(5).msgBacklog == 3
            for number in range(3):
                entry = consumer.next_entry(1).result(5)
                assert entry.command.message_id.entryId == number
        wait_until(lambda: not broker.subscriptions(TOPIC))


def test_a_refusal_leaves_no_consumer_to_close() -> None:
    with (
        EmbeddedBroker(auto_create=False) as broker,
        ConnectionPool(quick(broker)) as pool,
        TemporaryConsumer(pool.service(), TOPIC) as consumer,
    ):
        answer = consumer.subscribe(EARLIEST_POSITION, Deadline(5))
        assert isinstance(answer.exception(5), TopicNotFound)
        consumer.close()
        assert broker.faults.seen("CLOSE_CONSUMER") == 0


@pytest.mark.fault(25)
def test_after_a_timeout_the_consumer_is_closed_all_the_same() -> None:
    with ScriptedBroker(lambda s, e: getattr(e, "kind", 0) == T.SUBSCRIBE) as broker:
        connection = connected(broker)
        with TemporaryConsumer(connection, TOPIC) as consumer:
            answer = consumer.subscribe(EARLIEST_POSITION, Deadline(0.05))
            assert answer.exception(5) is not None
        wait_until(lambda: len(broker.commands(T.CLOSE_CONSUMER)) == 1)
        connection.close()


def test_entries_beyond_the_permits_are_kept_for_later() -> None:
    with ScriptedBroker() as broker:
        connection = connected(broker)
        with TemporaryConsumer(connection, TOPIC) as consumer:
            consumer.subscribe(EARLIEST_POSITION, Deadline(5)).result(5)
            (subscribe,) = broker.commands(T.SUBSCRIBE)
            first = consumer.next_entry(1)
            for number in range(3):
                broker.sessions[0].send_entry(subscribe.consumer_id, Entry(1, number, [b"x"]))
            assert first.result(5).command.message_id.entryId == 0
            consumer.last_message_id(Deadline(5)).result(5)
            assert consumer.next_entry(1).result(5).command.message_id.entryId == 1
            assert consumer.next_entry(1).result(5).command.message_id.entryId == 2
            assert len(broker.commands(T.FLOW)) == 1
        connection.close()


def test_a_flood_of_entries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_session, "_MAX_ENTRIES", 5)
    with ScriptedBroker() as broker:
        connection = connected(broker)
        with TemporaryConsumer(connection, TOPIC) as consumer:
            consumer.subscribe(EARLIEST_POSITION, Deadline(5)).result(5)
            (subscribe,) = broker.commands(T.SUBSCRIBE)
            for number in range(20):
                broker.sessions[0].send_entry(subscribe.consumer_id, Entry(1, number, [b"x"]))
            wait_until(lambda: consumer._error is not None)
            assert len(consumer._entries) == 6
        connection.close()


def test_whoever_waits_is_told_when_the_broker_closes_or_the_connection_breaks() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        for trouble in (lambda: broker.unload(TOPIC), broker.faults.disconnect):
            connection = Lookup(pool).connection(TOPIC)
            with TemporaryConsumer(connection, TOPIC) as consumer:
                consumer.subscribe(EARLIEST_POSITION, Deadline(5)).result(5)
                entry = consumer.next_entry(1)
                trouble()
                assert isinstance(entry.exception(5), ConnectionLost)
                assert isinstance(consumer.next_entry(1).exception(5), ConnectionLost)
            time.sleep(0.05)
