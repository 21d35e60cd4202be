"""Brokers with an old protocol version work as far as that version goes.

The embedded broker closes the connection of a client that sends anything newer than its version, so
such errors cannot go unnoticed here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from pulsar_spark.client import (
    CompressionType,
    ConsumerType,
    InitialPosition,
    PulsarClient,
)
from pulsar_spark.client.schema import AutoConsumeSchema, StringSchema
from pulsar_spark.errors import UnsupportedFeature
from pulsar_spark.protocol.commands import CLIENT_PROTOCOL_VERSION
from pulsar_spark.testing import EmbeddedBroker
from tests.integration.brokers import Embedded
from tests.integration.typed import read, write
from tests.support.waiting import wait_until

VERSIONS = range(CLIENT_PROTOCOL_VERSION + 1)


@pytest.fixture(params=VERSIONS, ids=lambda version: f"v{version}")
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def broker(version: int) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(protocol_version=version, keep_alive_interval=0.2) as running:
        yield running
        assert running.internal_errors == ()


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[PulsarClient]:
    with PulsarClient(broker.service_url, operation_timeout_seconds=60) as made:
        yield made


def test_a_producer_and_a_consumer(
    broker: EmbeddedBroker, client: PulsarClient, version: int
) -> None:
    broker.create_topic("t")
    values = [b"%d" % number for number in range(12)]
    with client.create_producer("t") as producer:
        for value in values[:4]:
            producer.send(value, partition_key="k")
    with client.create_producer(
        "t", batching_enabled=True, compression_type=CompressionType.LZ4
    ) as producer:
        for value in values[4:]:
            producer.send_async(value, None)
    consumer = client.subscribe(
        "t",
        "s",
        ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        ack_receipt_enabled=True,
        negative_ack_redelivery_delay_ms=10,
    )
    found = [consumer.receive(60_000) for _ in values]
    assert [message.data() for message in found] == values
    for message in found[1:]:
        consumer.acknowledge(message)
    if version < 2:
        with pytest.raises(UnsupportedFeature, match=r"REDELIVER.* came with version 2"):
            consumer.negative_acknowledge(found[0])
    else:
        consumer.negative_acknowledge(found[0])
        assert consumer.receive(60_000).data() == values[0]
    consumer.acknowledge(found[0])
    consumer.close()
    wait_until(lambda: broker.subscriptions("t")["s"].backlog == 0)


def test_statistics_and_the_last_message(
    broker: EmbeddedBroker, client: PulsarClient, version: int
) -> None:
    broker.create_topic("t")
    with client.create_producer("t") as producer:
        sent = producer.send(b"x")
    with client.subscribe("t", "s") as consumer:
        if version < 8:
            with pytest.raises(UnsupportedFeature, match="CONSUMER_STATS came with version 8"):
                consumer.get_broker_consumer_stats()
        else:
            assert consumer.get_broker_consumer_stats().type == "Exclusive"
        if version < 12:
            with pytest.raises(UnsupportedFeature, match="GET_LAST_MESSAGE_ID came with"):
                consumer.get_last_message_id()
        else:
            assert consumer.get_last_message_id() == sent


def test_subscription_types_and_schemas(
    broker: EmbeddedBroker, client: PulsarClient, version: int
) -> None:
    broker.create_topic("t")
    if version < 14:
        with pytest.raises(UnsupportedFeature, match="Key_Shared came with version 14"):
            client.subscribe("t", "s", ConsumerType.KeyShared)
    else:
        client.subscribe("t", "s", ConsumerType.KeyShared).close()
    with client.create_producer("t", schema=StringSchema()) as producer:
        producer.send("x")
    consumer = client.subscribe(
        "t", "auto", schema=AutoConsumeSchema(), initial_position=InitialPosition.Earliest
    )
    message = consumer.receive(60_000)
    if version < 13:
        with pytest.raises(UnsupportedFeature, match="GET_SCHEMA came with version 13"):
            message.value()
    else:
        assert message.value() == "x"
    consumer.close()


def test_a_batch_read_and_a_batch_write(broker: EmbeddedBroker, version: int) -> None:
    broker.create_topic("t")
    options = {"valueFormat": "raw"}
    values = [b"%d" % number for number in range(20)]
    columns = StructType([StructField("value", BinaryType())])
    batch = pa.RecordBatch.from_pydict({"value": values})
    write(Embedded(broker), "t", columns, [batch], options)
    if version < 12:
        with pytest.raises(UnsupportedFeature, match="GET_LAST_MESSAGE_ID came with version 12"):
            read(Embedded(broker), "t", options)
        return
    assert [row["value"] for row in read(Embedded(broker), "t", options)] == values
    if version < 13:
        with pytest.raises(UnsupportedFeature, match="valueFormat=raw"):
            read(Embedded(broker), "t")


@pytest.mark.parametrize("version", [4, 5, 6], indirect=True, ids="v{}".format)
def test_producers_and_consumers_come_back_when_their_topic_goes(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    broker.create_topic("t")
    producer = client.create_producer("t")
    consumer = client.subscribe("t", "s")
    for number in range(3):
        producer.send(b"%d" % number)
        message = consumer.receive(60_000)
        assert message.data() == b"%d" % number
        consumer.acknowledge(message)
        # So that it is not redelivered.
        wait_until(lambda: broker.subscriptions("t")["s"].backlog == 0)
        broker.unload("t")
    producer.close()


@pytest.mark.parametrize("version", [0, 1], indirect=True, ids="v{}".format)
def test_a_connection_that_is_idle_lives_on(broker: EmbeddedBroker, client: PulsarClient) -> None:
    broker.create_topic("t")
    producer = client.create_producer("t")
    first = producer.send(b"before")
    # Several times the broker's own interval.
    time.sleep(0.7)
    assert producer.is_connected()
    assert producer.send(b"behind") > first
    assert broker.faults.seen("CONNECT") == 1
    producer.close()
