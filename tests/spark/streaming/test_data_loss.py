"""What is deleted between a batch's planning and its reading is data loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from pulsar_spark.errors import DataLossError
from pulsar_spark.protocol.message_id import Position
from pulsar_spark.spark.options.stream import Caps
from pulsar_spark.spark.streaming.stream_offset import StreamOffset
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.topics import Message, add_plain
from tests.spark.streams import NO_CAPS, Make, Query, queries
from tests.spark.topics import full

TOPIC = full("t")

pytestmark = [pytest.mark.fault(58), pytest.mark.fault(101)]


@pytest.fixture
def make(broker: EmbeddedBroker) -> Iterator[Make]:
    with queries(broker.service_url) as made:
        yield made


def write(broker: EmbeddedBroker, count: int, word: str) -> list[Message]:
    return [add_plain(broker, TOPIC, b"%s%d" % (word.encode(), n)) for n in range(count)]


def begun(broker: EmbeddedBroker, make: Make, **options: str) -> Query:
    """Return a query that has read five messages of a ledger."""
    broker.create_topic("t")
    write(broker, 5, "a")
    query = make(startingOffsets="earliest", **options)
    assert len(query.batch()) == 5
    return query


def offsets(query: Query, caps: Caps = NO_CAPS) -> tuple[StreamOffset, StreamOffset]:
    """Return the offsets of the next batch, as Spark reads them from the checkpoint."""
    start = query.start()
    end = query.source.latest(start, caps)
    return (
        StreamOffset.from_json(start.to_json()),
        StreamOffset.from_json(end.to_json()),
    )


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "repeated"])
@pytest.mark.parametrize("caps", [NO_CAPS, Caps(max_messages=30)], ids=["all", "capped"])
def test_a_ledger_that_is_deleted_with_unread_messages_is_a_loss(
    broker: EmbeddedBroker, make: Make, planned: bool, caps: Caps
) -> None:
    query = begun(broker, make)
    write(broker, 15, "b")
    broker.roll_ledger(TOPIC)
    second = write(broker, 20, "c")
    start, end = offsets(query, caps)
    if planned:
        plan = query.source.plan(start, end)
    broker.trim("t", Position(second[0].ledger_id, 0))
    if not planned:
        # The query was down meanwhile, and its batch is planned again.
        query = query.restarted()
        plan = query.source.plan(start, end)
    with pytest.raises(DataLossError, match="the range begins at"):
        query.values(plan)
    # A retried task reads from the start, too.
    with pytest.raises(DataLossError, match="the range begins at"):
        query.values(plan)


@pytest.mark.parametrize("new", [0, 3, 30])
@pytest.mark.parametrize("rolled", [False, True], ids=["one ledger", "two"])
def test_a_topic_that_is_made_again_after_planning_is_a_loss(
    broker: EmbeddedBroker, make: Make, new: int, rolled: bool
) -> None:
    query = begun(broker, make)
    if rolled:
        broker.roll_ledger(TOPIC)
    write(broker, 15, "b")
    plan = query.source.plan(*offsets(query))
    broker.delete_topic("t")
    broker.create_topic("t")
    write(broker, new, "new")
    with pytest.raises(DataLossError, match="between planning and reading"):
        query.values(plan)


def test_without_failing_what_is_there_is_read(broker: EmbeddedBroker, make: Make) -> None:
    query = begun(broker, make, failOnDataLoss="false")
    write(broker, 15, "b")
    broker.roll_ledger(TOPIC)
    second = write(broker, 20, "c")
    start, end = offsets(query)
    plan = query.source.plan(start, end)
    broker.trim("t", Position(second[0].ledger_id, 0))
    assert query.values(plan) == [b"c%d" % n for n in range(20)]
    broker.delete_topic("t")
    assert query.values(query.source.plan(start, replace(end, firsts={}))) == []


def nothing(broker: EmbeddedBroker) -> None:
    """Use no ids."""


def markers(broker: EmbeddedBroker) -> None:
    """Use ids as transaction markers do."""
    broker.skip_entries(TOPIC, 3)


@pytest.mark.fault(61)
@pytest.mark.parametrize("between", [nothing, markers])
@pytest.mark.parametrize("when", ["before", "offsets", "plan"])
def test_a_ledger_that_was_read_may_go_at_any_time(
    broker: EmbeddedBroker, make: Make, between: Callable[[EmbeddedBroker], None], when: str
) -> None:
    query = begun(broker, make)
    between(broker)
    broker.roll_ledger(TOPIC)
    between(broker)
    second = write(broker, 20, "c")
    gone = Position(second[0].ledger_id, 0)
    if when == "before":
        broker.trim("t", gone)
    start, end = offsets(query)
    if when == "offsets":
        broker.trim("t", gone)
    plan = query.source.plan(start, end)
    if when == "plan":
        broker.trim("t", gone)
    assert query.values(plan) == [b"c%d" % n for n in range(20)]


def test_where_a_batch_begins_is_asked_only_where_it_goes_on_in_another_ledger(
    broker: EmbeddedBroker, make: Make
) -> None:
    query = begun(broker, make)
    write(broker, 5, "b")
    before = broker.faults.seen("SUBSCRIBE")
    start, end = offsets(query)
    query.source.plan(start, end)
    assert broker.faults.seen("SUBSCRIBE") == before
    assert not end.firsts
    broker.roll_ledger(TOPIC)
    second = write(broker, 5, "c")
    start, end = offsets(query)
    query.source.plan(start, end)
    assert broker.faults.seen("SUBSCRIBE") == before + 1
    assert end.firsts == {TOPIC: Position(second[0].ledger_id - 1, 5)}


# --- the compacted view ---------------------------------------------------------------------------


def write_keys(broker: EmbeddedBroker, count: int) -> list[Message]:
    return [add_plain(broker, TOPIC, b"%d" % n, partition_key=f"k{n}") for n in range(count)]


@pytest.mark.parametrize("ledger_id", [3, 5000], ids=["lower", "higher"])
@pytest.mark.parametrize("was_compacted", [False, True])
def test_a_topic_that_is_made_again_is_a_loss_of_its_compacted_view_too(
    broker: EmbeddedBroker, make: Make, ledger_id: int, was_compacted: bool
) -> None:
    broker.create_topic("t", ledger_id=1000)
    write_keys(broker, 20)
    if was_compacted:
        broker.compact("t")
    query = make(startingOffsets="earliest", readCompacted="true")
    assert len(query.batch()) == 20
    query.source.close()
    broker.delete_topic("t")
    broker.create_topic("t", ledger_id=ledger_id)
    write_keys(broker, 5)
    with pytest.raises(DataLossError, match=r"rolled back|are gone"):
        query.restarted().batch()


@pytest.mark.fault(60)
@pytest.mark.parametrize("restarts", [False, True])
def test_a_stream_of_a_compacted_topic_whose_ledgers_are_deleted_goes_on(
    broker: EmbeddedBroker, make: Make, restarts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    write_keys(broker, 20)
    query = make(startingOffsets="earliest", readCompacted="true")
    assert len(query.batch()) == 20
    for number in range(3):
        # The last messages are tombstones: the view ends before the stream's position.
        for key in range(10, 20):
            add_plain(broker, TOPIC, b"", partition_key=f"k{key}")
        broker.compact("t")
        broker.roll_ledger(TOPIC)
        broker.trim("t")
        if restarts:
            query = query.restarted()
        assert query.batch() == []
        add_plain(broker, TOPIC, b"more", partition_key="k1")
        assert query.batch() == [b"more"], number
    assert "lost" not in caplog.text


@pytest.mark.fault(72)
def test_a_batch_of_an_older_checkpoint_is_asked_about_when_it_is_planned(
    broker: EmbeddedBroker, make: Make
) -> None:
    query = begun(broker, make)
    broker.roll_ledger(TOPIC)
    second = write(broker, 5, "b")
    start, end = offsets(query)
    ledger_id = second[0].ledger_id
    # Not known, or of another range.
    for firsts in ({}, {TOPIC: Position(ledger_id - 1, 4)}, {TOPIC: Position(ledger_id, 6)}):
        (part,) = query.source.plan(start, replace(end, firsts=firsts))
        assert part.first_entry == Position(ledger_id, 0)
        assert part.range[0] == start.positions[TOPIC]


def test_of_several_tasks_the_first_one_has_the_first_entry(
    broker: EmbeddedBroker, make: Make
) -> None:
    query = begun(broker, make, partitionsPerTopicPartition="3")
    broker.roll_ledger(TOPIC)
    second = write(broker, 12, "b")
    plan = query.source.plan(*offsets(query))
    assert [part.first for part in plan] == [(second[0].ledger_id, 0, 0), None, None]
