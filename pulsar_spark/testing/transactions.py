"""Transactions: the coordinator, and the state of transactions on a topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.testing.entry_log import Entry, Place
from pulsar_spark.testing.refusals import Refusal

if TYPE_CHECKING:
    from pulsar_spark.testing.topic import Clock, Topic

COORDINATOR_TOPIC = "persistent://pulsar/system/transaction_coordinator_assign"
COORDINATOR = f"{COORDINATOR_TOPIC}-partition-0"
"""What a client looks up to find the coordinator; there is one."""

_PACKAGE = "org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException"
# The shortest time-out that the clock of a test can tell from none.
_LEAST_SECONDS = 0.001


class TransactionBuffer:
    """The transactions on one topic: where those that are open begin, and which were aborted."""

    def __init__(self) -> None:
        # In the order of their first entries.
        self.open: dict[TxnId, Place] = {}
        self._aborted: set[TxnId] = set()

    def add(self, entry: Entry) -> None:
        """Take note of an entry that was stored; one that comes late changes no outcome."""
        if entry.txn is not None and entry.txn not in self._aborted:
            self.open.setdefault(entry.txn, entry.place)

    def end(self, txn: TxnId, *, commit: bool) -> None:
        """Make the entries of a transaction visible, or drop them."""
        self.open.pop(txn, None)
        if not commit:
            self._aborted.add(txn)

    def holds(self, place: Place) -> bool:
        """Whether a place lies at or behind the first entry of a transaction that is open."""
        return bool(self.open) and place >= next(iter(self.open.values()))

    def is_aborted(self, entry: Entry) -> bool:
        """Whether an entry belongs to an aborted transaction, so that nobody gets it."""
        return entry.txn is not None and entry.txn in self._aborted

    def shows(self, entry: Entry) -> bool:
        """Whether an entry can be delivered."""
        return not self.holds(entry.place) and not self.is_aborted(entry)


class OpenTransaction:
    """A transaction that was begun and not ended: the names of what takes part in it."""

    __slots__ = ("partitions", "subscriptions")

    def __init__(self) -> None:
        self.partitions: dict[str, None] = {}
        self.subscriptions: dict[tuple[str, str], None] = {}


class Coordinator:
    """Begins and ends transactions, and forgets those that were ended.

    `find` returns the topic of a full name, if there is one.
    """

    def __init__(self, clock: Clock, find: Callable[[str], Topic | None]) -> None:
        self.open: dict[TxnId, OpenTransaction] = {}
        self._clock = clock
        self._find = find
        self._begun = 0

    def begin(self, ttl_millis: int) -> TxnId:
        """Begin a transaction that is aborted after some time."""
        txn = TxnId(0, self._begun)
        self._begun += 1
        self.open[txn] = OpenTransaction()
        self._clock.call_later(max(ttl_millis / 1000, _LEAST_SECONDS), lambda: self._expire(txn))
        return txn

    def add_partition(self, txn: TxnId, name: str) -> None:
        """Let a topic take part; raises Refusal for a transaction that is not known."""
        self._known(txn).partitions[name] = None

    def add_subscription(self, txn: TxnId, topic: str, subscription: str) -> None:
        """Let a subscription of a topic take part."""
        self._known(txn).subscriptions[topic, subscription] = None

    def end(self, txn: TxnId, *, commit: bool) -> None:
        """Commit or abort a transaction, and forget it."""
        ending = self._known(txn)
        del self.open[txn]
        for name in ending.partitions:
            if (topic := self._find(name)) is not None:
                topic.end_transaction(txn, commit=commit)
        for name, subscription in ending.subscriptions:
            topic = self._find(name)
            if topic is not None and (found := topic.subscriptions.get(subscription)) is not None:
                found.end_transaction(txn, commit=commit)

    def _expire(self, txn: TxnId) -> None:
        if txn in self.open:
            self.end(txn, commit=False)

    def _known(self, txn: TxnId) -> OpenTransaction:
        found = self.open.get(txn)
        if found is None:
            raise Refusal(
                pb.TransactionNotFound,
                f"{_PACKAGE}$TransactionNotFoundException: The transaction with this txdID "
                f"`({txn.most_bits},{txn.least_bits})` not found",
            )
        return found
