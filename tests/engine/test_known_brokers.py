"""Brokers that a process knows: asked first, and corrected when they refuse."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from pulsar_spark.engine.consumers.reader import EntryReader
from pulsar_spark.engine.context import ClientContext, shared_connections
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.errors import TopicNotFound
from pulsar_spark.protocol.message_id import EARLIEST_POSITION
from pulsar_spark.protocol.outgoing_messages import MessageFields, OutgoingMessages
from pulsar_spark.testing import EmbeddedBroker
from tests.support.round_trips import Asked


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    yield
    shared_connections().close_unused()


def send(broker: EmbeddedBroker, topic: str = "t") -> None:
    with ClientContext.shared(ClientOptions(broker.service_url)) as context:
        producer = TopicProducer(context, topic)
        producer.send(OutgoingMessages.of([MessageFields(b"x")]))
        producer.close()


def read(broker: EmbeddedBroker, topic: str = "persistent://public/default/t") -> bytes:
    with (
        ClientContext.shared(ClientOptions(broker.service_url)) as context,
        EntryReader(context.pool, topic, EARLIEST_POSITION) as reader,
    ):
        entry = reader.next_entry(30)
        assert entry is not None
        return bytes(entry.payload)


def test_one_lookup_serves_all_that_follow_in_this_process() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic("t")
        with Asked(broker) as asked:
            for _ in range(5):
                send(broker)
                assert read(broker) == b"x"
        assert asked.counts["LOOKUP"] == 1
        assert asked.counts["PRODUCER"] == asked.counts["SUBSCRIBE"] == 5


@pytest.mark.parametrize("assigned", [True, False])
def test_a_broker_that_serves_the_topic_no_more_refuses_and_the_new_one_is_looked_up(
    assigned: bool,
) -> None:
    with EmbeddedBroker(brokers=3) as broker:
        broker.create_topic("t")
        for number in (1, 2, 0):
            send(broker)
            broker.move("t", number, assign=assigned)
            with Asked(broker) as asked:
                send(broker)
                assert read(broker) == b"x"
            assert asked.counts["LOOKUP"] <= 2
            # The first attempt, and the one at the right broker, without a pause between them.
            assert asked.counts["PRODUCER"] <= 2


def test_a_topic_that_was_deleted_is_told_as_without_what_was_known() -> None:
    with EmbeddedBroker(auto_create=False) as broker:
        broker.create_topic("t")
        send(broker)
        broker.delete_topic("t")
        with pytest.raises(TopicNotFound, match="does not exist"):
            send(broker)
        broker.create_topic("t")
        send(broker)
        assert read(broker) == b"x"


def test_a_broker_that_is_connected_no_more_is_looked_up() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic("t")
        send(broker)
        broker.faults.disconnect()
        with Asked(broker) as asked:
            send(broker)
        assert asked.counts["LOOKUP"] >= 1


def test_a_client_of_its_own_looks_up_for_itself() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic("t")
        for _ in range(2):
            with (
                ClientContext(ClientOptions(broker.service_url)) as context,
                Asked(broker) as asked,
            ):
                TopicProducer(context, "t").open().close()
            assert asked.counts["LOOKUP"] == 1


def test_a_known_broker_that_gives_no_answer_leaves_time_for_a_lookup() -> None:
    with EmbeddedBroker(brokers=2) as broker:
        broker.create_topic("t")
        options = ClientOptions(broker.service_url, operation_timeout=20.0)
        for hangs in (0, 1):
            broker.faults.drop("PRODUCER", times=hangs)
            began = time.monotonic()
            with ClientContext.shared(options) as context:
                TopicProducer(context, "t").open().close()
            # Not at the very end, when any network would be too slow.
            assert time.monotonic() - began < 18
