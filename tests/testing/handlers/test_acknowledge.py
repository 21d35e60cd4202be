"""Acknowledgements: their effect, answers on request, and redelivery."""

from __future__ import annotations

import pytest

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing import EmbeddedBroker
from tests.testing.wire_client import WireClient

S = pb.CommandSubscribe
CUMULATIVE = pb.CommandAck.Cumulative


def test_many_entries_in_one_ack(broker: EmbeddedBroker, client: WireClient) -> None:
    client.produce("t")
    for _ in range(5):
        client.publish()
    client.subscribe("t")
    client.ack(*client.messages(5)[:4], request_id=900)
    answer = client.answer(900)
    assert answer.name == "ACK_RESPONSE"
    assert not answer.body.HasField("error")
    assert broker.subscriptions("t")["sub"].backlog == 1


def test_cumulative_acks(broker: EmbeddedBroker, client: WireClient) -> None:
    client.produce("t")
    for _ in range(5):
        client.publish()
    client.subscribe("t")
    third = client.messages(5)[2].body.message_id
    client.request("ACK", consumer_id=0, ack_type=CUMULATIVE, message_id=[third])
    assert broker.subscriptions("t")["sub"].backlog == 2


@pytest.mark.parametrize("kind", [S.Shared, S.Key_Shared])
def test_cumulative_acks_are_refused_where_several_read(client: WireClient, kind: int) -> None:
    client.produce("t")
    client.publish()
    client.subscribe("t", kind=kind)
    one = client.messages(1)[0].body.message_id
    answer = client.request("ACK", consumer_id=0, ack_type=CUMULATIVE, message_id=[one])
    assert answer.body.error == pb.NotAllowedError


def test_a_cumulative_ack_names_one_message(client: WireClient) -> None:
    client.subscribe("t")
    ids = [pb.MessageIdData(ledgerId=1, entryId=number) for number in range(2)]
    answer = client.request("ACK", consumer_id=0, ack_type=CUMULATIVE, message_id=ids)
    assert answer.body.error == pb.NotAllowedError


def test_acks_and_redelivery_of_unknown_consumers_are_ignored(client: WireClient) -> None:
    client.send("ACK", consumer_id=9, ack_type=0, message_id=[])
    client.send("ACK", consumer_id=9, ack_type=0, message_id=[], request_id=900)
    client.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=9)
    client.nothing_came()


def test_a_corrupt_entry_is_acknowledged_like_any_other(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    client.produce("t")
    client.publish()
    client.subscribe("t")
    client.ack(
        client.messages(1)[0],
        request_id=900,
        validation_error=pb.CommandAck.ChecksumMismatch,
    )
    client.answer(900)
    assert broker.subscriptions("t")["sub"].backlog == 0
    assert broker.faults.log("ACK")[0].body.HasField("validation_error")
