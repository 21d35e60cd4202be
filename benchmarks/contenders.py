"""One function per thing that is measured; each returns a checked `Measurement`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.drain import Drain
from benchmarks.measure import Measurement, measured
from benchmarks.workloads import BATCHING_MAX_BYTES, BATCHING_MAX_MESSAGES, VALUE_SQL, Workload

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
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    if operation != "write":
        check(workload, answer["count"], answer["checksum"])
    return Measurement(answer["seconds"], answer["cpu_seconds"], answer["peak"])


def _consume(bench: Bench, frame: DataFrame, workload: Workload) -> Measurement:
    total = frame.agg(F.count("*").alias("n"), F.sum(F.crc32("value")).alias("sum"))
    with measured(bench.broker_pid) as result:
        row = total.collect()[0]
    if frame.schema and workload.messages:
        result.details["rows"] = row["n"]
        result.details["checksum"] = row["sum"]
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
    result = _consume(bench, frame, workload)
    check(workload, int(str(result.details["rows"])), int(str(result.details["checksum"])))
    return result


def trivial_read(bench: Bench, workload: Workload, columns: str) -> Measurement:
    """The trivial Arrow source with as many rows of the same size."""
    frame = (
        bench.spark.read.format("trivial")
        .schema(columns)
        .option("rows", workload.messages)
        .option("size", workload.size)
        .option("tasks", workload.partitions)
        .load()
    )
    result = _consume(bench, frame, workload)
    if result.details["rows"] != workload.messages:
        raise WrongResult(f"the trivial source gave {result.details['rows']} rows")
    return result


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


def spark_write(bench: Bench, workload: Workload, topic: str) -> Measurement:
    """Our sink: as many rows, made by Spark, one task per topic partition."""
    frame = bench.spark.range(0, workload.messages, 1, workload.partitions).selectExpr(
        VALUE_SQL.format(size=workload.size)
    )
    writer = (
        frame.write.format("pulsar")
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
