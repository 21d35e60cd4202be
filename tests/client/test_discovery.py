"""Topics and partitions that appear are found, even if they could not be taken the first time."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pulsar_spark.client import InitialPosition, MessageId, PulsarClient
from pulsar_spark.client.reader import PulsarReader
from pulsar_spark.client.topic_consumers import TopicConsumers
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.errors import ConnectionLost
from pulsar_spark.testing import EmbeddedBroker
from tests.support.waiting import wait_until

RECEIVE_MS = 60_000


def fail_first(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: Exception) -> None:
    """Make a method raise when it is called for the first two times."""
    method = getattr(owner, name)
    left = [error, error]

    def failing(*arguments: Any, **named: Any) -> Any:
        if left:
            raise left.pop()
        return method(*arguments, **named)

    monkeypatch.setattr(owner, name, failing)


@pytest.mark.fault(193)
@pytest.mark.parametrize("error", [ConnectionLost("gone"), RuntimeError("no thread")], ids=type)
def test_a_pattern_is_looked_for_again_after_what_was_found_could_not_be_taken(
    broker: EmbeddedBroker,
    client: PulsarClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    fail_first(monkeypatch, TopicConsumers, "on_topics", error)
    pattern = re.compile("public/default/a-.*")
    with client.subscribe(pattern, "s", pattern_auto_discovery_period=1) as consumer:
        client.create_producer("a-1").send(b"1")
        assert consumer.receive(RECEIVE_MS).data() == b"1"
    assert "cannot be taken now" in caplog.text


@pytest.mark.fault(193)
def test_a_consumer_that_could_not_be_made_is_made_at_the_next_discovery(
    broker: EmbeddedBroker, client: PulsarClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern = re.compile("public/default/a-.*")
    client.create_producer("a-1").send(b"1")
    with client.subscribe(
        pattern, "s", pattern_auto_discovery_period=1, initial_position=InitialPosition.Earliest
    ) as consumer:
        assert consumer.receive(RECEIVE_MS).data() == b"1"
        fail_first(monkeypatch, TopicConsumers, "_make", RuntimeError("not now"))
        client.create_producer("a-2").send(b"2")
        assert consumer.receive(RECEIVE_MS).data() == b"2"


@pytest.mark.fault(193)
def test_readers_and_producers_find_new_partitions_after_an_error(
    broker: EmbeddedBroker, client: PulsarClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.create_topic("t", partitions=1)
    fail_first(monkeypatch, PulsarReader, "on_topics", RuntimeError("not now"))
    fail_first(monkeypatch, PartitionedProducer, "grow", RuntimeError("not now"))
    reader = client.create_reader(
        topic, MessageId.earliest, auto_update_partitions_interval_seconds=0.1
    )
    producer = client.create_producer(topic, auto_update_partitions_interval_seconds=0.1)
    broker.add_partitions(topic, 3)
    wait_until(lambda: producer._writer.partitions == 3, "the producer does not grow")
    for number in range(3):
        client.create_producer(f"{topic}-partition-{number}").send(b"%d" % number)
    found = {reader.read_next(RECEIVE_MS).data() for _ in range(3)}
    assert found == {b"0", b"1", b"2"}
