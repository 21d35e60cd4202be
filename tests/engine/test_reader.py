from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.consumers import reader as module
from pulsar_spark.engine.consumers.reader import EntryReader
from pulsar_spark.engine.consumers.receiver_queue import GATHERED, ReceiverQueue
from pulsar_spark.engine.options import ReaderOptions
from pulsar_spark.errors import (
    AuthorizationError,
    ChecksumMismatch,
    ClosedError,
    EncryptedMessage,
    OperationTimeout,
    TopicNotFound,
    UnsupportedFeature,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import (
    EARLIEST_POSITION,
    LATEST_POSITION,
    Position,
)
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.topics import (
    add_batch,
    add_plain,
    after_last,
    fill,
    quick,
    read_range,
    reading,
    stored_entry,
    unpack,
)
from tests.support.waiting import wait_until

TOPIC = "persistent://public/default/t"


def test_all_messages_come_once_and_in_order() -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 50)
        assert read_range(broker, TOPIC, EARLIEST_POSITION, after_last(messages)) == messages


@pytest.mark.parametrize("is_range", [True, False])
def test_a_range_says_how_much_can_come_and_a_reader_that_follows_a_topic_does_not(
    is_range: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: list[int] = []
    monkeypatch.setattr(ReceiverQueue, "expect", lambda _, coming: expected.append(coming))
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        messages = [add_plain(broker, TOPIC, bytes(100_000)) for _ in range(60)]
        end = after_last(messages) if is_range else None
        with reading(broker, TOPIC, EARLIEST_POSITION, end) as reader:
            for message in messages:
                entry = reader.next_entry()
                assert entry is not None
                assert unpack(entry) == [message]
    if is_range:
        assert expected[0] > 2 * GATHERED
        assert expected[-1] == 0, "nothing is behind the end"
        # Where reading starts at the earliest message, the first place is unknown.
        for left, coming in enumerate(reversed(expected[1:])):
            assert coming <= left * 101_000
    else:
        assert not expected, "its next message may be new"


@pytest.mark.fault(62)
def test_every_range_of_positions_gives_exactly_its_messages() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        messages = fill(broker, TOPIC, 12)
        places = [Position(m.ledger_id, m.entry_id, m.batch_index) for m in messages]
        edges = sorted({*places, *(Position(p[0], p[1] + 1) for p in places)})
        edges += [Position(p[0], p[1], 3) for p in places[:6]]
        edges += [EARLIEST_POSITION, after_last(messages), Position(places[5][0], 1000)]
        rng = random.Random(3)
        for _ in range(60):
            start, end = sorted(rng.sample(edges, 2))
            with EntryReader(pool, TOPIC, start, end) as reader:
                found = [message for entry in reader for message in unpack(entry)]
            expected = [
                message
                for message, place in zip(messages, places, strict=True)
                if start <= place < end
            ]
            assert found == expected, (start, end)
            assert reader.finished


@pytest.mark.fault(62)
def test_reading_can_stop_anywhere_and_go_on_there() -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 30)
        end = after_last(messages)
        found: list[Any] = []
        position = EARLIEST_POSITION
        while position < end:
            with reading(broker, TOPIC, position, end) as reader:
                for _ in range(4):
                    entry = reader.next_entry()
                    if entry is not None:
                        found += unpack(entry)
                position = reader.position
                if reader.finished:
                    break
        assert found == messages


@pytest.mark.fault(63)
def test_an_empty_topic_ends_soon() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        started = time.monotonic()
        assert read_range(broker, TOPIC, EARLIEST_POSITION, LATEST_POSITION) == []
        assert time.monotonic() - started < 15


@pytest.mark.fault(63)
def test_a_topic_that_was_trimmed_empty_ends_soon() -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 10)
        broker.roll_ledger(TOPIC)
        broker.trim(TOPIC)
        assert read_range(broker, TOPIC, EARLIEST_POSITION, after_last(messages)) == []


@pytest.mark.fault(58, 63)
def test_after_a_trim_the_first_message_kept_is_read() -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 30)
        first = messages[31]
        broker.trim(TOPIC, Position(first.ledger_id, first.entry_id))
        kept = [m for m in messages if m[:2] >= first[:2]]
        assert read_range(broker, TOPIC, EARLIEST_POSITION, after_last(messages)) == kept


@pytest.mark.fault(61)
def test_an_end_that_names_no_message_is_found_all_the_same() -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 10)
        last = messages[-1]
        broker.skip_entries(TOPIC, 5)
        for end in (
            Position(last.ledger_id, last.entry_id + 3),
            Position(last.ledger_id + 7, 0),
            LATEST_POSITION,
        ):
            started = time.monotonic()
            assert read_range(broker, TOPIC, EARLIEST_POSITION, end) == messages
            assert time.monotonic() - started < 15


def test_without_an_end_reading_continues_with_later_messages() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        with reading(broker, TOPIC) as reader:
            assert reader.next_entry(0.05) is None
            assert not reader.finished
            expected = [add_plain(broker, TOPIC, b"%d" % number) for number in range(5)]
            found = [message for _ in expected for message in unpack(reader.next_entry(5))]  # type: ignore[arg-type]
            assert found == expected
            assert reader.next_entry(0.05) is None


def test_latest_means_what_comes_after_the_first_call() -> None:
    with EmbeddedBroker() as broker:
        fill(broker, TOPIC, 5)
        with reading(broker, TOPIC, LATEST_POSITION) as reader:
            assert reader.next_entry(0.1) is None
            broker.faults.disconnect()
            expected = add_plain(broker, TOPIC, b"new")
            entry = reader.next_entry(5)
            assert entry is not None
            assert unpack(entry) == [expected]


# --- the subscription -------------------------------------------------------------------------


def test_a_reader_leaves_no_trace() -> None:
    with EmbeddedBroker(auto_create=False) as broker:
        messages = fill(broker, TOPIC, 10)
        with reading(broker, TOPIC, end=after_last(messages)) as reader:
            reader.next_entry()
            (subscription,) = broker.subscriptions(TOPIC).values()
            assert not subscription.durable
            assert subscription.kind == "Exclusive"
            assert subscription.name.startswith("pulsar-spark-reader-")
            reader.close()
            assert not broker.subscriptions(TOPIC)
        assert broker.faults.seen("ACK") == 0
        assert broker.faults.seen("CLOSE_CONSUMER") == 1


@pytest.mark.fault(69)
def test_readers_of_one_topic_do_not_disturb_each_other() -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 10)
        end = after_last(messages)
        with reading(broker, TOPIC, end=end) as one, reading(broker, TOPIC, end=end) as other:
            assert one.next_entry() is not None
            assert other.next_entry() is not None
            assert len(broker.subscriptions(TOPIC)) == 2


def test_a_topic_that_does_not_exist_is_not_created() -> None:
    with EmbeddedBroker() as broker, reading(broker, TOPIC, end=LATEST_POSITION) as reader:
        for _ in range(2):
            with pytest.raises(TopicNotFound) as caught:
                reader.next_entry()
            assert caught.value.topic == TOPIC
        assert broker.topics() == []


def test_an_unwanted_reader_is_refused_at_once() -> None:
    with EmbeddedBroker() as broker:
        fill(broker, TOPIC, 3)
        broker.faults.error("SUBSCRIBE", "AuthorizationError", times=None)
        with reading(broker, TOPIC) as reader, pytest.raises(AuthorizationError):
            reader.next_entry()
        assert broker.faults.seen("SUBSCRIBE") == 1


def test_a_closed_reader_says_so() -> None:
    with EmbeddedBroker() as broker:
        fill(broker, TOPIC, 3)
        with reading(broker, TOPIC) as reader:
            reader.next_entry()
            reader.close()
            reader.close()
            with pytest.raises(ClosedError):
                reader.next_entry()


def test_closing_does_not_wait_for_a_silent_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CLOSE_TIMEOUT", 0.2)
    with EmbeddedBroker() as broker:
        fill(broker, TOPIC, 3)
        with reading(broker, TOPIC) as reader:
            reader.next_entry()
            broker.faults.drop("CLOSE_CONSUMER")
            started = time.monotonic()
            reader.close()
            assert time.monotonic() - started < 15


def test_closing_the_pool_ends_the_reader() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        pool = ConnectionPool(quick(broker))
        with EntryReader(pool, TOPIC, EARLIEST_POSITION) as reader:
            assert reader.next_entry(0.1) is None
            threading.Timer(0.1, pool.close).start()
            with pytest.raises(ClosedError):
                reader.next_entry(5)


def test_a_generator_over_a_reader_can_be_dropped() -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 10)

        def rows() -> Any:
            with reading(broker, TOPIC, end=after_last(messages)) as reader:
                yield from reader

        generator = rows()
        next(generator)
        generator.close()
        assert not broker.subscriptions(TOPIC)
        wait_until(lambda: broker.connections == 0)


# --- what cannot be read ----------------------------------------------------------------------


@pytest.mark.fault(32, 33)
def test_a_damaged_entry_is_an_error_that_stays_and_is_never_acknowledged() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        good = add_plain(broker, TOPIC, b"good")
        bad = add_plain(broker, TOPIC, b"bad")
        add_plain(broker, TOPIC, b"behind")
        broker.faults.corrupt("MESSAGE", after=1, times=None)
        with reading(broker, TOPIC) as reader:
            entry = reader.next_entry()
            assert entry is not None
            assert unpack(entry) == [good]
            for _ in range(3):
                with pytest.raises(ChecksumMismatch) as caught:
                    reader.next_entry()
                assert caught.value.topic == TOPIC
                assert caught.value.message_id == f"{bad.ledger_id}:{bad.entry_id}"
            assert reader.position == Position(good.ledger_id, good.entry_id + 1)
        assert broker.faults.seen("ACK") == 0


@pytest.mark.fault(40)
def test_an_encrypted_entry_is_an_error() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        keys = [pb.EncryptionKeys(key="k", value=b"v")]
        broker.append(TOPIC, stored_entry(b"secret", encryption_keys=keys))
        with reading(broker, TOPIC) as reader, pytest.raises(EncryptedMessage, match="encrypted"):
            reader.next_entry()


# --- waiting ----------------------------------------------------------------------------------


def test_no_progress_is_an_error_that_names_topic_position_and_end() -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 3)
        end = after_last(messages)
        broker.faults.drop("MESSAGE", after=1, times=None)
        with reading(broker, TOPIC, end=end, poll_timeout=1.0) as reader:
            reader.next_entry()
            with pytest.raises(OperationTimeout) as caught:
                reader.next_entry()
            text = str(caught.value)
            assert TOPIC in text
            assert str(reader.position) in text
            assert str(end) in text
            assert "for 1 s" in text


@pytest.mark.fault(8)
def test_time_that_the_caller_spends_elsewhere_is_no_lack_of_progress() -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 3)
        with reading(broker, TOPIC, end=after_last(messages), poll_timeout=1.0) as reader:
            found = []
            while (entry := reader.next_entry()) is not None:
                found += unpack(entry)
                time.sleep(1.2)
            assert found == messages


def test_a_topic_that_is_quiet_is_asked_for_its_end_ever_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_FIRST_IDLE", 0.1)
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 3)
        broker.faults.drop("MESSAGE", times=None)
        with reading(broker, TOPIC, end=after_last(messages), poll_timeout=4) as reader:
            with pytest.raises(OperationTimeout):
                reader.next_entry()
            # After 0.1 s, then twice as late each time: a steady rhythm would give 40.
            assert 2 <= broker.faults.seen("GET_LAST_MESSAGE_ID") <= 8


@pytest.mark.fault(23)
def test_lost_permits_are_healed_by_a_new_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_STALL", 0.7)
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 5)
        broker.faults.drop("FLOW")
        assert read_range(broker, TOPIC, EARLIEST_POSITION, after_last(messages)) == messages
        assert broker.faults.seen("SUBSCRIBE") == 2


@pytest.mark.fault(14, 23)
def test_a_reader_without_an_end_is_not_forgotten_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_STALL", 0.2)
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        with reading(broker, TOPIC) as reader:
            broker.faults.drop("FLOW")
            assert reader.next_entry(0.1) is None
            messages = add_batch(broker, TOPIC, [b"1", b"2"])
            entry = reader.next_entry(5)
            assert entry is not None
            assert unpack(entry) == messages
            assert broker.faults.seen("SUBSCRIBE") == 2
            # After 0.2 s, then twice as late each time: a steady rhythm would give 12.
            assert reader.next_entry(2.0) is None
            assert 3 <= broker.faults.seen("SUBSCRIBE") <= 6


# --- options ----------------------------------------------------------------------------------


def test_compacted_reading_is_asked_for() -> None:
    with EmbeddedBroker() as broker:
        fill(broker, TOPIC, 3)
        with reading(broker, TOPIC, read_compacted=True) as reader:
            reader.next_entry(1)
            assert broker.faults.log("SUBSCRIBE")[0].body.read_compacted


def test_a_topic_that_keeps_nothing_cannot_be_read() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        topic = "non-persistent://public/default/t"
        with pytest.raises(UnsupportedFeature, match="stores nothing"):
            EntryReader(pool, topic, EARLIEST_POSITION)


def test_a_reader_connects_only_when_it_is_read() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        with EntryReader(pool, TOPIC, EARLIEST_POSITION, None, ReaderOptions()):
            assert broker.connections == 0
        with EntryReader(pool, TOPIC, Position(3, 0), Position(3, 0)) as empty:
            assert empty.next_entry() is None
            assert empty.finished
        assert broker.connections == 0
