"""Consumers of `PulsarClient` when something goes wrong, on the embedded broker."""

from __future__ import annotations

import os
import queue
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pulsar_spark.client import (
    ConsumerBatchReceivePolicy,
    ConsumerCryptoFailureAction,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    ConsumerType,
    CryptoKeyReader,
    InitialPosition,
    KeySharedMode,
    Message,
    MessageId,
    PulsarClient,
    PulsarConsumer,
    Result,
    StringSchema,
    dead_letters,
)
from pulsar_spark.client.message import messages_of, messages_of_rows
from pulsar_spark.client.schema import BytesSchema
from pulsar_spark.client.values import MessageValues
from pulsar_spark.engine import timers
from pulsar_spark.engine.consumers.chunk_search import ChunkSearch
from pulsar_spark.engine.consumers.consumer import TopicConsumer
from pulsar_spark.engine.consumers.delivery import Delivery
from pulsar_spark.engine.consumers.entries import LastChunk
from pulsar_spark.engine.consumers.inbox import Inbox
from pulsar_spark.engine.consumers.receiver_queue import BLOCK_OVERHEAD
from pulsar_spark.engine.consumers.rows import ReceivedRows
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.memory import ReceiverBudget
from pulsar_spark.engine.operations import run
from pulsar_spark.engine.options import ClientOptions, ConsumerOptions
from pulsar_spark.errors import (
    ClosedError,
    ConnectionLost,
    CorruptMessage,
    IncompleteMessage,
    OperationTimeout,
    OptionError,
    PulsarError,
    UnsupportedFeature,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import ReceivedEntry
from pulsar_spark.protocol.frames import MessageBlock
from pulsar_spark.protocol.message_id import MessageIdAdv, as_signed
from pulsar_spark.testing import EmbeddedBroker
from tests.client.unreadable import BAD_BATCH, BAD_CODEC, UNREADABLE
from tests.engine.topics import add_interleaved, add_plain, chunks_of, stored_entry
from tests.support.waiting import finish, is_in, wait_until

EARLIEST = InitialPosition.Earliest
RECEIVE_MS = 60_000


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    return broker.create_topic("t")


def send(client: PulsarClient, topic: str, count: int, **options: Any) -> list[MessageId]:
    with client.create_producer(topic, **options) as producer:
        return [producer.send(b"%d" % number) for number in range(count)]


def values(consumer: PulsarConsumer, count: int) -> list[int]:
    return [int(consumer.receive(RECEIVE_MS).data()) for _ in range(count)]


def backlog(consumer: PulsarConsumer) -> int:
    return consumer.get_broker_consumer_stats().msg_backlog


@pytest.mark.fault(33)
@pytest.mark.parametrize("bad", [BAD_BATCH, BAD_CODEC], ids=["batch", "codec"])
def test_what_cannot_be_read_is_raised_once_and_not_acknowledged(
    broker: EmbeddedBroker, client: PulsarClient, topic: str, bad: bytes
) -> None:
    send(client, topic, 1)
    place = broker.append(topic, bad)
    send(client, topic, 1)
    with client.subscribe(
        topic, "s", initial_position=EARLIEST, broker_consumer_stats_cache_time_ms=0
    ) as consumer:
        consumer.acknowledge(consumer.receive(RECEIVE_MS))
        with pytest.raises(CorruptMessage) as raised:
            consumer.receive(RECEIVE_MS)
        assert raised.value.topic == topic
        assert raised.value.message_id == f"{place.ledger_id}:{place.entry_id}"
        consumer.acknowledge(consumer.receive(RECEIVE_MS))
        wait_until(lambda: backlog(consumer) == 1, "the damaged entry alone is left")


@pytest.mark.parametrize(
    "bad,reason",
    [
        (BAD_BATCH, pb.CommandAck.BatchDeSerializeError),
        (BAD_CODEC, pb.CommandAck.DecompressionError),
    ],
    ids=["batch", "codec"],
)
def test_what_cannot_be_read_is_left_out_with_its_reason_where_that_is_asked_for(
    broker: EmbeddedBroker, client: PulsarClient, topic: str, bad: bytes, reason: int
) -> None:
    broker.append(topic, bad)
    send(client, topic, 1)
    with client.subscribe(
        topic,
        "s",
        initial_position=EARLIEST,
        discard_corrupt_messages=True,
        broker_consumer_stats_cache_time_ms=0,
    ) as consumer:
        assert values(consumer, 1) == [0]
        wait_until(lambda: backlog(consumer) == 1, "the damaged entry is still there")
    assert validation_errors(broker) == [reason]


def validation_errors(broker: EmbeddedBroker) -> list[int]:
    acks = [seen.body for seen in broker.faults.log("ACK")]
    return [ack.validation_error for ack in acks if ack.HasField("validation_error")]


@pytest.mark.fault(33)
def test_a_damaged_message_is_left_out_with_its_reason(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    send(client, topic, 2)
    with (
        broker.faults.corrupt("MESSAGE", times=1),
        client.subscribe(
            topic, "s", initial_position=EARLIEST, discard_corrupt_messages=True
        ) as consumer,
    ):
        assert values(consumer, 1) == [1]
    assert validation_errors(broker) == [pb.CommandAck.ChecksumMismatch]


def test_a_listener_goes_on_behind_what_cannot_be_read(
    broker: EmbeddedBroker, client: PulsarClient, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    came = threading.Event()
    broker.append(topic, BAD_BATCH)
    send(client, topic, 1)

    def listen(consumer: PulsarConsumer, message: Message) -> None:
        came.set()
        raise RuntimeError("its own fault")

    client.subscribe(topic, "s", initial_position=EARLIEST, message_listener=listen)
    assert came.wait(60)
    wait_until(lambda: "its own fault" in caplog.text, "what a listener raises is not logged")
    assert "cannot be given to the listener" in caplog.text


class LostKeys(CryptoKeyReader):
    """A reader of keys that has none."""

    def get_public_key(self, key_name: str, metadata: Any) -> Any:
        raise KeyError(key_name)

    get_private_key = get_public_key


@pytest.mark.fault(200)
@pytest.mark.parametrize("queue_size", [1, 1000])
@pytest.mark.parametrize("keys", [None, LostKeys()], ids=["without keys", "keys"])
def test_a_listener_goes_on_behind_each_kind_of_entry_that_cannot_be_read(
    broker: EmbeddedBroker,
    client: PulsarClient,
    topic: str,
    queue_size: int,
    keys: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for number, bad in enumerate(UNREADABLE.values()):
        broker.append(topic, bad)
        add_plain(broker, topic, b"%d" % number)
    broker.faults.corrupt("MESSAGE", times=1)
    came: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    consumer = client.subscribe(
        topic,
        "s",
        initial_position=EARLIEST,
        message_listener=lambda _, message: came.put(message.data()),
        receiver_queue_size=queue_size,
        crypto_key_reader=keys,
        broker_consumer_stats_cache_time_ms=0,
    )
    found = [came.get(timeout=60) for _ in UNREADABLE]
    assert found == [b"%d" % number for number in range(len(UNREADABLE))]
    # Nothing was acknowledged or is told of twice.
    assert backlog(consumer) == 2 * len(UNREADABLE)
    withheld = sum(entry.startswith("no ") for entry in UNREADABLE)
    assert caplog.text.count("cannot be given to the listener") == len(UNREADABLE) - withheld
    assert caplog.text.count("are withheld, and stay unacknowledged (1 until now)") == 1


@pytest.mark.fault(200)
def test_a_listener_without_a_queue_goes_on_behind_what_cannot_be_read(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    for bad in ("checksum", "codec", "no key"):
        broker.append(topic, UNREADABLE[bad])
    add_plain(broker, topic, b"behind")
    broker.faults.corrupt("MESSAGE", times=1)
    came: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    client.subscribe(
        topic,
        "s",
        initial_position=EARLIEST,
        message_listener=lambda _, message: came.put(message.data()),
        receiver_queue_size=0,
    )
    assert came.get(timeout=60) == b"behind"


@pytest.mark.fault(200)
def test_a_listener_is_told_once_of_what_ended_its_consumer(
    broker: EmbeddedBroker,
    client: PulsarClient,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("a defect")

    came = threading.Event()
    listener = client.subscribe(topic, "s", message_listener=lambda *_: None)
    monkeypatch.setattr(Lookup, "connection_operation", fail)
    broker.faults.disconnect()
    wait_until(lambda: "cannot be given to the listener" in caplog.text, "it is not told")
    # What the listeners' thread does next comes behind another call of the listener.
    listener._callbacks.run(came.set)
    assert came.wait(60)
    assert caplog.text.count("cannot be given to the listener") == 1


@pytest.mark.fault(14)
def test_acknowledgements_survive_the_loss_of_the_connection(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    send(client, topic, 6)
    with client.subscribe(topic, "s", initial_position=EARLIEST) as consumer:
        found = [consumer.receive(RECEIVE_MS) for _ in range(4)]
        broker.faults.refuse()
        broker.faults.disconnect()
        wait_until(lambda: not consumer.is_connected(), "it did not notice")
        for message in found[:3]:
            consumer.acknowledge(message)
        broker.faults.accept()
        assert values(consumer, 3) == [3, 4, 5]
        assert consumer.is_connected()


@pytest.mark.fault(75)
def test_a_consumer_comes_back_although_no_thread_could_start_for_a_while(
    broker: EmbeddedBroker, client: PulsarClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An idle client has no thread for its timers, unless they are needed.
    monkeypatch.setattr(timers, "IDLE_SECONDS", 0.01)
    refused: list[str] = []

    def refuse(thread: threading.Thread) -> None:
        refused.append(thread.name)
        raise RuntimeError("can't start new thread")

    with client.subscribe(topic, "s", initial_position=EARLIEST) as consumer:
        # Longer than a thread without timers lives.
        time.sleep(0.1)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            broker.faults.disconnect(reset=True)
            wait_until(lambda: len(refused) >= 2, "it does not try again")
        send(client, topic, 1)
        assert values(consumer, 1) == [0]


def test_a_defect_while_a_consumer_comes_back_is_told_to_those_who_wait(
    broker: EmbeddedBroker,
    client: PulsarClient,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("a defect")

    with client.subscribe(topic, "s") as consumer:
        monkeypatch.setattr(Lookup, "connection_operation", fail)
        broker.unload(topic)
        for _ in range(2):
            with pytest.raises(ConnectionLost, match="a defect") as raised:
                consumer.receive(RECEIVE_MS)
            assert raised.value.topic == topic
    assert "cannot subscribe again" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.fault(206)
@pytest.mark.parametrize("others", [0, 1])
def test_a_consumer_goes_on_when_its_topic_is_made_again(
    broker: EmbeddedBroker, client: PulsarClient, topic: str, others: int
) -> None:
    topics = [topic, *(broker.create_topic(f"other-{number}") for number in range(others))]
    consumer = client.subscribe(topics, "s", initial_position=EARLIEST)
    asked = broker.faults.seen("LOOKUP")
    broker.delete_topic(topic)
    wait_until(lambda: broker.faults.seen("LOOKUP") > asked + 1, "it does not try again")
    broker.create_topic(topic)
    send(client, topic, 2)
    assert values(consumer, 2) == [0, 1]
    consumer.close()


def receive_without_a_queue(consumer: PulsarConsumer, count: int) -> list[int]:
    """Receive messages where there is no timeout."""
    came: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    found: list[int] = []
    for _ in range(count):
        consumer.receive_async(lambda _, message: came.put(message))
        message = came.get(timeout=60)
        assert message is not None
        found.append(int(message.data()))
    return found


def send_batch(
    client: PulsarClient, topic: str, first: int, count: int, keys: str | None = None
) -> None:
    with client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
    ) as producer:
        for at in range(count):
            key = None if keys is None else keys[at]
            producer.send_async(b"%d" % (first + at), None, partition_key=key)
        producer.flush()


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_without_a_queue_all_batches_are_received(
    client: PulsarClient, topic: str, kind: ConsumerType
) -> None:
    for number in range(3):
        send_batch(client, topic, 5 * number, 5)
    send(client, topic, 1)
    with client.subscribe(
        topic, "s", kind, initial_position=EARLIEST, receiver_queue_size=0
    ) as consumer:
        assert receive_without_a_queue(consumer, 16) == [*range(15), 0]


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
@pytest.mark.parametrize("received", [1, 4])
def test_without_a_queue_a_batch_comes_again_from_its_middle(
    client: PulsarClient, topic: str, kind: ConsumerType, received: int
) -> None:
    send_batch(client, topic, 0, 3)
    send_batch(client, topic, 3, 3)
    with client.subscribe(
        topic, "s", kind, initial_position=EARLIEST, receiver_queue_size=0
    ) as consumer:
        for _ in range(3):
            assert receive_without_a_queue(consumer, received) == list(range(received))
            consumer.redeliver_unacknowledged_messages()
        assert receive_without_a_queue(consumer, 6) == list(range(6))


def test_without_a_queue_a_batch_that_is_refused_in_its_middle_comes_again(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    send_batch(client, topic, 0, 3)
    with client.subscribe(
        topic,
        "s",
        initial_position=EARLIEST,
        receiver_queue_size=0,
        negative_ack_redelivery_delay_ms=1,
    ) as consumer:
        consumer.negative_acknowledge(consumer.receive())
        asked = "REDELIVER_UNACKNOWLEDGED_MESSAGES"
        wait_until(lambda: broker.faults.seen(asked), "nothing is redelivered")
        assert receive_without_a_queue(consumer, 3) == [0, 1, 2]


def test_without_a_queue_a_message_that_nobody_waited_for_comes_again(
    client: PulsarClient, topic: str
) -> None:
    policy = ConsumerBatchReceivePolicy(10, 0, 1)
    with client.subscribe(
        topic, "s", receiver_queue_size=0, batch_receive_policy=policy
    ) as consumer:
        assert consumer.batch_receive() == []
        send(client, topic, 1)
        (inner,) = consumer._consumers
        wait_until(lambda: inner.has_more, "the message does not come")
        consumer.redeliver_unacknowledged_messages()
        assert receive_without_a_queue(consumer, 1) == [0]


def test_closing_ends_all_that_wait(client: PulsarClient, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    ended: list[str] = []

    def wait() -> None:
        with pytest.raises(ClosedError):
            consumer.receive()
        ended.append("receive")

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: all(is_in(thread, "wait") for thread in threads))
    client.close()
    finish(*threads)
    assert ended == ["receive"] * 3
    for call in (
        consumer.batch_receive,
        consumer.redeliver_unacknowledged_messages,
        consumer.get_last_message_id,
        consumer.unsubscribe,
        lambda: consumer.seek(MessageId.earliest),
        lambda: consumer.acknowledge(MessageId(0, 1, 1)),
    ):
        with pytest.raises(ClosedError):
            call()
    consumer.close()


def test_who_waits_for_a_message_while_the_consumer_is_closed_is_told(
    client: PulsarClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = client.subscribe(topic, "s")
    results: queue.Queue[Result] = queue.Queue()
    looked = consumer._incoming.next

    def look() -> Message | None:
        found = looked()
        # A callback that has found nothing waits again.
        consumer._listening.close()
        return found

    monkeypatch.setattr(consumer._incoming, "next", look)
    for _ in range(2):
        consumer.receive_async(lambda result, _: results.put(result))
        assert results.get(timeout=60) == Result.AlreadyClosed


def test_threads_share_the_messages_of_a_batch(client: PulsarClient, topic: str) -> None:
    with client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
    ) as producer:
        for number in range(500):
            producer.send_async(b"%d" % number, None)
        producer.flush()
    found: list[int] = []
    with client.subscribe(topic, "s", initial_position=EARLIEST) as consumer:
        threads = [
            threading.Thread(target=lambda: found.extend(values(consumer, 125))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        finish(*threads)
    assert sorted(found) == list(range(500))


def test_permits_are_given_again_when_half_is_consumed(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    send(client, topic, 100)
    with client.subscribe(
        topic, "s", initial_position=EARLIEST, receiver_queue_size=10
    ) as consumer:
        assert values(consumer, 100) == list(range(100))
    flows = [seen.body.messagePermits for seen in broker.faults.log("FLOW")]
    assert flows[0] == 10
    assert set(flows[1:]) == {5}
    assert sum(flows) <= 110


def test_everything_anew_costs_no_permits(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    send(client, topic, 20)
    with client.subscribe(topic, "s", initial_position=EARLIEST, receiver_queue_size=4) as consumer:
        for _ in range(10):
            assert values(consumer, 3) == [0, 1, 2]
            consumer.redeliver_unacknowledged_messages()
        assert values(consumer, 20) == list(range(20))


@pytest.mark.fault(91)
def test_a_consumer_holds_no_more_than_its_memory_allows(topic: str) -> None:
    with EmbeddedBroker() as broker, ClientContext(ClientOptions(broker.service_url)) as context:
        name = broker.create_topic("large")
        for number in range(40):
            broker.append(name, stored_entry(b"%02d" % number + bytes(100_000)))
        budget = ReceiverBudget(1_000_000)
        consumer = opened(context, name, budget, initial=pb.CommandSubscribe.Earliest)
        found: list[bytes] = []
        highest = 0
        until = Deadline(30)
        while len(found) < 40 and not until.expired():
            highest = max(highest, consumer._queue.queued_bytes)
            delivery = consumer.take()
            if delivery is None:
                time.sleep(0.001)
                continue
            for message in messages_in(delivery):
                found.append(message.data()[:2])
                consumer.acknowledge(message.message_id().unwrap())
            consumer.finish(delivery)
        assert sorted(set(found)) == [b"%02d" % number for number in range(40)]
        assert highest <= 1_000_000
        consumer.close()


def message_id_of(ledger_id: int, entry_id: int) -> Any:
    return MessageId(-1, ledger_id, entry_id).unwrap()


def opened(
    context: ClientContext, topic: str, budget: ReceiverBudget | None = None, **options: Any
) -> TopicConsumer:
    consumer = TopicConsumer(
        context,
        topic,
        ConsumerOptions("s", **options),
        Inbox(),
        budget or ReceiverBudget(64 << 20),
    )
    run(consumer.open_operation, 30.0)
    return consumer


def messages_in(delivery: Delivery) -> list[Message]:
    content = delivery.content
    if isinstance(content, ReceivedRows):
        return messages_of_rows(content, MessageValues(BytesSchema()))
    return list(messages_of(content, MessageValues(BytesSchema()), delivery.left))


@pytest.mark.fault(91)
def test_a_small_block_does_not_keep_what_it_was_received_with() -> None:
    with EmbeddedBroker() as broker, ClientContext(ClientOptions(broker.service_url)) as context:
        consumer = opened(context, broker.create_topic("t"))
        attachment = consumer._attachment
        assert attachment is not None
        received = bytearray(512 * 1024)
        received[1000:1004] = (96).to_bytes(4, "big")
        for _ in range(100):
            small = MessageBlock(1, bytes(received), 1000, 1100, 1)
            consumer.on_delivered(attachment, small)
        assert consumer._queue.queued_bytes == 100 * (100 + BLOCK_OVERHEAD)
        consumer.close()


@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Shared, pb.CommandSubscribe.Exclusive])
def test_what_nobody_acknowledges_in_time_comes_again(kind: int) -> None:
    with EmbeddedBroker() as broker, ClientContext(ClientOptions(broker.service_url)) as context:
        name = broker.create_topic("t")
        for _ in range(3):
            broker.append(name, stored_entry(b""))
        consumer = opened(
            context, name, kind=kind, initial=pb.CommandSubscribe.Earliest, ack_timeout=0.2
        )
        first: list[MessageIdAdv] = []
        while len(first) < 3:
            if (delivery := consumer.take()) is not None:
                for message in messages_in(delivery):
                    first.append(message.message_id().unwrap())
                    consumer.track(first[-1])
                consumer.finish(delivery)
        consumer.acknowledge(first[1])
        again: list[int] = []
        until = Deadline(30)
        while len(again) < 2 and not until.expired():
            if (delivery := consumer.take()) is not None:
                again += [message.message_id().entry_id() for message in messages_in(delivery)]
                consumer.finish(delivery)
            time.sleep(0.005)
        assert sorted(again) == [first[0].entry_id, first[2].entry_id]
        consumer.close()


def test_choices_are_checked_before_anything_is_asked(client: PulsarClient, topic: str) -> None:
    wrong: tuple[dict[str, Any], ...] = (
        {"unacked_messages_timeout_ms": 9_999},
        {"subscription_name": ""},
        {"topic": []},
        {"topic": 5},
        {"receiver_queue_size": -1},
        {"consumer_type": ConsumerType.Shared, "is_read_compacted": True},
        {"negative_ack_redelivery_delay_ms": -1},
        {"consumer_type": "Shared"},
        {"properties": {"a": None}},
        {"properties": {1: "a"}},
        {"subscription_properties": {"a": None}},
        {"subscription_properties": {"a": "\ud800"}},
    )
    for change in wrong:
        with pytest.raises(ValueError):
            client.subscribe(**{"topic": topic, "subscription_name": "s", **change})
    with client.subscribe(topic, "s") as consumer:
        for bad in ("1:2", None, 5):
            with pytest.raises(OptionError):
                consumer.acknowledge(bad)  # type: ignore[arg-type]
        with client.new_transaction() as txn, pytest.raises(OptionError, match="properties"):
            consumer.acknowledge(
                MessageId(-1, 1, 1),
                properties={"a": 1},
                txn=txn,
            )
        with pytest.raises(OptionError):
            consumer.seek("now")  # type: ignore[arg-type]
        with pytest.raises(OptionError):
            consumer.pause_message_listener()
        with pytest.raises(OptionError, match="enable_retry"):
            consumer.reconsume_later(
                Message(ReceivedEntry(pb.MessageMetadata(), b""), -1, MessageValues(BytesSchema())),
                5,
            )


@pytest.mark.parametrize("receipts", [False, True])
def test_an_id_that_names_no_message_acknowledges_and_harms_nothing(
    broker: EmbeddedBroker, client: PulsarClient, topic: str, receipts: bool
) -> None:
    consumer = client.subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=1,
        ack_receipt_enabled=receipts,
    )
    none = [
        consumer.get_last_message_id(),
        MessageId.earliest,
        MessageId.latest,
        MessageId(-1, 5, -1),
        MessageId(-1, -1, 5),
        MessageId(-1, -1, -1, 3),
    ]
    for each in none:
        consumer.acknowledge(each)
        consumer.negative_acknowledge(each)
        with client.new_transaction() as txn:
            consumer.acknowledge(each, txn=txn)
    assert broker.faults.seen("ACK") == 0
    send(client, topic, 5)
    messages = [consumer.receive(RECEIVE_MS) for _ in range(5)]
    consumer.negative_acknowledge(messages[0])
    assert consumer.receive(RECEIVE_MS).message_id() == messages[0].message_id()
    for message in messages:
        consumer.acknowledge(message)
    consumer.close()
    with client.subscribe(topic, "s") as another:
        assert backlog(another) == 0


LEAVING: dict[str, tuple[Callable[[EmbeddedBroker, PulsarConsumer], object], Any]] = {
    "closed by the broker": (
        lambda broker, consumer: broker.faults.close_consumers(consumer.topic()),
        ConnectionLost,
    ),
    "seek": (lambda broker, consumer: consumer.seek(MessageId.earliest), ConnectionLost),
    "unsubscribe": (lambda broker, consumer: consumer.unsubscribe(), ClosedError),
}


@pytest.mark.parametrize("leaving", LEAVING)
def test_acknowledgements_that_a_broker_without_the_consumer_drops_fail_at_once(
    broker: EmbeddedBroker, client: PulsarClient, topic: str, leaving: str
) -> None:
    send(client, topic, 3)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, ack_receipt_enabled=True)
    txn = client.new_transaction()
    leave, expected = LEAVING[leaving]
    raised: dict[str, BaseException | None] = {}

    def acknowledge(name: str, call: Callable[..., object], message: Message, **given: Any) -> None:
        try:
            call(message, **given)
        except PulsarError as error:
            raised[name] = error

    ways: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
        "one": (consumer.acknowledge, {}),
        "upto": (consumer.acknowledge_cumulative, {}),
        "in a transaction": (consumer.acknowledge, {"txn": txn}),
    }
    threads = [
        threading.Thread(
            target=acknowledge, args=(name, call, consumer.receive(RECEIVE_MS)), kwargs=given
        )
        for name, (call, given) in ways.items()
    ]
    with broker.faults.drop("ACK", times=None):
        for thread in threads:
            thread.start()
        wait_until(lambda: broker.faults.seen("ACK") == len(threads), "they are not sent")
        leave(broker, consumer)
        finish(*threads)
    txn.abort()
    for name in ("one", "upto"):
        assert isinstance(raised.pop(name), expected), name
    assert isinstance(raised.pop("in a transaction"), ConnectionLost)
    if expected is ConnectionLost:
        consumer.acknowledge(consumer.receive(RECEIVE_MS))


@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize(
    "properties",
    [*({"a": each} for each in (None, "x", 1.5, True, 2**63, -(2**63) - 1)), {5: 1}, {"\ud800": 1}],
    ids=str,
)
def test_impossible_properties_of_an_acknowledgement_are_refused_and_harm_nothing(
    broker: EmbeddedBroker, client: PulsarClient, topic: str, properties: Any, cumulative: bool
) -> None:
    send(client, topic, 2)
    with client.subscribe(topic, "s", initial_position=EARLIEST) as consumer:
        acknowledge = consumer.acknowledge_cumulative if cumulative else consumer.acknowledge
        for _ in range(2):
            message = consumer.receive(RECEIVE_MS)
            with pytest.raises(OptionError, match="properties"):
                acknowledge(message, properties=properties)
            acknowledge(message, properties={"low": -(2**63), "high": 2**63 - 1})
        wait_until(lambda: backlog(consumer) == 0, "they are not acknowledged")
    told = broker.faults.log("ACK")[-1].body.properties
    assert {each.key: as_signed(each.value) for each in told} == {
        "low": -(2**63),
        "high": 2**63 - 1,
    }


def test_a_consumer_that_cannot_be_closed_keeps_nothing_else_open(
    broker: EmbeddedBroker, client: PulsarClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = broker.create_topic("parts", partitions=3)
    send(client, parts, 3)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
    )
    consumers = [
        client.subscribe(parts, name, initial_position=EARLIEST) for name in ("s1", "s2", "s3")
    ]
    for consumer in consumers:
        for _ in range(3):
            consumer.acknowledge(consumer.receive(RECEIVE_MS))
    for _ in range(5):
        producer.send_async(b"x", None)
    (broken,) = (each for each in consumers[1]._consumers if each.partition == 1)

    def fail() -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(broken._outstanding, "close", fail)
    with pytest.raises(RuntimeError, match="a defect"):
        client.close()
    wait_until(lambda: not broker.connections, "it is still connected")
    assert broker.stats(topic).messages_in == 5
    views = [broker.subscriptions(f"{parts}-partition-{number}") for number in range(3)]
    assert [sum(view[name].backlog for view in views) for name in ("s1", "s2", "s3")] == [0, 1, 0]


def test_of_several_topics_only_one_has_a_last_message(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    topic = broker.create_topic("parts", partitions=2)
    ids = send(client, topic, 4)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    with pytest.raises(UnsupportedFeature, match="several"):
        consumer.get_last_message_id()
    consumer.close()
    one = f"{topic}-partition-1"
    with client.subscribe(one, "s") as consumer:
        assert consumer.get_last_message_id() == max(i for i in ids if i.partition() == 1)


@pytest.fixture
def left(broker: EmbeddedBroker, client: PulsarClient) -> tuple[PulsarConsumer, Message, Message]:
    """A consumer of a pattern of which one topic is left, with a message of it and of another."""
    kept, gone = broker.create_topic("of-kept"), broker.create_topic("of-gone")
    # The ids of the topic that goes are behind all of the one that stays.
    send(client, kept, 3)
    send(client, gone, 5)
    consumer = client.subscribe(
        re.compile("public/default/of-.*"),
        "s",
        initial_position=EARLIEST,
        pattern_auto_discovery_period=1,
        negative_ack_redelivery_delay_ms=1,
        ack_receipt_enabled=True,
    )
    found = [consumer.receive(RECEIVE_MS) for _ in range(8)]
    broker.delete_topic(gone)
    wait_until(lambda: len(consumer._consumers) == 1, "the topic is still there")
    by_topic = {message.topic_name(): message for message in found}
    return consumer, by_topic[kept], by_topic[gone]


def test_of_a_topic_that_has_gone_nothing_is_acknowledged_elsewhere(
    broker: EmbeddedBroker, left: tuple[PulsarConsumer, Message, Message]
) -> None:
    consumer, kept, gone = left
    for each in (gone, gone.message_id()):
        consumer.acknowledge(each)
        consumer.acknowledge_cumulative(each)
        consumer.negative_acknowledge(each)
    assert backlog(consumer) == 3
    assert broker.faults.seen("ACK") == 0
    assert broker.faults.seen("REDELIVER_UNACKNOWLEDGED_MESSAGES") == 0
    consumer.acknowledge_cumulative(kept)
    assert broker.faults.seen("ACK") == 1


def test_a_transaction_acknowledges_nothing_elsewhere_for_a_topic_that_has_gone(
    client: PulsarClient, left: tuple[PulsarConsumer, Message, Message]
) -> None:
    consumer, _, gone = left
    with client.new_transaction() as txn:
        consumer.acknowledge(gone, txn=txn)
        consumer.acknowledge_cumulative(gone, txn=txn)
    assert backlog(consumer) == 3


def test_seek_names_a_topic_that_has_gone(
    broker: EmbeddedBroker, left: tuple[PulsarConsumer, Message, Message]
) -> None:
    consumer, kept, gone = left
    with pytest.raises(UnsupportedFeature, match="of-gone"):
        consumer.seek(gone.message_id())
    assert broker.faults.seen("SEEK") == 0
    consumer.seek(kept.message_id())


def test_an_id_names_its_topic_as_programs_do(broker: EmbeddedBroker, client: PulsarClient) -> None:
    topics = [broker.create_topic("parts", partitions=2), broker.create_topic("one")]
    ids = [MessageId.wrap(each, None) for topic in topics for each in send(client, topic, 2)]
    with client.subscribe(
        topics, "s", initial_position=EARLIEST, ack_receipt_enabled=True
    ) as several:
        for _ in ids:
            several.receive(RECEIVE_MS)
        names = ("parts", "public/default/parts", "one", topics[1])
        for each, name in zip(ids, names, strict=True):
            several.acknowledge(MessageId.deserialize(each.serialize(), name))
        assert backlog(several) == 0
        several.acknowledge(MessageId.deserialize(ids[0].serialize(), "another"))
        with pytest.raises(UnsupportedFeature, match="does not say"):
            several.acknowledge(MessageId.deserialize(ids[2].serialize()))
    with client.subscribe("one", "s") as consumer:
        consumer.acknowledge(MessageId.deserialize(ids[2].serialize(), "by any name"))


ONE, PARTS = "persistent://public/default/of-a", "persistent://public/default/of-b"


def refuse_all(consumer: PulsarConsumer, client: PulsarClient, letters: list[str]) -> None:
    """Refuse a message of each topic, until it is a dead letter on the topic of that number."""
    for topic, count in ((ONE, 1), (PARTS, 2)):
        send(client, topic, count)
    for _ in range(2 * 3):
        consumer.negative_acknowledge(consumer.receive(RECEIVE_MS))
    for topic, name in zip((ONE, PARTS, PARTS), letters, strict=True):
        with client.subscribe(name, f"watch-{topic[-1]}", initial_position=EARLIEST) as dead:
            found = [dead.receive(RECEIVE_MS) for _ in range(letters.count(name))]
        origins = [message.properties()["REAL_TOPIC"].partition("-partition-") for message in found]
        assert topic in {origin for origin, _, _ in origins}


@pytest.mark.parametrize("most", [1, 50], ids=["one producer", "producers"])
@pytest.mark.parametrize(
    "topics", [[ONE, PARTS], re.compile("public/default/of-[ab]")], ids=["list", "pattern"]
)
def test_dead_letters_go_beside_the_topic_of_each(
    broker: EmbeddedBroker,
    client: PulsarClient,
    topics: Any,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead_letters, "_MAX_WRITERS", most)
    broker.create_topic(ONE)
    broker.create_topic(PARTS, partitions=2)
    with client.subscribe(
        topics,
        "s",
        ConsumerType.Shared,
        initial_position=EARLIEST,
        negative_ack_redelivery_delay_ms=1,
        dead_letter_policy=ConsumerDeadLetterPolicy(1),
        broker_consumer_stats_cache_time_ms=0,
    ) as consumer:
        refuse_all(consumer, client, [f"{ONE}-s-DLQ", f"{PARTS}-s-DLQ", f"{PARTS}-s-DLQ"])
        wait_until(lambda: not backlog(consumer), "the dead letters are not acknowledged")
    wait_until(lambda: not threads_named("pulsar-spark-letters"), "their thread goes on")


def test_a_letter_behind_the_end_of_its_consumer_opens_no_producer(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    send(client, topic, 1)
    policy = ConsumerDeadLetterPolicy(1)
    with client.subscribe(
        topic, "s", ConsumerType.Shared, initial_position=EARLIEST, dead_letter_policy=policy
    ) as consumer:
        message = consumer.receive(RECEIVE_MS)
        deliveries = consumer._last_deliveries
        assert deliveries is not None
        letters = deliveries._dead_letters
        ends: queue.SimpleQueue[Any] = queue.SimpleQueue()
        letters.send_to_dead_letter_topic([message], ends.put)
        assert ends.get(timeout=60) is None
    opened = broker.faults.seen("PRODUCER")
    letters.send_to_dead_letter_topic([message], ends.put)
    assert isinstance(ends.get(timeout=60), ClosedError)
    assert broker.faults.seen("PRODUCER") == opened


def test_with_retries_all_letters_go_beside_the_first_topic(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    broker.create_topic(ONE)
    broker.create_topic(PARTS, partitions=2)
    pattern = re.compile("public/default/of-[ab]")
    with pytest.raises(OptionError, match="need names"):
        client.subscribe(pattern, "s", ConsumerType.Shared, enable_retry=True)
    with client.subscribe(
        [ONE, PARTS],
        "s",
        ConsumerType.Shared,
        initial_position=EARLIEST,
        negative_ack_redelivery_delay_ms=1,
        dead_letter_policy=ConsumerDeadLetterPolicy(1),
        enable_retry=True,
    ) as consumer:
        assert f"{ONE}-s-RETRY" in consumer._consumers.topics
        refuse_all(consumer, client, [f"{ONE}-s-DLQ"] * 3)


def test_a_retry_topic_may_have_a_short_name(client: PulsarClient, topic: str) -> None:
    send(client, topic, 1)
    with client.subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        initial_position=EARLIEST,
        dead_letter_policy=ConsumerDeadLetterPolicy(1, retry_letter_topic="again"),
        enable_retry=True,
    ) as consumer:
        consumer.reconsume_later(consumer.receive(RECEIVE_MS), 1)
        assert consumer.receive(RECEIVE_MS).topic_name() == "persistent://public/default/again"


@pytest.mark.parametrize("properties", [{"why": None}, {None: "x"}, {"why": 1}, [("a", "b")]])
def test_a_message_stays_whose_retry_would_have_impossible_properties(
    client: PulsarClient, topic: str, properties: Any
) -> None:
    send(client, topic, 1)
    with client.subscribe(
        topic, "s", ConsumerType.Shared, initial_position=EARLIEST, enable_retry=True
    ) as consumer:
        message = consumer.receive(RECEIVE_MS)
        with pytest.raises(OptionError, match="properties"):
            consumer.reconsume_later(message, 1, properties)
        consumer.reconsume_later(message, 1, {"why": "later"})
        assert consumer.receive(RECEIVE_MS).properties()["why"] == "later"


def threads_named(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def _has_seen(broker: EmbeddedBroker, command: str, times: int) -> bool:
    return broker.faults.seen(command) == times


def test_partitions_share_the_messages_that_are_fetched_before_they_are_wanted(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    topic = broker.create_topic("parts", partitions=4)
    for count, (most, each) in enumerate(((100, 25), (10_000, 50)), 1):
        with client.subscribe(
            topic,
            f"s-{most}",
            receiver_queue_size=50,
            max_total_receiver_queue_size_across_partitions=most,
        ):
            wait_until(partial(_has_seen, broker, "FLOW", 4 * count), "not all ask for messages")
        asked = broker.faults.log("FLOW")[-4:]
        assert [seen.body.messagePermits for seen in asked] == [each] * 4


def test_without_a_period_new_partitions_are_not_looked_for(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    topic = broker.create_topic("parts", partitions=2)
    with client.subscribe(topic, "s", auto_update_partitions_interval_seconds=0) as consumer:
        send(client, topic, 100)
        values(consumer, 100)
        # One for the consumer, one for its first discovery, one for the producer.
        assert broker.faults.seen("PARTITIONED_METADATA") <= 3


@pytest.mark.fault(39)
@pytest.mark.parametrize("asked", [False, True], ids=["kept", "acknowledged"])
def test_the_oldest_of_too_many_unfinished_chunked_messages_is_acknowledged_if_that_is_asked_for(
    broker: EmbeddedBroker, client: PulsarClient, topic: str, asked: bool
) -> None:
    def half(message: int, chunk: int) -> bytes:
        return stored_entry(
            b"half",
            uuid=f"u{message}",
            chunk_id=chunk,
            num_chunks_from_msg=2,
            total_chunk_msg_size=8,
        )

    for number in range(4):
        broker.append(topic, half(number, 0))
    send(client, topic, 1)
    with client.subscribe(
        topic,
        "s",
        initial_position=EARLIEST,
        max_pending_chunked_message=2,
        auto_ack_oldest_chunked_message_on_queue_full=asked,
        broker_consumer_stats_cache_time_ms=0,
    ) as consumer:
        consumer.acknowledge(consumer.receive(RECEIVE_MS))
        wait_until(lambda: backlog(consumer) == (2 if asked else 4), "the rest is left")
        # The last ones can still be completed, and so can the first one if nothing was discarded.
        for number in (3, 2) if asked else (3, 0):
            broker.append(topic, half(number, 1))
            assert consumer.receive(RECEIVE_MS).data() == b"halfhalf"
        if asked:
            # What comes of a discarded one is acknowledged, too.
            broker.append(topic, half(0, 1))
            send(client, topic, 1)
            consumer.acknowledge(consumer.receive(RECEIVE_MS))
            wait_until(lambda: backlog(consumer) == 4, "its last chunk is left")


@pytest.mark.fault(39, 100)
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_chunked_messages_that_find_no_room_in_memory_are_fetched_again(
    broker: EmbeddedBroker,
    client: PulsarClient,
    topic: str,
    kind: ConsumerType,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client._receiver_budget.total = 100_000
    sent = [os.urandom(15_000) for _ in range(20)]
    add_interleaved(broker, topic, sent, 6000, "u")
    with client.subscribe(
        topic, "s", kind, initial_position=EARLIEST, broker_consumer_stats_cache_time_ms=0
    ) as consumer:
        found = [consumer.receive(RECEIVE_MS) for _ in sent]
        assert [message.data() for message in found] == sent
        for message in found:
            consumer.acknowledge(message)
        wait_until(lambda: backlog(consumer) == 0, "chunks are left")
    assert caplog.text.count("found no room in the client's memory") == 1
    assert client._receiver_budget.chunks.held == 0


@pytest.mark.fault(39, 91)
def test_the_chunks_of_all_partitions_share_the_memory_of_the_client(
    client: PulsarClient, chunked: str
) -> None:
    budget = client._receiver_budget
    with client.subscribe(chunked, "s", initial_position=EARLIEST) as consumer:
        for _ in range(6 * 7):
            consumer.acknowledge(consumer.receive(RECEIVE_MS))
            decoders = [one._decoder for one in consumer._consumers]
            assert sum(one._chunks.buffered for one in decoders) <= budget.chunks.held
            assert budget.chunks.held <= 60_000
    assert budget.chunks.held == 0


@pytest.mark.fault(39, 100)
def test_a_chunked_message_that_ends_behind_the_start_of_a_subscription_is_received(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    payload = os.urandom(3000)
    entries = chunks_of(payload, 1000, "u")
    for entry in entries[:2]:
        broker.append(topic, entry)
    with client.subscribe(topic, "s") as consumer:
        for entry in entries[2:]:
            broker.append(topic, entry)
        # A duplicate of the end is no message.
        broker.append(topic, entries[-1])
        send(client, topic, 1)
        assert consumer.receive(RECEIVE_MS).data() == payload
        assert values(consumer, 1) == [0]


@pytest.mark.fault(39, 100)
def test_a_cumulative_acknowledgement_loses_no_message_of_which_it_covers_a_chunk(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    payload = os.urandom(1500)
    first, last = chunks_of(payload, 1000, "u")
    broker.append(topic, first)
    send(client, topic, 1)
    with client.subscribe(
        topic, "s", initial_position=EARLIEST, broker_consumer_stats_cache_time_ms=0
    ) as consumer:
        consumer.acknowledge_cumulative(consumer.receive(RECEIVE_MS))
        wait_until(lambda: backlog(consumer) == 0, "it is not acknowledged")
    broker.append(topic, last)
    with client.subscribe(topic, "s") as consumer:
        assert consumer.receive(RECEIVE_MS).data() == payload


@pytest.mark.fault(39, 100)
@pytest.mark.parametrize("discard", [False, True], ids=["raised", "discarded"])
def test_a_message_without_all_of_its_chunks_is_an_error_or_left_out(
    broker: EmbeddedBroker,
    client: PulsarClient,
    topic: str,
    discard: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = broker.append(topic, chunks_of(os.urandom(1500), 1000, "u")[-1])
    send(client, topic, 1)
    with client.subscribe(
        topic,
        "s",
        initial_position=EARLIEST,
        discard_corrupt_messages=discard,
        broker_consumer_stats_cache_time_ms=0,
    ) as consumer:
        if not discard:
            with pytest.raises(IncompleteMessage) as raised:
                consumer.receive(RECEIVE_MS)
            assert raised.value.topic == topic
            assert raised.value.message_id == f"{place.ledger_id}:{place.entry_id}"
        consumer.acknowledge(consumer.receive(RECEIVE_MS))
        left = 0 if discard else 1
        wait_until(lambda: backlog(consumer) == left, "not only the chunk is left")
    assert ("acknowledged and skipped: a message of 2 chunks" in caplog.text) == discard


def test_chunks_on_a_topic_that_keeps_nothing_are_an_error_if_one_is_missing(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    name = broker.create_topic("non-persistent://public/default/passing")
    with client.subscribe(name, "s") as consumer:
        wait_until(lambda: broker.faults.seen("FLOW"), "it wants nothing")
        broker.append(name, chunks_of(os.urandom(1500), 1000, "u")[-1])
        with pytest.raises(IncompleteMessage, match="non-persistent"):
            consumer.receive(RECEIVE_MS)


@pytest.mark.fault(39, 100)
@pytest.mark.parametrize("listens", [False, True], ids=["receive", "listener"])
def test_chunks_that_cannot_be_fetched_now_are_fetched_later(
    broker: EmbeddedBroker,
    client: PulsarClient,
    topic: str,
    listens: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = ChunkSearch.find
    failures = [OperationTimeout("no answer came"), ConnectionLost("it is gone")]

    def fail(search: ChunkSearch, chunk: LastChunk) -> ReceivedEntry | None:
        if failures:
            raise failures.pop()
        return find(search, chunk)

    monkeypatch.setattr(ChunkSearch, "find", fail)
    payload = os.urandom(1500)
    first, last = chunks_of(payload, 1000, "u")
    broker.append(topic, first)
    came: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    listener = (lambda _, message: came.put(message.data())) if listens else None
    with client.subscribe(
        topic, "s", discard_corrupt_messages=True, message_listener=listener
    ) as consumer:
        broker.append(topic, last)
        send(client, topic, 1)
        if listens:
            found = [came.get(timeout=60) for _ in range(2)]
        else:
            for error in (ConnectionLost, OperationTimeout):
                with pytest.raises(error):
                    consumer.receive(RECEIVE_MS)
            found = [consumer.receive(RECEIVE_MS).data() for _ in range(2)]
    assert found == [payload, b"0"]


@pytest.mark.fault(39)
def test_a_consumer_can_be_closed_while_it_fetches_chunks(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    first, last = chunks_of(os.urandom(1500), 1000, "u")
    broker.append(topic, first)
    consumer = client.subscribe(topic, "s")
    # What the consumer gets itself passes.
    broker.faults.drop("MESSAGE", after=1)
    ended: list[PulsarError] = []

    def receive() -> None:
        try:
            consumer.receive()
        except PulsarError as error:
            ended.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    broker.append(topic, last)
    wait_until(lambda: broker.faults.seen("MESSAGE") >= 2, "nothing is fetched")
    consumer.close()
    finish(thread)
    assert [type(error) for error in ended] == [ClosedError]
    assert client._receiver_budget.chunks.held == 0
    wait_until(
        lambda: list(broker.subscriptions(topic)) == ["s"], "the fetching subscription stays"
    )


def test_a_callback_is_told_of_what_cannot_be_read(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    broker.append(topic, BAD_BATCH)
    send(client, topic, 1)
    found: list[tuple[Result, bool]] = []
    with client.subscribe(topic, "s", initial_position=EARLIEST) as consumer:
        for _ in range(2):
            consumer.receive_async(lambda result, message: found.append((result, bool(message))))
        wait_until(lambda: len(found) == 2, "the callbacks are not called")
    assert found == [(Result.UnknownError, False), (Result.Ok, True)]


def test_the_broker_is_told_all_that_a_consumer_wants(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    policy = ConsumerKeySharedPolicy(KeySharedMode.Sticky, True, [(0, 9), (20, 29)])
    with client.subscribe(
        topic,
        "s",
        ConsumerType.KeyShared,
        schema=StringSchema(),
        consumer_name="me",
        properties={"a": "b"},
        subscription_properties={"c": "d"},
        initial_position=EARLIEST,
        replicate_subscription_state_enabled=True,
        priority_level=3,
        key_shared_policy=policy,
    ) as consumer:
        assert consumer.consumer_name() == "me"
        assert consumer.subscription_name() == "s"
        assert consumer.topic() == topic
    told = broker.faults.log("SUBSCRIBE", topic)[-1].body
    assert (told.subscription, told.subType, told.consumer_name) == (
        "s",
        pb.CommandSubscribe.Key_Shared,
        "me",
    )
    assert [(pair.key, pair.value) for pair in told.metadata] == [("a", "b")]
    assert [(pair.key, pair.value) for pair in told.subscription_properties] == [("c", "d")]
    assert told.initialPosition == pb.CommandSubscribe.Earliest
    assert told.priority_level == 3
    assert told.durable
    assert told.replicate_subscription_state
    assert told.force_topic_creation
    assert told.schema.type == pb.Schema.String
    assert told.keySharedMeta.keySharedMode == pb.STICKY
    assert told.keySharedMeta.allowOutOfOrderDelivery
    assert [(found.start, found.end) for found in told.keySharedMeta.hashRanges] == [
        (0, 9),
        (20, 29),
    ]
    with client.subscribe(
        topic, "n", durable=False, start_message_rollback_seconds=60, is_read_compacted=True
    ) as consumer:
        told = broker.faults.log("SUBSCRIBE", topic)[-1].body
        assert not told.durable
        assert told.read_compacted
        assert told.start_message_rollback_duration_sec == 60
        assert told.consumer_epoch == 0
        broker.append(topic, stored_entry(b"1"))
        message = consumer.receive(RECEIVE_MS)
        consumer.redeliver_unacknowledged_messages()
        consumer.acknowledge(consumer.receive(RECEIVE_MS), properties={"round": 7})
        asked = broker.faults.log("REDELIVER_UNACKNOWLEDGED_MESSAGES")[-1].body
        assert asked.consumer_epoch == 1
        assert message.message_id().topic_name() == topic
    (acked,) = [seen.body for seen in broker.faults.log("ACK") if seen.body.properties]
    assert [(pair.key, pair.value) for pair in acked.properties] == [("round", 7)]


def test_consumers_that_come_and_go_leave_nothing(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    parts = broker.create_topic("parts", partitions=3)
    send(client, parts, 3)

    def cycle() -> None:
        consumer = client.subscribe(
            parts,
            "s",
            ConsumerType.Shared,
            initial_position=EARLIEST,
            unacked_messages_timeout_ms=10_000,
            dead_letter_policy=ConsumerDeadLetterPolicy(3),
        )
        consumer.negative_acknowledge(consumer.receive(RECEIVE_MS))
        consumer.close()
        client.subscribe(parts, "q", message_listener=lambda *_: None).close()

    for _ in range(3):
        cycle()
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(40):
        cycle()
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) <= before
    # No timers are left, either.
    assert not client._context.timers.waiting
    assert client._receiver_budget.share == client._receiver_budget.total
    assert not any(client._made.values())


def test_an_encrypted_message_is_withheld_or_discarded_or_given_as_it_is(
    broker: EmbeddedBroker,
    client: PulsarClient,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    secret = stored_entry(
        b"sealed",
        encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")],
        encryption_param=bytes(12),
    )
    broker.append(topic, secret)
    broker.append(topic, secret)
    send(client, topic, 1)
    actions = ConsumerCryptoFailureAction
    with client.subscribe(topic, "fail", initial_position=EARLIEST) as consumer:
        assert values(consumer, 1) == [0]
        assert backlog(consumer) == 3
    assert len([line for line in caplog.messages if "withheld" in line]) == 1
    with client.subscribe(
        topic, "discard", initial_position=EARLIEST, crypto_failure_action=actions.DISCARD
    ) as consumer:
        assert values(consumer, 1) == [0]
    assert validation_errors(broker) == [pb.CommandAck.DecryptionError] * 2
    with client.subscribe(
        topic, "consume", initial_position=EARLIEST, crypto_failure_action=actions.CONSUME
    ) as consumer:
        message = consumer.receive(RECEIVE_MS)
        assert message.data() == b"sealed"
        context = message.encryption_context()
        assert context is not None
        assert context.is_decryption_failed()


@pytest.mark.fault(40)
def test_what_goes_on_within_an_encrypted_batch_is_given_it_as_it_is(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    key = pb.EncryptionKeys(key="k", value=b"v")
    stored = stored_entry(b"sealed", encryption_keys=[key], num_messages_in_batch=10)
    found = broker.append(topic, stored)
    within = MessageId(-1, found.ledger_id, found.entry_id, 5)
    consume = ConsumerCryptoFailureAction.CONSUME
    with client.create_reader(topic, within, crypto_failure_action=consume) as reader:
        assert reader.read_next(RECEIVE_MS).data() == b"sealed"
    with client.subscribe(
        topic, "s", crypto_failure_action=consume, broker_consumer_stats_cache_time_ms=0
    ) as consumer:
        consumer.seek(within)
        message = consumer.receive(RECEIVE_MS)
        assert message.data() == b"sealed"
        consumer.acknowledge(message)
        wait_until(lambda: backlog(consumer) == 0)


def test_all_chunks_of_what_cannot_be_decrypted_are_discarded(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    for number in range(3):
        chunk = stored_entry(
            b"sealed",
            uuid="u",
            chunk_id=number,
            num_chunks_from_msg=3,
            total_chunk_msg_size=18,
            encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")],
            encryption_param=bytes(12),
        )
        broker.append(topic, chunk)
    send(client, topic, 1)
    with client.subscribe(
        topic,
        "s",
        initial_position=EARLIEST,
        crypto_failure_action=ConsumerCryptoFailureAction.DISCARD,
        broker_consumer_stats_cache_time_ms=0,
    ) as consumer:
        consumer.acknowledge(consumer.receive(RECEIVE_MS))
        wait_until(lambda: backlog(consumer) == 0, "chunks are left")


@pytest.mark.fault(39)
@pytest.mark.parametrize(
    "kind", [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared]
)
def test_a_seek_behind_a_chunked_message_acknowledges_its_chunks_if_nobody_else_may_want_them(
    broker: EmbeddedBroker, client: PulsarClient, topic: str, kind: ConsumerType
) -> None:
    for entry in chunks_of(os.urandom(2500), 1000, "u"):
        broker.append(topic, entry)
    send(client, topic, 1)
    with client.subscribe(
        topic, "s", kind, initial_position=EARLIEST, broker_consumer_stats_cache_time_ms=0
    ) as consumer:
        consumer.seek(consumer.receive(RECEIVE_MS).message_id())
        consumer.acknowledge(consumer.receive(RECEIVE_MS))
        left = 0 if kind == ConsumerType.Exclusive else 3
        wait_until(lambda: backlog(consumer) == left, "chunks are left")


def test_a_batch_is_acknowledged_of_which_compaction_has_left_only_what_was_acknowledged() -> None:
    options: dict[str, Any] = {
        "is_read_compacted": True,
        "batch_index_ack_enabled": True,
        "broker_consumer_stats_cache_time_ms": 0,
    }
    with (
        EmbeddedBroker(batch_index_ack=True) as broker,
        PulsarClient(broker.service_url) as client,
    ):
        topic = broker.create_topic("t")
        with client.subscribe(topic, "s", initial_position=EARLIEST, **options) as consumer:
            send_batch(client, topic, 0, 2, "ab")
            consumer.acknowledge(consumer.receive(RECEIVE_MS))
        send_batch(client, topic, 2, 1, "b")
        broker.compact(topic)
        with client.subscribe(topic, "s", **options) as consumer:
            message = consumer.receive(RECEIVE_MS)
            assert message.data() == b"2"
            consumer.acknowledge(message)
            wait_until(lambda: backlog(consumer) == 0, "the batch is left")


@pytest.mark.parametrize(
    "name, tries",
    [("watched", 1), ("a-name-that-is-too-long-for-some", 2)],
    ids=["with the domain", "without it"],
)
def test_a_pattern_is_watched_with_the_domain_unless_it_is_too_long_then(
    broker: EmbeddedBroker, client: PulsarClient, name: str, tries: int
) -> None:
    pattern = re.compile(f"public/default/{name}.*")
    with client.subscribe(pattern, "s", pattern_auto_discovery_period=3600):
        # Brokers before 3.0.11, 3.3.6 and 4.0.4 compare it with names that have a domain.
        wait_until(
            lambda: broker.faults.seen("WATCH_TOPIC_LIST_SUCCESS"), "the pattern is not watched"
        )
        assert broker.faults.seen("WATCH_TOPIC_LIST") == tries
        topic = broker.create_topic(f"{name}-1")
        wait_until(lambda: "s" in broker.subscriptions(topic), "the topic is not found")
