"""Sources without Spark, shared by tests of streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pulsar_spark.spark.options.stream import Caps, StreamOptions, parse_stream_options
from pulsar_spark.spark.reading.batch_reader import PulsarBatchReader, infer_schema
from pulsar_spark.spark.reading.partitions import PulsarInputPartition
from pulsar_spark.spark.streaming.source import StreamSource
from pulsar_spark.spark.streaming.stream_offset import StreamOffset
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import full, rows_of

NO_CAPS = Caps()


class Query:
    """Uses a source as Spark does, step by step: offsets, plans, tasks, commits."""

    def __init__(self, options: StreamOptions, offset: StreamOffset | None = None) -> None:
        self.options = options
        self.source = StreamSource(options)
        self.source.commits.settle_seconds = 0.0
        self.committed = offset
        self.reader: PulsarBatchReader | None = None
        if offset is not None:
            self.source.learn(offset)

    def start(self) -> StreamOffset:
        """Return where the next batch starts."""
        return self.committed or self.source.initial()

    def batch(self, caps: Caps = NO_CAPS) -> list[Any]:
        """Run a batch and return its values; an empty list without a batch."""
        start = self.start()
        end = self.source.latest(start, caps)
        if end == start and self.committed is not None:
            return []
        if self.committed is not None:
            self.source.commit(start)
        values = self.read(start, end)
        self.committed = end
        return values

    def read(self, start: StreamOffset, end: StreamOffset) -> list[Any]:
        """Read the messages between two offsets."""
        return self.values(self.source.plan(start, end))

    def values(self, partitions: Sequence[PulsarInputPartition]) -> list[Any]:
        """Read partitions as tasks do."""
        if self.reader is None:
            self.reader = PulsarBatchReader(self.options.read, infer_schema(self.options.read))
        reader = self.reader
        batches = [batch for partition in partitions for batch in reader.read(partition)]
        return [row["value"] for row in rows_of(batches)]

    def restarted(self, *, loose: bool = False) -> Query:
        """Return the query as it is after a restart from its checkpoint.

        If `loose`, it continues after a data loss from now on.
        """
        assert self.committed is not None
        self.source.close()
        if loose:
            read = replace(self.options.read, fail_on_data_loss=False)
            self.options, self.reader = replace(self.options, read=read), None
        again = Query(self.options, StreamOffset.from_json(self.committed.to_json()))
        self.source = again.source
        return again


Make = Callable[..., Query]


@contextmanager
def queries(service_url: str) -> Iterator[Make]:
    """Make queries, closed at the end: `make("t", startingOffsets="earliest")`."""
    made: list[Query] = []

    def make(topic: str | None = "t", offset: StreamOffset | None = None, **more: str) -> Query:
        given = {"service.url": service_url, **more}
        if topic is not None:
            given["topic"] = topic
        made.append(Query(parse_stream_options(given), offset))
        return made[-1]

    yield make
    for query in made:
        query.source.close()


def backlogs(broker: EmbeddedBroker, topic: str) -> list[int]:
    """The backlogs of a topic partition's durable subscriptions: streams look by others."""
    return [view.backlog for view in broker.subscriptions(full(topic)).values() if view.durable]
