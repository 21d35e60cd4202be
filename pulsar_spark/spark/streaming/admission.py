"""Admission control: how much of the backlog goes into the next micro-batch.

Each topic partition with a backlog gets an equal share of the caps. Unused shares go to the others,
and the remainder to those that waited longest. The cap on messages is exact, even within entries;
the cap on bytes admits at least one entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from pulsar_spark.engine.consumers.probe import FoundEntry
from pulsar_spark.protocol.message_id import Position
from pulsar_spark.spark.options.stream import Caps
from pulsar_spark.spark.streaming.backlog_front import (
    Amount,
    Front,
    Steps,
)
from pulsar_spark.spark.streaming.entry_samples import EntryStatistics

Ask: TypeAlias = Callable[[Sequence[tuple[str, Position]]], Sequence["FoundEntry | None"]]
"""Answers for each topic and position with the first entry at or after it, if any."""

Span: TypeAlias = "tuple[Position, Position]"

_SAMPLES = 512
_MOST_SAMPLES = 256
_LEAST_SAMPLES = 8
_EXACT = 1024
_ROUNDS = 4


class Admission:
    """Chooses the ends of one stream's micro-batches."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._statistics: dict[str, EntryStatistics] = {}
        self._decisions = 0
        self.batch_sizes: dict[str, int] = {}
        """For each end inside an entry in the last result: the entry's number of messages."""

    def admit(self, spans: Mapping[str, Span], caps: Caps) -> dict[str, Position]:
        """Return where the batch ends on each topic partition; an unchanged start takes nothing.

        `spans` are the start and end of each backlog.
        """
        cuts = {topic: start for topic, (start, _) in spans.items()}
        fronts = self._fronts(spans)
        if fronts:
            _share(fronts, _limit(caps), self._run)
        cuts.update({topic: front.cut for topic, front in fronts.items()})
        self.batch_sizes = {topic: front.batch_size for topic, front in fronts.items()}
        return cuts

    def holds(self, spans: Mapping[str, Span], messages: int) -> bool:
        """Whether there are, by estimate, so many messages."""
        fronts = self._fronts(spans)
        total = _share(fronts, Amount(messages, math.inf), self._run, whole_entries=False)
        return total.messages >= messages or not all(front.exhausted for front in fronts.values())

    def _fronts(self, spans: Mapping[str, Span]) -> dict[str, Front]:
        open_spans = {topic: span for topic, span in spans.items() if span[0] < span[1]}
        for topic in set(self._statistics).difference(spans):
            del self._statistics[topic]
        self._decisions += 1
        samples = max(min(_SAMPLES // max(len(open_spans), 1), _MOST_SAMPLES), _LEAST_SAMPLES)
        fronts = {
            topic: Front(
                start,
                end,
                samples,
                self._statistics.setdefault(topic, EntryStatistics()),
                self._decisions,
                _EXACT // len(open_spans),
            )
            for topic, (start, end) in open_spans.items()
        }
        self._run({topic: front.look() for topic, front in fronts.items()})
        return fronts

    def _run(self, steps: Mapping[str, Steps]) -> None:
        """Run all generators in rounds until none has a question left."""
        waiting: dict[str, Sequence[Position]] = {}
        for topic, generator in steps.items():
            _go_on(waiting, topic, generator, None)
        while waiting:
            questions = [(topic, place) for topic, places in waiting.items() for place in places]
            answers = iter(self._ask(questions))
            asked, waiting = waiting, {}
            for topic, places in asked.items():
                _go_on(waiting, topic, steps[topic], [next(answers) for _ in places])


def _go_on(
    waiting: dict[str, Sequence[Position]],
    topic: str,
    generator: Steps,
    answers: list[FoundEntry | None] | None,
) -> None:
    try:
        waiting[topic] = next(generator) if answers is None else generator.send(answers)
    except StopIteration:
        return


def _limit(caps: Caps) -> Amount:
    return Amount(
        math.inf if caps.max_messages is None else caps.max_messages,
        math.inf if caps.max_bytes is None else caps.max_bytes,
    )


def _share(
    fronts: Mapping[str, Front],
    limit: Amount,
    run: Callable[[Mapping[str, Steps]], None],
    *,
    whole_entries: bool = True,
) -> Amount:
    """Divide a limit among fronts; return how much they use."""
    wanting = dict(fronts)
    for _ in range(_ROUNDS):
        wanting = {topic: front for topic, front in wanting.items() if not front.exhausted}
        left = limit.minus(_used(fronts))
        if not wanting or left.messages < 1 or left.size < 1:
            break
        before = _used(fronts)
        order = sorted(wanting, key=lambda topic: _waiting_since(wanting[topic]))
        shares = _shares(left, len(order))
        run(
            {
                topic: wanting[topic].take(wanting[topic].used.plus(share))
                for topic, share in zip(order, shares, strict=True)
            }
        )
        if _used(fronts) == before:
            break
    if whole_entries:
        _take_whole_entries(fronts, limit)
    return _used(fronts)


def _shares(left: Amount, count: int) -> list[Amount]:
    shares: list[Amount] = []
    for number in range(count):
        # The remainder goes to the first ones, which waited longest.
        messages = left.messages
        if messages < math.inf:
            messages = int(left.messages) // count + (number < int(left.messages) % count)
        shares.append(Amount(messages, left.size / count))
    return shares


def _take_whole_entries(fronts: Mapping[str, Front], limit: Amount) -> None:
    """Give the remainder to fronts that got nothing: it may suffice for one of their entries."""
    empty = [front for front in fronts.values() if front.cut == front.start and front.first]
    for front in sorted(empty, key=_waiting_since):
        assert front.first is not None
        used = _used(fronts)
        left = limit.minus(used)
        if (left.messages >= 1 and front.first.size <= left.size) or not used.messages:
            front.take_first(left.messages)


def _used(fronts: Mapping[str, Front]) -> Amount:
    messages = sum(front.used.messages for front in fronts.values())
    return Amount(messages, sum(front.used.size for front in fronts.values()))


def _waiting_since(front: Front) -> int:
    return front.first.publish_time if front.first is not None else 0
