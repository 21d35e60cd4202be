from __future__ import annotations

import os
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pulsar_spark.engine import deadline as deadlines
from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.consumers import reader_feed
from pulsar_spark.engine.consumers.consumer_session import ConsumerSession, SubscribeRequest
from pulsar_spark.engine.consumers.reader import EntryReader
from pulsar_spark.engine.consumers.reader_feed import Drive, ReaderFeed
from pulsar_spark.engine.consumers.receiver_queue import Ended
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.memory import ReceiverBudget
from pulsar_spark.engine.operations import Operation, run
from pulsar_spark.engine.options import MIB, ReaderOptions
from pulsar_spark.engine.retry import Backoff
from pulsar_spark.engine.timers import Timers
from pulsar_spark.errors import (
    ClosedError,
    ConnectError,
    ConsumerBusy,
    OperationTimeout,
    PulsarError,
    ServiceNotReady,
    TopicNotFound,
)
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.events import CommandReceived, Event
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, LATEST_POSITION, Position
from pulsar_spark.testing import EmbeddedBroker
from tests import brief
from tests.engine.scripted_broker import Entry, ScriptedBroker, Session, T
from tests.engine.test_connection import kind_of
from tests.engine.topics import (
    Message,
    add_batch,
    add_plain,
    after_last,
    fill,
    pretend_empty,
    quick,
    read_range,
    reading,
    unpack,
)
from tests.support.waiting import Clock, finish, is_in, wait_until

TOPIC = "persistent://public/default/t"


@contextmanager
def driven(broker: EmbeddedBroker, topic: str) -> Iterator[EntryReader]:
    """A reader whose thread does not wait for it."""
    timers = Timers()
    with (
        ConnectionPool(quick(broker)) as pool,
        EntryReader(pool, topic, EARLIEST_POSITION, drive=Drive(timers, lambda: None)) as reader,
    ):
        yield reader
    timers.close()


def read_with_trouble(
    broker: EmbeddedBroker,
    messages: list[Message],
    trouble: Callable[[int], object],
    **options: Any,
) -> list[Message]:
    """Read all messages, calling `trouble` with the number of each entry."""
    found: list[Message] = []
    with reading(broker, TOPIC, end=after_last(messages), **options) as reader:
        for number, entry in enumerate(reader):
            found += unpack(entry)
            trouble(number)
    return found


@pytest.mark.fault(11, 14, 21)
@pytest.mark.parametrize("kind", ["disconnect", "reset", "unload", "close"])
def test_whatever_ends_the_consumer_nothing_is_lost_or_repeated(kind: str) -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 60)
        troubles: dict[str, Callable[[], object]] = {
            "disconnect": broker.faults.disconnect,
            "reset": lambda: broker.faults.disconnect(reset=True),
            "unload": lambda: broker.unload(TOPIC),
            "close": lambda: broker.faults.close_consumers(TOPIC),
        }

        def trouble(number: int) -> None:
            if number % 7 == 3:
                troubles[kind]()

        options = {"auto_scale": False, "receiver_queue_size": 6}
        assert read_with_trouble(broker, messages, trouble, **options) == messages
        assert broker.faults.seen("SUBSCRIBE") > 5
        assert broker.internal_errors == ()


@pytest.mark.fault(21)
def test_two_troubles_at_once_are_one_reconnect_or_two_but_no_loss() -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 40)

        def trouble(number: int) -> None:
            if number % 9 == 4:
                broker.unload(TOPIC)
                broker.faults.disconnect(reset=True)

        options = {"auto_scale": False, "receiver_queue_size": 6}
        assert read_with_trouble(broker, messages, trouble, **options) == messages


@pytest.mark.fault(11)
def test_a_broker_that_is_down_for_a_while_is_waited_for() -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 20)
        restarts = []

        def trouble(number: int) -> None:
            if number == 5:
                thread = threading.Thread(target=broker.restart, args=(0.7,))
                thread.start()
                restarts.append(thread)

        options = {"auto_scale": False, "receiver_queue_size": 6}
        assert read_with_trouble(broker, messages, trouble, **options) == messages
        restarts[0].join()


def test_a_broker_that_stays_away_is_an_error_after_the_poll_timeout() -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 20)
        options: dict[str, Any] = {
            "auto_scale": False, "receiver_queue_size": 3, "poll_timeout": 0.5
        }  # fmt: skip
        with reading(broker, TOPIC, end=after_last(messages), **options) as reader:
            reader.next_entry()
            broker.faults.refuse()
            broker.faults.disconnect()
            started = time.monotonic()
            # An attempt may still last when the time is up.
            with pytest.raises((ConnectError, OperationTimeout)) as caught:
                list(reader)
            assert time.monotonic() - started < 15
            assert caught.value.topic == TOPIC


def test_short_waits_do_not_keep_a_reader_from_coming_back() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        with driven(broker, TOPIC) as reader:
            wait_until(lambda: reader.next_entry(0) or reader._consumer.queue)
            broker.faults.refuse()
            broker.faults.disconnect()
            pauses: list[float] = []
            pause = reader._consumer._pause

            def noting(error: PulsarError, time_left: float) -> float:
                pauses.append(pause(error, time_left))
                return pauses[-1]

            reader._consumer._pause = noting  # type: ignore[method-assign]
            wait_until(lambda: reader.next_entry(0) or len(pauses) > 3)
            broker.faults.accept()
            expected = add_plain(broker, TOPIC, b"x")
            end = time.monotonic() + 10
            while (entry := reader.next_entry(0.05)) is None:
                assert time.monotonic() < end
            assert unpack(entry) == [expected]


def test_a_topic_that_is_deleted_meanwhile_is_an_error() -> None:
    with EmbeddedBroker(auto_create=False) as broker:
        messages = fill(broker, TOPIC, 20)
        options: dict[str, Any] = {"auto_scale": False, "receiver_queue_size": 3}
        with reading(broker, TOPIC, end=after_last(messages), **options) as reader:
            reader.next_entry()
            broker.delete_topic(TOPIC)
            with pytest.raises(TopicNotFound):
                list(reader)


@pytest.mark.slow
@pytest.mark.fault(14, 21)
def test_random_troubles_of_all_kinds_lose_and_repeat_nothing() -> None:
    rng = random.Random(11)
    with EmbeddedBroker(brokers=2) as broker:
        messages = fill(broker, TOPIC, 200)
        actions: list[Callable[[], object]] = [
            lambda: broker.faults.disconnect(reset=rng.random() < 0.5),
            lambda: broker.unload(TOPIC),
            lambda: broker.move(TOPIC, rng.randrange(2), assign=rng.random() < 0.5),
            lambda: broker.faults.error("SUBSCRIBE", "ServiceNotReady"),
            lambda: broker.faults.error("LOOKUP", "MetadataError"),
            lambda: broker.faults.close("SUBSCRIBE", answer=True),
            lambda: broker.faults.truncate("MESSAGE", size=rng.randrange(1, 60)),
            lambda: broker.faults.duplicate("MESSAGE"),
        ]

        def trouble(number: int) -> None:
            if rng.random() < 0.15:
                rng.choice(actions)()

        options = {"auto_scale": False, "receiver_queue_size": 12}
        assert read_with_trouble(broker, messages, trouble, **options) == messages
        wait_until(lambda: not broker.subscriptions(TOPIC))
        assert broker.internal_errors == ()


# --- where the broker says the topic went -----------------------------------------------------


@pytest.mark.fault(15)
def test_the_assigned_broker_is_asked_without_a_lookup() -> None:
    with EmbeddedBroker(brokers=2) as broker:
        messages = fill(broker, TOPIC, 60)
        with reading(
            broker, TOPIC, end=after_last(messages), auto_scale=False, receiver_queue_size=6
        ) as reader:
            found = unpack(reader.next_entry())  # type: ignore[arg-type]
            lookups = broker.faults.seen("LOOKUP")
            for target in (1, 0, 0):
                broker.move(TOPIC, target)
                found += [m for _ in range(12) for m in unpack(reader.next_entry())]  # type: ignore[arg-type]
            assert broker.faults.seen("LOOKUP") == lookups
            found += [message for entry in reader for message in unpack(entry)]
        assert found == messages


@pytest.mark.fault(15)
@pytest.mark.parametrize(
    "url", ["pulsar://127.0.0.1:1", "pulsar+ssl://127.0.0.1:6651", "http://x", "nonsense"]
)
def test_an_assigned_broker_that_cannot_be_used_is_looked_up(url: str) -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 20)

        def trouble(number: int) -> None:
            if number == 5:
                broker.unload(TOPIC, url)

        options = {"auto_scale": False, "receiver_queue_size": 6}
        started = time.monotonic()
        assert read_with_trouble(broker, messages, trouble, **options) == messages
        assert time.monotonic() - started < 5


# --- half-open connections and pauses ---------------------------------------------------------


@pytest.mark.fault(5, 69)
def test_a_connection_that_falls_silent_is_replaced() -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 30)
        options = ReaderOptions(auto_scale=False, receiver_queue_size=6, poll_timeout=20)
        with (
            ConnectionPool(quick(broker, keep_alive_interval=0.3)) as pool,
            EntryReader(pool, TOPIC, EARLIEST_POSITION, after_last(messages), options) as reader,
        ):
            found = unpack(reader.next_entry())  # type: ignore[arg-type]
            broker.faults.black_hole("FLOW")
            found += [message for entry in reader for message in unpack(entry)]
        assert found == messages


@pytest.mark.fault(8)
def test_a_caller_that_pauses_keeps_its_consumer() -> None:
    with EmbeddedBroker(liveness_timeout=60) as broker:
        messages = fill(broker, TOPIC, 10)
        options = {"auto_scale": False, "receiver_queue_size": 6}

        def trouble(number: int) -> None:
            """Have the broker find out whether the consumer's connection answers a PING."""
            if number not in (0, 5):
                return
            (name,) = broker.subscriptions(TOPIC)
            with ConnectionPool(quick(broker)) as pool:
                wanted = SubscribeRequest(TOPIC, name, EARLIEST_POSITION)
                other = ConsumerSession(pool.service(), wanted)
                with pytest.raises(ConsumerBusy):
                    run(other.subscribe, 120)

        assert read_with_trouble(broker, messages, trouble, **options) == messages
        assert broker.faults.seen("PING") == 2
        assert broker.faults.seen("SUBSCRIBE") == 3


@pytest.mark.fault(8)
def test_a_consumer_lost_during_a_pause_is_resumed_silently() -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 10)

        def trouble(number: int) -> None:
            if number == 2:
                broker.faults.disconnect(reset=True)
                time.sleep(0.5)

        assert read_with_trouble(broker, messages, trouble) == messages


# --- permits and early messages ---------------------------------------------------------------


def is_flow(event: Event) -> bool:
    return kind_of(event) == T.FLOW


@pytest.mark.fault(22, 23)
def test_messages_before_the_answer_to_subscribe_are_read() -> None:
    entries = [Entry(1, number, [b"%d" % number]) for number in range(3)]

    def script(session: Session, event: Event) -> bool:
        if kind_of(event) == T.SUBSCRIBE:
            assert isinstance(event, CommandReceived)
            for entry in entries:
                session.send_entry(event.body.consumer_id, entry)  # type: ignore[attr-defined]
        return False

    with (
        ScriptedBroker(script) as broker,
        ConnectionPool(broker.options()) as pool,
        EntryReader(pool, TOPIC, EARLIEST_POSITION, Position(1, 3)) as reader,
    ):
        found = [message.payload for entry in reader for message in unpack(entry)]
        assert found == [b"0", b"1", b"2"]


@pytest.mark.fault(23)
def test_permits_are_given_once_after_each_subscribe() -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 5)

        def trouble(number: int) -> None:
            if number == 2:
                broker.faults.disconnect()

        options = {"auto_scale": False, "receiver_queue_size": 1000}
        assert read_with_trouble(broker, messages, trouble, **options) == messages
        flows = broker.faults.log("FLOW")
        by_consumer = {seen.body.consumer_id for seen in flows}
        first = [next(s for s in flows if s.body.consumer_id == c) for c in by_consumer]
        assert len({seen.body.messagePermits for seen in first}) <= 2


@pytest.mark.fault(23)
def test_the_broker_is_never_ahead_by_more_than_the_queue_size() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        last = [add_plain(broker, TOPIC, b"x") for _ in range(300)][-1]
        end = Position(last.ledger_id, last.entry_id + 1)
        options: dict[str, Any] = {"auto_scale": False, "receiver_queue_size": 20}
        ahead = []
        with reading(broker, TOPIC, end=end, **options) as reader:
            for number, _ in enumerate(reader, 1):
                if number % 20 == 5 and (subscriptions := broker.subscriptions(TOPIC)):
                    (consumer,) = next(iter(subscriptions.values())).consumers
                    ahead.append(consumer.delivered - number)
        assert len(ahead) > 10
        assert 0 < max(ahead) <= 20


def test_small_messages_are_asked_for_by_the_hundred_thousand() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        for _ in range(20):
            messages = add_batch(broker, TOPIC, [b"x" * 100] * 1000)
        read_range(broker, TOPIC, EARLIEST_POSITION, after_last(messages))
        assert max(seen.body.messagePermits for seen in broker.faults.log("FLOW")) > 100_000


@pytest.mark.fault(91)
def test_large_messages_stay_within_the_memory() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        payload = os.urandom(MIB)
        last = [add_plain(broker, TOPIC, payload) for _ in range(40)][-1]
        end = Position(last.ledger_id, last.entry_id + 1)
        count = 0
        with reading(broker, TOPIC, end=end, memory_budget=8 * MIB) as reader:
            for _ in reader:
                count += 1
                queue = reader._consumer.queue
                assert queue is None or queue.queued_bytes <= 8 * MIB
                time.sleep(0.005)
        assert count == 40
        assert broker.faults.seen("SUBSCRIBE") == 1


@pytest.mark.fault(91)
def test_a_sudden_jump_in_size_is_bounded_and_nothing_is_lost() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        sizes = [10] * 200 + [MIB] * 30 + [10] * 200 + [MIB] * 10
        found_sizes = []
        for size in sizes:
            last = add_plain(broker, TOPIC, bytes(size))
        end = Position(last.ledger_id, last.entry_id + 1)
        with reading(broker, TOPIC, end=end, memory_budget=4 * MIB) as reader:
            for number, entry in enumerate(reader):
                found_sizes.append(len(entry.payload))
                if reader._consumer.queue is not None:
                    assert reader._consumer.queue.queued_bytes <= 4 * MIB
                if number % 50 == 0:
                    time.sleep(0.1)
        assert found_sizes == sizes
        assert broker.faults.seen("SUBSCRIBE") > 1
        wait_until(lambda: not broker.subscriptions(TOPIC))


# --- every byte -------------------------------------------------------------------------------


class Cutting:
    """A script that resets the first connection after `allowed` bytes were sent."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.allowed: int | None = None
        self.sent = 0

    def __call__(self, session: Session, event: Event) -> bool:
        if self.allowed is not None and "limit" not in session.memo:
            session.memo["limit"] = True
            self._limit(session, self.allowed)
            self.allowed = None
        if is_flow(event) and "sent" not in session.memo:
            session.memo["sent"] = True
            consumer_id = event.body.consumer_id  # type: ignore[union-attr]
            for entry in self.entries:
                session.send_entry(consumer_id, entry)
        return False

    def _limit(self, session: Session, allowed: int) -> None:
        send = session.socket.sendall

        class Limited:
            def __init__(self, sock: Any) -> None:
                self._socket = sock
                self._left = allowed

            def sendall(self, data: bytes) -> None:
                part = bytes(data)[: self._left]
                self._left -= len(part)
                if part:
                    send(part)
                if len(part) < len(data):
                    linger = struct.pack("ii", 1, 0)
                    self._socket.setsockopt(1, 13, linger)
                    self._socket.close()
                    raise OSError("cut")

            def __getattr__(self, name: str) -> Any:
                return getattr(self._socket, name)

        session.socket = Limited(session.socket)  # type: ignore[assignment]


@pytest.mark.slow
@pytest.mark.fault(4)
def test_a_reset_after_every_byte_of_what_the_broker_says_is_survived() -> None:
    entries = [Entry(1, number, [b"%d-%d" % (number, i) for i in range(3)]) for number in range(3)]
    script = Cutting(entries)
    threads = threading.active_count()
    files = len(os.listdir("/proc/self/fd"))
    with ScriptedBroker(script) as broker:
        options = broker.options(operation_timeout=10)
        for allowed in range(0, 420, 5):
            script.allowed = allowed
            with (
                ConnectionPool(options) as pool,
                EntryReader(pool, TOPIC, EARLIEST_POSITION, Position(1, 3)) as reader,
            ):
                found = [message.payload for entry in reader for message in unpack(entry)]
            assert found == [b"%d-%d" % (n, i) for n in range(3) for i in range(3)], allowed
    wait_until(lambda: threading.active_count() <= threads)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= files)


@pytest.mark.fault(24, 25)
def test_answers_twice_late_or_to_nobody_do_no_harm() -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 20)
        for command in ("SUBSCRIBE", "LOOKUP", "GET_LAST_MESSAGE_ID"):
            broker.faults.duplicate(command, answer=True, times=None)
        broker.faults.inject(commands.build(pb.CommandSuccess, request_id=99_999))
        assert read_range(broker, TOPIC, EARLIEST_POSITION, after_last(messages)) == messages


@pytest.mark.fault(25)
@pytest.mark.parametrize(
    "command, start",
    [
        ("LOOKUP", EARLIEST_POSITION),
        ("SUBSCRIBE", EARLIEST_POSITION),
        ("GET_LAST_MESSAGE_ID", LATEST_POSITION),
    ],
)
def test_a_first_subscribe_ends_within_the_operation_timeout_whatever_is_not_answered(
    command: str, start: Position
) -> None:
    with EmbeddedBroker() as broker:
        fill(broker, TOPIC, 3)
        broker.faults.drop(command, times=None)
        with (
            ConnectionPool(quick(broker, operation_timeout=0.3)) as pool,
            EntryReader(pool, TOPIC, start) as reader,
        ):
            started = time.monotonic()
            with pytest.raises(OperationTimeout):
                reader.next_entry()
            assert time.monotonic() - started < 7
        wait_until(lambda: broker.faults.seen("SUBSCRIBE") == broker.faults.seen("CLOSE_CONSUMER"))


def test_an_attempt_that_the_end_of_the_time_cuts_short_does_not_hide_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deadlines, "ATTEMPT_SECONDS", 0.2)
    with EmbeddedBroker() as broker:
        fill(broker, TOPIC, 3)
        broker.faults.drop("SUBSCRIBE", times=None)
        with (
            ConnectionPool(quick(broker, operation_timeout=2)) as pool,
            EntryReader(pool, TOPIC, EARLIEST_POSITION) as reader,
        ):
            told = r"after \d+ attempts; the one before: .*did not answer SUBSCRIBE within 0\.2 s"
            with pytest.raises(OperationTimeout, match=told):
                reader.next_entry()


def resumed_with(
    monkeypatch: pytest.MonkeyPatch, operation_timeout: float, poll_timeout: float
) -> list[float]:
    """Return how long each attempt to subscribe might take: the first one, then resumes."""
    allowed: list[float] = []

    attach = ReaderFeed.attach_operation

    def noting(consumer: ReaderFeed, deadline: Deadline) -> Operation[Any]:
        allowed.append(deadline.seconds or 0.0)
        return attach(consumer, deadline)

    monkeypatch.setattr(ReaderFeed, "attach_operation", noting)
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 30)
        limits = ReaderOptions(auto_scale=False, receiver_queue_size=6, poll_timeout=poll_timeout)
        with (
            ConnectionPool(quick(broker, operation_timeout=operation_timeout)) as pool,
            EntryReader(pool, TOPIC, EARLIEST_POSITION, after_last(messages), limits) as reader,
        ):
            found = unpack(reader.next_entry())  # type: ignore[arg-type]
            broker.faults.error("SUBSCRIBE", "ServiceNotReady", times=2)
            broker.unload(TOPIC)
            found += [message for entry in reader for message in unpack(entry)]
        assert found == messages
    assert len(allowed) == 4
    return allowed


@pytest.mark.fault(14)
def test_attempts_to_resume_have_time_although_the_operation_timeout_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, *resumes = resumed_with(monkeypatch, operation_timeout=8, poll_timeout=600)
    assert first <= 8
    assert resumes == [15.0] * 3


@pytest.mark.fault(14)
def test_attempts_to_resume_end_with_the_poll_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *resumes = resumed_with(monkeypatch, operation_timeout=60, poll_timeout=30)
    assert 30 < first <= 60
    assert 30 >= resumes[0] > resumes[1] > resumes[2] > 0


@pytest.mark.fault(14)
def test_a_broker_that_is_back_shortly_before_the_end_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    began = clock.monotonic()
    monkeypatch.setattr(deadlines, "time", clock)
    pauses: list[float] = []

    def wait(consumer: ReaderFeed, seconds: float) -> Operation[None]:
        left = 60 - (clock.monotonic() - began)
        assert seconds <= max(left / 4, 0.1) + 0.001
        pauses.append(seconds)
        clock.advance(seconds)
        yield from ()

    monkeypatch.setattr(ReaderFeed, "_wait", wait)
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker, operation_timeout=60)) as pool:
        consumer = ReaderFeed(pool, TOPIC, ReaderOptions(), ReceiverBudget(MIB))
        broker.faults.error("LOOKUP", "ServiceNotReady", times=None)
        with pytest.raises(PulsarError, match=r"after \d+ attempts"):
            consumer.subscribe(EARLIEST_POSITION)
        # Pauses grow to five seconds, and get shorter towards the end.
        assert 4 < max(pauses) <= 5
        assert 59.5 < clock.monotonic() - began < 60
        consumer.close()


def test_a_consumer_that_is_closed_while_it_subscribes_has_no_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        consumer = ReaderFeed(pool, TOPIC, ReaderOptions(), ReceiverBudget(MIB))
        # As late as another thread can.
        monkeypatch.setattr(ConsumerSession, "flow", lambda session, permits: consumer.close())
        consumer.subscribe(EARLIEST_POSITION)
        assert consumer.closed
        assert consumer.queue is None
        wait_until(lambda: not broker.subscriptions(TOPIC))


@pytest.mark.fault(75)
def test_readers_leave_neither_threads_nor_files_behind() -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 5)
        read_range(broker, TOPIC, EARLIEST_POSITION, after_last(messages))
        wait_until(lambda: broker.connections == 0)
        threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
        for number in range(30):
            with reading(broker, TOPIC, end=after_last(messages)) as reader:
                reader.next_entry()
                if number % 3 == 0:
                    broker.faults.disconnect()
        wait_until(lambda: broker.connections == 0)
        wait_until(lambda: threading.active_count() <= threads)
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= files)


@pytest.mark.fault(10)
def test_many_readers_that_lose_their_broker_come_back_without_a_storm() -> None:
    count = 100
    with EmbeddedBroker() as broker:
        topics = [broker.create_topic(f"t-{number}") for number in range(count)]
        with ConnectionPool(quick(broker, operation_timeout=30)) as pool:
            readers = [EntryReader(pool, topic, EARLIEST_POSITION) for topic in topics]
            for reader in readers:
                assert reader.next_entry(0) is None
            broker.faults.forget()
            broker.restart(0.5)
            expected = [add_plain(broker, topic, b"x") for topic in topics]
            found: list[list[Message]] = [[] for _ in topics]

            def read(number: int) -> None:
                entry = readers[number].next_entry(20)
                assert entry is not None
                found[number] = unpack(entry)

            threads = [threading.Thread(target=read, args=(number,)) for number in range(count)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert found == [[message] for message in expected]
            assert broker.faults.seen("LOOKUP") <= 3 * count
            assert broker.faults.seen("CONNECT") <= 5
            for reader in readers:
                reader.close()


@pytest.mark.fault(14)
@pytest.mark.parametrize("times", [1, 2])
def test_that_a_topic_is_empty_is_believed_of_no_consumer_that_the_broker_lost(times: int) -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 5)
        pretend_empty(broker, times)
        found = read_range(broker, TOPIC, EARLIEST_POSITION, after_last(messages))
        assert found == messages


@pytest.mark.fault(14)
def test_outages_that_are_over_are_not_held_against_a_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader_feed, "_MAX_PAUSE", 0.1)
    limits: list[float] = []
    attempts = ReaderFeed._attempts

    def noting(
        consumer: ReaderFeed, attempt: Any, deadline: Deadline, *loss: Any
    ) -> Operation[None]:
        limits.append(deadline.remaining())
        return attempts(consumer, attempt, deadline, *loss)

    monkeypatch.setattr(ReaderFeed, "_attempts", noting)
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        with reading(broker, TOPIC, poll_timeout=600) as reader:
            assert reader.next_entry(0) is None
            for _ in range(3):
                with broker.faults.error("SUBSCRIBE", "ServiceNotReady", times=3) as outage:
                    broker.unload(TOPIC)
                    subscribed = broker.faults.seen("FLOW")
                    while broker.faults.seen("FLOW") == subscribed:
                        assert reader.next_entry(0.05) is None
                    assert outage.hits == 3
                assert limits.pop() > 599
        with reading(broker, TOPIC, poll_timeout=0.5) as reader:
            assert reader.next_entry(0) is None
            # A permanent one is still an error.
            broker.faults.error("SUBSCRIBE", "ServiceNotReady", times=None)
            broker.unload(TOPIC)
            # On a slow machine the first attempt may last until the time is up.
            with pytest.raises((ServiceNotReady, OperationTimeout)):
                reader.next_entry(60)


# --- brokers that make no progress --------------------------------------------------------------


@pytest.mark.fault(23, 102)
def test_a_consumer_that_is_closed_after_every_flow_is_no_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader_feed, "_MAX_PAUSE", 0.1)

    def script(session: Session, event: Event) -> bool:
        if is_flow(event):
            consumer_id = event.body.consumer_id  # type: ignore[union-attr]
            session.send(brief.close_consumer(consumer_id, 2**64 - 1))
        return False

    with (
        ScriptedBroker(script) as broker,
        ConnectionPool(broker.options()) as pool,
        EntryReader(
            pool, TOPIC, EARLIEST_POSITION, Position(1, 3), ReaderOptions(poll_timeout=1.0)
        ) as reader,
        pytest.raises(OperationTimeout, match="1 s"),
    ):
        reader.next_entry()


@pytest.mark.fault(23, 102)
def test_old_entries_are_no_progress_whatever_number_of_messages_they_claim() -> None:
    def script(session: Session, event: Event) -> bool:
        if is_flow(event):
            consumer_id = event.body.consumer_id  # type: ignore[union-attr]
            old = Entry(1, 0, [b"old"])
            metadata = pb.MessageMetadata.FromString(old.metadata)
            metadata.num_messages_in_batch = 2**31 - 1
            old.metadata = metadata.SerializeToString()
            session.send_entry(consumer_id, old)
        return False

    with (
        ScriptedBroker(script) as broker,
        ConnectionPool(broker.options()) as pool,
        EntryReader(
            pool, TOPIC, Position(1, 5), Position(1, 9), ReaderOptions(poll_timeout=1.0)
        ) as reader,
        pytest.raises(OperationTimeout, match="1 s"),
    ):
        reader.next_entry()


# --- closing ------------------------------------------------------------------------------------


@pytest.mark.fault(25, 68)
@pytest.mark.parametrize("command", ["LOOKUP", "SUBSCRIBE"])
def test_closing_while_it_subscribes_leaves_no_consumer(command: str) -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        fill(broker, TOPIC, 3)
        reader = EntryReader(pool, TOPIC, EARLIEST_POSITION)
        errors: list[BaseException] = []

        def read() -> None:
            try:
                reader.next_entry()
            except PulsarError as error:
                errors.append(error)

        with broker.faults.delay(command, 0.5, answer=True) as waiting:
            thread = threading.Thread(target=read)
            thread.start()
            wait_until(lambda: broker.faults.seen(command) > 0)
            reader.close()
            thread.join(30)
            assert not thread.is_alive()
            wait_until(lambda: waiting.hits == 1)
        assert [type(error) for error in errors] == [ClosedError]
        # The answer to this last request comes when the others are done.
        Lookup(pool).last_message_id(TOPIC)
        wait_until(lambda: not broker.subscriptions(TOPIC))


@pytest.mark.fault(68, 205)
def test_closing_ends_the_pause_before_another_attempt_to_subscribe() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker, operation_timeout=600)) as pool:
        broker.create_topic(TOPIC)
        consumer = ReaderFeed(pool, TOPIC, ReaderOptions(), ReceiverBudget(MIB))
        consumer._backoff = Backoff(600.0, 600.0)
        consumer.on_ended(Ended())
        errors: list[PulsarError] = []

        def subscribe() -> None:
            try:
                consumer.subscribe(EARLIEST_POSITION)
            except PulsarError as error:
                errors.append(error)

        thread = threading.Thread(target=subscribe)
        thread.start()
        wait_until(lambda: is_in(thread, "_wait"))
        consumer.close()
        finish(thread)
        assert [type(error) for error in errors] == [ClosedError]
        assert broker.faults.seen("LOOKUP") == 0


@pytest.mark.fault(68)
def test_closing_wakes_whoever_waits_for_an_entry() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        reader = EntryReader(pool, TOPIC, EARLIEST_POSITION)
        assert reader.next_entry(0) is None
        closing = threading.Timer(0.1, reader.close)
        closing.start()
        with pytest.raises(ClosedError):
            reader.next_entry(600)
        closing.join()
