from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from pulsar_spark.engine.authentication.providers import TokenAuth
from pulsar_spark.engine.connections import connection as module
from pulsar_spark.engine.connections.addresses import BrokerAddress
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.connections.transport import Transport
from pulsar_spark.errors import (
    AuthenticationError,
    ClosedError,
    ConnectError,
    ConnectionLost,
    OperationTimeout,
    PulsarError,
    RemoteProtocolError,
    TopicNotFound,
)
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.events import CommandReceived, Event
from pulsar_spark.protocol.frames import encode_command
from pulsar_spark.protocol.send_encoder import PythonSendEncoder
from tests import brief
from tests.engine.gathering import record_gathering
from tests.engine.scripted_broker import Entry, ScriptedBroker, Session
from tests.engine.test_connection_handlers import Recorder
from tests.support.waiting import finish, is_in, wait_until

T = pb.BaseCommand


def kind_of(event: Event) -> int:
    return event.kind if isinstance(event, CommandReceived) else -1


def request_of(event: Event) -> int:
    assert isinstance(event, CommandReceived)
    assert event.request_id is not None
    return event.request_id


def connected(broker: ScriptedBroker, **changes: object) -> ClientConnection:
    return ClientConnection(broker.broker, broker.options(**changes)).open()


def look_up(request_id: int) -> pb.BaseCommand:
    return commands.build(pb.CommandLookupTopic, topic="t", request_id=request_id)


def only(*kinds: int) -> Callable[[Session, Event], bool]:
    """Return a script that does not answer commands of these types."""
    return lambda session, event: kind_of(event) in kinds


def subscribe(connection: ClientConnection, consumer_id: int) -> None:
    connection.request(lambda r: brief.subscribe("t", "s", consumer_id, r))


def test_requests_get_their_answers() -> None:
    with ScriptedBroker() as broker:
        connection = connected(broker)
        answer = connection.request(look_up)
        assert answer.brokerServiceUrl == f"pulsar://{broker.address}"
        connection.close()


def test_answers_can_come_in_any_order() -> None:
    held: list[int] = []

    def script(session: Session, event: Event) -> bool:
        if kind_of(event) != T.LOOKUP:
            return False
        held.append(request_of(event))
        if len(held) == 3:
            for request_id in reversed(held):
                session.send(
                    brief.lookup_response(
                        request_id,
                        pb.CommandLookupTopicResponse.Connect,
                        brokerServiceUrl=f"pulsar://h:{request_id + 1}",
                    )
                )
        return True

    with ScriptedBroker(script) as broker:
        connection = connected(broker)
        futures = [connection.request_async(look_up) for _ in range(3)]
        urls = [future.result(5).brokerServiceUrl for future in futures]
        assert urls == [f"pulsar://h:{request_id + 1}" for request_id in held]
        connection.close()


def test_a_refusal_is_raised_as_the_error_of_its_code() -> None:
    def script(session: Session, event: Event) -> bool:
        if kind_of(event) != T.LOOKUP:
            return False
        session.send(brief.error(request_of(event), pb.TopicNotFound, "no t"))
        return True

    with ScriptedBroker(script) as broker:
        connection = connected(broker)
        with pytest.raises(TopicNotFound, match="no t") as caught:
            connection.request(look_up)
        assert caught.value.broker == broker.address
        connection.close()


@pytest.mark.fault(24, 25)
def test_answers_nobody_waits_for_are_ignored_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def script(session: Session, event: Event) -> bool:
        if kind_of(event) == T.LOOKUP:
            for request_id in (12345, 12346):
                session.send(commands.build(pb.CommandSuccess, request_id=request_id))
            broker.answer(session, event)
            broker.answer(session, event)
            return True
        return False

    with ScriptedBroker(script) as broker, caplog.at_level(logging.WARNING):
        connection = connected(broker)
        for _ in range(3):
            connection.request(look_up)
        connection.close()
    assert len([r for r in caplog.records if "is not open" in r.message]) == 1


@pytest.mark.fault(25)
def test_an_answer_that_does_not_come_is_a_timeout_and_a_late_one_is_ignored() -> None:
    late: list[tuple[Session, Event]] = []

    def script(session: Session, event: Event) -> bool:
        if kind_of(event) == T.LOOKUP and not late:
            late.append((session, event))
            return True
        return False

    with ScriptedBroker(script) as broker:
        connection = connected(broker)
        started = time.monotonic()
        with pytest.raises(OperationTimeout, match=r"did not answer LOOKUP within 0\.1 s"):
            connection.request(look_up, timeout=0.1)
        assert time.monotonic() - started < 15
        broker.answer(*late[0])
        assert connection.request(look_up).response == pb.CommandLookupTopicResponse.Connect
        connection.close()


def test_a_future_times_out_by_itself() -> None:
    with ScriptedBroker(only(T.LOOKUP)) as broker:
        connection = connected(broker)
        future = connection.request_async(look_up, timeout=0.05)
        assert isinstance(future.exception(5), OperationTimeout)
        connection.close()


@pytest.mark.fault(25)
def test_a_producer_that_must_wait_gets_its_second_answer() -> None:
    def script(session: Session, event: Event) -> bool:
        if kind_of(event) != T.PRODUCER:
            return False
        request_id = request_of(event)
        session.send(brief.producer_success(request_id, "waiting", producer_ready=False))
        session.send(brief.producer_success(request_id, "ready"))
        return True

    with ScriptedBroker(script) as broker:
        connection = connected(broker)
        producer_id = connection.handlers.add_producer(Recorder())
        answer = connection.request(
            commands.request(pb.CommandProducer, topic="t", producer_id=producer_id)
        )
        assert answer.producer_name == "ready"
        connection.close()


@pytest.mark.fault(22)
def test_a_message_before_the_answer_to_subscribe_is_delivered() -> None:
    def script(session: Session, event: Event) -> bool:
        if kind_of(event) == T.SUBSCRIBE:
            consumer_id = broker.commands(T.SUBSCRIBE)[0].consumer_id
            session.send_entry(consumer_id, Entry(1, 1, [b"early"]))
        return False

    with ScriptedBroker(script) as broker:
        connection = connected(broker)
        handler = Recorder()
        subscribe(connection, connection.handlers.add_consumer(handler))
        assert handler.names == ["messages"]
        connection.close()


@pytest.mark.fault(8)
def test_ping_is_answered_while_a_handlers_owner_is_busy() -> None:
    with ScriptedBroker() as broker:
        connection = connected(broker)
        connection.request(look_up)
        session = broker.sessions[0]
        for _ in range(5):
            session.send(commands.build(pb.CommandPing))
            time.sleep(0.02)
        assert not connection.closed
        connection.close()


class StuckSender(threading.Thread):
    """A thread that sends for ever, on a connection whose broker reads nothing after a LOOKUP."""

    def __init__(self, connection: ClientConnection) -> None:
        super().__init__()
        self.connection = connection
        self.producer_id = connection.handlers.add_producer(Recorder())
        self.failed: list[PulsarError] = []
        connection.request(
            commands.request(pb.CommandProducer, topic="t", producer_id=self.producer_id), 60
        )
        self.waiting = connection.request_async(look_up, 600)
        self.start()

    def run(self) -> None:
        encoder = PythonSendEncoder(self.producer_id, "p")
        try:
            for number in range(1000):
                send, _ = encoder.encode([bytes(1024 * 1024)], None, None, number, 1, 1)
                self.connection.put_sends(self.producer_id, send)
                self.connection.write(600)
        except PulsarError as error:
            self.failed.append(error)


@pytest.mark.fault(7, 8)
def test_what_the_broker_sends_is_read_while_a_sender_is_stuck() -> None:
    go_on = threading.Event()
    with ScriptedBroker(lambda at, event: kind_of(event) == T.LOOKUP and go_on.wait(600)) as broker:
        connection = connected(broker, operation_timeout=600)
        handler = Recorder()
        consumer_id = connection.handlers.add_consumer(handler)
        subscribe(connection, consumer_id)
        sender = StuckSender(connection)
        wait_until(lambda: is_in(sender, "wait_writable"))
        broker.sessions[0].send_entry(consumer_id, Entry(1, 1, [b"x"]))
        wait_until(lambda: handler.names == ["messages"])
        assert sender.is_alive()
        connection.close()
        finish(sender)
        assert isinstance(sender.failed[0], ClosedError | ConnectionLost)
        go_on.set()


@pytest.mark.fault(7, 8)
def test_a_broker_that_takes_nothing_from_a_sender_is_given_up_in_time() -> None:
    go_on = threading.Event()
    with ScriptedBroker(lambda at, event: kind_of(event) == T.LOOKUP and go_on.wait(600)) as broker:
        connection = connected(broker, operation_timeout=0.5)
        handler = Recorder()
        connection.handlers.add_consumer(handler)
        sender = StuckSender(connection)
        finish(sender)
        assert isinstance(sender.failed[0], OperationTimeout)
        assert connection.closed
        assert isinstance(sender.waiting.exception(60), ConnectionLost)
        wait_until(lambda: handler.names == ["disconnect"])
        go_on.set()
        connection.close()


@pytest.mark.fault(5)
def test_a_silent_peer_is_noticed() -> None:
    def script(session: Session, event: Event) -> bool:
        return kind_of(event) == T.SUBSCRIBE

    with ScriptedBroker(script) as broker:
        connection = connected(broker, keep_alive_interval=0.2)
        handler = Recorder()
        connection.handlers.add_consumer(handler)
        # From here on the broker neither reads nor answers.
        broker.sessions[0].reply = lambda data: []  # type: ignore[method-assign]
        started = time.monotonic()
        wait_until(lambda: connection.closed)
        assert time.monotonic() - started > 0.2
        wait_until(lambda: handler.names == ["disconnect"])
        assert "silent" in str(handler.calls[0][1])
        connection.close()


@pytest.mark.fault(5)
def test_a_connection_that_died_without_a_word_is_noticed_by_who_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SUSPICION", 0.2)
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    monkeypatch.setattr(module, "_TICK", 0.05)
    with ScriptedBroker() as broker:
        connection = connected(broker, keep_alive_interval=3600.0)
        assert connection.request(look_up)
        broker.sessions[0].reply = lambda data: []  # type: ignore[method-assign]
        with pytest.raises(ConnectionLost, match=r"silent for .* s after a PING"):
            connection.request(look_up, 60.0)
        assert connection.closed
        connection.close()


@pytest.mark.fault(5)
def test_a_broker_that_answers_pings_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SUSPICION", 0.1)
    monkeypatch.setattr(module, "PATIENCE", 30.0)
    monkeypatch.setattr(module, "_TICK", 0.05)
    with ScriptedBroker(only(T.LOOKUP)) as broker:
        connection = connected(broker, keep_alive_interval=3600.0)
        session = broker.sessions[0]
        reply, received = session.reply, bytearray()

        def listen(data: bytes) -> list[Event]:
            received.extend(data)
            return reply(data)

        session.reply = listen  # type: ignore[method-assign]
        asked = connection.request_async(look_up, 60.0)
        wait_until(lambda: received.count(encode_command(commands.build(pb.CommandPing))) >= 3)
        assert not asked.done()
        assert not connection.closed
        connection.close()


@pytest.mark.fault(7)
@pytest.mark.parametrize("asks", [True, False])
def test_pings_of_a_broker_that_no_longer_reads_are_no_sign_of_life(
    asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Pulsar does: with too many publishes pending it stops reading, perhaps for ever."""
    monkeypatch.setattr(module, "SUSPICION", 0.2)
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    monkeypatch.setattr(module, "_TICK", 0.05)
    with ScriptedBroker() as broker:
        connection = connected(broker, keep_alive_interval=3600.0 if asks else 0.5)
        session = broker.sessions[0]
        session.reply = lambda data: []  # type: ignore[method-assign]
        asked = connection.request_async(look_up, 3600.0) if asks else None

        def pinged() -> bool:
            with contextlib.suppress(OSError):
                session.send_unchecked(commands.build(pb.CommandPing))
            return connection.closed

        wait_until(pinged)
        if asked is not None:
            with pytest.raises(ConnectionLost, match=r"silent for .* s after a PING"):
                asked.result(60)
        connection.close()


def test_any_other_frame_counts_as_a_sign_of_life() -> None:
    with ScriptedBroker() as broker:
        connection = connected(broker, keep_alive_interval=1.0)
        session = broker.sessions[0]
        session.reply = lambda data: []  # type: ignore[method-assign]
        # Longer than it takes until the answer to the first PING is missed.
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            session.send_unchecked(commands.build(pb.CommandSuccess, request_id=99))
            time.sleep(0.02)
        assert not connection.closed
        connection.close()


def test_everybody_learns_once_that_the_connection_broke() -> None:
    with ScriptedBroker(only(T.LOOKUP)) as broker:
        connection = connected(broker)
        consumer, producer = Recorder(), Recorder()
        connection.handlers.add_consumer(consumer)
        connection.handlers.add_producer(producer)
        futures = [connection.request_async(look_up) for _ in range(3)]
        broker.sessions[0].drop()
        errors = [future.exception(5) for future in futures]
        assert all(isinstance(error, ConnectionLost) for error in errors)
        assert len(set(map(id, errors))) == 3
        wait_until(lambda: consumer.names == producer.names == ["disconnect"])
        connection.close()
        assert consumer.names == producer.names == ["disconnect"]
        assert isinstance(consumer.calls[0][1], ConnectionLost)


def test_a_closed_connection_refuses_everything() -> None:
    with ScriptedBroker() as broker:
        connection = connected(broker)
        handler = Recorder()
        connection.handlers.add_consumer(handler)
        connection.close()
        connection.close()
        assert connection.closed
        assert isinstance(handler.calls[0][1], ClosedError)
        with pytest.raises(ClosedError):
            connection.request(look_up)
        with pytest.raises(ClosedError):
            connection.send(commands.build(pb.CommandPing))
        with pytest.raises(ClosedError):
            connection.handlers.add_consumer(Recorder())
        with pytest.raises(ClosedError):
            connection.handlers.add_producer(Recorder())


def test_questions_about_a_consumer_end_when_the_broker_sends_it_away_and_a_seek_does_not() -> None:
    def script(session: Session, event: Event) -> bool:
        if kind_of(event) == T.SEEK:
            session.send(brief.close_consumer(consumer_id, commands.NO_REQUEST_ID))
            session.send(commands.build(pb.CommandSuccess, request_id=request_of(event)))
            return True
        return kind_of(event) in (T.GET_LAST_MESSAGE_ID, T.CONSUMER_STATS, T.ACK)

    with ScriptedBroker(script) as broker:
        connection = connected(broker)
        consumer_id = connection.handlers.add_consumer(Recorder())
        subscribe(connection, consumer_id)
        asking: list[Callable[[int], pb.BaseCommand]] = [
            commands.request(pb.CommandGetLastMessageId, consumer_id=consumer_id),
            commands.request(pb.CommandConsumerStats, consumer_id=consumer_id),
            commands.request(
                pb.CommandAck, consumer_id=consumer_id, ack_type=pb.CommandAck.Individual
            ),
        ]
        questions = [connection.request_async(each) for each in asking]
        connection.request(
            commands.request(pb.CommandSeek, consumer_id=consumer_id, message_publish_time=1)
        )
        for question in questions:
            with pytest.raises(ConnectionLost, match="closed the consumer"):
                question.result(5)
        # Nobody would answer those that come too late.
        for each in asking:
            with pytest.raises(ConnectionLost, match="closed the consumer"):
                connection.request(each)
        connection.close()


def test_callbacks_may_send() -> None:
    with ScriptedBroker() as broker:
        connection = connected(broker)
        second: Future[object] = Future()

        def again(first: Future[object]) -> None:
            connection.request_async(look_up).add_done_callback(
                lambda done: second.set_result(done.result())
            )

        connection.request_async(look_up).add_done_callback(again)
        assert isinstance(second.result(5), pb.CommandLookupTopicResponse)
        connection.close()


@pytest.mark.parametrize("can_wait", [1000, 0])
def test_the_next_read_gathers_bytes_where_a_consumer_can_wait(
    can_wait: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered = record_gathering(monkeypatch)
    with ScriptedBroker() as broker:
        connection = connected(broker)
        recorder = Recorder()
        recorder.can_wait = can_wait
        consumer_id = connection.handlers.add_consumer(recorder)
        subscribe(connection, consumer_id)
        broker.sessions[0].send_entry(consumer_id, Entry(1, 1, [b"x"]))
        wait_until(lambda: recorder.names == ["messages"])
        connection.request(look_up)
        connection.request(look_up)
        connection.close()
    assert sum(gathered) == can_wait


def test_a_handler_that_fails_ends_the_connection_and_hides_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Recorder):
        def on_messages(self, block: object) -> int:
            raise ZeroDivisionError

    with ScriptedBroker() as broker:
        connection = connected(broker)
        other = Recorder()
        connection.handlers.add_consumer(other)
        consumer_id = connection.handlers.add_consumer(Broken())
        subscribe(connection, consumer_id)
        broker.sessions[0].send_entry(consumer_id, Entry(1, 1, [b"x"]))
        wait_until(lambda: other.names == ["disconnect"])
        connection.close()
    assert "ZeroDivisionError" in caplog.text


# --- handshake --------------------------------------------------------------------------------


@pytest.mark.fault(41)
@pytest.mark.parametrize(
    "first_bytes, cause",
    [
        (b"\x15\x03\x01\x00\x02\x02\x46" + bytes(8), "TLS"),
        (b"\x16\x03\x03\x00\x7a" + bytes(8), "TLS"),
        (b"HTTP/1.1 400 Bad Request\r\n", "HTTP"),
        (b"<!DOCTYPE HTML>", "HTTP"),
        (b"<html><head>", "HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"),
    ],
)
def test_a_peer_that_speaks_something_else_is_named(first_bytes: bytes, cause: str) -> None:
    def script(session: Session, event: Event) -> bool:
        session.send_bytes(first_bytes)
        return True

    with ScriptedBroker(script) as broker:
        with pytest.raises(RemoteProtocolError, match=f"speaks {cause}") as caught:
            connected(broker)
        assert caught.value.broker == broker.address


@pytest.mark.fault(41)
def test_what_a_peer_of_another_protocol_sent_is_shown() -> None:
    def script(session: Session, event: Event) -> bool:
        session.send_bytes(b"220 mail.example ESMTP\r\n")
        return True

    with ScriptedBroker(script) as broker:
        with pytest.raises(RemoteProtocolError, match=r"sent '220 '….*6650") as caught:
            connected(broker)
        assert caught.value.broker == broker.address


@pytest.mark.fault(26, 27, 28)
@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", size) + bytes(20)
        for size in (0, 3, 5 * 1024 * 1024 + 10 * 1024 + 1, 2**31 - 1, 2**31, 2**32 - 1)
    ]
    + [struct.pack(">II", 12, size) + bytes(8) for size in (0, 9, 2**31)]
    + [struct.pack(">II", 15, 11) + b"\xff" * 11],
)
def test_hostile_frames_end_the_connection_with_our_own_error(data: bytes) -> None:
    with ScriptedBroker() as broker:
        connection = connected(broker)
        handler = Recorder()
        connection.handlers.add_consumer(handler)
        broker.sessions[0].send_bytes(data)
        wait_until(lambda: handler.names == ["disconnect"])
        error = handler.calls[0][1]
        assert isinstance(error, ConnectionLost)
        assert isinstance(error.__cause__, RemoteProtocolError)
        connection.close()


@pytest.mark.fault(42)
@pytest.mark.parametrize(
    "command",
    [
        brief.message(1, pb.MessageIdData(ledgerId=1, entryId=1)),
        commands.build(pb.CommandSuccess, request_id=1),
        brief.connected("again"),
    ],
    ids=["message", "success", "connected twice"],
)
def test_commands_out_of_turn_in_the_handshake_end_it(command: pb.BaseCommand) -> None:
    def script(session: Session, event: Event) -> bool:
        if command.type == T.CONNECTED:
            session.send(brief.connected("once"))
        session.send_unchecked(command)
        return True

    with ScriptedBroker(script) as broker:
        connection = ClientConnection(broker.broker, broker.options())
        error = connection.start().exception(5)
        assert command.type == T.CONNECTED or isinstance(error, RemoteProtocolError)
        wait_until(lambda: connection.closed)
        connection.close()


@pytest.mark.fault(42)
def test_receipts_and_messages_for_nobody_are_ignored() -> None:
    with ScriptedBroker() as broker:
        connection = connected(broker)
        session = broker.sessions[0]
        message_id = pb.MessageIdData(ledgerId=1, entryId=1)
        session.send_unchecked(brief.send_receipt(77, 1, message_id))
        session.send_entry(77, Entry(1, 1, [b"x"]))
        session.send_unchecked(brief.close_consumer(77, commands.NO_REQUEST_ID))
        assert connection.request(look_up).request_id is not None
        connection.close()


@pytest.mark.fault(43)
@pytest.mark.parametrize("size", [0, -1, 2**31 - 1])
def test_an_impossible_message_size_is_refused_or_bounded(size: int) -> None:
    def script(session: Session, event: Event) -> bool:
        session.send(brief.connected("b", max_message_size=size))
        return True

    with ScriptedBroker(script) as broker:
        connection = ClientConnection(broker.broker, broker.options())
        error = connection.start().exception(5)
        if size <= 0:
            assert isinstance(error, RemoteProtocolError)
        else:
            assert connection.max_message_size < 2**30
        connection.close()


def test_a_broker_that_does_not_answer_connect_is_a_timeout() -> None:
    expected = r"did not answer CONNECT within 0\.2 s"
    with (
        ScriptedBroker(lambda session, event: True) as broker,
        pytest.raises(ConnectError, match=expected),
    ):
        connected(broker, connection_timeout=0.2)


@pytest.mark.fault(1)
def test_a_reset_while_connecting_without_tls_says_nothing_about_tls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by a balancer whose broker restarts, and is back for the next connection."""
    connect, calls = Transport.connect, itertools.count()

    def reset_once(*args: Any, **more: Any) -> Transport:
        if not next(calls):
            raise ConnectError("no connection") from ConnectionResetError(errno.ECONNRESET, "reset")
        return connect(*args, **more)

    monkeypatch.setattr(Transport, "connect", reset_once)
    with ScriptedBroker() as broker:
        with pytest.raises(ConnectError, match="no connection"):
            connected(broker)
        connected(broker).close()


@pytest.mark.fault(45)
def test_a_refused_login_is_one_attempt_and_shows_no_secret() -> None:
    def script(session: Session, event: Event) -> bool:
        session.send_unchecked(
            brief.error(2**64 - 1, pb.AuthenticationError, "bad token: canary-1")
        )
        session.drop()
        return True

    with ScriptedBroker(script) as broker:
        connection = ClientConnection(broker.broker, broker.options(), TokenAuth("canary-1"))
        with pytest.raises(AuthenticationError) as caught:
            connection.open()
        assert "canary" not in str(caught.value)
        assert len(broker.sessions) == 1


def test_credentials_and_the_brokers_own_address_are_in_connect() -> None:
    with ScriptedBroker() as broker:
        address = BrokerAddress("broker-7:6650", broker.address)
        connection = ClientConnection(address, broker.options(), TokenAuth("secret")).open()
        (connect,) = broker.commands(T.CONNECT)
        assert (connect.auth_method_name, connect.auth_data) == ("token", b"secret")
        assert connect.proxy_to_broker_url == "broker-7:6650"
        assert connect.feature_flags.supports_auth_refresh
        connection.close()


class Refreshing:
    """Credentials that are new each time."""

    method_name = "token"

    def __init__(self) -> None:
        self.calls = 0

    def auth_data(self) -> bytes:
        self.calls += 1
        if self.calls > 3:
            raise ValueError("canary")
        return b"token-%d" % self.calls


@pytest.mark.fault(47, 48, 49)
def test_challenges_are_answered_with_fresh_credentials() -> None:
    with ScriptedBroker() as broker:
        connection = ClientConnection(broker.broker, broker.options(), Refreshing()).open()
        session = broker.sessions[0]
        for expected in (1, 2):
            session.send(brief.auth_challenge("b", "token"))
            wait_until(lambda n=expected: len(broker.commands(T.AUTH_RESPONSE)) == n)  # type: ignore[misc]
        given = [body.response.auth_data for body in broker.commands(T.AUTH_RESPONSE)]
        assert given == [b"token-2", b"token-3"]
        handler = Recorder()
        connection.handlers.add_consumer(handler)
        session.send(brief.auth_challenge("b", "token"))
        wait_until(lambda: handler.names == ["disconnect"])
        assert isinstance(handler.calls[0][1], AuthenticationError)
        assert "canary" not in str(handler.calls[0][1])
        connection.close()


@pytest.mark.fault(49)
def test_a_thousand_challenges_in_a_row_are_answered_by_one_thread() -> None:
    class Slow:
        method_name = "token"
        at_once = most = 0

        def auth_data(self) -> bytes:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            time.sleep(0.001)
            self.at_once -= 1
            return b"fresh"

    auth = Slow()
    with ScriptedBroker() as broker:
        connection = ClientConnection(broker.broker, broker.options(), auth).open()
        for _ in range(1000):
            broker.sessions[0].send(brief.auth_challenge("b", "token"))
        # It serves the others meanwhile.
        connection.request(commands.request(pb.CommandPartitionedTopicMetadata, topic="t"))
        wait_until(lambda: broker.commands(T.AUTH_RESPONSE))
        assert auth.most == 1
        assert len(broker.commands(T.AUTH_RESPONSE)) <= 1000
        assert not connection.closed
        connection.close()


@pytest.mark.fault(49)
def test_a_challenge_of_another_method_ends_the_connection() -> None:
    with ScriptedBroker() as broker:
        connection = connected(broker)
        handler = Recorder()
        connection.handlers.add_consumer(handler)
        broker.sessions[0].send(brief.auth_challenge("b", "kerberos", b""))
        wait_until(lambda: handler.names == ["disconnect"])
        assert "kerberos" in str(handler.calls[0][1])
        connection.close()


@pytest.mark.fault(49)
def test_endless_challenges_before_connected_are_bounded() -> None:
    def script(session: Session, event: Event) -> bool:
        session.send(brief.auth_challenge("b", "token", b""))
        return True

    with ScriptedBroker(script) as broker:
        connection = ClientConnection(broker.broker, broker.options(), TokenAuth("x"))
        with pytest.raises(AuthenticationError, match="more than 10 times"):
            connection.open()


# --- leaks and forks --------------------------------------------------------------------------


@pytest.mark.fault(75)
def test_neither_threads_nor_files_are_left_behind() -> None:
    before = set(threading.enumerate())
    with ScriptedBroker() as broker:
        connected(broker).close()
        # The thread that accepts connections is the scripted broker's.
        wait_until(lambda: len(set(threading.enumerate()) - before) <= 1)
        threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
        for number in range(20):
            connection = connected(broker)
            connection.request(look_up)
            if number % 2:
                broker.sessions[-1].drop()
            connection.close()
        wait_until(lambda: threading.active_count() <= threads)
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= files)


@pytest.mark.fault(4)
def test_a_failed_handshake_leaves_nothing_behind() -> None:
    for size in range(1, 30, 4):
        data = commands_bytes()[:size]

        def script(session: Session, event: Event, data: bytes = data) -> bool:
            session.send_bytes(data)
            linger = struct.pack("ii", 1, 0)
            session.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            session.socket.close()
            return True

        with ScriptedBroker(script) as broker:
            files = len(os.listdir("/proc/self/fd"))
            connection = ClientConnection(broker.broker, broker.options())
            assert isinstance(connection.start().exception(5), ConnectError | ConnectionLost)
            connection.close()
            wait_until(lambda n=files: len(os.listdir("/proc/self/fd")) <= n)  # type: ignore[misc]


def commands_bytes() -> bytes:
    return encode_command(brief.connected("some broker with a name"))


@pytest.mark.fault(75)
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_cannot_use_the_connection_and_does_it_no_harm() -> None:
    with ScriptedBroker() as broker:
        connection = connected(broker)
        child = os.fork()
        if child == 0:
            try:
                connection.request(look_up)
            except ClosedError:
                connection.close()
                os._exit(0 if connection.closed else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert connection.request(look_up).request_id >= 0
        connection.close()
