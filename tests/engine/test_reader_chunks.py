from __future__ import annotations

import itertools
import logging
import os
import random
from collections.abc import Iterable
from contextlib import AbstractContextManager

import pytest

from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.consumers import chunk_search
from pulsar_spark.engine.consumers.entries import EntryDecoder, LastChunk
from pulsar_spark.engine.consumers.reader import EntryReader
from pulsar_spark.errors import CorruptMessage, IncompleteMessage, MessageTooLarge
from pulsar_spark.protocol.frame_parts import ReceivedEntry
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, MessageIdAdv, Position
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.topics import (
    NOW,
    add_interleaved,
    add_plain,
    chunks_of,
    quick,
    reading,
    stored_entry,
)
from tests.support.waiting import wait_until

TOPIC = "persistent://public/default/t"


def payloads(reader: EntryReader) -> list[bytes]:
    return [bytes(entry.payload) for entry in reader]


def after(message_id: MessageIdAdv) -> Position:
    return Position(message_id.ledger_id, message_id.entry_id + 1)


def test_chunks_are_joined_decompressed_and_have_the_place_of_the_last() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        payload = os.urandom(5000)
        ids = [broker.append(TOPIC, entry) for entry in chunks_of(payload, 1000, "a")]
        with reading(broker, TOPIC, end=after(ids[-1])) as reader:
            (entry,) = list(reader)
        assert bytes(entry.payload) == payload
        assert (entry.ledger_id, entry.entry_id) == (ids[-1].ledger_id, ids[-1].entry_id)
        assert entry.first_chunk == ids[0]
        assert (entry.wanted, entry.is_batch) == (range(1), False)


@pytest.mark.fault(39)
def test_messages_in_chunks_may_be_interleaved_with_others() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        first, second = os.urandom(3000), os.urandom(3000)
        for one, other in zip(
            chunks_of(first, 1000, "a"), chunks_of(second, 1000, "b"), strict=True
        ):
            broker.append(TOPIC, one)
            add_plain(broker, TOPIC, b"between")
            last = broker.append(TOPIC, other)
        with reading(broker, TOPIC, end=after(last)) as reader:
            found = payloads(reader)
        assert found.count(b"between") == 4
        assert [payload for payload in found if payload != b"between"] == [first, second]


@pytest.mark.fault(39)
def test_a_reconnect_between_chunks_loses_nothing() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        payload = os.urandom(20_000)
        for entry in chunks_of(payload, 1000, "a"):
            last = broker.append(TOPIC, entry)
        broker.faults.close("MESSAGE", after=7, times=1)
        broker.faults.close("MESSAGE", after=12, times=1)
        with reading(
            broker, TOPIC, end=after(last), auto_scale=False, receiver_queue_size=3
        ) as reader:
            assert payloads(reader) == [payload]


@pytest.mark.fault(39)
def test_ranges_that_cut_between_chunks_give_each_message_once() -> None:
    rng = random.Random(5)
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        expected = []
        ids: list[MessageIdAdv] = []
        for number in range(8):
            payload = os.urandom(2500)
            expected.append(payload)
            for entry in chunks_of(payload, 1000, f"u{number}", NOW + 100_000 * number):
                ids.append(broker.append(TOPIC, entry))
                if rng.random() < 0.3:
                    broker.roll_ledger(TOPIC)
        edges = [EARLIEST_POSITION, *(after(i) for i in rng.sample(ids[:-1], 9)), after(ids[-1])]
        found = []
        for start, end in itertools.pairwise(sorted(edges)):
            with reading(broker, TOPIC, start, end) as reader:
                found += payloads(reader)
        assert found == expected
        wait_until(lambda: not broker.subscriptions(TOPIC))


@pytest.mark.fault(39, 100)
@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_message_of_which_a_chunk_is_missing_is_an_error_that_names_it(missing: int) -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        entries = chunks_of(os.urandom(4000), 1000, "a")
        del entries[missing]
        for entry in entries:
            last = broker.append(TOPIC, entry)
        with reading(broker, TOPIC, end=after(last)) as reader:
            for _ in range(2):
                with pytest.raises(IncompleteMessage, match="a message of 5 chunks") as caught:
                    reader.next_entry()
                assert caught.value.topic == TOPIC
                assert caught.value.message_id == f"{last.ledger_id}:{last.entry_id}"


@pytest.mark.fault(39, 100)
def test_messages_that_are_not_whole_can_be_left_out_with_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with EmbeddedBroker() as broker, caplog.at_level(logging.WARNING):
        broker.create_topic(TOPIC)
        for uuid in "ab":
            for entry in chunks_of(os.urandom(3000), 1000, uuid)[1:]:
                broker.append(TOPIC, entry)
        last = add_plain(broker, TOPIC, b"behind")
        end = Position(last.ledger_id, last.entry_id + 1)
        with reading(broker, TOPIC, end=end, skip_incomplete=True) as reader:
            assert payloads(reader) == [b"behind"]
            assert reader.incomplete == 2
    assert caplog.text.count("data was lost") == 2


def after_five_last_chunks(broker: EmbeddedBroker) -> Position:
    """Store messages without their first chunks; return the topic's end."""
    broker.create_topic(TOPIC)
    for number in range(5):
        last = broker.append(TOPIC, chunks_of(b"x" * 9, 4, f"{number}")[-1])
    return after(last)


@pytest.mark.fault(39, 100)
def test_the_searches_for_chunks_that_are_gone_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunk_search, "_MAX_VAIN_SEARCHES", 2)
    with EmbeddedBroker() as broker:
        end = after_five_last_chunks(broker)
        with reading(broker, TOPIC, end=end, skip_incomplete=True) as reader:
            assert payloads(reader) == []
            assert reader.incomplete == 5
        # Each search asks twice, for a minute and for a day before.
        assert broker.faults.seen("SEEK") == 8


@pytest.mark.fault(39, 100)
def test_the_whole_topic_is_searched_for_lost_chunks_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunk_search, "_MAX_WHOLE_SEARCHES", 2)
    starts: list[Position] = []
    with EmbeddedBroker() as broker:
        end = after_five_last_chunks(broker)
        with reading(broker, TOPIC, end=end, skip_incomplete=True) as reader:
            assert reader._chunks is not None
            read = reader._chunks._read

            def noted(
                chunk: LastChunk, start: Position
            ) -> AbstractContextManager[Iterable[ReceivedEntry]]:
                starts.append(start)
                return read(chunk, start)

            monkeypatch.setattr(reader._chunks, "_read", noted)
            assert payloads(reader) == []
    assert starts.count(EARLIEST_POSITION) == 2


@pytest.mark.fault(39, 100)
@pytest.mark.parametrize("minutes", [0, 2, 60, 24 * 60 + 5, -2])
def test_chunks_are_found_however_wrong_the_producers_clock_is(minutes: int) -> None:
    payload = os.urandom(3000)
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        first, *others = chunks_of(payload, 1000, "a", NOW + minutes * 60_000)
        add_plain(broker, TOPIC, b"before", publish_time=NOW - 1000)
        broker.append(TOPIC, first)
        broker.roll_ledger(TOPIC)
        start = add_plain(broker, TOPIC, b"between", publish_time=NOW)
        for entry in others:
            last = broker.append(TOPIC, entry)
        for minute in range(30 * 60):
            add_plain(broker, TOPIC, b"later", publish_time=NOW + minute * 60_000)
        with reading(broker, TOPIC, Position(*start[:2]), after(last)) as reader:
            assert payloads(reader) == [b"between", payload]


@pytest.mark.fault(39, 100)
def test_an_older_message_of_the_same_producer_and_number_is_not_the_lost_one() -> None:
    """Producers with a name of their own begin to count anew, and chunks are known by both."""
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        for entry in chunks_of(os.urandom(3000), 1000, "a", NOW):
            broker.append(TOPIC, entry)
        broker.roll_ledger(TOPIC)
        others = chunks_of(os.urandom(3000), 1000, "a", NOW + 86_500_000)[1:]
        start = add_plain(broker, TOPIC, b"between", publish_time=NOW + 86_500_000)
        for entry in others:
            last = broker.append(TOPIC, entry)
        with reading(broker, TOPIC, Position(*start[:2]), after(last)) as reader:
            assert bytes(next(iter(reader)).payload) == b"between"
            with pytest.raises(IncompleteMessage):
                reader.next_entry()


DAMAGED = [
    pytest.param(stored_entry(b"x")[:-1] + b"y", id="checksum"),
    pytest.param(b"\x00\x00\x00\x02\xff\xff", id="metadata"),
    pytest.param(b"\x00", id="short"),
    pytest.param(stored_entry(b"", num_messages_in_batch=0), id="no messages"),
]


@pytest.mark.fault(33, 39)
@pytest.mark.parametrize("is_far", [False, True])
@pytest.mark.parametrize("entry", DAMAGED)
def test_chunks_are_found_over_damaged_entries_before_the_range(entry: bytes, is_far: bool) -> None:
    payload = os.urandom(3000)
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        broker.append(TOPIC, entry, messages=1)
        first, *others = chunks_of(payload, 1000, "a")
        broker.append(TOPIC, first)
        broker.append(TOPIC, entry, messages=1)
        if is_far:
            broker.roll_ledger(TOPIC)
        start = add_plain(broker, TOPIC, b"between", publish_time=NOW)
        for each in others:
            last = broker.append(TOPIC, each)
        with reading(broker, TOPIC, Position(*start[:2]), after(last)) as reader:
            assert payloads(reader) == [b"between", payload]


@pytest.mark.fault(33, 39)
@pytest.mark.parametrize("entry", DAMAGED)
def test_a_damaged_chunk_before_the_range_leaves_its_message_incomplete(entry: bytes) -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        broker.append(TOPIC, entry, messages=1)
        start = add_plain(broker, TOPIC, b"between", publish_time=NOW)
        for each in chunks_of(os.urandom(3000), 1000, "a")[1:]:
            last = broker.append(TOPIC, each)
        with reading(broker, TOPIC, Position(*start[:2]), after(last)) as reader:
            assert bytes(next(iter(reader)).payload) == b"between"
            with pytest.raises(IncompleteMessage, match="are damaged") as caught:
                reader.next_entry()
            assert caught.value.message_id == f"{last.ledger_id}:{last.entry_id}"


@pytest.mark.fault(39)
def test_what_was_begun_and_never_ended_is_no_message() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        for entry in chunks_of(os.urandom(3000), 1000, "a")[:-1]:
            broker.append(TOPIC, entry)
        last = add_plain(broker, TOPIC, b"behind")
        end = Position(last.ledger_id, last.entry_id + 1)
        with reading(broker, TOPIC, end=end) as reader:
            assert payloads(reader) == [b"behind"]


def interleave(broker: EmbeddedBroker, producers: int, rounds: int, size: int) -> list[bytes]:
    """Let producers send chunks in turn; return the messages in the order of their last chunks."""
    sent: list[bytes] = []
    for turn in range(rounds):
        messages = [os.urandom(size) for _ in range(producers)]
        add_interleaved(broker, TOPIC, messages, size // 3 + 1, f"p{turn}")
        sent += messages
    return sent


@pytest.mark.fault(39, 100)
def test_many_producers_may_send_messages_in_chunks_at_once() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        sent = interleave(broker, producers=20, rounds=15, size=3000)
        last = broker.stats(TOPIC).last
        assert last is not None
        with reading(broker, TOPIC, end=after(last)) as reader:
            assert payloads(reader) == sent
        assert broker.faults.seen("SUBSCRIBE") == 1


@pytest.mark.fault(39, 100)
def test_messages_in_chunks_that_find_no_room_in_memory_are_read_all_the_same() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        sent = interleave(broker, producers=20, rounds=3, size=30_000)
        last = broker.stats(TOPIC).last
        assert last is not None
        decoder = EntryDecoder(TOPIC, EARLIEST_POSITION, after(last), 200_000)
        with (
            ConnectionPool(quick(broker)) as pool,
            EntryReader(pool, TOPIC, EARLIEST_POSITION, after(last)) as reader,
        ):
            reader._decoder = decoder
            found = []
            for entry in reader:
                found.append(bytes(entry.payload))
                assert decoder._chunks.buffered <= 200_000
                # The bound grows to the broker's limit.
                decoder.limit = 200_000
        assert found == sent
        # Their first positions are remembered, and some fit into memory.
        assert 10 < broker.faults.seen("SUBSCRIBE") < 61
        assert broker.faults.seen("SEEK") == 0


@pytest.mark.fault(39)
def test_a_last_chunk_that_was_sent_twice_is_one_message() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        payload = os.urandom(3000)
        entries = chunks_of(payload, 1000, "a")
        for entry in [*entries, entries[-1]]:
            last = broker.append(TOPIC, entry)
        with reading(broker, TOPIC, end=after(last)) as reader:
            assert payloads(reader) == [payload]


@pytest.mark.fault(39)
def test_many_unfinished_messages_cost_bounded_memory_and_lose_no_finished_one() -> None:
    budget = 100_000
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        payload = os.urandom(3000)
        whole = chunks_of(payload, 1000, "whole")
        broker.append(TOPIC, whole[0])
        for number in range(200):
            entry = chunks_of(os.urandom(3000), 1000, f"never-{number}")[0]
            broker.append(TOPIC, entry)
        for entry in whole[1:]:
            last = broker.append(TOPIC, entry)
        with reading(broker, TOPIC, end=after(last), memory_budget=budget) as reader:
            assert payloads(reader) == [payload]
            assert reader._decoder._chunks.buffered <= budget


@pytest.mark.fault(39)
def test_a_message_that_exceeds_the_memory_is_an_error_with_its_place() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        first, *_ = [broker.append(TOPIC, e) for e in chunks_of(os.urandom(50_000), 10_000, "a")]
        with reading(broker, TOPIC, memory_budget=20_000) as reader:
            with pytest.raises(MessageTooLarge) as caught:
                reader.next_entry()
            assert caught.value.message_id == f"{first.ledger_id}:{first.entry_id}"


@pytest.mark.fault(39)
@pytest.mark.parametrize("count", [-1, 0, 2**31 - 1])
def test_impossible_numbers_of_chunks_are_errors_or_plain_messages(count: int) -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        entry = stored_entry(
            b"x", uuid="a", chunk_id=0, num_chunks_from_msg=count, total_chunk_msg_size=-5
        )
        broker.append(TOPIC, entry)
        with reading(broker, TOPIC) as reader:
            if count <= 1:
                found = reader.next_entry()
                assert found is not None
                assert bytes(found.payload) == b"x"
            else:
                with pytest.raises(CorruptMessage):
                    reader.next_entry()
