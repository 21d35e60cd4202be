"""Admission control: how much of the backlog goes into the next micro-batch.

If all of it is within the caps, a few looks make sure of that. Otherwise topic partitions get equal
shares of the caps, at most 64 of them at a time: those that waited longest. Unused shares go to the
others, and the remainder to those whose first message is oldest. The cap on messages is exact, even
within entries; the cap on bytes admits at least one entry. Whatever the number of topic partitions,
a decision takes a bounded number of requests.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from pulsar_spark.engine.consumers.probe import FoundEntry, Look
from pulsar_spark.protocol.message_id import Position
from pulsar_spark.spark.options.stream import Caps
from pulsar_spark.spark.streaming.backlog_front import (
    MANY,
    NOTHING,
    Allowance,
    Amount,
    Front,
    Steps,
)
from pulsar_spark.spark.streaming.topics import Span

Ask: TypeAlias = Callable[[Sequence[tuple[str, Look]]], Sequence[Sequence[FoundEntry]]]
"""Answers each look at a topic with the entries that it finds."""

# Requests of a decision, of which some make sure that all is within the caps; and entries and bytes
# that it reads in order, in all.
_LOOKS = 64
_CHECKS = 16
_ENTRIES = 4096
_BYTES = 32 * 1024 * 1024
# So few entries, and bytes of them, are all read rather than sampled.
_FEW_ENTRIES = 1024
_FEW_BYTES = 4 * 1024 * 1024
_ROUNDS = 4


class Admission:
    """Chooses the ends of one stream's micro-batches."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._fronts: dict[str, Front] = {}
        self._decisions = 0
        self._random = random.Random(0)
        # What is left of the current decision's requests.
        self._left = _LOOKS
        self.batch_sizes: dict[str, int] = {}
        """For each end inside an entry in the last result: the entry's number of messages."""

    def admit(self, spans: Mapping[str, Span], caps: Caps) -> dict[str, Position]:
        """Return where the batch ends on each topic partition; an unchanged start takes nothing.

        `spans` are the backlogs.
        """
        fronts = self._begin(spans)
        limit = _limit(caps)
        if self._all_fit(fronts, limit):
            self._take_whole(fronts, list(fronts), limit)
        else:
            # Who gets no look may have nothing that is known, and could take nothing.
            order, most = _in_turn(fronts), self._left
            chosen = {topic: fronts[topic] for topic in order[:most]}
            self._share(chosen, limit)
            _take_whole_entries(chosen, limit)
            enough = sum(front.seen for front in fronts.values()) >= MANY
            known = [topic for topic in order[most:] if enough or fronts[topic].is_known]
            self._take_whole(fronts, known, limit.minus(_used(chosen)))
        for front in fronts.values():
            if front.cut > front.start:
                front.served = self._decisions
        self.batch_sizes = {topic: front.batch_size for topic, front in fronts.items()}
        return {
            topic: fronts[topic].cut if topic in fronts else span.start
            for topic, span in spans.items()
        }

    def holds(self, spans: Mapping[str, Span], messages: int) -> bool:
        """Whether there are, by estimate, so many messages."""
        fronts = self._begin(spans)
        if sum(front.slots or 0 for front in fronts.values()) >= messages:
            return True
        chosen = {topic: fronts[topic] for topic in _in_turn(fronts)[:_LOOKS]}
        self._share(chosen, Amount(messages, math.inf))
        seen = _used(chosen).messages
        others = sum(front.likely() for topic, front in fronts.items() if topic not in chosen)
        return seen + others >= messages or not all(front.exhausted for front in chosen.values())

    def _begin(self, spans: Mapping[str, Span]) -> dict[str, Front]:
        """Return the fronts of the topic partitions that have a backlog."""
        self._decisions += 1
        self._left = _LOOKS
        for topic in set(self._fronts).difference(spans):
            del self._fronts[topic]
        fronts: dict[str, Front] = {}
        for topic, span in spans.items():
            if span.start < span.end:
                front = self._fronts.get(topic)
                if front is None:
                    front = self._fronts[topic] = Front(self._random)
                front.begin(*span)
                fronts[topic] = front
        return fronts

    # --- within the caps --------------------------------------------------------------------------

    def _all_fit(self, fronts: Mapping[str, Front], limit: Amount) -> bool:
        """Whether the caps do not bind: if entries are no larger than those seen, which is checked.

        If they are few, all of them are read.
        """
        indexed = [topic for topic, front in fronts.items() if front.indexed and front.slots]
        if limit.size == math.inf and 0 < 2 * len(indexed) <= _CHECKS:
            others = {topic: front for topic, front in fronts.items() if topic not in indexed}
            if _most(others).within(limit):
                self._count(fronts, indexed)
        if not _most(fronts).within(limit):
            return False
        if (few := self._few(fronts)) is not None:
            share = self._allowance(max(len(few), 1))
            self._run({topic: front.read_all(share) for topic, front in few.items()})
            return _most(fronts).within(limit)
        looks = self._checks(fronts)
        for (topic, _), found in zip(looks, self._look(looks), strict=True):
            fronts[topic].learn(found)
        return _most(fronts).within(limit)

    def _count(self, fronts: Mapping[str, Front], topics: Sequence[str]) -> None:
        looks = {topic: fronts[topic].last_looks() for topic in topics}
        found = iter(self._look([(topic, look) for topic in topics for look in looks[topic]]))
        for topic in topics:
            fronts[topic].count(*[next(found) for _ in looks[topic]])

    @staticmethod
    def _few(fronts: Mapping[str, Front]) -> dict[str, Front] | None:
        """Return the fronts with entries that are not known, None if these are many."""
        unsure = {topic: front for topic, front in fronts.items() if not front.is_certain}
        entries = sum(front.slots or 0 for front in unsure.values())
        size = sum(front.likely_size() for front in unsure.values())
        few = len(unsure) <= _CHECKS and entries <= _FEW_ENTRIES and size <= _FEW_BYTES
        return unsure if few else None

    def _checks(self, fronts: Mapping[str, Front]) -> list[tuple[str, Look]]:
        """Choose some places at random, more where more is unknown."""
        unknown = {
            topic: front.slots or 0 for topic, front in fronts.items() if not front.is_counted
        }
        if not any(unknown.values()):
            return []
        drawn = self._random.choices(list(unknown), list(unknown.values()), k=_CHECKS)
        counts = {topic: drawn.count(topic) for topic in dict.fromkeys(drawn)}
        return [
            (topic, look)
            for topic, count in counts.items()
            for look in fronts[topic].random_looks(count)
        ]

    # --- beyond the caps --------------------------------------------------------------------------

    @staticmethod
    def _take_whole(fronts: Mapping[str, Front], topics: Sequence[str], left: Amount) -> None:
        """Take the whole backlogs of those that fit into what is left, without looking at them."""
        largest = _largest(fronts)
        for topic in topics:
            most = fronts[topic].most(largest)
            if most.within(left):
                fronts[topic].take_all(most)
                left = left.minus(most)

    def _share(self, fronts: Mapping[str, Front], limit: Amount) -> None:
        """Divide a limit among fronts."""
        if not fronts:
            return
        number = len(fronts)
        whole = limit.messages if limit.messages == math.inf else -(-limit.messages // number)
        each, allowance = Amount(whole, limit.size / number), self._allowance(number)
        self._run({topic: front.read(each, allowance) for topic, front in fronts.items()})
        wanting, used = dict(fronts), NOTHING
        for _ in range(_ROUNDS):
            wanting = {topic: front for topic, front in wanting.items() if not front.exhausted}
            left = limit.minus(used)
            if not wanting or left.messages < 1 or left.size < 1:
                break
            shares, allowance = _shares(left, _in_order(wanting)), self._allowance(len(wanting))
            self._run(
                {
                    topic: wanting[topic].take(wanting[topic].used.plus(share), allowance)
                    for topic, share in shares.items()
                }
            )
            before, used = used, _used(fronts)
            if used == before:
                break

    def _allowance(self, number: int) -> Allowance:
        return Allowance(self._left // number, _ENTRIES // number, _BYTES // number)

    def _run(self, steps: Mapping[str, Steps]) -> None:
        """Run all generators in rounds until none has a question left."""
        # None starts a generator.
        answers: dict[str, Any] = dict.fromkeys(steps)
        while answers:
            asked: dict[str, list[Look]] = {}
            for topic, told in answers.items():
                with suppress(StopIteration):
                    asked[topic] = steps[topic].send(told)
            found = iter(self._look([(topic, each) for topic in asked for each in asked[topic]]))
            answers = {topic: [next(found) for _ in looks] for topic, looks in asked.items()}

    def _look(self, questions: Sequence[tuple[str, Look]]) -> Sequence[Sequence[FoundEntry]]:
        self._left = max(self._left - len(questions), 0)
        return self._ask(questions) if questions else []


def _limit(caps: Caps) -> Amount:
    return Amount(
        math.inf if caps.max_messages is None else caps.max_messages,
        math.inf if caps.max_bytes is None else caps.max_bytes,
    )


def _in_order(fronts: Mapping[str, Front]) -> list[str]:
    """Return the topics in the order in which they get what cannot be divided equally."""

    def waiting_since(topic: str) -> tuple[int, int]:
        front = fronts[topic]
        return front.served, front.first.publish_time if front.first is not None else 0

    return sorted(fronts, key=waiting_since)


def _shares(left: Amount, topics: Sequence[str]) -> dict[str, Amount]:
    count = len(topics)
    shares: dict[str, Amount] = {}
    for number, topic in enumerate(topics):
        messages = left.messages
        if messages < math.inf:
            messages = int(left.messages) // count + (number < int(left.messages) % count)
        shares[topic] = Amount(messages, left.size / count)
    return shares


def _take_whole_entries(fronts: Mapping[str, Front], limit: Amount) -> None:
    """Give the remainder to fronts that got nothing: it may suffice for one of their entries."""
    used = _used(fronts)
    for topic in _in_order(fronts):
        front = fronts[topic]
        if front.cut != front.start or front.first is None:
            continue
        left = limit.minus(used)
        if (left.messages >= 1 and front.first.size <= left.size) or not used.messages:
            front.take_first(left.messages)
            used = used.plus(front.used)


def _used(fronts: Mapping[str, Front]) -> Amount:
    return _total(front.used for front in fronts.values())


def _most(fronts: Mapping[str, Front]) -> Amount:
    largest = _largest(fronts)
    return _total(front.most(largest) for front in fronts.values())


def _largest(fronts: Mapping[str, Front]) -> Amount:
    found = [front.largest for front in fronts.values()]
    messages = max((largest.messages for largest in found), default=0)
    return Amount(messages, max((largest.size for largest in found), default=0))


def _in_turn(fronts: Mapping[str, Front]) -> list[str]:
    """Return the topics, those that waited longest first, of these those with most messages."""
    return sorted(fronts, key=lambda topic: (fronts[topic].served, -fronts[topic].likely()))


def _total(amounts: Iterable[Amount]) -> Amount:
    total = NOTHING
    for amount in amounts:
        total = total.plus(amount)
    return total
