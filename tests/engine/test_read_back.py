"""Whether readers get certain entries: few subscriptions, and only what is seen is believed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.consumers import probe
from pulsar_spark.engine.consumers import read_back as module
from pulsar_spark.engine.consumers.consumer_session import ConsumerSession, SubscribeRequest
from pulsar_spark.engine.consumers.probe import EntryWait
from pulsar_spark.engine.consumers.read_back import ReadBack, read_back
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.operations import run
from pulsar_spark.errors import (
    AuthorizationError,
    ConnectionLost,
    OperationTimeout,
    RemoteProtocolError,
    TopicNotFound,
)
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.events import CommandReceived, Event
from pulsar_spark.protocol.frames import encode_raw_payload_command
from pulsar_spark.protocol.message_id import EARLIEST, MessageIdAdv, Position
from pulsar_spark.testing import EmbeddedBroker
from pulsar_spark.testing.rules import Seen
from pulsar_spark.testing.subscription import MAX_READ_ENTRIES
from tests import brief
from tests.engine.scripted_broker import Entry, ScriptedBroker, Session, T
from tests.engine.test_connection import connected, kind_of, request_of
from tests.engine.topics import add_plain, batch_body, pretend_empty, quick, stored_entry
from tests.support.waiting import wait_until

TOPIC = "persistent://public/default/t"
DELIVERED, DROPPED, UNREACHED = ReadBack.DELIVERED, ReadBack.DROPPED, ReadBack.UNREACHED

QUESTION = ("LOOKUP", "SUBSCRIBE", "FLOW", "GET_LAST_MESSAGE_ID")


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as made:
        made.create_topic(TOPIC)
        yield made
        for name in made.topics():
            wait_until(lambda name=name: not made.subscriptions(name))  # type: ignore[misc]
        assert made.internal_errors == ()


@pytest.fixture
def pool(broker: EmbeddedBroker) -> Iterator[ConnectionPool]:
    with ConnectionPool(quick(broker)) as made:
        yield made


def add(
    broker: EmbeddedBroker,
    topic: str = TOPIC,
    txn: TxnId | None = None,
    payloads: tuple[bytes, ...] = (b"x",),
) -> Position:
    """Store a batch, in a transaction if given."""
    entry = stored_entry(batch_body(payloads), num_messages_in_batch=len(payloads))
    metadata = pb.MessageMetadata(num_messages_in_batch=len(payloads))
    if txn is not None:
        metadata.MergeFrom(pb.MessageMetadata(**commands.txn_fields(txn)))
    return Position(
        *broker._call(lambda server: server.topics.topics[topic].append(entry, metadata, txn))
    )


def end(broker: EmbeddedBroker, txn: TxnId, *, commit: bool, topic: str = TOPIC) -> None:
    broker._call(lambda server: server.topics.topics[topic].end_transaction(txn, commit=commit))


def at(entries: list[Position], topic: str = TOPIC) -> list[tuple[str, Position]]:
    return [(topic, entry) for entry in entries]


def seen(broker: EmbeddedBroker, topic: str = TOPIC) -> list[int]:
    """Return how many commands of each kind a question has cost."""
    return [broker.faults.seen(kind, topic) for kind in QUESTION]


# --- what is found --------------------------------------------------------------------------------


def a_topic(broker: EmbeddedBroker, topic: str, rng: random.Random) -> dict[Position, ReadBack]:
    """Fill a topic with transactions; return what readers get at positions in and around it."""
    broker.create_topic(topic)
    entries: list[tuple[Position, TxnId | None]] = []
    aborted: set[TxnId] = set()
    still: list[TxnId] = []
    for number in range(rng.randrange(5, 40)):
        what = rng.random()
        if what < 0.5:
            txn = None
            if rng.random() < 0.8:
                txn = rng.choice([*still, TxnId(0, number)])
                still = list(dict.fromkeys([*still, txn]))
            payloads = (b"x" * rng.randrange(50),) * rng.randrange(1, 6)
            entries.append((add(broker, topic, txn, payloads), txn))
        elif what < 0.8 and still:
            txn = still.pop(rng.randrange(len(still)))
            commit = rng.random() < 0.5
            end(broker, txn, commit=commit, topic=topic)
            if not commit:
                aborted.add(txn)
        elif what < 0.9:
            broker.skip_entries(topic, rng.choice([1, 3, module._MAX_GAP + 1]))
        else:
            broker.roll_ledger(topic)
    while still and rng.random() < 0.7:
        end(broker, still.pop(), commit=True, topic=topic)
    kept = Position(-1, -1)
    if entries and rng.random() < 0.3:
        kept = rng.choice(entries)[0]
        broker.trim(topic, kept)
    read_until = min((entry for entry, txn in entries if txn in still), default=Position(10**9, 0))
    readable = [
        entry
        for entry, txn in entries
        if kept <= entry < read_until and txn not in aborted and txn not in still
    ]
    places = {Position(entry.ledger_id, entry.entry_id + n) for entry, _ in entries for n in (0, 1)}
    return {
        place: DELIVERED
        if place in readable
        else (DROPPED if any(entry > place for entry in readable) else UNREACHED)
        for place in places
    }


@pytest.mark.parametrize("precise_flow", [False, True])
def test_interleaved_transactions_gaps_ledgers_and_trims_are_told_apart(precise_flow: bool) -> None:
    rng = random.Random(f"read back {precise_flow}")
    with (
        EmbeddedBroker(precise_flow=precise_flow) as broker,
        ConnectionPool(quick(broker)) as pool,
    ):
        expected = {
            (topic, place): what
            for number in range(20)
            for topic in [f"{TOPIC}-{number}"]
            for place, what in a_topic(broker, topic, rng).items()
        }
        assert set(expected.values()) == set(ReadBack)
        questions = list(expected)
        rng.shuffle(questions)
        found = read_back(pool, questions)
        assert dict(zip(questions, found, strict=True)) == expected
        assert broker.internal_errors == ()


def test_an_aborted_last_entry_is_not_taken_for_a_delivered_one(
    broker: EmbeddedBroker, pool: ConnectionPool
) -> None:
    """Reading gets beyond it all the same."""
    transactions = [TxnId(0, number) for number in range(3)]
    entries = [add(broker, txn=txn) for txn in transactions]
    for txn in transactions:
        end(broker, txn, commit=txn != transactions[1])
    assert read_back(pool, at(entries)) == [DELIVERED, DROPPED, DELIVERED]
    last = add(broker, txn=TxnId(0, 9))
    end(broker, TxnId(0, 9), commit=False)
    assert read_back(pool, at([*entries, last])) == [DELIVERED, DROPPED, DELIVERED, UNREACHED]


def test_what_is_behind_an_open_transaction_is_not_reached(
    broker: EmbeddedBroker, pool: ConnectionPool
) -> None:
    plain = add_plain(broker, TOPIC, b"x")
    before = Position(plain.ledger_id, plain.entry_id)
    held = add(broker, txn=TxnId(0, 0))
    behind = [add(broker) for _ in range(3)]
    questions = at([*behind, held, before])
    assert read_back(pool, questions) == [UNREACHED] * 4 + [DELIVERED]
    assert seen(broker) == [1, 1, 1, 1]
    end(broker, TxnId(0, 0), commit=True)
    assert read_back(pool, questions) == [DELIVERED] * 5


def test_a_topic_that_is_missing_is_an_error_in_its_place(
    broker: EmbeddedBroker, pool: ConnectionPool
) -> None:
    entry = add(broker)
    missing = TOPIC + "-missing"
    broker.create_topic(TOPIC + "-empty")
    found = read_back(pool, [(missing, entry), (TOPIC, entry), (TOPIC + "-empty", entry)])
    assert found[1:] == [DELIVERED, UNREACHED]
    assert isinstance(found[0], TopicNotFound)
    assert found[0].topic == missing
    assert read_back(pool, []) == []


# --- what it costs --------------------------------------------------------------------------------


@pytest.mark.parametrize("entries", [1, 64])
def test_entries_that_are_close_together_cost_one_question(
    broker: EmbeddedBroker, pool: ConnectionPool, entries: int
) -> None:
    places = [add(broker, payloads=(b"x",) * 100) for _ in range(entries)]
    assert read_back(pool, at(places)) == [DELIVERED] * entries
    assert seen(broker) == [1, 1, 1, 1]
    assert broker.faults.seen("MESSAGE") == entries


def test_a_long_gap_is_not_read(broker: EmbeddedBroker, pool: ConnectionPool) -> None:
    places = []
    for _ in range(3):
        places += [add(broker), add(broker)]
        for _ in range(module._MAX_GAP):
            add(broker)
    assert read_back(pool, at(places)) == [DELIVERED] * 6
    assert seen(broker) == [3, 3, 3, 3]
    assert broker.faults.seen("MESSAGE") == 6


def test_large_entries_between_are_read_up_to_a_bound(
    broker: EmbeddedBroker, pool: ConnectionPool
) -> None:
    places = []
    for _ in range(5):
        places.append(add(broker))
        for _ in range(2):
            add(broker, payloads=(bytes(module._GAP_BYTES - 1000),))
    assert read_back(pool, at(places)) == [DELIVERED] * 5
    # Five of them may come for five questions. With the sixth, two questions are left, each of
    # which then has a subscription.
    assert broker.faults.seen("SUBSCRIBE", TOPIC) == 3


def test_batches_that_use_up_the_permits_cost_more_permits_only(
    broker: EmbeddedBroker, pool: ConnectionPool
) -> None:
    places = [add(broker, payloads=(b"x",) * 2) for _ in range(MAX_READ_ENTRIES + 50)]
    assert read_back(pool, at(places)) == [DELIVERED] * len(places)
    assert seen(broker) == [1, 1, 2, 1]


# --- what goes wrong ------------------------------------------------------------------------------


def close_each(broker: EmbeddedBroker, number: int) -> None:
    """Close the connection instead of every so-manieth delivery."""
    sent = [0]

    def is_it(_: Seen) -> bool:
        sent[0] += 1
        return sent[0] % number == 0

    broker.faults.close("MESSAGE", times=None, when=is_it)


@pytest.mark.fault(18)
def test_what_was_seen_before_the_connection_broke_is_not_asked_again(
    broker: EmbeddedBroker, pool: ConnectionPool
) -> None:
    places = [add(broker) for _ in range(8)]
    close_each(broker, 4)
    assert read_back(pool, at(places)) == [DELIVERED] * 8
    starts = [one.body.start_message_id.entryId for one in broker.faults.log("SUBSCRIBE", TOPIC)]
    assert starts == [places[0].entry_id, places[3].entry_id, places[6].entry_id]


def test_an_error_after_some_answers_is_none_before_it_comes_again(
    broker: EmbeddedBroker, pool: ConnectionPool
) -> None:
    """So a question about many entries has no less time for each than many questions have."""
    places = [add(broker) for _ in range(8)]
    broker.faults.close("MESSAGE", after=3)
    with broker.faults.error("SUBSCRIBE", pb.AuthorizationError, after=1):
        assert read_back(pool, at(places)) == [DELIVERED] * 8
    broker.faults.close("MESSAGE", after=3)
    with broker.faults.error("SUBSCRIBE", pb.AuthorizationError, after=1, times=None):
        found = read_back(pool, at(places))
    assert found[:3] == [DELIVERED] * 3
    assert all(isinstance(error, AuthorizationError) for error in found[3:])


@pytest.mark.fault(14)
def test_an_unload_on_the_way_is_survived(broker: EmbeddedBroker, pool: ConnectionPool) -> None:
    places = [add(broker) for _ in range(5)]
    broker.faults.call("GET_LAST_MESSAGE_ID", lambda _: broker.unload(TOPIC), times=2)
    assert read_back(pool, at(places)) == [DELIVERED] * 5


@pytest.mark.fault(14)
def test_a_broker_that_sends_nothing_is_asked_anew(
    broker: EmbeddedBroker, pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_FIRST_PATIENCE", 0.2)
    places = [add(broker) for _ in range(5)]
    broker.faults.drop("FLOW")
    assert read_back(pool, at(places)) == [DELIVERED] * 5
    broker.faults.drop("FLOW", times=None)
    (late,) = read_back(pool, at(places[:1]), 0.5)
    assert isinstance(late, ConnectionLost | OperationTimeout)
    broker.faults.clear()


def test_a_broker_that_sends_slowly_is_waited_for_as_long_as_something_comes() -> None:
    def script(session: Session, event: Event) -> bool:
        if kind_of(event) == T.GET_LAST_MESSAGE_ID:
            last = MessageIdAdv(5, 2).to_pb()
            session.send(brief.last_id_response(request_of(event), last))
        return kind_of(event) == T.GET_LAST_MESSAGE_ID

    entries = module._Sightings([Position(5, number) for number in range(3)])
    with ScriptedBroker(script) as server:
        wanted = SubscribeRequest(TOPIC, "p", Position(5, 0))
        with ConsumerSession(connected(server), wanted, entries) as session:
            run(session.subscribe, 5.0)
            patience = EntryWait()
            watch = module._watch(session, entries, Deadline(5.0), patience)
            asked = watch.send(None)
            assert isinstance(asked, Future)
            watch.send(asked.result(5))
            server.sessions[0].send_entry(session.consumer_id, Entry(5, 0, [b"x"]))
            wait_until(lambda: entries.received == 1)
            watch.throw(OperationTimeout("nothing yet"))
            with pytest.raises(ConnectionLost):
                watch.throw(OperationTimeout("nothing yet"))
            session.connection.close()
    assert entries.answers() == {Position(5, 0): DELIVERED}


@pytest.mark.fault(14)
def test_that_nothing_is_reached_is_believed_of_no_consumer_that_the_broker_lost(
    broker: EmbeddedBroker, pool: ConnectionPool
) -> None:
    places = [add(broker) for _ in range(3)]
    pretend_empty(broker, times=2)
    assert read_back(pool, at(places)) == [DELIVERED] * 3
    broker.faults.clear()


Script = Callable[[Session, Event], bool]


def telling(last: MessageIdAdv, done: MessageIdAdv | None, *entries: MessageIdAdv) -> Script:
    """Tell a topic's last message and the mark-delete position, and deliver damaged entries."""

    def script(session: Session, event: Event) -> bool:
        kind = kind_of(event)
        if kind == T.GET_LAST_MESSAGE_ID:
            mark = None if done is None else done.to_pb()
            answer = brief.last_id_response(request_of(event), last.to_pb(), mark)
            session.send(answer)
        elif kind == T.FLOW:
            assert isinstance(event, CommandReceived)
            assert isinstance(event.body, pb.CommandFlow)
            for message_id in entries:
                command = brief.message(event.body.consumer_id, message_id.to_pb())
                for part in encode_raw_payload_command(command, b"\x00\x00\xff\xff"):
                    session.send_bytes(bytes(part))
        return kind in (T.GET_LAST_MESSAGE_ID, T.FLOW)

    return script


def test_an_entry_that_makes_no_sense_is_delivered_and_an_id_that_makes_none_an_error() -> None:
    script = telling(MessageIdAdv(5, 7), None, MessageIdAdv(5, 6), EARLIEST)
    with ScriptedBroker(script) as server, ConnectionPool(server.options()) as pool:
        found = read_back(pool, at([Position(5, 6), Position(5, 7)]))
    assert found[0] is DELIVERED
    assert isinstance(found[1], RemoteProtocolError)


def test_what_the_broker_has_skipped_up_to_the_end_is_not_waited_for() -> None:
    script = telling(MessageIdAdv(5, 7), MessageIdAdv(5, 7))
    with ScriptedBroker(script) as server, ConnectionPool(server.options()) as pool:
        found = read_back(pool, at([Position(5, 6), Position(5, 7)]))
        assert found == [UNREACHED] * 2
        # The cursor may have been moved: another one must show the same.
        assert len(server.commands(T.SUBSCRIBE)) == 2
