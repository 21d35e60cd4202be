"""Gaps in entry ids: unused ids cost little, and what a broker passes over is read all the same."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.consumers.gaps import Gap, Gaps
from pulsar_spark.engine.consumers.probe import LedgerEnd, Probe
from pulsar_spark.engine.consumers.read_back import ReadBack, read_back
from pulsar_spark.engine.consumers.reader import EntryReader
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import BlockOptions
from pulsar_spark.protocol.frames import MessageBlock, encode_raw_payload_command
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.testing import EmbeddedBroker
from pulsar_spark.testing.rules import Seen
from tests import brief
from tests.engine.topics import (
    Message,
    add_batch,
    add_plain,
    after_last,
    fill,
    quick,
    reading,
    stored_entry,
    unpack,
)

TOPIC = "persistent://public/default/t"

pytestmark = pytest.mark.fault(126)


# --- finding them -----------------------------------------------------------------------------


def block(*places: tuple[int, int]) -> MessageBlock:
    frames = []
    for ledger_id, entry_id in places:
        command = brief.message(1, pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id))
        frames.append(b"".join(map(bytes, encode_raw_payload_command(command, stored_entry(b"")))))
    data = b"".join(frames)
    last = len(data) - len(frames[-1])
    return MessageBlock(1, data, 0, len(data), len(frames), last=last)


P = Position


@pytest.mark.parametrize(
    "start, first, places, expected",
    [
        (P(1, 0), None, [(1, 0), (1, 1), (1, 2)], None),
        (P(1, 0, 3), None, [(1, 0)], None),
        (P(1, 0), None, [(1, 1), (1, 2)], Gap(P(1, 0), P(1, 1), True)),
        (P(1, 0), None, [(1, 0), (1, 1), (1, 3), (1, 4)], Gap(P(1, 2), P(1, 3), False)),
        (P(1, 0), None, [(1, 0), (1, 2), (1, 4)], Gap(P(1, 1), P(1, 2), False)),
        (P(1, 0), None, [(1, 0), (2, 0), (2, 1)], Gap(P(1, 1), P(2, 0), False)),
        (P(1, 9), None, [(2, 0)], Gap(P(1, 9), P(2, 0), True)),
        (P(1, 9), P(2, 0), [(2, 0), (2, 1)], None),
        (P(1, 9), P(2, 0), [(2, 1)], Gap(P(2, 0), P(2, 1), True)),
        (EARLIEST_POSITION, None, [(1, 0)], Gap(EARLIEST_POSITION, P(1, 0), True)),
        (EARLIEST_POSITION, P(1, 0), [(1, 0)], None),
        (EARLIEST_POSITION, P(1, 0), [(2, 0)], Gap(P(1, 0), P(2, 0), True)),
        (P(1, 0), None, [(1, 0), (1, 5)], None),
        (P(1, 5), None, [(1, 7)], None),
    ],
    ids=lambda value: str(value).replace("Position", ""),
)
def test_the_first_gap_of_a_block_is_found(
    start: Position, first: Position | None, places: list[tuple[int, int]], expected: Gap | None
) -> None:
    is_behind_end = expected is None and len(places) < 3 and places[-1] in ((1, 5), (1, 7))
    gaps = Gaps(P(1, 1) if is_behind_end else None, first)
    gaps.begin(start)
    assert gaps.find(block(*places), start) == expected


def test_blocks_of_a_session_follow_each_other_and_another_session_starts_anew() -> None:
    gaps = Gaps(None, None)
    gaps.begin(P(1, 0))
    assert gaps.find(block((1, 0), (1, 1)), P(1, 0)) is None
    assert gaps.find(block((1, 2)), P(1, 2)) is None
    assert gaps.find(block((1, 4)), P(1, 3)) == Gap(P(1, 3), P(1, 4), False)
    gaps.begin(P(1, 2))
    assert gaps.find(block((1, 2)), P(1, 3)) is None
    assert gaps.find(block((1, 4)), P(1, 3)) == Gap(P(1, 3), P(1, 4), False)
    gaps.begin(P(1, 2))
    assert gaps.find(block((1, 4)), P(1, 3)) == Gap(P(1, 3), P(1, 4), True)


def test_a_frame_that_cannot_be_parsed_is_left_to_whoever_decodes_it() -> None:
    gaps = Gaps(None, None)
    gaps.begin(P(1, 0))
    found = block((1, 4))
    damaged = MessageBlock(1, found.data[:8] + b"\xff" * 20, 0, len(found.data), 1)
    assert gaps.find(damaged, P(1, 0)) is None


# --- reading ----------------------------------------------------------------------------------


def moving(broker: EmbeddedBroker, command: str = "FLOW", **rule: object) -> None:
    """Move the cursors of all readers when the broker has handled such a command."""

    def move(seen: Seen) -> None:
        broker.faults.move_readers(TOPIC)

    broker.faults.call(command, move, **rule)


def read_all(reader: EntryReader) -> list[Message]:
    return [message for entry in reader for message in unpack(entry)]


def read_columns(reader: EntryReader, end: Position) -> list[tuple[int, int, int]]:
    """Return the places of a range's messages, read as columns of a few rows each."""
    wanted = BlockOptions(TOPIC, -1, frozenset({"value"}), end, 7, 1 << 20, 1 << 20)
    places = []
    for item in reader.read(wanted):
        places += [item.locate(row)[:3] for row in range(item.rows)]
    return [(ledger, entry, max(index, 0)) for ledger, entry, index in places]


@pytest.mark.parametrize("command", ["SUBSCRIBE", "FLOW", "GET_LAST_MESSAGE_ID"])
@pytest.mark.parametrize("after", range(6))
@pytest.mark.parametrize("start", [EARLIEST_POSITION, Position(0, 0), Position(0, 3)])
def test_what_a_broker_passes_over_is_read(command: str, after: int, start: Position) -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 40)
        first = messages[0].ledger_id
        start = start if start == EARLIEST_POSITION else Position(first, start.entry_id)
        moving(broker, command, after=after)
        with reading(
            broker, TOPIC, start, after_last(messages), auto_scale=False, receiver_queue_size=6
        ) as reader:
            found = read_all(reader)
        assert found == [message for message in messages if message[:2] >= start[:2]]


@pytest.mark.parametrize("times", [1, 3, 7])
def test_a_cursor_that_moves_again_and_again_is_overtaken(times: int) -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 40)
        moving(broker, "FLOW", times=times)
        moving(broker, "SUBSCRIBE", times=times, after=1, answer=True)
        with reading(
            broker,
            TOPIC,
            EARLIEST_POSITION,
            after_last(messages),
            auto_scale=False,
            receiver_queue_size=9,
        ) as reader:
            assert read_all(reader) == messages


def test_an_endless_reader_gets_what_its_broker_has_passed_over() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        messages = [add_plain(broker, TOPIC, b"%d" % number) for number in range(20)]
        with reading(
            broker, TOPIC, EARLIEST_POSITION, None, auto_scale=False, receiver_queue_size=4
        ) as reader:
            first = reader.next_entry()
            assert first is not None
            found = unpack(first)
            broker.faults.move_readers(TOPIC)
            messages.append(add_plain(broker, TOPIC, b"new"))
            while len(found) < len(messages):
                entry = reader.next_entry(60)
                assert entry is not None
                found += unpack(entry)
        assert found == messages


@pytest.mark.parametrize("version", [8, 11])
def test_a_broker_that_is_too_old_to_tell_where_its_cursors_are_is_believed(version: int) -> None:
    with EmbeddedBroker(protocol_version=version) as broker:
        messages = fill(broker, TOPIC, 20)
        with reading(broker, TOPIC, Position(*messages[0][:2]), None) as reader:
            found: list[Message] = []
            while len(found) < len(messages):
                entry = reader.next_entry(60)
                assert entry is not None
                found += unpack(entry)
        assert found == messages


def asked(broker: EmbeddedBroker) -> int:
    return broker.faults.seen("GET_LAST_MESSAGE_ID")


def test_a_range_without_gaps_costs_no_question() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        messages = [m for number in range(50) for m in add_batch(broker, TOPIC, [b"%d" % number])]
        start = Position(*messages[0][:2])
        with reading(broker, TOPIC, start, after_last(messages)) as reader:
            assert read_all(reader) == messages
        assert asked(broker) == 0
        end = after_last(messages)
        with (
            ConnectionPool(quick(broker)) as pool,
            EntryReader(pool, TOPIC, EARLIEST_POSITION, end, first=start) as reader,
        ):
            assert read_all(reader) == messages
        assert asked(broker) == 0
        assert broker.faults.seen("SUBSCRIBE") == 2


@pytest.mark.parametrize("size", [3, 30, 1000])
def test_gaps_cost_one_question_a_block_at_most(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = []
    find = Gaps.find

    def counting(gaps: Gaps, found: MessageBlock, position: Position) -> Gap | None:
        gap = find(gaps, found, position)
        blocks.append(gap)
        return gap

    monkeypatch.setattr(Gaps, "find", counting)
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        messages = []
        for number in range(100):
            messages.append(add_plain(broker, TOPIC, b"%d" % number))
            broker.skip_entries(TOPIC, 1)
        start = Position(*messages[0][:2])
        with reading(
            broker,
            TOPIC,
            start,
            after_last(messages),
            auto_scale=False,
            receiver_queue_size=size,
        ) as reader:
            assert read_all(reader) == messages
        assert 0 < asked(broker) <= sum(gap is not None for gap in blocks)
        assert broker.faults.seen("SUBSCRIBE") == 1


def test_unused_ids_at_the_start_are_told_by_the_entry_before() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        before = add_plain(broker, TOPIC, b"before")
        broker.skip_entries(TOPIC, 3)
        message = add_plain(broker, TOPIC, b"x")
        start = Position(before.ledger_id, before.entry_id + 1)
        with reading(broker, TOPIC, start, after_last([message])) as reader:
            assert read_all(reader) == [message]
        assert asked(broker) == 1
        assert broker.faults.seen("SUBSCRIBE") == 2


@pytest.mark.parametrize("skipped", [1, 4])
def test_unused_ids_without_an_entry_before_are_asked_for_again(skipped: int) -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        broker.skip_entries(TOPIC, skipped)
        message = add_plain(broker, TOPIC, b"x")
        for start in (
            EARLIEST_POSITION,
            Position(message.ledger_id, 0),
            Position(message.ledger_id, skipped),
        ):
            with reading(broker, TOPIC, start, after_last([message])) as reader:
                assert read_all(reader) == [message]


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_any_gaps_and_any_moves_give_each_message_once(seed: int, columns: bool) -> None:
    chance = random.Random(seed)
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        messages: list[Message] = []
        for number in range(chance.randint(5, 60)):
            what = chance.random()
            if what < 0.2:
                broker.skip_entries(TOPIC, chance.randint(1, 3))
            elif what < 0.25:
                broker.roll_ledger(TOPIC)
            payloads = [b"%d-%d" % (number, index) for index in range(chance.randint(1, 4))]
            messages += add_batch(broker, TOPIC, payloads)
        start = EARLIEST_POSITION
        if chance.random() < 0.7:
            chosen = chance.choice(messages)
            start = Position(*chosen[:3])
        for command in ("FLOW", "SUBSCRIBE", "GET_LAST_MESSAGE_ID"):
            moving(
                broker,
                command,
                times=chance.randint(1, 3),
                after=chance.randint(0, 3),
                answer=command != "FLOW" and chance.random() < 0.5,
            )
        with reading(
            broker,
            TOPIC,
            start,
            after_last(messages),
            auto_scale=False,
            receiver_queue_size=chance.choice([1, 3, 10, 1000]),
            read_compacted=chance.random() < 0.2,
        ) as reader:
            wanted = [message for message in messages if message[:3] >= start]
            if columns:
                end = after_last(messages)
                assert read_columns(reader, end) == [message[:3] for message in wanted]
            else:
                assert read_all(reader) == wanted
        assert broker.internal_errors == ()


# --- questions --------------------------------------------------------------------------------


@pytest.fixture
def filled() -> Callable[[EmbeddedBroker], list[Message]]:
    def fill_two_ledgers(broker: EmbeddedBroker) -> list[Message]:
        broker.create_topic(TOPIC)
        messages = [add_plain(broker, TOPIC, b"%d" % number) for number in range(5)]
        broker.roll_ledger(TOPIC)
        return messages + [add_plain(broker, TOPIC, b"%d" % number) for number in range(5)]

    return fill_two_ledgers


@pytest.mark.parametrize("command", ["SUBSCRIBE", "FLOW", "GET_LAST_MESSAGE_ID"])
@pytest.mark.parametrize("answer", [False, True])
def test_answers_of_subscriptions_whose_cursor_was_moved_do_not_count(
    command: str, answer: bool, filled: Callable[[EmbeddedBroker], list[Message]]
) -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        messages = filled(broker)
        probe = Probe(pool)

        def move_once() -> None:
            broker.faults.clear()
            if not (command == "FLOW" and answer):
                moving(broker, command, answer=answer)

        for message in messages[::4]:
            move_once()
            found = probe.first_entry_at(TOPIC, Position(*message[:2]))
            assert found is not None
            assert found.start[:2] == message[:2]
        move_once()
        first = probe.first_entry_at(TOPIC, EARLIEST_POSITION)
        assert first is not None
        assert first.start[:2] == messages[0][:2]
        move_once()
        found = probe.first_entry_from_time(TOPIC, 0)
        assert found is not None
        assert found.start[:2] == messages[0][:2]
        move_once()
        assert probe.first_entries_from_time([(TOPIC, 0)], {TOPIC: first.start}) == [found]
        move_once()
        assert probe.ledger_end(TOPIC, messages[0].ledger_id) == LedgerEnd(
            4, Position(*messages[5][:2])
        )
        move_once()
        entries = [(TOPIC, Position(*message[:2])) for message in messages]
        assert read_back(pool, entries) == [ReadBack.DELIVERED] * len(messages)


def test_a_question_at_unused_ids_is_asked_twice_and_answered() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        broker.skip_entries(TOPIC, 3)
        message = add_plain(broker, TOPIC, b"x")
        found = Probe(pool).first_entry_at(TOPIC, Position(message.ledger_id, 1))
        assert found is not None
        assert found.start[:2] == message[:2]
        assert broker.faults.seen("SUBSCRIBE") == 2
