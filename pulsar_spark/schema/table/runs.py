"""The source of a record batch: runs of messages, each from one entry.

An entry has one message or a batch. A run is the part of an entry for one record batch: the indexes
of its messages, without those removed by compaction or excluded by a filter.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa

from pulsar_spark.errors import PulsarError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.batches import UnpackedBatch, message_key, unpack_batch
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.schema.arrow.arrays import repeated_by_run

if TYPE_CHECKING:
    from pulsar_spark.engine.consumers.entries import ReceivedEntry


class Run:
    """Messages `rows` of `entry`, ascending; `batch` is None for a single message."""

    __slots__ = ("_extras", "batch", "entry", "rows")

    def __init__(
        self, entry: ReceivedEntry, batch: UnpackedBatch | None, rows: Sequence[int]
    ) -> None:
        self.entry = entry
        self.batch = batch
        self.rows = rows
        self._extras: dict[int, pb.SingleMessageMetadata] | None = None

    def message_id(self, row: int, partition: int) -> MessageIdAdv:
        """Return the id of a message of the run."""
        entry = self.entry
        if self.batch is None:
            return MessageIdAdv(
                entry.ledger_id, entry.entry_id, partition, first_chunk=entry.first_chunk
            )
        return MessageIdAdv(entry.ledger_id, entry.entry_id, partition, row, self.batch.count)

    @property
    def extras(self) -> dict[int, pb.SingleMessageMetadata]:
        """Metadata of those messages of a batch that may have rare fields, by row."""
        if self._extras is None:
            self._extras = {} if self.batch is None else self.batch.extras(self.rows)
        return self._extras

    def single_key(self) -> bytes | None:
        """Return the key of an unbatched message.

        Raises CorruptMessage with the entry's topic and id.
        """
        try:
            return message_key(self.entry.metadata)
        except PulsarError as error:
            entry = self.entry
            raise error.with_context(
                topic=entry.topic, message_id=self.message_id(0, entry.partition)
            ) from None


class Runs:
    """The runs of one record batch, in the order of the topic."""

    def __init__(self, topic: str, partition: int, runs: Sequence[Run]) -> None:
        self.topic = topic
        self.partition = partition
        self.runs = runs
        self.count = sum(len(run.rows) for run in runs)

    def spread(self, per_run: pa.Array) -> pa.Array:
        """Return a column that repeats each run's value for its rows."""
        if self.count == len(self.runs):
            return per_run
        return repeated_by_run(per_run, self._stops)

    @cached_property
    def _stops(self) -> array[int]:
        """The end of each run's rows."""
        return array("i", accumulate(len(run.rows) for run in self.runs))

    def locate(self, row: int) -> MessageIdAdv:
        """Return the id of the message in a row of the record batch."""
        for run in self.runs:
            if row < len(run.rows):
                return run.message_id(run.rows[row], self.partition)
            row -= len(run.rows)
        raise IndexError("the record batch has fewer rows")


@dataclass(frozen=True, slots=True)
class PublishTimes:
    """When messages to take were published, in milliseconds; plain data. None means no bound.

    `before` is exclusive.
    """

    since: int | None = None
    before: int | None = None

    def takes(self, publish_time: int) -> bool:
        """Whether this time is within the bounds."""
        if self.since is not None and publish_time < self.since:
            return False
        return self.before is None or publish_time < self.before


def split_entry(
    entry: ReceivedEntry,
    *,
    with_metadata: bool,
    max_rows: int,
    max_bytes: int,
    row_size: int = 0,
) -> Iterator[tuple[Run, int]]:
    """Yield an entry's wanted messages in runs, each with its size in bytes.

    Keys and properties count, because they can be large without a payload, and so does what the
    columns repeat for each message of a batch, `row_size`. A run has at most `max_rows` messages
    and, unless it is a single one, `max_bytes`. Raises CorruptBatch with the entry's topic and id.
    """
    if not entry.is_batch:
        yield Run(entry, None, (0,)), len(entry.payload) + entry.metadata.ByteSize()
        return
    try:
        batch = unpack_batch(
            entry.payload, entry.metadata.num_messages_in_batch, with_metadata=with_metadata
        )
    except PulsarError as error:
        raise error.with_context(
            topic=entry.topic,
            message_id=MessageIdAdv(entry.ledger_id, entry.entry_id, entry.partition),
        ) from None
    low, end = max(entry.first_index, 0), min(entry.stop_index, batch.count)
    while low < end:
        high, size = batch.fitting(low, end, max_rows, max_bytes, row_size)
        rows = batch.left(range(low, high))
        if rows:
            yield Run(entry, batch, rows), size
        low = high
