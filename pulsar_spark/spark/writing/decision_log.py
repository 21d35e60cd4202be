"""The decisions of an exactly-once sink, kept on a topic of its own.

Committing a micro-batch's transactions takes several steps, and the driver can be killed between
any two. So it first records its decision which ones to commit; the next driver finds the record and
carries it out. Records are JSON objects of these kinds:

- ``fence``: a driver has started, or asks for the outcome of transactions. Its receipt shows that
  all earlier records are stored.
- ``decided``: exactly these transactions of a unit (a micro-batch, or a batch write's job) will be
  committed.
- ``marker``: sent *within* a decided transaction. A coordinator forgets ended transactions; the
  marker is visible if and only if its transaction was committed.
- ``void``: nothing of the decision was committed, or ever will be.
- ``done``: all of the decision is committed. It names the messages that readers do not see yet, and
  says since when that is so.

The producer has exclusive access and fences its predecessor, so an older driver that is still alive
cannot write after a newer one has read. Records never wait behind open transactions: they are
written after the previous unit's transactions have ended.

A durable subscription retains the records since the last ``done``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pulsar_spark.engine.closing import Closing
from pulsar_spark.engine.consumers.probe import Probe
from pulsar_spark.engine.consumers.reader import EntryReader
from pulsar_spark.engine.consumers.subscription import EARLIEST, DurableConsumer, TopicEnd
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.operations import run, value_of
from pulsar_spark.engine.options import ProducerOptions, ReaderOptions
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.engine.retry import Backoff, Deadline, retried
from pulsar_spark.errors import (
    ProducerFenced,
    PulsarError,
    SinkStateError,
    TopicNotFound,
    TransactionOutcomeUnknown,
    without_credentials,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, MessageIdAdv, Position
from pulsar_spark.protocol.outgoing_batches import MessageFields
from pulsar_spark.protocol.sends import UnbatchedFields, single_entry

logger = logging.getLogger(__name__)

VERSION = 1
_MAX_ENDS = 20_000
"""A record with more would be as large as brokers accept."""

SUBSCRIPTION = "pulsar-spark-sink"
"""The name of the subscription that retains the records."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Rows written as a whole: micro-batch `batch` of a stream, or `job` of a batch write."""

    batch: int | None = None
    job: str | None = None

    def __str__(self) -> str:
        return f"job {self.job}" if self.batch is None else f"batch {self.batch}"


class LastMessage(NamedTuple):
    """The last message of a transaction on a topic partition: the position of its entry.

    `marked` is whether the check of the commit has written a marker there.
    """

    txn: TxnId
    topic: str
    position: Position
    marked: bool = False


class Withheld(NamedTuple):
    """That readers do not see all that is committed: since which unit, and when it was logged last.

    Kept in records, because Spark makes a new writer for each micro-batch. The time is in seconds
    since 1970.
    """

    since: str
    logged_at: float


@dataclass(frozen=True, slots=True)
class Decision:
    """The transactions of a unit to commit, and their number of messages.

    `topics` is a digest of the names of the topics they wrote to. `ends` are the last messages of
    each on its topic partitions; once it is carried out, those that readers do not see yet. A
    record has them unless they are too many. `withheld` is set if a warning was logged about them.
    """

    unit: Unit
    transactions: tuple[TxnId, ...]
    messages: int
    topics: str = ""
    ends: tuple[LastMessage, ...] = ()
    withheld: Withheld | None = None


def known_as(sink_id: str) -> str:
    """Return a sink's id as it is shown and recorded: without the credentials of a URL.

    A digest of the id takes their place, so that two ids never become one. An id that is the result
    of this function is returned as it is.
    """
    hidden = without_credentials(sink_id)
    return sink_id if hidden == sink_id else f"{hidden}#{id_digest(sink_id)}"


_KNOWN = re.compile(r".*//\*\*\*@.*#([0-9a-f]{16})", re.DOTALL)


def id_digest(sink_id: str) -> str:
    """Return the digest of a sink's id, which is the same for what `known_as` returns."""
    known = _KNOWN.fullmatch(sink_id)
    return known[1] if known else hashlib.sha256(sink_id.encode()).hexdigest()[:16]


class SinkState:
    """The state that a sink's records describe, up to the last one read."""

    def __init__(self) -> None:
        self.sink_id: str | None = None
        self.undone: Decision | None = None
        """The last decision, if it may not be carried out yet."""
        self.undone_at = EARLIEST_POSITION
        self.done: Decision | None = None
        """The last decision that was carried out."""

    def replay(self, position: Position, record: dict[str, Any]) -> None:
        """Apply the next record."""
        self.sink_id = known_as(record["sink"])
        kind = record["kind"]
        if kind == "decided":
            self.undone, self.undone_at = _decision(record), position
        elif kind == "void":
            self.undone = None
        elif kind == "done":
            self.undone, self.done = None, _decision(record)


def read_state(context: ClientContext, topic: str) -> SinkState:
    """Return the state in a topic's records, without fencing its writer."""
    state = SinkState()
    last = context.lookup.last_message_id(topic)
    for position, record in _read(context, topic, EARLIEST_POSITION, last):
        state.replay(position, record)
    return state


class DecisionLog(Closing):
    """A sink's records. A context manager: after `open`, nobody else can write to them.

    Raises SinkStateError, from ProducerFenced, once a newer driver has started.
    """

    def __init__(self, context: ClientContext, topic: str, sink_id: str) -> None:
        self.topic = topic
        self._context = context
        self._sink_id = known_as(sink_id)
        self._timeout = context.options.operation_timeout
        options = ProducerOptions(
            batching_enabled=False, access_mode=pb.ExclusiveWithFencing, txn_enabled=True
        )
        self._producer = TopicProducer(context, topic, options)
        self._consumer = DurableConsumer(context, topic, SUBSCRIPTION, EARLIEST, create=True)
        self._state = SinkState()

    @property
    def undone(self) -> Decision | None:
        """The last decision, if it may not be carried out yet."""
        return self._state.undone

    @property
    def done(self) -> Decision | None:
        """The last decision that was carried out."""
        return self._state.done

    def close(self) -> None:
        """Leave the topic; the records and the subscription stay."""
        self._producer.abort()
        self._consumer.close()

    # --- opening ------------------------------------------------------------------------------

    def attach(self) -> None:
        """Subscribe, and fence other drivers; creates the topic and the subscription if missing.

        Raises SinkStateError if there are records that no subscription retains, and TopicNotFound
        if brokers create no topics.
        """
        self._check_kept()
        try:
            self._end()
        except TopicNotFound as error:
            raise TopicNotFound(
                "the topic of the sink's records does not exist, and the broker creates none",
                f"Create it, without partitions: pulsar-admin topics create {self.topic}",
                topic=self.topic,
                broker=error.broker,
            ) from error
        self._producer.open()

    def open(self) -> None:
        """Attach, and read all retained records."""
        self.attach()
        self._append({"kind": "fence"})
        end = self._end()
        start = EARLIEST_POSITION if end.done is None else end.done
        for position, record in self._records(start, end.last):
            self._state.replay(position, record)

    def _check_kept(self) -> None:
        try:
            partitions = self._context.lookup.partitions(self.topic)
        except TopicNotFound:
            return
        if partitions:
            raise SinkStateError(
                "the sink's topic has partitions: its records would have no order",
                "Set sinkStateTopic to a topic without partitions.",
                topic=self.topic,
            )
        probe = Probe(self._context.pool)
        (kept,) = probe.subscriptions_exist([(self.topic, SUBSCRIPTION)])
        if isinstance(kept, TopicNotFound):
            return
        if not value_of(kept) and self._context.lookup.last_message_id(self.topic).entry_id >= 0:
            raise SinkStateError(
                f"the sink's topic has records, and its subscription {SUBSCRIPTION} is gone: "
                "records can be missing",
                "See docs/delivery.md on how to begin anew.",
                topic=self.topic,
            )

    def _end(self) -> TopicEnd:
        try:
            return run(retried(self._consumer.end_operation), self._timeout)
        except PulsarError as error:
            raise error.with_context(topic=self.topic) from error.__cause__

    def _records(
        self, start: Position, last: MessageIdAdv
    ) -> list[tuple[Position, dict[str, Any]]]:
        found = _read(self._context, self.topic, start, last)
        for position, record in found:
            # Earlier versions recorded the whole id.
            if known_as(record["sink"]) != self._sink_id:
                raise _foreign(self.topic, position)
        return found

    # --- records ------------------------------------------------------------------------------

    def decide(self, decision: Decision) -> None:
        """Record that these transactions will be committed, whatever happens from here on."""
        stored = self._append(_record("decided", decision))
        self._state.undone, self._state.undone_at = decision, Position.before(stored)

    def mark(self, transactions: list[TxnId]) -> None:
        """Send each transaction its marker; the topic already takes part in all of them."""
        for txn in transactions:
            self._send({"kind": "marker", "txn": list(txn)}, txn)
        self._flush()

    def nothing_committed(self) -> bool:
        """Whether it is certain that no earlier driver has committed, or will, any of the decision.

        Before the first commit, a driver has stored the markers of all transactions that it
        commits, and it can store none after this driver's fence. A marker hides the fence while
        its transaction is open, even if a commit is on its way, and is readable once it is
        committed. So if the fence is readable, and no marker before it, a transaction was aborted,
        or nobody has asked for its commit.
        """
        stored = self._append({"kind": "fence"})
        if Position.after(self._end().last) < Position.after(stored):
            # No waiting: what is open may have to be committed, and can time out meanwhile.
            return False
        return not self._markers_until(stored)

    def seen_markers(self) -> set[TxnId]:
        """Wait until no transaction of the decision is open; return the committed ones."""
        stored = self._append({"kind": "fence"})
        wanted = Position.after(stored)
        deadline = Deadline(self._timeout)
        backoff = Backoff(maximum=1.0)
        # The readable part of the topic ends before the first open transaction.
        while Position.after(last := self._end().last) < wanted:
            if deadline.expired():
                raise TransactionOutcomeUnknown(
                    f"which transactions of {self._undone_name()} are committed is not known yet",
                    "Start the query, or the write, again: it finds out first.",
                    topic=self.topic,
                )
            time.sleep(min(backoff.next(), deadline.remaining()))
        return self._markers_until(last)

    def _markers_until(self, last: MessageIdAdv) -> set[TxnId]:
        records = self._records(self._state.undone_at, last)
        return {TxnId(*record["txn"]) for _, record in records if record["kind"] == "marker"}

    def void(self) -> None:
        """Nothing of the decision is committed, or will be."""
        assert self.undone is not None
        self._append(_record("void", self.undone))
        self._state.undone = None

    def finish(self, decision: Decision) -> None:
        """All of the decision is committed; earlier records are no longer needed."""
        stored = self._append(_record("done", decision))
        self._state.undone, self._state.done = None, decision
        self._consumer.acknowledge(Position.before(stored))

    def _undone_name(self) -> str:
        return "nothing" if self.undone is None else str(self.undone.unit)

    def _append(self, record: dict[str, Any]) -> MessageIdAdv:
        self._send(record)
        self._flush()
        stored = self._producer.last_message_id
        assert stored is not None
        return stored

    def _send(self, record: dict[str, Any], txn: TxnId | None = None) -> None:
        text = json.dumps({"v": VERSION, "sink": self._sink_id, **record}, separators=(",", ":"))
        unbatched = None if txn is None else UnbatchedFields(txn=txn)
        try:
            self._producer.send(single_entry(MessageFields(text.encode()), None, unbatched))
        except ProducerFenced as error:
            raise self._fenced(error) from error

    def _flush(self) -> None:
        try:
            self._producer.flush(self._timeout)
        except ProducerFenced as error:
            raise self._fenced(error) from error

    def _fenced(self, error: ProducerFenced) -> SinkStateError:
        return SinkStateError(
            "another driver has taken this sink over",
            "Only one query, or one write at a time, can have a sinkId. What was decided here is "
            "carried out by the other one.",
            topic=self.topic,
            broker=error.broker,
        )


def _read(
    context: ClientContext, topic: str, start: Position, last: MessageIdAdv
) -> list[tuple[Position, dict[str, Any]]]:
    """Return the records from a position up to and including the one at `last`."""
    end = Position.after(last)
    if last.entry_id < 0 or end <= start:
        return []
    options = ReaderOptions(
        poll_timeout=context.options.operation_timeout,
        subscription_prefix="pulsar-spark-sink-reader",
    )
    found = []
    with EntryReader(context.pool, topic, start, end, options) as reader:
        for entry in reader:
            position = Position(entry.ledger_id, entry.entry_id)
            found.append((position, _parsed(bytes(entry.payload), topic, position)))
    if not found or found[-1][0] < Position.before(last):
        # The topic was trimmed or deleted meanwhile: a missing record may be a decision.
        raise SinkStateError(
            f"the sink's records end before {last}, where they ended a moment ago",
            "Run it again, and see who changes the topic.",
            topic=topic,
        )
    return found


def _parsed(payload: bytes, topic: str, position: Position) -> dict[str, Any]:
    try:
        record = json.loads(payload)
        version, sink = record["v"], record["sink"]
    except (ValueError, KeyError, TypeError):
        raise _foreign(topic, position) from None
    if version != VERSION or not isinstance(sink, str):
        raise _foreign(topic, position)
    assert isinstance(record, dict)
    return record


def _foreign(topic: str, position: Position) -> SinkStateError:
    return SinkStateError(
        f"the record at {position} is of another sink, or of another version of this package",
        "Give each sink a sinkStateTopic of its own, which nothing else writes to.",
        topic=topic,
    )


def _record(kind: str, decision: Decision) -> dict[str, Any]:
    record: dict[str, Any] = {
        "kind": kind,
        "batch": decision.unit.batch,
        "job": decision.unit.job,
        "messages": decision.messages,
        "topics": decision.topics,
        "txns": [],
    }
    if kind == "decided":
        # Nobody reads these of a decision that is done.
        record["txns"] = [list(txn) for txn in decision.transactions]
    if decision.ends and len(decision.ends) <= _MAX_ENDS:
        record["ends"] = _grouped(decision.ends)
    if decision.withheld is not None:
        record["withheld"] = list(decision.withheld)
    return record


def _grouped(ends: Sequence[LastMessage]) -> dict[str, list[list[int]]]:
    """Return for each topic partition the transactions with their ledgers and entries."""
    grouped: dict[str, list[list[int]]] = {}
    for end in ends:
        ledger_id, entry_id, _ = end.position
        marked = [1] if end.marked else []
        grouped.setdefault(end.topic, []).append([*end.txn, ledger_id, entry_id, *marked])
    return grouped


def _decision(record: dict[str, Any]) -> Decision:
    withheld = record.get("withheld")
    return Decision(
        Unit(record["batch"], record["job"]),
        tuple(TxnId(most, least) for most, least in record["txns"]),
        record["messages"],
        record.get("topics", ""),
        tuple(
            LastMessage(TxnId(most, least), topic, Position(ledger_id, entry_id), bool(marked))
            for topic, ends in record.get("ends", {}).items()
            for most, least, ledger_id, entry_id, *marked in ends
        ),
        None if withheld is None else Withheld(*withheld),
    )
