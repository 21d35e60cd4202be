"""The jobs of a Spark process; arguments and answers are plain JSON."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.measure import measured, wait_until_idle

Options = Mapping[str, str]

_READ_BYTES = 256 * 1024
_COLUMNS = frozenset({"value", "key", "message_id", "publish_time", "event_time", "properties"})


def session(conf: Mapping[str, str]) -> SparkSession:
    """A Spark session on this machine's cores."""
    builder = (
        SparkSession.builder.master(f"local[{os.cpu_count()}]")
        .appName("pulsar-spark benchmarks")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
    )
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if hasattr(spark, "dataSource"):
        from benchmarks.trivial import TrivialSource

        spark.dataSource.register(TrivialSource)
    return spark


def versions(spark: SparkSession) -> dict[str, str]:
    """The versions here."""
    return {"pyspark": pyspark.__version__, "spark": spark.version}


# --- reading ----------------------------------------------------------------------------------


def _frame(
    spark: SparkSession, source: str, options: Options, schema: str = "", select: str = ""
) -> DataFrame:
    reader = spark.read.format(source).options(**options)
    frame = (reader.schema(schema) if schema else reader).load()
    return frame.selectExpr(*select.split("|")) if select else frame


def read(spark: SparkSession, **frame: Any) -> dict[str, Any]:
    """Read everything, and convert each column of each row to Spark's own form."""
    if hasattr(spark, "dataSource") and frame["source"] in _NOTHING:
        # Spark ends Python workers that had nothing to do for a minute, and only a read of the same
        # source has the same workers.
        nothing = {**frame["options"], **_NOTHING[frame["source"]]}
        _convert(spark, **{**frame, "options": nothing})
    wait_until_idle()
    with measured() as result:
        _convert(spark, **frame)
    return asdict(result)


# With these options Python sources read nothing.
_NOTHING = {"pulsar": {"startingTime": "2100-01-01T00:00:00Z"}, "trivial": {"tasks": "0"}}


def _convert(spark: SparkSession, **frame: Any) -> None:
    _frame(spark, **frame).write.format("noop").mode("overwrite").save()


def sums(spark: SparkSession, **frame: Any) -> dict[str, int]:
    """Read everything, and compute `workloads.Sums`; missing columns add nothing."""
    rows = _frame(spark, **frame)
    nothing = F.lit(0)
    columns = {
        "count": F.count("*"),
        "values": F.sum(F.crc32("value")),
        "keys": F.sum(F.crc32("__key")) if "__key" in rows.columns else nothing,
        "event_times": nothing,
        "properties": nothing,
    }
    if "__eventTime" in rows.columns:
        columns["event_times"] = F.sum(F.expr("unix_millis(__eventTime)"))
        number = F.expr("CAST(__messageProperties['number'] AS BIGINT)")
        columns["properties"] = F.sum(number)
    found = rows.agg(*[column.alias(name) for name, column in columns.items()]).collect()[0]
    return {name: found[name] or 0 for name in columns}


def count(spark: SparkSession, **frame: Any) -> int:
    """Read everything, and count rows."""
    return _frame(spark, **frame).count()


def columns(spark: SparkSession, **frame: Any) -> list[str]:
    """The names of a source's columns."""
    return _frame(spark, **frame).columns


def ddl(spark: SparkSession, **frame: Any) -> str:
    """A source's columns as `schema` takes them."""
    return str(_frame(spark, **frame)._jdf.schema().toDDL())


def handed(spark: SparkSession, *, options: Options, schema: str, keep: str = "") -> dict[str, Any]:
    """Run our source up to the point where record batches are passed to Spark, in one process.

    `keep` is an Arrow file to store them in; then nothing is measured.
    """
    import pyarrow as pa
    from pyspark.sql.types import _parse_datatype_string

    from pulsar_spark.spark.datasource import PulsarDataSource

    source: Any = PulsarDataSource(dict(options))
    reader = source.reader(_parse_datatype_string(schema))
    rows = 0
    writer: Any = None
    with measured() as result:
        before = time.process_time()
        for partition in reader.partitions():
            for batch in reader.read(partition):
                rows += batch.num_rows
                if keep:
                    writer = writer or pa.ipc.new_file(keep, batch.schema)
                    writer.write_batch(batch)
        cpu = time.process_time() - before
    if writer is not None:
        writer.close()
    # Without the CPU of the JVM, which does not take part.
    return {"rows": rows, **asdict(replace(result, cpu_seconds=cpu, compile_seconds=0.0))}


def plan(spark: SparkSession, *, options: Options) -> float:
    """Measure the seconds to plan a read of a topic."""
    from pyspark.sql.types import _parse_datatype_string

    from pulsar_spark.spark.datasource import PulsarDataSource

    source: Any = PulsarDataSource(dict(options))
    started = time.perf_counter()
    source.reader(_parse_datatype_string("value binary")).partitions()
    return time.perf_counter() - started


def decode(spark: SparkSession, *, topic: str, frames: str) -> dict[str, Any]:
    """Decode consecutive MESSAGE frames into the buffers of seven columns.

    The answer has only the CPU, and the number of frames left to the opener.
    """
    from pulsar_spark.engine.codecs import decompress
    from pulsar_spark.protocol.blocks import DONE, BlockOptions
    from pulsar_spark.protocol.implementation import make_decoder, scan_messages

    blocks = _blocks(Path(frames).read_bytes())
    decoder = make_decoder(
        BlockOptions(topic, -1, _COLUMNS, None, 10_000, 4 << 20, 5 << 20), decompress
    )
    rows = 0
    position = (-1, -1, 0)
    before = time.process_time()
    for block in blocks:
        stop = scan_messages(block, 0, 6 << 20)[0]
        at, status = 0, None
        while status != DONE:
            at, status, _, position = decoder.decode(block, at, stop, position)
            columns = decoder.take()
            rows += 0 if columns is None else columns.rows
            if decoder.slow_frames:
                return {"rows": rows, "slow_frames": decoder.slow_frames, "cpu_seconds": 0.0}
    cpu = time.process_time() - before
    return {"rows": rows, "slow_frames": 0, "cpu_seconds": cpu}


def _blocks(data: bytes) -> list[bytes]:
    """Cut frames as reads of the socket might: about 256 KiB, or one frame."""
    found = []
    start = at = 0
    while at < len(data):
        at += 4 + int.from_bytes(data[at : at + 4], "big")
        if at - start >= _READ_BYTES or at == len(data):
            found.append(data[start:at])
            start = at
    return found


# --- writing ----------------------------------------------------------------------------------


def write(
    spark: SparkSession,
    *,
    source: str,
    options: Options,
    messages: int,
    tasks: int,
    columns: list[str],
    batch_rows: int | None = None,
) -> dict[str, Any]:
    """Write rows made by Spark, which passes at most `batch_rows` at a time to a Python sink."""
    if batch_rows is not None:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", batch_rows)
    rows = spark.range(0, messages, 1, tasks).selectExpr(*columns)
    writer = rows.write.format(source).mode("append").options(**options)
    wait_until_idle()
    with measured() as result:
        writer.save()
    return asdict(result)


# --- streams ----------------------------------------------------------------------------------


def latency(spark: SparkSession, *, service_url: str, topic: str, rows: int) -> dict[str, Any]:
    """Measure how long rows take to arrive."""
    from benchmarks import streams

    return asdict(streams.measure_latency(spark, service_url, topic, rows))


def kafka_latency(spark: SparkSession, *, address: str, topic: str, rows: int) -> dict[str, Any]:
    """Measure how long rows take to arrive by Spark's Kafka source."""
    from benchmarks import streams

    return asdict(streams.measure_kafka_latency(spark, address, topic, rows))


def idle(spark: SparkSession, *, service_url: str, topics: dict[str, str]) -> dict[str, Any]:
    """Measure what streams without news cost; `topics` by their number of partitions."""
    from benchmarks import streams

    by_count = {int(count): topic for count, topic in topics.items()}
    return asdict(streams.measure_idle(spark, service_url, by_count))


def backlog(
    spark: SparkSession, *, options: Options, expected: tuple[int, int], runs: int
) -> dict[str, Any]:
    """Read a backlog as a batch and as a stream."""
    from benchmarks import streams

    return asdict(streams.measure_backlog(spark, options, expected, runs))


def micro_batches(spark: SparkSession, *, select: str = "", options: Options) -> dict[str, Any]:
    """Read all of a topic as a stream that ends, and measure its query."""
    frame = spark.readStream.format("pulsar").options(**options).load()
    frame = frame.selectExpr(*select.split("|")) if select else frame
    wait_until_idle()
    with TemporaryDirectory() as folder, measured() as result:
        writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
        writer.trigger(availableNow=True).start().awaitTermination()
    return asdict(result)


def guarantees(
    spark: SparkSession, *, options: Options, topics: list[str], columns: list[str], rows: int
) -> dict[str, Any]:
    """Write micro-batches with each delivery guarantee, to each topic."""
    from benchmarks import exactly_once

    return exactly_once.measure(spark, dict(options), topics, columns, rows)


JOBS: dict[str, Callable[..., Any]] = {
    job.__name__: job
    for job in (
        *(read, count, columns, ddl, sums, handed, plan, decode, write),
        *(latency, kafka_latency, idle, backlog, micro_batches, guarantees),
    )
}
