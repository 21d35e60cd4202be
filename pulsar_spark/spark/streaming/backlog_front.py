"""The front of a topic partition's backlog: where a number of messages or bytes ends.

Without the admin API a broker does not tell the number of messages between two positions. It does
return the first entry at or after a position, with its number of messages and its size. The front
is estimated from such samples, taken by strata so that both runs and mixtures of small and large
entries are noticed. The limit on messages must not be exceeded: where entries differ, each is
inspected up to the limit, and beyond a certain number of entries the estimate has a safety margin.
If the broker stamps an index on entries, the result is exact.

Generators do the work: they yield positions and receive samples, so that many topic partitions
share rounds of requests.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator
from typing import NamedTuple, TypeAlias

from pulsar_spark.engine.consumers.probe import FoundEntry
from pulsar_spark.protocol.message_id import Position
from pulsar_spark.spark.reading.range_splitter import BEYOND_LEDGER, LedgerSize
from pulsar_spark.spark.streaming.entry_samples import EntryStatistics, strata

_MAX_STEPS = 12
_MAX_LEDGERS = 200
# How many entries one sample may represent.
_REACH = 512
# Safety margin, in standard deviations, of estimates for entries that differ.
_MARGIN = 4.0


Questions: TypeAlias = "list[Position]"
Answers: TypeAlias = "list[FoundEntry | None]"
Steps: TypeAlias = "Generator[Questions, Answers, None]"


class Amount(NamedTuple):
    """Messages and bytes; as a limit, infinite if there is none."""

    messages: float
    size: float

    def minus(self, other: Amount) -> Amount:
        """Return the difference, never negative."""
        return Amount(max(self.messages - other.messages, 0), max(self.size - other.size, 0))

    def plus(self, other: Amount) -> Amount:
        """Return the sum."""
        return Amount(self.messages + other.messages, self.size + other.size)


NOTHING = Amount(0, 0)


class Front:
    """The front of one topic partition's backlog [start, end), as far as it was inspected.

    `take` decides how much of it is within a limit. Then `cut` is the position after that part,
    `used` its exact or estimated amount, `exhausted` whether it is the whole backlog. `batch_size`
    is the size of the entry that contains the cut, 0 if the cut is between entries. One decision
    may inspect `samples` entries, or `exact` entries if they differ.
    """

    def __init__(
        self,
        start: Position,
        end: Position,
        samples: int,
        statistics: EntryStatistics | None = None,
        seed: int = 0,
        exact: int = 1024,
    ) -> None:
        self.start = start
        self.end = end
        self.first: FoundEntry | None = None
        self.cut = start
        self.used = NOTHING
        self.exhausted = False
        self.batch_size = 0
        self._samples = samples
        self._exact = max(exact, samples)
        self._statistics = statistics or EntryStatistics()
        self._random = random.Random(seed)
        self._ledgers: list[LedgerSize] = []
        # Whether the known ledgers are all that count, and whether there are more.
        self._complete = self._shortened = False
        # Slot (an entry id's number, counted from the start) → the entry there, if any.
        self._seen: dict[int, FoundEntry | None] = {}

    # --- slots ----------------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """How many entry ids the front has, as far as known; not each has an entry."""
        return sum(ledger.low for ledger in self._ledgers)

    def _place(self, slot: int) -> Position:
        for ledger in self._ledgers:
            if slot < ledger.low:
                place = Position(ledger.ledger_id, ledger.first + slot)
                return max(place, self.start)
            slot -= ledger.low
        last = self._ledgers[-1]
        return Position(last.ledger_id, last.first + last.low)

    def look(self) -> Steps:
        """Find the first entry."""
        (self.first,) = yield [self.start]
        if self.first is None or self.first.start >= self.end:
            # None of its entries is readable.
            self.first = None
            self.cut, self.exhausted = self.end, True
            return
        self._enter(self.first)
        self._learn(0, self.first)

    def _enter(self, found: FoundEntry) -> None:
        ledger = LedgerSize(found.start.ledger_id, found.start.entry_id)
        if ledger.ledger_id == self.end.ledger_id:
            behind = self.end.entry_id + (1 if self.end.batch_index else 0)
            ledger.low = max(behind - ledger.first, 1)
            ledger.high = ledger.low + 1
            self._complete = True
        self._ledgers.append(ledger)

    def _reach(self, slots: int) -> Steps:
        """Find this many slots, or all there are."""
        while self.slots < slots and not self._complete:
            last = self._ledgers[-1]
            if last.exact:
                yield from self._next_ledger(last)
                continue
            missing = slots - self.slots
            if last.high:
                probe = last.next_probe()
            else:
                probe = Position(last.ledger_id, last.first + last.low + missing - 1)
            (found,) = yield [probe]
            last.learn(probe, None if found is None else Position(*found.start[:2]))

    def _next_ledger(self, last: LedgerSize) -> Steps:
        (found,) = yield [Position(last.ledger_id, BEYOND_LEDGER)]
        ahead = found is not None and found.start.ledger_id > last.ledger_id
        if found is None or not ahead or found.start >= self.end:
            self._complete = True
        elif len(self._ledgers) >= _MAX_LEDGERS:
            # Enough for one batch; the next one continues from here.
            self._complete = self._shortened = True
        else:
            self._enter(found)

    def _ask(self, slots: list[int]) -> Steps:
        asked = [slot for slot in slots if slot not in self._seen]
        if not asked:
            return
        answers = yield [self._place(slot) for slot in asked]
        for slot, found in zip(asked, answers, strict=True):
            self._learn(slot, found)

    def _learn(self, slot: int, found: FoundEntry | None) -> None:
        here = found is not None and found.start[:2] == self._place(slot)[:2]
        self._seen[slot] = found if here else None
        # The rest of a partly read entry says nothing about other entries.
        if found is not None and here and not found.start.batch_index:
            self._statistics.add(found.remaining)

    # --- deciding -------------------------------------------------------------------------------

    def take(self, limit: Amount) -> Steps:
        """Decide how much is within `limit`; calls `look` first. Later limits must be higher."""
        if self.first is None:
            return
        if self.first.index is not None and limit.messages < math.inf:
            yield from self._take_by_index(limit)
        else:
            yield from self._take_by_samples(limit)

    def take_first(self, most: float) -> None:
        """Take the first entry whatever its size, but at most so many of its messages."""
        if self.first is not None:
            messages = min(self.first.remaining, most)
            self._cut_at(self.first, messages)
            self.used = Amount(messages, self.first.size)
            self.exhausted = self.cut >= self.end

    def _cut_at(self, found: FoundEntry, messages: float) -> None:
        """Cut after so many messages of an entry."""
        self.batch_size = 0
        self.cut = min(_behind(found), self.end)
        if messages < found.remaining:
            place = found.start
            inside = place.batch_index + int(messages)
            self.cut = min(Position(place.ledger_id, place.entry_id, inside), self.end)
            self.batch_size = found.stop.batch_index

    def _take_by_samples(self, limit: Amount) -> Steps:
        assert self.first is not None
        window = self._guess(limit)
        fit, used, inside = 0, NOTHING, 0
        for _ in range(_MAX_STEPS):
            yield from self._reach(window)
            window = min(window, self.slots)
            strata = self._strata(window)
            yield from self._ask([slot for slot, _ in strata])
            fit, used, inside = self._fit(strata, limit)
            if fit >= window:
                if self._complete and window >= self.slots:
                    break
                if window >= self._farthest:
                    break
                window = min(max(2 * window, self._guess(limit)), self._farthest)
            elif window - fit > max(fit // 2, self._samples):
                # The samples are too sparse for such a small part.
                window = max(fit + fit // 4, min(self._samples, window - 1))
            else:
                break
        if limit.messages < math.inf and window > self._samples and self._differ:
            window = min(window, fit + fit // 4 + 1)
            head = min(window, self._exact)
            tail = [(head + slot, width) for slot, width in self._strata(window - head)]
            strata = [*((slot, 1) for slot in range(head)), *tail]
            yield from self._ask([slot for slot, _ in strata])
            fit, used, inside = self._fit(strata, limit, _MARGIN)
        self._settle(fit, used, inside)

    @property
    def _differ(self) -> bool:
        """Whether entries are known to have different numbers of messages."""
        whole = {found.remaining for slot, found in self._seen.items() if slot and found}
        return len(whole) > 1 or self._statistics.deviation > 0

    @property
    def _farthest(self) -> int:
        return int(_REACH * (self._samples + self._statistics.count))

    def _guess(self, limit: Amount) -> int:
        assert self.first is not None
        each = max(self._statistics.mean, 1.0)
        by_messages = limit.messages / each
        by_size = limit.size / max(self.first.size, 1)
        return int(max(min(by_messages, by_size, self._farthest), 1)) + 1

    def _strata(self, window: int) -> list[tuple[int, int]]:
        """Return slots to sample, each with the number of slots it represents, in order."""
        if window <= self._samples:
            return [(slot, 1) for slot in range(window)]
        return strata(0, window, self._samples, self._random)

    def _fit(
        self, strata: list[tuple[int, int]], limit: Amount, deviations: float = 1.0
    ) -> tuple[int, Amount, int]:
        """Return how many slots are within the limit, their amount, and how much of the next slot.

        A slot that represents others counts with the safety margin.
        """
        wide = sum(width > 1 for _, width in strata)
        margin = deviations * self._statistics.deviation / math.sqrt(wide) if wide else 0.0
        slots, messages, size = 0, 0.0, 0.0
        for slot, width in strata:
            found = self._seen[slot]
            each = (0.0, 0.0) if found is None else (float(found.remaining), float(found.size))
            each = each[0] + (margin if width > 1 else 0.0), each[1]
            fitting = width
            for cost, done, most in (
                (each[0], messages, limit.messages),
                (each[1], size, limit.size),
            ):
                if cost * width > most - done:
                    fitting = min(fitting, max(int((most - done) // cost), 0))
            slots += fitting
            messages += fitting * each[0]
            size += fitting * each[1]
            if fitting < width:
                inside = int(min(max(limit.messages - messages, 0), each[0]))
                if width > 1 or not 0 < inside < each[0] or size + each[1] > limit.size:
                    break
                # Bytes count for whole entries, messages also for parts.
                return slots, Amount(messages + inside, size + each[1]), inside
        return slots, Amount(messages, size), 0

    def _settle(self, fit: int, used: Amount, inside: int = 0) -> None:
        self.used = used
        self.batch_size = 0
        found = self._seen.get(fit) if inside else None
        if found is not None:
            self._cut_at(found, inside)
            self.exhausted = self.cut >= self.end
        elif self._complete and fit >= self.slots and not self._shortened:
            self.cut, self.exhausted = self.end, True
        else:
            self.cut, self.exhausted = self.start, False
            if fit:
                # Behind an entry, never at the start of the next ledger: that is acknowledged.
                last = self._place(fit - 1)
                self.cut = min(Position(last.ledger_id, last.entry_id + 1), self.end)

    # --- by index -------------------------------------------------------------------------------

    def _take_by_index(self, limit: Amount) -> Steps:
        assert self.first is not None
        assert self.first.index is not None
        if limit.size < math.inf:
            yield from self._take_by_samples(Amount(math.inf, limit.size))
        begin = self.first.index - self.first.remaining + 1
        wanted = int(limit.messages)
        self.batch_size = 0
        last: list[int] = [begin - 1]
        cut = self.start if not wanted else (yield from self._find(begin + wanted - 1, last))
        if cut is not None and (limit.size == math.inf or cut < self.cut):
            self.cut, self.exhausted = cut, False
            self.used = Amount(wanted, self.used.size)
            if not cut.batch_index:
                self.batch_size = 0
        elif limit.size == math.inf:
            self.batch_size = 0
            self._settle(self.slots, Amount(last[0] - begin + 1, 0.0))

    def _find(self, index: int, last: list[int]) -> Generator[Questions, Answers, Position | None]:
        """Return the position just after the message with `index`, None if that is too far.

        `last` receives the highest index before it.
        """
        assert self.first is not None
        low = 0
        high = int((index - (self.first.index or 0)) / max(self._statistics.mean, 1.0)) + 1
        while True:
            yield from self._reach(high + 1)
            high = min(high, self.slots - 1)
            if not (yield from self._is_before(high, index, last)):
                break
            if high >= self.slots - 1 and self._complete:
                return None
            low, high = high + 1, 2 * high + 1
        while low < high:
            middle = (low + high) // 2
            if (yield from self._is_before(middle, index, last)):
                low = middle + 1
            else:
                high = middle
        (found,) = yield [self._place(low)]
        if found is None or found.start >= self.end:
            return None
        place = found.start
        if found.index is None:
            return Position(*place)
        inside = found.remaining - (found.index - index)
        if inside >= found.remaining:
            return _behind(found)
        self.batch_size = found.stop.batch_index
        return Position(place.ledger_id, place.entry_id, place.batch_index + inside)

    def _is_before(
        self, slot: int, index: int, last: list[int]
    ) -> Generator[Questions, Answers, bool]:
        """Return whether the first entry at or after a slot ends before `index`."""
        (found,) = yield [self._place(slot)]
        if found is None or found.start >= self.end or found.index is None:
            return False
        if found.index < index:
            last[0] = max(last[0], found.index)
            return True
        return False


def _behind(sample: FoundEntry) -> Position:
    """Return the position after an entry: the next entry's."""
    ledger_id, entry_id, index = sample.stop
    return Position(ledger_id, entry_id + (1 if index else 0))
