"""Transactions: begin, participants, end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.testing.refusals import Refusal
from pulsar_spark.testing.topic_store import parse_topic
from pulsar_spark.testing.transactions import COORDINATOR, COORDINATOR_TOPIC, Coordinator

if TYPE_CHECKING:
    from pulsar_spark.testing.session import Session


def connect(session: Session, body: pb.CommandTcClientConnectRequest) -> None:
    """Register a client of the coordinator."""
    check_enabled(session)
    # Asked of whoever serves the topic that stands for it, whether or not there is such a one.
    session.check_owns(f"{COORDINATOR_TOPIC}-partition-{body.tc_id}")
    session.answer(body, pb.CommandTcClientConnectResponse)


def begin(session: Session, body: pb.CommandNewTxn) -> None:
    """Begin a transaction."""
    txn = _coordinator(session, body.tc_id).begin(body.txn_ttl_millis)
    session.answer(body, pb.CommandNewTxnResponse, **commands.txn_fields(txn))


def add_partitions(session: Session, body: pb.CommandAddPartitionToTxn) -> None:
    """Add topic partitions."""
    txn = transaction_of(body)
    coordinator = _coordinator(session, txn.most_bits)
    coordinator.add_partitions(txn, [str(parse_topic(name)) for name in body.partitions])
    session.answer(body, pb.CommandAddPartitionToTxnResponse, **commands.txn_fields(txn))


def add_subscriptions(session: Session, body: pb.CommandAddSubscriptionToTxn) -> None:
    """Add subscriptions."""
    txn = transaction_of(body)
    coordinator = _coordinator(session, txn.most_bits)
    for one in body.subscription:
        coordinator.add_subscription(txn, str(parse_topic(one.topic)), one.subscription)
    session.answer(body, pb.CommandAddSubscriptionToTxnResponse, **commands.txn_fields(txn))


def end(session: Session, body: pb.CommandEndTxn) -> None:
    """Commit or abort; there is no answer while the transaction cannot end."""
    txn = transaction_of(body)
    if _coordinator(session, txn.most_bits).end(txn, commit=body.txn_action == pb.COMMIT):
        session.answer(body, pb.CommandEndTxnResponse, **commands.txn_fields(txn))


def end_on_partition(session: Session, body: pb.CommandEndTxnOnPartition) -> None:
    """Write a transaction's marker to a topic."""
    check_enabled(session)
    txn = transaction_of(body)
    name = str(parse_topic(body.topic))
    session.check_owns(name)
    # A topic that does not exist is taken for a deleted one.
    if (topic := session.server.topics.topics.get(name)) is not None:
        topic.end_transaction(txn, commit=body.txn_action == pb.COMMIT)
    session.answer(body, pb.CommandEndTxnOnPartitionResponse, **commands.txn_fields(txn))


def transaction_of(body: Any) -> TxnId:
    """Return the transaction that a command names."""
    return TxnId(body.txnid_most_bits, body.txnid_least_bits)


def check_enabled(session: Session) -> None:
    """Raise Refusal if the broker does not support transactions."""
    if not session.server.options.transactions:
        raise Refusal(pb.NotAllowedError, "Transactions are not enabled")


def _coordinator(session: Session, tc_id: int) -> Coordinator:
    check_enabled(session)
    if tc_id or not session.owns(COORDINATOR):
        raise Refusal(
            pb.TransactionCoordinatorNotFound,
            f"Transaction coordinator with id {tc_id} not found!",
        )
    return session.server.coordinator
