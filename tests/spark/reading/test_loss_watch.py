"""Messages deleted while a range is read are reported, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulsar_spark.errors import DataLossError, TopicNotFound
from pulsar_spark.protocol.message_id import Position
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.topics import Message, add_plain, pretend_empty
from tests.spark.readings import Reading
from tests.spark.topics import full

TOPIC = full("t")
LEDGERS = 3
ENTRIES = 20

pytestmark = pytest.mark.fault(101)


def fill(broker: EmbeddedBroker, ledgers: int = LEDGERS) -> list[list[Message]]:
    """Fill ledgers with ENTRIES each; return the messages of each ledger."""
    filled = []
    for number in range(ledgers):
        if number:
            broker.roll_ledger(TOPIC)
        filled.append([add_plain(broker, TOPIC, b"%d" % index) for index in range(ENTRIES)])
    return filled


def behind(message: Message) -> Position:
    return Position(message.ledger_id, message.entry_id + 1)


def at(message: Message) -> Position:
    return Position(message.ledger_id, message.entry_id)


Open = Callable[..., Reading]


@pytest.fixture(params=[False, True], ids=["entries", "columns"])
def read(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Open readings, of entries and of columns."""
    broker.create_topic("t")
    opened: list[Reading] = []

    def reading(end: Position, **more: Any) -> Reading:
        opened.append(Reading(broker.service_url, TOPIC, end, columns=request.param, **more))
        return opened[-1]

    yield reading
    for one in opened:
        one.close()


def places(*ledgers: list[Message]) -> list[tuple[int, int]]:
    return [message[:2] for ledger in ledgers for message in ledger]


# --- losses -------------------------------------------------------------------------------------


@pytest.mark.parametrize("entries", [0, 50])
def test_a_topic_that_is_deleted_and_made_again_is_a_loss(
    broker: EmbeddedBroker, read: Open, entries: int
) -> None:
    (first,) = fill(broker, 1)
    reading = read(behind(first[-1]))
    assert reading.take(3) == places(first)[:3]
    broker.delete_topic("t")
    broker.create_topic("t")
    for _ in range(entries):
        add_plain(broker, TOPIC, b"new")
    with pytest.raises(DataLossError, match="while they were read") as caught:
        reading.rest()
    assert caught.value.topic == TOPIC
    with pytest.raises((DataLossError, StopIteration)):
        reading.take(1)


@pytest.mark.fault(54)
def test_a_topic_that_is_deleted_is_not_found(broker: EmbeddedBroker, read: Open) -> None:
    (first,) = fill(broker, 1)
    reading = read(behind(first[-1]))
    reading.take(3)
    broker.delete_topic("t")
    with pytest.raises(TopicNotFound):
        reading.rest()


@pytest.mark.fault(58)
def test_a_topic_that_is_truncated_is_a_loss(broker: EmbeddedBroker, read: Open) -> None:
    ledgers = fill(broker)
    reading = read(behind(ledgers[-1][-1]))
    reading.take(3)
    broker.roll_ledger(TOPIC)
    broker.trim("t")
    with pytest.raises(DataLossError, match="nothing remains"):
        reading.rest()


@pytest.mark.fault(58)
@pytest.mark.parametrize("kept", [1, 2])
@pytest.mark.parametrize("taken", [0, 3, ENTRIES, ENTRIES + 3])
def test_ledgers_that_are_deleted_before_they_are_read_are_a_loss(
    broker: EmbeddedBroker, read: Open, kept: int, taken: int
) -> None:
    ledgers = fill(broker)
    reading = read(behind(ledgers[-1][-1]), start=at(ledgers[0][0]))
    assert reading.take(taken) == places(*ledgers)[:taken]
    broker.trim("t", at(ledgers[kept][0]))
    if taken // ENTRIES >= kept:
        # The deleted messages were read.
        assert reading.rest() == places(*ledgers)[taken:]
        return
    with pytest.raises(DataLossError) as caught:
        reading.rest()
    assert str(at(ledgers[kept][0])) in str(caught.value)


@pytest.mark.fault(58)
@pytest.mark.parametrize("is_whole", [False, True])
def test_a_ledger_that_is_gone_before_the_start_is_read_is_a_loss_if_it_had_an_entry(
    broker: EmbeddedBroker, read: Open, is_whole: bool
) -> None:
    ledgers = fill(broker)
    start, first = at(ledgers[0][5]), at(ledgers[0][7])
    if is_whole:
        start, first = behind(ledgers[0][-1]), at(ledgers[1][0])
    reading = read(behind(ledgers[-1][-1]), start=start, first=first)
    broker.trim("t", at(ledgers[1][0]))
    if is_whole:
        assert reading.rest() == places(*ledgers[1:])
        return
    with pytest.raises(DataLossError, match=f"the range begins at {first}"):
        reading.rest()


@pytest.mark.fault(58)
def test_a_range_whose_ledgers_are_all_gone_is_a_loss(broker: EmbeddedBroker, read: Open) -> None:
    ledgers = fill(broker)
    start, first = at(ledgers[0][5]), at(ledgers[0][7])
    reading = read(behind(ledgers[1][-1]), start=start, first=first)
    broker.trim("t", at(ledgers[2][0]))
    with pytest.raises(DataLossError, match=f"the range begins at {first}") as caught:
        reading.rest()
    assert "In a batch, load() the topic again" in caught.value.remedy


@pytest.mark.fault(58)
@pytest.mark.parametrize("kept", [0, 1, 2, LEDGERS])
def test_what_goes_from_the_beginning_after_planning_is_a_loss(
    broker: EmbeddedBroker, read: Open, caplog: pytest.LogCaptureFixture, kept: int
) -> None:
    ledgers = fill(broker)
    end, first = behind(ledgers[-1][-1]), at(ledgers[0][0])
    strict, lenient = read(end, first=first), read(end, first=first, strict=False)
    broker.roll_ledger(TOPIC)
    broker.trim("t", at(ledgers[kept][0]) if kept < LEDGERS else None)
    if not kept:
        assert strict.rest() == places(*ledgers)
        return
    with pytest.raises(DataLossError, match=f"the range begins at {first}"):
        strict.rest()
    with caplog.at_level(logging.WARNING):
        assert lenient.rest() == places(*ledgers[kept:])
    assert "data was lost" in caplog.text


@pytest.mark.fault(61)
@pytest.mark.parametrize("compacted", [False, True])
def test_first_entries_that_nobody_can_read_are_no_loss(
    broker: EmbeddedBroker, read: Open, compacted: bool
) -> None:
    """Of aborted transactions, markers, or compacted ones."""
    if compacted:
        expected = [message[:2] for message in fill_keys(broker)[-1]]
        broker.compact("t")
        first = Position(expected[0][0] - LEDGERS + 1, 0)
    else:
        broker.skip_entries(TOPIC, 3)
        more = add_plain(broker, TOPIC, b"more")
        expected, first = [more[:2]], Position(more.ledger_id, 0)
    end = Position(expected[-1][0], expected[-1][1] + 1)
    assert read(end, first=first, compacted=compacted).rest() == expected


@pytest.mark.parametrize("entries", [0, 3, 50])
def test_a_topic_made_again_before_the_start_is_read_is_a_loss(
    broker: EmbeddedBroker, read: Open, entries: int
) -> None:
    (ledger,) = fill(broker, 1)
    reading = read(behind(ledger[-1]), start=at(ledger[5]))
    broker.delete_topic("t")
    broker.create_topic("t")
    for _ in range(entries):
        add_plain(broker, TOPIC, b"new")
    with pytest.raises(DataLossError, match="between planning and reading"):
        reading.rest()


def test_a_topic_that_ends_before_the_start_is_a_loss(broker: EmbeddedBroker, read: Open) -> None:
    (ledger,) = fill(broker, 1)
    start = Position(ledger[0].ledger_id + 5, 3)
    with pytest.raises(DataLossError, match="between planning and reading"):
        read(Position(start.ledger_id, 9), start=start).rest()


@pytest.mark.fault(58)
def test_without_failing_what_is_there_is_read_and_the_loss_is_logged(
    broker: EmbeddedBroker, read: Open, caplog: pytest.LogCaptureFixture
) -> None:
    ledgers = fill(broker)
    reading = read(behind(ledgers[-1][-1]), strict=False)
    found = reading.take(3)
    broker.trim("t", at(ledgers[2][0]))
    with caplog.at_level(logging.WARNING):
        found += reading.rest()
    assert found[:3] == places(ledgers[0])[:3]
    assert found[-ENTRIES:] == places(ledgers[2])
    assert "data was lost" in caplog.text


def test_a_topic_made_again_with_lower_ids_is_a_loss(broker: EmbeddedBroker, read: Open) -> None:
    broker.delete_topic("t")
    broker.create_topic("t")
    (first,) = fill(broker, 1)
    beyond = Position(first[0].ledger_id + 5, 10)
    reading = read(beyond)
    reading.take(3)
    # As if its first entries had had later ids.
    reading.reader._decoder.position = Position(first[0].ledger_id + 5, 3)
    broker.unload("t")
    with pytest.raises(DataLossError):
        reading.rest()


# --- what is no loss ------------------------------------------------------------------------------


@pytest.mark.fault(58)
def test_a_ledger_that_was_read_may_go(broker: EmbeddedBroker, read: Open) -> None:
    ledgers = fill(broker)
    reading = read(behind(ledgers[-1][-1]))
    found = []
    for number in range(LEDGERS - 1):
        found += reading.take(ENTRIES)
        broker.trim("t", at(ledgers[number + 1][0]))
    assert found + reading.rest() == places(*ledgers)


@pytest.mark.fault(61)
def test_ids_without_entries_are_no_loss(broker: EmbeddedBroker, read: Open) -> None:
    expected = []
    for _ in range(LEDGERS):
        for index in range(6):
            expected.append(add_plain(broker, TOPIC, b"x")[:2])
            if index % 2:
                broker.skip_entries(TOPIC, 2)
        broker.roll_ledger(TOPIC)
    last = expected[-1]
    for end in (
        Position(last[0], last[1] + 1),
        Position(last[0], last[1] + 3),
        Position(last[0] + 9, 0),
    ):
        assert read(end).rest() == expected


@pytest.mark.fault(63)
def test_a_start_at_the_earliest_message_is_where_that_is(
    broker: EmbeddedBroker, read: Open
) -> None:
    ledgers = fill(broker)
    broker.trim("t", at(ledgers[1][0]))
    assert read(behind(ledgers[-1][-1])).rest() == places(*ledgers[1:])
    # A range that ends at the first stored message was empty when it was planned.
    assert read(at(ledgers[1][0])).rest() == []


@pytest.mark.fault(61)
def test_a_ledger_that_begins_with_markers_is_still_there(
    broker: EmbeddedBroker, read: Open
) -> None:
    fill(broker, 1)
    broker.roll_ledger(TOPIC)
    broker.skip_entries(TOPIC, 3)
    more = add_plain(broker, TOPIC, b"more")
    broker.trim("t", Position(more.ledger_id, 0))
    start = Position(more.ledger_id, 1)
    assert read(at(more), start=start).rest() == []
    # The ledger is the same, but it is cut: it ends before the range did.
    with pytest.raises(DataLossError):
        read(Position(more.ledger_id, 9), start=Position(more.ledger_id, 7)).rest()


@pytest.mark.fault(61)
@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("more", [False, True])
def test_a_range_of_ids_without_entries_is_no_loss(
    broker: EmbeddedBroker, read: Open, is_gone: bool, more: bool
) -> None:
    (ledger,) = fill(broker, 1)
    broker.roll_ledger(TOPIC)
    broker.skip_entries(TOPIC, 2)
    end = Position(ledger[0].ledger_id + 1, 2)
    reading = read(end, start=behind(ledger[-1]), first=end)
    if is_gone:
        broker.trim("t", Position(end.ledger_id, 0))
    if more:
        add_plain(broker, TOPIC, b"more")
    assert reading.rest() == []


@pytest.mark.fault(61)
@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("rolled", [False, True])
def test_a_range_from_the_beginning_that_has_no_message_is_no_loss(
    broker: EmbeddedBroker, read: Open, rolled: bool, is_gone: bool
) -> None:
    """As a split read has one, where a topic begins with aborted transactions."""
    broker.skip_entries(TOPIC, 5)
    if rolled:
        broker.roll_ledger(TOPIC)
    more = add_plain(broker, TOPIC, b"more")
    ledger = more.ledger_id - rolled
    if is_gone:
        broker.roll_ledger(TOPIC)
        broker.trim("t")
    for end in range(1, 6):
        reading = read(Position(ledger, end), first=Position(ledger, 0))
        if is_gone:
            with pytest.raises(DataLossError, match="between planning and reading"):
                reading.rest()
        else:
            assert reading.rest() == []


def fill_keys(broker: EmbeddedBroker, keys: int = ENTRIES) -> list[list[Message]]:
    """As `fill`, each ledger with messages of the same keys."""
    filled = []
    for number in range(LEDGERS):
        if number:
            broker.roll_ledger(TOPIC)
        filled.append(
            [
                add_plain(broker, TOPIC, b"%d" % index, partition_key=f"k{index % keys}")
                for index in range(ENTRIES)
            ]
        )
    return filled


@pytest.mark.fault(60)
@pytest.mark.parametrize("taken", [0, 3, ENTRIES])
@pytest.mark.parametrize("kept", [1, 2, LEDGERS])
def test_what_compaction_leaves_out_is_no_loss(
    broker: EmbeddedBroker, read: Open, taken: int, kept: int
) -> None:
    ledgers = fill_keys(broker)
    reading = read(behind(ledgers[-1][-1]), start=at(ledgers[0][0]), compacted=True)
    assert reading.take(taken) == places(*ledgers)[:taken]
    broker.compact("t")
    # Ledgers are deleted after compaction, perhaps all.
    broker.trim("t", None if kept == LEDGERS else at(ledgers[kept][0]))
    assert reading.rest()[-ENTRIES:] == places(ledgers[-1])


@pytest.mark.fault(60)
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_range_whose_last_messages_were_compacted_away_is_no_loss(
    broker: EmbeddedBroker, read: Open, is_gone: bool
) -> None:
    ledgers = fill_keys(broker)
    reading = read(behind(ledgers[-1][-1]), start=at(ledgers[0][0]), compacted=True)
    reading.take(3)
    for index in range(5, ENTRIES):
        add_plain(broker, TOPIC, b"", partition_key=f"k{index}")
    broker.compact("t")
    if is_gone:
        broker.roll_ledger(TOPIC)
        broker.trim("t")
    assert reading.rest()[-5:] == places(ledgers[-1])[:5]


@pytest.mark.fault(60)
@pytest.mark.parametrize("taken", [0, 3])
def test_a_range_that_was_compacted_away_is_no_loss(
    broker: EmbeddedBroker, read: Open, taken: int
) -> None:
    ledgers = fill_keys(broker)
    reading = read(behind(ledgers[0][-1]), start=at(ledgers[0][0]), compacted=True)
    reading.take(taken)
    broker.compact("t")
    broker.trim("t", at(ledgers[1][0]))
    assert set(reading.rest()) <= set(places(ledgers[0]))


@pytest.mark.parametrize("taken", [0, 3])
@pytest.mark.parametrize("how", ["truncated", "made again", "made again, empty"])
def test_the_compacted_view_of_a_topic_that_was_never_compacted_is_judged_like_the_topic(
    broker: EmbeddedBroker, read: Open, taken: int, how: str
) -> None:
    ledgers = fill_keys(broker)
    reading = read(behind(ledgers[-1][-1]), start=at(ledgers[0][0]), compacted=True)
    reading.take(taken)
    if how == "truncated":
        broker.roll_ledger(TOPIC)
        broker.trim("t")
    else:
        broker.compact("t")
        broker.delete_topic("t")
        broker.create_topic("t")
        for _ in range(0 if how.endswith("empty") else 50):
            add_plain(broker, TOPIC, b"new", partition_key="k")
    with pytest.raises(DataLossError):
        reading.rest()


@pytest.mark.fault(60)
def test_a_compacted_topic_is_asked_about_once(broker: EmbeddedBroker, read: Open) -> None:
    ledgers = []
    for number in range(5):
        ledgers.append([add_plain(broker, TOPIC, b"x", partition_key=f"k{number}")])
        broker.roll_ledger(TOPIC)
    reading = read(behind(ledgers[-1][-1]), start=at(ledgers[0][0]), compacted=True)
    broker.compact("t")
    broker.trim("t", at(ledgers[-1][0]))
    assert reading.rest() == places(*ledgers)
    # The reader's own; the ends of two ledgers, what is kept, whether it was compacted. A refusal
    # means that if another name is not refused.
    assert broker.faults.seen("SUBSCRIBE") == 4 + 3


@pytest.mark.fault(14)
@pytest.mark.parametrize("number", range(3))
def test_a_broker_that_lets_go_of_the_topic_causes_no_false_alarm(
    broker: EmbeddedBroker, read: Open, number: int
) -> None:
    ledgers = fill(broker)
    reading = read(behind(ledgers[-1][-1]))
    found = reading.take(ENTRIES - 2)
    pretend_empty(broker, times=3, after=number)
    broker.unload("t")
    assert found + reading.rest() == places(*ledgers)


def test_one_ledger_costs_no_question(broker: EmbeddedBroker, read: Open) -> None:
    (first,) = fill(broker, 1)
    assert read(behind(first[-1])).rest() == places(first)
    assert broker.faults.seen("SUBSCRIBE") == 1
