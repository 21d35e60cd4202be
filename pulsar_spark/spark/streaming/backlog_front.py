"""The front of a topic partition's backlog: where a number of messages or bytes ends.

Without the admin API a broker does not tell the number of messages between two positions. But a
subscription at a position gets the entries from there on, with their numbers of messages and sizes.
So a front is read up to the limit, as far as that is cheap. Beyond that, it is exact if the broker
stamps an index on entries. If not, entries are sampled by strata, so that both runs and mixtures of
small and large ones are noticed, and where they differ the estimate has a safety margin: the limit
on messages must not be exceeded.

Generators do the work: they yield what to look at and receive entries, so that many topic
partitions share rounds of requests. What was read beyond a decision is kept for the next one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from pulsar_spark.engine.consumers.probe import FoundEntry, Look
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.spark.streaming.entry_samples import EntryStatistics, rising, strata

# How many entries are read at first: enough to see whether they are alike.
_FIRST_ENTRIES = 256
# How many entries the search for an index looks at in one place.
_NEAR = 16
# How many samples of a ledger of alike entries are taken, if its end is unknown.
_AT_ONCE = 16
MANY = 64
"""So many entries that were seen tell how large others are, without a look at these."""
# How many entries are kept for the next decision.
_KEPT = 1024
# Safety margin, in standard deviations, of estimates for entries that differ.
_MARGIN = 4.0

Entries: TypeAlias = "Sequence[FoundEntry]"
Steps: TypeAlias = "Generator[list[Look], list[Entries], None]"


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

    def within(self, limit: Amount) -> bool:
        """Whether neither part is above that of the limit."""
        return self.messages <= limit.messages and self.size <= limit.size


NOTHING = Amount(0, 0)


class Allowance(NamedTuple):
    """What a front may use in one round: looks, and entries and bytes that are read in order."""

    looks: int
    entries: int
    size: int


class _Stratum(NamedTuple):
    """`width` ids from `start` on, and what each is taken to have.

    Not all of them exist if it is not certain.
    """

    start: Position
    width: int
    each: Amount
    is_certain: bool = True


class Front:
    """The front of one topic partition's backlog [start, end), as far as it is known.

    Each decision begins with `begin`. `take` decides how much is within a limit. Then `cut` is the
    position after that part, `used` its exact or estimated amount, `exhausted` whether it is the
    whole backlog. `batch_size` is the size of the entry that contains the cut, 0 if the cut is
    between entries. `served` is the last decision that took something.
    """

    def __init__(self, rng: random.Random) -> None:
        self.served = 0
        self.batch_size = 0
        self.start = self.cut = self.end = EARLIEST_POSITION
        self.used = NOTHING
        self.exhausted = False
        self._statistics = EntryStatistics()
        self._random = rng
        # The entries from the start on, and up to where these are all.
        self._known: list[FoundEntry] = []
        self._upto = EARLIEST_POSITION
        # If known: the number of messages in the last entry, the index of the first message behind
        # the cut, and the number of messages in all.
        self._last = 0
        self._base: int | None = None
        self._count: int | None = None

    def begin(self, start: Position, end: Position, last: int = 0) -> None:
        """Begin a decision about [start, end), whose last entry has `last` messages, 0 if unknown.

        What is known from the last decision is used if the backlog continues at its cut.
        """
        if start != self.cut or end < self._upto:
            self._known, self._upto, self._base = [], start, None
        self._known = [found for found in self._known if found.stop > start][:_KEPT]
        if self._known:
            first = self._known[0]
            self._known[0] = replace(first, start=max(first.start, start))
            self._upto = self._known[-1].behind
        else:
            self._upto = start
        self.start = self.cut = start
        self.end, self._last = end, last
        self.used, self.exhausted, self.batch_size = NOTHING, False, 0
        self._count = None

    # --- what is known ----------------------------------------------------------------------------

    @property
    def first(self) -> FoundEntry | None:
        """The first entry, if it was read."""
        return self._known[0] if self._known else None

    @property
    def slots(self) -> int | None:
        """How many ids there are beyond the known entries, None if other ledgers follow.

        Not each id has an entry.
        """
        if self._upto >= self.end:
            return 0
        if self._upto.ledger_id != self.end.ledger_id:
            return None
        return max(self.end.entry_id - max(self._upto.entry_id, 0), 0)

    @property
    def indexed(self) -> bool:
        """Whether the broker stamps an index on entries."""
        return self._base is not None or any(found.index is not None for found in self._known[:1])

    @property
    def _large(self) -> Amount:
        """What entries beyond the known ones have at most, by all that is known."""
        return Amount(max(self._statistics.largest, self._last), self._statistics.largest_size)

    @property
    def _alike(self) -> bool:
        """Whether no entries of different sizes were seen."""
        found = self._statistics
        return found.deviation == 0 and self._last <= max(found.largest, 1)

    @property
    def is_counted(self) -> bool:
        """Whether the number of messages is known for certain."""
        return self._count is not None

    @property
    def is_certain(self) -> bool:
        """Whether the number of messages is known for certain, from all entries or without them."""
        return self.is_counted or self.slots == 0 or (self.slots == 1 and self._last > 0)

    @property
    def is_known(self) -> bool:
        """Whether what was seen tells how many messages there are at most: a few entries do not."""
        return self.is_certain or self.seen >= MANY

    @property
    def seen(self) -> float:
        """How many entries were seen that are not forgotten."""
        return self._statistics.count

    @property
    def largest(self) -> Amount:
        """The messages and bytes of the largest entries that were seen."""
        return Amount(self._statistics.largest, self._statistics.largest_size)

    def most(self, unseen: Amount) -> Amount:
        """Return how much the backlog has if no entry is larger than those that were seen.

        `unseen` is what an entry has at least of a front of which a few were seen, or none; 0 if
        that is unknown.
        """
        slots, most = self.slots, _sum(self._known)
        each = self.largest
        if self.seen < MANY:
            each = Amount(max(each.messages, unseen.messages), max(each.size, unseen.size))
        messages, size = max(each.messages, self._last), each.size
        if slots is None:
            most = Amount(math.inf, math.inf)
        elif slots:
            messages = slots * (messages or math.inf)
            if slots == 1 and self._last:
                messages = self._last - self._upto.batch_index
            most = most.plus(Amount(messages, slots * (size or math.inf)))
        return most if self._count is None else most._replace(messages=self._count)

    def likely(self) -> float:
        """Return the likely number of messages, as far as ids tell."""
        return _sum(self._known).messages + (self.slots or 0) * self._statistics.mean

    def likely_size(self) -> float:
        """Return the likely number of bytes beyond the known entries, infinite if none was seen."""
        return (self.slots or 0) * (self._statistics.mean_size or math.inf)

    def random_looks(self, count: int) -> list[Look]:
        """Return so many places beyond the known entries, in different parts."""
        low = max(self._upto.entry_id, 0)
        parts = strata(low, self.end.entry_id, min(count, self.slots or 0), self._random)
        return [Look(Position(self.end.ledger_id, slot)) for slot, _ in parts]

    def last_looks(self) -> list[Look]:
        """Return the places whose indexes tell how many messages there are."""
        last = Look(Position(self.end.ledger_id, max(self.end.entry_id - 1, 0)))
        return [last] if self._base is not None else [last, Look(self.start)]

    def learn(self, entries: Entries) -> None:
        """Learn from entries what others may be like."""
        for found in entries:
            # The rest of a partly read entry says nothing about other entries.
            if found.start < self.end and not found.start.batch_index:
                self._statistics.add(found.messages, found.size)

    def count(self, last: Entries, first: Entries = ()) -> None:
        """Count the messages by the indexes of the entries at `last_looks`."""
        for found in first:
            if found.index is not None:
                self._base = found.index - found.remaining + 1
        for found in last:
            if found.index is not None and self._base is not None and found.start < self.end:
                count = found.index - self._base + 1
                if count >= _sum(self._known).messages:
                    self._count = count

    # --- deciding ---------------------------------------------------------------------------------

    def read(self, limit: Amount, allowance: Allowance) -> Steps:
        """Read the first entries, if those that are known are less than the limit."""
        if allowance.looks and not self._suffices(limit):
            few = min(allowance.entries, _FIRST_ENTRIES)
            yield from self._read_on(limit, allowance._replace(entries=few))

    def read_all(self, allowance: Allowance) -> Steps:
        """Read all entries, as far as that is allowed."""
        yield from self._read_on(Amount(math.inf, math.inf), allowance)

    def take(self, limit: Amount, allowance: Allowance) -> Steps:
        """Decide how much is within `limit`; calls `read` first.

        Later limits of a decision must be higher.
        """
        looks = allowance.looks
        found: list[_Stratum] = []
        if not self._suffices(limit) and self._known and self.indexed and limit.size == math.inf:
            yield from self._search(limit, looks)
            return
        # Where entries differ, and across ledgers, the next entries are read first.
        if looks and not self._suffices(limit) and (not self._alike or self.slots is None):
            yield from self._read_on(limit, allowance)
            looks -= 1
        if not self._suffices(limit):
            found = yield from self._sample(limit, looks)
        before = self.cut, self.used, self.batch_size, self._base
        self._settle(limit, found)
        if self.cut < before[0]:
            # There were no looks left for what was sampled then.
            self.cut, self.used, self.batch_size, self._base = before
            self.exhausted = False

    def take_all(self, amount: Amount) -> None:
        """Take the whole backlog, which is of that amount."""
        self.cut, self.exhausted, self.used, self.batch_size = self.end, True, amount, 0
        counted = self._base is not None and self._count is not None
        self._base = (self._base or 0) + (self._count or 0) if counted else None

    def take_first(self, most: float) -> None:
        """Take the first entry whatever its size, but at most so many of its messages."""
        if self.first is not None:
            self.used = self._cut_in(self.first, min(self.first.remaining, most))

    def _suffices(self, limit: Amount) -> bool:
        """Whether the known entries reach the limit, or are all."""
        known = _sum(self._known)
        enough = known.messages >= limit.messages or known.size >= limit.size
        return enough or self._upto >= self.end

    def _read_on(self, limit: Amount, allowance: Allowance) -> Steps:
        """Read entries behind the known ones."""
        left = limit.minus(_sum(self._known))
        size = min(left.size, allowance.size)
        look = Look(self._upto, max(allowance.entries, 1), left.messages, size, self.end)
        (found,) = yield [look]
        self.learn(found)
        inside = [entry for entry in found if entry.start < self.end]
        self._known += inside
        read = _sum(inside)
        is_enough = len(found) >= look.entries or read.messages >= left.messages
        if len(inside) == len(found) and (is_enough or read.size >= size):
            self._upto = inside[-1].behind
        else:
            self._upto = self.end

    def _sample(
        self, limit: Amount, looks: int
    ) -> Generator[list[Look], list[Entries], list[_Stratum]]:
        """Look at some of the ids that are likely within the limit, one ledger after another."""
        left = limit.minus(_sum(self._known))
        if not looks and self.slots:
            return [_Stratum(self._upto, self.slots, self._large)] if self.is_known else []
        at: Position | None = self._upto
        found: list[_Stratum] = []
        while at is not None and looks > 0:
            window = self._window(at, left)
            inside = at.ledger_id == self.end.ledger_id
            at_once = looks if inside or not self._alike else min(looks, _AT_ONCE)
            parts = strata(0, window, min(at_once, window), self._random)
            if not parts:
                break
            looks -= len(parts)
            places = [at._replace(entry_id=max(at.entry_id, 0) + slot) for slot, _ in parts]
            answers = yield [Look(place) for place in places]
            fresh, at = self._strata(at, parts, places, answers, inside=inside)
            found += fresh
            for _, width, each, _ in fresh:
                left = left.minus(Amount(width * each.messages, width * each.size))
        count = sum(stratum.is_certain for stratum in found)
        deviation = 0.0 if self._alike else self._statistics.deviation
        if empty := sum(stratum.each == NOTHING for stratum in found):
            # So many ids have an entry, or not, as few samples can tell.
            part = (empty + 1) / (count + 2)
            deviation = math.hypot(deviation, self._statistics.mean * math.sqrt(part * (1 - part)))
        margin = _MARGIN * deviation / math.sqrt(max(count, 1))
        # An id that stands for itself alone has no margin.
        return [
            stratum._replace(each=stratum.each.plus(Amount(margin, 0)))
            if stratum.width > 1
            else stratum
            for stratum in found
        ]

    def _window(self, at: Position, left: Amount) -> int:
        """Return how many ids of a ledger are likely within what is left of a limit."""
        found = self._statistics
        ids = min(left.messages / max(found.mean, 1.0), left.size / max(found.mean_size, 1.0))
        if at.ledger_id == self.end.ledger_id:
            ids = min(ids, self.end.entry_id - max(at.entry_id, 0))
        return int(ids)

    def _strata(
        self,
        at: Position,
        parts: Sequence[tuple[int, int]],
        places: Sequence[Position],
        answers: Sequence[Entries],
        *,
        inside: bool,
    ) -> tuple[list[_Stratum], Position | None]:
        """Return what the samples stand for, and where the next ledger begins, if it was reached.

        `inside` if the ledger has all of these ids.
        """
        found: list[_Stratum] = []
        behind = at._replace(entry_id=max(at.entry_id, 0), batch_index=0)
        for (_, width), place, answer in zip(parts, places, answers, strict=True):
            entry = answer[0] if answer else None
            if entry is None or entry.start >= self.end:
                break
            if entry.start.ledger_id != place.ledger_id:
                # The ledger ends before that id, and has at most as many entries up to it.
                ids = place.entry_id - behind.entry_id
                found.append(_Stratum(behind, ids, self._large, is_certain=False))
                return found, entry.start
            here = entry.start[:2] == place[:2]
            if here:
                self.learn(answer)
            ids = width if inside else place.entry_id + 1 - behind.entry_id
            amount = Amount(entry.messages, entry.size) if here else NOTHING
            found.append(_Stratum(behind, ids, amount))
            behind = behind._replace(entry_id=behind.entry_id + ids)
        return found, None

    def _settle(self, limit: Amount, beyond: Sequence[_Stratum]) -> None:
        self.cut, self.batch_size, self.exhausted, used = self.start, 0, False, NOTHING
        for found in self._known:
            taken = used.plus(Amount(found.remaining, found.size))
            if not taken.within(limit):
                # Bytes count for whole entries, messages also for parts.
                inside = limit.messages - used.messages
                if inside >= 1 and taken.size <= limit.size:
                    used = used.plus(self._cut_in(found, min(inside, found.remaining)))
                self.used = used
                return
            used = used.plus(self._cut_in(found, found.remaining))
        if self._upto >= self.end:
            self.cut = self.end
        for place, width, each, is_certain in beyond:
            fits = _fitting(limit.minus(used), each, width)
            if not is_certain and fits < width:
                break
            used = used.plus(Amount(fits * each.messages, fits * each.size))
            if fits and is_certain:
                self.cut = min(place._replace(entry_id=place.entry_id + fits), self.end)
                self._base = None
            if fits < width:
                break
        self.used, self.exhausted = used, self.cut >= self.end

    def _cut_in(self, found: FoundEntry, messages: float) -> Amount:
        """Cut after so many messages of an entry; return their amount."""
        place = found.start
        self.batch_size = 0
        self.cut = min(found.behind, self.end)
        if messages < found.remaining:
            inside = place.batch_index + int(messages)
            self.cut = min(Position(place.ledger_id, place.entry_id, inside), self.end)
            self.batch_size = found.stop.batch_index
        self.exhausted = self.cut >= self.end
        if found.index is None:
            self._base = None
        else:
            self._base = found.index - found.remaining + int(messages) + 1
        return Amount(messages, found.size)

    # --- by index ---------------------------------------------------------------------------------

    def _search(self, limit: Amount, looks: int) -> Steps:
        """Find the entry that has the last message within the limit, by its index.

        What nobody can read has an index too (messages of aborted transactions). So the known
        entries are counted themselves, and indexes count only from there on.
        """
        low, known = self._known[-1], _sum(self._known).messages
        if low.index is None:
            self._settle(limit, [])
            return
        begin = low.index + 1 - int(known)
        wanted = begin + int(limit.messages) - 1 if limit.messages < math.inf else math.inf
        # Nothing that can be read is between `last` and `high`.
        high: FoundEntry | None = None
        last = self.end
        for _ in range(looks):
            if low.behind >= last:
                break
            place = self._guess(low, high, last, wanted)
            (found,) = yield [Look(place, _NEAR, end=self.end)]
            self.learn(found)
            inside = [entry for entry in rising(low.index or 0, found) if entry.start < self.end]
            before = [entry for entry in inside if (entry.index or 0) < wanted]
            if before:
                low = before[-1]
            if len(inside) > len(before):
                high = inside[len(before)]
                last = Position(*high.start[:2]) if before else place
            elif len(inside) < _NEAR:
                break
            if high is not None and (high.index or 0) - high.remaining < wanted:
                # The wanted message is in it.
                low = high
                break
        assert low.index is not None
        self._cut_in(low, low.remaining - max(low.index - wanted, 0))
        self.used = Amount((self._base or 0) - begin, 0.0)

    def _guess(
        self, low: FoundEntry, high: FoundEntry | None, last: Position, wanted: float
    ) -> Position:
        """Return where the entry with an index may be: behind `low` and before `last`."""
        assert low.index is not None
        behind = low.behind
        missing = (wanted - low.index) / max(self._statistics.mean, 1.0)
        if behind.ledger_id == last.ledger_id:
            ids = last.entry_id - behind.entry_id
            if high is not None and high.index is not None:
                share = (wanted - low.index) / max(high.index - low.index, 1)
                missing = ids * share
            missing = min(missing, ids - 1)
        step = int(max(missing - _NEAR // 2, 0)) if missing < math.inf else 0
        return Position(behind.ledger_id, behind.entry_id + step)


def _fitting(left: Amount, each: Amount, width: int) -> int:
    """Return how many of `width` equal entries are within what is left."""
    fits = float(width)
    for room, one in zip(left, each, strict=True):
        if one * width > room:
            fits = min(fits, room // one)
    return max(int(fits), 0)


def _sum(entries: Entries) -> Amount:
    messages = sum(found.remaining for found in entries)
    return Amount(messages, sum(found.size for found in entries))
