"""The asyncio client: nothing blocks the event loop, and cancelled tasks lose nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

import pulsar_spark.client.asyncio as pulsar
from pulsar_spark.client import (
    ConsumerDeadLetterPolicy,
    ConsumerType,
    InitialPosition,
    MessageId,
    ProducerAccessMode,
    PulsarClient,
    Result,
)
from pulsar_spark.client.schema import StringSchema
from pulsar_spark.engine.consumers.chunk_fetcher import ChunkFetcher
from pulsar_spark.engine.consumers.entries import LastChunk
from pulsar_spark.errors import MessageTooLarge, PulsarError
from pulsar_spark.protocol.frame_parts import ReceivedEntry
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.producing import TopicScript
from tests.engine.scripted_broker import ScriptedBroker
from tests.engine.topics import add_interleaved
from tests.support.waiting import wait_until

Test = Callable[[pulsar.Client], Awaitable[None]]
SECONDS = 60.0


def run(broker: EmbeddedBroker | str, test: Test) -> None:
    async def body() -> None:
        client = pulsar.Client(broker if isinstance(broker, str) else broker.service_url)
        try:
            await asyncio.wait_for(test(client), SECONDS)
        finally:
            await client.close()

    asyncio.run(body())


async def until(condition: Callable[[], object]) -> None:
    """Let other tasks run until a condition holds."""
    while not condition():
        await asyncio.sleep(0.001)


async def received(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    return [(await consumer.receive()).data() for _ in range(count)]


def failed(raised: pytest.ExceptionInfo[pulsar.PulsarException]) -> Result:
    return raised.value.error()


def test_sends_of_several_tasks_share_a_batch(broker: EmbeddedBroker) -> None:
    async def test(client: pulsar.Client) -> None:
        producer = await client.create_producer("t", batching_max_publish_delay_ms=60_000)
        consumer = await client.subscribe("t", "s")
        sends = [asyncio.ensure_future(producer.send(b"%d" % n)) for n in range(5)]
        await until(lambda: producer._pending)
        await producer.flush()
        ids = [each.result() for each in sends]
        assert [found.batch_index() for found in ids] == list(range(5))
        assert len({found.entry_id() for found in ids}) == 1
        assert await received(consumer, 5) == [b"%d" % n for n in range(5)]
        assert producer.last_sequence_id() == 4

    run(broker, test)


def test_messages_have_what_was_sent(broker: EmbeddedBroker) -> None:
    async def test(client: pulsar.Client) -> None:
        producer = await client.create_producer("t", schema=StringSchema(), producer_name="p")
        consumer = await client.subscribe("t", "s", schema=StringSchema(), consumer_name="c")
        sent = await producer.send(
            "ä", {"a": "b"}, partition_key="k", ordering_key="o", event_timestamp=7
        )
        message = await consumer.receive()
        assert message.value() == "ä"
        assert message.properties() == {"a": "b"}
        assert (message.partition_key(), message.ordering_key()) == ("k", "o")
        assert message.event_timestamp() == 7
        assert message.message_id() == sent
        assert producer.producer_name() == "p"
        assert (consumer.consumer_name(), consumer.subscription_name()) == ("c", "s")
        assert producer.topic() == consumer.topic() == "persistent://public/default/t"

    run(broker, test)


def test_receives_get_messages_in_the_order_of_their_calls(broker: EmbeddedBroker) -> None:
    async def test(client: pulsar.Client) -> None:
        producer = await client.create_producer("t")
        consumer = await client.subscribe("t", "s")
        receives = [asyncio.ensure_future(consumer.receive()) for _ in range(20)]
        await asyncio.sleep(0)
        for number in range(20):
            await producer.send(b"%d" % number)
        found = await asyncio.gather(*receives)
        assert [message.data() for message in found] == [b"%d" % n for n in range(20)]

    run(broker, test)


@pytest.mark.parametrize("moments", range(6))
def test_a_receive_that_is_cancelled_loses_no_message(broker: EmbeddedBroker, moments: int) -> None:
    async def test(client: pulsar.Client) -> None:
        producer = await client.create_producer("t", batching_enabled=False)
        consumer = await client.subscribe("t", "s")
        found: list[bytes] = []
        for number in range(30):
            receive = asyncio.ensure_future(consumer.receive())
            other = asyncio.ensure_future(consumer.receive())
            await asyncio.sleep(0)
            await producer.send(b"%d" % number)
            for _ in range(moments):
                await asyncio.sleep(0)
            for task in (receive, other):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    found.append((await task).data())
        found += await received(consumer, 30 - len(found))
        assert found == [b"%d" % n for n in range(30)]

    run(broker, test)


def test_a_receive_that_times_out_loses_no_message(broker: EmbeddedBroker) -> None:
    async def test(client: pulsar.Client) -> None:
        producer = await client.create_producer("t")
        consumer = await client.subscribe("t", "s", receiver_queue_size=0)
        found: list[bytes] = []
        sends = [asyncio.ensure_future(producer.send(b"%d" % n)) for n in range(20)]
        patience = 0.0005
        while len(found) < 20:
            try:
                found.append((await asyncio.wait_for(consumer.receive(), patience)).data())
                patience = 0.0005
            except asyncio.TimeoutError:
                # On a busy machine nothing comes in so short a time, however often it is asked.
                patience *= 2
        await asyncio.gather(*sends)
        assert found == [b"%d" % n for n in range(20)]

    run(broker, test)


def test_a_backlog_does_not_keep_other_tasks_from_running(broker: EmbeddedBroker) -> None:
    async def test(client: pulsar.Client) -> None:
        producer = await client.create_producer("t")
        await asyncio.gather(*(producer.send(b"x") for _ in range(500)))
        consumer = await client.subscribe("t", "s", initial_position=InitialPosition.Earliest)
        await consumer.receive()
        await until(lambda: next(iter(consumer._consumer._consumers)).has_more)
        ran = 0

        async def other() -> None:
            nonlocal ran
            while True:
                ran += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        await received(consumer, 499)
        task.cancel()
        assert ran >= 10

    run(broker, test)


def test_calls_that_wait_have_no_threads(broker: EmbeddedBroker) -> None:
    async def test(client: pulsar.Client) -> None:
        producer = await client.create_producer("t")
        consumer = await client.subscribe("t", "s")
        reader = await client.create_reader("t", MessageId.latest)
        await producer.send(b"first")
        await consumer.receive()
        await reader.read_next()
        before = threading.active_count()
        receives = [asyncio.ensure_future(consumer.receive()) for _ in range(100)]
        reads = [asyncio.ensure_future(reader.read_next()) for _ in range(100)]
        await asyncio.gather(*(producer.send(b"x") for _ in range(100)))
        assert threading.active_count() == before
        assert len(await asyncio.gather(*receives, *reads)) == 200

    run(broker, test)


def test_closing_ends_the_calls_that_wait(broker: EmbeddedBroker) -> None:
    async def test(client: pulsar.Client) -> None:
        first = await client.subscribe("t", "s")
        second = await client.subscribe("t", "s2")
        reader = await client.create_reader("t", MessageId.latest)
        waits = [
            asyncio.ensure_future(call)
            for call in (first.receive(), first.receive(), second.receive(), reader.read_next())
        ]
        await asyncio.sleep(0)
        await first.close()
        await client.close()
        for wait in waits:
            with pytest.raises(pulsar.PulsarException) as raised:
                await wait
            assert failed(raised) is Result.AlreadyClosed

    run(broker, test)


def test_shutdown_ends_sends_and_receives(broker: EmbeddedBroker) -> None:
    async def test(client: pulsar.Client) -> None:
        producer = await client.create_producer("t", batching_max_publish_delay_ms=60_000)
        consumer = await client.subscribe("t", "s")
        send = asyncio.ensure_future(producer.send(b"never"))
        receive = asyncio.ensure_future(consumer.receive())
        await until(lambda: producer._pending)
        client.shutdown()
        for call in (send, receive, producer.send(b"late"), consumer.receive()):
            with pytest.raises(pulsar.PulsarException) as raised:
                await call
            assert failed(raised) is Result.AlreadyClosed
        await producer.close()
        await producer.close()

    run(broker, test)


def test_a_client_that_is_closed_leaves_no_threads(broker: EmbeddedBroker) -> None:
    def threads() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if "embedded" not in each.name}

    before = threads()

    async def test(client: pulsar.Client) -> None:
        producer = await client.create_producer("t")
        await client.subscribe("t", "s")
        await client.create_reader("t", MessageId.latest)
        await producer.send(b"x")

    run(broker, test)
    wait_until(lambda: not (threads() - before), "threads are left")


def test_close_sends_what_waits(broker: EmbeddedBroker) -> None:
    async def test(client: pulsar.Client) -> None:
        producer = await client.create_producer("t", batching_max_publish_delay_ms=60_000)
        send = asyncio.ensure_future(producer.send(b"last"))
        await until(lambda: producer._pending)
        await producer.close()
        assert send.done()
        assert not producer.is_connected()
        reader = await client.create_reader("t", MessageId.earliest)
        assert (await reader.read_next()).data() == b"last"

    run(broker, test)


def test_a_full_queue_is_an_error_at_once(broker: EmbeddedBroker) -> None:
    async def test(client: pulsar.Client) -> None:
        producer = await client.create_producer(
            "t", max_pending_messages=3, batching_max_publish_delay_ms=60_000
        )
        sends = [asyncio.ensure_future(producer.send(b"x")) for _ in range(3)]
        await until(lambda: len(producer._pending) == 3)
        with pytest.raises(pulsar.PulsarException) as raised:
            await producer.send(b"y")
        assert failed(raised) is Result.ProducerQueueIsFull
        await producer.flush()
        assert all(send.done() for send in sends)

    run(broker, test)


def test_without_a_limit_no_queue_is_full(broker: EmbeddedBroker) -> None:
    async def test(client: pulsar.Client) -> None:
        producer = await client.create_producer("t", max_pending_messages=0)
        await asyncio.gather(*[producer.send(b"x") for _ in range(10)])

    run(broker, test)


def test_a_full_queue_is_waited_for_in_turn(broker: EmbeddedBroker) -> None:
    async def test(client: pulsar.Client) -> None:
        producer = await client.create_producer(
            "t", max_pending_messages=3, block_if_queue_full=True, batching_max_publish_delay_ms=1
        )
        consumer = await client.subscribe("t", "s")
        await asyncio.gather(*(producer.send(b"%d" % n) for n in range(40)))
        assert await received(consumer, 40) == [b"%d" % n for n in range(40)]

    run(broker, test)


def test_a_send_that_is_cancelled_before_there_is_room_is_not_sent(broker: EmbeddedBroker) -> None:
    async def test(client: pulsar.Client) -> None:
        producer = await client.create_producer(
            "t", max_pending_messages=1, block_if_queue_full=True, batching_max_messages=10,
            batching_max_publish_delay_ms=60_000,
        )  # fmt: skip
        consumer = await client.subscribe("t", "s")
        first = asyncio.ensure_future(producer.send(b"1"))
        await until(lambda: producer._pending)
        second = asyncio.ensure_future(producer.send(b"2"))
        await asyncio.sleep(0)
        second.cancel()
        await producer.flush()
        third = asyncio.ensure_future(producer.send(b"3"))
        await asyncio.sleep(0)
        await producer.flush()
        await asyncio.gather(first, third)
        assert await received(consumer, 2) == [b"1", b"3"]

    run(broker, test)


def test_a_send_that_gets_no_room_in_time_fails() -> None:
    async def test(client: pulsar.Client) -> None:
        producer = await client.create_producer(
            "t", max_pending_messages=1, block_if_queue_full=True, send_timeout_millis=300
        )
        sends = [asyncio.ensure_future(producer.send(b"x")) for _ in range(3)]
        found = await asyncio.gather(*sends, return_exceptions=True)
        errors = [each.error() for each in found if isinstance(each, pulsar.PulsarException)]
        assert errors == [Result.Timeout] * 3

    script = TopicScript()
    script.on_send = lambda session, sent: True
    with ScriptedBroker(script) as silent:
        run(f"pulsar://{silent.address}", test)


def test_without_memory_a_send_waits_or_fails(broker: EmbeddedBroker) -> None:
    async def test(client: pulsar.Client) -> None:
        client._core._context.budget.limit = 20_000
        options: dict[str, Any] = {"batching_max_messages": 2}
        strict = await client.create_producer("a", **options)
        patient = await client.create_producer("b", block_if_queue_full=True, **options)
        consumer = await client.subscribe("b", "s")
        full = 0
        for send in [asyncio.ensure_future(strict.send(b"x" * 9_000)) for _ in range(10)]:
            (error,) = await asyncio.gather(send, return_exceptions=True)
            if isinstance(error, pulsar.PulsarException):
                full += error.error() is Result.ProducerQueueIsFull
        assert 0 < full < 10
        await asyncio.gather(*(patient.send(b"%d" % n + b"x" * 9_000) for n in range(10)))
        assert [found[:1] for found in await received(consumer, 10)] == [
            b"%d" % n for n in range(10)
        ]
        assert client._core._context.budget.used == 0

    run(broker, test)


@pytest.mark.parametrize("batching", [False, True])
def test_what_cannot_be_batched_keeps_its_order(broker: EmbeddedBroker, batching: bool) -> None:
    async def test(client: pulsar.Client) -> None:
        topic = broker.create_topic("t", partitions=2)
        producer = await client.create_producer(
            topic, batching_enabled=batching, lazy_start_partitioned_producers=True
        )
        consumer = await client.subscribe(topic, "s")
        await asyncio.gather(
            *(
                producer.send(
                    b"%d" % n,
                    partition_key="k",
                    replication_clusters=["a"] if n % 3 else None,
                    sequence_id=n if n % 2 else None,
                )
                for n in range(30)
            )
        )
        assert await received(consumer, 30) == [b"%d" % n for n in range(30)]

    run(broker, test)


def test_errors_are_of_one_class_and_have_the_result(broker: EmbeddedBroker) -> None:
    async def test(client: pulsar.Client) -> None:
        producer = await client.create_producer("t")
        with pytest.raises(pulsar.PulsarException) as raised:
            await producer.send(b"x" * 6_000_000)
        assert failed(raised) is Result.MessageTooBig
        assert str(raised.value).startswith(f"{Result.MessageTooBig.value} MessageTooBig: ")
        assert isinstance(raised.value.__cause__, MessageTooLarge)
        assert not isinstance(raised.value, PulsarError)
        await producer.send(b"small")
        consumer = await client.subscribe("t", "s")
        with pytest.raises(pulsar.PulsarException) as raised:
            await client.subscribe("t", "s")
        assert failed(raised) is Result.ConsumerBusy
        await consumer.unsubscribe()
        await client.subscribe("t", "s", consumer_type=ConsumerType.Shared)

    run(broker, test)


def test_what_cannot_be_meant_is_a_value_error(broker: EmbeddedBroker) -> None:
    async def test(client: pulsar.Client) -> None:
        producer = await client.create_producer("t")
        for call in (
            client.subscribe(["t"], "s", is_pattern_topic=True),
            client.subscribe("(", "s", is_pattern_topic=True),
            client.subscribe("t", 1),  # type: ignore[arg-type]
            client.create_producer("t", chunking_enabled=True),
            client.create_reader("t", "1:2"),  # type: ignore[arg-type]
            client.get_topic_partitions(3),  # type: ignore[arg-type]
            client.get_topic_partitions("a//b"),
            producer.send(b"x", deliver_at="soon"),  # type: ignore[arg-type]
            producer.send(b"x", deliver_at=-1),
            producer.send(b"x", partition_key="\ud800"),
        ):
            with pytest.raises(pulsar.PulsarException) as raised:
                await call
            assert isinstance(raised.value, ValueError)
        with pytest.raises(ValueError, match="is_pattern_topic"):
            await client.subscribe(["t"], "s", is_pattern_topic=True)
        for wrong in (
            producer.send("text"),
            producer.send(b"x", properties={"a": 1}),  # type: ignore[dict-item]
            producer.send(b"x", properties={"a": None}),  # type: ignore[dict-item]
        ):
            with pytest.raises(pulsar.PulsarException) as raised:
                await wrong
            assert failed(raised) is Result.InvalidMessage
            assert isinstance(raised.value, TypeError)
            assert isinstance(raised.value, ValueError)

    run(broker, test)


def test_missing_chunks_are_fetched_beside_the_event_loop(broker: EmbeddedBroker) -> None:
    async def test(client: pulsar.Client) -> None:
        client._core._receiver_budget.total = 120_000
        topic = broker.create_topic("t", partitions=6)
        sent = [os.urandom(15_000) for _ in range(42)]
        for number, name in enumerate(await client.get_topic_partitions("t")):
            own = sent[7 * number : 7 * number + 7]
            add_interleaved(broker, name, own, 6000, f"u{number}")
        fetching: set[threading.Thread] = set()
        consumer = await client.subscribe("t", "s", initial_position=InitialPosition.Earliest)
        for each in consumer._consumer._consumers:
            watch_searches(each._chunk_fetcher, fetching)
        assert sorted(await received(consumer, 42)) == sorted(sent)
        assert topic in consumer.topic()
        assert len(fetching) == 1
        assert threading.current_thread() not in fetching

    run(broker, test)


def watch_searches(fetcher: ChunkFetcher, threads: set[threading.Thread]) -> None:
    """Note which threads search for the chunks of messages."""
    find = fetcher._search.find

    def noting(chunk: LastChunk) -> ReceivedEntry | None:
        threads.add(threading.current_thread())
        return find(chunk)

    fetcher._search.find = noting  # type: ignore[method-assign]


def test_acknowledging_seeking_and_redelivering(broker: EmbeddedBroker) -> None:
    async def test(client: pulsar.Client) -> None:
        producer = await client.create_producer("t", batching_enabled=False)
        consumer = await client.subscribe("t", "s", negative_ack_redelivery_delay_ms=10)
        ids = [await producer.send(b"%d" % n) for n in range(4)]
        messages = [await consumer.receive() for _ in range(4)]
        assert await consumer.get_last_message_id() == ids[3]
        await consumer.acknowledge(messages[0])
        await consumer.acknowledge_cumulative(ids[1])
        await consumer.negative_acknowledge(messages[3])
        assert await received(consumer, 2) == [b"2", b"3"]
        consumer.redeliver_unacknowledged_messages()
        assert await received(consumer, 2) == [b"2", b"3"]
        await consumer.seek(ids[0])
        assert await received(consumer, 3) == [b"1", b"2", b"3"]
        await consumer.seek(0)
        assert await received(consumer, 1) == [b"0"]
        shared = await client.subscribe("t", "s2", ConsumerType.Shared)
        with pytest.raises(pulsar.PulsarException) as raised:
            await shared.acknowledge_cumulative(ids[0])
        assert failed(raised) is Result.CumulativeAcknowledgementNotAllowedError

    run(broker, test)


def test_several_topics_and_patterns(broker: EmbeddedBroker) -> None:
    async def test(client: pulsar.Client) -> None:
        topics = ["orders-1", broker.create_topic("orders-2", partitions=2)]
        for topic in topics:
            await (await client.create_producer(topic)).send(b"x")
        assert len(await client.get_topic_partitions("orders-2")) == 2
        assert await client.get_topic_partitions("orders-1") == [
            "persistent://public/default/orders-1"
        ]
        earliest = InitialPosition.Earliest
        several = await client.subscribe(topics, "s", initial_position=earliest)
        pattern = await client.subscribe(
            "public/default/orders-.*", "p", initial_position=earliest, is_pattern_topic=True
        )
        for consumer in (several, pattern):
            assert await received(consumer, 2) == [b"x", b"x"]

    run(broker, test)


def test_a_reader_reads_looks_ahead_and_seeks(broker: EmbeddedBroker) -> None:
    async def test(client: pulsar.Client) -> None:
        producer = await client.create_producer("t")
        reader = await client.create_reader("t", MessageId.latest)
        assert not await reader.has_message_available()
        ids = [await producer.send(b"%d" % n) for n in range(3)]
        for number in range(3):
            assert await reader.has_message_available()
            assert (await reader.read_next()).data() == b"%d" % number
        assert not await reader.has_message_available()
        await reader.seek(ids[0])
        assert (await reader.read_next()).data() == b"1"
        await reader.seek(0)
        assert (await reader.read_next()).data() == b"0"
        assert reader.is_connected()
        await reader.close()
        assert not reader.is_connected()

    run(broker, test)


def test_a_read_that_is_cancelled_loses_no_message(broker: EmbeddedBroker) -> None:
    async def test(client: pulsar.Client) -> None:
        producer = await client.create_producer("t")
        reader = await client.create_reader("t", MessageId.latest)
        found: list[bytes] = []
        for number in range(30):
            read = asyncio.ensure_future(reader.read_next())
            await asyncio.sleep(0)
            await producer.send(b"%d" % number)
            read.cancel()
            with suppress(asyncio.CancelledError):
                found.append((await read).data())
        while len(found) < 30:
            found.append((await reader.read_next()).data())
        assert found == [b"%d" % n for n in range(30)]

    run(broker, test)


@pytest.mark.parametrize("what", ["create_producer", "subscribe", "create_reader"])
def test_making_something_can_be_cancelled_and_leaves_nothing(what: str) -> None:
    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            client = pulsar.Client(f"pulsar://127.0.0.1:{silent.getsockname()[1]}")
            arguments: tuple[Any, ...] = ("t",)
            if what != "create_producer":
                arguments += ("s" if what == "subscribe" else MessageId.latest,)
            ticks = 0
            making = asyncio.ensure_future(getattr(client, what)(*arguments))
            while ticks < 20:
                await asyncio.sleep(0.001)
                ticks += 1
            making.cancel()
            with pytest.raises(asyncio.CancelledError):
                await making
            core = client._core
            assert not any(core._made.values())
            await client.close()

    asyncio.run(asyncio.wait_for(body(), SECONDS))


def test_what_is_cancelled_at_any_moment_leaves_its_name_to_others(broker: EmbeddedBroker) -> None:
    exclusive = ProducerAccessMode.Exclusive

    async def test(client: pulsar.Client) -> None:
        for moments in range(30):
            makings: list[Coroutine[Any, Any, pulsar.AsyncConsumer | pulsar.AsyncProducer]] = [
                client.subscribe("t", "s"),
                client.create_producer("t", access_mode=exclusive),
            ]
            for making in makings:
                task = asyncio.ensure_future(making)
                for _ in range(moments):
                    await asyncio.sleep(0)
                await asyncio.sleep(moments * 0.0001)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await (await task).close()
        await client.subscribe("t", "s")
        await client.create_producer("t", access_mode=exclusive)
        core = client._core
        assert [len(made) for made in core._made.values()] == [1, 1, 0]

    run(broker, test)


@pytest.mark.parametrize("closed", ["consumer", "client"])
def test_a_close_that_is_cancelled_leaves_the_broker(broker: EmbeddedBroker, closed: str) -> None:
    async def test(other: pulsar.Client) -> None:
        client = pulsar.Client(broker.service_url)
        consumer = await client.subscribe(
            "t",
            "s",
            ConsumerType.Shared,
            initial_position=InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=1,
            dead_letter_policy=ConsumerDeadLetterPolicy(1, "dead"),
        )
        await client.subscribe("t", "other")
        await (await client.create_producer("t")).send(b"x")
        broker.faults.drop("SEND", topic="persistent://public/default/dead", times=None)
        for _ in range(2):
            await consumer.negative_acknowledge(await consumer.receive())
        await until(lambda: broker.faults.seen("SEND") == 2)
        made = consumer if closed == "consumer" else client
        closing = asyncio.ensure_future(made.close())
        # Then it waits for the dead letter, which is not stored.
        await until(lambda: consumer._consumer._closed)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        if closed == "consumer":
            await made.close()
        else:
            await other.subscribe("t", "other")
        await other.subscribe("t", "s")
        await client.close()

    run(broker, test)


def test_what_is_being_made_ends_with_the_client() -> None:
    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            client = pulsar.Client(f"pulsar://127.0.0.1:{silent.getsockname()[1]}")
            making = asyncio.ensure_future(client.create_producer("t"))
            await asyncio.sleep(0.01)
            await client.close()
            with pytest.raises(pulsar.PulsarException) as raised:
                await making
            assert failed(raised) is Result.AlreadyClosed

    asyncio.run(asyncio.wait_for(body(), SECONDS))


def test_a_client_goes_on_in_another_event_loop(broker: EmbeddedBroker) -> None:
    client = pulsar.Client(broker.service_url)

    async def begin() -> tuple[pulsar.Producer, pulsar.Consumer]:
        producer = await client.create_producer("t")
        consumer = await client.subscribe("t", "s")
        await asyncio.gather(*(producer.send(b"x") for _ in range(3)))
        await asyncio.gather(*(consumer.receive() for _ in range(3)))
        return producer, consumer

    async def go_on(producer: pulsar.Producer, consumer: pulsar.Consumer) -> None:
        receives = [asyncio.ensure_future(consumer.receive()) for _ in range(3)]
        await asyncio.gather(*(producer.send(b"x") for _ in range(3)))
        await asyncio.gather(*receives)
        await client.close()

    made = asyncio.run(begin())
    asyncio.run(asyncio.wait_for(go_on(*made), SECONDS))


def test_a_producer_flushes_and_closes_in_another_event_loop_than_that_of_its_sends(
    broker: EmbeddedBroker,
) -> None:
    client = pulsar.Client(broker.service_url)

    async def begin() -> pulsar.Producer:
        producer = await client.create_producer("t", batching_max_publish_delay_ms=1000)
        sends = [asyncio.ensure_future(producer.send(b"x")) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(send.done() for send in sends)
        return producer

    async def go_on(producer: pulsar.Producer) -> None:
        await producer.flush()
        await producer.send(b"y")
        await producer.close()
        await client.close()

    made = asyncio.run(begin())
    wait_until(lambda: broker.faults.seen("SEND_RECEIPT"))
    asyncio.run(asyncio.wait_for(go_on(made), SECONDS))
    with PulsarClient(broker.service_url) as reading:
        reader = reading.create_reader("t", MessageId.earliest)
        assert [reader.read_next(10_000).data() for _ in range(4)] == [*[b"x"] * 3, b"y"]
