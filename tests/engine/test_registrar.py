"""Registering: what can pass is tried again under a deadline, what cannot is said at once."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time

import pytest

from pulsar_spark.engine import registrar
from pulsar_spark.engine.cluster import Cluster
from pulsar_spark.engine.options import ClientOptions, ProducerOptions
from pulsar_spark.engine.producer import Producer
from pulsar_spark.errors import (
    AuthorizationError,
    ClosedError,
    ConnectError,
    IncompatibleSchema,
    OperationTimeout,
    ProducerBusy,
    ProducerFenced,
    PulsarError,
    QuotaExceeded,
    TopicNotFound,
    TopicTerminated,
    UnsupportedFeature,
)
from pulsar_spark.protocol import answers, commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from tests.engine.producing import NO_ID, TOPIC, Sent, TopicScript, make, single, topic
from tests.engine.scripted_broker import ScriptedBroker, Session


def refuse_producers(script: TopicScript, code: int, times: int = 10**6) -> list[float]:
    """Refuse PRODUCER a number of times; return the list of when it came."""
    asked: list[float] = []

    def on_producer(session: Session, command: pb.CommandProducer) -> bool:
        asked.append(time.monotonic())
        if len(asked) > times:
            return False
        session.send(answers.error(command.request_id, code, "not now"))
        return True

    script.on_producer = on_producer
    return asked


@pytest.mark.fault(18, 19)
@pytest.mark.parametrize(
    "code", [pb.ServiceNotReady, pb.MetadataError, pb.PersistenceError, pb.TooManyRequests]
)
def test_what_can_pass_is_tried_again_with_growing_pauses(code: int) -> None:
    with topic() as (script, cluster, broker):
        asked = refuse_producers(script, code, times=3)
        make(cluster).open()
        pauses = [after - before for before, after in itertools.pairwise(asked)]
        for pause, least in zip(pauses, (0.09, 0.18, 0.36), strict=True):
            assert least <= pause < least + 1.0
        assert len(broker.sessions) == 1
        # A fresh lookup each time: the topic may be elsewhere by now.
        assert len(broker.commands(pb.BaseCommand.LOOKUP)) == 4


@pytest.mark.fault(46, 56, 64, 88)
@pytest.mark.parametrize(
    "code,kind",
    [
        (pb.AuthorizationError, AuthorizationError),
        (pb.TopicNotFound, TopicNotFound),
        (pb.TopicTerminatedError, TopicTerminated),
        (pb.ProducerFenced, ProducerFenced),
        (pb.IncompatibleSchema, IncompatibleSchema),
        (pb.ProducerBlockedQuotaExceededException, QuotaExceeded),
    ],
)
def test_what_cannot_pass_is_said_after_one_attempt(code: int, kind: type[PulsarError]) -> None:
    with topic() as (script, cluster, broker):
        asked = refuse_producers(script, code)
        producer = make(cluster)
        with pytest.raises(kind, match="not now") as raised:
            producer.send(single(b""))
        assert len(asked) == 1
        assert (raised.value.topic, raised.value.broker) == (TOPIC, broker.address)
        with pytest.raises(kind):
            producer.open()
        assert len(asked) == 1


@pytest.mark.fault(88)
def test_a_name_that_is_taken_is_tried_again_for_some_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with topic() as (script, cluster, _):
        refuse_producers(script, pb.ProducerBusy, times=3)
        make(cluster).open()
        monkeypatch.setattr(registrar, "BUSY_SECONDS", 0.5)
        asked = refuse_producers(script, pb.ProducerBusy)
        began = time.monotonic()
        with pytest.raises(ProducerBusy, match="its own"):
            make(cluster, producer_name="taken").open()
        assert 0.4 <= time.monotonic() - began < 4
        assert len(asked) > 2


@pytest.mark.fault(88)
def test_a_quota_that_holds_producers_back_is_an_error_at_the_deadline() -> None:
    with topic(operation_timeout=0.6) as (script, cluster, _):
        refuse_producers(script, pb.ProducerBlockedQuotaExceededError)
        with pytest.raises(OperationTimeout, match="backlog quota") as raised:
            make(cluster).open()
        assert raised.value.topic == TOPIC
        assert raised.value.__cause__ is not None


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.fault(1)
def test_a_broker_that_comes_up_late_is_waited_for() -> None:
    script = TopicScript()
    port = free_port()
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster(ClientOptions(f"pulsar://127.0.0.1:{port}")))
        producer = make(cluster)
        opening = threading.Thread(target=producer.open)
        opening.start()
        time.sleep(0.5)
        stack.enter_context(ScriptedBroker(script, port))
        opening.join(10)
        producer.send(single(b""))
        producer.close()


@pytest.mark.fault(1)
def test_a_broker_that_stays_away_is_an_error_at_the_deadline() -> None:
    url = f"pulsar://127.0.0.1:{free_port()}"
    with Cluster(ClientOptions(url, operation_timeout=0.5)) as cluster:
        began = time.monotonic()
        with pytest.raises(OperationTimeout, match="within") as raised:
            make(cluster).open()
        assert 0.2 <= time.monotonic() - began < 3
        assert isinstance(raised.value.__cause__, ConnectError)


@pytest.mark.fault(25)
def test_waiting_for_exclusive_access_ends_when_it_is_granted() -> None:
    with topic() as (script, cluster, _):

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            assert command.producer_access_mode == pb.WaitForExclusive
            script.let_in(session, command, producer_ready=False)
            threading.Timer(0.1, script.let_in, (session, command), {"topic_epoch": 3}).start()
            return True

        script.on_producer = on_producer
        producer = make(cluster, access_mode=pb.WaitForExclusive)
        producer.send(single(b""))
        producer.close()
        assert script.sequence_ids == [0]


@pytest.mark.fault(25)
def test_waiting_for_exclusive_access_ends_at_the_deadline_and_frees_the_name() -> None:
    with topic(operation_timeout=0.4) as (script, cluster, _):

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            script.let_in(session, command, producer_ready=False)
            return True

        script.on_producer = on_producer
        with pytest.raises(OperationTimeout):
            make(cluster, access_mode=pb.WaitForExclusive).open()
        script.wait_for(lambda: bool(script.closed))


@pytest.mark.fault(24)
def test_a_broker_that_never_answers_is_an_error_at_the_deadline_and_the_name_is_freed() -> None:
    with topic(operation_timeout=0.4) as (script, cluster, _):
        script.on_producer = lambda session, command: True
        began = time.monotonic()
        with pytest.raises(OperationTimeout):
            make(cluster).open()
        assert time.monotonic() - began < 3
        script.wait_for(lambda: bool(script.closed))


@pytest.mark.fault(14, 21)
def test_a_producer_closed_while_it_opens_is_opened_again_without_a_stall() -> None:
    with topic() as (script, cluster, _):

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            if len(script.producers) > 1:
                return False
            session.send(commands.close_producer(command.producer_id, NO_ID))
            return True

        script.on_producer = on_producer
        began = time.monotonic()
        make(cluster).open()
        assert time.monotonic() - began < 3


@pytest.mark.fault(21)
def test_a_producer_closed_right_after_it_opened_is_opened_again() -> None:
    with topic() as (script, cluster, _):

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            script.let_in(session, command)
            if len(script.producers) <= 5:
                session.send(commands.close_producer(command.producer_id, NO_ID))
            return True

        script.on_producer = on_producer
        producer = make(cluster)
        producer.send(single(b""))
        producer.close()
        assert len(script.producers) == 6


@pytest.mark.fault(20)
def test_a_topic_that_moves_to_another_cluster_while_it_is_opened_is_an_error_at_once() -> None:
    with topic() as (script, cluster, _):

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            kind = pb.CommandTopicMigrated.Producer
            session.send_unchecked(answers.topic_migrated(command.producer_id, kind))
            return True

        script.on_producer = on_producer
        began = time.monotonic()
        with pytest.raises(UnsupportedFeature, match="another cluster"):
            make(cluster).open()
        assert time.monotonic() - began < 3


def test_a_producer_that_is_closed_while_it_opens_stops_trying() -> None:
    with topic() as (script, cluster, _):
        asked = refuse_producers(script, pb.ServiceNotReady)
        producer = make(cluster)
        threading.Timer(0.3, producer.close).start()
        with pytest.raises(ClosedError):
            producer.open()
        count = len(asked)
        time.sleep(0.3)
        assert len(asked) == count


def test_two_threads_that_open_one_producer_register_it_once() -> None:
    with topic() as (script, cluster, _):
        refuse_producers(script, pb.ServiceNotReady, times=1)
        producer = make(cluster)
        opened: list[Producer] = []
        threads = [
            threading.Thread(target=lambda: opened.append(producer.open())) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert opened == [producer] * 3
        assert len(script.producers) == 2


@pytest.mark.fault(21)
def test_an_end_on_two_ways_at_once_leads_to_one_registration() -> None:
    with topic() as (script, cluster, _):

        def on_send(session: Session, sent: Sent) -> bool:
            if session.number:
                return False
            producer_id = sent.command.producer_id
            session.send(answers.send_error(producer_id, 0, pb.PersistenceError, "?"))
            session.send(commands.close_producer(producer_id, NO_ID))
            session.drop()
            return True

        script.on_send = on_send
        producer = make(cluster)
        producer.send(single(b""))
        producer.close()
        assert script.sequence_ids == [0, 0]
        assert len(script.producers) == 2


def test_a_client_that_is_closed_ends_the_attempts() -> None:
    with topic() as (script, cluster, _):
        told: list[PulsarError] = []
        script.on_send = lambda session, sent: True
        producer = Producer(cluster, "t", ProducerOptions(send_timeout=20), told.append)
        producer.send(single(b""))
        refuse_producers(script, pb.ServiceNotReady)
        script.producers[0][0].drop()
        script.wait_for(lambda: len(script.producers) > 2)
        cluster.close()
        assert [type(error) for error in told] == [ClosedError]
