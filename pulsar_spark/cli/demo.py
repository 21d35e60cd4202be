"""``demo``: write to a topic and read it back through Spark, on the embedded broker."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pulsar_spark.cli.arguments import add_options, given_options

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_DESCRIPTION = """\
Start a broker in memory, write rows to one of its topics through Spark, and read them back.
With --service-url, use your own broker instead; the topic is created there by writing to it.
"""

_TOPIC = "orders"
_PARTITIONS = 4
_STREAM_ROUNDS = 3
_STREAM_ROWS = 1_000
_STREAM_SECONDS = 120.0


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "demo",
        help="write to and read from a topic through Spark",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=100_000, help="how many rows (%(default)s)")
    parser.add_argument("--service-url", help="a broker of yours, such as pulsar://localhost:6650")
    parser.add_argument("--topic", default=_TOPIC, help="the topic's name (%(default)s)")
    parser.allow_abbrev = False
    add_options(parser)
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the demonstration; return 0 if every row came back."""
    options = given_options(arguments)
    with _service(arguments.service_url, arguments.topic) as service_url, _session() as spark:
        return _demonstrate(spark, {**options, "service.url": service_url}, arguments.rows)


@contextlib.contextmanager
def _service(service_url: str | None, topic: str) -> Iterator[str]:
    if service_url:
        yield service_url
        return
    from pulsar_spark.testing import EmbeddedBroker

    with EmbeddedBroker() as broker:
        broker.create_topic(topic, partitions=_PARTITIONS)
        _say(f"A broker in memory runs at {broker.service_url}; topic {topic!r} has 4 partitions.")
        yield broker.service_url


@contextlib.contextmanager
def _session() -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    # Spark's own, about the version of a package that this does not use.
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    _say("Starting Spark (some seconds) ...")
    # Spark's workers must run the interpreter, and find the packages, of this process.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("pulsar_spark demo")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    try:
        yield spark
    finally:
        spark.stop()


def _demonstrate(spark: SparkSession, options: dict[str, str], rows: int) -> int:
    from pyspark.sql import functions as F

    service_url, topic = options["service.url"], options["topic"]
    orders = spark.range(rows).select(
        F.concat(F.lit("customer-"), F.col("id") % 1000).alias("__key"),
        F.concat(F.lit("order "), F.col("id")).alias("value"),
    )
    _say(f"""
    orders.write.format("pulsar").mode("append")
        .option("service.url", "{service_url}")
        .option("topic", "{topic}").save()
    """)
    started = time.monotonic()
    orders.write.format("pulsar").mode("append").options(**options).save()
    _say(f"{rows:,} rows are written and acknowledged, {time.monotonic() - started:.1f} s.")

    _say(f"""
    spark.read.format("pulsar")
        .option("service.url", "{service_url}")
        .option("topic", "{topic}").load()
    """)
    started = time.monotonic()
    messages = spark.read.format("pulsar").options(**options).load()
    key, value = F.col("__key").cast("string"), F.col("value").cast("string")
    # In order, so that Spark reads everything: a task that is cut short is a traceback in its log.
    messages.select(key, value, "__publishTime", "__topic").orderBy("__publishTime", "value").show(
        5, truncate=False
    )
    counts = messages.groupBy("__topic").agg(
        F.count("*").alias("messages"), F.countDistinct("__key").alias("keys")
    )
    counts.orderBy("__topic").show(truncate=False)
    found = messages.count()
    _say(f"{found:,} rows were read, {time.monotonic() - started:.1f} s for all three questions.")
    if found < rows:
        _say(f"{rows - found:,} rows are missing.")
        return 1
    return _stream(spark, options)


def _stream(spark: SparkSession, options: dict[str, str]) -> int:
    """Show the counts of a stream while rows arrive; return 0 if all of them did."""
    _say(f"""
    spark.readStream.format("pulsar")
        .option("service.url", "{options["service.url"]}")
        .option("topic", "{options["topic"]}").load()
        .writeStream.foreachBatch(count).start()
    """)
    seen = 0

    def count(frame: DataFrame, number: int) -> None:
        nonlocal seen
        rows = frame.count()
        seen += rows
        _say(f"micro-batch {number}: {rows:,} rows, {seen:,} in all")

    stream = spark.readStream.format("pulsar").options(**options).load()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            stream.writeStream.foreachBatch(count).option("checkpointLocation", checkpoint).start()
        )
        try:
            deadline = time.monotonic() + _STREAM_SECONDS
            # Without startingOffsets a stream begins at the end of the topic, once it has begun.
            _wait(query, deadline, lambda: query.lastProgress is not None)
            for _ in range(_STREAM_ROUNDS):
                more = spark.range(_STREAM_ROWS).selectExpr("CAST(id AS STRING) AS value")
                more.write.format("pulsar").mode("append").options(**options).save()
            _wait(query, deadline, lambda: seen >= _STREAM_ROUNDS * _STREAM_ROWS)
        finally:
            query.stop()
    missing = _STREAM_ROUNDS * _STREAM_ROWS - seen
    _say(f"{missing:,} rows did not arrive." if missing else "All of them arrived.")
    return 1 if missing else 0


def _wait(query: StreamingQuery, deadline: float, arrived: Callable[[], bool]) -> None:
    while not arrived() and query.isActive and time.monotonic() < deadline:
        time.sleep(0.1)
    if (error := query.exception()) is not None:
        raise error


def _say(text: str) -> None:
    print(text, flush=True)
