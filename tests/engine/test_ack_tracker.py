"""Acknowledgements that wait to be grouped, and for the consumer to be attached."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.engine.consumers import acknowledgments
from pulsar_spark.engine.consumers.acknowledgments import Ack, AckTracker, EntryKey, EntryOrder
from pulsar_spark.engine.consumers.outstanding import DueEntries
from pulsar_spark.engine.options import ConsumerOptions
from pulsar_spark.engine.timers import Timers
from pulsar_spark.errors import ClosedError, ConnectionLost, OptionError
from pulsar_spark.protocol.ack_sets import MAX_BATCH, ack_bits, bits_from
from pulsar_spark.protocol.message_id import MessageIdAdv, Position
from tests.support.waiting import wait_until


class Broker:
    """Accepts acknowledgements while it is attached."""

    def __init__(self) -> None:
        self.there = True
        self.acks: list[Ack] = []
        self.answers: list[Future[Any]] = []

    def send(self, ack: Ack) -> Future[Any] | bool:
        if not self.there:
            return False
        self.acks.append(ack)
        if not ack.receipt:
            return True
        self.answers.append(Future())
        return self.answers[-1]

    def seen(self) -> list[tuple[int, int, int]]:
        """Ledger, entry and bits of each id that was sent one by one."""
        return [
            (found.ledgerId, found.entryId, ack_bits(found.ack_set))
            for ack in self.acks
            if not ack.cumulative
            for found in ack.message_ids
        ]

    def upto(self) -> list[tuple[int, int]]:
        return [
            (ack.message_ids[0].ledgerId, ack.message_ids[0].entryId)
            for ack in self.acks
            if ack.cumulative
        ]


@pytest.fixture
def broker() -> Broker:
    return Broker()


def tracker(timers: Timers, broker: Broker, **changes: Any) -> AckTracker:
    options = ConsumerOptions("s", **{"ack_delay": 3600.0, **changes})
    return AckTracker(options, timers, broker.send)


def one(entry: int, index: int = -1, size: int = 0) -> MessageIdAdv:
    return MessageIdAdv(1, entry, -1, index, size)


def test_many_go_out_in_one_command(timers: Timers, broker: Broker) -> None:
    acks = tracker(timers, broker, ack_delay=1.0)
    for entry in range(10):
        assert acks.acknowledge(one(entry)) == (True, None)
    assert not broker.acks
    wait_until(lambda: broker.acks, "they are not sent")
    assert broker.seen() == [(1, entry, 0) for entry in range(10)]
    assert len(broker.acks) == 1


def test_a_full_group_goes_at_once(timers: Timers, broker: Broker) -> None:
    acks = tracker(timers, broker, ack_group_size=3)
    for entry in range(7):
        acks.acknowledge(one(entry))
    assert [len(ack.message_ids) for ack in broker.acks] == [3, 3]


def test_a_group_is_in_order_as_brokers_pass_over_what_follows_one_behind_the_end(
    timers: Timers, broker: Broker
) -> None:
    acks = tracker(timers, broker)
    for entry in (9, 2, 5):
        acks.acknowledge(one(entry))
    acks.flush()
    assert broker.seen() == [(1, 2, 0), (1, 5, 0), (1, 9, 0)]


def test_an_entry_is_done_with_the_last_message_of_its_batch(
    timers: Timers, broker: Broker
) -> None:
    acks = tracker(timers, broker, ack_delay=0)
    done = [acks.acknowledge(one(0, index, 3))[0] for index in (2, 0, 0, 1)]
    assert done == [False, False, False, True]
    assert broker.seen() == [(1, 0, 0)]


def test_parts_of_a_batch_are_told_by_their_bits(timers: Timers, broker: Broker) -> None:
    acks = tracker(timers, broker, ack_delay=0, batch_index_acks=True)
    acks.begin((1, 0), 0b0111)
    for index in (1, 0, 2):
        acks.acknowledge(one(0, index, 4))
    assert broker.seen() == [(1, 0, 0b0101), (1, 0, 0b0100), (1, 0, 0)]


def test_an_entry_of_which_nothing_is_left_is_acknowledged(timers: Timers, broker: Broker) -> None:
    acks = tracker(timers, broker)
    acks.begin((1, 0), 0b0100)
    assert acks.acknowledge(one(0, 2, 4))[0]
    acks.begin((1, 3), 0, [(1, 2), (1, 3)])
    # Not of another generation.
    acks.begin((1, 4), 0, (), lambda: False)
    acks.begin((1, 5), 0b0100, (), lambda: False)
    assert not acks.acknowledge(one(5, 2, 4))[0]
    assert sorted(broker.seen()) == [(1, 0, 0), (1, 2, 0), (1, 3, 0)]


@pytest.mark.parametrize("batch_index_acks", [False, True])
def test_what_a_transaction_acknowledged_is_left_out_until_it_comes_again(
    timers: Timers, broker: Broker, batch_index_acks: bool
) -> None:
    acks = tracker(timers, broker, ack_delay=0, batch_index_acks=batch_index_acks)
    assert not acks.acknowledged_in_transaction(one(0, 1, 4), cumulative=True)
    assert [acks.is_done(one(0, index, 4)) for index in range(4)] == [True, True, False, False]
    assert not acks.acknowledge(one(0, 2, 4))[0]
    # The last one sends all that no transaction does.
    assert acks.acknowledge(one(0, 3, 4))[0]
    assert broker.seen()[-1] == (1, 0, 0b0011)
    assert acks.may_know((1, 0))
    acks.comes_again((1, 0))
    assert not acks.may_know((1, 0))
    assert not acks.is_done(one(0, 1, 4))
    assert not acks.acknowledged_in_transaction(one(0, 0, 4), cumulative=False)
    assert acks.acknowledged_in_transaction(one(0, 1, 4), cumulative=False)


def test_of_the_batches_in_transactions_the_oldest_is_forgotten_first(
    timers: Timers, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acknowledgments, "MAX_PARTIAL", 2)
    acks = tracker(timers, broker)
    for entry in (0, 1, 0, 2):
        acks.acknowledged_in_transaction(one(entry, 0, 3), cumulative=False)
    assert [acks.is_done(one(entry, 0, 3)) for entry in range(3)] == [True, False, True]
    acks.clear()
    assert not acks.is_done(one(0, 0, 3))


def test_a_part_that_waits_is_the_newest_one(timers: Timers, broker: Broker) -> None:
    acks = tracker(timers, broker, batch_index_acks=True)
    acks.acknowledge(one(0, 1, 3))
    acks.acknowledge(one(0, 2, 3))
    assert acks.left_of((1, 0), 0b111) == 0b001
    assert acks.is_done(one(0, 1, 3))
    assert not acks.is_done(one(0, 0, 3))
    acks.flush()
    assert broker.seen() == [(1, 0, 0b001)]


def test_a_message_that_is_acknowledged_twice_undoes_nothing(
    timers: Timers, broker: Broker
) -> None:
    acks = tracker(timers, broker, batch_index_acks=True)
    for index in (0, 1, 0):
        acks.acknowledge(one(3, index, 2))
    acks.flush()
    assert broker.seen() == [(1, 3, 0)]


def test_a_batch_id_without_a_size_is_refused(timers: Timers, broker: Broker) -> None:
    acks = tracker(timers, broker)
    for wrong in (one(0, 2), one(0, 3, 3), one(0, 2, MAX_BATCH + 1)):
        with pytest.raises(OptionError, match="batch"):
            acks.acknowledge(wrong)
    for wrong in (one(0, 3, 3), one(0, 2, MAX_BATCH + 1)):
        with pytest.raises(OptionError, match="batch"):
            acks.acknowledge_upto(wrong)


@pytest.mark.parametrize("batch_index_acks", [False, True])
def test_a_batch_id_without_a_size_acknowledges_what_is_before_the_batch(
    timers: Timers, broker: Broker, batch_index_acks: bool
) -> None:
    acks = tracker(timers, broker, batch_index_acks=batch_index_acks)
    acks.acknowledge_upto(one(9, 1))
    acks.flush()
    assert broker.upto() == [(1, 8)]


SIZES = (0, 4, 0, 2, 5)
"""The batches of a topic, 0 for a single message."""

MESSAGES = [
    one(entry, index, size)
    for entry, size in enumerate(SIZES)
    for index in (range(size) if size else [-1])
]


class Stored:
    """What a broker knows of the acknowledgements that it is sent, by entry: the bits left."""

    def __init__(self) -> None:
        self.left = {entry: bits_from(0, size or 1) for entry, size in enumerate(SIZES)}

    def send(self, ack: Ack) -> bool:
        for found in ack.message_ids:
            entry, bits = found.entryId, ack_bits(found.ack_set)
            if ack.cumulative:
                self.left.update((before, 0) for before in range(entry))
            if ack.cumulative and _first(bits) > _first(self.left[entry]):
                # As real brokers do: bits that go further replace the earlier ones.
                self.left[entry] = bits
            else:
                self.left[entry] &= bits
        return True


def _first(bits: int) -> int:
    """The first bit that is set; beyond all of them if there is none."""
    return (bits & -bits).bit_length() if bits else MAX_BATCH


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(MESSAGES), st.sampled_from(["one", "upto", "flush"])),
        max_size=24,
    ),
    batch_index_acks=st.booleans(),
    ack_delay=st.sampled_from([0.0, 3600.0]),
)
def test_brokers_know_all_that_was_acknowledged_in_any_order(
    steps: list[tuple[MessageIdAdv, str]], batch_index_acks: bool, ack_delay: float
) -> None:
    stored = Stored()
    options = ConsumerOptions("s", ack_delay=ack_delay, batch_index_acks=batch_index_acks)
    with closing(Timers()) as timers:
        acks = AckTracker(options, timers, stored.send)
        left = set(MESSAGES)
        for message, step in steps:
            if step == "one":
                done, _ = acks.acknowledge(message)
                left.discard(message)
            elif step == "upto":
                done, _ = acks.acknowledge_upto(message)
                left = {one for one in left if Position.after(one) > Position.after(message)}
            else:
                acks.flush()
                continue
            assert not (done and any(one.entry_id == message.entry_id for one in left))
        acks.close()
    bits = {
        entry: sum(1 << max(one.batch_index, 0) for one in left if one.entry_id == entry)
        for entry in stored.left
    }
    if batch_index_acks:
        assert stored.left == bits
    else:
        assert {entry for entry, one in stored.left.items() if not one} == {
            entry for entry, one in bits.items() if not one
        }


@pytest.mark.parametrize("first", ["upto", "one by one"])
def test_an_entry_is_done_when_all_of_it_is_acknowledged_in_both_ways(
    timers: Timers, broker: Broker, first: str
) -> None:
    acks = tracker(timers, broker)
    steps = [partial(acks.acknowledge_upto, one(1, 1, 4))]
    steps += [partial(acks.acknowledge, one(1, index, 4)) for index in (2, 3)]
    done = [step()[0] for step in (steps if first == "upto" else reversed(steps))]
    assert done == [False, False, True]


def test_no_acknowledgement_is_dropped_for_a_later_one(timers: Timers, broker: Broker) -> None:
    acks = tracker(timers, broker, ack_receipts=True)
    broker.there = False
    _, first = acks.acknowledge(one(1))
    _, second = acks.acknowledge_upto(one(3))
    broker.there = True
    acks.flush()
    assert broker.upto() == [(1, 3)]
    assert broker.seen() == [(1, 1, 0)]
    for answer in broker.answers:
        answer.set_result(None)
    assert [found is not None and found.done() for found in (first, second)] == [True, True]


def test_within_the_first_entry_of_a_ledger_all_before_it_is_acknowledged(
    timers: Timers, broker: Broker
) -> None:
    acks = tracker(timers, broker)
    acks.acknowledge(one(7))
    acks.acknowledge_upto(MessageIdAdv(2, 0, -1, 3, 10))
    acks.flush()
    assert broker.upto() == [(2, 2**64 - 1)]
    assert broker.seen() == [(1, 7, 0)]


def test_cumulative_ones_go_forward_only(timers: Timers, broker: Broker) -> None:
    acks = tracker(timers, broker)
    for entry in (5, 3, 8):
        acks.acknowledge_upto(one(entry))
    assert acks.left_of((1, 8), 1) == 0
    assert acks.left_of((1, 9), 1) == 1
    acks.flush()
    acks.flush()
    assert broker.upto() == [(1, 8)]
    # A batch is acknowledged completely, or up to the entry before it.
    acks.acknowledge_upto(one(9, 1, 3))
    acks.flush()
    acks.acknowledge_upto(one(9, 2, 3))
    acks.flush()
    assert broker.upto() == [(1, 8), (1, 8), (1, 9)]


def test_what_cannot_be_sent_is_known_and_sent_later(timers: Timers, broker: Broker) -> None:
    acks = tracker(timers, broker, ack_delay=0)
    broker.there = False
    acks.acknowledge(one(1))
    acks.acknowledge(one(2, 0, 2))
    acks.acknowledge_upto(one(0))
    assert acks.left_of((1, 1), 1) == 0
    assert acks.left_of((1, 0), 1) == 0
    assert acks.left_of((1, 2), 0b11) == 0b11
    broker.there = True
    acks.flush()
    assert broker.upto() == [(1, 0)]
    assert broker.seen() == [(1, 1, 0)]
    assert acks.left_of((1, 1), 1) == 1


def test_receipts_come_with_the_answer_or_its_error(timers: Timers, broker: Broker) -> None:
    acks = tracker(timers, broker, ack_receipts=True)
    _, first = acks.acknowledge(one(1))
    _, second = acks.acknowledge_upto(one(2))
    assert first is not None
    assert second is not None
    assert not first.done()
    broker.answers[0].set_result(None)
    broker.answers[1].set_exception(ConnectionLost("gone"))
    assert first.result(0) is None
    with pytest.raises(ConnectionLost):
        second.result(0)
    # An acknowledgement that was not sent yet gets its receipt at once.
    _, part = acks.acknowledge(one(3, 0, 2))
    assert part is not None
    assert part.done()
    broker.there = False
    _, last = acks.acknowledge(one(4))
    acks.close()
    assert last is not None
    with pytest.raises(ClosedError):
        last.result(0)


@pytest.mark.parametrize("sent", [False, True])
def test_receipts_of_a_closed_consumer_fail_unless_the_broker_still_answers(
    timers: Timers, broker: Broker, sent: bool
) -> None:
    acks = tracker(timers, broker, ack_receipts=True)
    before = [acks.acknowledge(one(1))[1], acks.acknowledge_upto(one(0))[1]]
    acks.close()
    # Another thread found the consumer open.
    broker.there = sent
    after = [acks.acknowledge(one(3))[1], acks.acknowledge_upto(one(2))[1]]
    for answer, lost in zip(broker.answers, (False, True, False, True), strict=False):
        answer.set_exception(ConnectionLost("gone")) if lost else answer.set_result(None)
    ended = [None if each is None else type(each.exception(0)) for each in (*before, *after)]
    fine = type(None)
    assert ended == [fine, ClosedError, *((fine, ClosedError) if sent else (ClosedError,) * 2)]


def test_properties_go_with_their_own_message_and_wait_for_a_place(
    timers: Timers, broker: Broker
) -> None:
    acks = tracker(timers, broker, ack_receipts=True)
    broker.there = False
    acks.acknowledge(one(1))
    acks.acknowledge(one(2), [(1, 3)], {"round": 7})
    acks.acknowledge(one(4))
    acks.acknowledge_upto(one(0), {"upto": 9})
    broker.there = True
    acks.flush()
    told = [
        ([found.entryId for found in ack.message_ids], list((ack.properties or {}).items()))
        for ack in broker.acks
    ]
    assert told == [([0], [("upto", 9)]), ([1], []), ([2, 3], [("round", 7)]), ([4], [])]
    # Answers come in order, so the last one is enough.
    assert [ack.receipt for ack in broker.acks] == [True, False, False, True]


def test_a_seek_forgets_everything(timers: Timers, broker: Broker) -> None:
    acks = tracker(timers, broker)
    acks.acknowledge(one(1))
    acks.acknowledge(one(2, 0, 2))
    acks.acknowledge_upto(one(0))
    acks.clear()
    acks.flush()
    assert not broker.acks
    assert acks.acknowledge(one(2, 1, 2))[0] is False


def test_of_too_many_batches_the_oldest_is_forgotten(
    timers: Timers, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acknowledgments, "MAX_PARTIAL", 2)
    acks = tracker(timers, broker)
    for entry in range(3):
        acks.acknowledge(one(entry, 0, 2))
    assert [acks.acknowledge(one(entry, 1, 2))[0] for entry in (2, 1, 0)] == [True, True, False]


class Counted(tuple[int, int]):
    """An entry's key that counts how often one is compared with another."""

    comparisons = 0

    def __lt__(self, other: tuple[int, ...]) -> bool:
        Counted.comparisons += 1
        return tuple.__lt__(self, other)


def keep_in_order(timers: Timers, count: int) -> Callable[[Position], object]:
    book = dict.fromkeys(Counted((1, entry)) for entry in range(count))
    order = EntryOrder(book)
    for key in book:
        order.add(key)
    return order.take_before


def keep_due(timers: Timers, count: int) -> Callable[[Position], object]:
    due = DueEntries(timers, 3600.0, lambda keys: None)
    for entry in range(count):
        due.put(Counted((1, entry)), 3600.0)
    return due.discard_before


@pytest.mark.fault(201)
@pytest.mark.parametrize("keep", [keep_in_order, keep_due])
def test_an_acknowledgement_up_to_a_message_looks_at_none_behind_it(
    timers: Timers, keep: Callable[[Timers, int], Callable[[Position], object]]
) -> None:
    counts: list[int] = []
    for count in (1_000, 16_000):
        forget_before = keep(timers, count)
        Counted.comparisons = 0
        for entry in range(500):
            forget_before(Position(1, entry + 1))
        counts.append(Counted.comparisons)
    few, many = counts
    # A heap of 16 times as many is deeper by four; each level costs two comparisons.
    assert 0 < many - few <= 500 * 2 * 4


@pytest.mark.fault(201)
def test_the_order_of_entries_forgets_those_that_have_left_its_book() -> None:
    book: dict[EntryKey, None] = {}
    order = EntryOrder(book)
    for entry in range(10_000):
        book[1, entry] = None
        order.add((1, entry))
        if entry >= 10:
            del book[1, entry - 10]
    assert len(order._keys) <= 2 * len(book) + 100
    assert order.take_before(Position(1, 9_995)) == {(1, entry) for entry in range(9_990, 9_995)}
    # One that comes and goes counts once.
    for _ in range(3):
        book.pop((1, 9_999), None)
        book[1, 9_999] = None
        order.add((1, 9_999))
    del book[1, 9_998]
    assert order.take_before(Position(2, 0)) == {
        (1, entry) for entry in (9_995, 9_996, 9_997, 9_999)
    }


@pytest.mark.fault(201)
def test_batches_that_are_acknowledged_up_to_a_message_are_not_known_any_more(
    timers: Timers, broker: Broker
) -> None:
    acks = tracker(timers, broker)
    for entry in range(5):
        acks.acknowledge(MessageIdAdv(1, entry, -1, 0, 2))
        acks.acknowledge(MessageIdAdv(1, entry, -1, 0, 2))
    acks.acknowledge_upto(MessageIdAdv(1, 2))
    acks.flush()
    left = [acks.is_done(MessageIdAdv(1, entry, -1, 0, 2)) for entry in range(5)]
    # Of what the broker knows nothing is kept here; it does not come again.
    assert left == [False, False, False, True, True]
