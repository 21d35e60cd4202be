"""Reading and writing through Spark, with rows in one form for all clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from pyspark.sql import functions as F

from tests.integration.brokers import Broker, Embedded, Real
from tests.integration.messages import official_content, place
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LAST_MILLIS = 253_402_300_799_999
"""The last millisecond of the year 9999, as which later event times are read."""


class SparkRow(NamedTuple):
    """A row that Spark reads with includeMetadata; times in milliseconds."""

    value: bytes | None
    key: bytes | None
    topic: str
    message_id: bytes
    publish_time: int
    event_time: int | None
    properties: dict[str, str]
    partition: int
    ledger_id: int
    entry_id: int
    batch_index: int
    producer_name: str
    sequence_id: int
    ordering_key: bytes | None
    schema_version: bytes | None
    redelivery_count: int
    size: int
    broker_index: int | None
    replicated_from: str | None


# --- Spark ----------------------------------------------------------------------------------


def load(
    spark: SparkSession,
    broker: Broker,
    topic: str | None = None,
    options: Mapping[str, object] | None = None,
    *,
    schema: Any = None,
) -> DataFrame:
    """Return the DataFrame of a read: of one topic, or as the options say."""
    reader = spark.read.format("pulsar").option("service.url", broker.service_url)
    if topic is not None:
        reader = reader.option("topic", topic)
    for name, value in (options or {}).items():
        reader = reader.option(name, _text(value))
    return (reader if schema is None else reader.schema(schema)).load()


def save(
    frame: DataFrame,
    broker: Broker,
    topic: str | None = None,
    options: Mapping[str, object] | None = None,
) -> None:
    """Write a DataFrame to one topic, or to the topics in its rows."""
    writer = frame.write.format("pulsar").mode("append").option("service.url", broker.service_url)
    if topic is not None:
        writer = writer.option("topic", topic)
    for name, value in (options or {}).items():
        writer = writer.option(name, _text(value))
    writer.save()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def rows(frame: DataFrame) -> list[SparkRow]:
    """Return the rows of a read with includeMetadata, in the order in which they were read."""
    columns: list[Column | str] = [
        F.unix_millis(name).alias(name) if name in ("__publishTime", "__eventTime") else name
        for name in frame.columns
    ]
    return [SparkRow._make(map(_plain, row)) for row in frame.select(*columns).collect()]


def values(frame: DataFrame) -> list[Any]:
    """Return the values of a read, in the order in which they were read."""
    return [_plain(value) for (value,) in frame.select("value").collect()]


def _plain(value: Any) -> Any:
    # The Python type of binary values depends on the version of Spark.
    return bytes(value) if isinstance(value, bytearray) else value


# --- the official client ----------------------------------------------------------------------


@contextmanager
def official(broker: Broker, **options: Any) -> Iterator[Any]:
    """Open a client of the official package."""
    pulsar = pytest.importorskip("pulsar", reason="pulsar-client is not installed")
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(broker.service_url, logger=logger, **options)
    try:
        yield client
    finally:
        client.close()


def official_row(message: Any, sequence_id: int, producer_name: str) -> SparkRow:
    """Return the row that Spark should read for a message that the official client read.

    The official client shows no sequence ids. Brokers here stamp no index.
    """
    content = official_content(message)
    ledger_id, entry_id, partition, batch_index = place(message.message_id())
    return SparkRow(
        value=content.payload,
        key=None if content.key is None else content.key.encode(),
        topic=message.topic_name(),
        message_id=message.message_id().serialize(),
        publish_time=message.publish_timestamp(),
        event_time=min(content.event_time, LAST_MILLIS) if content.event_time > 0 else None,
        properties=dict(content.properties),
        partition=partition,
        ledger_id=ledger_id,
        entry_id=entry_id,
        batch_index=batch_index,
        producer_name=producer_name,
        sequence_id=sequence_id,
        ordering_key=None if content.ordering_key is None else content.ordering_key.encode(),
        schema_version=message.schema_version() or None,
        redelivery_count=message.redelivery_count(),
        size=len(content.payload or b""),
        broker_index=None,
        replicated_from=None,
    )


def send(client: Any, topic: str, payloads: Sequence[bytes], **options: Any) -> list[Any]:
    """Send payloads with a new official producer; return their official ids."""
    settings = {"block_if_queue_full": True, "batching_max_publish_delay_ms": 5, **options}
    producer = client.create_producer(topic, **settings)
    sent: list[Any] = []
    for payload in payloads:
        producer.send_async(payload, lambda *result: sent.append(result))
    producer.flush()
    # A flush can end before the last callbacks have run.
    wait_until(lambda: len(sent) == len(payloads), "a result for every message")
    producer.close()
    assert all(str(result) == "Result.Ok" for result, _ in sent), sent
    return [message_id for _, message_id in sent]


# --- the broker -------------------------------------------------------------------------------


def topics_of(broker: Broker, namespace: str) -> set[str]:
    """Return the names of all topics and partitions of a namespace."""
    if isinstance(broker, Real):
        return {
            name
            for kind in ("persistent", "non-persistent", "persistent/{}/partitioned")
            for name in broker.own.admin(
                "GET", kind.format(namespace) if "{}" in kind else f"{kind}/{namespace}"
            )
        }
    assert isinstance(broker, Embedded)
    return {name for name in broker.own.topics() if f"://{namespace}/" in name}
