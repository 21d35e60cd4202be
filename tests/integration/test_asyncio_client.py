"""The asyncio client at both brokers, and together with the official one."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

import pulsar_spark.client.asyncio as ours
from pulsar_spark.client import ConsumerType, InitialPosition, MessageId
from tests.integration.brokers import Broker

EARLIEST = InitialPosition.Earliest
SECONDS = 240.0


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_tasks_send_and_receive_while_the_topic_moves(broker: Broker) -> None:
    topic = broker.create_topic()

    async def body() -> None:
        client = ours.Client(broker.service_url)
        producer = await client.create_producer(topic, max_pending_messages=50_000)
        consumer = await client.subscribe(topic, "s", ConsumerType.Shared)
        reader = await client.create_reader(topic, MessageId.earliest)
        read: set[bytes] = set()
        received: set[bytes] = set()

        async def receive() -> None:
            while len(received) < 2000:
                with suppress(asyncio.TimeoutError):
                    message = await asyncio.wait_for(consumer.receive(), 0.01)
                    received.add(message.data())
                    await consumer.acknowledge(message)

        tasks = [asyncio.ensure_future(receive()) for _ in range(5)]
        sends = [asyncio.ensure_future(producer.send(value)) for value in numbers(1000)]
        await asyncio.to_thread(broker.unload, topic)
        sends += [asyncio.ensure_future(producer.send(value)) for value in numbers(2000)[1000:]]
        await asyncio.gather(*sends)
        await asyncio.gather(*tasks)
        while await reader.has_message_available():
            read.add((await reader.read_next()).data())
        assert read == received == set(numbers(2000))
        await client.close()

    asyncio.run(asyncio.wait_for(body(), SECONDS))


def test_it_understands_the_official_client(broker: Broker) -> None:
    pulsar = pytest.importorskip("pulsar")
    theirs = pytest.importorskip("pulsar.asyncio")
    topic = broker.create_topic(partitions=2)

    async def body() -> None:
        client, other = ours.Client(broker.service_url), theirs.Client(broker.service_url)
        producers = [await client.create_producer(topic), await other.create_producer(topic)]
        own = await client.subscribe(topic, "own", initial_position=EARLIEST)
        foreign = await other.subscribe(
            topic, "foreign", initial_position=pulsar.InitialPosition.Earliest
        )
        await asyncio.gather(
            *(producers[at % 2].send(value) for at, value in enumerate(numbers(100)))
        )
        for consumer in (own, foreign):
            found = [(await consumer.receive()).data() for _ in range(100)]
            assert sorted(found) == sorted(numbers(100))
        await client.close()
        await other.close()

    asyncio.run(asyncio.wait_for(body(), SECONDS))
