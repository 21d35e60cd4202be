"""Streams: how long a row takes to arrive, what waiting costs, and how fast a backlog is read.

Latency is compared with a minimum: the time of an empty micro-batch of a trivial Python source. On
average a row waits for half a micro-batch, and then for its own; one that comes alone waits for its
own. What an idle stream costs is compared with the trivial source, too, and AvailableNow with the
batch read of the same topic.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from benchmarks.measure import Measurement, measured
from benchmarks.topics import WrongResult
from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

RATE = 1_000.0
# Rows that come alone.
RARE_RATE = 4.0
RARE_ROWS = 240
IDLE_PARTITIONS = (200, 1_000)
IDLE_SECONDS = 30.0
FLOOR_BATCHES = 60
# The first micro-batches start processes and compile.
WARM_UP_BATCHES = 10
# An idle query comes to rest meanwhile.
_WARM_UP_SECONDS = 20.0

VALUE_ONLY = "value binary"

_DEADLINE = 300.0

# How many progress events Spark keeps: more than there are micro-batches.
_PROGRESS = "10000"

_RUNS = ("batch", "query", "empty")

Handler = Callable[["DataFrame", int], None]


@dataclass
class Latency:
    """Milliseconds: of each row from sending to foreachBatch, and of each empty micro-batch."""

    rows: list[float] = field(default_factory=list)
    rare: list[float] = field(default_factory=list)
    batches: list[float] = field(default_factory=list)
    empty: list[float] = field(default_factory=list)

    @property
    def target(self) -> float:
        """The target for the median row."""
        return 1.5 * statistics.median(self.empty) + 50

    def numbers(self) -> dict[str, list[float]]:
        """The same as a dict, with percentiles of the rows' times."""
        return {
            "percentiles": _percentiles(self.rows),
            "rare": _percentiles(self.rare),
            "batches": self.batches,
            "empty": self.empty,
        }


def _percentiles(millis: list[float]) -> list[float]:
    return [round(value, 1) for value in statistics.quantiles(millis, n=100)]


@dataclass
class Idle:
    """The part of a core that a query without news takes, driver, JVM and workers together."""

    trivial: float
    by_partitions: dict[int, float]


@dataclass
class Backlog:
    """Runs over one topic: read as a batch, and with AvailableNow in total and per micro-batch."""

    batch: list[Measurement] = field(default_factory=list)
    query: list[Measurement] = field(default_factory=list)
    micro_batches: list[float] = field(default_factory=list)
    """Seconds that Spark reports for each run's micro-batches (triggerExecution)."""
    empty: list[Measurement] = field(default_factory=list)
    """A query of the trivial source, with one empty micro-batch."""

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Backlog:
        """Convert back from `asdict`."""
        runs = {name: [Measurement(**run) for run in answer[name]] for name in _RUNS}
        return cls(micro_batches=answer["micro_batches"], **runs)


def _start(frame: DataFrame, handler: Handler, folder: str, **trigger: Any) -> StreamingQuery:
    writer = frame.writeStream.foreachBatch(handler).option("checkpointLocation", folder)
    return writer.trigger(**trigger).start() if trigger else writer.start()


def _execution_millis(query: StreamingQuery) -> list[float]:
    took = [progress["durationMs"] for progress in query.recentProgress]
    # Without addBatch it was not a micro-batch: there was nothing to do.
    return [float(millis["triggerExecution"]) for millis in took if "addBatch" in millis]


def _wait(condition: Callable[[], bool], query: StreamingQuery) -> None:
    deadline = time.monotonic() + _DEADLINE
    while not condition():
        if not query.isActive:
            raise WrongResult(f"the query ended: {query.exception()}")
        if time.monotonic() > deadline:
            raise WrongResult(f"the query did not come to its end in {_DEADLINE:.0f} s")
        time.sleep(0.05)


# --- latency ----------------------------------------------------------------------------------


def empty_batches(spark: SparkSession) -> list[float]:
    """Milliseconds of micro-batches of the trivial source."""
    _register_trivial(spark)
    done: list[int] = []

    def handle(frame: DataFrame, batch_id: int) -> None:
        done.append(len(frame.collect()))

    frame = spark.readStream.format("trivial-stream").load()
    with tempfile.TemporaryDirectory() as folder:
        query = _start(frame, handle, folder)
        try:
            _wait(lambda: len(done) >= WARM_UP_BATCHES + FLOOR_BATCHES, query)
            return _execution_millis(query)[WARM_UP_BATCHES:]
        finally:
            query.stop()


def _stream(spark: SparkSession, service_url: str, topic: str) -> DataFrame:
    source = spark.readStream.format("pulsar").schema(VALUE_ONLY)
    source = source.option("service.url", service_url).option("topic", topic)
    return source.option("startingOffsets", "earliest").load()


def arrivals(frame: DataFrame, pace: Sequence[str], rows: int) -> Latency:
    """Measure the milliseconds until each row reaches foreachBatch, and of each micro-batch.

    `pace` are the arguments by which `benchmarks.pace` writes into the stream's topic.
    """
    found: list[tuple[int, float]] = []

    def handle(batch: DataFrame, batch_id: int) -> None:
        values = [bytes(value) for (value,) in batch.select("value").collect()]
        now = time.time_ns()
        for value in values:
            number, sent = value.split()
            found.append((int(number), (now - int(sent)) / 1e6))

    def arrive(count: int, rate: float) -> list[float]:
        found.clear()
        _write(pace, count, rate)
        _wait(lambda: len(found) >= count, query)
        if sorted(number for number, _ in found) != list(range(count)):
            raise WrongResult(f"{len(found)} rows came of {count}, or others")
        return [millis for _, millis in found]

    with tempfile.TemporaryDirectory() as folder:
        query = _start(frame, handle, folder)
        try:
            arrive(int(RATE * 10), RATE)
            before = len(_execution_millis(query))
            latency = Latency(arrive(rows, RATE))
            latency.batches = _execution_millis(query)[before:]
            latency.rare = arrive(RARE_ROWS, RARE_RATE)
        finally:
            query.stop()
    return latency


def _write(pace: Sequence[str], rows: int, rate: float) -> None:
    command = [
        sys.executable, "-m", "benchmarks.pace", *pace, "--rows", str(rows), "--rate", str(rate),
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=_DEADLINE)


def measure_latency(spark: SparkSession, service_url: str, topic: str, rows: int) -> Latency:
    """Measure the minimum, then rows as they arrive."""
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", _PROGRESS)
    empty = empty_batches(spark)
    pace = ("--url", service_url, "--topic", topic)
    found = arrivals(_stream(spark, service_url, topic), pace, rows)
    found.empty = empty
    return found


def measure_kafka_latency(spark: SparkSession, address: str, topic: str, rows: int) -> Latency:
    """Measure rows as they arrive by Spark's Kafka source."""
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", _PROGRESS)
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address)
    frame = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
    return arrivals(frame, ("--kafka", "--url", address, "--topic", topic), rows)


# --- waiting ----------------------------------------------------------------------------------


def measure_idle(spark: SparkSession, service_url: str, topics: Mapping[int, str]) -> Idle:
    """Measure queries without news: of the trivial source, and of topics by their partitions."""
    _register_trivial(spark)
    trivial = spark.readStream.format("trivial-stream").option("idle", "true").load()
    return Idle(
        _idle(trivial),
        {count: _idle(_stream(spark, service_url, topic)) for count, topic in topics.items()},
    )


def _idle(frame: DataFrame) -> float:
    with tempfile.TemporaryDirectory() as folder:
        query = _start(frame, lambda rows, batch_id: None, folder)
        try:
            _wait(lambda: bool(query.lastProgress), query)
            time.sleep(_WARM_UP_SECONDS)
            with measured() as result:
                time.sleep(IDLE_SECONDS)
            _wait(lambda: query.isActive, query)
        finally:
            query.stop()
    return result.cpu_seconds / result.seconds


def _register_trivial(spark: SparkSession) -> None:
    from benchmarks.trivial_stream import TrivialStreamSource

    spark.dataSource.register(TrivialStreamSource)


# --- throughput -------------------------------------------------------------------------------


def _run_to_its_end(frame: DataFrame, handler: Handler) -> tuple[Measurement, float]:
    """Run a query with AvailableNow; returns the run, and the seconds of its micro-batches."""
    with tempfile.TemporaryDirectory() as folder, measured() as result:
        query = _start(frame, handler, folder, availableNow=True)
        if not query.awaitTermination(int(_DEADLINE)):
            query.stop()
            raise WrongResult(f"AvailableNow did not end in {_DEADLINE:.0f} s")
    return result, sum(_execution_millis(query)) / 1000


def _total(frame: DataFrame) -> tuple[int, int]:
    found = frame.agg(F.count("*").alias("count"), F.sum(F.crc32("value")).alias("values"))
    row = found.collect()[0]
    return row["count"], row["values"] or 0


def batch_read(
    spark: SparkSession, options: Mapping[str, str], expected: tuple[int, int]
) -> Measurement:
    """Read a whole topic as a batch."""
    with measured() as result:
        totals = [_total(spark.read.format("pulsar").schema(VALUE_ONLY).options(**options).load())]
    _check(totals, expected)
    return result


def available_now(
    spark: SparkSession, options: Mapping[str, str], expected: tuple[int, int]
) -> tuple[Measurement, float]:
    """Read a whole topic as a stream that ends; see `_run_to_its_end`."""
    totals: list[tuple[int, int]] = []

    def handle(frame: DataFrame, batch_id: int) -> None:
        totals.append(_total(frame))

    source = spark.readStream.format("pulsar").schema(VALUE_ONLY).options(**options)
    found = _run_to_its_end(source.option("startingOffsets", "earliest").load(), handle)
    _check(totals, expected)
    return found


def _check(totals: list[tuple[int, int]], expected: tuple[int, int]) -> None:
    found = tuple(map(sum, zip(*totals, strict=True)))
    if found != tuple(expected):
        raise WrongResult(f"a backlog of {expected} was read as {found}")


def nothing_available(spark: SparkSession) -> Measurement:
    """Run a query of the trivial source, to measure its start and end."""
    frame = spark.readStream.format("trivial-stream").load()
    return _run_to_its_end(frame, lambda rows, batch_id: None)[0]


def measure_backlog(
    spark: SparkSession, options: Mapping[str, str], expected: tuple[int, int], runs: int
) -> Backlog:
    """Read a topic in both ways in turn, and the trivial source, after one warm-up of each.

    `expected` is the number of messages, and the sum of their values' checksums.
    """
    _register_trivial(spark)
    found = Backlog()
    for number in range(runs + 1):
        batch = batch_read(spark, options, expected)
        query, micro_batches = available_now(spark, options, expected)
        empty = nothing_available(spark)
        if number:
            found.batch.append(batch)
            found.query.append(query)
            found.micro_batches.append(micro_batches)
            found.empty.append(empty)
    return found


# --- tables -----------------------------------------------------------------------------------


def idle_table(found: Idle) -> str:
    """What idle queries cost as a Markdown table."""
    lines = [
        "| a stream without news, default trigger | of a core | beside the trivial source |",
        "|---|---:|---:|",
        f"| a trivial Python source: what Spark itself takes | {found.trivial:.1%} | |",
    ]
    for count, part in found.by_partitions.items():
        more = part - found.trivial
        lines.append(f"| {count:,} topic partitions | {part:.1%} | {more:+.1%} |")
    return "\n".join(lines)


def latency_table(found: Latency, kafka: Latency | None = None) -> str:
    """The latencies as a Markdown table, with those of Spark's Kafka source beside them."""
    median = statistics.median
    each = [found] if kafka is None else [found, kafka]
    heads = ["ms", "Spark's Kafka source, ms"][: len(each)]

    def row(title: str, value: Callable[[Latency], float]) -> str:
        return f"| {title} | " + " | ".join(f"{value(one):,.0f}" for one in each) + " |"

    def own(title: str, value: float) -> str:
        return f"| {title} | {value:,.0f} |" + " |" * (len(each) - 1)

    alone = f"a row that comes alone, {RARE_RATE:.0f}/s, {len(found.rare)} rows: "
    return "\n".join(
        [
            f"| rows that arrive at {RATE:,.0f}/s, default trigger, {len(found.rows):,} rows | "
            + " | ".join(heads)
            + " |",
            "|---|" + "---:|" * len(each),
            row(
                "a row, from being sent to being in foreachBatch: median",
                lambda one: median(one.rows),
            ),
            row("the same: 95th percentile", lambda one: _percentiles(one.rows)[94]),
            row("the same: 99th percentile", lambda one: _percentiles(one.rows)[98]),
            row("a micro-batch of it: median", lambda one: median(one.batches)),
            own("an empty micro-batch of a trivial Python source: median", median(found.empty)),
            own("1.5 × that + 50 ms, which the median row should keep to", found.target),
            row(alone + "median", lambda one: _percentiles(one.rare)[49]),
            row("the same: 95th percentile", lambda one: _percentiles(one.rare)[94]),
            row("the same: 99th percentile", lambda one: _percentiles(one.rare)[98]),
        ]
    )


def backlog_table(found: Backlog, workload: Workload) -> str:
    """The throughput of both ways as a Markdown table; ratios are per run."""
    batch = [run.seconds for run in found.batch]
    ways = {
        "batch read": (batch, found.batch),
        "AvailableNow, its micro-batches": (found.micro_batches, found.query),
        "AvailableNow, from start to termination of the query": (
            [run.seconds for run in found.query],
            found.query,
        ),
    }
    messages = workload.messages
    lines = [
        f"| backlog of {messages:,} × {workload.title} | s | rows/s | CPU s per million rows "
        "| × batch read |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, (seconds, runs) in ways.items():
        cpu = statistics.median(run.cpu_seconds for run in runs) / messages * 1e6
        ratio = statistics.median(b / own for b, own in zip(batch, seconds, strict=True))
        took = statistics.median(seconds)
        lines.append(f"| {name} | {took:.2f} | {messages / took:,.0f} | {cpu:.2f} | {ratio:.2f} |")
    took = statistics.median(run.seconds for run in found.empty)
    lines.append(f"| the same of a trivial Python source without a row | {took:.2f} | | | |")
    return "\n".join(lines)
