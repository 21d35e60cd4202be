"""Streams: how long a row takes to arrive, and how fast a backlog is read.

Latency is held against the floor, the time of an empty micro-batch of a trivial Python source:
a row waits for half a micro-batch on the average, and then for its own. AvailableNow is held
against the batch read of the same topic.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from benchmarks import contenders
from benchmarks.contenders import VALUE_ONLY, Bench, WrongResult
from benchmarks.measure import Measurement, measured
from benchmarks.trivial_stream import TrivialStreamSource
from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

RATE = 1_000.0
LATENCY_ROWS = 20_000
FLOOR_BATCHES = 60
# The first micro-batches start processes and compile.
WARM_UP_BATCHES = 10

BACKLOG = Workload("available-now", 2_000_000, 100, batched=True, partitions=4)
LATENCY = "stream-latency"
ARRIVING = Workload(LATENCY, LATENCY_ROWS, 100, batched=True)

_DEADLINE = 300.0

# As many progress events as Spark is to keep: more than there are micro-batches.
_PROGRESS = "10000"

Handler = Callable[["DataFrame", int], None]


@dataclass
class Latency:
    """Milliseconds: of each row from sending to foreachBatch, and of each empty micro-batch."""

    rows: list[float] = field(default_factory=list)
    batches: list[float] = field(default_factory=list)
    empty: list[float] = field(default_factory=list)

    @property
    def target(self) -> float:
        """What the median row should take at most."""
        return 1.5 * statistics.median(self.empty) + 50


@dataclass
class Backlog:
    """Runs over one topic: read as a batch, and by AvailableNow as a whole and in its batches."""

    workload: Workload
    batch: list[Measurement] = field(default_factory=list)
    query: list[Measurement] = field(default_factory=list)
    micro_batches: list[float] = field(default_factory=list)
    """Seconds that Spark gives for the micro-batches of each run (triggerExecution)."""
    empty: list[Measurement] = field(default_factory=list)
    """A query of the trivial source, with one micro-batch without a row."""


@dataclass
class Streams:
    """What was measured of streams."""

    latency: Latency | None = None
    backlog: Backlog | None = None

    def tables(self) -> list[str]:
        """Return it as Markdown tables."""
        found = [] if self.latency is None else [latency_table(self.latency)]
        return found if self.backlog is None else [*found, backlog_table(self.backlog)]

    def rows(self) -> list[dict[str, object]]:
        """Return the numbers behind the tables."""
        rows: list[dict[str, object]] = []
        if self.latency is not None:
            numbers = {
                "row_ms_percentiles": [
                    round(value, 1) for value in statistics.quantiles(self.latency.rows, n=100)
                ],
                "batch_ms": self.latency.batches,
                "empty_batch_ms": self.latency.empty,
            }
            rows.append({"operation": "stream", "workload": LATENCY, **numbers})
        if self.backlog is not None:
            ways = {
                "batch_read": self.backlog.batch,
                "query": self.backlog.query,
                "empty_query": self.backlog.empty,
            }
            runs = {
                f"{name}_runs": [
                    {"seconds": round(run.seconds, 4), "cpu_seconds": round(run.cpu_seconds, 3)}
                    for run in measurements
                ]
                for name, measurements in ways.items()
            }
            micro_batches = {"micro_batch_seconds": self.backlog.micro_batches}
            title = self.backlog.workload.title
            rows.append({"operation": "stream", "workload": title, **runs, **micro_batches})
        return rows


def _start(frame: DataFrame, handler: Handler, folder: str, **trigger: Any) -> StreamingQuery:
    writer = frame.writeStream.foreachBatch(handler).option("checkpointLocation", folder)
    return writer.trigger(**trigger).start() if trigger else writer.start()


def _execution_millis(query: StreamingQuery) -> list[float]:
    took = [progress["durationMs"] for progress in query.recentProgress]
    # Without addBatch it was no micro-batch: there was nothing to do.
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


def empty_batches(bench: Bench) -> list[float]:
    """Milliseconds of micro-batches of the trivial source."""
    bench.spark.dataSource.register(TrivialStreamSource)
    done: list[int] = []

    def handle(frame: DataFrame, batch_id: int) -> None:
        done.append(len(frame.collect()))

    frame = bench.spark.readStream.format("trivial-stream").load()
    with tempfile.TemporaryDirectory() as folder:
        query = _start(frame, handle, folder)
        try:
            _wait(lambda: len(done) >= WARM_UP_BATCHES + FLOOR_BATCHES, query)
            return _execution_millis(query)[WARM_UP_BATCHES:]
        finally:
            query.stop()


def arrivals(bench: Bench, topic: str, rows: int) -> tuple[list[float], list[float]]:
    """Milliseconds until each row was in the hands of foreachBatch, and of each micro-batch."""
    found: list[tuple[int, float]] = []
    batches = [0]

    def handle(frame: DataFrame, batch_id: int) -> None:
        values = [bytes(value) for (value,) in frame.collect()]
        now = time.time_ns()
        batches[0] = batch_id
        for value in values:
            number, sent = value.split()
            found.append((int(number), (now - int(sent)) / 1e6))

    source = bench.spark.readStream.format("pulsar").schema(VALUE_ONLY)
    source = source.option("service.url", bench.service_url).option("topic", topic)
    with tempfile.TemporaryDirectory() as folder:
        query = _start(source.option("startingOffsets", "earliest").load(), handle, folder)
        try:
            warm_up = int(RATE * 10)
            _write(bench, topic, warm_up)
            _wait(lambda: len(found) >= warm_up, query)
            found.clear()
            before = len(_execution_millis(query))
            _write(bench, topic, rows)
            _wait(lambda: len(found) >= rows, query)
            took = _execution_millis(query)[before:]
        finally:
            query.stop()
    if sorted(number for number, _ in found) != list(range(rows)):
        raise WrongResult(f"{len(found)} rows came of {rows}, or others")
    return [millis for _, millis in found], took


def _write(bench: Bench, topic: str, rows: int) -> None:
    command = [
        sys.executable, "-m", "benchmarks.pace", "--url", bench.service_url,
        "--topic", topic, "--rows", str(rows), "--rate", str(RATE),
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=_DEADLINE)


def measure_latency(bench: Bench, topic: str, scale: float = 1.0) -> Latency:
    """Measure the floor, then rows as they arrive."""
    bench.spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", _PROGRESS)
    empty = empty_batches(bench)
    rows, batches = arrivals(bench, topic, max(1000, int(LATENCY_ROWS * scale)))
    return Latency(rows, batches, empty)


# --- throughput -------------------------------------------------------------------------------


def _run_to_its_end(bench: Bench, frame: DataFrame, handler: Handler) -> tuple[Measurement, float]:
    """Run a query by AvailableNow; returns the run, and the seconds of its micro-batches alone."""
    with tempfile.TemporaryDirectory() as folder, measured(bench.broker_pid) as result:
        query = _start(frame, handler, folder, availableNow=True)
        if not query.awaitTermination(int(_DEADLINE)):
            query.stop()
            raise WrongResult(f"AvailableNow did not end in {_DEADLINE:.0f} s")
    return result, sum(_execution_millis(query)) / 1000


def available_now(bench: Bench, workload: Workload, topic: str) -> tuple[Measurement, float]:
    """Read all of a topic."""
    sums: list[tuple[int, int]] = []

    def handle(frame: DataFrame, batch_id: int) -> None:
        total = frame.agg(F.count("*").alias("n"), F.sum(F.crc32("value")).alias("sum"))
        sums.extend((row["n"], row["sum"] or 0) for row in total.collect())

    source = bench.spark.readStream.format("pulsar").schema(VALUE_ONLY)
    source = source.option("service.url", bench.service_url).option("topic", topic)
    found = _run_to_its_end(bench, source.option("startingOffsets", "earliest").load(), handle)
    contenders.check(workload, sum(n for n, _ in sums), sum(total for _, total in sums))
    return found


def nothing_available(bench: Bench) -> Measurement:
    """Run a query of the trivial source: what starting and ending one takes."""
    frame = bench.spark.readStream.format("trivial-stream").load()
    return _run_to_its_end(bench, frame, lambda rows, batch_id: None)[0]


def measure_backlog(bench: Bench, workload: Workload, topic: str, runs: int) -> Backlog:
    """Read a topic in both ways in turn, and nothing, after one warm-up of each."""
    bench.spark.dataSource.register(TrivialStreamSource)
    found = Backlog(workload)
    for number in range(runs + 1):
        batch = contenders.spark_read(bench, workload, topic, VALUE_ONLY)
        query, micro_batches = available_now(bench, workload, topic)
        empty = nothing_available(bench)
        if number:
            found.batch.append(batch)
            found.query.append(query)
            found.micro_batches.append(micro_batches)
            found.empty.append(empty)
    return found


# --- what is told -----------------------------------------------------------------------------


def latency_table(found: Latency) -> str:
    """The latencies as a Markdown table."""
    median = statistics.median
    lines = [
        f"| rows that arrive at {RATE:,.0f}/s, default trigger, {len(found.rows):,} rows | ms |",
        "|---|---:|",
        f"| a row, from being sent to being in foreachBatch: median | {median(found.rows):,.0f} |",
        f"| the same: 95th percentile | {statistics.quantiles(found.rows, n=20)[-1]:,.0f} |",
        f"| a micro-batch of it: median | {median(found.batches):,.0f} |",
        f"| an empty micro-batch of a trivial Python source: median | {median(found.empty):,.0f} |",
        f"| 1.5 × that + 50 ms, which the median row should keep to | {found.target:,.0f} |",
    ]
    return "\n".join(lines)


def backlog_table(found: Backlog) -> str:
    """The throughput of both ways as a Markdown table; ratios are run by run."""
    batch = [run.seconds for run in found.batch]
    ways = {
        "batch read": (batch, found.batch),
        "AvailableNow, its micro-batches": (found.micro_batches, found.query),
        "AvailableNow, from start to termination of the query": (
            [run.seconds for run in found.query],
            found.query,
        ),
    }
    messages = found.workload.messages
    lines = [
        f"| backlog of {found.workload.title} | s | rows/s | CPU s per million rows "
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
