"""Transactions of `PulsarClient`, on both brokers, as we and the official clients see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulsar_spark.client import (
    ConsumerType,
    InitialPosition,
    MessageId,
    PulsarClient,
    TransactionState,
)
from pulsar_spark.engine.consumers import reader as reader_module
from pulsar_spark.engine.consumers.probe import Held, Probe
from pulsar_spark.engine.consumers.read_back import ReadBack, read_back
from pulsar_spark.errors import (
    OperationTimeout,
    PulsarError,
    TransactionConflict,
    TransactionNotFound,
)
from pulsar_spark.protocol.message_id import Position
from tests.integration.brokers import Broker
from tests.integration.java_peer import JavaContent, JavaPeer
from tests.support.waiting import wait_until


def read(client: PulsarClient, topic: str, count: int) -> list[bytes]:
    """Return the first messages of a topic, and check that there are no more."""
    with client.create_reader(topic, MessageId.earliest) as reader:
        found = [reader.read_next(timeout_millis=60_000).data() for _ in range(count)]
        assert not reader.has_message_available()
    return found


def write(client: PulsarClient, topic: str, fate: str, values: list[bytes]) -> None:
    """Send messages in a transaction, or without one, and end it as `fate` says."""
    producer = client.create_producer(topic)
    txn = None if fate == "plain" else client.new_transaction()
    for value in values:
        producer.send(value, txn=txn)
    producer.close()
    if txn is not None and fate == "commit":
        txn.commit()
    elif txn is not None and fate == "abort":
        txn.abort()


def mixed(client: PulsarClient, topic: str) -> list[bytes]:
    """Write to a topic in every way, and return the messages that readers should see."""
    expected: list[bytes] = []
    for number, fate in enumerate(("plain", "commit", "abort", "commit", "plain", "abort")):
        values = [b"%d-%d" % (number, index) for index in range(5)]
        write(client, topic, fate, values)
        if fate != "abort":
            expected += values
    return expected


@pytest.mark.fault(61)
def test_commits_are_seen_and_aborts_are_not(broker: Broker, client: PulsarClient) -> None:
    topic = broker.create_topic()
    expected = mixed(client, topic)
    assert read(client, topic, len(expected)) == expected


def test_the_official_client_sees_commits_and_no_aborts(
    broker: Broker, client: PulsarClient, official_client: Callable[..., Any]
) -> None:
    pulsar = pytest.importorskip("pulsar")
    topic = broker.create_topic()
    expected = mixed(client, topic)
    official = official_client(broker.service_url)
    for kind in (pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared):
        consumer = official.subscribe(
            topic,
            f"sub-{kind}",
            consumer_type=kind,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        found = [consumer.receive(timeout_millis=60_000) for _ in expected]
        assert [message.data() for message in found] == expected
        for message in found:
            consumer.acknowledge(message)
        consumer.close()


@pytest.mark.real_broker
def test_the_java_client_sees_commits_and_no_aborts(
    broker: Broker, client: PulsarClient, request: pytest.FixtureRequest
) -> None:
    topic = broker.create_topic()
    java = JavaPeer(request.getfixturevalue("_distribution"))
    try:
        expected = mixed(client, topic)
        found = java.read(broker, topic, len(expected))
        assert [message.content.value for message in found] == expected
        # And the other way round: its transactions, read by us.
        mine = [JavaContent(b"java-1"), JavaContent(b"java-2")]
        for fate in ("commit", "abort"):
            java.write(broker, topic, mine, transaction=fate)
        assert read(client, topic, len(expected) + 2)[-2:] == [b"java-1", b"java-2"]
    finally:
        java.close()


@pytest.mark.fault(84)
def test_an_open_transaction_holds_back_what_follows_until_its_end(
    broker: Broker, client: PulsarClient
) -> None:
    topic = broker.create_topic()
    producer = client.create_producer(topic)
    producer.send(b"before")
    txn = client.new_transaction()
    producer.send(b"inside", txn=txn)
    producer.send(b"behind")
    assert read(client, topic, 1) == [b"before"]
    with client.create_reader(topic, MessageId.earliest) as reader:
        assert reader.read_next(timeout_millis=60_000).data() == b"before"
        txn.commit()
        assert reader.read_next(timeout_millis=60_000).data() == b"inside"
        assert reader.read_next(timeout_millis=60_000).data() == b"behind"
    assert read(client, topic, 3) == [b"before", b"inside", b"behind"]


@pytest.mark.fault(81)
def test_a_transaction_that_nobody_ends_is_aborted_and_holds_nothing_back(
    broker: Broker, client: PulsarClient
) -> None:
    topic = broker.create_topic()
    producer = client.create_producer(topic)
    orphan = client.new_transaction(timeout_millis=3000)
    producer.send(b"orphan", txn=orphan)
    producer.send(b"behind")
    with client.create_reader(topic, MessageId.earliest) as reader:
        # It is gone at most half a minute after its timeout.
        assert reader.read_next(timeout_millis=31_000).data() == b"behind"
    assert orphan.state() is TransactionState.TIME_OUT
    # The coordinator no longer knows it.
    coordinators = client._context.coordinators

    def refusal() -> object:
        return coordinators.end_all([orphan.txn_id()], commit=True)[orphan.txn_id()]

    wait_until(lambda: isinstance(refusal(), TransactionNotFound), "it is known")


@pytest.mark.fault(14, 80)
def test_the_marker_of_a_commit_can_be_written_again_and_where_it_is_missing(
    broker: Broker, client: PulsarClient
) -> None:
    topic = broker.create_topic()
    producer = client.create_producer(topic)
    committed, left_out = client.new_transaction(), client.new_transaction()
    producer.send(b"committed", txn=committed)
    producer.send(b"left out", txn=left_out)
    committed.commit()
    pairs = [(txn.txn_id(), topic) for txn in (committed, left_out)]
    assert client._context.coordinators.commit_on_partitions(pairs) == [None, None]
    assert read(client, topic, 2) == [b"committed", b"left out"]


def test_one_transaction_spans_topics_and_partitions(broker: Broker, client: PulsarClient) -> None:
    plain, parted = broker.create_topic(), broker.create_topic(partitions=3)
    txn = client.new_transaction()
    for topic in (plain, parted):
        producer = client.create_producer(topic)
        for number in range(6):
            producer.send(b"%d" % number, txn=txn)
    parts = broker.partitions_of(parted, 3)
    assert all(read(client, topic, 0) == [] for topic in (plain, *parts))
    txn.commit()
    assert read(client, plain, 6) == [b"%d" % number for number in range(6)]
    assert sorted(value for part in parts for value in read(client, part, 2)) == [
        b"%d" % number for number in range(6)
    ]


def test_a_topic_keeps_its_transactions_when_it_is_unloaded(
    broker: Broker, client: PulsarClient
) -> None:
    topic = broker.create_topic()
    producer = client.create_producer(topic)
    kept, dropped = client.new_transaction(), client.new_transaction()
    producer.send(b"kept", txn=kept)
    producer.send(b"dropped", txn=dropped)
    dropped.abort()
    broker.unload(topic)
    kept.commit()
    assert read(client, topic, 1) == [b"kept"]


def test_the_brokers_tell_alike_what_they_do_not_know(broker: Broker, client: PulsarClient) -> None:
    txn = client.new_transaction()
    txn.commit()
    coordinators = client._context.coordinators
    name = txn.txn_id()
    again = coordinators.end_all([name], commit=True)[name]
    added = coordinators.add_partition_to_all([name], broker.create_topic())[name]
    assert isinstance(again, TransactionNotFound)
    assert isinstance(added, TransactionNotFound)
    assert coordinators.end_all([name], commit=False)[name] is None


def test_markers_take_the_id_of_an_entry(broker: Broker, client: PulsarClient) -> None:
    topic = broker.create_topic()
    write(client, topic, "commit", [b"a"])
    write(client, topic, "plain", [b"b"])
    with client.create_reader(topic, MessageId.earliest) as reader:
        ids = [reader.read_next(timeout_millis=60_000).message_id() for _ in range(2)]
    assert ids[1].entry_id() - ids[0].entry_id() == 2


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_acknowledgements_count_when_they_are_committed(
    broker: Broker, client: PulsarClient, kind: ConsumerType
) -> None:
    topic, out = broker.create_topic(), broker.create_topic()
    write(client, topic, "plain", [b"0", b"1", b"2", b"3"])
    with (
        client.subscribe(topic, "s", kind, initial_position=InitialPosition.Earliest) as consumer,
        client.create_producer(out) as producer,
    ):
        found = [consumer.receive(60_000) for _ in range(4)]
        with client.new_transaction() as txn:
            producer.send(found[0].data(), txn=txn)
            consumer.acknowledge(found[0], txn=txn)
            if kind == ConsumerType.Exclusive:
                consumer.acknowledge_cumulative(found[1], txn=txn)
            else:
                consumer.acknowledge(found[1], txn=txn)
        aborted = client.new_transaction()
        consumer.acknowledge(found[2], txn=aborted)
        if kind == ConsumerType.Shared:
            other = client.new_transaction()
            with pytest.raises(TransactionConflict):
                consumer.acknowledge(found[2], txn=other)
            other.abort()
        aborted.abort()
    assert read(client, out, 1) == [b"0"]
    with client.subscribe(topic, "s", kind) as consumer:
        assert [consumer.receive(60_000).data() for _ in range(2)] == [b"2", b"3"]


def test_a_batch_is_acknowledged_in_a_transaction_message_by_message(
    tuned_broker: Broker,
) -> None:
    topic = tuned_broker.create_topic()
    with PulsarClient(tuned_broker.service_url, operation_timeout_seconds=60) as tuned:
        with tuned.create_producer(
            topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
        ) as producer:
            for number in range(3):
                producer.send_async(b"%d" % number, None)
        earliest = InitialPosition.Earliest
        with (
            tuned.subscribe(
                topic,
                "s",
                ConsumerType.Shared,
                initial_position=earliest,
                broker_consumer_stats_cache_time_ms=0,
            ) as consumer,
            tuned.new_transaction() as txn,
        ):
            for message in [consumer.receive(60_000) for _ in range(3)]:
                consumer.acknowledge(message, txn=txn)
        write(tuned, topic, "plain", [b"next"])
        with tuned.subscribe(topic, "s", ConsumerType.Shared) as consumer:
            assert consumer.receive(60_000).data() == b"next"


@pytest.mark.slow
@pytest.mark.fault(82)
@pytest.mark.timeout(600)
def test_a_transaction_survives_its_coordinator_between_all_its_steps(
    tuned_broker: Broker,
) -> None:
    kept, aborted = tuned_broker.create_topic(), tuned_broker.create_topic()
    with PulsarClient(tuned_broker.service_url, operation_timeout_seconds=90) as client:
        txn = client.new_transaction(timeout_millis=180_000)
        other = client.new_transaction(timeout_millis=180_000)
        tuned_broker.restart()
        for topic, its in ((kept, txn), (aborted, other)):
            with client.create_producer(topic, send_timeout_millis=90_000) as producer:
                producer.send(b"inside", txn=its)
        tuned_broker.restart()
        txn.commit()
        other.abort()
        write(client, aborted, "plain", [b"behind"])
        assert read(client, kept, 1) == [b"inside"]
        assert read(client, aborted, 1) == [b"behind"]


@pytest.mark.fault(80)
def test_what_was_committed_is_told_by_reading_it_back(
    broker: Broker, client: PulsarClient
) -> None:
    topic = broker.create_topic()
    producer = client.create_producer(topic)
    first, aborted, second, still_open = (client.new_transaction() for _ in range(4))
    turns = [first, aborted, second] * 20
    sent = [producer.send(b"%d" % number, txn=txn) for number, txn in enumerate(turns)]
    first.commit()
    aborted.abort()
    second.commit()
    sent.append(producer.send(b"held", txn=still_open))
    turns.append(still_open)
    fates = {
        first: ReadBack.DELIVERED,
        aborted: ReadBack.DROPPED,
        second: ReadBack.DELIVERED,
        still_open: ReadBack.UNREACHED,
    }
    questions = [(topic, Position(place.ledger_id(), place.entry_id())) for place in sent]
    pool = client._context.pool
    assert read_back(pool, questions) == [fates[txn] for txn in turns]
    still_open.abort()
    # Nothing comes after it, so nobody reaches it.
    assert read_back(pool, questions) == [fates[txn] for txn in turns]
    producer.send(b"behind")
    fates[still_open] = ReadBack.DROPPED
    assert read_back(pool, questions) == [fates[txn] for txn in turns]


def test_batches_of_more_messages_than_permits_are_read_back(
    broker: Broker, client: PulsarClient
) -> None:
    topic = broker.create_topic()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=10)
    sent: list[Any] = []
    for _ in range(150):
        for number in range(10):
            producer.send_async(b"%d" % number, lambda _, place: sent.append(place))
        producer.flush()
    wait_until(lambda: len(sent) == 1500)
    questions = [(topic, Position(place.ledger_id(), place.entry_id())) for place in sent]
    assert len(set(questions)) >= 150
    found = read_back(client._context.pool, questions)
    assert found == [ReadBack.DELIVERED] * len(questions)


@pytest.mark.fault(84)
def test_what_an_open_transaction_holds_back_is_found(broker: Broker, client: PulsarClient) -> None:
    topic, other = broker.create_topic(), broker.create_topic()
    probe = Probe(client._context.pool)

    def held(name: str = topic) -> Held | PulsarError | None:
        end = Position.after(client._context.lookup.last_message_id(name))
        (found,) = probe.held_back([(name, end)])
        return found

    assert held() is None
    # Markers and aborted messages are not read, and block nobody.
    mixed(client, topic)
    write(client, other, "abort", [b"gone"])
    assert held() is None
    assert held(other) is None
    txn = client.new_transaction()
    producer = client.create_producer(topic)
    for value in (b"1", b"2"):
        producer.send(value, txn=txn)
    producer.send(b"behind")
    found = held()
    assert isinstance(found, Held)
    assert found.entries >= 3
    assert f"open transaction holds the read position at {found.position}" in str(found)
    txn.abort()
    assert read(client, topic, 21)[-1] == b"behind"
    assert held() is None


@pytest.mark.fault(84)
def test_a_reader_says_that_an_open_transaction_holds_it_up(
    broker: Broker, client: PulsarClient, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    monkeypatch.setattr(reader_module, "_FIRST_STALL", 0.2)
    monkeypatch.setattr(reader_module, "_HELD_AFTER", 0.2)
    topic = broker.create_topic()
    producer = client.create_producer(topic)
    txn = client.new_transaction()
    producer.send(b"inside", txn=txn)
    with client.create_reader(topic, MessageId.earliest) as reader:

        def told() -> bool:
            with pytest.raises(OperationTimeout):
                reader.read_next(timeout_millis=200)
            return f"{topic}: open transaction holds the read position" in caplog.text

        wait_until(told, "it says so")
        txn.commit()
        assert reader.read_next(timeout_millis=60_000).data() == b"inside"
