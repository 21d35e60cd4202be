"""With several brokers, only the owner serves a topic."""

from __future__ import annotations

from collections.abc import Callable

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing import EmbeddedBroker
from tests.testing.wire_client import WireClient

Start = Callable[..., EmbeddedBroker]
Dial = Callable[..., WireClient]


def test_others_refuse_producers_and_consumers(start_broker: Start, dial: Dial) -> None:
    broker = start_broker(brokers=2)
    broker.create_topic("t")
    broker.move("t", 1)
    client = dial(broker)
    refused = client.produce("t").body
    assert refused.error == pb.ServiceNotReady
    assert "not served by this instance" in refused.message
    assert client.subscribe("t").body.error == pb.ServiceNotReady
    broker.move("t", 0)
    assert client.produce("t").name == "PRODUCER_SUCCESS"


def test_a_connection_can_mean_another_broker(start_broker: Start, dial: Dial) -> None:
    broker = start_broker(brokers=2)
    broker.create_topic("t")
    broker.move("t", 1)
    target = broker.service_urls[1].removeprefix("pulsar://")
    client = dial(broker, proxy_to_broker_url=target)
    assert client.produce("t").name == "PRODUCER_SUCCESS"


def test_a_single_broker_serves_all(broker: EmbeddedBroker, dial: Dial) -> None:
    client = dial(broker, proxy_to_broker_url="elsewhere:6650")
    assert client.produce("t").name == "PRODUCER_SUCCESS"
