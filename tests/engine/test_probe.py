from __future__ import annotations

import math
import time
from typing import Any

import pytest

from pulsar_spark.engine import deadline as deadlines
from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.consumers import probe as module
from pulsar_spark.engine.consumers.consumer_session import ConsumerSession, SubscribeRequest
from pulsar_spark.engine.consumers.probe import FoundEntry, Held, LedgerEnd, Look, Probe
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.operations import run
from pulsar_spark.errors import (
    ConnectionLost,
    CorruptMessage,
    OperationTimeout,
    PulsarError,
    TopicNotFound,
)
from pulsar_spark.protocol.events import Event
from pulsar_spark.protocol.frames import MessageBlock, encode_raw_payload_command
from pulsar_spark.protocol.message_id import (
    EARLIEST_POSITION,
    LATEST_POSITION,
    MessageIdAdv,
    Position,
)
from pulsar_spark.testing import EmbeddedBroker
from tests import brief
from tests.engine.scripted_broker import Entry, ScriptedBroker, Session, T
from tests.engine.test_connection import connected, kind_of, request_of
from tests.engine.topics import add_batch, add_plain, after_last, fill, pretend_empty, quick
from tests.support.asking import connection_of
from tests.support.waiting import wait_until

TOPIC = "persistent://public/default/t"


def test_what_can_be_read_and_does_not_come_is_not_held_by_a_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_HELD_SECONDS", (0.02, 0.02))
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        message = add_plain(broker, TOPIC, b"slow")
        position = Position(message.ledger_id, message.entry_id)
        # As a topic with a dispatch rate: it takes permits, and delivers nothing for a while.
        broker.faults.drop("FLOW")
        (found,) = Probe(pool).held_back([(TOPIC, position)])
        assert found == Held(position, 1, readable=True)
        assert "transaction" not in str(found)
        assert "dispatchRate" in str(found)


def test_the_first_entry_at_or_after_a_position_is_found_over_gaps_and_ledgers() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        messages = fill(broker, TOPIC, 12)
        probe = Probe(pool)
        ledgers = sorted({message.ledger_id for message in messages})
        positions = [EARLIEST_POSITION, Position(ledgers[0], 1000), Position(ledgers[1], 0, 1)]
        positions += [Position(m.ledger_id, m.entry_id, m.batch_index) for m in messages]
        positions += [Position(m.ledger_id, m.entry_id, 3) for m in messages]
        places = [Position(m.ledger_id, m.entry_id, m.batch_index) for m in messages]
        for position in positions:
            expected = min((place for place in places if place >= position), default=None)
            found = probe.first_entry_at(TOPIC, position)
            if expected is None:
                assert found is None
            else:
                assert found is not None
                assert found.start == expected
                assert found.stop == Position(*expected[:2], 3)
                assert found.messages == 3
        wait_until(lambda: not broker.subscriptions(TOPIC))
        assert broker.internal_errors == ()


@pytest.mark.fault(62)
def test_an_index_that_a_plain_message_does_not_have_means_the_next_entry() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        first, second = (add_plain(broker, TOPIC, payload) for payload in (b"1", b"2"))
        found = Probe(pool).first_entry_at(TOPIC, Position(first.ledger_id, first.entry_id, 1))
        assert found is not None
        assert found.start == Position(second.ledger_id, second.entry_id)


def test_an_index_that_a_message_outside_a_batch_does_not_have_is_passed() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        plain, other = (add_plain(broker, TOPIC, payload) for payload in (b"1", b"2"))
        probe = Probe(pool)
        found = probe.first_entry_at(TOPIC, Position(plain.ledger_id, plain.entry_id, 1))
        assert found is not None
        assert found.start == Position(other.ledger_id, other.entry_id)
        assert probe.first_entry_at(TOPIC, Position(other.ledger_id, other.entry_id, 1)) is None


@pytest.mark.fault(63)
def test_past_the_end_and_on_an_empty_topic_there_is_nothing_and_no_wait() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        messages = fill(broker, TOPIC, 3)
        empty = broker.create_topic("empty")
        probe = Probe(pool)
        started = time.monotonic()
        assert probe.first_entry_at(TOPIC, after_last(messages)) is None
        assert probe.first_entry_at(TOPIC, LATEST_POSITION) is None
        assert probe.first_entry_at(empty, EARLIEST_POSITION) is None
        assert time.monotonic() - started < 15


def test_what_is_known_of_an_entry_is_told() -> None:
    with (
        EmbeddedBroker(expose_entry_metadata=True) as broker,
        ConnectionPool(quick(broker)) as pool,
    ):
        broker.create_topic(TOPIC)
        first = add_plain(broker, TOPIC, b"x" * 50, publish_time=777)
        add_batch(broker, TOPIC, [b"y"] * 4)
        probe = Probe(pool)
        plain = probe.first_entry_at(TOPIC, EARLIEST_POSITION)
        assert plain is not None
        assert (plain.publish_time, plain.messages, plain.index) == (777, 1, 0)
        assert plain.broker_time is not None
        assert plain.time == plain.broker_time
        assert plain.stop == Position(first.ledger_id, first.entry_id + 1)
        assert plain.size > 50
        batch = probe.first_entry_at(TOPIC, plain.stop)
        assert batch is not None
        assert (batch.messages, batch.index) == (4, 4)


def test_after_a_trim_the_first_entry_kept_is_found() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        messages = fill(broker, TOPIC, 12)
        kept = Position(*messages[20][:2])
        broker.trim(TOPIC, kept)
        found = Probe(pool).first_entry_at(TOPIC, EARLIEST_POSITION)
        assert found is not None
        assert found.start == kept


def test_many_positions_and_topics_are_asked_at_once() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        names = [broker.create_topic(f"t-{number}") for number in range(100)]
        lasts = [add_plain(broker, name, b"%d" % n) for n, name in enumerate(names)]
        questions = [(name, EARLIEST_POSITION) for name in names] * 3
        questions.append(("persistent://public/default/missing", EARLIEST_POSITION))
        started = time.monotonic()
        found = Probe(pool).first_entries_at(questions)
        assert time.monotonic() - started < 5
        error = found.pop()
        assert isinstance(error, TopicNotFound)
        assert error.topic == "persistent://public/default/missing"
        for number, entry in enumerate(found):
            last = lasts[number % 100]
            assert isinstance(entry, FoundEntry)
            assert entry.start == Position(last.ledger_id, last.entry_id)


@pytest.mark.fault(18)
def test_a_lost_connection_or_a_refusal_on_the_way_is_survived() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        messages = fill(broker, TOPIC, 3)
        broker.faults.error("SUBSCRIBE", "ServiceNotReady")
        broker.faults.close("FLOW")
        found = Probe(pool).first_entry_at(TOPIC, EARLIEST_POSITION)
        assert found is not None
        assert found.start == Position(*messages[0][:2])
        wait_until(lambda: not broker.subscriptions(TOPIC))


# --- times ------------------------------------------------------------------------------------


@pytest.mark.fault(14)
def test_a_consumer_that_is_given_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_PATIENCE", 0.2)
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        messages = fill(broker, TOPIC, 3)
        first = Position(messages[0].ledger_id, messages[0].entry_id)
        probe = Probe(pool)
        broker.faults.drop("FLOW")
        found = probe.first_entry_at(TOPIC, EARLIEST_POSITION)
        assert found is not None
        assert found.start == first
        broker.faults.drop("FLOW")
        assert probe.first_entry_from_time(TOPIC, 0) == found
        wait_until(lambda: not broker.subscriptions(TOPIC))


@pytest.mark.fault(14, 24)
@pytest.mark.parametrize("question", ["SUBSCRIBE", "GET_LAST_MESSAGE_ID"])
def test_a_question_that_a_broker_leaves_unanswered_is_asked_again(
    question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "ATTEMPT_SECONDS", 0.2)
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        messages = fill(broker, TOPIC, 3)
        with broker.faults.drop(question) as rule:
            found = Probe(pool).first_entry_at(TOPIC, EARLIEST_POSITION)
        assert rule.hits == 1
        assert found is not None
        assert found.start == Position(*messages[0][:2])
        wait_until(lambda: not broker.subscriptions(TOPIC))


@pytest.mark.fault(14)
def test_that_a_topic_is_empty_is_believed_of_no_consumer_that_the_broker_lost() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        messages = fill(broker, TOPIC, 3)
        first = Position(messages[0].ledger_id, messages[0].entry_id)
        probe = Probe(pool)
        pretend_empty(broker, times=3)
        found = probe.first_entry_at(TOPIC, EARLIEST_POSITION)
        assert found is not None
        assert found.start == first
        broker.faults.clear()
        # The entry at which the search ends.
        pretend_empty(broker, after=1)
        assert probe.first_entry_from_time(TOPIC, 0) == found


def test_the_first_entry_from_a_time_on_is_found() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        times = [1000, 1000, 1010, 1030, 1030, 1100]
        places = []
        for number, publish_time in enumerate(times):
            message = add_batch(broker, TOPIC, [b"x"] * 2, publish_time=publish_time)[0]
            places.append(Position(message.ledger_id, message.entry_id))
            if number == 2:
                broker.roll_ledger(TOPIC)
        probe = Probe(pool)
        questions = [0, 1, 999, 1000, 1001, 1010, 1011, 1030, 1099, 1100, 1101, 10**15]
        found = probe.first_entries_from_time([(TOPIC, time_ms) for time_ms in questions])
        for time_ms, entry in zip(questions, found, strict=True):
            later = [place for place, at in zip(places, times, strict=True) if at >= time_ms]
            if not later:
                assert entry is None
            else:
                assert isinstance(entry, FoundEntry)
                assert entry.start == later[0]
        wait_until(lambda: not broker.subscriptions(TOPIC))
        assert broker.internal_errors == ()


def test_no_entry_from_a_time_on_where_there_is_none_at_all() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        assert Probe(pool).first_entry_from_time(TOPIC, 5) is None
        with pytest.raises(TopicNotFound):
            Probe(pool).first_entry_from_time("persistent://public/default/missing", 5)


def test_an_unload_between_search_and_answer_is_noticed() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        for publish_time in (1000, 2000, 3000):
            add_plain(broker, TOPIC, b"x", publish_time=publish_time)
        searched: list[bool] = []

        def unload(_: object) -> None:
            if not searched:
                searched.append(True)
                broker.unload(TOPIC)

        broker.faults.call("SUBSCRIBE", unload, after=1, times=None)
        found = Probe(pool).first_entry_from_time(TOPIC, 2500)
        assert found is not None
        assert found.publish_time == 3000


def test_an_entry_that_makes_no_sense_is_an_error_with_its_id() -> None:
    def script(session: Session, event: Event) -> bool:
        if kind_of(event) == T.GET_LAST_MESSAGE_ID:
            last = MessageIdAdv(5, 7).to_pb()
            session.send(brief.last_id_response(request_of(event), last))
            return True
        if kind_of(event) == T.FLOW:
            consumer_id = broker.commands(T.SUBSCRIBE)[-1].consumer_id
            command = brief.message(consumer_id, MessageIdAdv(5, 7).to_pb())
            for part in encode_raw_payload_command(command, b"\x00\x00\xff\xff"):
                session.send_bytes(bytes(part))
            return True
        return False

    with ScriptedBroker(script) as broker, ConnectionPool(broker.options()) as pool:
        with pytest.raises(CorruptMessage) as caught:
            Probe(pool).first_entry_at(TOPIC, EARLIEST_POSITION)
        assert caught.value.topic == TOPIC
        assert "5:7" in str(caught.value.message_id)
        assert Probe(pool).first_place_at(TOPIC, EARLIEST_POSITION) == Position(5, 7)


def test_entries_from_a_position_on_are_counted_over_ledgers_and_leave_no_trace() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        messages = fill(broker, TOPIC, 12)
        entries = sorted({Position(m.ledger_id, m.entry_id) for m in messages})
        assert len({entry.ledger_id for entry in entries}) == 3
        places = [EARLIEST_POSITION, *entries, Position(entries[-1].ledger_id, 1000)]
        found = Probe(pool).entries_from([(TOPIC, place) for place in places])
        assert found == [12, *range(12, 0, -1), 0]
        wait_until(lambda: not broker.subscriptions(TOPIC))


def test_what_cannot_be_counted_is_an_error_in_its_place_and_in_time() -> None:
    with EmbeddedBroker(auto_create=False) as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        broker.faults.error("CONSUMER_STATS", "ServiceNotReady")
        none = TOPIC + "-none"
        found = Probe(pool).entries_from([(TOPIC, EARLIEST_POSITION), (none, EARLIEST_POSITION)])
        assert found[0] == 0
        assert isinstance(found[1], TopicNotFound)
        assert found[1].topic == none
        broker.faults.drop("CONSUMER_STATS", times=None)
        started = time.monotonic()
        (late,) = Probe(pool, 0.3).entries_from([(TOPIC, EARLIEST_POSITION)])
        assert isinstance(late, OperationTimeout)
        assert time.monotonic() - started < 15


# --- ends of ledgers ---------------------------------------------------------------------------


def test_where_a_ledger_ends_is_told_while_it_is_kept() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        first = [add_plain(broker, TOPIC, b"x") for _ in range(3)][-1]
        # A marker at the end counts as well.
        broker.skip_entries(TOPIC, 1)
        broker.roll_ledger(TOPIC)
        second = [add_plain(broker, TOPIC, b"x") for _ in range(2)]
        probe = Probe(pool)
        behind = Position(second[0].ledger_id, second[0].entry_id)
        assert probe.ledger_end(TOPIC, first.ledger_id) == LedgerEnd(3, behind)
        assert probe.ledger_end(TOPIC, second[0].ledger_id) == LedgerEnd(1, None)
        assert probe.ledger_end(TOPIC, second[0].ledger_id + 7) is None
        ledgers = [first.ledger_id, second[0].ledger_id, second[0].ledger_id + 7]
        assert probe.last_entries_in([(TOPIC, one) for one in ledgers]) == [3, 1, None]
        broker.trim(TOPIC, behind)
        assert probe.ledger_end(TOPIC, first.ledger_id) is None
        wait_until(lambda: not broker.subscriptions(TOPIC))


def test_a_ledger_ends_with_its_last_message_if_only_markers_follow_it() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        last = [add_plain(broker, TOPIC, b"x") for _ in range(3)][-1]
        broker.roll_ledger(TOPIC)
        broker.skip_entries(TOPIC, 1)
        assert Probe(pool).last_entries_in([(TOPIC, last.ledger_id)]) == [last.entry_id]


# --- what a broker sends ------------------------------------------------------------------------


def probing(broker: ScriptedBroker, entries: Any) -> ConsumerSession:
    session = ConsumerSession(
        connected(broker), SubscribeRequest(TOPIC, "p", EARLIEST_POSITION), entries
    )
    run(session.subscribe, 5.0)
    return session


def test_entries_beyond_the_permits_are_kept_for_later() -> None:
    with ScriptedBroker() as broker:
        entries = module._Entries()
        session = probing(broker, entries)
        first = entries.next(session, 1)
        for number in range(3):
            broker.sessions[0].send_entry(session.consumer_id, Entry(1, number, [b"x"]))
        assert first.result(5).command.message.message_id.entryId == 0
        session.last_message_id(Deadline(5)).result(5)
        assert entries.next(session, 1).result(5).command.message.message_id.entryId == 1
        assert entries.next(session, 1).result(5).command.message.message_id.entryId == 2
        assert entries.held == 0
        assert len(broker.commands(T.FLOW)) == 1
        session.connection.close()


@pytest.mark.fault(91)
def test_a_flood_of_entries_is_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_HELD", 10_000)
    with ScriptedBroker() as broker:
        entries = module._Entries()
        session = probing(broker, entries)
        for number in range(20):
            entry = Entry(1, number, [bytes(3000)], batched=False)
            broker.sessions[0].send_entry(session.consumer_id, entry)
            # Earlier entries are delivered before the answer, in a block of their own.
            session.last_message_id(Deadline(5)).result(5)
            assert entries.held < 20_000
        assert entries.held == 0
        with pytest.raises(ConnectionLost, match="far more than was requested"):
            entries.next(session, 1).result(5)
        session.connection.close()


@pytest.mark.fault(91)
def test_a_small_block_does_not_keep_what_it_was_received_with() -> None:
    entries = module._Entries()
    for _ in range(3):
        entries.on_messages(MessageBlock(1, bytes(512 * 1024), 1000, 1100, 1))
    assert [len(block.data) for block in entries._blocks] == [100] * 3


def test_whoever_waits_is_told_when_the_broker_closes_or_the_connection_breaks() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        for trouble in (lambda: broker.unload(TOPIC), broker.faults.disconnect):
            connection = connection_of(Lookup(pool), TOPIC)
            entries = module._Entries()
            wanted = SubscribeRequest(TOPIC, "p", EARLIEST_POSITION)
            with ConsumerSession(connection, wanted, entries) as session:
                run(session.subscribe, 5.0)
                entry = entries.next(session, 1)
                trouble()
                assert isinstance(entry.exception(5), ConnectionLost)
                assert isinstance(entries.next(session, 1).exception(5), ConnectionLost)
            wait_until(lambda: not broker.subscriptions(TOPIC))


@pytest.mark.parametrize("batched", [False, True])
def test_consecutive_entries_are_read_over_ledgers_by_one_subscription(batched: bool) -> None:
    with EmbeddedBroker(max_entries_per_ledger=5) as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        made = [
            add_batch(broker, TOPIC, [b"m"] * 3)[0] if batched else add_plain(broker, TOPIC, b"m")
            for _ in range(17)
        ]
        places = [Position(m.ledger_id, m.entry_id) for m in made]
        messages = 3 if batched else 1
        asked = [
            (Look(EARLIEST_POSITION, math.inf), 0, 17),
            (Look(places[6], 4), 6, 10),
            (Look(places[6], math.inf, end=places[12]), 6, 12),
            (Look(places[6], math.inf, messages=7), 6, 6 + -(-7 // messages)),
            (Look(places[6], math.inf, size=1), 6, 7),
            (Look(Position(places[4].ledger_id, 1000), 2), 5, 7),
            (Look(places[16], math.inf), 16, 17),
            (Look(Position(places[16].ledger_id, 1000), math.inf), 17, 17),
        ]
        before = broker.faults.seen("SUBSCRIBE")
        answers = Probe(pool).entries_at([(TOPIC, look) for look, _, _ in asked])
        assert broker.faults.seen("SUBSCRIBE") - before == len(asked)
        for (look, first, behind), found in zip(asked, answers, strict=True):
            assert not isinstance(found, PulsarError)
            assert [entry.start for entry in found] == places[first:behind], look
            assert {entry.messages for entry in found} <= {messages}
        wait_until(lambda: not broker.subscriptions(TOPIC))


def test_entries_are_read_from_inside_a_batch_on() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        (first, *_) = add_batch(broker, TOPIC, [b"m"] * 10)
        add_batch(broker, TOPIC, [b"m"] * 50)
        add_plain(broker, TOPIC, b"m")
        inside = Position(first.ledger_id, first.entry_id, 7)
        (found,) = Probe(pool).entries_at([(TOPIC, Look(inside, 10))])
        assert not isinstance(found, PulsarError)
        assert [entry.remaining for entry in found] == [3, 50, 1]
        (found,) = Probe(pool).entries_at([(TOPIC, Look(inside, 10, messages=4))])
        assert not isinstance(found, PulsarError)
        assert [entry.remaining for entry in found] == [3, 50]


def test_entries_of_a_topic_that_is_missing_are_an_error_among_the_answers() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        add_plain(broker, TOPIC, b"m")
        look = Look(EARLIEST_POSITION)
        missing, found = Probe(pool).entries_at(
            [("persistent://public/default/none", look), (TOPIC, look)]
        )
        assert isinstance(missing, TopicNotFound)
        assert not isinstance(found, PulsarError)
        assert len(found) == 1
