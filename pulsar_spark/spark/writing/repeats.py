"""Whether a unit follows what a sink has committed, repeats it, or is a stranger there.

A micro-batch's number alone does not say whose it is: a checkpoint can be deleted, restored from a
backup, or copied, and two queries can be given one sinkId. So a unit is also compared by its query
and by what it has written.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from pulsar_spark.errors import SinkStateError
from pulsar_spark.logs import get_logger
from pulsar_spark.spark.writing.sink_records import (
    Decision,
    LeftOut,
    SinkState,
    Unit,
    Written,
    sink_command,
)

logger = get_logger(__name__)


class Verdict(Enum):
    """What a unit is to a sink."""

    NEW = auto()
    REPEATED = auto()
    """It is committed already, so its rows must be dropped."""
    ACCEPTED = auto()
    """It is repeated with other rows, which the user has accepted, once, and not noted yet."""


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """What a sink has committed last, as far as it decides which unit may follow; plain data.

    A repeated unit may have other rows than those that were committed if `first_stays`, an option
    of the writer, or if the user has `accepted` that, once: micro-batches one after the other, of
    which the last one was `left_out`.
    """

    sink_id: str
    topic: str
    last: Unit | None
    first_stays: bool
    accepted: bool
    left_out: LeftOut | None = None

    def check(self, unit: Unit) -> None:
        """Raise SinkStateError for a unit of another query, or of a kind that has no place here.

        Also for an earlier micro-batch than the last one.
        """
        last = self.last
        if last is None:
            return
        self.check_kind(in_stream=unit.batch is not None)
        if unit.batch is None or last.batch is None:
            return
        self.check_query(unit.query, str(unit))
        if unit.batch < last.batch and not self.accepts(unit):
            raise SinkStateError(
                f"{unit} comes behind {last}, which is committed: {_OLDER}",
                "Spark divides what comes again, and what has come since, anew into micro-batches. "
                f"To write all of it, the former twice: {self.command('reset')}. To leave out all "
                f"of it up to {last}, once: {self.command('accept')}",
                topic=self.topic,
            )

    def accepts(self, unit: Unit, mine: Written | None = None) -> bool:
        """Whether the user has accepted that a unit has other rows; a micro-batch `mine`, if given.

        The one that was left out last may come again with the same rows.
        """
        if self.accepted or self.left_out is None or unit.batch is None:
            return self.accepted
        batch, written = self.left_out
        if unit.batch == batch:
            return mine is None or written.is_same(mine) is not False
        return unit.batch == batch + 1

    def check_query(self, query: str | None, what: str) -> None:
        """Raise SinkStateError if `what` is of another query than the last micro-batch."""
        last = self.last
        if last is not None and None not in (query, last.query) and query != last.query:
            raise SinkStateError(
                f"the sink belongs to the query {last.query}, which has committed {last}; {what} "
                f"is of the query {query}, so the checkpoint is a new one, or this is another "
                "query",
                "Give a query with another checkpoint a sinkId of its own. If it shall take this "
                f"sink over, begin anew: {self.command('reset')}",
                topic=self.topic,
            )

    def check_kind(self, *, in_stream: bool) -> None:
        """Raise SinkStateError for a stream in a sink of batch writes, and the reverse."""
        if self.last is not None and (self.last.batch is None) == in_stream:
            raise SinkStateError(
                f"a {'stream' if in_stream else 'batch write'} comes behind {self.last}: a stream "
                "and batch writes share a sinkId",
                "Give each query, and each job, a sinkId of its own.",
                topic=self.topic,
            )

    def command(self, option: str) -> str:
        """Return the command line that changes the sink."""
        return sink_command(option, self.topic, self.sink_id)

    def refused(self, unit: Unit, done: Written, mine: Written) -> SinkStateError:
        """Return the error for a unit that repeats another one with other rows."""
        counts = ""
        if done.messages != mine.messages:
            counts = f" ({done.messages} then, {mine.messages} now)"
        what = "is committed with other rows"
        if self.left_out is not None and self.left_out.batch == unit.batch:
            what += ", and has other rows than it was left out with"
        return SinkStateError(
            f"{unit} {what}{counts}: {_CAUSES}",
            f"To keep what was committed, once: {self.command('accept')}. If it never gives the "
            "same rows twice, because of uuid() or sums of doubles, set sinkRepeats=first. To "
            f"write the rows again: {self.command('reset')}",
            topic=self.topic,
        )

    def elsewhere(self, unit: Unit) -> SinkStateError:
        """Return the error for a run that comes again and writes to other topics."""
        return SinkStateError(
            f"{unit} is committed already, to other topics than now: two writes have the same "
            "sinkId and sinkRunId, or the job's topic was changed",
            "Give each of two writes a sinkRunId, or a sinkId, of its own. To keep what was "
            f"committed, once: {self.command('accept')}",
            topic=self.topic,
        )


_OLDER = "the checkpoint is older than the sink (restored from a backup, or another one)"
_CAUSES = f"{_OLDER}, or the query or job does not give the same rows when it runs again"


def place_of(state: SinkState, sink_id: str, topic: str, *, first_stays: bool) -> SinkPlace:
    """Return a sink's place."""
    last = None if state.done is None else state.done.unit
    return SinkPlace(sink_id, topic, last, first_stays, state.accepted, state.left_out)


def judge(state: SinkState, place: SinkPlace, mine: Decision) -> Verdict:
    """Return what a unit is to a sink.

    Raises as `SinkPlace.check`, and SinkStateError for other rows than those that were committed.
    """
    unit, done = mine.unit, state.done
    place.check(unit)
    if unit.run is not None:
        run = state.runs.get(unit.run)
        return Verdict.NEW if run is None else _repeated(place, mine, run.written, run.topics)
    if done is None:
        if unit.batch:
            logger.warning(
                "the sink has no records of a micro-batch yet: %s is the first one that is written "
                "exactly once. If there were some on %s, rows of this batch can be there already",
                unit,
                place.topic,
            )
        return Verdict.NEW
    if unit.batch is None or done.unit.batch is None:
        return Verdict.NEW
    if unit.batch == done.unit.batch:
        return _repeated(place, mine, done.written, done.topics)
    if unit.batch < done.unit.batch:
        left_out = place.left_out
        if left_out and not place.accepts(unit, mine.written):
            raise place.refused(unit, left_out.written, mine.written)
        logger.warning(
            "%s comes behind %s, which is committed; its %d messages are left out, new ones too",
            unit,
            done.unit,
            mine.written.messages,
        )
        return _accepted(place, unit)
    if unit.batch > done.unit.batch + 1:
        logger.warning(
            "%s follows %s: batches between them were not written to this sink exactly once",
            unit,
            done.unit,
        )
    return Verdict.NEW


def _accepted(place: SinkPlace, unit: Unit) -> Verdict:
    """Return the verdict on a committed unit that comes with other rows, and may."""
    # Spark repeats the last micro-batch only. An earlier one comes of an older checkpoint.
    is_last = place.last is None or unit.batch == place.last.batch
    # Spark may repeat the one that was left out last.
    is_known = place.left_out is not None and unit.batch == place.left_out.batch
    return Verdict.REPEATED if is_known or (is_last and place.first_stays) else Verdict.ACCEPTED


def _repeated(place: SinkPlace, decision: Decision, done: Written, topics: str) -> Verdict:
    """Return the verdict on a unit that is committed: what comes again is the same, or may differ.

    What is `done` was written to these `topics`, "" if that is not known.
    """
    unit, mine = decision.unit, decision.written
    same, may_differ = done.is_same(mine), place.first_stays or place.accepts(unit, mine)
    why = "by another version, or with another schema"
    if topics and done.messages and mine.messages and decision.topics != topics:
        if unit.run is not None and not may_differ:
            # Two writes of a job have one name by mistake. A stream may be moved.
            raise place.elsewhere(unit)
        logger.warning(
            "%s is committed already, to other topics than now; what was written first stays", unit
        )
        if unit.run is not None:
            return _accepted(place, unit)
        why = "to other topics"
    if same:
        logger.info("%s is committed already", unit)
    elif same is None:
        logger.warning(
            "%s is committed already with as many messages as now; whether they are the same is "
            "not known, because they were written %s",
            unit,
            why,
        )
    elif may_differ:
        logger.warning(
            "%s is committed already with %d messages; what comes now, %d messages, is left out",
            unit,
            done.messages,
            mine.messages,
        )
        return _accepted(place, unit)
    else:
        raise place.refused(unit, done, mine)
    return Verdict.REPEATED
