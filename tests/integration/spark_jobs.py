"""Slow Spark jobs, so that there is time to disturb them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pulsar_spark
from tests.integration.brokers import Broker
from tests.integration.spark_io import load, save

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

ROWS = 100_000
PARTITIONS = 2
_HURRY = "hurry"


@dataclass(frozen=True)
class Pace:
    """A job's pace: each task sleeps `pause` seconds before every `batch` rows."""

    folder: Path
    batch: int = 2_500
    pause: float = 0.25

    def begun(self, running: Future[Any]) -> bool:
        """Whether all tasks of a job are running; raises its error if it has failed."""
        if running.done():
            # Otherwise it was too fast.
            running.result()
        return len(list(self.folder.iterdir())) >= PARTITIONS

    def hurry(self) -> None:
        """Let the job end without pauses."""
        (self.folder / _HURRY).touch()

    def function(self) -> Callable[[Iterator[pa.RecordBatch]], Iterator[Any]]:
        """Return a function for mapInArrow that keeps the pace and counts batches with files."""
        name, pause = str(self.folder), self.pause

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                (Path(name) / str(time.monotonic_ns())).touch()
                if not (Path(name) / _HURRY).exists():
                    time.sleep(pause)
                yield batch

        return work

    @contextmanager
    def kept(self, spark: SparkSession) -> Iterator[None]:
        """Set the size of Spark's batches."""
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", self.batch)
        try:
            yield
        finally:
            spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def numbered(spark: SparkSession) -> DataFrame:
    """Return `ROWS` numbers in `PARTITIONS` partitions."""
    return spark.range(0, ROWS, 1, PARTITIONS).selectExpr("rpad(id, 200, '.') value")


def run_disturbed(
    spark: SparkSession, job: Callable[[], T], disturb: Callable[[Future[T]], object]
) -> T:
    """Run a job on another thread and disturb it on this one; return the job's result."""

    def run() -> T:
        pulsar_spark.register(spark)
        return job()

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run)
        disturb(running)
        return running.result(400)


def read_numbers(
    spark: SparkSession,
    broker: Broker,
    topic: str,
    pace: Pace,
    options: Mapping[str, object] | None = None,
) -> list[int]:
    """Read a topic of numbers."""
    options = {"pulsar.reader.receiverQueueSize": 1000, **(options or {})}
    read = load(spark, broker, topic, options).selectExpr(
        "cast(substring_index(value, '.', 1) as long) id"
    )
    with pace.kept(spark):
        return [row[0] for row in read.mapInArrow(pace.function(), "id long").collect()]


def write_numbers(
    spark: SparkSession,
    broker: Broker,
    topic: str,
    pace: Pace,
    options: Mapping[str, object] | None = None,
) -> None:
    """Write all numbers to a topic."""
    source = numbered(spark)
    options = {"pulsar.producer.batchingMaxMessages": 100, **(options or {})}
    with pace.kept(spark):
        save(source.mapInArrow(pace.function(), source.schema), broker, topic, options)


def expect_all_written(spark: SparkSession, broker: Broker, topic: str) -> None:
    """Check that every row is there, and each producer's in the order of the first sends."""
    found = _written(spark, broker, topic)
    firsts: dict[tuple[str, str], dict[int, None]] = {}
    for number, name, producer in found:
        firsts.setdefault((name, producer), {})[number] = None
    for numbers in firsts.values():
        assert list(numbers) == sorted(numbers)
    assert all(0 <= number < ROWS for number, *_ in found)
    missing = sorted(set(range(ROWS)).difference(row[0] for row in found))
    if missing:
        later = {row[0] for row in _written(spark, broker, topic)}
        raise AssertionError(
            f"{len(missing)} of {ROWS} rows are missing, from {missing[0]} to {missing[-1]}; "
            f"a second read finds {len(later.intersection(missing))} of them"
        )


def _written(spark: SparkSession, broker: Broker, topic: str) -> list[Any]:
    """Return each row's number, topic partition and producer."""
    frame = load(spark, broker, topic, {"includeMetadata": True})
    return frame.selectExpr(
        "cast(substring_index(value, '.', 1) as long)", "__topic", "__producerName"
    ).collect()
