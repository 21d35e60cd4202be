"""Whose open transactions can hold a topic: those that exactly-once sinks have announced.

Nobody but an administrator is told which transaction an entry belongs to. So these are candidates:
transactions that are open, of a sink that writes there, or may do so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from itertools import groupby
from typing import NamedTuple

from pulsar_spark.cli.sink import state_topics
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.transactions import names_of
from pulsar_spark.errors import PulsarError, SinkStateError, TopicNotFound, listed
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.topic_name import TopicName, topic_of
from pulsar_spark.spark.writing.attempts import announced
from pulsar_spark.spark.writing.decision_log import read_state
from pulsar_spark.spark.writing.sink_records import sink_command

_ASKED_AT_ONCE = 100
_SHOWN = 3
_OTHERS = (
    "pulsar-admin transactions slow-transactions -t 0s lists all open transactions; each ends when "
    "its producer commits or aborts it, or at its timeout."
)


class _Candidate(NamedTuple):
    """A transaction that can hold a topic.

    `topics` are those that it is known to write to, without partitions; `all_topics` is whether
    there are no others. `open` is None where the coordinator does not tell.
    """

    records: str
    sink: str
    unit: str
    decided: bool
    topics: frozenset[str]
    all_topics: bool
    at: float
    txn: TxnId
    open: bool | None = None


def holders_of(context: ClientContext, topics: Sequence[str], state_topic: str | None) -> str:
    """Return which transactions can hold these topics, and how they end.

    Looks at the sinks of the topics' namespaces, and at the one whose records are on `state_topic`.
    Changes nothing; the text says what could not be found out.
    """
    deadline = Deadline(context.options.operation_timeout)
    names = dict.fromkeys(topic_of(topic) for topic in topics)
    records, unknown = _records(context, names, state_topic)
    announced, unread = _announced(context, records, deadline)
    still = _still_open(context, announced, deadline)
    found: dict[TxnId, _Candidate] = {}
    told = []
    for name in names:
        # What others may write to as well is held by those that are known to do so.
        here = [one for one in still if name in one.topics]
        here = here or [one for one in still if not one.all_topics]
        found |= {one.txn: one for one in here}
        if not here:
            told.append(
                f"No exactly-once sink with records in {TopicName.parse(name).namespace_name} has "
                f"announced an open transaction that can hold {name}: it is another producer's, "
                "or one of a sink with sinkStateTopic, which --option sinkStateTopic=TOPIC names."
            )
    groups = groupby(sorted(found.values(), key=_unit_of), key=_unit_of)
    told += _told_all([list(some) for _, some in groups])
    if unknown or unread:
        told.append(f"Not looked at: {listed([*unknown, *unread], _SHOWN)}.")
    return " ".join([*told, _OTHERS])


def _records(
    context: ClientContext, names: Iterable[str], state_topic: str | None
) -> tuple[list[str], list[str]]:
    """Return the topics of records, and in words which were not found."""
    found: dict[str, None] = {}
    unknown = []
    if state_topic is not None:
        found |= dict.fromkeys(state_topics(context, state_topic, None))
    for namespace, name in {TopicName.parse(name).namespace_name: name for name in names}.items():
        try:
            found |= dict.fromkeys(state_topics(context, None, name))
        except PulsarError as error:
            unknown.append(f"the sinks of {namespace} ({error.what})")
    return list(found), unknown


def _announced(
    context: ClientContext, records: Iterable[str], deadline: Deadline
) -> tuple[list[_Candidate], list[str]]:
    """Return what sinks have announced or decided on, and the topics that could not be read."""
    found: list[_Candidate] = []
    unread = []
    for topic in records:
        if deadline.expired():
            unread.append(topic)
            continue
        try:
            found += _of_a_sink(context, topic)
        except PulsarError as error:
            unread.append(f"{topic} ({error.what})")
    return found, unread


def _of_a_sink(context: ClientContext, records: str) -> list[_Candidate]:
    found: dict[TxnId, _Candidate] = {}
    for attempt in announced(context, records):
        topics = frozenset({topic_of(attempt.topic)})
        found[attempt.txn] = _Candidate(
            records, attempt.sink, attempt.unit, False, topics, False, attempt.at, attempt.txn
        )
    try:
        state = read_state(context, records, gaps=True)
    except (TopicNotFound, SinkStateError):
        return list(found.values())
    if (undone := state.undone) is not None:
        for txn in undone.transactions:
            ends = {end.topic for end in undone.ends if end.txn == txn}
            topics = frozenset(topic_of(topic) for topic in ends)
            sink, unit = state.sink_id or "", str(undone.unit)
            found[txn] = _Candidate(records, sink, unit, True, topics, bool(ends), undone.at, txn)
    return list(found.values())


def _still_open(
    context: ClientContext, candidates: Sequence[_Candidate], deadline: Deadline
) -> list[_Candidate]:
    """Return those that are open, or that may be."""
    still: list[_Candidate] = []
    for first in range(0, len(candidates), _ASKED_AT_ONCE):
        some = candidates[first : first + _ASKED_AT_ONCE]
        asked = [] if deadline.expired() else [one.txn for one in some]
        answers = context.coordinators.are_open(asked)
        known = [one._replace(open=answers.get(one.txn)) for one in some]
        still += [one for one in known if one.open is not False]
    return still


def _unit_of(one: _Candidate) -> tuple[str, str, bool, str]:
    return one.records, one.sink, one.decided, one.unit


def _told_all(units: Sequence[Sequence[_Candidate]]) -> list[str]:
    more = len(units) - _SHOWN
    told = [_told(some) for some in units[:_SHOWN]]
    return [*told, f"There are such transactions of {more} more."] if more > 0 else told


def _told(some: Sequence[_Candidate]) -> str:
    """Return a sentence on the transactions of one unit of a sink, and on how to end them."""
    first = some[0]
    since = datetime.fromtimestamp(min(one.at for one in some), timezone.utc)
    told = (
        f"The exactly-once sink {first.sink!r} has transactions of {first.unit} that "
        f"{'are' if all(one.open for one in some) else 'may be'} open, since "
        f"{since:%Y-%m-%d %H:%M:%S} UTC: {names_of([one.txn for one in some])}. "
    )
    if first.decided:
        command = sink_command("finish", first.records, first.sink)
        return f"{told}They are to be committed, as the query's next start does, or: {command}"
    command = sink_command("abort", first.records, first.sink)
    return (
        f"{told}While its query or job runs, they end with the micro-batch or the job. If it does "
        f"not run, its next start aborts them, or: {command}"
    )
