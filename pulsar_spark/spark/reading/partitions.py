"""Input partitions: what a Spark task reads, as plain data without credentials.

Spark sends each one through the driver's JVM, so a schema is only named: its definition goes with
the reader, which Spark pickles once for a batch, and once for each run of a stream.
"""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from pulsar_spark.protocol.message_id import Position
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.registry import SchemaRef
from pulsar_spark.schema.table.record_batches import PublishTimes


class PulsarInputPartition(InputPartition):
    """The positions [start, end) of one topic partition, published at certain times.

    `schema` names what decodes values, None for raw bytes. `first` is the range's first entry, if
    planning knows it: everything before it was read, or was deleted before. `written` names
    versions of the topic's schema that are certain for messages of this range. `continues` says
    that the query has read what is before the range. Messages of ranges
    that are of one `era` of a topic have the same versions of its schema, whoever asks for them;
    "" is nobody's.
    """

    def __init__(
        self,
        topic: str,
        start: Position,
        end: Position,
        times: PublishTimes | None = None,
        *,
        schema: SchemaInfo | None = None,
        first: Position | None = None,
        continues: bool = False,
    ) -> None:
        self.topic = topic
        # Tuples of numbers instead of Positions, so that logged and pickled values stay readable.
        self.start = tuple(start)
        self.end = tuple(end)
        self.times = times or PublishTimes()
        self.schema = None if schema is None else SchemaRef.of(schema)
        self.written: tuple[SchemaRef, ...] = ()
        self.era = ""
        self.first = None if first is None else tuple(first)
        self.continues = continues

    @property
    def range(self) -> tuple[Position, Position]:
        """The start and the end."""
        return Position(*self.start), Position(*self.end)

    @property
    def first_entry(self) -> Position:
        """Where the range has its first entry, as far as is known: at the start or later."""
        return Position(*(self.first or self.start))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PulsarInputPartition) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]
