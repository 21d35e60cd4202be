"""Transactions of the embedded broker, with single commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing import EmbeddedBroker
from tests.testing.test_subscription import batch_of
from tests.testing.wire_client import WireClient

S = pb.CommandSubscribe
COMMANDS = [
    "TC_CLIENT_CONNECT_REQUEST",
    "NEW_TXN",
    "ADD_PARTITION_TO_TXN",
    "ADD_SUBSCRIPTION_TO_TXN",
    "END_TXN",
]


def begin(client: WireClient, ttl_millis: int = 60_000) -> dict[str, int]:
    """Begin a transaction and return the fields of its id."""
    body = client.request("NEW_TXN", tc_id=0, txn_ttl_millis=ttl_millis).body
    return {"txnid_most_bits": body.txnid_most_bits, "txnid_least_bits": body.txnid_least_bits}


def subscription(client: WireClient, txn: dict[str, int]) -> None:
    one = pb.Subscription(topic="t", subscription="sub")
    assert not client.request("ADD_SUBSCRIPTION_TO_TXN", subscription=[one], **txn).body.error


def end(client: WireClient, txn: dict[str, int], action: int) -> int:
    return int(client.request("END_TXN", txn_action=action, **txn).body.error)


def ack(client: WireClient, txn: dict[str, int], found: Any, **fields: Any) -> int:
    fields = {"ack_type": 0, "message_id": [found.body.message_id], **fields}
    return int(client.request("ACK", consumer_id=0, **fields, **txn).body.error)


@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.fault(83)
def test_a_broker_without_transactions_refuses_clearly(
    start_broker: Callable[..., EmbeddedBroker], dial: Callable[..., WireClient], kind: str
) -> None:
    client = dial(start_broker(transactions=False))
    fields = {"tc_id": 0} if kind == "TC_CLIENT_CONNECT_REQUEST" else {}
    answer = client.request(kind, **fields).body
    assert answer.error == pb.NotAllowedError
    assert "Transactions are not enabled" in answer.message


def test_without_transactions_their_messages_and_acks_are_refused(
    start_broker: Callable[..., EmbeddedBroker], dial: Callable[..., WireClient]
) -> None:
    client = dial(start_broker(transactions=False))
    client.produce("t")
    txn = {"txnid_most_bits": 0, "txnid_least_bits": 1}
    assert client.publish(send_fields=txn).body.error == pb.NotAllowedError
    client.subscribe("t")
    answer = client.request("ACK", consumer_id=0, ack_type=0, message_id=[], **txn)
    assert answer.body.error == pb.NotAllowedError


@pytest.mark.parametrize("kind", sorted({*COMMANDS} - {"TC_CLIENT_CONNECT_REQUEST"}))
def test_another_coordinator_is_not_found(client: WireClient, kind: str) -> None:
    fields = {"tc_id": 1}
    if kind != "NEW_TXN":
        fields = {"txnid_most_bits": 1, "txnid_least_bits": 0}
    assert client.request(kind, **fields).body.error == pb.TransactionCoordinatorNotFound


@pytest.mark.parametrize("kind", ["ADD_PARTITION_TO_TXN", "ADD_SUBSCRIPTION_TO_TXN", "END_TXN"])
def test_a_transaction_that_was_ended_is_forgotten(client: WireClient, kind: str) -> None:
    txn = begin(client)
    assert end(client, txn, pb.COMMIT) == 0
    part = pb.Subscription(topic="t", subscription="s")
    fields: dict[str, Any] = {}
    if kind != "END_TXN":
        partitions = kind == "ADD_PARTITION_TO_TXN"
        fields = {"partitions": ["t"]} if partitions else {"subscription": [part]}
    assert client.request(kind, **fields, **txn).body.error == pb.TransactionNotFound


def test_the_last_message_is_the_last_that_can_be_delivered(client: WireClient) -> None:
    client.produce("t")
    client.subscribe("t")
    first = client.publish().place
    txn = begin(client)
    client.request("ADD_PARTITION_TO_TXN", partitions=["t"], **txn)
    client.publish(send_fields=txn)
    client.publish()

    def last() -> tuple[int, int]:
        body = client.request("GET_LAST_MESSAGE_ID", consumer_id=0).body.last_message_id
        return body.ledgerId, body.entryId

    assert last() == first
    assert end(client, txn, pb.ABORT) == 0
    assert last() == (first[0], first[1] + 2)


@pytest.mark.parametrize("kind", [S.Exclusive, S.Shared, S.Key_Shared])
def test_a_message_that_comes_after_the_abort_is_never_delivered(
    client: WireClient, kind: int
) -> None:
    client.produce("t")
    txn = begin(client)
    client.request("ADD_PARTITION_TO_TXN", partitions=["t"], **txn)
    end(client, txn, pb.ABORT)
    client.publish(b"late", send_fields=txn, **txn)
    client.publish(b"plain")
    client.subscribe("t", kind=kind)
    assert client.messages(1)[0].payload == b"plain"


def test_acks_count_when_their_transaction_is_committed(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    client.produce("t")
    client.subscribe("t", kind=S.Shared)
    client.publish()
    (found,) = client.messages(1)
    txn = begin(client)
    subscription(client, txn)
    assert ack(client, txn, found) == 0
    assert broker.subscriptions("t")["sub"].backlog == 1
    assert end(client, txn, pb.COMMIT) == 0
    assert broker.subscriptions("t")["sub"].backlog == 0


@pytest.mark.parametrize("kind", [S.Exclusive, S.Failover, S.Shared, S.Key_Shared])
@pytest.mark.parametrize(
    "commits,unloads,left",
    [
        ([[0, 1, 2, 3]], False, None),
        ([[0, 1], [2, 3]], False, None),
        ([[0, 1]], False, [0b1100]),
        ([[0, 1]], True, [0b1100]),
        ([[0], [1]], True, [0b1100]),
    ],
)
def test_parts_of_a_batch_that_transactions_acknowledged_do_not_come_again(
    broker: EmbeddedBroker,
    client: WireClient,
    kind: int,
    commits: list[list[int]],
    unloads: bool,
    left: list[int] | None,
) -> None:
    client.produce("t")
    client.subscribe("t", kind=kind)
    client.publish(batch_of(4), batch=4)
    client.publish(b"behind")
    found = client.messages(2)[0]
    for indexes in commits:
        txn = begin(client)
        subscription(client, txn)
        for index in indexes:
            found.body.message_id.ack_set[:] = [0b1111 & ~(1 << index)]
            assert ack(client, txn, found) == 0
        assert end(client, txn, pb.COMMIT) == 0
    if unloads:
        broker.faults.unload("t")
        client.expect("CLOSE_CONSUMER")
    else:
        client.request("CLOSE_CONSUMER", consumer_id=0)
    client.subscribe("t", kind=kind)
    again = client.messages(1)[0]
    assert (again.payload == b"behind") == (left is None)
    assert list(again.body.ack_set) == (left or [])


@pytest.mark.parametrize("kind", [S.Exclusive, S.Shared])
def test_acks_of_an_aborted_transaction_do_not_count_and_the_message_comes_again(
    broker: EmbeddedBroker, client: WireClient, kind: int
) -> None:
    client.produce("t")
    client.subscribe("t", kind=kind)
    client.publish(b"again")
    (found,) = client.messages(1)
    txn = begin(client)
    subscription(client, txn)
    ack(client, txn, found)
    assert end(client, txn, pb.ABORT) == 0
    assert client.messages(1)[0].payload == b"again"
    assert broker.subscriptions("t")["sub"].backlog == 1


def test_two_transactions_cannot_acknowledge_one_message(client: WireClient) -> None:
    client.produce("t")
    client.subscribe("t", kind=S.Shared)
    client.publish()
    (found,) = client.messages(1)
    one, other = begin(client), begin(client)
    subscription(client, one)
    subscription(client, other)
    assert ack(client, one, found) == 0
    assert ack(client, other, found) == pb.TransactionConflict
    assert end(client, one, pb.ABORT) == 0
    assert ack(client, other, found) == 0
    assert end(client, other, pb.COMMIT) == 0
    assert ack(client, begin(client), found) == pb.TransactionConflict


def test_a_cumulative_ack_of_a_transaction_takes_an_ordered_subscription(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    client.produce("t")
    client.subscribe("t")
    for _ in range(3):
        client.publish()
    found = client.messages(3)
    txn = begin(client)
    subscription(client, txn)
    assert ack(client, txn, found[2], ack_type=pb.CommandAck.Cumulative) == 0
    assert broker.subscriptions("t")["sub"].backlog == 3
    end(client, txn, pb.COMMIT)
    assert broker.subscriptions("t")["sub"].backlog == 0


@pytest.mark.parametrize("action,other", [(pb.COMMIT, pb.ABORT), (pb.ABORT, pb.COMMIT)])
def test_a_terminated_topic_keeps_a_transaction_from_ending_until_it_is_deleted(
    broker: EmbeddedBroker, client: WireClient, action: int, other: int
) -> None:
    client.produce("t")
    txn = begin(client)
    client.request("ADD_PARTITION_TO_TXN", partitions=["t"], **txn)
    client.publish(send_fields=txn)
    broker.terminate_topic("t")
    client.ask("END_TXN", txn_action=action, **txn)
    client.nothing_came("END_TXN_RESPONSE")
    refused = client.request("ADD_PARTITION_TO_TXN", partitions=["u"], **txn).body
    assert refused.error == pb.InvalidTxnStatus
    assert ("COMMITTING" if action == pb.COMMIT else "ABORTING") in refused.message
    assert end(client, txn, other) == pb.InvalidTxnStatus
    marker = client.request("END_TXN_ON_PARTITION", topic="t", txn_action=action, **txn).body
    assert marker.error == pb.PersistenceError
    broker.delete_topic("t")
    assert end(client, txn, action) == 0
    assert broker.open_transactions() == {}
