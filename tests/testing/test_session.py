"""One connection: handshake, keep-alive, and fatal errors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing import EmbeddedBroker
from tests.support.waiting import wait_until
from tests.testing.wire_client import WireClient

Start = Callable[..., EmbeddedBroker]
Dial = Callable[..., WireClient]


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00\x00\x00\x00",
        b"\x7f\xff\xff\xff",
        b"\x00\x00\x00\x08\x00\x00\x00\x04\xff\xff\xff\xff",
    ],
)
@pytest.mark.fault(41)
def test_strangers_are_sent_away(broker: EmbeddedBroker, dial: Dial, data: bytes) -> None:
    stranger = dial(broker, handshake=False)
    stranger.send_bytes(data)
    assert stranger.closed()
    assert broker.notes
    assert dial(broker).request("LOOKUP", topic="t")


def test_commands_before_connect_end_the_connection(broker: EmbeddedBroker, dial: Dial) -> None:
    client = dial(broker, handshake=False)
    client.ask("LOOKUP", topic="t")
    assert client.closed()


def test_a_second_connect_ends_the_connection(client: WireClient) -> None:
    client.send("CONNECT", client_version="again")
    assert client.closed()


def test_messages_larger_than_a_frame_end_the_connection(start_broker: Start, dial: Dial) -> None:
    client = dial(start_broker(max_message_size=10_000))
    client.produce("t")
    assert client.publish(bytes(10_000)).name == "SEND_RECEIPT"
    client.send_entry(bytes(25_000))
    assert client.closed()


@pytest.mark.fault(5)
def test_silent_clients_are_asked_and_then_closed(start_broker: Start, dial: Dial) -> None:
    client = dial(start_broker(keep_alive_interval=0.1), answer_pings=False)
    started = time.monotonic()
    client.expect("PING")
    assert client.closed()
    assert time.monotonic() - started > 0.15


def test_clients_that_answer_stay(start_broker: Start, dial: Dial) -> None:
    client = dial(start_broker(keep_alive_interval=0.4))
    for _ in range(3):
        client.expect("PING")
    assert client.request("LOOKUP", topic="t")


def test_clients_that_never_connect_are_closed(start_broker: Start, dial: Dial) -> None:
    assert dial(start_broker(keep_alive_interval=0.1), handshake=False).closed()


@pytest.mark.fault(69)
def test_a_dead_peer_gives_up_its_names(start_broker: Start, dial: Dial) -> None:
    broker = start_broker(liveness_timeout=0.1)
    dead = dial(broker, answer_pings=False)
    dead.produce("t", producer_name="mine")
    dead.subscribe("t")
    alive = dial(broker)
    started = time.monotonic()
    assert alive.produce("t", producer_name="mine").name == "PRODUCER_SUCCESS"
    assert time.monotonic() - started >= 0.09
    dead = dial(broker, answer_pings=False)
    dead.subscribe("t", "other")
    assert alive.subscribe("t", "other").name == "SUCCESS"
    assert alive.publish().name == "SEND_RECEIPT"


def test_a_client_that_gives_up_while_it_waits_gets_nothing(
    start_broker: Start, dial: Dial
) -> None:
    broker = start_broker(liveness_timeout=0.2)
    dead = dial(broker, answer_pings=False)
    dead.subscribe("t")
    alive = dial(broker)
    alive.ask("SUBSCRIBE", topic="t", subscription="sub", subType=0, consumer_id=0)
    alive.request("CLOSE_CONSUMER", consumer_id=0)
    wait_until(lambda: broker.connections == 1, "the dead peer's end")
    alive.nothing_came()
    assert broker.subscriptions("t")["sub"].consumers == ()


def test_mistakes_of_the_broker_are_kept_and_told(dial: Dial) -> None:
    with EmbeddedBroker() as broker:
        client = dial(broker)

        def fail(_: object) -> Any:
            raise ZeroDivisionError("a mistake")

        broker.faults.call("LOOKUP", fail)
        answer = client.request("LOOKUP", topic="t").body
        assert answer.error == pb.UnknownError
        assert "a mistake" in answer.message
        broker.faults.rewrite("LOOKUP_RESPONSE", fail)
        assert client.request("LOOKUP", topic="t").body.error == pb.UnknownError
        broker.faults.rewrite("PONG", fail)
        client.send("PING")
        assert client.closed()
        assert [type(error) for error in broker.internal_errors] == [ZeroDivisionError] * 3
