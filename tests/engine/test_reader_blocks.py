"""Ranges read in blocks give the same messages as entry by entry, whatever happens."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.consumers.reader import EntryReader
from pulsar_spark.errors import CorruptMessage, RemoteProtocolError
from pulsar_spark.protocol.blocks import BlockOptions, Columns
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.topics import (
    Message,
    add_batch,
    add_plain,
    after_last,
    fill,
    quick,
    reading,
)

TOPIC = "persistent://public/default/t"


def wanted(end: Position | None, max_rows: int = 10_000) -> BlockOptions:
    columns = frozenset({"value", "ledger_id", "entry_id", "batch_index"})
    return BlockOptions(TOPIC, -1, columns, end, max_rows, 1 << 22, 1 << 24)


def messages_of(item: Columns) -> list[Message]:
    _, offsets, data, _ = item.columns["value"]
    edges, joined = memoryview(bytes(offsets)).cast("i"), bytes(data)
    found = []
    for row in range(item.rows):
        ledger_id, entry_id, index, _ = item.locate(row)
        value = joined[edges[row] : edges[row + 1]]
        found.append(Message(ledger_id, entry_id, max(index, 0), value))
    return found


def read(reader: EntryReader, end: Position, max_rows: int = 10_000) -> Iterator[Columns]:
    return reader.read(wanted(end, max_rows))


@pytest.mark.fault(62)
@pytest.mark.parametrize("first, last", [(0, 89), (1, 88), (4, 4), (31, 60), (30, 62)])
def test_a_range_holds_the_same_messages_in_blocks(first: int, last: int) -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 30)[first : last + 1]
        start = Position(messages[0].ledger_id, messages[0].entry_id, messages[0].batch_index)
        end = after_last(messages)
        with reading(broker, TOPIC, start=start, end=end) as reader:
            found = [message for item in read(reader, end) for message in messages_of(item)]
            assert reader.finished
    assert found == messages


def test_rare_entries_come_in_their_place() -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 4)
        messages += [
            message
            for number in range(20)
            for message in [
                # The encoding's name does not matter, but blocks do not know the field.
                add_plain(broker, TOPIC, b"rare-%d" % number, replicate_to=["a"], uuid="u"),
                add_plain(broker, TOPIC, b"plain-%d" % number),
                *add_batch(broker, TOPIC, [b"b-%d" % number, b"c"]),
            ]
        ]
        add_plain(broker, TOPIC, b"behind")
        end = after_last(messages)
        with reading(broker, TOPIC, end=end) as reader:
            found = [message for item in read(reader, end) for message in messages_of(item)]
    assert found == messages


@pytest.mark.fault(11, 14, 21)
@pytest.mark.parametrize("kind", ["disconnect", "unload", "close"])
def test_whatever_ends_the_consumer_blocks_lose_and_repeat_nothing(kind: str) -> None:
    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 60)
        troubles: dict[str, Callable[[], object]] = {
            "disconnect": broker.faults.disconnect,
            "unload": lambda: broker.unload(TOPIC),
            "close": lambda: broker.faults.close_consumers(TOPIC),
        }
        end = after_last(messages)
        found: list[Message] = []
        options: dict[str, Any] = {"auto_scale": False, "receiver_queue_size": 6}
        with reading(broker, TOPIC, end=end, **options) as reader:
            # Columns end within batches of three.
            for number, item in enumerate(read(reader, end, max_rows=4)):
                found += messages_of(item)
                if number % 9 == 3:
                    troubles[kind]()
    assert found == messages
    assert broker.faults.seen("SUBSCRIBE") > 3
    assert broker.internal_errors == ()


@pytest.mark.fault(33)
def test_damage_is_an_error_that_names_the_message() -> None:
    def damage(frame: bytes) -> bytes:
        return frame[:-1] + b"?" if b"damaged" in frame else frame

    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        good, bad = add_plain(broker, TOPIC, b"good"), add_plain(broker, TOPIC, b"damaged")
        broker.faults.rewrite("MESSAGE", damage, times=None)
        end = Position(bad.ledger_id, bad.entry_id + 1)
        with reading(broker, TOPIC, end=end) as reader:
            columns = read(reader, end, max_rows=1)
            assert messages_of(next(columns)) == [good]
            with pytest.raises(CorruptMessage) as caught:
                next(columns)
            assert reader.position[:2] == (bad.ledger_id, bad.entry_id)
    assert caught.value.message_id == f"{bad.ledger_id}:{bad.entry_id}"


@pytest.mark.fault(28)
def test_a_frame_whose_command_cannot_be_parsed_ends_the_read() -> None:
    def spoil(frame: bytes) -> bytes:
        # The entry id's tag becomes one with an unknown wire type.
        at = frame.index(b"\x10", 16)
        return frame[:at] + b"\x17" + frame[at + 1 :]

    with EmbeddedBroker() as broker:
        messages = fill(broker, TOPIC, 3)
        broker.faults.rewrite("MESSAGE", spoil, times=1)
        end = after_last(messages)
        with reading(broker, TOPIC, end=end) as reader, pytest.raises(RemoteProtocolError):
            list(read(reader, end))


class Ledgers:
    """Records what a reader reports to its watch."""

    def __init__(self) -> None:
        self.began: list[tuple[Position, Position]] = []
        self.ends: list[tuple[Position, Position | None]] = []

    def on_ledger(self, before: Position, found: Position) -> None:
        self.began.append((before, found))

    def on_end(self, before: Position, found: Position | None) -> None:
        self.ends.append((before, found))


@pytest.mark.fault(101)
@pytest.mark.parametrize("max_rows", [0, 1, 2, 4, 10_000])
def test_each_ledger_is_reported_once_however_the_range_is_read(max_rows: int) -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        messages = fill(broker, TOPIC, 30)
        firsts = [
            Position(*messages[0][:2]),
            *(
                Position(*here[:2])
                for before, here in itertools.pairwise(messages)
                if before.ledger_id != here.ledger_id
            ),
        ]
        behind = [
            Position(before.ledger_id, before.entry_id + 1)
            for before, here in itertools.pairwise(messages)
            if before.ledger_id != here.ledger_id
        ]
        end = Position(messages[-1].ledger_id, messages[-1].entry_id + 5)
        for stop in (end, Position(*messages[-1][:2])):
            heard = Ledgers()
            with EntryReader(pool, TOPIC, EARLIEST_POSITION, stop, watch=heard) as reader:
                for _ in reader if max_rows == 0 else read(reader, stop, max_rows):
                    continue
            assert heard.began == list(zip([EARLIEST_POSITION, *behind], firsts, strict=True))
            last = Position(messages[-1].ledger_id, messages[-1].entry_id + 1)
            assert heard.ends == ([(last, None)] if stop == end else [])
        # The next entry can be after the end, too.
        heard = Ledgers()
        gap = behind[0]._replace(entry_id=behind[0].entry_id + 3)
        with EntryReader(pool, TOPIC, EARLIEST_POSITION, gap, watch=heard) as reader:
            for _ in reader if max_rows == 0 else read(reader, gap, max_rows):
                continue
        assert heard.ends == [(behind[0], firsts[1])]
