"""The official client reads what `df.write` wrote: every column, on the right partition."""

from __future__ import annotations

import re
import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from pulsar_spark.errors import TopicNotFound
from tests.integration.brokers import Broker
from tests.integration.conftest import TUNED_MESSAGE_SIZE
from tests.integration.messages import (
    CODECS,
    RECEIVE_MS,
    Content,
    official_content,
    official_read,
    read_entries,
    read_rows,
)
from tests.integration.spark_io import load, official, rows, save, send, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pulsar = pytest.importorskip("pulsar", reason="pulsar-client is not installed")

pytestmark = pytest.mark.timeout(600)

ALL_COLUMNS = (
    "value binary, __key string, __orderingKey binary, __messageProperties map<string,string>, "
    "__eventTime timestamp, __sequenceId long"
)
TIME = datetime(2026, 11, 20, 10, 0, 0, 123_000, timezone.utc)
TIME_MS = 1_795_168_800_123


def frame(spark: SparkSession, found: list[tuple[Any, ...]], schema: str) -> DataFrame:
    """Return a DataFrame of one partition, so that one task writes it in order."""
    return spark.createDataFrame(found, schema).coalesce(1)


def contents_of(broker: Broker, topic: str, count: int) -> list[Content]:
    with official(broker) as client:
        return [official_content(message) for message in official_read(client, topic, count)]


@pytest.mark.fault(95)
@pytest.mark.parametrize("batching", [True, False])
def test_every_column_reaches_the_official_client(
    spark: SparkSession, broker: Broker, batching: bool
) -> None:
    topic = broker.create_topic()
    properties = {"a": "1", "": "", "\0": "🐟", "long": "x" * 5000}
    written = [
        (b"all", "key", b"order", properties, TIME, 5),
        (b"nothing else", None, None, None, None, 6),
        (None, "tombstone", None, {}, None, 7),
        (None, None, None, None, None, 8),
        (b"", "empty", b"\xff\0", {}, TIME - timedelta(milliseconds=123), 9),
        (b"\0\xff" * 1000, "🐟\0" * 100, None, {"k": "v"}, datetime(1970, 1, 1, 0, 0, 1), 1000),
    ]
    options = {"pulsar.producer.batchingEnabled": batching, "pulsar.producer.producerName": "ours"}
    save(frame(spark, written, ALL_COLUMNS), broker, topic, options)
    with official(broker) as client:
        messages = official_read(client, topic, len(written))
    assert [message.data() for message in messages] == [row[0] or b"" for row in written]
    assert [message.has_null_value() for message in messages] == [row[0] is None for row in written]
    assert [message.partition_key() for message in messages] == [row[1] or "" for row in written]
    assert [message.properties() for message in messages] == [row[3] or {} for row in written]
    assert [message.event_timestamp() for message in messages] == [
        0 if row[4] is None else round(row[4].timestamp() * 1000) for row in written
    ]
    assert messages[0].event_timestamp() == TIME_MS
    (producer,) = {message.producer_name() for message in messages}
    assert producer.startswith("ours-0-")
    assert {message.message_id().batch_index() >= 0 for message in messages} == {batching}
    # To the official client ordering keys are text, and it shows no sequence ids.
    found = read_rows(broker, topic)
    assert [
        row.fields.ordering_key if row.fields.HasField("ordering_key") else None for row in found
    ] == [row[2] for row in written]
    assert [row.sequence_id for row in found] == [row[5] for row in written]


@pytest.mark.fault(95)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batchingMaxMessages": 1},
        {"batchingMaxMessages": 1, "compressionType": "LZ4"},
        {"batchingEnabled": False},
        {"batchingEnabled": False, "compressionType": "LZ4"},
    ],
    ids=["batched", "batches of one", "compressed of one", "unbatched", "compressed"],
)
def test_tombstones_and_messages_without_keys_change_nothing_for_the_others(
    spark: SparkSession, broker: Broker, options: dict[str, Any]
) -> None:
    topic = broker.create_topic(partitions=3)
    written = [
        (
            None if number % 7 == 0 else b"%d" % number,
            None if number % 11 == 0 else f"key-{number % 40}",
        )
        for number in range(1000)
    ]
    named = {f"pulsar.producer.{name}": value for name, value in options.items()}
    save(frame(spark, written, "value binary, __key string"), broker, topic, named)
    found: list[tuple[bytes | None, str | None]] = []
    with official(broker) as client:
        for partition in broker.partitions_of(topic, 3):
            reader = client.create_reader(partition, pulsar.MessageId.earliest)
            while reader.has_message_available():
                content = official_content(reader.read_next(RECEIVE_MS))
                found.append((content.payload, content.key))
            reader.close()
    for key in {key for _, key in written if key is not None}:
        assert [row for row in found if row[1] == key] == [row for row in written if row[1] == key]
    assert Counter(found) == Counter(written)


def test_event_times_are_milliseconds_or_timestamps(spark: SparkSession, broker: Broker) -> None:
    topic = broker.create_topic()
    written = [("a", TIME_MS), ("b", None), ("c", 1)]
    save(frame(spark, written, "value string, __eventTime long"), broker, topic)
    read = load(spark, broker, topic).select("value", F.unix_millis("__eventTime"))
    assert [tuple(row) for row in read.collect()] == written
    found = [content.event_time for content in contents_of(broker, topic, 3)]
    assert found == [TIME_MS, 0, 1]


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_batches_are_read_by_the_official_client(
    spark: SparkSession, broker: Broker, codec: str
) -> None:
    topic = broker.create_topic()
    payloads = [b"%d," % number * 30 for number in range(300)]
    options = {
        "pulsar.producer.compressionType": codec,
        "pulsar.producer.batchingMaxMessages": 100,
    }
    save(frame(spark, [(payload,) for payload in payloads], "value binary"), broker, topic, options)
    assert [content.payload for content in contents_of(broker, topic, 300)] == payloads
    entries = read_entries(broker, topic)
    assert {entry.metadata.compression for entry in entries} == {CODECS[codec]}
    assert [entry.metadata.num_messages_in_batch for entry in entries] == [100, 100, 100]


def test_batches_by_key_hold_the_messages_of_one_key(spark: SparkSession, broker: Broker) -> None:
    topic = broker.create_topic()
    written = [(b"%d" % number, "abc"[number % 3]) for number in range(300)]
    options = {"pulsar.producer.batcherBuilder": "KEY_BASED"}
    save(frame(spark, written, "value binary, __key string"), broker, topic, options)
    entries: dict[int, list[tuple[str, bytes]]] = {}
    with official(broker) as client:
        for message in official_read(client, topic, 300):
            own = (message.partition_key(), message.data())
            entries.setdefault(message.message_id().entry_id(), []).append(own)
    assert sorted(entries.values()) == [
        [(key, value) for value, key in written if key == wanted] for wanted in "abc"
    ]


def test_messages_in_chunks_are_read_by_the_official_client(
    spark: SparkSession, broker: Broker
) -> None:
    topic = broker.create_topic()
    options = {"pulsar.producer.chunkingEnabled": True, "pulsar.producer.batchingEnabled": False}
    large = spark.range(3).coalesce(1).selectExpr("cast(repeat(id, 6000000) as binary) value")
    save(large, broker, topic, options)
    payloads = [content.payload for content in contents_of(broker, topic, 3)]
    assert payloads == [b"%d" % number * 6_000_000 for number in range(3)]


@pytest.mark.parametrize("scheme", ["JavaStringHash", "Murmur3_32Hash"])
def test_keys_go_where_a_java_client_puts_them(
    spark: SparkSession, broker: Broker, scheme: str
) -> None:
    keys = ["", "a", "\0", "ключ", "🐟🐠", *(f"key-{number}" for number in range(200))]
    topic = broker.create_topic(partitions=5)
    made = spark.createDataFrame([("v", key) for key in keys], "value string, __key string")
    save(made, broker, topic, {"pulsar.producer.hashingScheme": scheme})
    found = {
        row.key.decode(): row.partition
        for row in rows(load(spark, broker, topic, {"includeMetadata": True, "valueFormat": "raw"}))
        if row.key is not None
    }
    # The official Python client hashes differently, so Java decides.
    jvm: Any = spark.sparkContext._jvm

    def java_hash(key: str) -> int:
        if scheme == "JavaStringHash":
            return int(jvm.java.util.Objects.hashCode(key))
        murmur = jvm.com.google.common.hash.Hashing.murmur3_32_fixed()
        return int(murmur.hashBytes(key.encode()).asInt())

    assert found == {key: (java_hash(key) & 0x7FFFFFFF) % 5 for key in keys}


def test_rows_without_keys_are_spread_over_all_partitions(
    spark: SparkSession, broker: Broker
) -> None:
    topic = broker.create_topic(partitions=4)
    save(spark.range(20_000).selectExpr("cast(id as string) value"), broker, topic)
    grouped = load(spark, broker, topic).groupBy("__topic").count()
    counts: dict[str, int] = dict(grouped.collect())
    assert sum(counts.values()) == 20_000
    assert counts.keys() == set(broker.partitions_of(topic, 4))
    assert min(counts.values()) >= 2000
    found = load(spark, broker, topic).selectExpr("count(distinct value)").collect()
    assert found[0][0] == 20_000


def test_what_was_read_is_written_back_to_the_same_partitions(
    spark: SparkSession, broker: Broker
) -> None:
    source, target = broker.create_topic(partitions=3), broker.create_topic(partitions=3)
    written = [
        (
            f"v{number}".encode() if number % 9 else None,
            f"k{number}",
            b"o%d" % number,
            {"n": "1"},
            TIME + timedelta(milliseconds=number),
        )
        for number in range(60)
    ]
    schema = ALL_COLUMNS.rpartition(",")[0]
    save(spark.createDataFrame(written, schema), broker, source)
    first = load(spark, broker, source, {"includeMetadata": True})
    # The option wins over the column __topic; the writer drops ids and positions.
    save(first, broker, target)
    columns = [
        "value",
        "__key",
        "__orderingKey",
        "__messageProperties",
        "__eventTime",
        "__partition",
    ]
    second = load(spark, broker, target, {"includeMetadata": True})

    def plain(read: DataFrame) -> list[Any]:
        return sorted(map(repr, read.select(*columns).collect()))

    assert len(plain(second)) == 60
    assert plain(second) == plain(first)


def test_rows_name_their_topics(spark: SparkSession, broker: Broker) -> None:
    plain, partitioned = broker.create_topic(), broker.create_topic(partitions=2)
    short = plain.removeprefix("persistent://public/default/")
    one = f"{partitioned}-partition-1"
    written = [(b"1", plain), (b"2", partitioned), (b"3", short), (b"4", one), (b"5", plain)]
    save(frame(spark, written, "value binary, __topic string"), broker)
    assert [content.payload for content in contents_of(broker, plain, 3)] == [b"1", b"3", b"5"]
    found = rows(load(spark, broker, partitioned, {"includeMetadata": True}))
    assert {row.value for row in found} == {b"2", b"4"}
    assert {row.topic for row in found if row.value == b"4"} == {one}
    save(frame(spark, written, "value binary, __topic string"), broker, plain)
    assert len(contents_of(broker, plain, 8)) == 8


def test_delayed_messages_come_when_they_are_due(spark: SparkSession, broker: Broker) -> None:
    topic = broker.create_topic()
    with official(broker) as client:
        consumer = client.subscribe(topic, "delayed", consumer_type=pulsar.ConsumerType.Shared)
        due = datetime.now(timezone.utc) + timedelta(seconds=3)
        written = [(b"later", due), (b"now", None)]
        save(frame(spark, written, "value binary, __deliverAt timestamp"), broker, topic)
        arrived = {consumer.receive(60_000).data(): time.time() for _ in written}
        # The broker checks delivery times once a second.
        assert arrived[b"later"] >= due.timestamp() - 1.5
        assert arrived.keys() == {b"now", b"later"}
        consumer.close()


def test_keys_of_bytes_keep_their_bytes(spark: SparkSession, broker: Broker) -> None:
    topic = broker.create_topic()
    keys = [b"text", "größer".encode(), b"\xff\xfe\0", b"", None]
    made = frame(spark, [(b"v", key) for key in keys], "value binary, __key binary")
    save(made, broker, topic)
    save(made, broker, topic, {"keyEncoding": "bytes"})
    assert [row.key for row in rows(load(spark, broker, topic, {"includeMetadata": True}))] == [
        *keys,
        *keys,
    ]
    flags = [row.key_is_base64 for row in read_rows(broker, topic)]
    assert flags == [False, False, True, False, False, True, True, True, True, False]


def test_strings_register_their_schema_and_bytes_none(spark: SparkSession, broker: Broker) -> None:
    texts, raw = broker.create_topic(), broker.create_topic()
    made = frame(spark, [("größer",), (None,), ("",)], "value string")
    save(made, broker, texts)
    save(made.selectExpr("cast(value as binary) value"), broker, raw)
    with official(broker) as client:
        reader = client.create_reader(
            texts, pulsar.MessageId.earliest, schema=pulsar.schema.StringSchema()
        )
        first = reader.read_next(60_000)
        assert first.value() == "größer"
        assert first.schema_version()
        reader.close()
        (message, *_) = official_read(client, raw, 3)
        assert not message.schema_version()
    assert values(load(spark, broker, texts)) == ["größer", None, ""]
    assert values(load(spark, broker, raw)) == ["größer".encode(), None, b""]
    # Raw bytes can be written to any topic.
    save(made.selectExpr("cast(value as binary) value"), broker, texts, {"valueFormat": "raw"})
    assert values(load(spark, broker, texts)) == ["größer", None, ""] * 2


def test_nothing_is_written_of_no_rows(spark: SparkSession, broker: Broker) -> None:
    topic = broker.create_topic()
    save(spark.createDataFrame([], "value string"), broker, topic)
    assert contents_of(broker, topic, 0) == []
    broker.expect_no_trace(topic)


@pytest.mark.slow
@pytest.mark.fault(86)
def test_the_largest_message_is_written_and_a_larger_one_named(
    spark: SparkSession, tuned_broker: Broker
) -> None:
    topic = tuned_broker.create_topic()

    def write(size: int) -> None:
        made = spark.range(4).coalesce(1).selectExpr(f"repeat('x', if(id = 2, {size}, 10)) value")
        save(made, tuned_broker, topic, {"pulsar.producer.batchingEnabled": False})

    size = 2 * TUNED_MESSAGE_SIZE
    with pytest.raises(Exception, match=r"MessageTooLarge: row 2.*chunkingEnabled") as caught:
        write(size)
    # Metadata counts, too: the error says how much there is.
    found = re.findall(r"has (\d+) bytes", str(caught.value))
    largest = TUNED_MESSAGE_SIZE - (int(found[0]) - size)
    # The broker chooses the producer's name, whose number sometimes gets a digit more.
    write(largest - 2)
    with pytest.raises(Exception, match="MessageTooLarge: row 2") as caught:
        write(largest + 3)
    ((whole, metadata),) = set(re.findall(r"has (\d+) bytes \((\d+) of them", str(caught.value)))
    assert int(whole) == largest + 3 + int(metadata)
    assert TUNED_MESSAGE_SIZE < int(whole) <= TUNED_MESSAGE_SIZE + 5
    # A failed write may have written rows before the one that does not fit.
    sizes = [len(value) for value in values(load(spark, tuned_broker, topic))]
    assert [size for size in sizes if size > 10] == [largest - 2]
    assert 3 <= sizes.count(10) <= 7
    tuned_broker.expect_no_trace(topic)


def test_writing_leaves_no_producer_and_creates_topics_as_the_broker_allows(
    spark: SparkSession, broker: Broker
) -> None:
    topic = broker.unique_topic("made-by-writing")
    save(frame(spark, [(b"1",)], "value binary"), broker, topic)
    broker.expect_no_trace(topic)
    assert values(load(spark, broker, topic)) == [b"1"]
    missing = broker.unique_topic("not-made-by-reading")
    with pytest.raises(Exception, match=TopicNotFound.__name__):
        load(spark, broker, missing)
    with official(broker) as client:
        send(client, topic, [b"2"])
    assert values(load(spark, broker, topic)) == [b"1", b"2"]


@pytest.mark.fault(87)
def test_rows_that_a_deduplicating_topic_drops_fail_the_write(
    spark: SparkSession, tuned_broker: Broker
) -> None:
    source, target = tuned_broker.create_topic(), tuned_broker.create_topic()
    for number in range(3):
        with official(tuned_broker) as client:
            send(client, source, [b"%d-%d" % (number, row) for row in range(150)])
    read = load(spark, tuned_broker, source, {"includeMetadata": True}).coalesce(1)
    with pytest.raises(Exception, match=r"dropped \d+ rows as duplicates"):
        save(read, tuned_broker, target)
    save(read.drop("__sequenceId"), tuned_broker, target)
    written = values(load(spark, tuned_broker, target))
    assert sorted(written[-450:]) == sorted(values(load(spark, tuned_broker, source)))
