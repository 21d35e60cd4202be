"""Spark reads and writes chunked messages, wherever tasks and micro-batches begin and end."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.topics import stored_entry
from tests.integration.brokers import Broker, Embedded
from tests.integration.conftest import TUNED_MESSAGE_SIZE
from tests.integration.messages import official_read
from tests.integration.spark_io import load, official, save, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest.importorskip("pulsar", reason="pulsar-client is not installed")

pytestmark = pytest.mark.timeout(600)

CHUNKED = {"pulsar.producer.chunkingEnabled": True, "pulsar.producer.batchingEnabled": False}


def payloads(count: int) -> list[bytes]:
    """Return messages, each third of which needs several chunks."""
    rng = random.Random(count)
    sizes = [TUNED_MESSAGE_SIZE * 5 // 2 if number % 3 == 1 else 10 for number in range(count)]
    return [b"%03d" % number + rng.randbytes(size) for number, size in enumerate(sizes)]


def sent(broker: Broker, topic: str, written: list[bytes]) -> None:
    """Send messages with two official producers, so that their chunks interleave."""
    with official(broker) as client:
        producers = [
            client.create_producer(topic, chunking_enabled=True, block_if_queue_full=True)
            for _ in range(2)
        ]
        for number, payload in enumerate(written):
            producers[number % 2].send_async(payload, None)
        for producer in producers:
            producer.flush()
            producer.close()


@pytest.mark.slow
@pytest.mark.fault(39, 62)
def test_chunks_are_read_once_wherever_tasks_and_micro_batches_end(
    spark: SparkSession, tuned_broker: Broker, tmp_path: Path
) -> None:
    topic = tuned_broker.create_topic()
    written = payloads(30)
    sent(tuned_broker, topic, written)
    with official(tuned_broker) as client:
        assert sorted(m.data() for m in official_read(client, topic, 30)) == written
    whole = values(load(spark, tuned_broker, topic))
    assert sorted(whole) == written
    split = values(load(spark, tuned_broker, topic, {"partitionsPerTopicPartition": 5}))
    assert split == whole
    batches: list[list[bytes]] = []

    def keep(frame: DataFrame, batch_id: int) -> None:
        batches.append([bytes(value) for (value,) in frame.select("value").collect()])

    source = spark.readStream.format("pulsar").option("service.url", tuned_broker.service_url)
    source = source.option("topic", topic).option("startingOffsets", "earliest")
    stream = source.option("maxMessagesPerTrigger", "7").load().writeStream.foreachBatch(keep)
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert stream.trigger(availableNow=True).start().awaitTermination(240)
    assert [value for batch in batches for value in batch] == whole
    assert len(batches) > 3
    assert max(map(len, batches)) <= 7


@pytest.mark.slow
def test_chunks_of_spark_are_read_by_the_official_client(
    spark: SparkSession, tuned_broker: Broker
) -> None:
    topic = tuned_broker.create_topic()
    written = payloads(12)
    frame = spark.createDataFrame([(payload,) for payload in written], "value binary").coalesce(1)
    options = {**CHUNKED, "pulsar.producer.compressionType": "LZ4"}
    save(frame, tuned_broker, topic, options)
    with official(tuned_broker) as client:
        assert [message.data() for message in official_read(client, topic, 12)] == written
    assert values(load(spark, tuned_broker, topic)) == written


@pytest.mark.slow
def test_a_message_that_needs_more_memory_than_there_is_names_the_option(
    spark: SparkSession, tuned_broker: Broker
) -> None:
    topic = tuned_broker.create_topic()
    large = bytes(3 * 1024 * 1024)
    frame = spark.createDataFrame([(large,), (b"small",)], "value binary").coalesce(1)
    # Writing succeeds by itself.
    save(frame, tuned_broker, topic, {**CHUNKED, "pulsar.client.memoryLimitBytes": "1m"})
    with pytest.raises(Exception, match=r"MessageTooLarge.*memoryLimitBytes"):
        values(load(spark, tuned_broker, topic, {"pulsar.client.memoryLimitBytes": "1m"}))
    assert values(load(spark, tuned_broker, topic)) == [large, b"small"]


@pytest.mark.slow
@pytest.mark.fault(39)
def test_messages_that_are_not_whole_fail_the_read_or_are_left_out(
    spark: SparkSession, tuned_broker: Broker
) -> None:
    if not isinstance(tuned_broker, Embedded):
        pytest.skip("the embedded broker takes any entries")
    topic = tuned_broker.create_topic()

    def chunk(uuid: str, number: int, of: int, body: bytes) -> None:
        fields: dict[str, Any] = {"num_chunks_from_msg": of, "total_chunk_msg_size": 4 * of}
        entry = stored_entry(body, uuid=uuid, chunk_id=number, **fields)
        tuned_broker.own.append(topic, entry)

    chunk("never ended", 0, 3, b"none")
    chunk("whole", 0, 2, b"good")
    chunk("never ended", 1, 3, b"none")
    chunk("whole", 1, 2, b"-one")
    for _ in range(2):
        chunk("twice", 0, 2, b"agai")
    chunk("twice", 1, 2, b"n...")
    # Incomplete messages were never acknowledged to their producer.
    assert values(load(spark, tuned_broker, topic)) == [b"good-one", b"again..."]
    chunk("without its first", 1, 2, b"lost")
    tuned_broker.own.append(topic, stored_entry(b"last"))
    with pytest.raises(Exception, match=r"IncompleteMessage.*2 chunks"):
        values(load(spark, tuned_broker, topic))
    left = values(load(spark, tuned_broker, topic, {"failOnDataLoss": False}))
    assert left == [b"good-one", b"again...", b"last"]
