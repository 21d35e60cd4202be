"""Compaction in the embedded broker: the remaining messages, and who sees them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_spark.client import CompressionType, MessageId, PulsarClient
from pulsar_spark.errors import SubscriptionNotFound, UnsupportedCodec
from pulsar_spark.testing import EmbeddedBroker
from tests.support.waiting import wait_until


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[PulsarClient]:
    with PulsarClient(broker.service_url) as made:
        yield made


def write(
    client: PulsarClient, topic: str, *messages: tuple[str | None, bytes], codec: str = "NONE"
) -> None:
    """Send messages with their keys as one batch."""
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_publish_delay_ms=60_000,
        compression_type=CompressionType[codec],
    )
    for key, value in messages:
        producer.send_async(value, None, partition_key=key)
    producer.flush()
    producer.close()


def read(client: PulsarClient, topic: str, *, compacted: bool = True) -> list[bytes]:
    found: list[bytes] = []
    with client.create_reader(topic, MessageId.earliest, is_read_compacted=compacted) as reader:
        while reader.has_message_available():
            found.append(reader.read_next(timeout_millis=60_000).data())
    return found


@pytest.mark.parametrize("codec", ["NONE", "LZ4", "ZLib"])
def test_of_a_batch_what_is_the_last_of_its_key_stays(
    broker: EmbeddedBroker, client: PulsarClient, codec: str
) -> None:
    topic = broker.create_topic("batches")
    write(client, topic, ("a", b"1"), ("b", b"2"), ("a", b"3"), (None, b"4"), codec=codec)
    write(client, topic, ("b", b"5"), ("c", b"6"), codec=codec)
    before = read(client, topic)
    broker.compact(topic)
    assert read(client, topic) == [b"3", b"5", b"6"]
    assert before == read(client, topic, compacted=False) == [b"%d" % n for n in range(1, 7)]


def test_an_empty_message_removes_its_key(broker: EmbeddedBroker, client: PulsarClient) -> None:
    topic = broker.create_topic("tombstones")
    producer = client.create_producer(topic)
    for key, value in (("a", b"1"), ("b", b"2"), ("a", b"")):
        producer.send(value, partition_key=key)
    broker.compact(topic)
    assert read(client, topic) == [b"2"]


def test_what_follows_is_seen_until_it_is_compacted_too(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    topic = broker.create_topic("follows")
    producer = client.create_producer(topic)
    producer.send(b"1", partition_key="a")
    broker.compact(topic)
    producer.send(b"2", partition_key="a")
    assert read(client, topic) == [b"1", b"2"]
    broker.compact(topic)
    assert read(client, topic) == [b"2"]


def test_what_was_trimmed_of_the_topic_is_still_there_compacted(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    topic = broker.create_topic("trimmed")
    producer = client.create_producer(topic)
    for number in range(4):
        producer.send(b"%d" % number, partition_key=f"k{number % 2}")
    broker.compact(topic)
    broker.trim(topic)
    assert read(client, topic, compacted=False) == []
    assert read(client, topic) == [b"2", b"3"]
    producer.send(b"4", partition_key="k0")
    broker.compact(topic)
    assert read(client, topic) == [b"3", b"4"]


def test_what_a_transaction_did_not_commit_counts_for_nothing(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    topic = broker.create_topic("transactions")
    producer = client.create_producer(topic)
    producer.send(b"1", partition_key="a")
    aborted = client.new_transaction()
    producer.send(b"2", partition_key="a", txn=aborted)
    aborted.abort()
    still_open = client.new_transaction()
    producer.send(b"3", partition_key="a", txn=still_open)
    broker.compact(topic)
    assert read(client, topic) == [b"1"]
    still_open.commit()
    assert read(client, topic) == [b"1", b"3"]


def test_batches_that_this_broker_cannot_open_are_refused(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    topic = broker.create_topic("zstd")
    write(client, topic, ("a", b"1"), ("a", b"2"), codec="ZSTD")
    with pytest.raises(UnsupportedCodec):
        broker.compact(topic)
    assert read(client, topic) == [b"1", b"2"]


def test_what_expires_is_acknowledged_and_stays_stored(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    topic = broker.create_topic("expiry")
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic)
    producer.send(b"old")
    broker.expire_messages(topic, "s", 3600)
    assert broker.subscriptions(topic)["s"].backlog == 1
    wait_until(lambda: _expired(broker, topic), "it does not expire")
    producer.send(b"new")
    with client.subscribe(topic, "s") as consumer:
        assert consumer.receive(60_000).data() == b"new"
    assert read(client, topic) == [b"old", b"new"]
    with pytest.raises(SubscriptionNotFound):
        broker.expire_messages(topic, "no such", 0)


def _expired(broker: EmbeddedBroker, topic: str) -> bool:
    broker.expire_messages(topic, "s", 0)
    return broker.subscriptions(topic)["s"].backlog == 0
