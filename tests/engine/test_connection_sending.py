"""Connections: entries that are written together arrive one by one, in order."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.producers.producer_session import Identity, ProducerSession
from pulsar_spark.errors import ClosedError, ConnectionLost, PulsarError
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.events import CommandReceived, Event
from pulsar_spark.protocol.frame_parts import Frame
from pulsar_spark.protocol.send_encoder import PythonSendEncoder
from tests import brief
from tests.engine.producing import NO_ID, TOPIC, connection_for, topic
from tests.engine.scripted_broker import ScriptedBroker, Session
from tests.engine.test_connection_handlers import Recorder
from tests.engine.test_producer_session import Owner
from tests.support.asking import register
from tests.support.waiting import finish, wait_until


def frames(producer_id: int, count: int) -> list[Buffer]:
    payloads = [b"%d" % number for number in range(count)]
    return PythonSendEncoder(producer_id, "p").encode(payloads, None, None, 0, 1, 1)[0]


def test_entries_that_are_sent_together_arrive_in_order() -> None:
    with topic() as (script, context, _):
        connection = connection_for(context)
        session = ProducerSession(Owner(), connection)
        register(session, Identity(TOPIC, None, user_provided_name=False))
        connection.put_sends(session.producer_id, frames(session.producer_id, 100))
        connection.write(5)
        connection.put_sends(session.producer_id, frames(session.producer_id, 1))
        connection.write()
        wait_until(lambda: len(script.sends) == 101)
        assert script.sequence_ids == [*range(100), 0]
        assert [sent.payload for sent in script.sends][99] == b"99"


def test_entries_of_a_producer_that_is_gone_are_pointless() -> None:
    with topic() as (script, context, _):
        connection = connection_for(context)
        owner = Owner()
        session = ProducerSession(owner, connection)
        register(session, Identity(TOPIC, None, user_provided_name=False))
        script.producers[0][0].send(brief.close_producer(session.producer_id, NO_ID))
        assert owner.changed.wait(5)
        connection.put_sends(session.producer_id, frames(session.producer_id, 2))
        assert not connection._writer._queue
        connection.close()
        with pytest.raises(ClosedError):
            connection.put_sends(session.producer_id, frames(session.producer_id, 2))


# --- a broker that reads slowly, or not at all ------------------------------------------------

MIB = 1024 * 1024


class Slow:
    """A broker that stops reading at a lookup of `t`, until `go` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.received = 0

    def __call__(self, session: Session, event: Event) -> bool:
        if isinstance(event, CommandReceived) and event.kind == pb.BaseCommand.LOOKUP:
            self.go.wait(60)
        if isinstance(event, Frame):
            self.received += 1
            return True
        return False


@contextlib.contextmanager
def slow_broker(**options: Any) -> Iterator[tuple[Slow, ClientConnection, int]]:
    """Run a broker that does not read, and a connection with an open producer."""
    script = Slow()
    with ScriptedBroker(script) as broker:
        connection = ClientConnection(broker.broker, broker.options(**options)).open()
        producer_id = connection.handlers.add_producer(Recorder())
        connection.request(commands.request(pb.CommandProducer, topic="t", producer_id=producer_id))
        connection.request_async(commands.request(pb.CommandLookupTopic, topic="t"), 60)
        yield script, connection, producer_id
        script.go.set()
        connection.close()


def megabytes(producer_id: int, count: int) -> list[Buffer]:
    encoder = PythonSendEncoder(producer_id, "p")
    frames = (encoder.encode([bytes(MIB)], None, None, number, 1, 1) for number in range(count))
    return [buffer for buffers, _ in frames for buffer in buffers]


def send(connection: ClientConnection, producer_id: int, count: int, timeout: float) -> None:
    connection.put_sends(producer_id, megabytes(producer_id, count))
    connection.write(timeout)


def started(function: Callable[..., object], *args: object) -> threading.Thread:
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


@pytest.mark.fault(7)
def test_what_senders_gave_is_no_answer_that_the_broker_does_not_take() -> None:
    """The receive thread writes what is queued, also megabytes of other threads."""
    with slow_broker() as (script, connection, producer_id):
        failed: list[PulsarError] = []
        sent = threading.Event()

        def on_answer(answer: Future[Any]) -> None:
            # On the receive thread.
            try:
                send(connection, producer_id, 32, 60)
            except PulsarError as error:
                failed.append(error)
            sent.set()

        question = connection.request_async(
            commands.request(pb.CommandLookupTopic, topic="u"), 0.01
        )
        question.add_done_callback(on_answer)
        assert sent.wait(30)
        assert not failed
        assert not connection.closed
        script.go.set()
        wait_until(lambda: script.received == 32)


@pytest.mark.fault(7)
def test_a_sender_that_waits_for_its_turn_does_not_end_the_connection_of_all() -> None:
    with slow_broker(operation_timeout=60.0) as (script, connection, producer_id):
        first = started(send, connection, producer_id, 32, 60.0)
        wait_until(connection._writer._turn.locked)
        send(connection, producer_id, 1, 0.05)
        assert not connection.closed
        assert first.is_alive()
        script.go.set()
        wait_until(lambda: script.received == 33)
        finish(first)


@pytest.mark.fault(7)
def test_a_sender_whose_time_is_up_leaves_the_rest_to_the_receive_thread() -> None:
    with slow_broker(operation_timeout=60.0) as (script, connection, producer_id):
        send(connection, producer_id, 32, 0.05)
        assert not connection.closed
        script.go.set()
        wait_until(lambda: script.received == 32)


@pytest.mark.fault(7)
def test_requests_and_commands_never_wait_for_a_broker_that_does_not_read() -> None:
    with slow_broker(operation_timeout=60.0) as (script, connection, producer_id):
        first = started(send, connection, producer_id, 32, 60.0)
        wait_until(connection._writer._turn.locked)
        answer = connection.request_async(commands.request(pb.CommandLookupTopic, topic="u"))
        connection.send(commands.build(pb.CommandPing))
        assert first.is_alive()
        script.go.set()
        assert answer.result(30)
        finish(first)


@pytest.mark.fault(7)
def test_a_broker_that_takes_no_data_for_the_operation_timeout_is_given_up() -> None:
    with slow_broker(operation_timeout=0.5) as (_, connection, producer_id):
        send(connection, producer_id, 32, 0.05)
        wait_until(lambda: connection.closed)
        with pytest.raises(ConnectionLost, match=r"the broker took no data for 0\.5 s"):
            connection.send(commands.build(pb.CommandPing))
