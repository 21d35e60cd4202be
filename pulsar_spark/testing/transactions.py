"""Transactions: the coordinator, and a topic's transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.testing.entry_log import Entry, Place
from pulsar_spark.testing.refusals import Refusal

if TYPE_CHECKING:
    from pulsar_spark.testing.topic import Topic

COORDINATOR_TOPIC = "persistent://pulsar/system/transaction_coordinator_assign"
COORDINATOR = f"{COORDINATOR_TOPIC}-partition-0"
"""The topic that clients look up to find the coordinator; there is one partition."""

_PACKAGE = "org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException"
# The shortest timeout that a test's clock can distinguish from zero.
_LEAST_SECONDS = 0.001


class TransactionBuffer:
    """A topic's transactions: where open ones start, and which were aborted."""

    def __init__(self) -> None:
        # In the order of their first entries.
        self.open: dict[TxnId, Place] = {}
        self._aborted: set[TxnId] = set()

    def add(self, entry: Entry) -> None:
        """Register a stored entry; one that arrives after the end changes nothing."""
        if entry.txn is not None and entry.txn not in self._aborted:
            self.open.setdefault(entry.txn, entry.place)

    def end(self, txn: TxnId, *, commit: bool) -> None:
        """Make the entries of a transaction visible, or drop them."""
        self.open.pop(txn, None)
        if not commit:
            self._aborted.add(txn)

    def holds(self, place: Place) -> bool:
        """Whether a place is at or after an open transaction's first entry."""
        return bool(self.open) and place >= next(iter(self.open.values()))

    def is_aborted(self, entry: Entry) -> bool:
        """Whether an entry belongs to an aborted transaction, by its metadata."""
        return entry.written_in is not None and entry.written_in in self._aborted

    def shows(self, entry: Entry) -> bool:
        """Whether an entry can be delivered."""
        return not self.holds(entry.place) and not self.is_aborted(entry)


@dataclass(slots=True)
class OpenTransaction:
    """An open transaction: the names of its participants. `commits` is set when it has to end."""

    commits: bool | None = None
    partitions: dict[str, None] = field(default_factory=dict)
    subscriptions: dict[tuple[str, str], None] = field(default_factory=dict)


class Coordinator:
    """Begins and ends transactions, and forgets ended ones.

    `find` returns the topic of a full name, if there is one.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, find: Callable[[str], Topic | None]
    ) -> None:
        self.open: dict[TxnId, OpenTransaction] = {}
        self._loop = loop
        self._find = find
        self._begun = 0

    def begin(self, ttl_millis: int) -> TxnId:
        """Begin a transaction, which is aborted after some time."""
        txn = TxnId(0, self._begun)
        self._begun += 1
        self.open[txn] = OpenTransaction()
        self._loop.call_later(max(ttl_millis / 1000, _LEAST_SECONDS), lambda: self._expire(txn))
        return txn

    def add_partitions(self, txn: TxnId, names: Iterable[str]) -> None:
        """Add topics; raises Refusal for an unknown transaction, or one that ends."""
        self._open(txn).partitions.update(dict.fromkeys(names))

    def add_subscription(self, txn: TxnId, topic: str, subscription: str) -> None:
        """Add a subscription of a topic."""
        self._open(txn).subscriptions[topic, subscription] = None

    def end(self, txn: TxnId, *, commit: bool) -> bool:
        """Commit or abort a transaction, and forget it; false if it cannot end now.

        That is so while a terminated topic takes part, which takes no marker: only the others end
        it. A real coordinator tries again until that topic is deleted, and answers nothing.
        """
        ending = self._known(txn)
        if ending.commits not in (None, commit):
            raise _wrong_status(txn, "COMMITTED" if commit else "ABORTED", ending)
        ending.commits = commit
        for name in list(ending.partitions):
            topic = self._find(name)
            if topic is None or not topic.terminated:
                del ending.partitions[name]
                if topic is not None:
                    topic.end_transaction(txn, commit=commit)
        if ending.partitions:
            return False
        del self.open[txn]
        for name, subscription in ending.subscriptions:
            topic = self._find(name)
            if topic is not None and (found := topic.subscriptions.get(subscription)) is not None:
                found.end_transaction(txn, commit=commit)
        return True

    def _expire(self, txn: TxnId) -> None:
        if txn in self.open and self.open[txn].commits is None:
            self.end(txn, commit=False)

    def _open(self, txn: TxnId) -> OpenTransaction:
        found = self._known(txn)
        if found.commits is not None:
            raise _wrong_status(txn, "OPEN", found)
        return found

    def _known(self, txn: TxnId) -> OpenTransaction:
        found = self.open.get(txn)
        if found is None:
            raise Refusal(
                pb.TransactionNotFound,
                f"The transaction with this txdID `({txn.most_bits},{txn.least_bits})`not found ",
            )
        return found


def _wrong_status(txn: TxnId, wanted: str, found: OpenTransaction) -> Refusal:
    status = "COMMITTING" if found.commits else "ABORTING"
    return Refusal(
        pb.InvalidTxnStatus,
        f"{_PACKAGE}$InvalidTxnStatusException: Expect Txn `({txn.most_bits},{txn.least_bits})` to "
        f"be in {wanted} status but it is in {status} status",
    )
