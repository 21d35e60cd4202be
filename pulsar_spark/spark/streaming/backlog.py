"""The lag of a stream: its backlog after a micro-batch.

It is reported with the topics' ends, never in an offset. Topic partitions without a backlog are not
asked about. On the others, the first unread entry and a few random later ones are sampled to
estimate messages and bytes. If the broker stamps an index on entries, the number of messages is
exact. Samples are reused for later batches while they are still unread.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from pulsar_spark.engine.consumers.probe import FoundEntry, Probe
from pulsar_spark.errors import PulsarError
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.message_id import Position
from pulsar_spark.spark.streaming.entry_samples import strata

logger = get_logger(__name__)

SAMPLE_SECONDS = 3.0
"""Timeout of a round of requests; what is unknown then remains unknown."""

# After a failure, ask nothing for this long: batches must not wait for numbers again and again.
_SILENCE = 30.0
# How many entries are sampled per batch: as many as admission control samples.
_QUESTIONS = 64
# Of these, at most this many on one topic partition: the others are assumed to be similar.
_ENOUGH = 8
# The ledgers' ends are unknown: how far after the first entry to look for others.
_STEPS = (1, 10, 100, 1000)

Span: TypeAlias = "tuple[Position, Position]"


@dataclass(frozen=True, slots=True)
class Lag:
    """The backlog of a topic partition; None if unknown. `seconds` is the oldest message's age."""

    entries: int | None = None
    messages: int | None = None
    size: int | None = None
    seconds: float | None = None
    messages_estimated: bool = False
    size_estimated: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return it in the form that `pulsar_spark.progress` reads."""
        known = {
            "entries": self.entries,
            "messages": self.messages,
            "bytes": self.size,
            "seconds": self.seconds,
        }
        body: dict[str, Any] = {name: value for name, value in known.items() if value is not None}
        flags = (("messages", self.messages_estimated), ("bytes", self.size_estimated))
        if estimated := [name for name, flag in flags if flag]:
            body["estimated"] = estimated
        return body


@dataclass(slots=True)
class _Known:
    """Answers of brokers about one topic partition from `start` on.

    `first`, `last` and `count` were true when the topic partition ended at `first_end`, `last_end`
    and `count_end`. `samples` are the unread ones of the span `sampled`; with `whole` they are all
    its entries.
    """

    start: Position
    asked_at: float = 0.0
    first_end: Position | None = None
    first: FoundEntry | None = None
    last_end: Position | None = None
    last: FoundEntry | None = None
    count_end: Position | None = None
    count: int | None = None
    sampled: Span | None = None
    whole: bool = False
    samples: dict[tuple[int, int], FoundEntry] = field(default_factory=dict)

    def move(self, start: Position) -> None:
        """Move the start (or start again): earlier samples are dropped."""
        if start == self.start:
            return
        if start < self.start:
            self.sampled, self.samples = None, {}
        found = self.samples.get(start[:2])
        if found is not None and start.batch_index >= found.messages:
            found = None
        self.first = None if found is None else replace(found, start=start)
        self.first_end = None if found is None or self.sampled is None else self.sampled[1]
        self.start, self.count_end = start, None
        self.samples = {at: found for at, found in self.samples.items() if at > start[:2]}

    @property
    def indexed(self) -> bool:
        """Whether entries may have the broker's index."""
        found = [*self.samples.values()] if self.first is None else [self.first]
        return all(entry.index is not None for entry in found)

    def several_ledgers(self, end: Position) -> bool:
        """Whether ids cannot tell the number of entries."""
        return self.start.ledger_id != end.ledger_id

    def entries(self, end: Position) -> int | None:
        """Return the number of entries, if known."""
        if self.several_ledgers(end):
            return self.count if self.count_end == end else None
        return end.entry_id - self.start.entry_id

    def messages_by_index(self, end: Position) -> int | None:
        """Return the number of messages by the first and last entry's index."""
        first, last = self.first, self.last
        if first is None or first.index is None or last is None or last.index is None:
            return None
        if self.last_end != end or last.start[:2] != _last_entry(end)[:2]:
            return None
        return last.index - first.index + first.remaining


class _Question(NamedTuple):
    """What to ask about one topic partition; `share` is its number of samples."""

    topic: str
    known: _Known
    end: Position
    share: int

    def wants_first(self) -> bool:
        """Whether to look for the first entry; there may have been none."""
        known = self.known
        return known.first_end is None or (known.first is None and known.first_end != self.end)

    def wants_last(self) -> bool:
        """Whether to look at the last entry, whose index counts the messages before it."""
        known = self.known
        return known.indexed and known.last_end != self.end and known.entries(self.end) != 1

    def wants_count(self) -> bool:
        """Whether to ask the broker for the number of entries."""
        return self.known.several_ledgers(self.end) and self.known.count_end != self.end

    def wants_samples(self) -> bool:
        """Whether there are too few or only old samples for the current backlog."""
        known, end = self.known, self.end
        if known.sampled is None:
            return True
        start, upto = known.sampled
        if (start, upto) == (known.start, end) or (known.whole and upto == end):
            return False
        slots = known.entries(end)
        if slots is None or upto.ledger_id != end.ledger_id:
            return True
        return 2 * len(known.samples) < min(self.share, slots) or 2 * (end[1] - upto[1]) > slots


class Backlogs:
    """Estimates the backlog of one stream's topic partitions as cheaply as it can."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._silent_until = 0.0
        self._random = random.Random(0)

    def lag(self, spans: Mapping[str, Span], probe: Probe, now_ms: int) -> dict[str, Lag]:
        """Return the backlog of the topic partitions that have one.

        `spans` has the end of the batch and the topic's end for all of the stream's topic
        partitions; ages are relative to `now_ms`.
        """
        behind = {topic: span for topic, span in spans.items() if span[0] < span[1]}
        for topic in set(self._known).difference(behind):
            del self._known[topic]
        for topic, (start, _) in behind.items():
            self._known.setdefault(topic, _Known(start)).move(start)
        if behind and self._clock() >= self._silent_until:
            self._ask({topic: end for topic, (_, end) in behind.items()}, probe)
        # Assume that topic partitions without samples are like the others.
        others = _Average.of(
            entry for known in self._known.values() for entry in known.samples.values()
        )
        return {
            topic: _estimate(self._known[topic], end, now_ms, others)
            for topic, (_, end) in behind.items()
        }

    def _ask(self, ends: Mapping[str, Position], probe: Probe) -> None:
        share = max(min(_QUESTIONS // len(ends) - 2, _ENOUGH), 1)
        questions = [
            _Question(topic, self._known[topic], end, share) for topic, end in ends.items()
        ]
        stale = [
            question
            for question in questions
            if question.wants_first()
            or question.wants_last()
            or question.wants_count()
            or question.wants_samples()
        ]
        # Those left out last time come first.
        stale = sorted(stale, key=lambda question: question.known.asked_at)
        stale = stale[: _QUESTIONS // (share + 2)]
        for question in stale:
            question.known.asked_at = self._clock()
        self._ask_for_counts([question for question in stale if question.wants_count()], probe)
        self._ask_for_entries(stale, probe)

    def _ask_for_counts(self, questions: Sequence[_Question], probe: Probe) -> None:
        if not questions:
            return
        places = [(question.topic, question.known.start) for question in questions]
        for question, count in zip(questions, probe.entries_from(places), strict=True):
            if isinstance(count, PulsarError):
                self._fail(count)
                continue
            # The topic has entries: a broker that says otherwise has lost it meanwhile.
            question.known.count, question.known.count_end = count or None, question.end

    def _ask_for_entries(self, questions: Sequence[_Question], probe: Probe) -> None:
        places: list[tuple[_Question, Position, str]] = []
        for question in questions:
            known, end = question.known, question.end
            if question.wants_samples():
                strata = self._strata(known.start, end, question.share)
                places += [(question, place, "sample") for place in strata]
                known.whole = known.start[0] == end[0] and end[1] - known.start[1] <= question.share
                known.sampled, known.samples = (known.start, end), {}
            if question.wants_first():
                places.append((question, known.start, "first"))
            if question.wants_last():
                places.append((question, _last_entry(end), "last"))
        answers = probe.first_entries_at([(question.topic, at) for question, at, _ in places])
        for (question, _, role), found in zip(places, answers, strict=True):
            known = question.known
            if isinstance(found, PulsarError):
                self._fail(found)
                known.sampled = None
                continue
            if role == "first":
                known.first, known.first_end = found, question.end
            elif role == "last":
                known.last, known.last_end = found, question.end
                continue
            if found is not None and found.start[:2] != known.start[:2]:
                known.samples[found.start.ledger_id, found.start.entry_id] = found

    def _strata(self, start: Position, end: Position, most: int) -> list[Position]:
        """Return positions to sample after the first entry, random in equal parts of a ledger."""
        several = start.ledger_id != end.ledger_id
        low = 0 if several else start.entry_id + 1
        width = end.entry_id - low
        count = max(min(most, width), 0)
        numbers = strata(low, end.entry_id, count, self._random)
        places = [Position(end.ledger_id, number) for number, _ in numbers]
        if several:
            ahead = [Position(start.ledger_id, max(start.entry_id, 0) + step) for step in _STEPS]
            places = [*ahead, *places]
            self._random.shuffle(places)
        return places[:most]

    def _fail(self, error: PulsarError) -> None:
        if self._clock() >= self._silent_until:
            self._silent_until = self._clock() + _SILENCE
            logger.info("the lag of this micro-batch is unknown: %s", error)


class _Average(NamedTuple):
    """Mean messages and size of some entries, None for none."""

    messages: float
    size: float

    @classmethod
    def of(cls, entries: Iterable[FoundEntry]) -> _Average | None:
        count = messages = size = 0
        for found in entries:
            count, messages, size = count + 1, messages + found.messages, size + found.size
        return cls(messages / count, size / count) if count else None


def _estimate(known: _Known, end: Position, now_ms: int, others: _Average | None) -> Lag:
    entries, first = known.entries(end), known.first
    samples = [found for found in known.samples.values() if found.start < end]
    if known.first_end is None:
        return _by_average(_Average.of(samples) or others, entries)
    if first is None or first.start >= end:
        # All remaining entries are markers or aborted messages, which readers never get.
        return Lag(entries, 0, 0, 0.0)
    seconds = max(now_ms - first.publish_time, 0) / 1000
    later = [found for found in samples if found.start[:2] != first.start[:2]]
    if entries == 1 or (known.whole and known.sampled is not None and known.sampled[1] == end):
        messages = first.remaining + sum(found.messages for found in later)
        return Lag(entries, messages, first.size + sum(found.size for found in later), seconds)
    more = _by_average(_Average.of(later or [first]), None if entries is None else entries - 1)
    counted = known.messages_by_index(end)
    messages_estimated = counted is None and more.messages is not None
    if counted is None and more.messages is not None:
        counted = first.remaining + more.messages
    size = None if more.size is None else first.size + more.size
    return Lag(entries, counted, size, seconds, messages_estimated, size is not None)


def _by_average(each: _Average | None, entries: int | None) -> Lag:
    if entries is None or each is None:
        return Lag(entries)
    messages, size = round(entries * each.messages), round(entries * each.size)
    return Lag(entries, messages, size, None, True, True)


def _last_entry(end: Position) -> Position:
    return Position(end.ledger_id, end.entry_id - 1)
