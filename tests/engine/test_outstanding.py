"""Entries that the user was given and has not settled."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from pulsar_spark.engine.consumers import outstanding as module
from pulsar_spark.engine.consumers.acknowledgments import Ack, AckTracker, EntryKey
from pulsar_spark.engine.consumers.outstanding import OutstandingEntries
from pulsar_spark.engine.options import ConsumerOptions
from pulsar_spark.engine.timers import Timers
from pulsar_spark.protocol.message_id import MessageIdAdv

NEVER = 3600.0
SOON = 0.05


@dataclass
class Around:
    """What an outstanding entry's consumer does."""

    timers: Timers
    due: queue.SimpleQueue[list[EntryKey]] = field(default_factory=queue.SimpleQueue)
    settled: list[EntryKey] = field(default_factory=list)
    acked: list[EntryKey] = field(default_factory=list)

    def make(self, **changes: Any) -> OutstandingEntries:
        chosen = {"ack_delay": 0.0, "ack_timeout": NEVER, "nack_delay": NEVER, **changes}
        options = ConsumerOptions("s", **chosen)
        acks = AckTracker(options, self.timers, self._send)
        return OutstandingEntries(options, self.timers, acks, self.due.put, self.settled.append)

    def _send(self, ack: Ack) -> bool:
        self.acked += [(found.ledgerId, found.entryId) for found in ack.message_ids]
        return True

    def come(self, count: int) -> list[EntryKey]:
        """Wait until so many entries are due; return them."""
        found: list[EntryKey] = []
        while len(found) < count:
            found += self.due.get(timeout=60)
        return sorted(found)


@pytest.fixture
def around(timers: Timers) -> Around:
    return Around(timers)


def test_an_entry_is_due_when_it_was_given_and_not_acknowledged(around: Around) -> None:
    entries = around.make(ack_timeout=2.0)
    for entry in range(3):
        entries.given((1, entry))
    entries.acknowledge(MessageIdAdv(1, 1), None)
    assert around.settled == [(1, 1)]
    assert around.come(2) == [(1, 0), (1, 2)]


def test_an_entry_that_is_refused_is_due_after_its_own_delay_alone(around: Around) -> None:
    entries = around.make(nack_delay=SOON)
    entries.given((1, 0))
    entries.refuse((1, 0), 0)
    # Another message of the same batch.
    entries.given((1, 0))
    assert around.come(1) == [(1, 0)]
    entries.close()
    assert not around.timers.waiting


@pytest.mark.parametrize(
    "settle",
    [
        lambda entries: entries.acknowledge(MessageIdAdv(1, 0), None),
        lambda entries: entries.acknowledge_upto(MessageIdAdv(1, 0), None),
        lambda entries: entries.acknowledged_in_transaction(MessageIdAdv(1, 0), cumulative=False),
        lambda entries: entries.redelivered(),
        lambda entries: entries.clear(),
    ],
)
def test_what_is_settled_is_not_due(
    around: Around, settle: Callable[[OutstandingEntries], object]
) -> None:
    entries = around.make()
    entries.given((1, 0))
    assert len(entries._unacked)
    settle(entries)
    assert not len(entries._unacked)


def test_a_batch_is_not_due_once_transactions_have_acknowledged_all_of_it(around: Around) -> None:
    entries = around.make()
    entries.given((1, 0))
    entries.refuse((1, 1), 0)
    for entry, due in ((0, entries._unacked), (1, entries._nacked)):
        for index in (1, 0):
            assert len(due)
            found = MessageIdAdv(1, entry, -1, index, 2)
            entries.acknowledged_in_transaction(found, cumulative=False)
        assert not len(due)


def test_a_chunked_message_is_all_its_entries_until_it_is_acknowledged(around: Around) -> None:
    entries = around.make()
    chunks = [MessageIdAdv(1, entry) for entry in (3, 5, 8)]
    entries.chunked((1, 8), chunks)
    assert entries.entries_of((1, 8)) == ((1, 3), (1, 5), (1, 8))
    assert entries.entries_of((1, 5)) == ((1, 5),)
    entries.acknowledge(MessageIdAdv(1, 8), None)
    assert sorted(around.acked) == [(1, 3), (1, 5), (1, 8)]
    assert entries.entries_of((1, 8)) == ((1, 8),)


def test_the_oldest_chunked_messages_are_forgotten_first(
    around: Around, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_CHUNKED", 2)
    entries = around.make()
    for entry in (1, 3, 5):
        entries.chunked((1, entry), [MessageIdAdv(1, entry - 1), MessageIdAdv(1, entry)])
    assert entries.entries_of((1, 1)) == ((1, 1),)
    assert entries.entries_of((1, 3)) == ((1, 2), (1, 3))


def test_an_entry_is_settled_with_the_last_of_its_messages_in_either_way(around: Around) -> None:
    entries = around.make()
    for entry in range(3):
        entries.given((1, entry))
    entries.acknowledge(MessageIdAdv(1, 1, -1, 1, 2), None)
    entries.acknowledge_upto(MessageIdAdv(1, 1, -1, 0, 2), None)
    assert (1, 1) in around.settled
    assert [(1, entry) in entries._unacked for entry in range(3)] == [False, False, True]
