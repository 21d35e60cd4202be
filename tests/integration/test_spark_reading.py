"""`spark.read` returns what the official client wrote: every column, in every form."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from pyspark.sql import functions as F

from pulsar_spark.schema.table import names
from tests.integration.brokers import Broker
from tests.integration.messages import (
    CODECS,
    Content,
    official_read,
    official_write,
    random_contents,
)
from tests.integration.spark_io import (
    SparkRow,
    load,
    official,
    official_row,
    rows,
    send,
    topics_of,
    values,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pulsar = pytest.importorskip("pulsar", reason="pulsar-client is not installed")

pytestmark = pytest.mark.timeout(600)

S_COLUMNS = [
    (names.KEY, "binary"),
    (names.TOPIC, "string"),
    (names.MESSAGE_ID, "binary"),
    (names.PUBLISH_TIME, "timestamp"),
    (names.EVENT_TIME, "timestamp"),
    (names.PROPERTIES, "map<string,string>"),
]
MORE_COLUMNS = [
    (names.PARTITION, "int"),
    ("__ledgerId", "bigint"),
    ("__entryId", "bigint"),
    ("__batchIndex", "int"),
    ("__producerName", "string"),
    (names.SEQUENCE_ID, "bigint"),
    (names.ORDERING_KEY, "binary"),
    ("__schemaVersion", "binary"),
    ("__redeliveryCount", "int"),
    ("__size", "int"),
    ("__index", "bigint"),
    ("__replicatedFrom", "string"),
]


class Sample(NamedTuple):
    """Topics of all kinds, written by the official client, and the messages that it reads back."""

    topics: list[str]
    expected: dict[str, list[SparkRow]]


def _write(client: Any, broker: Broker, sample: Sample, partitions: int, **options: Any) -> None:
    contents = options.pop("contents")
    topic = broker.create_topic(partitions=partitions)
    name = f"they-{len(sample.topics)}"
    producer = client.create_producer(
        topic, name, block_if_queue_full=True, batching_max_publish_delay_ms=5, **options
    )
    official_write(producer, contents)
    producer.close()
    sample.topics.append(topic)
    counts: dict[str, int] = dict.fromkeys(broker.partitions_of(topic, partitions), 0)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    for _ in contents:
        counts[reader.read_next(60_000).topic_name()] += 1
    reader.close()
    for partition, count in counts.items():
        sample.expected[partition] = [
            official_row(message, number, name)
            for number, message in enumerate(official_read(client, partition, count))
        ]


@pytest.fixture(scope="module")
def sample(broker: Broker) -> Iterator[Sample]:
    with official(broker) as client:
        made = Sample([], {})
        for number, codec in enumerate(CODECS):
            kind = getattr(pulsar.CompressionType, codec.replace("ZLIB", "ZLib"))
            for batching in (True, False):
                contents = random_contents(number, 60)
                if codec == "ZLIB" and not batching:
                    # The official client cannot read its own compressed empty payloads.
                    contents = [content for content in contents if content.payload]
                _write(
                    client,
                    broker,
                    made,
                    0,
                    contents=contents,
                    compression_type=kind,
                    batching_enabled=batching,
                )
        _write(client, broker, made, 3, contents=random_contents(7, 150), batching_enabled=True)
        large = [Content(random.Random(1).randbytes(size)) for size in (5, 6_000_000, 6)]
        _write(
            client,
            broker,
            made,
            0,
            contents=large,
            batching_enabled=False,
            chunking_enabled=True,
        )
        yield made


def by_topic(found: list[SparkRow]) -> dict[str, list[SparkRow]]:
    split: dict[str, list[SparkRow]] = {}
    for row in found:
        split.setdefault(row.topic, []).append(row)
    return split


@pytest.mark.fault(95)
def test_every_column_is_what_the_official_client_reads(
    spark: SparkSession, broker: Broker, sample: Sample
) -> None:
    frame = load(
        spark, broker, options={"topics": ",".join(sample.topics), "includeMetadata": True}
    )
    assert frame.dtypes == [("value", "binary"), *S_COLUMNS, *MORE_COLUMNS]
    found = by_topic(rows(frame))
    assert found.keys() == sample.expected.keys()
    for topic, expected in sample.expected.items():
        assert found[topic] == expected, topic


def test_a_schema_projects_in_any_order(
    spark: SparkSession, broker: Broker, sample: Sample
) -> None:
    topic = sample.topics[-2]
    partitions = broker.partitions_of(topic, 3)
    expected = [row for name in partitions for row in sample.expected[name]]
    full = load(spark, broker, topic, {"includeMetadata": True})
    types = {field.name: field.dataType.simpleString() for field in full.schema.fields}
    shuffled = random.Random(3).sample(list(types), len(types))
    position = {name: index for index, name in enumerate(types)}
    for columns in ([names.MESSAGE_ID, "value"], ["__SEQUENCEID", names.KEY], shuffled):
        schema = ", ".join(f"{name} {_type_of(types, name)}" for name in columns)
        frame = load(spark, broker, topic, schema=schema)
        assert frame.columns == columns
        times = (names.PUBLISH_TIME, names.EVENT_TIME)
        found = frame.select(
            *(F.unix_millis(name).alias(name) if name in times else name for name in columns)
        ).collect()
        by_name = {name.lower(): index for name, index in position.items()}
        wanted = [by_name[name.lower()] for name in columns]
        assert [tuple(row) for row in found] == [
            tuple(row[index] for index in wanted) for row in expected
        ]


def _type_of(types: dict[str, str], name: str) -> str:
    (found,) = [kind for known, kind in types.items() if known.lower() == name.lower()]
    return found


def test_one_partition_can_be_read_alone(
    spark: SparkSession, broker: Broker, sample: Sample
) -> None:
    partition = f"{sample.topics[-2]}-partition-1"
    short = partition.removeprefix("persistent://public/default/")
    found = rows(load(spark, broker, short, {"includeMetadata": True}))
    assert found == sample.expected[partition]


def test_texts_are_read_as_strings_and_raw_on_demand(spark: SparkSession, broker: Broker) -> None:
    topic = broker.create_topic()
    texts = ["plain", "", "größer", "🐟\0", "x" * 100_000]
    with official(broker) as client:
        producer = client.create_producer(topic, schema=pulsar.schema.StringSchema())
        for text in texts:
            producer.send(text)
        producer.close()
        # A producer without a schema may send bytes that are no text.
        send(client, topic, [b"\xff\xfe"], batching_enabled=True)
    raw = load(spark, broker, topic, {"valueFormat": "raw"})
    assert raw.dtypes[0] == ("value", "binary")
    assert values(raw) == [*(text.encode() for text in texts), b"\xff\xfe"]
    with pytest.raises(Exception, match=r"UTF-8.*mode"):
        load(spark, broker, topic).collect()
    dropped = load(spark, broker, topic, {"mode": "DROPMALFORMED"})
    assert dropped.dtypes[0] == ("value", "string")
    assert values(dropped) == texts
    kept = load(
        spark,
        broker,
        topic,
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "bad"},
        schema="bad binary, value string",
    )
    assert [tuple(row) for row in kept.collect()] == [
        *((None, text) for text in texts),
        (b"\xff\xfe", None),
    ]


def test_raw_values_are_the_bytes_whatever_the_schema(spark: SparkSession, broker: Broker) -> None:
    order = type("Order", (pulsar.schema.Record,), {"number": pulsar.schema.Integer()})
    topic = broker.create_topic()
    with official(broker) as client:
        producer = client.create_producer(topic, schema=pulsar.schema.JsonSchema(order))
        producer.send(order(number=7))
        producer.close()
        (message,) = official_read(client, topic, 1)
    assert load(spark, broker, topic).dtypes[0] == ("number", "int")
    frame = load(spark, broker, topic, {"valueFormat": "raw"})
    assert frame.dtypes[0] == ("value", "binary")
    assert values(frame) == [message.data()]


@pytest.mark.fault(95)
def test_keys_and_ids_are_kept_whatever_they_are(spark: SparkSession, broker: Broker) -> None:
    topic = broker.create_topic()
    keys = ["k", "", "\0", "🐟", "x" * 200_000]
    with official(broker) as client:
        producer = client.create_producer(topic)
        for number, key in enumerate(keys):
            producer.send(b"v", partition_key=key, sequence_id=number * 1000 + 7)
        producer.close()
    found = rows(load(spark, broker, topic, {"includeMetadata": True}))
    # To the official client an empty key is no key.
    assert [row.key for row in found] == [key.encode() or None for key in keys]
    assert [row.sequence_id for row in found] == [7, 1007, 2007, 3007, 4007]


@pytest.mark.slow
def test_the_index_that_a_broker_stamps_is_read(spark: SparkSession, tuned_broker: Broker) -> None:
    topic = tuned_broker.create_topic()
    payloads = [b"%d" % number for number in range(150)]
    with official(tuned_broker) as client:
        for batching in (True, False, True):
            send(client, topic, payloads[:50], batching_enabled=batching)
    found = rows(load(spark, tuned_broker, topic, {"includeMetadata": True}))
    assert [row.broker_index for row in found] == list(range(150))


def test_reading_leaves_no_trace(spark: SparkSession, broker: Broker) -> None:
    namespace = broker.create_namespace()
    topic = broker.create_topic(broker.unique_topic(namespace=namespace), partitions=2)
    with official(broker) as client:
        send(client, topic, [b"%d" % number for number in range(100)])
    before = topics_of(broker, namespace)
    assert len(values(load(spark, broker, topic, {"minPartitions": 4}))) == 100
    for partition in broker.partitions_of(topic, 2):
        broker.expect_no_trace(partition)
    assert topics_of(broker, namespace) == before
