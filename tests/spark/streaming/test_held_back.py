"""A stream that stands still because of an open transaction logs that."""

from __future__ import annotations

import pytest

from pulsar_spark.client import PulsarClient
from pulsar_spark.spark.streaming import held_back
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.streams import queries
from tests.support.waiting import wait_until


@pytest.mark.fault(84)
def test_a_stream_that_an_open_transaction_holds_up_says_so(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_back, "_LOOK_SECONDS", 0.2)
    broker.create_topic("t", 2)
    with (
        PulsarClient(broker.service_url) as client,
        queries(broker.service_url) as make,
        client.create_producer("t-partition-0") as producer,
    ):
        query = make(startingOffsets="earliest")
        producer.send(b"before")
        assert query.batch() == [b"before"]
        with client.new_transaction() as txn:
            producer.send(b"inside", txn=txn)

            def told() -> bool:
                assert query.batch() == []
                return "open transaction holds the read position" in caplog.text

            wait_until(told, "it says so")
            assert "t-partition-0: open transaction" in caplog.text
        assert query.batch() == [b"inside"]
    assert "t-partition-1" not in caplog.text
