"""What nobody can read behind a topic's last message is acknowledged, and is no data loss."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from pulsar_spark.client import PulsarClient
from pulsar_spark.protocol.message_id import Position
from pulsar_spark.spark.streaming import topics
from pulsar_spark.spark.streaming.stream_offset import StreamOffset
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.streams import Make, Query, backlogs, queries
from tests.spark.topics import full, store_many
from tests.support.waiting import wait_until

TOPIC = full("t")


@pytest.fixture
def make(broker: EmbeddedBroker) -> Iterator[Make]:
    with queries(broker.service_url) as made:
        yield made


def parts(broker: EmbeddedBroker, partitions: int) -> list[str]:
    """Make the topic; return the names of its partitions, or its own if it has none."""
    broker.create_topic("t", partitions)
    return [f"t-partition-{number}" for number in range(partitions)] or ["t"]


def aborted(broker: EmbeddedBroker, count: int = 3, topic: str = "t") -> None:
    """Write messages in a transaction that is aborted."""
    with PulsarClient(broker.service_url) as client, client.create_producer(topic) as producer:
        txn = client.new_transaction()
        for _ in range(count):
            producer.send(b"aborted", txn=txn)
        txn.abort()


def settled(query: Query, broker: EmbeddedBroker) -> Query:
    """Return the query when it has nothing to do, and no backlog."""

    def is_done() -> bool:
        return query.batch() == [] and backlogs(broker, "t") == [0]

    wait_until(is_done, "a backlog stays")
    return query


def test_aborted_messages_at_the_end_leave_no_backlog(broker: EmbeddedBroker, make: Make) -> None:
    broker.create_topic("t")
    query = make(startingOffsets="earliest")
    for _ in range(3):
        new = store_many(broker, "t", 5)
        aborted(broker)
        assert query.batch() == new
        settled(query, broker)
    # It is known of the topic by now: no micro-batch of its own.
    new = store_many(broker, "t", 5)
    aborted(broker)
    assert query.batch() == new
    end = query.start()
    settled(query, broker)
    assert query.start() == end


@pytest.mark.parametrize("starting", ["earliest", "latest"])
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_aborted_messages_alone_leave_no_backlog(
    broker: EmbeddedBroker,
    make: Make,
    caplog: pytest.LogCaptureFixture,
    restarts: bool,
    starting: str,
) -> None:
    broker.create_topic("t")
    aborted(broker)
    query = settled(make(startingOffsets=starting), broker)
    for _ in range(2 if restarts else 0):
        query = query.restarted()
        assert query.batch() == []
        aborted(broker)
        query = settled(query.restarted(), broker)
    broker.roll_ledger(TOPIC)
    aborted(broker)
    new = store_many(broker, "t", 5)
    assert query.batch() == new
    settled(query, broker)
    assert "by expiry" not in caplog.text


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_a_ledger_of_aborted_messages_alone_may_go(
    broker: EmbeddedBroker, make: Make, restarts: bool
) -> None:
    broker.create_topic("t")
    aborted(broker)
    query = settled(make(startingOffsets="earliest"), broker)
    broker.roll_ledger(TOPIC)
    broker.trim("t")
    if restarts:
        query = query.restarted()
    assert query.batch() == []
    new = store_many(broker, "t", 5)
    assert query.batch() == new


def test_behind_a_deleted_ledger_aborted_messages_alone_are_not_taken_for_all_there_was(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("t")
    query = make(startingOffsets="earliest", failOnDataLoss="false")
    assert query.batch() == []
    query.source.close()
    store_many(broker, "t", 5)
    broker.roll_ledger(TOPIC)
    aborted(broker)
    broker.trim("t", Position(2, 0))
    query = query.restarted()
    for _ in range(3):
        assert query.batch() == []
    assert query.start().rests == {}


def test_they_are_acknowledged_while_other_partitions_have_news(
    broker: EmbeddedBroker, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "_BEHIND_SECONDS", 0.0)
    broker.create_topic("t")
    broker.create_topic("busy")
    query = make(None, topics="t,busy", startingOffsets="earliest")
    store_many(broker, "t", 5)
    aborted(broker)

    def is_done() -> bool:
        store_many(broker, "busy", 1)
        assert query.batch() != []
        return backlogs(broker, "t") == [0]

    wait_until(is_done, "a backlog stays")


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("is_first", [True, False], ids=["message", "look"])
def test_a_ledger_that_ends_with_them_may_go(
    broker: EmbeddedBroker,
    make: Make,
    caplog: pytest.LogCaptureFixture,
    restarts: bool,
    is_first: bool,
) -> None:
    broker.create_topic("t")
    query = make(startingOffsets="earliest")
    store_many(broker, "t", 5)
    aborted(broker)
    assert len(query.batch()) == 5
    settled(query, broker)
    broker.roll_ledger(TOPIC)
    broker.trim("t")
    if restarts:
        query = query.restarted()
    if not is_first:
        assert query.batch() == []
    new = store_many(broker, "t", 5)
    assert query.batch() == new
    assert query.batch() == []
    assert "by expiry" not in caplog.text
    # Of a topic without a rest, a restarted query says the same.
    assert ("have deleted" in caplog.text) is (restarts and is_first)


def test_a_message_behind_them_is_read_after_a_restart_without_a_warning(
    broker: EmbeddedBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    query = make(startingOffsets="earliest")
    store_many(broker, "t", 5)
    aborted(broker)
    assert len(query.batch()) == 5
    query = settled(query, broker).restarted()
    new = store_many(broker, "t", 5)
    assert query.batch() == new
    assert "by expiry" not in caplog.text


def test_what_an_open_transaction_hides_is_not_acknowledged(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("t")
    query = make(startingOffsets="earliest")
    with PulsarClient(broker.service_url) as client, client.create_producer("t") as producer:
        producer.send(b"before")
        assert query.batch() == [b"before"]
        aborted(broker)
        with client.new_transaction() as txn:
            producer.send(b"inside", txn=txn)
            for _ in range(3):
                assert query.batch() == []
            wait_until(lambda: backlogs(broker, "t") == [1], "too much or nothing is acknowledged")
        assert query.batch() == [b"inside"]
    settled(query, broker)


@pytest.mark.parametrize("named", [False, True], ids=["made up", "named"])
@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("before", [0, 5], ids=["nothing", "messages"])
def test_a_query_that_starts_behind_aborted_messages_restarts_without_a_loss(
    broker: EmbeddedBroker,
    make: Make,
    caplog: pytest.LogCaptureFixture,
    before: int,
    partitions: int,
    named: bool,
) -> None:
    names = parts(broker, partitions)
    for name in names:
        if before:
            store_many(broker, name, before)
        aborted(broker, topic=name)
    query = make(**{"subscription": "mine"} if named else {})
    assert query.batch() == []
    query = query.restarted()
    assert query.batch() == []
    new = [message for name in names for message in store_many(broker, name, 5)]
    assert query.restarted().batch() == new
    assert "by expiry" not in caplog.text


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("before", [0, 5], ids=["nothing", "messages"])
def test_a_query_that_starts_at_an_open_transaction_holds_and_reads_its_messages(
    broker: EmbeddedBroker, make: Make, before: int, partitions: int
) -> None:
    names = parts(broker, partitions)
    with PulsarClient(broker.service_url) as client, client.new_transaction() as txn:
        for name in names:
            if before:
                store_many(broker, name, before)
            with client.create_producer(name) as producer:
                producer.send(name.encode(), txn=txn)
        query = make()
        assert query.batch() == []
        assert [backlogs(broker, name) for name in names] == [[1]] * len(names)
        query = query.restarted()
        assert query.batch() == []
    assert query.batch() == [name.encode() for name in names]


@pytest.mark.parametrize("more", [aborted, None], ids=["aborted behind", "messages alone"])
def test_a_subscription_is_moved_back_only_where_it_begins_behind_the_start(
    broker: EmbeddedBroker, make: Make, more: Callable[[EmbeddedBroker], None] | None
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 5)
    if more is not None:
        more(broker)
    make().source.initial()
    assert broker.faults.seen("SEEK", direction="in") == (0 if more is None else 1)


def test_a_subscription_that_has_passed_messages_stays_where_it_is(
    broker: EmbeddedBroker, make: Make
) -> None:
    """Who gave it to another query may go back to that one."""
    broker.create_topic("t")
    messages = store_many(broker, "t", 5)
    first = make(startingOffsets="earliest", subscription="mine")
    assert first.batch() == messages
    settled(first, broker).source.close()
    assert make(startingOffsets="earliest", subscription="mine").batch() == messages
    assert backlogs(broker, "t") == [0]


@pytest.mark.parametrize("fails", ["true", "false"], ids=["strict", "loose"])
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("commits", [True, False], ids=["committed", "aborted"])
@pytest.mark.parametrize("looks", [True, False], ids=["open at a look", "ended before"])
@pytest.mark.parametrize("rolls", [False, True], ids=["one ledger", "two"])
def test_a_start_inside_a_transaction_behind_the_last_message_is_exact(
    broker: EmbeddedBroker,
    make: Make,
    caplog: pytest.LogCaptureFixture,
    rolls: bool,
    looks: bool,
    commits: bool,
    restarts: bool,
    fails: str,
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 5)
    with PulsarClient(broker.service_url) as client, client.create_producer("t") as producer:
        txn = client.new_transaction()
        producer.send(b"before", txn=txn)
        if rolls:
            broker.roll_ledger(TOPIC)
        start = producer.send(b"inside", txn=txn)
        query = make(
            startingOffsets=json.dumps({"t": f"{start.ledger_id()}:{start.entry_id()}"}),
            failOnDataLoss=fails,
        )
        first = query.source.initial()
        if looks:
            assert query.batch() == []
            assert query.batch() == []
            if restarts:
                query = query.restarted()
                assert query.batch() == []
            assert query.start().positions == first.positions
        (txn.commit if commits else txn.abort)()
        expected = [b"inside"] if commits else []
        assert query.batch() == expected
        new = store_many(broker, "t", 5)
        if restarts:
            query = query.restarted()
        assert query.batch() == new
    settled(query, broker)
    assert "was lost" not in caplog.text


@pytest.mark.parametrize("back", [0, 1])
def test_how_far_a_topic_goes_behind_its_last_message_is_asked_once(
    broker: EmbeddedBroker, make: Make, back: int
) -> None:
    broker.create_topic("t")
    store_many(broker, "t", 5, batch_size=1)
    aborted(broker)
    query = make(startingOffsets=json.dumps({"t": f"1:{6 - 2 * back}"}))
    query.batch()
    settled(query, broker)
    seen = broker.faults.seen("SUBSCRIBE", direction="in")
    for _ in range(5):
        assert query.batch() == []
    assert broker.faults.seen("SUBSCRIBE", direction="in") == seen


def test_where_nothing_is_behind_the_end_it_is_asked_once(
    broker: EmbeddedBroker, make: Make
) -> None:
    broker.create_topic("t")
    query = make(startingOffsets="earliest")
    for _ in range(3):
        new = store_many(broker, "t", 5)
        before = broker.faults.seen("CONSUMER_STATS", direction="in")
        assert query.batch() == new
        assert broker.faults.seen("CONSUMER_STATS", direction="in") == before
        for _ in range(5):
            assert query.batch() == []
        assert broker.faults.seen("CONSUMER_STATS", direction="in") == before + 1
        assert query.start().rests == {}


def test_an_offset_with_rests_is_read_as_it_was_written() -> None:
    at, rest = Position(1, 5), Position(1, 8)
    for count in (1, 20):
        positions = {f"{TOPIC}-partition-{number}": at for number in range(count)}
        offset = StreamOffset("s", positions, rests=dict.fromkeys(positions, rest))
        body = offset.to_json()
        assert body["version"] == 4
        again = StreamOffset.from_json(body)
        assert again == offset
        assert again.to_json() == body
        plain = StreamOffset("s", positions, rests=offset.rests, listed=False)
        assert StreamOffset.from_json(plain.to_json()).to_json() == plain.to_json()
