"""A connection's buffers are bounded both ways."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import encode_command
from pulsar_spark.testing import EmbeddedBroker
from pulsar_spark.testing.wire import WRITE_HIGH_WATER, WRITE_LIMIT
from tests.support.waiting import wait_until
from tests.testing.wire_client import WireClient, turn

Dial = Callable[..., WireClient]


def settled(broker: EmbeddedBroker) -> int:
    """Bytes that wait for clients to read them, once their number is stable."""
    seen: list[int] = []

    def is_stable() -> bool:
        turn(broker)
        seen.append(broker.buffered_bytes)
        return len(seen) >= 10 and len(set(seen[-10:])) == 1

    wait_until(is_stable)
    return seen[-1]


@pytest.mark.fault(7, 91)
def test_a_consumer_that_does_not_read_stops_delivery(broker: EmbeddedBroker, dial: Dial) -> None:
    producer, consumer = dial(broker), dial(broker)
    producer.produce("t")
    for _ in range(40):
        producer.publish(bytes(1_000_000))
    consumer.subscribe("t")
    waiting = settled(broker)
    # One pass can exceed the high mark.
    assert 0 < waiting < WRITE_HIGH_WATER + 8_000_000
    assert broker.faults.seen("MESSAGE") < 40
    assert len(consumer.messages(40)) == 40
    assert settled(broker) == 0


def test_a_client_that_reads_no_answers_is_not_heard(broker: EmbeddedBroker, dial: Dial) -> None:
    for number in range(20):
        broker.create_topic("x" * 20_000 + str(number))
    client = dial(broker)
    ask = encode_command(
        commands.build(pb.CommandGetTopicsOfNamespace, namespace="public/default", request_id=1)
    )
    with pytest.raises(TimeoutError):
        client.send_within(ask * 500_000, 1.0)
    # Answers are written after several commands at a time, hence the margin.
    assert WRITE_LIMIT < settled(broker) < WRITE_LIMIT + 20 * 21_000 * 40
    assert dial(broker).request("LOOKUP", topic="t")


def test_closing_takes_off_what_the_client_had(broker: EmbeddedBroker, client: WireClient) -> None:
    client.produce("t")
    client.subscribe("t", "durable")
    client.read("t", consumer_id=1)
    client.close()
    wait_until(lambda: not broker.connections, "the connection's end")
    assert broker.stats("t").producers == ()
    assert list(broker.subscriptions("t")) == ["durable"]
    assert broker.subscriptions("t")["durable"].consumers == ()


def test_a_half_closed_connection_is_closed(broker: EmbeddedBroker, client: WireClient) -> None:
    client.shutdown()
    assert client.closed()
