"""Each command of a transaction names its coordinator, if there are several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message

from pulsar_spark.client import InitialPosition, PulsarClient
from pulsar_spark.errors import PulsarError
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.events import CommandReceived, Event
from pulsar_spark.protocol.frame_parts import Frame
from tests import brief
from tests.engine.scripted_broker import Entry, ScriptedBroker, Session

T = pb.BaseCommand
COORDINATORS = 5
TXN: dict[int, Callable[..., Message]] = {
    T.NEW_TXN: pb.CommandNewTxnResponse,
    T.ADD_PARTITION_TO_TXN: pb.CommandAddPartitionToTxnResponse,
    T.ADD_SUBSCRIPTION_TO_TXN: pb.CommandAddSubscriptionToTxnResponse,
    T.END_TXN: pb.CommandEndTxnResponse,
}


class Script:
    """Answers as coordinators that count up from 70; `refused` is a command and its error."""

    def __init__(self, refused: int | None = None) -> None:
        self.refused = refused
        self.sent: list[Frame] = []

    def __call__(self, session: Session, event: Event) -> bool:
        if isinstance(event, Frame):
            self.sent.append(event)
            sent, place = event.command.send, pb.MessageIdData(ledgerId=1, entryId=2)
            session.send(brief.send_receipt(sent.producer_id, sent.sequence_id, place))
            return True
        if not isinstance(event, CommandReceived):
            return False
        kind = event.kind
        body: Any = event.body
        if kind == T.PARTITIONED_METADATA and "coordinator" in body.topic:
            answer = brief.partitions_response(body.request_id, partitions=COORDINATORS)
        elif kind == T.TC_CLIENT_CONNECT_REQUEST:
            answer = commands.build(
                pb.CommandTcClientConnectResponse, request_id=body.request_id, **self.error(kind)
            )
        elif kind == T.FLOW:
            session.send_entry(body.consumer_id, Entry(1, 2, [b"m"]))
            return True
        elif kind == T.ACK:
            answer = commands.build(
                pb.CommandAckResponse, consumer_id=body.consumer_id, request_id=body.request_id
            )
        elif kind in TXN:
            txn = TxnId(body.tc_id, 70) if kind == T.NEW_TXN else id_of(body)
            fields: dict[str, Any] = {**commands.txn_fields(txn), **self.error(kind)}
            answer = commands.build(TXN[kind], request_id=body.request_id, **fields)
        else:
            return False
        session.send(answer)
        return True

    def error(self, kind: int) -> dict[str, Any]:
        if kind != self.refused:
            return {}
        return {"error": pb.NotAllowedError, "message": "not here"}


def id_of(body: Any) -> TxnId:
    return TxnId(body.txnid_most_bits, body.txnid_least_bits)


def test_every_command_of_a_transaction_names_it_and_its_coordinator() -> None:
    script = Script()
    with (
        ScriptedBroker(script) as broker,
        PulsarClient(f"pulsar://{broker.address}") as client,
        client.subscribe("t", "s", initial_position=InitialPosition.Earliest) as consumer,
        client.create_producer("u") as producer,
    ):
        message = consumer.receive(60_000)
        ids = []
        for _ in range(COORDINATORS):
            with client.new_transaction(45_000) as txn:
                ids.append(txn.txn_id())
                producer.send(b"x", txn=txn)
                consumer.acknowledge(message, txn=txn)
        assert {found.most_bits for found in ids} == set(range(COORDINATORS))
        assert {found.least_bits for found in ids} == {70}
        assert {body.tc_id for body in broker.commands(T.TC_CLIENT_CONNECT_REQUEST)} == set(
            range(COORDINATORS)
        )
        begun = broker.commands(T.NEW_TXN)
        assert {body.tc_id for body in begun} == set(range(COORDINATORS))
        assert {body.txn_ttl_millis for body in begun} == {45_000}
        for kind in (T.ADD_PARTITION_TO_TXN, T.ADD_SUBSCRIPTION_TO_TXN, T.ACK, T.END_TXN):
            assert [id_of(body) for body in broker.commands(kind)] == ids
        assert [id_of(sent.command.send) for sent in script.sent] == ids
        for body in broker.commands(T.ADD_PARTITION_TO_TXN):
            assert list(body.partitions) == ["persistent://public/default/u"]
        for body in broker.commands(T.ADD_SUBSCRIPTION_TO_TXN):
            (found,) = body.subscription
            assert (found.topic, found.subscription) == ("persistent://public/default/t", "s")


@pytest.mark.parametrize(
    "refused",
    [pytest.param(kind, id=T.Type.Name(kind)) for kind in (T.TC_CLIENT_CONNECT_REQUEST, *TXN)],
)
def test_what_a_coordinator_refuses_is_raised_with_its_reason(refused: int) -> None:
    with (
        ScriptedBroker(Script(refused)) as broker,
        PulsarClient(f"pulsar://{broker.address}") as client,
        client.subscribe("t", "s", initial_position=InitialPosition.Earliest) as consumer,
        client.create_producer("u") as producer,
    ):
        message = consumer.receive(60_000)

        def run() -> None:
            with client.new_transaction() as txn:
                producer.send(b"x", txn=txn)
                consumer.acknowledge(message, txn=txn)

        with pytest.raises(PulsarError, match="not here"):
            run()
