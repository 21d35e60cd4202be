"""Clients of `PulsarClient` that are dropped without `close`."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_spark.client import (
    ConsumerDeadLetterPolicy,
    ConsumerType,
    InitialPosition,
    MessageId,
    PulsarClient,
    PulsarConsumer,
    Result,
)
from pulsar_spark.errors import ClosedError, ConsumerBusy, CorruptMessage, OperationTimeout
from pulsar_spark.testing import EmbeddedBroker
from tests.client.unreadable import BAD_BATCH
from tests.support.waiting import wait_until

EARLIEST = InitialPosition.Earliest
RECEIVE_MS = 60_000


class _Events:
    def __init__(self) -> None:
        self.active = threading.Event()

    def became_active(self, consumer: PulsarConsumer, partition_id: int) -> None:
        self.active.set()

    def became_inactive(self, consumer: PulsarConsumer, partition_id: int) -> None:
        pass


def produce(client: PulsarClient) -> None:
    stored = threading.Event()
    producer = client.create_producer("wide", batching_enabled=True)
    producer.send_async(b"x", lambda result, message_id: stored.set())
    assert stored.wait(60)


def produce_without_an_end(client: PulsarClient) -> None:
    producer = client.create_producer(
        "wide", batching_enabled=True, batching_max_publish_delay_ms=600_000
    )
    producer.send_async(b"x", lambda result, message_id: None)


def consume(client: PulsarClient) -> None:
    consumer = client.subscribe("wide", "s", initial_position=EARLIEST)
    consumer.acknowledge(consumer.receive(RECEIVE_MS))


def listen(client: PulsarClient) -> None:
    came = threading.Event()
    client.subscribe("wide", "s", initial_position=EARLIEST, message_listener=lambda *_: came.set())
    assert came.wait(60)


def follow_a_pattern(client: PulsarClient) -> None:
    consumer = client.subscribe(
        re.compile("persistent://public/default/wi.*"),
        "s",
        ConsumerType.Shared,
        initial_position=EARLIEST,
        pattern_auto_discovery_period=1,
        unacked_messages_timeout_ms=10_000,
        negative_ack_redelivery_delay_ms=10,
        dead_letter_policy=ConsumerDeadLetterPolicy(1, "dead"),
    )
    for _ in range(12):
        consumer.negative_acknowledge(consumer.receive(RECEIVE_MS))


def be_the_active_one(client: PulsarClient) -> None:
    events = _Events()
    client.subscribe("wide", "s", ConsumerType.Failover, consumer_event_listener=events)
    assert events.active.wait(60)


def read(client: PulsarClient) -> None:
    reader = client.create_reader("wide", MessageId.earliest)
    for _ in range(6):
        reader.read_next(RECEIVE_MS)
    with pytest.raises(OperationTimeout):
        reader.read_next(10)


def read_by_a_listener(client: PulsarClient) -> None:
    came = threading.Event()
    client.create_reader("wide", MessageId.earliest, reader_listener=lambda *_: came.set())
    assert came.wait(60)


def view(client: PulsarClient) -> None:
    client.create_table_view("wide").for_each_and_listen(lambda *_: None)


def fail_to_read(client: PulsarClient) -> None:
    reader = client.create_reader("bad", MessageId.earliest)
    consumer = client.subscribe("bad", "s", initial_position=EARLIEST)
    for _ in range(2):
        with pytest.raises(CorruptMessage):
            reader.read_next(RECEIVE_MS)
    with pytest.raises(CorruptMessage):
        consumer.receive(RECEIVE_MS)


def be_refused(client: PulsarClient) -> None:
    consumer = client.subscribe("wide", "s")
    with pytest.raises(ConsumerBusy):
        client.subscribe("wide", "s")
    assert consumer.is_connected()


def begin_a_transaction(client: PulsarClient) -> None:
    client.create_producer("wide").send(b"x", txn=client.new_transaction())


def use_and_close(client: PulsarClient) -> None:
    client.create_producer("t")
    client.close()


def used(broker: EmbeddedBroker, use: Callable[[PulsarClient], object]) -> weakref.ref[Any]:
    client = PulsarClient(broker.service_url)
    use(client)
    return weakref.ref(client)


@pytest.fixture
def topics(broker: EmbeddedBroker) -> None:
    broker.create_topic("wide", partitions=3)
    bad = broker.create_topic("bad", partitions=2)
    broker.append(f"{bad}-partition-0", BAD_BATCH)
    with PulsarClient(broker.service_url) as client:
        producer = client.create_producer("wide")
        for number in range(6):
            producer.send(b"x", partition_key=f"k{number}")


def is_gone(client: weakref.ref[Any], broker: EmbeddedBroker, threads: int) -> bool:
    gc.collect()
    return client() is None and not broker.clients and threading.active_count() <= threads


def drop(broker: EmbeddedBroker, use: Callable[[PulsarClient], object]) -> None:
    """Use a client, drop it, and wait until nothing of it is left."""
    threads = threading.active_count()
    client = used(broker, use)
    wait_until(lambda: is_gone(client, broker, threads), "it stays")


@pytest.mark.fault(204)
@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize(
    "use",
    [
        produce,
        produce_without_an_end,
        consume,
        listen,
        follow_a_pattern,
        be_the_active_one,
        read,
        read_by_a_listener,
        view,
        fail_to_read,
        be_refused,
        begin_a_transaction,
    ],
)
def test_a_client_that_is_dropped_with_all_that_it_made_is_closed_with_a_warning(
    broker: EmbeddedBroker, use: Callable[[PulsarClient], object]
) -> None:
    with pytest.warns(ResourceWarning, match=f"{broker.service_url} was dropped") as warned:
        drop(broker, use)
    assert len(warned) == 1


@pytest.mark.fault(204)
def test_whoever_waits_for_a_message_is_told_when_the_client_is_dropped(
    broker: EmbeddedBroker,
) -> None:
    told: list[Result] = []

    def ask(client: PulsarClient) -> None:
        client.subscribe("t", "s").receive_async(lambda result, _: told.append(result))

    with pytest.warns(ResourceWarning):
        drop(broker, ask)
    assert told == [Result.AlreadyClosed]


@pytest.mark.fault(204)
@pytest.mark.usefixtures("topics")
def test_whatever_a_client_has_made_keeps_it(broker: EmbeddedBroker) -> None:
    makers: dict[str, Callable[[PulsarClient], Any]] = {
        "producer": lambda client: client.create_producer("wide"),
        "consumer": lambda client: client.subscribe("wide", "s"),
        "reader": lambda client: client.create_reader("wide", MessageId.earliest),
        "view": lambda client: client.create_table_view("wide"),
        "transaction": lambda client: client.new_transaction(),
    }
    for name, make in makers.items():
        client = PulsarClient(broker.service_url)
        found, made = weakref.ref(client), make(client)
        del client
        gc.collect()
        kept = found()
        assert kept is not None, name
        assert not kept._context.closed
        kept.close()
        del kept, made


@pytest.mark.fault(204)
def test_a_client_that_is_closed_or_was_not_used_is_dropped_without_a_word(
    broker: EmbeddedBroker,
) -> None:
    threads = threading.active_count()
    used(broker, lambda client: None)
    used(broker, use_and_close)
    with pytest.raises(ValueError, match="not a Pulsar service URL"):
        PulsarClient("nonsense")
    gc.collect()
    assert threading.active_count() <= threads


@pytest.mark.fault(204)
def test_dropping_a_client_takes_no_lock(broker: EmbeddedBroker) -> None:
    # Garbage is collected on any thread, which may hold the locks of connections that are still
    # used, and of the module `threading`.
    clients = [PulsarClient(broker.service_url)]
    clients[0].create_producer("t")
    context, found = clients[0]._context, weakref.ref(clients[0])
    mutexes = [connection._mutex for connection in context.pool.connections]
    starting: Any = threading
    locks = [context.pool._lock, context.timers._wakeup, *mutexes, starting._active_limbo_lock]

    def drop_it() -> None:
        with contextlib.ExitStack() as held:
            for lock in locks:
                held.enter_context(lock)
            clients.clear()
            gc.collect()

    with pytest.warns(ResourceWarning):
        drop_it()
    wait_until(lambda: is_gone(found, broker, sys.maxsize))


@pytest.mark.fault(204)
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_that_drops_a_client_leaves_it_to_its_parent(broker: EmbeddedBroker) -> None:
    client = PulsarClient(broker.service_url)
    producer = client.create_producer("t")
    child = os.fork()
    if child == 0:
        try:
            # A warning would be an error.
            client.__del__()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    producer.send(b"still there")
    client.close()


@pytest.mark.fault(204)
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_gets_no_messages_of_its_parents_consumer(broker: EmbeddedBroker) -> None:
    with PulsarClient(broker.service_url) as client:
        consumer = client.subscribe("t", "s")
        client.create_producer("t").send(b"x")
        wait_until(lambda: broker.faults.seen("MESSAGE", direction="out"))
        child = os.fork()
        if child == 0:
            try:
                consumer.receive(10_000)
            except ClosedError as error:
                os._exit(0 if "another process" in str(error) else 2)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert consumer.receive(10_000).data() == b"x"


@pytest.mark.fault(204)
def test_the_interpreter_ends_at_once_although_a_client_was_not_closed() -> None:
    program = """
        from pulsar_spark.client import PulsarClient
        from pulsar_spark.testing import EmbeddedBroker

        broker = EmbeddedBroker().__enter__()
        client = PulsarClient(broker.service_url)
        consumer = client.subscribe("t", "s", message_listener=lambda *_: None)
        client.create_producer("t").send(b"x")
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
