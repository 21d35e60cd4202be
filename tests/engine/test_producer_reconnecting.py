"""Producers: pending messages survive the loss of a broker, in order."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import sys
import termios
import threading
import time

import pytest

from pulsar_spark.engine.connections import connection as connections
from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.errors import (
    MessageTooLarge,
    PulsarError,
    TopicLost,
    TopicTerminated,
    UnsupportedFeature,
)
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.protocol.outgoing_messages import OutgoingMessages
from tests import brief
from tests.engine.producing import (
    NO_ID,
    Results,
    Sent,
    TopicScript,
    connection_for,
    drop_first_session,
    make,
    topic,
)
from tests.engine.scripted_broker import ScriptedBroker, Session
from tests.outgoing import single
from tests.support.waiting import wait_until


@pytest.mark.fault(11, 12)
def test_what_is_pending_is_sent_again_in_order_after_a_disconnect() -> None:
    with topic() as (script, context, _):
        drop_first_session(script, after=3)
        results = Results()
        producer = make(context)
        for number in range(5):
            producer.send(single(b"%d" % number, results))
        producer.flush()
        assert len(results.ids) == 5
        second = [sent for sent in script.sends if sent.session == 1]
        assert [sent.sequence_id for sent in second] == [2, 3, 4]
        assert [sent.payload for sent in second] == [b"2", b"3", b"4"]
        # The same bytes are sent again, so their checksum is still valid.
        (before,) = (s for s in script.sends if s.session == 0 and s.sequence_id == 2)
        assert before.metadata == second[0].metadata


def unsent(sock: socket.socket) -> int:
    """Return how many bytes the peer's host has not confirmed."""
    return int.from_bytes(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


@pytest.mark.fault(12)
def test_receipts_that_came_before_the_connection_broke_count() -> None:
    held, broken = threading.Event(), threading.Event()
    with topic() as (script, context, _):

        def on_send(session: Session, sent: Sent) -> bool:
            if session.number == 0 and sent.sequence_id == 3:
                # What the client's host does not have yet would be lost with the connection.
                wait_until(lambda: not unsent(session.socket))
                # Resets the connection, as the death of a broker with requests unread does.
                linger = struct.pack("ii", 1, 0)
                session.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                session.socket.close()
                broken.set()
                return True
            return False

        def hold(error: PulsarError | None, message_id: MessageIdAdv | None) -> None:
            held.set()
            assert broken.wait(30)
            # Finds the connection broken while receipts of the other messages wait to be read.
            with contextlib.suppress(PulsarError):
                connection.send(commands.build(pb.CommandPing))

        script.on_send = on_send
        producer, connection = make(context), connection_for(context)
        producer.send(single(b"0", hold))
        assert held.wait(30)
        for payload in (b"1", b"2", b"3"):
            producer.send(single(payload))
        producer.flush()
        assert [sent.sequence_id for sent in script.sends if sent.session == 1] == [3]


@pytest.mark.fault(12)
def test_a_producer_comes_back_under_the_name_it_was_given_and_a_higher_epoch() -> None:
    with topic() as (script, context, _):
        script.success = {"topic_epoch": 5}
        drop_first_session(script, after=1)
        producer = make(context)
        producer.send(single(b""))
        producer.close()
        first, second = (command for _, command in script.producers)
        assert not first.producer_name
        assert not first.user_provided_producer_name
        assert second.producer_name == f"given-{first.producer_id}" == producer.name
        assert not second.user_provided_producer_name
        assert (first.epoch, second.epoch) == (0, 1)
        assert second.producer_id == first.producer_id
        assert not first.HasField("topic_epoch")
        assert second.topic_epoch == 5


def test_a_name_of_the_user_is_said_to_be_one() -> None:
    with topic() as (script, context, _):
        producer = make(context, producer_name="mine", properties=(("a", "b"),))
        producer.open()
        command = script.producers[0][1]
        assert (command.producer_name, command.user_provided_producer_name) == ("mine", True)
        assert [(pair.key, pair.value) for pair in command.metadata] == [("a", "b")]
        assert producer.name == "mine"


@pytest.mark.fault(12)
def test_an_idle_producer_with_something_pending_comes_back_by_itself() -> None:
    with topic() as (script, context, _):
        drop_first_session(script, after=1)
        stored = threading.Event()
        producer = make(context)
        producer.send(single(b"", lambda error, _: stored.set()))
        assert stored.wait(10)


@pytest.mark.fault(5, 12)
def test_a_producer_leaves_a_broker_that_hangs_long_before_its_messages_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "SUSPICION", 0.2)
    monkeypatch.setattr(connections, "PATIENCE", 0.2)
    monkeypatch.setattr(connections, "_TICK", 0.05)
    with topic() as (script, context, _):

        def on_send(session: Session, sent: Sent) -> bool:
            if session.number == 0:
                session.reply = lambda data: []  # type: ignore[method-assign]
            return session.number == 0

        script.on_send = on_send
        stored = threading.Event()
        producer = make(context)
        producer.send(single(b"", lambda error, _: stored.set()))
        # The next PING would be due after half a minute.
        assert stored.wait(15)
        assert not producer.waits_for_receipts


@pytest.mark.fault(14)
def test_a_producer_that_the_broker_closes_opens_again_on_the_same_connection() -> None:
    with topic() as (script, context, broker):
        closes = [0]

        def on_send(session: Session, sent: Sent) -> bool:
            if sent.sequence_id == 2 and closes[0] < 3:
                closes[0] += 1
                session.send(brief.close_producer(sent.command.producer_id, NO_ID))
                return True
            return False

        script.on_send = on_send
        results = Results()
        producer = make(context)
        for _ in range(5):
            producer.send(single(b"", results))
        producer.close()
        assert len(results.ids) == 5
        assert len(broker.sessions) == 1
        assert len(script.producers) == 4


@pytest.mark.fault(15)
def test_the_broker_that_a_broker_names_is_asked_first_and_without_a_lookup() -> None:
    other_script = TopicScript()
    with topic() as (script, context, broker), ScriptedBroker(other_script) as other:

        def on_send(session: Session, sent: Sent) -> bool:
            command = brief.close_producer(
                sent.command.producer_id,
                NO_ID,
                assignedBrokerServiceUrl=f"pulsar://{other.address}",
                assignedBrokerServiceUrlTls="pulsar+ssl://localhost:1",
            )
            session.send(command)
            return True

        script.on_send = on_send
        producer = make(context)
        producer.send(single(b""))
        producer.close()
        assert len(broker.commands(pb.BaseCommand.LOOKUP)) == 1
        assert connection_for(context).handlers._closed_producers == {}
        assert not other.commands(pb.BaseCommand.LOOKUP)
        assert other_script.sequence_ids == [0]


@pytest.mark.fault(15)
@pytest.mark.parametrize(
    "named",
    [
        {"assignedBrokerServiceUrl": "pulsar://127.0.0.1:1"},
        {"assignedBrokerServiceUrl": "nonsense"},
        {"assignedBrokerServiceUrl": "pulsar+ssl://127.0.0.1:1"},
        {"assignedBrokerServiceUrlTls": "pulsar+ssl://127.0.0.1:1"},
        {"assignedBrokerServiceUrl": ""},
    ],
)
def test_a_named_broker_that_is_of_no_use_leaves_it_to_the_lookup(named: dict[str, str]) -> None:
    with topic() as (script, context, broker):

        def on_send(session: Session, sent: Sent) -> bool:
            if len(script.sends) > 1:
                return False
            session.send(brief.close_producer(sent.command.producer_id, NO_ID, **named))
            return True

        script.on_send = on_send
        producer = make(context)
        producer.send(single(b""))
        producer.close()
        assert len(broker.commands(pb.BaseCommand.LOOKUP)) == 2


@pytest.mark.fault(20)
def test_a_topic_that_went_to_another_cluster_is_an_error_at_once() -> None:
    with topic() as (script, context, _):

        def on_send(session: Session, sent: Sent) -> bool:
            kind = pb.CommandTopicMigrated.Producer
            session.send_unchecked(
                commands.build(
                    pb.CommandTopicMigrated,
                    resource_id=sent.command.producer_id,
                    resource_type=kind,
                )
            )
            return True

        script.on_send = on_send
        producer = make(context)
        producer.send(single(b""))
        began = time.monotonic()
        with pytest.raises(UnsupportedFeature, match="another cluster"):
            producer.flush()
        assert time.monotonic() - began < 15


@pytest.mark.fault(56)
def test_terminating_a_topic_fails_pending_messages_at_once() -> None:
    with topic() as (script, context, _):

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            if command.epoch:
                code = pb.TopicTerminatedError
                session.send(brief.error(command.request_id, code, "terminated"))
            return bool(command.epoch)

        def on_send(session: Session, sent: Sent) -> bool:
            session.send(brief.close_producer(sent.command.producer_id, NO_ID))
            return True

        script.on_producer, script.on_send = on_producer, on_send
        results = Results()
        producer = make(context)
        producer.send(single(b"", results))
        with pytest.raises(TopicTerminated):
            producer.flush()
        assert len(results.errors) == 1


def test_a_broker_that_takes_only_smaller_messages_now_is_an_error() -> None:
    script = TopicScript()
    with topic(script) as (_, context, broker):

        def on_send(session: Session, sent: Sent) -> bool:
            script.max_message_size = 100
            session.drop()
            return True

        script.on_send = on_send
        producer = make(context)
        producer.send(single(bytes(200)))
        with pytest.raises(MessageTooLarge, match="new broker, which takes 100"):
            producer.flush()
        assert len(broker.sessions) == 2


def test_the_largest_message_that_a_broker_takes_is_sent_again_too() -> None:
    script = TopicScript(max_message_size=1000)
    with topic(script) as (_, context, broker):
        producer = make(context, producer_name="p")
        producer.send(single(bytes(900)))
        producer.flush()
        around = script.sends[0].metadata.ByteSize()
        drop_first_session(script, after=2)
        producer.send(single(bytes(1000 - around)))
        producer.flush()
        assert [sent.metadata.ByteSize() + len(sent.payload) for sent in script.sends[1:]] == [
            1000,
            1000,
        ]
        assert len(broker.sessions) == 2
        with pytest.raises(MessageTooLarge):
            producer.send(single(bytes(1001 - around)))
        producer.close()


@pytest.mark.fault(177)
@pytest.mark.parametrize("lives", [True, False])
@pytest.mark.parametrize("versions", ["01", "0", "00"])
def test_nothing_is_sent_again_under_a_version_that_is_that_of_another_schema_now(
    versions: str, lives: bool
) -> None:
    """As on a topic that is deleted, and made again with the schema of somebody else."""
    all_sent = threading.Event()
    with topic() as (script, context, _):

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            assert not session.number or all_sent.wait(30)
            version = versions[session.number : session.number + 1].encode()
            script.let_in(session, command, schema_version=version)
            return True

        script.on_producer = on_producer
        drop_first_session(script, after=2)
        results = Results()
        options = ProducerOptions(send_timeout=30.0)
        producer = TopicProducer(context, "t", options, survives_timeouts=lives)
        for number in range(3):
            producer.send(single(b"%d" % number, results))
        all_sent.set()
        if versions == "00":
            producer.flush()
            assert len(results.ids) == 3
            return
        with pytest.raises(TopicLost, match=r"version of the schema changed .* made again"):
            producer.flush()
        assert (len(results.ids), [type(error) for error in results.errors]) == (1, [TopicLost] * 2)
        # What is sent from now on has the version of now.
        producer.send(single(b"3", results))
        producer.flush()
        assert len(results.ids) == 2
        later = [sent for sent in script.sends if sent.session == 1]
        assert [(sent.payload, sent.metadata.schema_version) for sent in later] == [
            (b"3", versions[1:].encode())
        ]


@pytest.mark.fault(11, 12)
@pytest.mark.parametrize("per_entry", [1, 7])
def test_only_the_unacknowledged_part_of_a_block_is_resent(per_entry: int) -> None:
    with topic() as (script, context, _):

        def on_send(session: Session, sent: Sent) -> bool:
            if session.number < 3 and sent.sequence_id >= 300 * (session.number + 1):
                session.drop()
                return True
            return False

        script.on_send = on_send
        producer = make(context)
        payloads = [b"%d" % number for number in range(1500)]
        producer.send(OutgoingMessages(payloads), per_entry)
        producer.close()
        assert producer.counts.acknowledged == 1500
        assert producer.last_sequence_id == 1499
        stored: dict[int, bytes] = {}
        for number in range(4):
            sends = [sent for sent in script.sends if sent.session == number]
            ids = [sent.sequence_id for sent in sends]
            # Each session begins with the oldest send without a receipt, and skips nothing.
            assert ids == list(range(ids[0], ids[-1] + 1, per_entry))
            assert number == 0 or ids[0] <= 300 * number + per_entry
            stored.update({sent.sequence_id: sent.payload for sent in sends})
        assert list(stored) == list(range(0, 1500, per_entry))
        assert context.budget.used == 0
