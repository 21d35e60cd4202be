"""One function per thing that is measured; each returns a checked `Measurement`."""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.drain import Drain
from benchmarks.measure import Measurement, measured
from benchmarks.trivial import make_file
from benchmarks.workloads import BATCHING_MAX_BYTES, BATCHING_MAX_MESSAGES, Workload, value_sql

ALL_COLUMNS = (
    "value binary, __key binary, __topic string, __messageId binary, __publishTime timestamp, "
    "__eventTime timestamp, __messageProperties map<string,string>"
)
VALUE_ONLY = "value binary"


class WrongResult(Exception):
    """A run gave another number of rows, or other values, than were written."""


@dataclass(frozen=True)
class Bench:
    """What every contender needs: the session, the broker, and its process id to leave out."""

    spark: SparkSession
    service_url: str
    broker_pid: int = 0


@cache
def expected_checksum(workload: Workload) -> int:
    """The checksum of a workload's values."""
    return workload.checksum()


def check(workload: Workload, count: int, checksum: int) -> None:
    """Raise WrongResult unless these are the workload's messages."""
    if (count, checksum) != (workload.messages, expected_checksum(workload)):
        raise WrongResult(f"{workload.title}: {count} rows with checksum {checksum}")


def official(bench: Bench, operation: str, workload: Workload, topic: str) -> Measurement:
    """The official client, in its own process."""
    command = [
        sys.executable, "-m", "benchmarks.official", operation,
        "--url", bench.service_url, "--topic", topic,
        "--messages", str(workload.messages), "--size", str(workload.size),
    ]  # fmt: skip
    if workload.batched:
        command.append("--batched")
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    # The client's own log goes to the same place.
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    answer = json.loads(line)
    if operation != "write":
        check(workload, answer["count"], answer["checksum"])
    return Measurement(answer["seconds"], answer["cpu_seconds"], answer["peak"])


def _checked(bench: Bench, frame: DataFrame, workload: Workload) -> Measurement:
    """Count a data frame's rows and sum up their checksums; raises WrongResult."""
    total = frame.agg(F.count("*").alias("n"), F.sum(F.crc32("value")).alias("sum"))
    with measured(bench.broker_pid) as result:
        row = total.collect()[0]
    check(workload, row["n"], row["sum"])
    return result


def spark_read(bench: Bench, workload: Workload, topic: str, columns: str) -> Measurement:
    """Our source: count and checksum of a topic."""
    frame = (
        bench.spark.read.format("pulsar")
        .schema(columns)
        .option("service.url", bench.service_url)
        .option("topic", topic)
        .load()
    )
    return _checked(bench, frame, workload)


@cache
def _ready_made(workload: Workload, columns: str) -> Path:
    folder = tempfile.mkdtemp(prefix="pulsar-spark-bench-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / f"{workload.name}.arrow"
    make_file(path, workload, [column.split()[0] for column in columns.split(", ")])
    return path


def trivial_read(bench: Bench, workload: Workload, columns: str) -> Measurement:
    """The trivial Arrow source with the same values."""
    frame = (
        bench.spark.read.format("trivial")
        .schema(columns)
        .option("file", str(_ready_made(workload, columns)))
        .option("tasks", workload.partitions)
        .load()
    )
    return _checked(bench, frame, workload)


def drain(bench: Bench, workload: Workload, topic: str, total: int) -> Measurement:
    """The raw drain of a topic with one partition: `total` bytes off the socket."""
    connection = Drain(bench.service_url, topic)
    try:
        with measured(bench.broker_pid) as result:
            seconds = connection.run(total)
    finally:
        connection.close()
    result.seconds = seconds
    return result


def wire_bytes(bench: Bench, workload: Workload, topic: str) -> int:
    """How many bytes a topic with one partition takes on the wire."""
    connection = Drain(bench.service_url, topic)
    try:
        return connection.count_bytes(workload.messages)
    finally:
        connection.close()


def handed(bench: Bench, workload: Workload, topic: str) -> Measurement:
    """Our source up to the point where record batches are handed to Spark, in this process."""
    from pyspark.sql.types import _parse_datatype_string

    from pulsar_spark.spark.datasource import PulsarDataSource

    source: Any = PulsarDataSource({"service.url": bench.service_url, "topic": topic})
    reader = source.reader(_parse_datatype_string(VALUE_ONLY))
    rows = 0
    with measured(bench.broker_pid) as result:
        for partition in reader.partitions():
            for batch in reader.read(partition):
                rows += batch.num_rows
    if rows != workload.messages:
        raise WrongResult(f"{workload.title}: {rows} rows were handed on")
    return result


def _made_by_spark(bench: Bench, workload: Workload) -> DataFrame:
    rows = bench.spark.range(0, workload.messages, 1, workload.partitions)
    return rows.selectExpr(value_sql(workload.size))


def trivial_write(bench: Bench, workload: Workload) -> Measurement:
    """The trivial Arrow sink, which checks the number of its rows."""
    writer = (
        _made_by_spark(bench, workload)
        .write.format("trivial")
        .mode("append")
        .option("rows", workload.messages)
    )
    with measured(bench.broker_pid) as result:
        writer.save()
    return result


def spark_write(bench: Bench, workload: Workload, topic: str) -> Measurement:
    """Our sink, one task per topic partition."""
    writer = (
        _made_by_spark(bench, workload)
        .write.format("pulsar")
        .mode("append")
        .option("service.url", bench.service_url)
        .option("topic", topic)
        .option("pulsar.producer.batchingEnabled", str(workload.batched).lower())
        .option("pulsar.producer.batchingMaxMessages", BATCHING_MAX_MESSAGES)
        .option("pulsar.producer.batchingMaxBytes", BATCHING_MAX_BYTES)
    )
    with measured(bench.broker_pid) as result:
        writer.save()
    return result
