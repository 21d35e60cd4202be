"""Transactions: begin, participants, end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.testing.actions import Incoming
from pulsar_spark.testing.handlers import owned
from pulsar_spark.testing.refusals import Refusal
from pulsar_spark.testing.topic_store import parse_topic
from pulsar_spark.testing.transactions import COORDINATOR, COORDINATOR_TOPIC, Coordinator

if TYPE_CHECKING:
    from pulsar_spark.testing.session import Session


def connect(session: Session, command: Incoming) -> None:
    """Register a client of the coordinator."""
    body: pb.CommandTcClientConnectRequest = command.body
    check_enabled(session)
    # Asked of whoever serves the topic that stands for it, whether or not there is such a one.
    owned.check(session, f"{COORDINATOR_TOPIC}-partition-{body.tc_id}")
    answer = commands.build(pb.CommandTcClientConnectResponse, request_id=body.request_id)
    session.send(answer)


def begin(session: Session, command: Incoming) -> None:
    """Begin a transaction."""
    body: pb.CommandNewTxn = command.body
    txn = _coordinator(session, body.tc_id).begin(body.txn_ttl_millis)
    _answer(session, pb.CommandNewTxnResponse, body, txn)


def add_partitions(session: Session, command: Incoming) -> None:
    """Add topic partitions."""
    body: pb.CommandAddPartitionToTxn = command.body
    txn = transaction_of(body)
    coordinator = _coordinator(session, txn.most_bits)
    coordinator.add_partitions(txn, [str(parse_topic(name)) for name in body.partitions])
    _answer(session, pb.CommandAddPartitionToTxnResponse, body, txn)


def add_subscriptions(session: Session, command: Incoming) -> None:
    """Add subscriptions."""
    body: pb.CommandAddSubscriptionToTxn = command.body
    txn = transaction_of(body)
    coordinator = _coordinator(session, txn.most_bits)
    for one in body.subscription:
        coordinator.add_subscription(txn, str(parse_topic(one.topic)), one.subscription)
    _answer(session, pb.CommandAddSubscriptionToTxnResponse, body, txn)


def end(session: Session, command: Incoming) -> None:
    """Commit or abort; there is no answer while the transaction cannot end."""
    body: pb.CommandEndTxn = command.body
    txn = transaction_of(body)
    if _coordinator(session, txn.most_bits).end(txn, commit=body.txn_action == pb.COMMIT):
        _answer(session, pb.CommandEndTxnResponse, body, txn)


def end_on_partition(session: Session, command: Incoming) -> None:
    """Write a transaction's marker to a topic."""
    body: pb.CommandEndTxnOnPartition = command.body
    check_enabled(session)
    txn = transaction_of(body)
    name = str(parse_topic(body.topic))
    owned.check(session, name)
    # A topic that does not exist is taken for a deleted one.
    if (topic := session.server.topics.topics.get(name)) is not None:
        topic.end_transaction(txn, commit=body.txn_action == pb.COMMIT)
    _answer(session, pb.CommandEndTxnOnPartitionResponse, body, txn)


def transaction_of(body: Any) -> TxnId:
    """Return the transaction that a command names."""
    return TxnId(body.txnid_most_bits, body.txnid_least_bits)


def check_enabled(session: Session) -> None:
    """Raise Refusal if the broker does not support transactions."""
    if not session.server.options.transactions:
        raise Refusal(pb.NotAllowedError, "Transactions are not enabled")


def _coordinator(session: Session, tc_id: int) -> Coordinator:
    check_enabled(session)
    if tc_id or not owned.is_owner(session, COORDINATOR):
        raise Refusal(
            pb.TransactionCoordinatorNotFound,
            f"Transaction coordinator with id {tc_id} not found!",
        )
    return session.server.coordinator


def _answer(session: Session, kind: Callable[..., Message], body: Any, txn: TxnId) -> None:
    answer = commands.build(kind, request_id=body.request_id, **commands.txn_fields(txn))
    session.send(answer)
