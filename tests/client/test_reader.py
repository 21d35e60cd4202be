"""Readers of `PulsarClient`: positions, several partitions read as one, and closing."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from pulsar_spark.client import Message, MessageId, PulsarClient, PulsarReader
from pulsar_spark.client.reader import PartitionSource
from pulsar_spark.engine.consumers import reader as engine_reader
from pulsar_spark.engine.consumers.delivery import Delivery
from pulsar_spark.errors import (
    ClosedError,
    CorruptMessage,
    IncompleteMessage,
    OperationTimeout,
    OptionError,
)
from pulsar_spark.testing import EmbeddedBroker
from pulsar_spark.testing.rules import Seen
from tests.client.unreadable import UNREADABLE
from tests.engine.topics import add_batch, add_plain, stored_entry
from tests.support.waiting import finish, is_in, wait_until


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as made:
        yield made


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[PulsarClient]:
    with PulsarClient(broker.service_url) as made:
        yield made


@pytest.fixture
def topic(request: pytest.FixtureRequest, broker: EmbeddedBroker) -> str:
    return broker.create_topic(f"t-{abs(hash(request.node.nodeid))}")


def write(client: PulsarClient, topic: str, values: list[bytes]) -> list[MessageId]:
    with client.create_producer(topic) as producer:
        return [producer.send(value) for value in values]


def rest(reader: PulsarReader) -> list[bytes]:
    found: list[bytes] = []
    while reader.has_message_available():
        found.append(reader.read_next(60_000).data())
    return found


def chunk(number: int, payload: bytes) -> bytes:
    whole: dict[str, Any] = {"uuid": "u", "num_chunks_from_msg": 2, "total_chunk_msg_size": 6}
    return stored_entry(payload, partition_key="k", chunk_id=number, **whole)


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_part_of_a_message_is_not_available_until_it_is_whole(
    broker: EmbeddedBroker, client: PulsarClient, partitions: int
) -> None:
    topic = broker.create_topic(f"parts-{partitions}", partitions)
    own = topic if not partitions else f"{topic}-partition-1"
    add_plain(broker, own, b"before")
    broker.append(own, chunk(0, b"one"))
    with client.create_reader(topic, MessageId.earliest) as reader:
        assert rest(reader) == [b"before"]
        assert not reader.has_message_available()
        add_plain(broker, own, b"between")
        assert rest(reader) == [b"between"]
        broker.append(own, chunk(1, b"two"))
        assert reader.has_message_available()
        assert reader.has_message_available()
        assert rest(reader) == [b"onetwo"]


def test_a_table_view_does_not_wait_for_the_rest_of_a_message(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    broker.append(topic, stored_entry(b"1", partition_key="a"))
    broker.append(topic, chunk(0, b"one"))
    with client.create_table_view(topic) as view:
        assert view.get("a") == b"1"
        broker.append(topic, chunk(1, b"two"))
        wait_until(lambda: view.get("k") == b"onetwo")


@pytest.mark.parametrize("partitions", [0, 3])
def test_a_table_view_of_a_busy_topic_has_what_was_there_and_waits_for_no_more(
    broker: EmbeddedBroker, client: PulsarClient, partitions: int
) -> None:
    topic = broker.create_topic(f"busy-{partitions}", partitions)
    names = client.get_topic_partitions(topic)
    stored = [stored_entry(b"v", partition_key=f"{name}-{at}") for name in names for at in range(5)]
    for at, entry in enumerate(stored):
        broker.append(names[at // 5], entry)

    def write_more(seen: Seen) -> None:
        broker.append(names[0], stored_entry(b"v", partition_key=f"later-{seen.at}"))

    asking = broker.faults.call("GET_LAST_MESSAGE_ID", write_more, topic=topic, times=100)
    reading = broker.faults.call("MESSAGE", write_more, topic=names[0], times=1000)
    # It is read last, when the first one is ahead of its end.
    late = broker.faults.delay("SUBSCRIBE", 0.3, topic=names[-1], times=None)
    with asking, reading, late, client.create_table_view(topic) as view:
        # The writer goes on.
        assert broker.faults.seen("GET_LAST_MESSAGE_ID", topic) < 100
        assert all(view.get(f"{name}-{at}") == b"v" for name in names for at in range(5))


@pytest.mark.parametrize("silence", ["MESSAGE", "SUBSCRIBE"])
def test_what_is_asked_of_a_silent_broker_ends_at_the_operation_timeout(
    broker: EmbeddedBroker, topic: str, silence: str
) -> None:
    add_plain(broker, topic, b"x")
    with PulsarClient(broker.service_url, operation_timeout_seconds=1) as client:
        reader = client.create_reader(topic, MessageId.earliest)
        with broker.faults.drop(silence, times=None):
            with pytest.raises(OperationTimeout):
                client.create_table_view(topic)
            if silence == "MESSAGE":
                reader.seek(MessageId.earliest)
                with pytest.raises(OperationTimeout):
                    reader.has_message_available()
        reader.seek(MessageId.earliest)
        assert rest(reader) == [b"x"]


def test_an_error_is_available_and_raised_when_it_is_read(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    broker.append(topic, UNREADABLE["codec"])
    with client.create_reader(topic, MessageId.earliest) as reader:
        assert reader.has_message_available()
        with pytest.raises(CorruptMessage):
            reader.read_next(60_000)


def test_reading_leaves_nothing_at_the_broker(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    write(client, topic, [b"1", b"2"])
    with client.create_reader(topic, MessageId.earliest) as reader:
        assert rest(reader) == [b"1", b"2"]
        assert reader.is_connected()
    assert not reader.is_connected()
    wait_until(lambda: not broker.subscriptions(topic), "the subscription's end")


def test_latest_with_its_message_begins_at_the_last_one(client: PulsarClient, topic: str) -> None:
    write(client, topic, [b"1", b"2"])
    latest = MessageId.latest
    with client.create_reader(topic, latest, start_message_id_inclusive=True) as reader:
        assert rest(reader) == [b"2"]


def test_an_empty_topic_has_nothing_and_then_has(client: PulsarClient, topic: str) -> None:
    readers = [
        client.create_reader(topic, start) for start in (MessageId.earliest, MessageId.latest)
    ]
    for reader in readers:
        assert not reader.has_message_available()
    write(client, topic, [b"1"])
    for reader in readers:
        assert rest(reader) == [b"1"]


def test_seek_to_a_time_finds_what_was_published_from_then_on(
    client: PulsarClient, topic: str
) -> None:
    write(client, topic, [b"1", b"2"])
    time.sleep(0.02)
    between = int(time.time() * 1000)
    time.sleep(0.02)
    write(client, topic, [b"3"])
    with client.create_reader(topic, MessageId.earliest) as reader:
        reader.seek(between)
        assert rest(reader) == [b"3"]
        reader.seek(int(time.time() * 1000) + 60_000)
        assert rest(reader) == []
        reader.seek(0)
        assert rest(reader) == [b"1", b"2", b"3"]
        with pytest.raises(OptionError):
            reader.seek("now")  # type: ignore[arg-type]


def test_partitions_are_read_as_one_topic(broker: EmbeddedBroker, client: PulsarClient) -> None:
    topic = broker.create_topic("partitioned-read", partitions=4)
    values = [b"%d" % number for number in range(200)]
    write(client, topic, values)
    with client.create_reader(topic, MessageId.earliest) as reader:
        found = [reader.read_next(60_000) for _ in values]
        assert not reader.has_message_available()
        assert sorted(message.data() for message in found) == sorted(values)
        for partition in range(4):
            own = [m for m in found if m.message_id().partition() == partition]
            assert [m.message_id() for m in own] == sorted(m.message_id() for m in own)
        reader.seek(MessageId.earliest)
        assert len([reader.read_next(60_000) for _ in values]) == 200
        with pytest.raises(OptionError, match="several"):
            reader.seek(found[0].message_id())
        with pytest.raises(OperationTimeout):
            reader.read_next(50)


@pytest.mark.fault(32)
@pytest.mark.parametrize("partitions", [0, 3])
def test_what_cannot_be_read_is_an_error_that_stays(
    broker: EmbeddedBroker, client: PulsarClient, partitions: int
) -> None:
    topic = broker.create_topic(f"corrupt-{partitions}", partitions)
    write(client, topic, [b"1", b"2", b"3"])
    with broker.faults.corrupt("MESSAGE"):
        reader = client.create_reader(topic, MessageId.earliest)
        for _ in range(2):
            with pytest.raises(CorruptMessage):
                any(reader.read_next(60_000).data() == b"" for _ in range(4))
    reader.close()


def test_close_ends_a_read_that_waits(client: PulsarClient, topic: str) -> None:
    reader = client.create_reader(topic, MessageId.earliest)
    threading.Timer(0.1, reader.close).start()
    began = time.monotonic()
    with pytest.raises(ClosedError):
        reader.read_next()
    assert time.monotonic() - began < 30
    reader.close()
    with pytest.raises(ClosedError):
        reader.has_message_available()
    with pytest.raises(ClosedError):
        reader.seek(MessageId.earliest)


def test_a_listener_that_fails_gets_the_next_message(
    client: PulsarClient, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[bytes] = []
    done = threading.Event()

    def listen(reader: PulsarReader, message: Message) -> None:
        found.append(message.data())
        if len(found) == 2:
            done.set()
        raise RuntimeError("its own fault")

    reader = client.create_reader(topic, MessageId.earliest, reader_listener=listen)
    write(client, topic, [b"1", b"2"])
    assert done.wait(60)
    reader.close()
    assert found == [b"1", b"2"]
    assert "listener" in caplog.text


def test_a_reader_with_a_listener_is_not_read_as_well(client: PulsarClient, topic: str) -> None:
    reader = client.create_reader(topic, MessageId.earliest, reader_listener=lambda *_: None)
    with pytest.raises(OptionError, match="a reader_listener cannot call read_next"):
        reader.read_next()


def test_a_listener_may_close_its_reader(client: PulsarClient, topic: str) -> None:
    write(client, topic, [b"1", b"2"])
    done = threading.Event()

    def listen(reader: PulsarReader, message: Message) -> None:
        reader.close()
        done.set()

    client.create_reader(topic, MessageId.earliest, reader_listener=listen)
    assert done.wait(60)


@pytest.mark.fault(62)
def test_a_position_inside_a_batch_is_exact(client: PulsarClient, topic: str) -> None:
    told: list[MessageId] = []
    with client.create_producer(topic, batching_enabled=True) as producer:
        for number in range(10):
            producer.send_async(b"%d" % number, lambda result, found: told.append(found))
        producer.flush()
    for index in (0, 4, 9):
        with client.create_reader(topic, told[index]) as reader:
            assert rest(reader) == [b"%d" % number for number in range(index + 1, 10)]


@pytest.mark.fault(91)
def test_the_partitions_of_all_readers_share_the_memory_of_the_client(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    size, limit = 50_000, 1_000_000
    client._receiver_budget.total = limit
    topics = [broker.create_topic(f"shared-{number}", partitions=4) for number in range(2)]
    for topic in topics:
        write(client, topic, [bytes(size)] * 100)
    readers = [client.create_reader(topic, MessageId.earliest) for topic in topics]
    sources = [one for reader in readers for one in reader._sources.values()]

    def held() -> int:
        queues = [one._reader._consumer.queue for one in sources]
        return sum(queue.queued_bytes for queue in queues if queue is not None)

    found: list[Message] = []
    while len(found) < 200:
        for reader in readers:
            if len(found) < 200 and reader.has_message_available():
                found.append(reader.read_next(60_000))
                # A message larger than its share passes.
                assert held() <= limit + 8 * (size + 2000)
    for reader in readers:
        reader.close()
    assert client._receiver_budget.share == limit


@pytest.mark.fault(39, 91)
def test_the_chunks_of_all_partitions_share_the_memory_of_the_client(
    client: PulsarClient, chunked: str
) -> None:
    budget = client._receiver_budget
    with client.create_reader(chunked, MessageId.earliest) as reader:
        for _ in range(6 * 7):
            reader.read_next(60_000)
            # One message whose chunks are fetched again has room in any case.
            assert budget.chunks.held <= 60_000 + 120_000 // 8 + 15_500
    assert budget.chunks.held == 0


def test_whatever_ends_the_reading_of_a_partition_is_told(
    broker: EmbeddedBroker, client: PulsarClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: PartitionSource) -> Delivery | None:
        raise ZeroDivisionError("a defect")

    topic = broker.create_topic("defect", partitions=2)
    monkeypatch.setattr(PartitionSource, "take", fail)
    with client.create_reader(topic, MessageId.earliest) as reader:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                reader.read_next(60_000)


@pytest.mark.fault(36)
def test_a_batch_that_does_not_add_up_is_an_error_that_stays(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    bad = broker.append(topic, stored_entry(b"\0\0\0\x09", num_messages_in_batch=3), messages=3)
    add_batch(broker, topic, [b"behind"])
    with client.create_reader(topic, MessageId.earliest) as reader:
        for _ in range(2):
            with pytest.raises(CorruptMessage) as caught:
                reader.read_next(60_000)
            assert caught.value.topic == topic
            assert caught.value.message_id == f"{bad.ledger_id}:{bad.entry_id}"


@pytest.mark.fault(68)
def test_closing_many_partitions_waits_once_for_a_silent_broker() -> None:
    with EmbeddedBroker() as broker, PulsarClient(broker.service_url) as own:
        topic = broker.create_topic("many", partitions=30)
        reader = own.create_reader(topic, MessageId.earliest)
        with pytest.raises(OperationTimeout):
            reader.read_next(50)
        # `create_reader` has attached to each before.
        wait_until(lambda: broker.faults.seen("SUBSCRIBE") == 60)
        with broker.faults.drop("CLOSE_CONSUMER", times=None) as silent:
            started = time.monotonic()
            reader.close()
            # Not one second for each.
            assert time.monotonic() - started < 15
            wait_until(lambda: silent.hits == 30)


@pytest.mark.fault(39, 100)
def test_a_message_that_is_not_whole_is_an_error_that_seek_leads_past(
    broker: EmbeddedBroker, client: PulsarClient, topic: str
) -> None:
    chunk = stored_entry(
        b"end", uuid="u", chunk_id=1, num_chunks_from_msg=2, total_chunk_msg_size=9
    )
    bad = broker.append(topic, chunk)
    add_batch(broker, topic, [b"behind"])
    with client.create_reader(topic, MessageId.earliest) as reader:
        for _ in range(2):
            with pytest.raises(IncompleteMessage) as caught:
                reader.read_next(60_000)
            assert caught.value.message_id == f"{bad.ledger_id}:{bad.entry_id}"
        reader.seek(MessageId(-1, bad.ledger_id, bad.entry_id, -1))
        assert reader.read_next(60_000).data() == b"behind"


@pytest.mark.fault(68)
@pytest.mark.parametrize("partitions", [0, 3])
def test_closing_while_it_seeks_leaves_nothing_behind(
    broker: EmbeddedBroker,
    client: PulsarClient,
    monkeypatch: pytest.MonkeyPatch,
    partitions: int,
) -> None:
    topic = broker.create_topic(f"seeking-{partitions}", partitions)
    reader = client.create_reader(topic, MessageId.earliest)
    again = PulsarReader._open

    def closing(one: PulsarReader, *arguments: Any) -> None:
        closer = threading.Thread(target=one.close)
        closer.start()
        closer.join()
        again(one, *arguments)

    monkeypatch.setattr(PulsarReader, "_open", closing)
    share = client._receiver_budget.share
    with pytest.raises(ClosedError):
        reader.seek(MessageId.earliest)
    names = client.get_topic_partitions(topic)
    wait_until(lambda: not any(broker.subscriptions(name) for name in names))
    assert client._receiver_budget.share >= share


def has(found: list[bytes], count: int) -> bool:
    return len(found) == count


def in_background(reader: PulsarReader, found: list[bytes]) -> threading.Thread:
    """Read until the reader is closed."""

    def read() -> None:
        try:
            while True:
                found.append(reader.read_next().data())
        except ClosedError:
            return

    thread = threading.Thread(target=read)
    thread.start()
    return thread


@pytest.mark.fault(203)
def test_a_reader_of_many_partitions_has_no_thread_and_looks_only_where_something_came(
    broker: EmbeddedBroker, client: PulsarClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is repaired in the meantime.
    monkeypatch.setattr(engine_reader, "_FIRST_STALL", 600.0)
    topic = broker.create_topic("wide", partitions=100)
    parts = client.get_topic_partitions(topic)
    with client.create_producer(topic) as producer:
        for number in range(300):
            producer.send(b"%d" % number)
    # Connections and timers have theirs.
    with client.create_reader(parts[0], MessageId.earliest) as one:
        one.read_next(60_000)
        before = threading.active_count()
        looks: list[str] = []
        look = PartitionSource.take

        def counting(source: PartitionSource) -> Delivery | None:
            looks.append(source.topic)
            return look(source)

        monkeypatch.setattr(PartitionSource, "take", counting)
        reader = client.create_reader(topic, MessageId.earliest)
        found = [reader.read_next(60_000).data() for _ in range(300)]
        assert len(set(found)) == 300
        thread = in_background(reader, found)
        wait_until(lambda: is_in(thread, "wait"))
        assert threading.active_count() - 1 <= before
        with client.create_producer(parts[7]) as producer:
            looks.clear()
            for number in range(10):
                producer.send(b"more %d" % number)
                wait_until(partial(has, found, 301 + number))
        # Once for each message, and until nothing is left.
        assert set(looks) == {parts[7]}
        assert len(looks) <= 4 * 10
        reader.close()
        finish(thread)


@pytest.mark.fault(203)
def test_a_partition_whose_broker_does_not_answer_keeps_no_other_waiting(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    topic = broker.create_topic("silent", partitions=3)
    write(client, topic, [b"%d" % number for number in range(30)])
    with client.create_reader(topic, MessageId.earliest) as reader:
        broker.faults.drop("SUBSCRIBE", topic="silent-partition-1", times=1)
        found = [reader.read_next(60_000) for _ in range(20)]
        assert {message.message_id().partition() for message in found} == {0, 2}


@pytest.mark.fault(203)
def test_a_reader_of_several_partitions_goes_on_after_each_loss_of_the_connection(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    topic = broker.create_topic("lost", partitions=3)
    with client.create_reader(topic, MessageId.earliest) as reader:
        found: list[bytes] = []
        thread = in_background(reader, found)
        for number in range(4):
            write(client, topic, [b"%d-%d" % (number, each) for each in range(6)])
            wait_until(partial(has, found, 6 * (number + 1)))
            broker.faults.disconnect()
        assert len(set(found)) == 24
        reader.close()
        finish(thread)


@pytest.mark.fault(203)
def test_what_a_waiting_reader_lost_is_repaired_by_another_consumer(
    broker: EmbeddedBroker, client: PulsarClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_reader, "_FIRST_STALL", 0.2)
    topic = broker.create_topic("forgotten", partitions=3)
    broker.faults.drop("FLOW", times=3)
    write(client, topic, [b"%d" % number for number in range(6)])
    with client.create_reader(topic, MessageId.earliest) as reader:
        assert len({reader.read_next(60_000).data() for _ in range(6)}) == 6


@pytest.mark.fault(200)
@pytest.mark.parametrize("partitions", [0, 2])
def test_a_listener_goes_on_behind_each_kind_of_entry_that_cannot_be_read(
    broker: EmbeddedBroker,
    client: PulsarClient,
    partitions: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = broker.create_topic(f"unreadable-{partitions}", partitions)
    parts = client.get_topic_partitions(topic)
    for number, bad in enumerate(UNREADABLE.values()):
        for part in parts:
            broker.append(part, bad)
            add_plain(broker, part, b"%d" % number)
    broker.faults.corrupt("MESSAGE", times=1, topic=parts[0])
    came: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    reader = client.create_reader(
        topic, MessageId.earliest, reader_listener=lambda _, message: came.put(message.data())
    )
    # Only the first delivery of one entry is damaged.
    readable = [b"%d" % number for number in range(len(UNREADABLE))]
    whole = (len(parts) - 1) * [b"damaged"]
    found = [came.get(timeout=60) for _ in [*readable * len(parts), *whole]]
    assert sorted(found) == sorted([*readable * len(parts), *whole])
    told = len(UNREADABLE) * len(parts) - len(whole)
    assert caplog.text.count("cannot be given to the listener") == told
    reader.close()


@pytest.mark.fault(200)
def test_a_defect_ends_a_listener_with_words_in_the_log(
    client: PulsarClient,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(source: PartitionSource) -> Delivery | None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(PartitionSource, "take", fail)
    reader = client.create_reader(topic, MessageId.earliest, reader_listener=lambda *_: None)
    wait_until(lambda: "ZeroDivisionError: a defect" in caplog.text)
    reader.close()
