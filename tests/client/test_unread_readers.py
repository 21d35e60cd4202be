"""Readers that were made, and have read nothing yet: what passes does not end them."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

import pulsar_spark.client.asyncio as asynchronous
from pulsar_spark.client import Message, MessageId, PulsarClient
from pulsar_spark.errors import AuthenticationError, AuthorizationError, BrokerError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.topics import add_plain, chunks_of, stored_entry
from tests.support.waiting import finish, wait_until

CODES = sorted(pb.ServerError.keys())
WAIT_MS = 20_000
SECONDS = WAIT_MS / 1000

Next = Callable[[], bytes]


@contextmanager
def plain(url: str, topic: str, **options: Any) -> Iterator[Next]:
    with PulsarClient(url, **options) as client:
        reader = client.create_reader(topic, MessageId.earliest)
        yield lambda: reader.read_next(WAIT_MS).data()


@contextmanager
def listener(url: str, topic: str, **options: Any) -> Iterator[Next]:
    came: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def tell(reader: object, message: Message) -> None:
        came.put(message.data())

    with PulsarClient(url, **options) as client:
        client.create_reader(topic, MessageId.earliest, reader_listener=tell)
        yield lambda: came.get(timeout=SECONDS)


@contextmanager
def awaited(url: str, topic: str, **options: Any) -> Iterator[Next]:
    with closing(asyncio.new_event_loop()) as loop:
        client = asynchronous.Client(url, **options)
        reader = loop.run_until_complete(client.create_reader(topic, MessageId.earliest))

        def read() -> bytes:
            return loop.run_until_complete(asyncio.wait_for(reader.read_next(), SECONDS)).data()

        try:
            yield read
        finally:
            loop.run_until_complete(client.close())


KINDS = (plain, listener, awaited)


@pytest.mark.fault(207)
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("has_read", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_goes_on_after_each_refusal(
    broker: EmbeddedBroker, kind: Callable[..., Any], has_read: bool, code: str
) -> None:
    topic = broker.create_topic("t")
    add_plain(broker, topic, b"1")
    # The first one is that of `create_reader`, which tells the user what refuses it.
    refused = broker.faults.error("SUBSCRIBE", code, times=2, after=1 + has_read)
    with kind(broker.service_url, topic) as following:
        if has_read:
            assert following() == b"1"
            broker.unload(topic)
            add_plain(broker, topic, b"2")
        assert (following(), refused.hits) == (b"2" if has_read else b"1", 2)


@pytest.mark.fault(207)
@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("start", [MessageId.earliest, MessageId.latest, MessageId(-1, 3, 0, -1)])
def test_what_refuses_a_new_reader_is_told_at_once(
    broker: EmbeddedBroker, client: PulsarClient, start: MessageId, partitions: int
) -> None:
    topic = broker.create_topic("t", partitions)
    with (
        broker.faults.error("SUBSCRIBE", "AuthorizationError", times=None),
        pytest.raises(AuthorizationError),
    ):
        client.create_reader(topic, start)
    assert not any(client._made.values())


@pytest.mark.fault(207)
@pytest.mark.parametrize("partitions", [0, 2])
def test_who_is_not_let_in_any_more_is_told_by_each_read(
    broker: EmbeddedBroker, client: PulsarClient, partitions: int
) -> None:
    reader = client.create_reader(broker.create_topic("t", partitions), MessageId.earliest)
    broker.faults.error("CONNECT", "AuthenticationError", times=None)
    broker.faults.disconnect()
    for _ in range(2):
        with pytest.raises(AuthenticationError):
            reader.read_next(WAIT_MS)
        assert reader.has_message_available()


@pytest.mark.fault(207)
@pytest.mark.parametrize("partitions", [0, 2])
def test_a_reader_goes_on_where_it_was_sought_to(
    broker: EmbeddedBroker, client: PulsarClient, partitions: int
) -> None:
    topic = broker.create_topic("t", partitions)
    client.create_producer(topic).send(b"1")
    reader = client.create_reader(topic, MessageId.latest)
    reader.seek(MessageId.earliest)
    with broker.faults.error("SUBSCRIBE", "AuthorizationError", times=2) as refused:
        assert reader.read_next(WAIT_MS).data() == b"1"
    assert refused.hits == 2


@pytest.mark.fault(207)
def test_a_new_partition_that_refuses_at_first_does_not_end_the_reader(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    topic = broker.create_topic("t", 1)
    reader = client.create_reader(
        topic, MessageId.earliest, auto_update_partitions_interval_seconds=0.05
    )
    refused = broker.faults.error(
        "SUBSCRIBE", "AuthorizationError", times=2, topic=f"{topic}-partition-1"
    )
    broker.add_partitions(topic, 2)
    broker.append(f"{topic}-partition-1", stored_entry(b"new"))
    assert (reader.read_next(WAIT_MS).data(), refused.hits) == (b"new", 2)


@pytest.mark.fault(1, 207)
@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_an_outage_longer_than_the_operation_timeout_ends_no_reader(
    broker: EmbeddedBroker, kind: Callable[..., Any], partitions: int
) -> None:
    topic = broker.create_topic("t", partitions)
    with PulsarClient(broker.service_url) as client:
        client.create_producer(topic).send(b"1")
    with kind(broker.service_url, topic, operation_timeout_seconds=0.2) as following:
        broker.faults.refuse()
        broker.faults.disconnect()
        back = threading.Timer(1.0, broker.faults.accept)
        back.start()
        try:
            assert following() == b"1"
        finally:
            finish(back)


@pytest.mark.fault(206)
@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_goes_on_when_its_topic_is_made_again_before_it_has_read(
    broker: EmbeddedBroker, kind: Callable[..., Any]
) -> None:
    topic = broker.create_topic("t")
    with kind(broker.service_url, topic) as following:
        broker.delete_topic(topic)
        asked = broker.faults.seen("LOOKUP")

        def make_again() -> None:
            wait_until(lambda: broker.faults.seen("LOOKUP") > asked)
            broker.create_topic(topic)
            add_plain(broker, topic, b"new")

        again = threading.Thread(target=make_again)
        again.start()
        assert following() == b"new"
        finish(again)


@pytest.mark.fault(206)
@pytest.mark.parametrize("kind", KINDS)
def test_a_partition_that_is_gone_for_good_ends_no_reader_of_the_others(
    broker: EmbeddedBroker, kind: Callable[..., Any]
) -> None:
    topic = broker.create_topic("t", 3)
    with kind(broker.service_url, topic) as following:
        broker.delete_topic(topic)
        broker.create_topic(topic, 2)
        asked = broker.faults.seen("LOOKUP", f"{topic}-partition-2")

        def write() -> None:
            wait_until(lambda: broker.faults.seen("LOOKUP", f"{topic}-partition-2") > asked)
            for number in range(2):
                add_plain(broker, f"{topic}-partition-{number}", b"%d" % number)

        writing = threading.Thread(target=write)
        writing.start()
        assert {following() for _ in range(2)} == {b"0", b"1"}
        finish(writing)


# --- what is fetched while it reads ---------------------------------------------------------------


@pytest.mark.fault(207)
@pytest.mark.parametrize("code", ["AuthorizationError", "TopicNotFound", "ServiceNotReady"])
def test_chunks_that_cannot_be_fetched_now_are_fetched_by_another_read(
    broker: EmbeddedBroker, client: PulsarClient, code: str
) -> None:
    topic = broker.create_topic("t")
    at = [broker.append(topic, each) for each in chunks_of(b"abcdef", 10, "u")]
    add_plain(broker, topic, b"behind")
    # Its first chunk is before the start, so another subscription fetches it.
    reader = client.create_reader(topic, MessageId(-1, at[0].ledger_id, at[0].entry_id, -1))
    found: list[bytes] = []
    told: list[tuple[int, int]] = []
    with broker.faults.error("SUBSCRIBE", code, times=2, after=1) as refused:
        while len(found) < 2:
            try:
                found.append(reader.read_next(WAIT_MS).data())
            except BrokerError as error:
                told.append((error.code, len(found)))
    assert (found, refused.hits) == ([b"abcdef", b"behind"], 2)
    assert set(told) <= {(pb.ServerError.Value(code), 0)}


@pytest.mark.fault(207)
def test_a_listener_gets_a_message_whose_chunks_could_not_be_fetched_at_first(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    topic = broker.create_topic("t")
    at = [broker.append(topic, each) for each in chunks_of(b"abcdef", 10, "u")]
    came: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    refused = broker.faults.error("SUBSCRIBE", "AuthorizationError", times=2, after=2)
    client.create_reader(
        topic,
        MessageId(-1, at[0].ledger_id, at[0].entry_id, -1),
        reader_listener=lambda reader, message: came.put(message.data()),
    )
    assert (came.get(timeout=SECONDS), refused.hits) == (b"abcdef", 2)


@pytest.mark.fault(207)
def test_asking_for_more_raises_what_keeps_its_chunks_away(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    topic = broker.create_topic("t")
    at = [broker.append(topic, each) for each in chunks_of(b"abcdef", 10, "u")]
    reader = client.create_reader(topic, MessageId(-1, at[0].ledger_id, at[0].entry_id, -1))

    with (
        # After those of its own, and of what asks for the topic's end.
        broker.faults.error("SUBSCRIBE", "AuthorizationError", times=None, after=2),
        pytest.raises(AuthorizationError),
    ):
        reader.has_message_available()
    assert reader.has_message_available()
    assert reader.read_next(WAIT_MS).data() == b"abcdef"
