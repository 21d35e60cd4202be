"""A broker that sends clients away names the next broker."""

from __future__ import annotations

import pytest

from pulsar_spark.client import PulsarClient
from pulsar_spark.testing import EmbeddedBroker
from tests.support.waiting import wait_until
from tests.testing.wire_client import WireClient


@pytest.mark.parametrize("kind", ["PRODUCER", "SUBSCRIBE"])
def test_clients_go_where_they_are_sent_and_look_nothing_up(kind: str) -> None:
    with EmbeddedBroker(brokers=2) as broker, PulsarClient(broker.service_url) as client:
        topic = broker.create_topic("t")
        broker.move(topic, 0)
        opened = (
            client.create_producer(topic) if kind == "PRODUCER" else client.subscribe(topic, "s")
        )
        looked_up, asked = (len(broker.faults.log(name)) for name in ("LOOKUP", kind))
        broker.move(topic, 1)
        wait_until(lambda: len(broker.faults.log(kind)) > asked, "the client is back")
        assert len(broker.faults.log("LOOKUP")) == looked_up
        opened.close()


def test_the_place_to_go_has_an_address_for_those_who_speak_tls() -> None:
    with EmbeddedBroker() as broker:
        client = WireClient(broker.port)
        client.produce("t")
        client.subscribe("t")
        broker.unload("t", "pulsar+ssl://elsewhere:6651")
        for kind in ("CLOSE_PRODUCER", "CLOSE_CONSUMER"):
            told = client.expect(kind).body
            assert told.assignedBrokerServiceUrlTls == "pulsar+ssl://elsewhere:6651"
            assert not told.HasField("assignedBrokerServiceUrl")
        client.close()
