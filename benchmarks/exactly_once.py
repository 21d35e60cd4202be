"""The cost of exactly-once writing: the same micro-batches with each guarantee."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.topics import WrongResult
from benchmarks.workloads import Workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GUARANTEES = ("at-least-once", "exactly-once")
BATCHES = 10
WORKLOAD = Workload("guarantees", 1_000_000, 100, batch=1000)
BOUND = 1.5
"""Target: exactly-once may take this many times as long, with 100,000 rows per micro-batch."""

_TASKS = 2
# The first micro-batch starts processes and compiles.
_WARM_UP = 1
_DEADLINE = 600.0
_PROGRESS = "10000"


@dataclass
class Guarantees:
    """Seconds of each run's micro-batches, as Spark reports them, by guarantee."""

    rows: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Each run's time with exactly-once, relative to at-least-once."""
        slow, fast = (self.seconds[name] for name in reversed(GUARANTEES))
        return statistics.median(one / other for one, other in zip(slow, fast, strict=True))


def measure(
    spark: SparkSession, options: dict[str, str], topics: list[str], columns: list[str], rows: int
) -> dict[str, Any]:
    """Write `rows` rows to each topic in `BATCHES` micro-batches, with each guarantee in turn.

    The first topic is for warming up. A query that is stopped leaves an open transaction, which
    holds the read position of its topic: so there is one exactly-once query for each topic.
    """
    found = Guarantees(rows, {name: [] for name in GUARANTEES})
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", _PROGRESS)
    for number, topic in enumerate(topics):
        for name in GUARANTEES:
            own = {"topic": topic, "deliveryGuarantee": name}
            seconds = _run(spark, {**options, **own}, columns, rows)
            if number:
                found.seconds[name].append(seconds)
    return asdict(found)


def _run(spark: SparkSession, options: dict[str, str], columns: list[str], rows: int) -> float:
    source = spark.readStream.format("rate-micro-batch").option("numPartitions", _TASKS)
    frame = source.option("rowsPerBatch", rows // BATCHES).load()
    frame = frame.withColumnRenamed("value", "id").selectExpr(*columns)
    with tempfile.TemporaryDirectory() as folder:
        writer = frame.writeStream.format("pulsar").options(**options)
        query = writer.option("checkpointLocation", folder).start()
        try:
            deadline = time.monotonic() + _DEADLINE
            while len(query.recentProgress) < _WARM_UP + BATCHES:
                if not query.isActive:
                    raise WrongResult(f"the query ended: {query.exception()}")
                if time.monotonic() > deadline:
                    raise WrongResult(f"the query did not come to its end in {_DEADLINE:.0f} s")
                time.sleep(0.05)
            took = [progress["durationMs"] for progress in query.recentProgress]
        finally:
            query.stop()
    counted = took[_WARM_UP : _WARM_UP + BATCHES]
    return sum(float(millis["triggerExecution"]) for millis in counted) / 1000


def table(found: Guarantees) -> str:
    """The times as a Markdown table."""
    lines = [
        f"| {found.rows:,} × {WORKLOAD.size} B written in {BATCHES} micro-batches | s | rows/s |",
        "|---|---:|---:|",
    ]
    for name, seconds in found.seconds.items():
        median = statistics.median(seconds)
        lines.append(f"| {name} | {median:.2f} | {found.rows / median:,.0f} |")
    lines.append(
        f"| exactly-once takes so many times as long, which is to be {BOUND} at most "
        f"| {found.ratio:.2f} | |"
    )
    return "\n".join(lines)
