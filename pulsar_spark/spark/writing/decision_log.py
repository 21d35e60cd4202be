"""The decisions of an exactly-once sink, kept on a topic of its own.

Committing a micro-batch's transactions takes several steps, and the driver can be killed between
any two. So it first records its decision which ones to commit; the next driver finds the record and
carries it out (`sink_records` has the kinds of records).

Records never wait behind open transactions: they are written after the previous unit's transactions
have ended. The subscription retains what is needed. Because a message TTL moves it, and a backlog
quota by age stops a topic whose subscription retains old messages, old records are written anew;
and records that are no longer retained are read as long as they are stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from pulsar_spark.engine.closing import Closing
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.errors import TopicTerminated, TransactionOutcomeUnknown
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, MessageIdAdv, Position
from pulsar_spark.spark.writing.crash_points import reach
from pulsar_spark.spark.writing.fenced_topic import (
    Fence,
    FencedTopic,
    Found,
    begin_together,
    foreign,
    read_all,
    unpacked,
)
from pulsar_spark.spark.writing.sink_records import (
    READABLE,
    VERSION,
    Decision,
    LeftOut,
    SinkState,
    base_records,
    known_as,
    one_spelling,
    record_of,
    record_of_left_out,
    records_missing,
    sink_command,
)

_FRESH_SECONDS = 60.0
"""Records that are older are written anew when a driver starts."""
_MANY_RECORDS = 500
"""With more of them since the base, a sink of runs records what it remembers of them anew."""


def read_state(context: ClientContext, topic: str, *, gaps: bool = False) -> SinkState:
    """Return the state in a topic's records, without fencing its writer.

    Raises SinkStateError if some are missing, unless `gaps` are allowed, or of another writer.
    """
    last = context.lookup.last_message_id(topic)
    state = _state_of(read_all(context, topic, EARLIEST_POSITION, last), topic, gaps=gaps)
    if not (state.whole or gaps):
        raise records_missing(topic, state.sink_id)
    return state


class DecisionLog(Closing):
    """A sink's records. A context manager: after `open`, nobody else can write to them.

    `sink_ids` are the notations of the sink's id; `driver` names the driver in the records.
    Raises SinkStateError once a newer driver has started.
    """

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        sink_ids: Sequence[str],
        driver: str | None = None,
    ) -> None:
        self.topic = topic
        self._sink_ids = [known_as(sink_id) for sink_id in sink_ids]
        self._driver = driver
        self._log = FencedTopic(context, topic, "the sink's records")
        self.state = SinkState()
        """What the records say."""

    @property
    def undone(self) -> Decision | None:
        """The last decision, if it may not be carried out yet."""
        return self.state.undone

    def close(self) -> None:
        """Leave the topic; the records and the subscription stay."""
        self._log.close()

    # --- opening ------------------------------------------------------------------------------

    def open(
        self,
        *,
        had_attempts: Callable[[], bool],
        anew: bool = False,
        beside: Fence | None = None,
        checked: bool = False,
    ) -> None:
        """Fence other drivers, and read what the records say; creates what is missing.

        Records are fenced together with the topic `beside` them, if that is given. It was `checked`
        a moment ago that they are as they must be, or it is now.

        `had_attempts` tells whether the sink was used before, so that there must be records. Raises
        SinkStateError if some are missing, or if the topic or the subscription is not as it must
        be, and TopicNotFound if brokers create no topics. To begin `anew`, which `reset` then does,
        some may be missing.
        """
        if not anew:
            if not checked:
                self._log.check_exists()
            fence = Fence(self._log, self._fence_record())
            begin_together([fence] if beside is None else [fence, beside])
        try:
            self._log.attach()
        except TopicTerminated as error:
            raise TopicTerminated(
                error.what,
                f"{error.remedy} What is committed is not known then: compare the last "
                "micro-batch, or the last runs, with the topic of the rows, and begin anew: "
                f"{sink_command('reset', 'TOPIC', self._sink_ids[0])}",
                topic=self.topic,
                broker=error.broker,
            ) from error
        self._fence()
        reach("records-fenced")
        if anew:
            self.state = self._read(EARLIEST_POSITION, self._log.end().last, anew=True)
            return
        start = self._load()
        if not self.state.whole or (self.state.is_new and had_attempts()):
            raise records_missing(self.topic, self._sink_ids[0])
        is_old = time.time() - self.state.age_of_base > _FRESH_SECONDS
        is_retained = start <= self.state.base_at and not self._log.unprotected
        if self.undone is None and (self.state.number == 0 or is_old or not is_retained):
            self._rebase()

    def _load(self) -> Position:
        """Read the state from what is not acknowledged on; return where that begins."""
        end = self._log.end()
        start = EARLIEST_POSITION if end.done is None else end.done
        self.state = self._read(start, end.last)
        if not self.state.based and start != EARLIEST_POSITION:
            # The subscription was moved over records. They may be stored all the same.
            self.state = self._read(EARLIEST_POSITION, end.last)
        return start

    def _read(self, start: Position, last: MessageIdAdv, *, anew: bool = False) -> SinkState:
        """Return the state; of earlier messages, those that were read while they were retained."""
        found = self._log.read(start, last)
        first = found[0][0] if found else Position.after(last)
        earlier = [one for one in self._log.unprotected if one[0] < first]
        return _state_of([*earlier, *found], self.topic, self._sink_ids, gaps=anew)

    # --- records ------------------------------------------------------------------------------

    def decide(self, decision: Decision) -> None:
        """Record that these transactions will be committed, whatever happens from here on."""
        stored = self._append(self._numbered(record_of("decided", decision)))
        self.state.undone, self.state.undone_at = decision, Position.before(stored)

    def mark(self, transactions: list[TxnId]) -> None:
        """Send each transaction its marker; the topic already takes part in all of them."""
        self._log.send(
            (self._signed({"kind": "marker", "txn": list(txn)}), txn) for txn in transactions
        )

    def nothing_committed(self) -> bool:
        """Whether it is certain that no earlier driver has committed, or will, any of the decision.

        Before the first commit, a driver has stored the markers of all transactions that it
        commits, and it can store none after this driver's fence. A marker hides the fence while
        its transaction is open, even if a commit is on its way, and is readable once it is
        committed. So if the fence is readable, and no marker before it, a transaction was aborted,
        or nobody has asked for its commit.
        """
        stored = self._fence()
        # No waiting: what is open may have to be committed, and can time out meanwhile.
        last = self._log.is_readable(stored, wait=False)
        return last is not None and not self._markers_until(stored)

    def seen_markers(self) -> set[TxnId]:
        """Wait until no transaction of the decision is open; return the committed ones."""
        return self._markers_until(self._wait_for_all())

    def read_again(self) -> None:
        """Read the records that an open transaction has hidden, once it has ended."""
        self._wait_for_all()
        self._load()

    def _wait_for_all(self) -> MessageIdAdv:
        """Wait until all that is stored can be read; return where it ends."""
        stored = self._fence()
        last = self._log.is_readable(stored, wait=True)
        if last is None:
            undone = "nothing" if self.undone is None else self.undone.unit
            raise TransactionOutcomeUnknown(
                f"which transactions of {undone} are committed is not known yet",
                "Start the query, or the write, again: it finds out before it writes.",
                topic=self.topic,
            )
        return last

    def _markers_until(self, last: MessageIdAdv) -> set[TxnId]:
        found = self._log.read(self.state.undone_at, last)
        records = [_parsed(payload, self.topic, position) for position, payload in found]
        return {TxnId(*record["txn"]) for record in records if record["kind"] == "marker"}

    def void(self) -> None:
        """Nothing of the decision is committed, or will be."""
        assert self.undone is not None
        self._append(self._numbered(record_of("void", self.undone)))
        self.state.undone = None
        if not self.state.based:
            self._rebase()

    def finish(self, decision: Decision) -> None:
        """All of the decision is committed; earlier records are no longer needed."""
        self.state.remember(decision)
        stands_alone = not self.state.runs
        done = record_of("done", decision)
        more = {"base": stands_alone, "attempts": list(self.state.attempts_from[:2])}
        stored = self._append(self._numbered(done | more))
        if stands_alone:
            self._begin(Position.before(stored))
        elif self.state.records > _MANY_RECORDS:
            self._rebase()

    def note_attempts(self, needed_from: Position, count: int) -> None:
        """Announcements before a position are no longer needed, of which `count` were read."""
        self.state.attempts_from = needed_from
        if count > _MANY_RECORDS and self.undone is None:
            self._rebase()

    def accept(self) -> None:
        """What is committed stays when it comes again with other rows, once."""
        self._append(self._numbered({"kind": "accept"}))
        self.state.accepted, self.state.left_out = True, None

    def accepted(self, mine: Decision) -> None:
        """A unit has come again with other rows, as was accepted.

        The next run is refused. A micro-batch can be repeated, or followed by the next one.
        """
        batch = mine.unit.batch
        left_out = None if batch is None else LeftOut(batch, mine.written)
        record = {"kind": "accepted", "left_out": record_of_left_out(left_out)}
        self._append(self._numbered(record))
        self.state.accepted, self.state.left_out = False, left_out

    def reset(self) -> None:
        """Begin anew: forget what was committed."""
        self.state = SinkState(number=self.state.number)
        self._rebase()

    def _rebase(self) -> None:
        """Record all that is known, so that earlier records are no longer needed."""
        first, *others = [self._numbered(record) for record in base_records(self.state)]
        base_at = Position.before(self._append(first))
        if others:
            self._append(*others)
        self._begin(base_at)

    def _begin(self, base_at: Position) -> None:
        self.state.based, self.state.base_at = True, base_at
        self.state.age_of_base, self.state.records = time.time(), 1
        self._log.acknowledge(base_at)

    def _fence(self) -> MessageIdAdv:
        self.state.records += 1
        return self._log.fence(self._fence_record())

    def _fence_record(self) -> dict[str, Any]:
        return self._signed({"kind": "fence", "driver": self._driver})

    def _append(self, *records: dict[str, Any]) -> MessageIdAdv:
        self.state.records += len(records)
        return self._log.append(*(self._signed(record) for record in records))

    def _signed(self, record: dict[str, Any]) -> dict[str, Any]:
        return {"v": VERSION, "sink": self._sink_ids[0], **record}

    def _numbered(self, record: dict[str, Any]) -> dict[str, Any]:
        self.state.number += 1
        return {"n": self.state.number, **record}


def _state_of(
    found: Sequence[Found],
    topic: str,
    sink_ids: Collection[str] = (),
    *,
    gaps: bool = False,
) -> SinkState:
    """Return the state that records add up to; all must be of one sink, if it is known."""
    state = SinkState(gaps=gaps)
    # A sink that an earlier version began can have records under several notations of its id.
    known = {one_spelling(sink_id) for sink_id in sink_ids}
    for position, payload in found:
        record = _parsed(payload, topic, position)
        if not known or one_spelling(known_as(record["sink"])) in known:
            state.replay(position, record, topic)
        elif record["kind"] != "fence":
            # Another sink that was given the same topic got as far as a fence, which does no harm.
            raise foreign(topic, position)
    return state


def _parsed(payload: bytes, topic: str, position: Position) -> dict[str, Any]:
    try:
        record = unpacked(payload)
        version, sink, _ = record["v"], record["sink"], record["kind"]
    except (ValueError, KeyError):
        raise foreign(topic, position) from None
    if version not in READABLE or not isinstance(sink, str):
        raise foreign(topic, position)
    return record
