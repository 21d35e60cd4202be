"""We read what the official client wrote: every field, every codec, byte for byte."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.errors import EncryptedMessage
from pulsar_spark.protocol.message_id import MessageIdAdv, Position
from tests.integration.brokers import Broker
from tests.integration.messages import (
    CODECS,
    Content,
    official_read,
    official_write,
    parts,
    place,
    random_contents,
    read_entries,
    read_rows,
)

pulsar = pytest.importorskip("pulsar", reason="pulsar-client is not installed")

Connect = Callable[..., Any]

KEYS = Path(__file__).resolve().parent.parent / "data" / "golden" / "keys"

OFFICIAL_CODECS = {
    name: getattr(pulsar.CompressionType, name.replace("ZLIB", "ZLib")) for name in CODECS
}


@pytest.fixture
def client(broker: Broker, official_client: Connect) -> Any:
    return official_client(broker.service_url)


def producer_of(client: Any, topic: str, **options: Any) -> Any:
    settings = {"block_if_queue_full": True, "batching_max_publish_delay_ms": 5, **options}
    return client.create_producer(topic, **settings)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("batching, count", [(True, 3000), (False, 300)])
def test_random_messages_arrive_byte_for_byte(
    broker: Broker, client: Any, codec: str, batching: bool, count: int
) -> None:
    topic = broker.create_topic()
    contents = random_contents(count, count)
    producer = producer_of(
        client, topic, batching_enabled=batching, compression_type=OFFICIAL_CODECS[codec]
    )
    ids = official_write(producer, contents)
    rows = read_rows(broker, topic)
    assert [row.content for row in rows] == contents
    assert [parts(row.message_id) for row in rows] == [place(found) for found in ids]
    # The official client does not compress an empty payload.
    assert {row.entry.compression for row in rows if row.received.payload} == {CODECS[codec]}
    assert {row.entry.HasField("num_messages_in_batch") for row in rows} == {batching}


@pytest.mark.parametrize("batching", [True, False])
def test_ids_names_and_times_are_those_of_the_official_client(
    broker: Broker, client: Any, batching: bool
) -> None:
    topic = broker.create_topic()
    before = int(time.time() * 1000)
    producer = producer_of(
        client, topic, producer_name="they", initial_sequence_id=99, batching_enabled=batching
    )
    official_write(producer, [Content(b"%d" % number) for number in range(50)])
    after = int(time.time() * 1000)
    rows = read_rows(broker, topic)
    seen = official_read(client, topic, 50)
    assert [row.sequence_id for row in rows] == list(range(100, 150))
    assert [parts(row.message_id) for row in rows] == [place(m.message_id()) for m in seen]
    assert [row.entry.publish_time for row in rows] == [m.publish_timestamp() for m in seen]
    assert all(before - 1 <= row.entry.publish_time <= after + 1 for row in rows)
    assert {row.entry.producer_name for row in rows} == {"they"}
    for row, message in zip(rows, seen, strict=True):
        assert pulsar.MessageId.deserialize(row.message_id.serialize()) == message.message_id()
        theirs = MessageIdAdv.deserialize(message.message_id().serialize())
        assert parts(theirs) == parts(row.message_id)


def test_sequence_ids_of_the_users_choice(broker: Broker, client: Any) -> None:
    topic = broker.create_topic()
    for batching in (False, True):
        producer = producer_of(client, topic, batching_enabled=batching)
        for sequence_id in (3, 7, 1000):
            producer.send_async(b"m", None, sequence_id=sequence_id)
        producer.flush()
    assert [row.sequence_id for row in read_rows(broker, topic)] == [3, 7, 1000] * 2


@pytest.mark.parametrize("codec", ["NONE", "LZ4", "ZSTD"])
def test_messages_in_chunks(broker: Broker, client: Any, codec: str) -> None:
    topic = broker.create_topic()
    rng = random.Random(1)
    producer = producer_of(
        client,
        topic,
        batching_enabled=False,
        chunking_enabled=True,
        compression_type=OFFICIAL_CODECS[codec],
    )
    # Sizes around the largest one that needs no chunks, and of several chunks.
    sizes = (10, 5 * 1024 * 1024, 12_000_001, 11)
    contents = [
        Content(rng.randbytes(size), f"k{size}", properties=(("size", str(size)),))
        for size in sizes
    ]
    ids = official_write(producer, contents)
    rows = read_rows(broker, topic)
    assert [row.content for row in rows] == contents
    assert [parts(row.message_id)[:2] for row in rows] == [place(found)[:2] for found in ids]
    assert [row.received.first_chunk is not None for row in rows] == [False, True, True, False]
    assert rows[2].entry.num_chunks_from_msg == 3


@pytest.mark.fault(95)
@pytest.mark.parametrize("batching", [True, False])
def test_null_empty_and_odd_values_are_told_apart(
    broker: Broker, client: Any, batching: bool
) -> None:
    topic = broker.create_topic()
    contents = [
        Content(None),
        Content(b""),
        Content(b"\0"),
        Content(None, "gone"),
        Content(b"", "empty"),
        Content(b"x", "🐟\0", "\0", (("", ""), ("\0", "🐟"), ("a" * 5000, "b" * 5000))),
        Content(b"x", "k" * 1024 * 1024),
        Content(b"x" * 1024 * 1024),
    ]
    official_write(producer_of(client, topic, batching_enabled=batching), contents)
    assert [row.content for row in read_rows(broker, topic)] == contents


def test_batches_of_all_sizes(broker: Broker, client: Any) -> None:
    topic = broker.create_topic()
    sizes = [1, 2, 3, 999, 1000, 1, 17]
    expected = []
    producer = producer_of(
        client,
        topic,
        batching_enabled=True,
        batching_max_messages=1000,
        batching_max_allowed_size_in_bytes=1024 * 1024,
        batching_max_publish_delay_ms=60_000,
    )
    for number, size in enumerate(sizes):
        contents = [Content(b"%d-%d" % (number, index)) for index in range(size)]
        official_write(producer, contents)
        expected += contents
    entries = read_entries(broker, topic)
    assert [entry.metadata.num_messages_in_batch for entry in entries] == sizes
    assert [row.content for row in read_rows(broker, topic)] == expected


def test_batches_by_key(broker: Broker, client: Any) -> None:
    topic = broker.create_topic()
    producer = producer_of(
        client, topic, batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased
    )
    contents = [Content(b"%d" % number, f"k{number % 5}") for number in range(200)]
    official_write(producer, contents)
    rows = read_rows(broker, topic)
    for key in {content.key for content in contents}:
        own = [content for content in contents if content.key == key]
        assert [row.content for row in rows if row.content.key == key] == own
    assert len(rows) == 200


def test_each_partition_is_read_by_itself(broker: Broker, client: Any) -> None:
    topic = broker.create_topic(partitions=3)
    contents = random_contents(3, 600)
    ids = official_write(producer_of(client, topic, batching_enabled=True), contents)
    assert len(ids) == 600
    rows = [row for name in broker.partitions_of(topic, 3) for row in read_rows(broker, name)]
    assert sorted(repr(row.content) for row in rows) == sorted(map(repr, contents))
    assert {row.message_id.partition for row in rows} == {0, 1, 2}
    assert {parts(row.message_id) for row in rows} == {place(found) for found in ids}


def test_producers_that_take_turns_are_read_in_the_order_of_the_topic(
    broker: Broker, client: Any
) -> None:
    topic = broker.create_topic()
    producers = [
        producer_of(client, topic, producer_name=f"p{number}", batching_enabled=number % 2 == 0)
        for number in range(4)
    ]
    for number in range(200):
        producers[number % 4].send_async(b"%d" % number, None)
    for producer in producers:
        producer.flush()
    seen = official_read(client, topic, 200)
    rows = read_rows(broker, topic)
    assert [row.content.payload for row in rows] == [message.data() for message in seen]
    assert [row.entry.producer_name for row in rows] == [m.producer_name() for m in seen]


@pytest.mark.fault(91)
def test_large_messages_are_read_within_a_small_budget(broker: Broker, client: Any) -> None:
    topic = broker.create_topic()
    rng = random.Random(5)
    contents = [Content(rng.randbytes(3_000_000)) for _ in range(12)]
    official_write(producer_of(client, topic), contents)
    rows = read_rows(broker, topic, memory_budget=4_000_000)
    assert [row.content for row in rows] == contents


@pytest.mark.fault(92)
def test_a_batch_of_very_many_messages(broker: Broker, client: Any) -> None:
    topic = broker.create_topic()
    producer = producer_of(
        client,
        topic,
        batching_enabled=True,
        batching_max_messages=50_000,
        batching_max_allowed_size_in_bytes=4 * 1024 * 1024,
        batching_max_publish_delay_ms=60_000,
        max_pending_messages=50_000,
    )
    contents = [Content(b"%d" % number) for number in range(30_000)]
    official_write(producer, contents)
    entries = read_entries(broker, topic)
    assert [entry.metadata.num_messages_in_batch for entry in entries] == [30_000]
    assert [row.content for row in read_rows(broker, topic)] == contents
    middle = Position(entries[0].ledger_id, entries[0].entry_id, 29_990)
    assert [row.content for row in read_rows(broker, topic, middle)] == contents[-10:]


def test_reading_leaves_no_trace(broker: Broker, client: Any) -> None:
    topic = broker.create_topic()
    producer = producer_of(client, topic)
    official_write(producer, random_contents(9, 20))
    producer.close()
    for _ in range(3):
        assert len(read_rows(broker, topic)) == 20
        broker.expect_no_trace(topic)


@pytest.mark.fault(40)
@pytest.mark.parametrize("batching", [True, False])
def test_an_encrypted_message_is_an_error_with_its_id(
    broker: Broker, client: Any, batching: bool
) -> None:
    topic = broker.create_topic()
    plain = producer_of(client, topic)
    plain.send(b"readable")
    key = str(KEYS / "golden-a.public.pem")
    secret = producer_of(
        client,
        topic,
        batching_enabled=batching,
        encryption_key="golden-a",
        crypto_key_reader=pulsar.CryptoKeyReader(key, key),
    )
    sent = secret.send(b"secret")
    with pytest.raises(EncryptedMessage) as caught:
        read_rows(broker, topic)
    assert caught.value.message_id == f"{sent.ledger_id()}:{sent.entry_id()}"
    assert caught.value.topic == topic
    before = Position(sent.ledger_id(), sent.entry_id())
    assert [row.content.payload for row in read_rows(broker, topic, end=before)] == [b"readable"]


@pytest.mark.fault(64)
def test_each_message_has_the_version_of_its_schema(broker: Broker, client: Any) -> None:
    topic = broker.create_topic()

    number = {"name": "number", "type": "int"}
    text = {"name": "text", "type": "string", "default": ""}
    for fields in ([number], [number, text], [number]):
        record = {"type": "record", "name": "r", "fields": fields}
        schema = pulsar.schema.AvroSchema(None, schema_definition=record)
        producer = producer_of(client, topic, schema=schema)
        producer.send_async({"number": 1, "text": "one"}, None)
        producer.send({"number": 2, "text": "two"})
        producer.close()
    rows = read_rows(broker, topic)
    versions = [row.entry.schema_version for row in rows]
    assert versions == [
        message.schema_version().encode() for message in official_read(client, topic, 6)
    ]
    assert len(set(versions)) == 2
