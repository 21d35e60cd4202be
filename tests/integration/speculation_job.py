"""Run by test_spark_speculation.py: streams whose first task is slow, so that Spark runs it twice.

Arguments: the master, the service URL, the topic to read, the topic to write, a folder. It prints
the values that were read as one JSON line. In the folder it leaves a file for each attempt of the
slow tasks.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

ROWS = 1_000
TASKS = 4

# Longer than it takes Spark to see that the task is slow, run it elsewhere and kill it.
_SLOW_SECONDS = 90.0


def session(master: str) -> SparkSession:
    """Return a session that speculates as soon as half of the tasks are done."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "500ms",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
    }
    builder = SparkSession.builder.appName("speculation").master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def slowly(
    folder: str, name: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for mapInArrow: the first attempt of the first task stops half-way."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        first = context.partitionId() == 0
        if first:
            (Path(folder) / f"{name}-{context.attemptNumber()}").touch()
        for number, batch in enumerate(batches):
            if first and context.attemptNumber() == 0 and number == 2:
                time.sleep(_SLOW_SECONDS)
            yield batch

    return work


def read(spark: SparkSession, url: str, topic: str, folder: str) -> list[str]:
    """Return the values that a stream hands over, in one micro-batch."""
    found: list[str] = []

    def keep(frame: DataFrame, batch_id: int) -> None:
        found.extend(bytes(value).decode() for (value,) in frame.collect())

    options = {"service.url": url, "topic": topic, "startingOffsets": "earliest"}
    frame = spark.readStream.format("pulsar").options(**options).load().select("value")
    slow = frame.mapInArrow(slowly(folder, "read"), frame.schema)
    _run(slow.writeStream.foreachBatch(keep), folder, "read")
    return found


def write(spark: SparkSession, url: str, topic: str, folder: str) -> None:
    """Write ROWS numbers, in one micro-batch."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
    frame = source.option("numPartitions", TASKS).load()
    # Large enough for what comes before the pause to leave the buffers on the way to the sink.
    frame = frame.selectExpr("lpad(string(value), 2000, '0') AS value")
    slow = frame.mapInArrow(slowly(folder, "write"), frame.schema)
    options = {"service.url": url, "topic": topic, "pulsar.producer.batchingMaxMessages": "10"}
    _run(slow.writeStream.format("pulsar").options(**options), folder, "write")


def _run(writer: Any, folder: str, name: str) -> None:
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint-{name}")
    query = writer.trigger(availableNow=True).start()
    if not query.awaitTermination(80):
        raise TimeoutError(f"{name}: no second attempt has taken over")


def main(master: str, url: str, source: str, target: str, folder: str) -> None:
    """Read and write."""
    spark = session(master)
    values = read(spark, url, source, folder)
    write(spark, url, target, folder)
    print(json.dumps(values))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
