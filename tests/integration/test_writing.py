"""The official client reads what we write: every field, every codec, byte for byte."""

from __future__ import annotations

import base64
import json
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.errors import IncompatibleSchema, PulsarError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.hashing import java_string_hash, murmur3_32
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.protocol.outgoing_messages import MessageFields, OutgoingMessages
from pulsar_spark.protocol.schema_info import SchemaInfo
from tests.integration.brokers import Broker
from tests.integration.messages import (
    CODECS,
    TEXTS,
    Content,
    Row,
    clustered,
    official_content,
    official_read,
    parts,
    place,
    random_contents,
    read_entries,
    read_rows,
)
from tests.outgoing import outgoing

pulsar = pytest.importorskip("pulsar", reason="pulsar-client is not installed")

Connect = Callable[..., Any]


@pytest.fixture
def client(broker: Broker, official_client: Connect) -> Any:
    return official_client(broker.service_url)


class Ids:
    """A callback for sends: records the messages' ids, in order."""

    def __init__(self) -> None:
        self.found: list[MessageIdAdv | None] = []
        self.errors: list[PulsarError] = []

    def __call__(self, error: PulsarError | None, message_id: MessageIdAdv | None) -> None:
        if error is not None:
            self.errors.append(error)
        self.found.append(message_id)

    @property
    def places(self) -> list[tuple[int, int, int, int]]:
        assert self.errors == []
        return [parts(found) for found in self.found if found is not None]


def write(broker: Broker, topic: str, contents: list[Content], **options: Any) -> Ids:
    """Send messages one by one and return their ids."""
    ids = Ids()
    with (
        clustered(broker) as context,
        PartitionedProducer(context, topic, ProducerOptions(**options)) as writer,
    ):
        for content in contents:
            writer.send(content.fields(), ids)
    assert len(ids.places) == len(contents)
    return ids


def write_columns(broker: Broker, topic: str, columns: OutgoingMessages, **options: Any) -> None:
    with (
        clustered(broker) as context,
        PartitionedProducer(context, topic, ProducerOptions(**options)) as writer,
    ):
        writer.write(columns)
        writer.flush()
        assert writer.counts.acknowledged == len(columns)


def payloads(messages: list[Any]) -> list[bytes]:
    return [message.data() for message in messages]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("batching, count", [(True, 3000), (False, 300)])
def test_random_messages_arrive_byte_for_byte(
    broker: Broker, client: Any, codec: str, batching: bool, count: int
) -> None:
    topic = broker.create_topic()
    contents = random_contents(count + 1, count, empty_keys=True)
    ids = write(broker, topic, contents, compression=CODECS[codec], batching_enabled=batching)
    messages = official_read(client, topic, count)
    assert [official_content(m) for m in messages] == [c.seen_officially() for c in contents]
    assert [place(message.message_id()) for message in messages] == ids.places
    # We distinguish what the official client does not.
    assert [row.content for row in read_rows(broker, topic)] == contents
    broker.expect_no_trace(topic)


@pytest.mark.parametrize("codec", CODECS)
def test_columns_of_everything(broker: Broker, client: Any, codec: str) -> None:
    topic = broker.create_topic()
    contents = random_contents(17, 3000, empty_keys=True)
    columns = outgoing(
        [content.payload for content in contents],
        keys=[content.key for content in contents],
        ordering_keys=[
            None if content.ordering_key is None else content.ordering_key.encode()
            for content in contents
        ],
        event_times=[content.event_time or None for content in contents],
        properties=[content.properties or None for content in contents],
    )
    write_columns(broker, topic, columns, compression=CODECS[codec])
    messages = official_read(client, topic, len(contents))
    assert [official_content(m) for m in messages] == [c.seen_officially() for c in contents]


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("keyed", [True, False])
def test_columns_of_payloads_and_keys(
    broker: Broker, client: Any, keyed: bool, batching: bool
) -> None:
    topic = broker.create_topic()
    rng = random.Random(3)
    count = 10_000 if batching else 500
    values = [rng.randbytes(rng.choice((0, 5, 100, 100, 200))) for _ in range(count)]
    keys = [rng.choice(TEXTS) for _ in range(count)] if keyed else None
    columns = outgoing(values, keys)
    write_columns(broker, topic, columns, batching_enabled=batching)
    messages = official_read(client, topic, count)
    assert payloads(messages) == values
    assert [message.partition_key() for message in messages] == (keys or [""] * count)


def test_values_that_are_null_among_columns(broker: Broker, client: Any) -> None:
    topic = broker.create_topic()
    values = [None if number % 97 == 0 else b"%d" % number for number in range(3000)]
    write_columns(broker, topic, outgoing(values))
    messages = official_read(client, topic, 3000)
    assert [None if m.has_null_value() else m.data() for m in messages] == values


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
        Content(b"", "", ""),
        Content(b"x", "🐟\0", "\0", (("", ""), ("\0", "🐟"), ("a" * 5000, "b" * 5000))),
        Content(b"x", "k" * 1024 * 1024),
        Content(b"x" * 1024 * 1024),
    ]
    write(broker, topic, contents, batching_enabled=batching)
    messages = official_read(client, topic, len(contents))
    assert [official_content(m) for m in messages] == [c.seen_officially() for c in contents]
    assert [row.content for row in read_rows(broker, topic)] == contents


@pytest.mark.fault(95)
@pytest.mark.parametrize("batching", [True, False])
def test_properties_can_repeat_a_name(broker: Broker, client: Any, batching: bool) -> None:
    topic = broker.create_topic()
    twice = (("a", "1"), ("a", "2"))
    write(broker, topic, [Content(b"x", properties=twice)] * 2, batching_enabled=batching)
    assert [row.content.properties for row in read_rows(broker, topic)] == [twice] * 2
    (found,) = {m.properties()["a"] for m in official_read(client, topic, 2)}
    assert found in ("1", "2")


def test_names_sequence_ids_and_times(broker: Broker, client: Any) -> None:
    topic = broker.create_topic()
    before = int(time.time() * 1000)
    contents = [Content(b"%d" % number) for number in range(2500)]
    write(broker, topic, contents, producer_name="ours", initial_sequence_id=41)
    messages = official_read(client, topic, 2500)
    assert {message.producer_name() for message in messages} == {"ours"}
    times = [message.publish_timestamp() for message in messages]
    assert before - 1 <= times[0] <= times[-1] <= int(time.time() * 1000) + 1
    rows = read_rows(broker, topic)
    assert [row.sequence_id for row in rows] == list(range(42, 2542))
    ends = {(row.entry.sequence_id, row.entry.highest_sequence_id) for row in rows}
    assert ends == {(42, 1041), (1042, 2041), (2042, 2541)}


def test_sequence_ids_of_the_users_choice(broker: Broker, client: Any) -> None:
    topic = broker.create_topic()
    chosen = [3, 7, 1000, 5000, 5001]
    columns = outgoing([b"%d" % found for found in chosen], sequence_ids=chosen)
    write_columns(broker, topic, columns)
    assert [row.sequence_id for row in read_rows(broker, topic)] == chosen
    assert payloads(official_read(client, topic, 5)) == [b"%d" % found for found in chosen]


@pytest.mark.parametrize("codec", CODECS)
def test_messages_in_chunks(broker: Broker, client: Any, codec: str) -> None:
    topic = broker.create_topic()
    rng = random.Random(2)
    sizes = (10, 5 * 1024 * 1024, 12_000_001, 11)
    contents = [
        Content(rng.randbytes(size), f"k{size}", properties=(("size", str(size)),))
        for size in sizes
    ]
    ids = write(
        broker,
        topic,
        contents,
        batching_enabled=False,
        chunking_enabled=True,
        compression=CODECS[codec],
    )
    messages = official_read(client, topic, len(sizes))
    assert [official_content(message) for message in messages] == contents
    assert [place(message.message_id()) for message in messages] == ids.places
    rows = read_rows(broker, topic)
    assert [row.content for row in rows] == contents
    starts = [row.received.first_chunk for row in rows]
    assert starts == [None if found is None else found.first_chunk for found in ids.found]


def test_messages_in_chunks_of_a_chosen_size(broker: Broker, client: Any) -> None:
    topic = broker.create_topic()
    body = random.Random(4).randbytes(100_001)
    options = {"batching_enabled": False, "chunking_enabled": True}
    write(broker, topic, [Content(body)] * 2, chunk_max_message_size=10_000, **options)
    assert payloads(official_read(client, topic, 2)) == [body] * 2
    assert [row.entry.num_chunks_from_msg for row in read_rows(broker, topic)] == [11, 11]


@pytest.mark.parametrize("messages, size", [(1, 10**6), (2, 10**6), (7, 10**6), (1000, 500)])
def test_batches_keep_their_bounds(broker: Broker, client: Any, messages: int, size: int) -> None:
    topic = broker.create_topic()
    contents = [Content(b"%030d" % number, f"k{number % 7}") for number in range(200)]
    write(broker, topic, contents, batching_max_messages=messages, batching_max_bytes=size)
    assert [official_content(m) for m in official_read(client, topic, 200)] == contents
    entries = read_entries(broker, topic)
    counts = [entry.metadata.num_messages_in_batch for entry in entries]
    assert max(counts) <= messages
    assert all(len(entry.payload) <= size for entry in entries)
    # And batches are used: one message in each would satisfy the limits, too.
    assert len(entries) <= 200 // min(messages, size // 50) + 1


def rows_by_partition(broker: Broker, topic: str, partitions: int) -> list[list[Row]]:
    return [read_rows(broker, name) for name in broker.partitions_of(topic, partitions)]


@pytest.mark.parametrize("scheme", ["JavaStringHash", "Murmur3_32Hash"])
@pytest.mark.parametrize("way", ["one by one", "in columns"])
def test_keys_go_to_the_partitions_of_the_java_client(
    broker: Broker, client: Any, scheme: str, way: str
) -> None:
    topic = broker.create_topic(partitions=4)
    rng = random.Random(6)
    texts = [*TEXTS, *(f"user-{number}" for number in range(100))]
    contents = [Content(b"%d" % number, rng.choice(texts)) for number in range(1000)]
    if way == "one by one":
        write(broker, topic, contents, hashing_scheme=scheme)
    else:
        columns = outgoing(
            [content.payload for content in contents], [content.key for content in contents]
        )
        write_columns(broker, topic, columns, hashing_scheme=scheme)

    def partition_of(content: Content) -> int:
        key = content.key or ""
        return (murmur3_32(key.encode()) if "3" in scheme else java_string_hash(key)) % 4

    for number, name in enumerate(broker.partitions_of(topic, 4)):
        expected = [content for content in contents if partition_of(content) == number]
        assert len(expected) > 100
        messages = official_read(client, name, len(expected))
        # Each key, and here each partition, is in the writer's order.
        assert [official_content(m) for m in messages] == [c.seen_officially() for c in expected]
        assert {message.message_id().partition() for message in messages} == {number}


@pytest.mark.fault(95)
def test_keys_of_bytes_are_base64_with_a_flag(broker: Broker, client: Any) -> None:
    topic = broker.create_topic(partitions=4)
    rng = random.Random(7)
    keys = [b"", b"\0", b"\xff\xfe", b"text", *(rng.randbytes(9) for _ in range(40))]
    columns = outgoing([b"%d" % number for number in range(len(keys))], keys)
    write_columns(broker, topic, columns)
    found = {}
    for number, rows in enumerate(rows_by_partition(broker, topic, 4)):
        for row in rows:
            assert row.content.key is not None
            assert row.content.payload is not None
            assert row.key_is_base64
            assert java_string_hash(row.content.key) % 4 == number
            found[int(row.content.payload)] = row.content.key
    assert [found[number] for number in range(len(keys))] == [
        base64.b64encode(key).decode() for key in keys
    ]


def test_messages_without_a_key_take_turns(broker: Broker) -> None:
    topic = broker.create_topic(partitions=3)
    contents = [Content(b"%d" % number) for number in range(900)]
    write(broker, topic, contents, batching_max_messages=100)
    for rows in rows_by_partition(broker, topic, 3):
        assert {row.entry.num_messages_in_batch for row in rows} == {100}
        assert len(rows) == 300


def test_one_partition_for_messages_without_a_key(broker: Broker) -> None:
    topic = broker.create_topic(partitions=3)
    contents = [Content(b"%d" % number) for number in range(250)]
    write(broker, topic, contents, batching_max_messages=10, routing_mode="SinglePartition")
    assert sorted(len(rows) for rows in rows_by_partition(broker, topic, 3)) == [0, 0, 250]


def test_a_topic_is_created_as_the_broker_creates_topics(broker: Broker, client: Any) -> None:
    topic = broker.unique_topic()
    write(broker, topic, [Content(b"first")])
    assert payloads(official_read(client, topic, 1)) == [b"first"]


def test_a_message_for_later_is_kept_back_from_shared_subscriptions(
    broker: Broker, client: Any
) -> None:
    topic = broker.create_topic()
    consumer = client.subscribe(topic, "sub", consumer_type=pulsar.ConsumerType.Shared)
    with clustered(broker) as context, PartitionedProducer(context, topic) as writer:
        writer.open()
        at = int(time.time() * 1000) + 1500
        writer.send(MessageFields(b"late", deliver_at=at))
        writer.send(MessageFields(b"now"))
        writer.send(MessageFields(b"too"))
    came = {consumer.receive(60_000).data(): time.time() * 1000 for _ in range(3)}
    # A broker that was busy for this long delivers all three at once.
    assert [data for data in came if data != b"late"] == [b"now", b"too"]
    assert came[b"late"] >= at - 100


def test_what_a_deduplicating_broker_has_already_is_counted(
    tuned_broker: Broker, official_client: Connect
) -> None:
    topic = tuned_broker.create_topic()
    client = official_client(tuned_broker.service_url)
    contents = [Content(b"%d" % number) for number in range(100)]
    options = ProducerOptions(
        producer_name="again", initial_sequence_id=-1, batching_max_messages=10
    )
    for duplicates in (0, 100):
        with (
            clustered(tuned_broker) as context,
            PartitionedProducer(context, topic, options) as writer,
        ):
            for content in contents:
                writer.send(content.fields())
            writer.flush()
            assert writer.counts.duplicates == duplicates
            assert writer.counts.acknowledged == 100
    assert payloads(official_read(client, topic, 100)) == [c.payload for c in contents]


def test_a_producer_of_one_partition_tells_where_it_stands(broker: Broker, client: Any) -> None:
    topic = broker.create_topic(partitions=2)
    name = f"{topic}-partition-1"
    with clustered(broker) as context:
        producer = TopicProducer(context, name).open()
        assert broker.producers(name) == {producer.name}
        assert producer._encoding is not None
        assert producer._encoding.limits.max_message_size == 5 * 1024 * 1024
        for number in range(5):
            producer.send(OutgoingMessages([b"%d" % number]))
        producer.flush()
        assert producer.last_sequence_id == 4
        last = producer.last_message_id
        producer.close()
    messages = official_read(client, name, 5)
    assert payloads(messages) == [b"0", b"1", b"2", b"3", b"4"]
    assert last is not None
    assert parts(last) == place(messages[-1].message_id())
    broker.expect_no_trace(name)


@pytest.mark.fault(64)
def test_a_schema_is_registered_and_one_that_does_not_fit_refused(
    broker: Broker, client: Any
) -> None:
    topic = broker.create_topic()
    text = SchemaInfo(pb.Schema.String, "String", b"", {})
    record = b'{"type":"record","name":"r","fields":[{"name":"n","type":"int"}]}'
    with clustered(broker) as context:
        with PartitionedProducer(context, topic, ProducerOptions(schema=text)) as writer:
            writer.send(MessageFields("käse".encode()))
        wrong = ProducerOptions(schema=SchemaInfo(pb.Schema.Avro, "r", record, {}))
        with pytest.raises(IncompatibleSchema):
            PartitionedProducer(context, topic, wrong).open()
    consumer = client.create_reader(
        topic, pulsar.MessageId.earliest, schema=pulsar.schema.StringSchema()
    )
    message = consumer.read_next(60_000)
    assert message.value() == "käse"
    (row,) = read_rows(broker, topic)
    assert row.entry.schema_version == bytes(8)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic, schema=pulsar.schema.AvroSchema(None, json.loads(record)))
