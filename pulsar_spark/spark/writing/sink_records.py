"""The records of an exactly-once sink: what they say, and the state that they add up to.

Records are JSON objects of these kinds:

- ``fence``: a driver has started, or asks for the outcome of transactions. Its receipt shows that
  all earlier records are stored.
- ``decided``: exactly these transactions of a unit (a micro-batch, or a batch write's job) will be
  committed.
- ``marker``: sent *within* a decided transaction. A coordinator forgets ended transactions; the
  marker is visible if and only if its transaction was committed.
- ``void``: nothing of the decision was committed, or ever will be.
- ``done``: all of the decision is committed. It names the messages that readers do not see yet, and
  says since when that is so.
- ``base``: all that is known without the earlier records, in one or several parts.
- ``accept``: what is committed stays when it comes again with other rows: micro-batches up to the
  last one, in order, or one run.
- ``accepted``: such a micro-batch, which it names, or such a run has come.

Except for fences and markers they are numbered, so that missing ones are noticed. A reader can
start at a base, and at a `done` that says so: where no runs are remembered, it has all.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import repeat
from typing import Any, NamedTuple

from pulsar_spark.errors import SinkStateError, without_credentials
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position

VERSION = 2
READABLE = (1, VERSION)
"""The versions of records that are read. Version 1 knew neither queries nor digests nor numbers."""

RUNS = 10_000
"""How many runs a sink remembers at least."""

_RUNS_OF_A_PART = 1000
_MAX_ENDS = 20_000
"""A record with more would be as large as brokers accept."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Rows written as a whole: micro-batch `batch` of a stream, or `job` of a batch write.

    `query` is the id of the stream's query, None where Spark did not tell it. `run` is the name
    that the user gave a batch write.
    """

    batch: int | None = None
    job: str | None = None
    query: str | None = None
    run: str | None = None

    def __str__(self) -> str:
        if self.batch is not None:
            return f"batch {self.batch}"
        if self.job is None and self.run is None:
            return "a batch that Spark did not name"
        return f"job {self.job}" if self.run is None else f"run {self.run}"

    def is_same(self, other: Unit) -> bool:
        """Whether both are the same micro-batch, the same run, or the same job."""
        mine, others = (self.batch, self.run), (other.batch, other.run)
        return mine == others and (mine != (None, None) or self.job == other.job)


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


class Written(NamedTuple):
    """What a unit has written: how many messages, and which.

    `digest` is its version and the sum over the rows, as text; empty if it is not known.
    `schemas` is a digest of the schema versions that its values are encoded with.
    """

    messages: int
    digest: str = ""
    schemas: str = ""

    def is_same(self, other: Written) -> bool | None:
        """Whether both are the same rows; None if only the number of messages can be compared."""
        if self.messages != other.messages:
            return False
        if self._version != other._version or not self.digest or self.schemas != other.schemas:
            return None
        return self.digest == other.digest

    @property
    def _version(self) -> str:
        return self.digest.partition(":")[0]


class LeftOut(NamedTuple):
    """What a micro-batch has written that was left out, as the user has accepted."""

    batch: int
    written: Written


class CommittedRun(NamedTuple):
    """A run that is committed, and when, in seconds since 1970; `topics` as a Decision has them."""

    name: str
    written: Written
    at: float
    topics: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The transactions of a unit to commit, and what they have written.

    `topics` is a digest of the names of the topics they wrote to. `ends` are the last messages of
    each on its topic partitions; once it is carried out, those that readers do not see yet. A
    record has them unless they are too many. `withheld` is set if a warning was logged about them.
    `at` is when it was recorded, in seconds since 1970, 0 if that is not known.
    """

    unit: Unit
    transactions: tuple[TxnId, ...]
    written: Written
    topics: str = ""
    ends: tuple[LastMessage, ...] = ()
    withheld: Withheld | None = None
    at: float = 0.0


# --- the names of sinks ---------------------------------------------------------------------------


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
    return known[1] if known else text_digest(sink_id)


def text_digest(text: str) -> str:
    """Return a digest of a text, as text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_LOCATION = re.compile(
    r"(?:file:(?!//[^/])|(?P<store>(?!file:)[a-zA-Z][a-zA-Z0-9+.-]*:(?://[^/]*)?)?)(?P<path>/.*)"
)


def one_spelling(location: str) -> str:
    """Return a checkpoint's location as all notations of it are written: /ck for file:///ck/.

    What depends on a cluster's default file system, and a relative path, stays as it is.
    """
    found = _LOCATION.fullmatch(location)
    if found is None:
        return location
    return (found["store"] or "") + (re.sub("/+", "/", found["path"]).rstrip("/") or "/")


# --- the state ------------------------------------------------------------------------------------


@dataclass(slots=True)
class SinkState:
    """The state that a sink's records describe, up to the last one read.

    `number` is that of the last numbered record, 0 before any. `based` is whether it began with a
    record that needs no earlier ones; records of version 1 do not say whether they do.
    """

    sink_id: str | None = None
    done: Decision | None = None
    """The last decision that was carried out."""
    undone: Decision | None = None
    """The last decision, if it may not be carried out yet."""
    undone_at: Position = EARLIEST_POSITION
    runs: dict[str, CommittedRun] = field(default_factory=dict)
    """What is remembered of the committed runs, in their order."""
    accepted: bool = False
    """Whether the user has accepted that what is committed comes again with other rows, once.

    And nothing has come since.
    """
    left_out: LeftOut | None = None
    """The last micro-batch that has come since; the next one may follow."""
    attempts_from: Position = EARLIEST_POSITION
    """Where the announcements begin that a driver has to read."""
    driver: str | None = None
    """The driver that started last."""
    driver_before: str | None = None
    """The driver that started before that one; a driver starts several times."""
    number: int = 0
    based: bool = False
    base_at: Position = EARLIEST_POSITION
    """Where the records begin that are needed."""
    age_of_base: float = 0.0
    """When the base was recorded, in seconds since 1970."""
    records: int = 0
    """How many records there are since the base, with it."""
    gaps: bool = False
    """Whether records may be missing, because all is to be forgotten."""
    _parts: list[tuple[Position, dict[str, Any]]] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether no record that is needed can be missing before the first one read."""
        return self.based or self.number == 0

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever committed or decided, as far as the records say."""
        return not self.based and self.undone is None

    def replay(self, position: Position, record: dict[str, Any], topic: str) -> None:
        """Apply the next record; raises SinkStateError if one is missing before it."""
        self.records += 1
        kind, number = record["kind"], record.get("n")
        if kind != "fence" or self.sink_id is None:
            # Another sink that was given the same topic gets as far as a fence.
            self.sink_id = known_as(record["sink"])
        if kind == "fence":
            self.driver_before, self.driver = self.driver, record.get("driver")
        if number is not None:
            if number <= self.number:
                # It was sent twice.
                return
            if self.number and number != self.number + 1 and not self.gaps:
                raise records_missing(topic, self.sink_id)
            self.number = number
        if kind == "decided":
            self.undone, self.undone_at = decision_of(record), position
        elif kind == "void":
            self.undone = None
        elif kind == "done":
            self._finish(position, record)
        elif kind in ("accept", "accepted"):
            self.accepted, self.left_out = kind == "accept", _left_out_of(record)
        elif kind == "base":
            self._add_part(position, record)

    def _finish(self, position: Position, record: dict[str, Any]) -> None:
        done = decision_of(record)
        self.remember(done)
        self.attempts_from = Position(*record.get("attempts", self.attempts_from[:2]))
        if record.get("base", record["v"] == 1):
            self._begin(position, done.at)

    def remember(self, done: Decision) -> None:
        """A decision is carried out."""
        self.undone, self.done = None, done
        self.accepted, self.left_out = False, None
        if done.unit.run is not None:
            self.runs[done.unit.run] = CommittedRun(
                done.unit.run, done.written, done.at, done.topics
            )
            if len(self.runs) > RUNS:
                del self.runs[next(iter(self.runs))]

    def _add_part(self, position: Position, record: dict[str, Any]) -> None:
        """Take one part of a base; a driver that dies can leave one without its last parts."""
        if record["part"] == 0:
            self._parts = []
        self._parts.append((position, record))
        if record["part"] != len(self._parts) - 1 or record["part"] != record["parts"] - 1:
            return
        # Earlier versions recorded no topics of runs.
        runs = [
            CommittedRun(name, Written(*what), at, topics)
            for _, part in self._parts
            for (name, at, *what), topics in zip(
                part["runs"], part.get("topics", repeat("")), strict=False
            )
        ]
        self.runs = {run.name: run for run in runs}
        self.undone, self.accepted = None, record["accepted"]
        self.left_out = _left_out_of(record)
        self.done = None if record["done"] is None else decision_of(record["done"])
        self.attempts_from = Position(*record["attempts"])
        self._begin(self._parts[0][0], record["at"])
        self._parts = []

    def _begin(self, position: Position, at: float) -> None:
        self.based, self.base_at, self.age_of_base, self.records = True, position, at, 1


def sink_command(action: str, topic: str, sink_id: str | None) -> str:
    """Return the command line that changes a sink with these records."""
    return (
        f"python -m pulsar_spark sink --service-url URL --option sinkStateTopic={topic} "
        f"--{action} {'ID' if sink_id is None else shlex.quote(sink_id)}"
    )


def records_missing(topic: str, sink_id: str | None) -> SinkStateError:
    """Return the error for a sink whose records are not all there."""
    return SinkStateError(
        "records of the sink are missing, so what is committed is not known: they expired, or were "
        "skipped, truncated or deleted. Nothing was written",
        "Compare the last micro-batch, or the last runs, with the topic. Then begin anew on "
        "purpose, which may write what was committed last once more: "
        f"{sink_command('reset', topic, sink_id)}. To keep records, give them a namespace without "
        "message TTL (sinkStateTopic).",
        topic=topic,
    )


# --- records as JSON ------------------------------------------------------------------------------


def record_of(kind: str, decision: Decision) -> dict[str, Any]:
    """Return the record of a decision, which is made now."""
    record: dict[str, Any] = {
        "kind": kind,
        **asdict(decision.unit),
        **decision.written._asdict(),
        "topics": decision.topics,
        "at": decision.at or time.time(),
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


def base_records(state: SinkState) -> Iterator[dict[str, Any]]:
    """Yield the records of a state without an unfinished decision."""
    runs = list(state.runs.values())
    parts = max(-(-len(runs) // _RUNS_OF_A_PART), 1)
    for part in range(parts):
        first = part * _RUNS_OF_A_PART
        some = runs[first : first + _RUNS_OF_A_PART]
        yield {
            "kind": "base",
            "part": part,
            "parts": parts,
            "at": time.time(),
            "accepted": state.accepted,
            "left_out": record_of_left_out(state.left_out),
            "attempts": list(state.attempts_from[:2]),
            "done": None if state.done is None else record_of("done", state.done),
            "runs": [[run.name, run.at, *run.written] for run in some],
            "topics": [run.topics for run in some],
        }


def record_of_left_out(left_out: LeftOut | None) -> list[Any] | None:
    """Return what a record says of a micro-batch that was left out."""
    return None if left_out is None else [left_out.batch, *left_out.written]


def _left_out_of(record: dict[str, Any]) -> LeftOut | None:
    batch, *written = record.get("left_out") or (None,)
    return None if batch is None else LeftOut(batch, Written(*written))


def _grouped(ends: Sequence[LastMessage]) -> dict[str, list[list[int]]]:
    """Return for each topic partition the transactions with their ledgers and entries."""
    grouped: dict[str, list[list[int]]] = {}
    for end in ends:
        ledger_id, entry_id, _ = end.position
        marked = [1] if end.marked else []
        grouped.setdefault(end.topic, []).append([*end.txn, ledger_id, entry_id, *marked])
    return grouped


def decision_of(record: dict[str, Any]) -> Decision:
    """Return the decision of a record, of any version."""
    withheld = record.get("withheld")
    return Decision(
        Unit(record["batch"], record["job"], record.get("query"), record.get("run")),
        tuple(TxnId(most, least) for most, least in record["txns"]),
        Written(record["messages"], record.get("digest", ""), record.get("schemas", "")),
        record.get("topics", ""),
        tuple(_ends_of(record.get("ends", {}).items())),
        None if withheld is None else Withheld(*withheld),
        record.get("at", 0.0),
    )


def _ends_of(grouped: Iterable[tuple[str, list[list[int]]]]) -> Iterator[LastMessage]:
    for topic, ends in grouped:
        for most, least, ledger_id, entry_id, *marked in ends:
            position = Position(ledger_id, entry_id)
            yield LastMessage(TxnId(most, least), topic, position, bool(marked))
