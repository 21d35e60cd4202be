"""Detects messages of a range that were deleted before a task read them.

Unused entry ids are no loss: transactions and compaction leave such gaps. Nor is the deletion of a
ledger that was read already. What matters is the first entry that the topic retains: everything
after it is still there. If a ledger was deleted, its end and the next entry must be known; they are
requested when the ledger's first entry arrives.

The compacted view of a topic that was never compacted is the topic. Once it was compacted, any
entry may be missing, and nobody can tell why.
"""

from __future__ import annotations

from pulsar_spark.engine.consumers.probe import LedgerEnd, Probe
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.operations import value_of
from pulsar_spark.errors import DataLossError, PulsarError, TopicNotFound
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.spark.offsets import entry_end
from pulsar_spark.spark.options.read import ReadOptions
from pulsar_spark.spark.reading.data_loss import extent, keeps_from, report_loss
from pulsar_spark.spark.reading.partitions import PulsarInputPartition

logger = get_logger(__name__)


class LossWatch:
    """Watches the ledgers that a reader meets in a partition's range: a RangeWatch.

    With failOnDataLoss it raises DataLossError, otherwise it logs the loss.
    """

    def __init__(
        self, context: ClientContext, options: ReadOptions, partition: PulsarInputPartition
    ) -> None:
        self._context = context
        self._options = options
        self._partition = partition
        self._probe = Probe(context.pool)
        # A compacted view may lack any entry, and nobody can tell which.
        self._is_silent = False
        self._began = False
        # The end of the ledger that is being read, None if unknown.
        self._ledger: LedgerEnd | None = None

    def on_ledger(self, before: Position, found: Position) -> None:
        """The first entry of the range, or of another ledger, arrived."""
        if self._is_silent:
            return
        if not self._began:
            self._check_start(found)
        elif (expected := self._expected(before)) is not None and found > expected:
            self._check(expected, found)
        self._began = True
        self._ledger = None
        if found.ledger_id < self._partition.range[1].ledger_id:
            try:
                self._ledger = self._probe.ledger_end(self._partition.topic, found.ledger_id)
            except TopicNotFound:
                raise
            except PulsarError as error:
                logger.info(
                    "%s: the end of a ledger is not known: %s", self._partition.topic, error
                )

    def on_end(self, before: Position, found: Position | None) -> None:
        """The range has nothing more; the next entry is `found`, or None."""
        if self._is_silent:
            return
        end = self._partition.range[1]
        if not self._began:
            self._check_start(found)
            return
        expected = self._expected(before)
        if expected is not None and expected < end and (found is None or found > expected):
            self._check(expected, found)

    def on_deleted(self, error: TopicNotFound) -> None:
        """The topic is gone, as the broker says with `error`."""
        begins = self._partition.range[0]
        loss = DataLossError(
            f"the topic was deleted between planning and reading, or while it was read: the range "
            f"begins at {begins}, nothing remains ({error.what})",
            "Set failOnDataLoss=false to read the remaining messages of other topics.",
            topic=self._partition.topic,
            broker=error.broker,
        )
        loss.__cause__ = error
        report_loss(loss, fail=self._options.fail_on_data_loss)

    def _expected(self, before: Position) -> Position | None:
        """Return the position of the next entry if nothing before it was deleted.

        None if nothing followed the ledger that was read to its end.
        """
        ledger = self._ledger
        if ledger is None or before.entry_id <= ledger.last_entry_id:
            return before
        return ledger.next

    def _check(self, expected: Position, found: Position | None) -> None:
        kept = self._first_kept()
        if not keeps_from(kept, expected) or (found is None and self._ends_before(expected)):
            self._warn("while they were read: the read stands", expected, kept)

    def _ends_before(self, position: Position) -> bool:
        """Whether the topic ends before an entry that it had: then it is another topic."""
        last = self._context.lookup.last_message_id(self._partition.topic)
        return entry_end(last) < Position(*position[:2])

    def _check_start(self, found: Position | None) -> None:
        """Judge what is before the first entry that is there; None for no entry."""
        start, end = self._partition.range
        first = self._partition.first_entry
        if first == EARLIEST_POSITION:
            # Nobody knows where the topic began: it is a loss if all is gone.
            is_empty = found is None or found >= end
            last = Position(end.ledger_id, end.entry_id - (0 if end.batch_index else 1))
            if is_empty and not (keeps_from(self._first_kept(), end) or self._stores_from(last)):
                self._warn("between planning and reading: the range ends", end, None)
            return
        if first >= end or (found is not None and found[:2] <= first[:2]):
            return
        kept = self._first_kept()
        is_cut = found is None and self._ends_before(start)
        if is_cut or not (keeps_from(kept, first) or self._stores_from(first)):
            self._warn("between planning and reading: the range begins", first, kept)

    def _stores_from(self, position: Position) -> bool:
        topic = self._partition.topic
        found = value_of(self._context.lookup.extents([topic])[topic])
        return found.stores_from(position)

    def _first_kept(self) -> Position | None:
        return self._probe.first_place_at(self._partition.topic, EARLIEST_POSITION)

    def _warn(self, what: str, position: Position, kept: Position | None) -> None:
        if self._options.reader.read_compacted and self._probe.is_compacted(self._partition.topic):
            self._is_silent = True
            return
        rest = "nothing remains" if kept is None else f"the first remaining message is at {kept}"
        loss = DataLossError(
            f"messages were deleted {what} at {position}, {rest}{extent(position, kept)}",
            "In a batch, load() the topic again: a DataFrame that is used again reads the ranges "
            "of its first use. Raise the topic's retention, or set failOnDataLoss=false to read "
            "the remaining messages.",
            topic=self._partition.topic,
        )
        report_loss(loss, fail=self._options.fail_on_data_loss)
