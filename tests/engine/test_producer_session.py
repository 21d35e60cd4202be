"""Registering: what a session reports to its owner, and how the next session starts.

Temporary errors are retried until a deadline, permanent ones are raised at once.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from array import array
from typing import Any

import pytest

from pulsar_spark.engine import attaching
from pulsar_spark.engine import deadline as deadlines
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.operations import run
from pulsar_spark.engine.options import ClientOptions, ProducerOptions
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.engine.producers.producer_session import Identity, ProducerSession, Registrar
from pulsar_spark.errors import (
    AuthorizationError,
    ClosedError,
    ConnectError,
    ConnectionLost,
    IncompatibleSchema,
    OperationTimeout,
    ProducerBusy,
    ProducerFenced,
    PulsarError,
    QuotaExceeded,
    ServiceNotReady,
    TopicNotFound,
    TopicTerminated,
    UnsupportedFeature,
)
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from tests import brief
from tests.engine.producing import (
    NO_ID,
    TOPIC,
    Sent,
    TopicScript,
    connection_for,
    make,
    topic,
)
from tests.engine.scripted_broker import ScriptedBroker, Session
from tests.outgoing import single
from tests.support.asking import register
from tests.support.java_server import free_ports
from tests.support.waiting import Clock, finish, wait_until


class Owner:
    waits_for_receipts = False

    def __init__(self) -> None:
        self.receipts: list[int] = []
        self.errors: list[int] = []
        self.losses: list[PulsarError] = []
        self.changed = threading.Event()

    def on_receipts(self, session: ProducerSession, receipts: array[int]) -> None:
        self.receipts += receipts[0::4]
        self.changed.set()

    def on_send_error(self, session: ProducerSession, error: pb.CommandSendError) -> None:
        self.errors.append(error.error)
        self.changed.set()

    def on_lost(self, session: ProducerSession, error: PulsarError) -> None:
        self.losses.append(error)
        self.changed.set()


def identity(**fields: Any) -> Identity:
    return Identity(TOPIC, None, user_provided_name=False, **fields)


def test_what_the_broker_gives_is_kept_for_the_next_time() -> None:
    with topic() as (script, context, broker):
        script.success = {"topic_epoch": 9, "schema_version": b"v"}
        mine = identity()
        made = ProducerSession(Owner(), connection_for(context))
        success = register(made, mine)
        assert success.schema_version == b"v"
        assert mine.name == success.producer_name
        assert (mine.producer_id, mine.epoch, mine.topic_epoch) == (made.producer_id, 0, 9)
        assert made.broker == broker.address


def test_the_producer_command_has_all_options() -> None:
    with topic() as (script, context, _):
        schema = pb.Schema(name="n", schema_data=b"", type=pb.Schema.String)
        mine = identity(schema=schema, access_mode=pb.Exclusive, txn_enabled=True, encrypted=True)
        register(ProducerSession(Owner(), connection_for(context)), mine)
        command = script.producers[0][1]
        assert command.schema == schema
        assert command.producer_access_mode == pb.Exclusive
        assert command.txn_enabled
        assert command.encrypted


def test_receipts_and_refusals_reach_the_owner() -> None:
    with topic() as (script, context, _):
        owner = Owner()
        mine = ProducerSession(owner, connection_for(context))
        register(mine, identity())
        session, command = script.producers[0]
        stored = pb.MessageIdData(ledgerId=1, entryId=1)
        session.send(brief.send_receipt(command.producer_id, 5, stored))
        session.send(brief.send_error(command.producer_id, 6, pb.NotAllowedError, ""))
        while not owner.errors:
            assert owner.changed.wait(5)
            owner.changed.clear()
        assert (owner.receipts, owner.errors) == ([5], [pb.NotAllowedError])


@pytest.mark.fault(15)
def test_the_brokers_close_is_a_loss_that_tells_where_the_topic_goes() -> None:
    with topic() as (script, context, _):
        owner = Owner()
        mine = ProducerSession(owner, connection_for(context))
        register(mine, identity())
        session, command = script.producers[0]
        url = "pulsar://elsewhere:6650"
        session.send(brief.close_producer(command.producer_id, NO_ID, assignedBrokerServiceUrl=url))
        assert owner.changed.wait(5)
        assert isinstance(owner.losses[0], ServiceNotReady)
        assert mine.error is owner.losses[0]
        assert mine.close_command is not None
        assert mine.close_command.assignedBrokerServiceUrl == url


def test_the_end_of_the_connection_is_a_loss() -> None:
    with topic() as (script, context, _):
        owner = Owner()
        register(ProducerSession(owner, connection_for(context)), identity())
        script.producers[0][0].drop()
        assert owner.changed.wait(5)
        assert isinstance(owner.losses[0], ConnectionLost)
        assert len(owner.losses) == 1


def test_after_close_nothing_is_reported() -> None:
    with topic() as (script, context, _):
        owner = Owner()
        mine = ProducerSession(owner, connection_for(context))
        register(mine, identity())
        run(mine.close_operation, 5)
        assert script.closed == [mine.producer_id]
        script.producers[0][0].drop()
        # The connection's last act is to tell all of its end.
        finish(mine.connection._thread)
        assert not owner.changed.is_set()


@pytest.mark.fault(24)
def test_an_answer_that_comes_too_late_does_not_count() -> None:
    with topic() as (script, context, _):
        late: list[tuple[Session, pb.CommandProducer]] = []

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            late.append((session, command))
            return len(late) == 1

        script.on_producer = on_producer
        mine = identity()
        connection = connection_for(context)
        with pytest.raises(OperationTimeout) as raised:
            register(ProducerSession(Owner(), connection), mine, 0.1)
        assert raised.value.topic in (TOPIC, None)
        wait_until(lambda: bool(script.closed))
        session, command = late[0]
        session.send_unchecked(brief.producer_success(command.request_id, "late"))
        register(ProducerSession(Owner(), connection), mine)
        assert mine.name != "late"
        assert mine.epoch == 1


def test_saying_good_bye_on_a_dead_connection_is_no_error() -> None:
    with topic() as (_, context, _):
        mine = ProducerSession(Owner(), connection_for(context))
        register(mine, identity())
        mine.connection.close()
        mine.close_quietly()


def test_a_lost_connection_ends_the_wait_for_an_answer() -> None:
    script = TopicScript()
    with topic(script) as (_, context, _):

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            session.drop()
            return True

        script.on_producer = on_producer
        with pytest.raises(ConnectionLost):
            register(ProducerSession(Owner(), connection_for(context)), identity())


def refuse_producers(script: TopicScript, code: int, times: int = 10**6) -> list[float]:
    """Answer PRODUCER with errors a number of times; return the list of its times."""
    asked: list[float] = []

    def on_producer(session: Session, command: pb.CommandProducer) -> bool:
        asked.append(time.monotonic())
        if len(asked) > times:
            return False
        session.send(brief.error(command.request_id, code, "not now"))
        return True

    script.on_producer = on_producer
    return asked


@pytest.mark.fault(18, 19)
@pytest.mark.parametrize(
    "code", [pb.ServiceNotReady, pb.MetadataError, pb.PersistenceError, pb.TooManyRequests]
)
def test_what_can_pass_is_tried_again_with_growing_pauses(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    pause = Registrar._pause

    def noting(registrar: Registrar, error: PulsarError, time_left: float) -> float:
        pauses.append(pause(registrar, error, time_left))
        return pauses[-1]

    monkeypatch.setattr(Registrar, "_pause", noting)
    with topic(operation_timeout=60) as (script, context, broker):
        asked = refuse_producers(script, code, times=3)
        make(context).open()
        for chosen, longest in zip(pauses, (0.1, 0.2, 0.4), strict=True):
            assert 0.9 * longest <= chosen <= longest
        passed = [after - before for before, after in itertools.pairwise(asked)]
        assert all(real >= chosen for real, chosen in zip(passed, pauses, strict=True))
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
    with topic() as (script, context, broker):
        asked = refuse_producers(script, code)
        producer = make(context)
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
    with topic() as (script, context, _):
        refuse_producers(script, pb.ProducerBusy, times=3)
        make(context).open()
        monkeypatch.setattr(attaching, "BUSY_SECONDS", 0.5)
        asked = refuse_producers(script, pb.ProducerBusy)
        began = time.monotonic()
        with pytest.raises(ProducerBusy, match="its own"):
            make(context, producer_name="taken").open()
        assert 0.4 <= time.monotonic() - began < 15
        assert len(asked) > 2


@pytest.mark.fault(88)
def test_a_name_that_is_not_waited_for_is_refused_at_once() -> None:
    with topic() as (script, context, _):
        asked = refuse_producers(script, pb.ProducerBusy)
        with pytest.raises(ProducerBusy):
            make(context, producer_name="taken", waits_for_name=False).open()
        assert len(asked) == 1


@pytest.mark.fault(88)
def test_a_name_is_waited_for_if_an_own_attempt_may_have_it() -> None:
    with topic() as (script, context, _):
        epochs: list[int] = []

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            epochs.append(command.epoch)
            if command.epoch == 0:
                session.drop()
            elif command.epoch == 1:
                session.send(brief.error(command.request_id, pb.ProducerBusy, "not yet"))
            return command.epoch < 2

        script.on_producer = on_producer
        make(context, producer_name="mine", waits_for_name=False).open()
        assert epochs == [0, 1, 2]


@pytest.mark.fault(88)
def test_a_quota_that_holds_producers_back_is_an_error_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(deadlines, "time", clock)
    with topic(operation_timeout=600) as (script, context, _):
        asked = refuse_producers(script, pb.ProducerBlockedQuotaExceededError)
        refuse = script.on_producer
        assert refuse is not None

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            if len(asked) == 2:
                clock.advance(600)
            return refuse(session, command)

        script.on_producer = on_producer
        with pytest.raises(OperationTimeout, match="backlog quota") as raised:
            make(context).open()
        assert raised.value.topic == TOPIC
        assert raised.value.__cause__ is not None


@pytest.mark.fault(1)
def test_a_broker_that_comes_up_late_is_waited_for() -> None:
    script = TopicScript()
    (port,) = free_ports(1)
    with contextlib.ExitStack() as stack:
        context = stack.enter_context(ClientContext(ClientOptions(f"pulsar://127.0.0.1:{port}")))
        producer = make(context)
        opening = threading.Thread(target=producer.open)
        opening.start()
        time.sleep(0.5)
        stack.enter_context(ScriptedBroker(script, port))
        finish(opening)
        producer.send(single(b""))
        producer.close()


@pytest.mark.fault(1)
def test_a_broker_that_stays_away_is_an_error_at_the_deadline() -> None:
    (port,) = free_ports(1)
    url = f"pulsar://127.0.0.1:{port}"
    with ClientContext(ClientOptions(url, operation_timeout=0.5)) as context:
        began = time.monotonic()
        with pytest.raises(OperationTimeout, match="within") as raised:
            make(context).open()
        assert 0.2 <= time.monotonic() - began < 15
        assert isinstance(raised.value.__cause__, ConnectError)


@pytest.mark.fault(25)
def test_waiting_for_exclusive_access_ends_when_it_is_granted() -> None:
    with topic() as (script, context, _):

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            assert command.producer_access_mode == pb.WaitForExclusive
            script.let_in(session, command, producer_ready=False)
            threading.Timer(0.1, script.let_in, (session, command), {"topic_epoch": 3}).start()
            return True

        script.on_producer = on_producer
        producer = make(context, access_mode=pb.WaitForExclusive)
        producer.send(single(b""))
        producer.close()
        assert script.sequence_ids == [0]


@pytest.mark.fault(25)
def test_waiting_for_exclusive_access_ends_at_the_deadline_and_frees_the_name() -> None:
    with topic(operation_timeout=0.4) as (script, context, _):

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            script.let_in(session, command, producer_ready=False)
            return True

        script.on_producer = on_producer
        with pytest.raises(OperationTimeout):
            make(context, access_mode=pb.WaitForExclusive).open()
        wait_until(lambda: bool(script.closed))


@pytest.mark.fault(24)
def test_a_broker_that_never_answers_is_an_error_at_the_deadline_and_the_name_is_freed() -> None:
    with topic(operation_timeout=0.4) as (script, context, _):
        script.on_producer = lambda session, command: True
        began = time.monotonic()
        with pytest.raises(OperationTimeout):
            make(context).open()
        assert time.monotonic() - began < 15
        wait_until(lambda: bool(script.closed))


@pytest.mark.fault(14, 21)
def test_a_producer_closed_while_it_opens_is_opened_again_without_a_stall() -> None:
    with topic() as (script, context, _):

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            if len(script.producers) > 1:
                return False
            session.send(brief.close_producer(command.producer_id, NO_ID))
            return True

        script.on_producer = on_producer
        began = time.monotonic()
        make(context).open()
        assert time.monotonic() - began < 15


@pytest.mark.fault(21)
def test_a_producer_closed_right_after_it_opened_is_opened_again() -> None:
    with topic() as (script, context, _):

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            script.let_in(session, command)
            if len(script.producers) <= 5:
                session.send(brief.close_producer(command.producer_id, NO_ID))
            return True

        script.on_producer = on_producer
        producer = make(context)
        producer.send(single(b""))
        producer.close()
        assert len(script.producers) == 6


@pytest.mark.fault(20)
def test_a_topic_that_moves_to_another_cluster_while_it_is_opened_is_an_error_at_once() -> None:
    with topic() as (script, context, _):

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            kind = pb.CommandTopicMigrated.Producer
            session.send_unchecked(
                commands.build(
                    pb.CommandTopicMigrated, resource_id=command.producer_id, resource_type=kind
                )
            )
            return True

        script.on_producer = on_producer
        began = time.monotonic()
        with pytest.raises(UnsupportedFeature, match="another cluster"):
            make(context).open()
        assert time.monotonic() - began < 15


def test_a_producer_that_is_closed_while_it_opens_stops_trying() -> None:
    with topic() as (script, context, _):
        asked = refuse_producers(script, pb.ServiceNotReady)
        producer = make(context)
        ended: list[PulsarError] = []

        def open_it() -> None:
            with pytest.raises(ClosedError) as raised:
                producer.open(60)
            ended.append(raised.value)

        opening = threading.Thread(target=open_it)
        opening.start()
        wait_until(lambda: len(asked) > 2)
        producer.close()
        finish(opening)
        assert ended
        count = len(asked)
        # Another one is refused until the first, whose next pause is 0.8 s, would have come again.
        refuse_producers(script, pb.ServiceNotReady, times=4)
        make(context).open(60)
        mine = script.producers[0][1].producer_id
        assert sum(command.producer_id == mine for _, command in script.producers) == count


def test_two_threads_that_open_one_producer_register_it_once() -> None:
    with topic() as (script, context, _):
        refuse_producers(script, pb.ServiceNotReady, times=1)
        producer = make(context)
        opened: list[TopicProducer] = []
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
    with topic() as (script, context, _):

        def on_send(session: Session, sent: Sent) -> bool:
            if session.number:
                return False
            producer_id = sent.command.producer_id
            session.send(brief.send_error(producer_id, 0, pb.PersistenceError, "?"))
            session.send(brief.close_producer(producer_id, NO_ID))
            session.drop()
            return True

        script.on_send = on_send
        producer = make(context)
        producer.send(single(b""))
        producer.close()
        assert script.sequence_ids == [0, 0]
        assert len(script.producers) == 2


def test_a_client_that_is_closed_ends_the_attempts() -> None:
    with topic() as (script, context, _):
        told: list[PulsarError] = []
        script.on_send = lambda session, sent: True
        producer = TopicProducer(context, "t", ProducerOptions(send_timeout=20), told.append)
        producer.send(single(b""))
        refuse_producers(script, pb.ServiceNotReady)
        script.producers[0][0].drop()
        wait_until(lambda: len(script.producers) > 2)
        context.close()
        assert [type(error) for error in told] == [ClosedError]


@pytest.mark.fault(140)
def test_a_refusal_is_said_even_if_the_last_attempt_was_not_answered() -> None:
    with topic() as (script, context, _):
        asked = refuse_producers(script, pb.MetadataError, times=1)
        answer = script.on_producer

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            # The second one gets no answer.
            return answer is None or answer(session, command) or bool(asked)

        script.on_producer = on_producer
        with pytest.raises(OperationTimeout, match=r"not now.*metadata store"):
            make(context).open(timeout=1.0)
        assert len(asked) > 1
