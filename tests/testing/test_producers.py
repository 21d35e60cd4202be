"""Who may write to a topic: names, access modes, takeover."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing import EmbeddedBroker
from tests.testing.wire_client import WireClient

Dial = Callable[..., WireClient]


def test_names_are_given_in_order(client: WireClient) -> None:
    first = client.produce("t", 0)
    second = client.produce("t", 1)
    names = [first.body.producer_name, second.body.producer_name]
    assert names == ["standalone-0-0", "standalone-0-1"]
    assert first.body.last_sequence_id == -1


def test_a_name_belongs_to_one_producer(broker: EmbeddedBroker, dial: Dial) -> None:
    first, second = dial(broker), dial(broker)
    first.produce("t", producer_name="mine")
    asked = second.ask("PRODUCER", topic="t", producer_id=0, producer_name="mine")
    # The broker sends PING to the current producer before it rejects the new one.
    first.expect("PING")
    assert second.answer(asked).body.error == pb.ProducerBusy
    first.request("CLOSE_PRODUCER", producer_id=0)
    assert second.produce("t", producer_name="mine").name == "PRODUCER_SUCCESS"


def test_a_closed_connection_frees_its_names(broker: EmbeddedBroker, dial: Dial) -> None:
    first, second = dial(broker), dial(broker)
    first.produce("t", producer_name="mine")
    first.close()
    for _ in range(100):
        if (answer := second.produce("t", producer_name="mine")).name == "PRODUCER_SUCCESS":
            break
    assert answer.name == "PRODUCER_SUCCESS"


@pytest.mark.parametrize(
    "epoch,by_user,answer",
    [(1, False, "PRODUCER_SUCCESS"), (0, False, "ERROR"), (1, True, "ERROR")],
)
def test_a_higher_epoch_takes_over_from_itself(
    client: WireClient, epoch: int, by_user: bool, answer: str
) -> None:
    name = client.produce("t").body.producer_name
    again = client.produce(
        "t", producer_name=name, epoch=epoch, user_provided_producer_name=by_user
    )
    assert again.name == answer


def test_exclusive_access_keeps_others_out(client: WireClient) -> None:
    held = client.produce("t", 0, producer_access_mode=pb.Exclusive)
    assert held.body.topic_epoch == 0
    fenced = client.produce("t", 1, producer_access_mode=pb.Exclusive)
    assert fenced.body.error == pb.ProducerFenced
    assert "existing exclusive producer: standalone-0-0" in fenced.body.message
    assert client.produce("t", 2).body.error == pb.ProducerBusy
    client.request("CLOSE_PRODUCER", producer_id=0)
    assert client.produce("t", 3).name == "PRODUCER_SUCCESS"


def test_exclusive_access_is_refused_where_others_write(client: WireClient) -> None:
    client.produce("t", 0)
    refused = client.produce("t", 1, producer_access_mode=pb.Exclusive)
    assert refused.body.error == pb.ProducerFenced


def test_fencing_sends_the_others_away(client: WireClient) -> None:
    client.produce("t", 0, producer_access_mode=pb.Exclusive)
    winner = client.produce("t", 1, producer_access_mode=pb.ExclusiveWithFencing)
    assert winner.body.topic_epoch == 1
    client.nothing_came()
    client.request("CLOSE_PRODUCER", producer_id=0)
    client.request("CLOSE_PRODUCER", producer_id=1)
    # The fenced producer reconnects with its old epoch.
    again = client.produce("t", 0, producer_access_mode=pb.Exclusive, topic_epoch=0)
    assert again.body.error == pb.ProducerFenced
    kept = client.produce("t", 1, producer_access_mode=pb.ExclusiveWithFencing, topic_epoch=1)
    assert kept.body.topic_epoch == 1


def test_waiting_for_access_ends_when_it_is_free(client: WireClient) -> None:
    client.produce("t", 0, producer_access_mode=pb.Exclusive)
    asked = client.ask(
        "PRODUCER", topic="t", producer_id=1, producer_access_mode=pb.WaitForExclusive
    )
    assert not client.answer(asked).body.producer_ready
    client.nothing_came()
    client.request("CLOSE_PRODUCER", producer_id=0)
    ready = client.answer(asked)
    assert ready.body.producer_ready
    assert ready.body.topic_epoch == 1
    assert client.publish(producer_id=1).name == "SEND_RECEIPT"


def test_waiting_producers_can_give_up(client: WireClient) -> None:
    client.produce("t", 0, producer_access_mode=pb.Exclusive)
    client.produce("t", 1, producer_access_mode=pb.WaitForExclusive)
    assert client.request("CLOSE_PRODUCER", producer_id=1).name == "SUCCESS"
    client.request("CLOSE_PRODUCER", producer_id=0)
    assert client.produce("t", 2).name == "PRODUCER_SUCCESS"
