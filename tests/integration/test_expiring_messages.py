"""Messages that expire (TTL) while readers are behind, on both brokers: they are read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pulsar_spark.client import InitialPosition, MessageId, PulsarClient, StringSchema
from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.consumers.probe import Probe
from pulsar_spark.engine.operations import value_of
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from tests.integration.brokers import Broker
from tests.integration.streams import Feed
from tests.spark.readings import Reading, behind
from tests.spark.streams import NO_CAPS, Make
from tests.support.waiting import wait_until

pulsar = pytest.importorskip("pulsar", reason="pulsar-client is not installed")

pytestmark = pytest.mark.fault(126)

WITNESS = "witness"


@pytest.fixture
def old(broker: Broker, client: PulsarClient) -> Callable[[str], None]:
    """Wait until all messages of a topic are old enough to expire."""

    def wait(topic: str) -> None:
        # Brokers compare whole seconds.
        time.sleep(2.1)

    return wait


def expire(broker: Broker, client: PulsarClient, topic: str) -> None:
    """Expire what is older than a second, for all subscriptions; return when it is done."""
    broker.expire(topic, None, 1)

    def witness_is_moved() -> bool:
        consumer = client.subscribe(topic, WITNESS, initial_position=InitialPosition.Earliest)
        try:
            consumer.receive(timeout_millis=300)
        except Exception:
            return True
        finally:
            consumer.close()
        broker.expire(topic, None, 1)
        return False

    wait_until(witness_is_moved, "the messages do not expire")


def witnessed(client: PulsarClient, topic: str) -> None:
    """Make the subscription whose backlog shows that the messages have expired."""
    client.subscribe(topic, WITNESS, initial_position=InitialPosition.Earliest).close()


def places_of(client: PulsarClient, topic: str, count: int) -> list[tuple[int, int]]:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(b"%d" % number) for number in range(count)]
    producer.close()
    return [(found.ledger_id(), found.entry_id()) for found in ids]


@pytest.mark.parametrize("more", [0, 5])
def test_a_task_reads_all_that_expires_meanwhile(
    broker: Broker,
    client: PulsarClient,
    old: Callable[[str], None],
    read: Callable[..., Reading],
    more: int,
) -> None:
    topic = broker.create_topic()
    witnessed(client, topic)
    places = places_of(client, topic, 40)
    broker.roll_ledger(topic)
    places += places_of(client, topic, 40)
    old(topic)
    readings = [
        read(topic, behind(places)),
        read(topic, behind(places), start=Position(*places[0])),
        read(topic, behind(places), start=Position(*places[7])),
        read(topic, Position(*places[60]), start=Position(*places[35])),
        read(topic, behind(places), compacted=True),
    ]
    found = [reading.take(3) for reading in readings]
    expire(broker, client, topic)
    # They are what follows for a cursor that was moved.
    places_of(client, topic, more)
    expected = [places, places, places[7:], places[35:60], places]
    for reading, begun, wanted in zip(readings, found, expected, strict=True):
        assert begun + reading.rest() == wanted


def test_a_micro_batch_reads_all_that_expires_meanwhile(
    broker: Broker, client: PulsarClient, old: Callable[[str], None], make: Make, feed: Feed
) -> None:
    topic = broker.create_topic()
    witnessed(client, topic)
    first = feed(topic, [10] * 20)
    query = make(topic, startingOffsets="earliest", **{"pulsar.reader.receiverQueueSize": "20"})
    start = query.start()
    end = query.source.latest(start, NO_CAPS)
    plan = query.source.plan(start, end)
    old(topic)
    expire(broker, client, topic)
    assert query.values(plan) == first
    query.committed = end
    second = feed(topic, [10] * 20)
    assert query.batch() == second


def test_questions_are_answered_rightly_while_messages_expire(
    broker: Broker, client: PulsarClient, old: Callable[[str], None]
) -> None:
    topic = broker.create_topic()
    places = places_of(client, topic, 30)
    old(topic)
    done = threading.Event()

    def go_on() -> None:
        while not done.wait(0.2):
            broker.expire(topic, None, 1)

    expiring = threading.Thread(target=go_on)
    expiring.start()
    try:
        with ConnectionPool(ClientOptions(broker.service_url)) as pool:
            probe = Probe(pool)
            for _ in range(5):
                asked = [(topic, Position(*place)) for place in places]
                found = probe.first_entries_at([*asked, (topic, EARLIEST_POSITION)])
                starts = [value_of(each) for each in found]
                assert [each and each.start[:2] for each in starts] == [*places, places[0]]
                end = probe.ledger_end(topic, places[0][0])
                assert end is not None
                assert end.last_entry_id == places[-1][1]
                since = probe.first_entry_from_time(topic, 0)
                assert since is not None
                assert since.start[:2] == places[0]
    finally:
        done.set()
        expiring.join()


@pytest.mark.parametrize("by", ["reader", "listener", "table view"])
def test_a_clients_reader_and_table_view_get_all_that_expires_meanwhile(
    broker: Broker, client: PulsarClient, old: Callable[[str], None], by: str
) -> None:
    topic = broker.create_topic()
    witnessed(client, topic)
    producer = client.create_producer(topic, schema=StringSchema(), batching_enabled=False)
    for number in range(60):
        producer.send(f"v{number}", partition_key=f"k{number}")
    old(topic)
    if by == "table view":
        with client.create_table_view(topic, schema=StringSchema()) as view:
            expire(broker, client, topic)
            producer.send("new", partition_key="new")
            wait_until(lambda: view.get("new") == "new", "the view does not follow")
            assert len(view) == 61
        return
    values: list[str] = []
    if by == "reader":
        with client.create_reader(
            topic, MessageId.earliest, schema=StringSchema(), receiver_queue_size=4
        ) as reader:
            values += [reader.read_next(60_000).value() for _ in range(3)]
            expire(broker, client, topic)
            producer.send("new", partition_key="new")
            values += [reader.read_next(60_000).value() for _ in range(58)]
    else:
        gate = threading.Semaphore(3)
        came = threading.Semaphore(0)

        def listen(_: object, message: Any) -> None:
            gate.acquire()
            values.append(message.value())
            came.release()

        with client.create_reader(
            topic,
            MessageId.earliest,
            schema=StringSchema(),
            reader_listener=listen,
            receiver_queue_size=4,
        ):
            for _ in range(3):
                assert came.acquire(timeout=60)
            expire(broker, client, topic)
            producer.send("new", partition_key="new")
            for _ in range(58):
                gate.release()
                assert came.acquire(timeout=60)
    assert values == [f"v{number}" for number in range(60)] + ["new"]


def test_chunked_messages_are_read_across_what_a_broker_passes_over(
    broker: Broker, client: PulsarClient, old: Callable[[str], None]
) -> None:
    topic = broker.create_topic()
    witnessed(client, topic)
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    bodies = [b"%02d" % number * 3_000_000 for number in range(5)]
    for body in bodies:
        producer.send(body)
    old(topic)
    with client.create_reader(topic, MessageId.earliest, receiver_queue_size=3) as reader:
        found = [reader.read_next(60_000).data() for _ in range(2)]
        expire(broker, client, topic)
        producer.send(b"new")
        found += [reader.read_next(60_000).data() for _ in range(4)]
    assert found == [*bodies, b"new"]


@pytest.mark.parametrize("aborted", [False, True])
def test_a_topic_of_transactions_is_read_with_few_questions_and_completely(
    broker: Broker,
    client: PulsarClient,
    old: Callable[[str], None],
    read: Callable[..., Reading],
    aborted: bool,
) -> None:
    topic = broker.create_transactional_topic(0)
    witnessed(client, topic)
    producer = client.create_producer(topic, batching_enabled=False)
    places = []
    for number in range(30):
        transaction = client.new_transaction()
        sent = producer.send(b"%d" % number, txn=transaction)
        if aborted and number % 3 != 1:
            transaction.abort()
        else:
            transaction.commit()
            places.append((sent.ledger_id(), sent.entry_id()))
    last = producer.send(b"last")
    places.append((last.ledger_id(), last.entry_id()))
    old(topic)
    readings = [
        read(topic, behind(places)),
        read(topic, behind(places), start=Position(*places[3])),
        read(topic, behind(places), start=behind(places[:4])),
    ]
    found = [reading.take(1) for reading in readings]
    expire(broker, client, topic)
    expected = [places, places[3:], places[4:]]
    for reading, begun, wanted in zip(readings, found, expected, strict=True):
        assert begun + reading.rest() == wanted


def test_readers_overtake_a_broker_that_expires_messages_again_and_again(
    broker: Broker, client: PulsarClient, old: Callable[[str], None], read: Callable[..., Reading]
) -> None:
    topic = broker.create_topic()
    places = places_of(client, topic, 100)
    old(topic)
    reading = read(topic, behind(places))
    found = []
    for _ in range(4):
        found += reading.take(20)
        broker.expire(topic, None, 1)
    assert found + reading.rest() == places
    wait_until(partial(_has_no_readers, broker, topic), "a reader is left")


def _has_no_readers(broker: Broker, topic: str) -> bool:
    return len(broker.subscriptions(topic)) <= 1
