"""A subscription's acknowledgements and read position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pulsar_spark.protocol.ack_sets import ack_bits
from pulsar_spark.testing.entry_log import EARLIEST_PLACE, LATEST_PLACE, Entry, EntryLog, Place


class Cursor:
    """The acknowledgements of one subscription over a topic's log.

    Everything up to `mark_delete` is acknowledged, and the places in `acked` after it. In the
    batches in `partial`, messages whose bit is set are not. Delivery continues at `read_place`.
    Without `batch_index_ack`, acknowledgements inside a batch are ignored, unless the subscription
    `keeps` them as long as the topic is loaded, or they were committed in a transaction.
    """

    def __init__(self, log: EntryLog, start: Place, *, batch_index_ack: bool) -> None:
        self._log = log
        self._batch_index_ack = batch_index_ack
        self.acked: set[Place] = set()
        self.partial: dict[Place, int] = {}
        # What would be in `partial` if there were only the acknowledgements of transactions.
        self._committed: dict[Place, int] = {}
        self.mark_delete: Place = (-1, -1)
        self.read_place: Place = (-1, -1)
        self.reset(start)

    def reset(self, start: Place, ack_set: Sequence[int] = ()) -> None:
        """Move to the first entry at or after `start`; `ack_set` selects messages of a batch.

        Before the first entry means the first one; after the last one means the end.
        """
        if start == EARLIEST_PLACE or start < self._log.first_place():
            start = self._log.first_place()
        elif start == LATEST_PLACE or start > self._log.place_before(self._log.end_place()):
            start = self._log.end_place()
        self.acked.clear()
        self.partial.clear()
        self._committed.clear()
        self.mark_delete = self._log.place_before(start)
        self.read_place = start
        if ack_set and self._batch_index_ack and self._log.get(start) is not None:
            self.partial[start] = ack_bits(ack_set)

    @property
    def after_acked(self) -> Place:
        """The place after `mark_delete`."""
        return self.mark_delete[0], self.mark_delete[1] + 1

    def left(self) -> Iterator[Entry]:
        """The entries that are not completely acknowledged, oldest first."""
        return (e for e in self._log.walk(self.after_acked) if not self.is_acked(e.place))

    def rewind(self) -> None:
        """Redeliver everything that is not acknowledged."""
        self.read_place = self.after_acked

    def is_acked(self, place: Place) -> bool:
        """Whether the whole entry at a place is acknowledged."""
        return place <= self.mark_delete or place in self.acked

    def unload(self) -> None:
        """Forget what is kept only as long as the topic is loaded."""
        if not self._batch_index_ack:
            self.partial = dict(self._committed)

    def ack(
        self,
        place: Place,
        ack_set: Sequence[int] = (),
        *,
        keeps: bool = False,
        committed: bool = False,
    ) -> bool:
        """Acknowledge an entry, or its messages whose bits in `ack_set` are not set.

        `committed` says that it was in a transaction. Returns whether the whole entry is now
        acknowledged.
        """
        if self.is_acked(place):
            return True
        entry = self._log.get(place)
        if entry is None:
            return False
        if ack_set:
            bits = ack_bits(ack_set)
            if committed:
                self._committed[place] = self._committed.get(place, _all_of(entry)) & bits
            if not self._keep_bits(entry, bits, keeps=keeps or committed):
                return False
        self.partial.pop(place, None)
        self._committed.pop(place, None)
        self.acked.add(place)
        self._advance()
        return True

    def ack_cumulative(self, place: Place, ack_set: Sequence[int] = ()) -> None:
        """Acknowledge everything before an entry, and its messages that are not in `ack_set`."""
        entry = self._log.get(place)
        inside = bool(ack_set) and (entry is None or not self._keep_bits(entry, ack_bits(ack_set)))
        upto = (place[0], place[1] - 1) if inside else min(place, self._before_end())
        if upto <= self.mark_delete:
            return
        self.mark_delete = upto
        self._forget_upto(upto)
        self._advance()

    def pass_unused(self, place: Place) -> None:
        """Acknowledge unused ids before an entry or the end, as brokers do with markers.

        The position moves only if everything before them is acknowledged.
        """
        before = (place[0], place[1] - 1)
        if not place[1] or before <= self.mark_delete:
            return
        following = self._log.next_at(self.after_acked)
        if place == (self._log.end_place() if following is None else following.place):
            self.mark_delete = before

    def forget_trimmed(self) -> None:
        """Skip entries that the log has deleted."""
        first = self._log.first_place()
        before = (first[0], first[1] - 1)
        if before > self.mark_delete:
            self.mark_delete = before
            self._forget_upto(before)
            self._advance()
        self.read_place = max(self.read_place, first)

    def backlog(self) -> int:
        """Entries that are not completely acknowledged."""
        return self._log.count_from(self.after_acked) - len(self.acked)

    def left_of(self, entry: Entry) -> int:
        """How many messages of an entry are not acknowledged."""
        if self.is_acked(entry.place):
            return 0
        bits = self.partial.get(entry.place)
        return entry.count if bits is None else bits.bit_count()

    def _keep_bits(self, entry: Entry, bits: int, *, keeps: bool = False) -> bool:
        """Store a partly acknowledged batch. Return whether nothing is left of it."""
        if not (keeps or self._batch_index_ack):
            return not _all_of(entry) & bits
        remaining = self.partial.get(entry.place, _all_of(entry)) & bits
        if remaining:
            self.partial[entry.place] = remaining
        return not remaining

    def _forget_upto(self, place: Place) -> None:
        self.acked = {other for other in self.acked if other > place}
        self.partial = {other: bits for other, bits in self.partial.items() if other > place}
        self._committed = {other: bits for other, bits in self._committed.items() if other > place}

    def _before_end(self) -> Place:
        ledger_id, entry_id = self._log.end_place()
        return ledger_id, entry_id - 1

    def _advance(self) -> None:
        if not self.acked:
            return
        for entry in self._log.walk(self.after_acked):
            if entry.place not in self.acked:
                return
            self.acked.discard(entry.place)
            self.mark_delete = entry.place


def _all_of(entry: Entry) -> int:
    return (1 << entry.count) - 1
