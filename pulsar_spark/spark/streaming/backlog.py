"""The lag of a stream: its backlog after a micro-batch.

It is reported with the topics' ends, never in an offset. Topic partitions without a backlog are not
asked about. On the others, the first unread entry and a few random later ones are sampled to
estimate messages and bytes. If the broker stamps an index on entries, messages are counted by it,
with those of aborted transactions. Samples are reused for later batches while they are still
unread.
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
from pulsar_spark.spark.streaming.entry_samples import rising, strata

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
    """Answers of brokers about the backlog of one topic partition, from `start` to `end`.

    `first`, `last` and `count` were true when the topic partition ended at `first_end`, `last_end`
    and `count_end`. `samples` are the unread ones of the span `sampled`; with `whole` they are all
    its entries.
    """

    start: Position
    end: Position
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

    def move(self, start: Position, end: Position) -> None:
        """Move the start (or start again), where earlier samples are dropped, and the end."""
        self.end = end
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

    @property
    def several_ledgers(self) -> bool:
        """Whether ids cannot tell the number of entries."""
        return self.start.ledger_id != self.end.ledger_id

    @property
    def last_entry(self) -> Position:
        """Where the last entry is."""
        return Position(self.end.ledger_id, self.end.entry_id - 1)

    @property
    def entries(self) -> int | None:
        """The number of entries, if known."""
        if self.several_ledgers:
            return self.count if self.count_end == self.end else None
        return self.end.entry_id - self.start.entry_id

    def messages_by_index(self) -> int | None:
        """Return the number of messages by the first and last entry's index."""
        first, last = self.first, self.last
        if first is None or first.index is None or last is None or last.index is None:
            return None
        if self.last_end != self.end or last.start[:2] != self.last_entry[:2]:
            return None
        between = [found for at, found in sorted(self.samples.items()) if at > first.start[:2]]
        if len(rising(first.index, [*between, last])) <= len(between):
            return None
        return last.index - first.index + first.remaining

    # --- what to ask ------------------------------------------------------------------------------

    def wants_first(self) -> bool:
        """Whether to look for the first entry; there may have been none."""
        return self.first_end is None or (self.first is None and self.first_end != self.end)

    def wants_last(self) -> bool:
        """Whether to look at the last entry, whose index counts the messages before it."""
        return self.indexed and self.last_end != self.end and self.entries != 1

    def wants_count(self) -> bool:
        """Whether to ask the broker for the number of entries."""
        return self.several_ledgers and self.count_end != self.end

    def wants_samples(self, share: int) -> bool:
        """Whether there are fewer samples than its share, or only old ones for the backlog."""
        if self.sampled is None:
            return True
        start, upto = self.sampled
        if (start, upto) == (self.start, self.end) or (self.whole and upto == self.end):
            return False
        slots = self.entries
        if slots is None or upto.ledger_id != self.end.ledger_id:
            return True
        return 2 * len(self.samples) < min(share, slots) or 2 * (self.end[1] - upto[1]) > slots


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
        for topic, (start, end) in behind.items():
            self._known.setdefault(topic, _Known(start, end)).move(start, end)
        if behind and self._clock() >= self._silent_until:
            self._ask(probe)
        # Assume that topic partitions without samples are like the others.
        others = _Average.of(
            entry for known in self._known.values() for entry in known.samples.values()
        )
        return {topic: _estimate(self._known[topic], now_ms, others) for topic in behind}

    def _ask(self, probe: Probe) -> None:
        share = max(min(_QUESTIONS // len(self._known) - 2, _ENOUGH), 1)
        stale = [
            (topic, known)
            for topic, known in self._known.items()
            if known.wants_first()
            or known.wants_last()
            or known.wants_count()
            or known.wants_samples(share)
        ]
        # Those left out last time come first.
        stale.sort(key=lambda each: each[1].asked_at)
        stale = stale[: _QUESTIONS // (share + 2)]
        for _, known in stale:
            known.asked_at = self._clock()
        self._ask_for_counts([each for each in stale if each[1].wants_count()], probe)
        self._ask_for_entries(stale, share, probe)

    def _ask_for_counts(self, stale: Sequence[tuple[str, _Known]], probe: Probe) -> None:
        if not stale:
            return
        counts = probe.entries_from([(topic, known.start) for topic, known in stale])
        for (_, known), count in zip(stale, counts, strict=True):
            if isinstance(count, PulsarError):
                self._fail(count)
                continue
            # The topic has entries: a broker that says otherwise has lost it meanwhile.
            known.count, known.count_end = count or None, known.end

    def _ask_for_entries(
        self, stale: Sequence[tuple[str, _Known]], share: int, probe: Probe
    ) -> None:
        places: list[tuple[str, _Known, Position, str]] = []
        for topic, known in stale:
            start, end = known.start, known.end
            if known.wants_samples(share):
                strata = self._strata(start, end, share)
                places += [(topic, known, place, "sample") for place in strata]
                known.whole = start[0] == end[0] and end[1] - start[1] <= share
                known.sampled, known.samples = (start, end), {}
            if known.wants_first():
                places.append((topic, known, start, "first"))
            if known.wants_last():
                places.append((topic, known, known.last_entry, "last"))
        answers = probe.first_entries_at([(topic, at) for topic, _, at, _ in places])
        for (_, known, _, role), found in zip(places, answers, strict=True):
            if isinstance(found, PulsarError):
                self._fail(found)
                known.sampled = None
                continue
            if role == "first":
                known.first, known.first_end = found, known.end
            elif role == "last":
                known.last, known.last_end = found, known.end
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


def _estimate(known: _Known, now_ms: int, others: _Average | None) -> Lag:
    end, entries, first = known.end, known.entries, known.first
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
    counted = known.messages_by_index()
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
