"""A task's read of a range, which a test takes row by row."""

from __future__ import annotations

from collections.abc import Iterator

from pulsar_spark.engine.consumers.reader import EntryReader
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ReaderOptions
from pulsar_spark.protocol.blocks import BlockOptions
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.spark.options.read import parse_read_options
from pulsar_spark.spark.reading.loss_watch import LossWatch
from pulsar_spark.spark.reading.partitions import PulsarInputPartition


class Reading:
    """A task's read, taken row by row; with `columns` it reads blocks."""

    def __init__(
        self,
        service_url: str,
        topic: str,
        end: Position,
        *,
        columns: bool,
        start: Position = EARLIEST_POSITION,
        strict: bool = True,
        compacted: bool = False,
        first: Position | None = None,
    ) -> None:
        given = {
            "service.url": service_url,
            "topic": topic,
            "failOnDataLoss": str(strict).lower(),
            "readCompacted": str(compacted).lower(),
        }
        part = PulsarInputPartition(topic, start, end, first=first)
        self.context = ClientContext(parse_read_options(given).client)
        watch = LossWatch(self.context, parse_read_options(given), part)
        # So few that messages which were not requested yet can still be deleted.
        few = ReaderOptions(
            auto_scale=False, receiver_queue_size=4, poll_timeout=30, read_compacted=compacted
        )
        self.reader = EntryReader(self.context.pool, topic, start, end, few, watch=watch)
        self._rows = self._columns(topic, end) if columns else self._entries()

    def _columns(self, topic: str, end: Position) -> Iterator[tuple[int, int]]:
        wanted = BlockOptions(
            topic=topic,
            partition=-1,
            columns=frozenset({"value"}),
            end=end,
            max_rows=1,
            max_bytes=1 << 20,
            max_payload=1 << 20,
            published_from=None,
            published_before=None,
        )
        for item in self.reader.read(wanted):
            yield from (item.locate(row)[:2] for row in range(item.rows))

    def _entries(self) -> Iterator[tuple[int, int]]:
        for entry in self.reader:
            yield entry.ledger_id, entry.entry_id

    def take(self, count: int) -> list[tuple[int, int]]:
        return [next(self._rows) for _ in range(count)]

    def rest(self) -> list[tuple[int, int]]:
        return list(self._rows)

    def close(self) -> None:
        self.reader.close()
        self.context.close()


def behind(places: list[tuple[int, int]]) -> Position:
    """Return the position behind the last of some entries."""
    return Position(places[-1][0], places[-1][1] + 1)
