"""Registrations: what one life of a producer tells its owner, and that it tells it once."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pulsar_spark.engine.registration import Identity, Registration
from pulsar_spark.errors import ConnectionLost, OperationTimeout, PulsarError, ServiceNotReady
from pulsar_spark.protocol import answers, commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from tests.engine.producing import NO_ID, TOPIC, TopicScript, topic
from tests.engine.scripted_broker import Session


class Owner:
    def __init__(self) -> None:
        self.receipts: list[int] = []
        self.errors: list[int] = []
        self.losses: list[PulsarError] = []
        self.changed = threading.Event()

    def on_receipt(self, registration: Registration, receipt: pb.CommandSendReceipt) -> None:
        self.receipts.append(receipt.sequence_id)
        self.changed.set()

    def on_send_error(self, registration: Registration, error: pb.CommandSendError) -> None:
        self.errors.append(error.error)
        self.changed.set()

    def on_lost(self, registration: Registration, error: PulsarError) -> None:
        self.losses.append(error)
        self.changed.set()


def identity(**fields: Any) -> Identity:
    return Identity(TOPIC, None, user_provided_name=False, **fields)


def test_what_the_broker_gives_is_kept_for_the_next_time() -> None:
    with topic() as (script, cluster, broker):
        script.success = {"topic_epoch": 9, "schema_version": b"v"}
        mine = identity()
        registration = Registration(Owner(), cluster.connection_for("t", 5))
        success = registration.open(mine, 5)
        assert success.schema_version == b"v"
        assert mine.name == success.producer_name
        assert (mine.producer_id, mine.epoch, mine.topic_epoch) == (registration.producer_id, 0, 9)
        assert registration.broker == broker.address


def test_the_schema_access_mode_and_transactions_are_asked_for() -> None:
    with topic() as (script, cluster, _):
        schema = pb.Schema(name="n", schema_data=b"", type=pb.Schema.String)
        mine = identity(schema=schema, access_mode=pb.Exclusive, txn_enabled=True)
        Registration(Owner(), cluster.connection_for("t", 5)).open(mine, 5)
        command = script.producers[0][1]
        assert command.schema == schema
        assert command.producer_access_mode == pb.Exclusive
        assert command.txn_enabled


def test_receipts_and_refusals_reach_the_owner() -> None:
    with topic() as (script, cluster, _):
        owner = Owner()
        registration = Registration(owner, cluster.connection_for("t", 5))
        registration.open(identity(), 5)
        session, command = script.producers[0]
        stored = pb.MessageIdData(ledgerId=1, entryId=1)
        session.send(answers.send_receipt(command.producer_id, 5, stored))
        session.send(answers.send_error(command.producer_id, 6, pb.NotAllowedError, ""))
        while not owner.errors:
            assert owner.changed.wait(5)
            owner.changed.clear()
        assert (owner.receipts, owner.errors) == ([5], [pb.NotAllowedError])


@pytest.mark.fault(15)
def test_the_brokers_close_is_a_loss_that_tells_where_the_topic_goes() -> None:
    with topic() as (script, cluster, _):
        owner = Owner()
        registration = Registration(owner, cluster.connection_for("t", 5))
        registration.open(identity(), 5)
        session, command = script.producers[0]
        url = "pulsar://elsewhere:6650"
        session.send(commands.close_producer(command.producer_id, NO_ID, assigned_broker_url=url))
        assert owner.changed.wait(5)
        assert isinstance(owner.losses[0], ServiceNotReady)
        assert registration.error is owner.losses[0]
        assert registration.close_command is not None
        assert registration.close_command.assignedBrokerServiceUrl == url


def test_the_end_of_the_connection_is_a_loss() -> None:
    with topic() as (script, cluster, _):
        owner = Owner()
        Registration(owner, cluster.connection_for("t", 5)).open(identity(), 5)
        script.producers[0][0].drop()
        assert owner.changed.wait(5)
        assert isinstance(owner.losses[0], ConnectionLost)
        assert len(owner.losses) == 1


def test_after_it_was_closed_nothing_is_told() -> None:
    with topic() as (script, cluster, _):
        owner = Owner()
        registration = Registration(owner, cluster.connection_for("t", 5))
        registration.open(identity(), 5)
        registration.close(5)
        assert script.closed == [registration.producer_id]
        script.producers[0][0].drop()
        assert not owner.changed.wait(0.1)


@pytest.mark.fault(24)
def test_an_answer_that_comes_too_late_does_not_count() -> None:
    with topic() as (script, cluster, _):
        late: list[tuple[Session, pb.CommandProducer]] = []

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            late.append((session, command))
            return len(late) == 1

        script.on_producer = on_producer
        mine = identity()
        connection = cluster.connection_for("t", 5)
        with pytest.raises(OperationTimeout) as raised:
            Registration(Owner(), connection).open(mine, 0.1)
        assert raised.value.topic in (TOPIC, None)
        script.wait_for(lambda: bool(script.closed))
        session, command = late[0]
        session.send_unchecked(answers.producer_success(command.request_id, "late"))
        Registration(Owner(), connection).open(mine, 5)
        assert mine.name != "late"
        assert mine.epoch == 1


def test_saying_good_bye_on_a_dead_connection_is_no_error() -> None:
    with topic() as (_, cluster, _):
        registration = Registration(Owner(), cluster.connection_for("t", 5))
        registration.open(identity(), 5)
        registration.connection.close()
        registration.close_quietly()


def test_a_lost_connection_ends_the_wait_for_an_answer() -> None:
    script = TopicScript()
    with topic(script) as (_, cluster, _):

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            session.drop()
            return True

        script.on_producer = on_producer
        with pytest.raises(ConnectionLost):
            Registration(Owner(), cluster.connection_for("t", 5)).open(identity(), 5)
