"""``bench``: how fast this machine reads and writes a topic, and what limits it."""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pulsar_spark.cli.arguments import (
    Commands,
    add_command,
    add_connection,
    check_columns,
    given_options,
    resolved,
    whole_number,
)
from pulsar_spark.cli.connection import checked, reach
from pulsar_spark.cli.output import Bar, print_json, print_table, progress
from pulsar_spark.errors import OptionError, TopicNotFound, printable

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pulsar_spark.engine.context import ClientContext
    from pulsar_spark.engine.options import ProducerOptions
    from pulsar_spark.spark.options.read import ReadOptions
    from pulsar_spark.spark.reading.partitions import PulsarInputPartition

_DESCRIPTION = """\
Measure how fast one process on this machine reads from a cluster, as a Spark task would: how fast
the messages of --topic arrive (drain), how fast they become rows with the topic's schema (decoded),
and how long a request to the broker takes. The result names the limit: this machine's CPU, network
round trips, or the broker and the network's bandwidth.

Reading leaves no trace: it acknowledges nothing and leaves no subscription. --write first writes
messages of random bytes. It only writes to a topic that is empty, or that this command has written
to before; a missing topic needs --create. The messages stay until you delete the topic.
"""

_QUESTIONS = 50
_SENDS = 100
# As a share of the drain's speed, what is no difference that two measurements can show.
_NO_SLOWER = 0.95
_SIZE = 1_024
_WRITER = "pulsar-spark-bench"
_BLOCK = 1_000
_BLOCK_BYTES = 16 << 20
_BUSY = 0.8
_TOO_SHORT = 0.5
_REST_SECONDS = 30.0

# What a write by Spark takes beside the options of its producers, and what is chosen here.
_UNUSED = (
    *("deliveryGuarantee", "sinkId", "sinkStateTopic", "sinkRunId", "sinkRepeats"),
    *("transactionTimeout", "schema.name", "schema.namespace", "keyEncoding"),
    *("pulsar.producer.producerName", "includeMetadata"),
)

CPU, ROUND_TRIPS, BROKER = "cpu", "round trips", "broker or network"


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(commands, "bench", "measure reading and writing", _DESCRIPTION, run)
    add_connection(parser, "the topic to read, or one of its partitions; required")
    parser.add_argument(
        "--messages",
        type=whole_number(1, 1_000_000_000),
        default=100_000,
        metavar="N",
        help="messages to measure with, at most (%(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=whole_number(1, 3600),
        default=10,
        metavar="T",
        help="seconds for each measurement, at most (%(default)s)",
    )
    parser.add_argument("--write", action="store_true", help="write messages first")
    parser.add_argument("--create", action="store_true", help="let --write create the topic")
    parser.add_argument(
        "--size",
        type=whole_number(1, 5 << 20),
        metavar="BYTES",
        help=f"size of each written message ({_SIZE})",
    )


@dataclass(frozen=True, slots=True)
class _Measurement:
    name: str
    rows: int
    size: int
    seconds: float
    cpu: float

    def to_json(self, limited_by: str, why: str) -> dict[str, Any]:
        return {
            "name": self.name,
            "rows": self.rows,
            "seconds": round(self.seconds, 6),
            "rows_per_second": round(self.rows / self.seconds),
            "mb_per_second": round(self.size / self.seconds / 1e6, 3),
            "cpu_us_per_row": round(self.cpu * 1e6 / max(self.rows, 1), 3),
            "limited_by": limited_by,
            "why": why,
        }


def run(arguments: argparse.Namespace) -> int:
    """Measure, and print the results."""
    from pulsar_spark.engine.context import ClientContext
    from pulsar_spark.engine.memory import keep_freed_memory
    from pulsar_spark.spark.options.read import read_options
    from pulsar_spark.spark.options.table import Scope
    from pulsar_spark.spark.options.write import producer_options

    if arguments.topic is None:
        raise OptionError("no topic is given", "Give --topic TOPIC.")
    for name, given in (("--create", arguments.create), ("--size", arguments.size is not None)):
        if given and not arguments.write:
            raise OptionError(f"{name} is for --write", f"Add --write, or leave {name} out.")
    options = given_options(arguments)
    scope = Scope.READ | Scope.WRITE if arguments.write else Scope.READ
    values = resolved(options, scope, ignores=_UNUSED)
    check_columns(values)
    read = read_options(values, options, Scope.READ)
    writing = None
    if arguments.write:
        writing = replace(producer_options(values), producer_name=f"{_WRITER}-{uuid.uuid4().hex}")
    steps = 4 if arguments.write else 3
    # As Spark's tasks do.
    keep_freed_memory()
    with (
        ClientContext.shared(checked(read.client)) as context,
        progress("beginning", total=steps, quiet=arguments.json) as bar,
    ):
        reach(context)
        report = _Bench(context, read, arguments, bar).run(writing)
    if arguments.json:
        print_json(report)
    else:
        _show(report)
    return 0


class _Bench:
    """Measures a topic; call `run` once."""

    def __init__(
        self, context: ClientContext, options: ReadOptions, arguments: argparse.Namespace, bar: Bar
    ) -> None:
        self._context = context
        self._options = options
        self._topic = options.topics[0]
        # After which a measurement ends.
        self._messages: int = arguments.messages
        self._seconds: float = arguments.seconds
        self._size: int = arguments.size or _SIZE
        self._create: bool = arguments.create
        self._bar = bar
        self._latencies: dict[str, list[float]] = {}

    def run(self, writing: ProducerOptions | None) -> dict[str, Any]:
        """Measure everything; raises TopicNotFound and OptionError for an unusable topic."""
        from pulsar_spark.protocol.implementation import implementation

        measured: list[_Measurement] = []
        if writing is not None:
            self._check_made_for_it()
            self._bar.tell("writing")
            measured.append(self._write(writing))
            self._bar.advance()
        self._bar.tell("asking")
        self._latencies["question"] = self._ask()
        self._bar.advance()
        schema, partitions = self._plan()
        for name, wanted in (("drain", _sizes()), ("decoded", schema)):
            self._bar.tell(f"reading: {name}")
            measured.append(self._read(name, wanted, partitions, measured))
            self._bar.advance()
        round_trip = statistics.median(self._latencies["question"])
        return {
            "topic": self._topic,
            "columns": schema.simpleString(),
            "implementation": implementation(),
            "measurements": [
                found.to_json(*limit(found, round_trip, self._options.reader.memory_budget))
                for found in measured
            ],
            "latencies": [_percentiles(*item) for item in self._latencies.items()],
        }

    # --- reading ------------------------------------------------------------------------------

    def _plan(self) -> tuple[StructType, list[PulsarInputPartition]]:
        """Return the topic's columns and what to read; raises if the topic is empty."""
        from pulsar_spark.spark.columns import read_schema
        from pulsar_spark.spark.reading.planner import Planner

        planner = Planner(self._context, self._options)
        topics = planner.topics()
        kind = planner.value_type(topics)
        partitions = planner.partitions(topics, kind)
        if not partitions:
            raise TopicNotFound(
                f"{self._topic} has no messages",
                "Choose a topic with messages, or add --write.",
            )
        corrupt = self._options.corrupt_column if self._options.mode == "PERMISSIVE" else None
        return read_schema(kind, include_metadata=False, corrupt_column=corrupt), partitions

    def _read(
        self,
        name: str,
        schema: StructType,
        partitions: Sequence[PulsarInputPartition],
        before: Sequence[_Measurement],
    ) -> _Measurement:
        """Read the partitions one after the other, as Spark's tasks would."""
        import pyarrow.compute as pc

        from pulsar_spark.spark.reading.batch_reader import PulsarBatchReader

        reader = PulsarBatchReader(self._options, schema)
        rows = size = 0
        started, cpu = time.monotonic(), time.process_time()
        with contextlib.closing(_batches(reader.read, partitions)) as batches:
            for batch in batches:
                rows += batch.num_rows
                if name == "drain":
                    size += pc.sum(batch.column(0)).as_py() or 0
                if rows >= self._messages:
                    break
                if time.monotonic() - started >= self._seconds:
                    break
            seconds, cpu = time.monotonic() - started, time.process_time() - cpu
        if name != "drain":
            # The messages were counted by the drain.
            drain = before[-1]
            size = rows * drain.size // max(drain.rows, 1)
        return _Measurement(name, rows, size, seconds, cpu)

    def _ask(self) -> list[float]:
        found: list[float] = []
        for _ in range(_QUESTIONS):
            started = time.monotonic()
            self._context.lookup.partitions(self._topic)
            found.append(time.monotonic() - started)
        return found

    # --- writing ------------------------------------------------------------------------------

    def _check_made_for_it(self) -> None:
        """Raise OptionError for a topic that others use, TopicNotFound for a missing one."""
        from pulsar_spark.engine.consumers.reader import EntryReader
        from pulsar_spark.protocol.message_id import Position
        from pulsar_spark.schema.registry import latest_schema
        from pulsar_spark.spark.reading.planner import Planner

        planner = Planner(self._context, self._options)
        try:
            names = [name for some in planner.topics().values() for name in some]
            ends = planner.last_ids(names)
        except TopicNotFound as error:
            if self._create:
                return
            raise TopicNotFound(error.what, "Create it for this, or add --create.") from None
        if latest_schema(self._context.lookup, self._topic) is not None:
            raise _not_made_for_it(f"{self._topic} has a schema")
        for name, last in ends.items():
            if last.entry_id < 0:
                continue
            start = Position(last.ledger_id, last.entry_id)
            end = Position.after(last)
            with EntryReader(self._context.pool, name, start, end, self._options.reader) as reader:
                if not all(entry.metadata.producer_name.startswith(_WRITER) for entry in reader):
                    raise _not_made_for_it(f"{name} holds messages of others")

    def _write(self, writing: ProducerOptions) -> _Measurement:
        from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
        from pulsar_spark.protocol.outgoing_messages import MessageFields, OutgoingMessages

        block = max(1, min(_BLOCK, _BLOCK_BYTES // self._size, self._messages))
        payloads = [os.urandom(self._size) for _ in range(block)]
        with PartitionedProducer(self._context, self._topic, writing) as writer:
            writer.open()
            rows = 0
            started, cpu = time.monotonic(), time.process_time()
            while rows < self._messages and time.monotonic() - started < self._seconds:
                count = min(block, self._messages - rows)
                writer.write(OutgoingMessages(payloads[:count]))
                rows += count
            writer.flush(self._seconds + _REST_SECONDS)
            seconds, cpu = time.monotonic() - started, time.process_time() - cpu
            sends: list[float] = []
            until = time.monotonic() + self._seconds
            while len(sends) < _SENDS and time.monotonic() < until:
                at = time.monotonic()
                writer.send(MessageFields(payloads[0]), at_once=True)
                writer.flush(_REST_SECONDS)
                sends.append(time.monotonic() - at)
            self._latencies["send"] = sends
        return _Measurement("write", rows, rows * self._size, seconds, cpu)


def limit(found: _Measurement, round_trip: float, window: int) -> tuple[str, str]:
    """Return what limits a measurement, and how we know.

    `round_trip` is the time of one request, `window` the most bytes in flight.
    """
    busy = found.cpu / found.seconds
    doubt = "; too short to be sure, take more messages" if found.seconds < _TOO_SHORT else ""
    if busy >= _BUSY:
        return CPU, f"this process was busy {busy:.0%} of the time{doubt}"
    if found.size / found.seconds > window / round_trip / 2:
        return ROUND_TRIPS, (
            f"a round trip takes {round_trip * 1e3:.1f} ms, and at most {window >> 20} MiB are "
            f"under way: raise pulsar.client.memoryLimitBytes{doubt}"
        )
    return BROKER, (
        f"this process waited {1 - busy:.0%} of the time, not for its CPU nor for round trips "
        f"({round_trip * 1e3:.1f} ms){doubt}"
    )


def _batches(
    read: Callable[[Any], Iterator[Any]], partitions: Sequence[PulsarInputPartition]
) -> Generator[Any, None, None]:
    for partition in partitions:
        yield from read(partition)


def _sizes() -> StructType:
    """Return the columns of the drain: every message has them, and decoding them costs nothing."""
    from pyspark.sql.types import IntegerType, StructType

    return StructType().add("__size", IntegerType(), nullable=False)


def _not_made_for_it(what: str) -> OptionError:
    return OptionError(
        f"{what}: bench would write among them", "Choose a topic that only bench writes to."
    )


def _percentiles(name: str, seconds: Sequence[float]) -> dict[str, Any]:
    """Return percentiles of some times, in milliseconds."""
    millis = sorted(second * 1e3 for second in seconds)
    cuts = statistics.quantiles(millis, n=100, method="inclusive") if len(millis) > 1 else []
    found = {f"p{at}": round(cuts[at - 1] if cuts else millis[0], 3) for at in (50, 95, 99)}
    return {"name": name, "count": len(millis), **found}


def _show(report: dict[str, Any]) -> None:
    print(printable(f"{report['topic']}, implementation {report['implementation']}"))
    print(printable(f"columns: {report['columns']}"))
    print()
    names = ("measured", "rows", "seconds", "rows/s", "MB/s", "CPU µs/row", "limited by")
    found = report["measurements"]
    print_table(names, [tuple(row.values())[: len(names)] for row in found])
    print()
    latencies = ("latency", "count", "p50 ms", "p95 ms", "p99 ms")
    print_table(latencies, [tuple(row.values()) for row in report["latencies"]])
    print()
    for row in found:
        print(printable(f"{row['name']} is limited by {row['limited_by']}: {row['why']}."))
    print()
    drain, decoded = found[-2:]
    print(_compared(decoded["rows_per_second"] / max(drain["rows_per_second"], 1)))
    print("This is one process: a query reads with as many as it has tasks, until the brokers or")
    print("the network limit it.")


def _compared(share: float) -> str:
    """Say in a sentence how fast decoding is, as a share of the drain's speed."""
    if share < _NO_SLOWER:
        return f"With decoding, reading is {share:.0%} as fast as the drain."
    # The drain comes first: brokers then read from their storage, and may answer from memory later.
    return (
        "Decoding does not slow reading down here: the drain, which came first, was no faster, so "
        "the brokers or the network decide."
    )
