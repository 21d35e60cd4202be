"""``demo``: write to a topic and read it back with Spark, on the embedded broker."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pulsar_spark.cli.arguments import (
    Commands,
    add_command,
    add_options,
    given_options,
    resolved,
    whole_number,
)
from pulsar_spark.cli.connection import Cluster, checked, reach
from pulsar_spark.cli.output import Bar, print_error, print_json, progress
from pulsar_spark.errors import PulsarError, redact
from pulsar_spark.protocol.implementation import description

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_DESCRIPTION = """\
Start a broker in memory, write rows to one of its topics with Spark, and read them back.
With --service-url, use your own broker instead; writing creates the topic there.
"""

_TOPIC = "orders"
_PARTITIONS = 4
_STREAM_ROUNDS = 3
_STREAM_ROWS = 1_000
_STREAM_SECONDS = 120.0


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands, "demo", "write to a topic and read it back with Spark", _DESCRIPTION, run
    )
    parser.add_argument(
        "--rows",
        type=whole_number(1, 100_000_000),
        default=100_000,
        help="how many rows (%(default)s)",
    )
    parser.add_argument("--service-url", help="your own broker, such as pulsar://localhost:6650")
    parser.add_argument("--topic", default=_TOPIC, help="the topic's name (%(default)s)")
    add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the demonstration; return 0 if every row came back."""
    # Without --service-url it has a broker of its own, whatever the environment says.
    options = given_options(arguments, Cluster({}))
    if arguments.service_url is not None:
        # Before Spark has started, which takes a while.
        _check_reachable(options)
    demo = _Demo(quiet=arguments.json)
    try:
        with demo.service(arguments.service_url, arguments.topic) as url, demo.session() as spark:
            rows = demo.demonstrate(spark, {**options, "service.url": url}, arguments.rows)
    except (PulsarError, ModuleNotFoundError):
        raise
    except Exception as error:
        # Spark's error: its text contains ours, after all the calls that led to it.
        print_error(_reason(error))
        return 1
    if arguments.json:
        print_json(rows)
    return 0 if rows["ok"] else 1


def _check_reachable(options: dict[str, str]) -> None:
    from pulsar_spark.engine.context import ClientContext
    from pulsar_spark.spark.options.read import client_options
    from pulsar_spark.spark.options.table import Scope

    with ClientContext(checked(client_options(resolved(options, Scope.BOTH)))) as context:
        reach(context)


class _Demo:
    """Writes, reads, and prints what it does unless `quiet`."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet

    @contextlib.contextmanager
    def service(self, service_url: str | None, topic: str) -> Iterator[str]:
        """Yield the service URL of a broker that has the topic, or may create it."""
        if service_url:
            yield service_url
            return
        from pulsar_spark.testing import EmbeddedBroker

        with EmbeddedBroker() as broker:
            broker.create_topic(topic, partitions=_PARTITIONS)
            self._say(f"A broker in memory runs at {broker.service_url}.")
            self._say(f"Its topic {topic!r} has {_PARTITIONS} partitions.")
            yield broker.service_url

    @contextlib.contextmanager
    def session(self) -> Iterator[SparkSession]:
        """Yield a Spark session on this machine."""
        from pyspark.sql import SparkSession

        # Spark's own warning, about a version of a package that this does not use.
        warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
        self._say("Starting Spark (some seconds) ...")
        # Spark's workers must run the interpreter, and find the packages, of this process.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        with self._progress("starting Spark"):
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
            self._say(f"The implementation is {description()}.")
            yield spark
        finally:
            spark.stop()

    def demonstrate(
        self, spark: SparkSession, options: dict[str, str], rows: int
    ) -> dict[str, int | bool]:
        """Write rows, read them back, and stream; return the number of rows, and `ok`."""
        self._write(spark, options, rows)
        read = self._read(spark, options)
        if read < rows:
            self._say(f"{rows - read:,} rows are missing.")
            return {"written": rows, "read": read, "streamed": 0, "ok": False}
        streamed = self._stream(spark, options)
        return {
            "written": rows,
            "read": read,
            "streamed": streamed,
            "ok": streamed >= _STREAM_ROUNDS * _STREAM_ROWS,
        }

    def _write(self, spark: SparkSession, options: dict[str, str], rows: int) -> None:
        from pyspark.sql import functions as F

        orders = spark.range(rows).select(
            F.concat(F.lit("customer-"), F.col("id") % 1000).alias("__key"),
            F.concat(F.lit("order "), F.col("id")).alias("value"),
        )
        self._say(f"""
    orders.write.format("pulsar").mode("append")
        .option("service.url", "{options["service.url"]}")
        .option("topic", "{options["topic"]}").save()
    """)
        started = time.monotonic()
        with self._progress("writing"):
            orders.write.format("pulsar").mode("append").options(**options).save()
        seconds = time.monotonic() - started
        self._say(f"{rows:,} rows are written and acknowledged, {seconds:.1f} s.")

    def _read(self, spark: SparkSession, options: dict[str, str]) -> int:
        from pyspark.sql import functions as F

        self._say(f"""
    spark.read.format("pulsar")
        .option("service.url", "{options["service.url"]}")
        .option("topic", "{options["topic"]}").load()
    """)
        started = time.monotonic()
        messages = spark.read.format("pulsar").options(**options).load()
        key, value = F.col("__key").cast("string"), F.col("value").cast("string")
        # Sorted, so that Spark reads everything: a task that is cut short logs a traceback.
        first = messages.select(key, value, "__publishTime", "__topic")
        counts = messages.groupBy("__topic").agg(
            F.count("*").alias("messages"), F.countDistinct("__key").alias("keys")
        )
        shown = io.StringIO()
        with self._progress("reading"), contextlib.redirect_stdout(shown):
            first.orderBy("__publishTime", "value").show(5, truncate=False)
            counts.orderBy("__topic").show(truncate=False)
            found = messages.count()
        self._say(shown.getvalue().rstrip("\n"))
        seconds = time.monotonic() - started
        self._say(f"{found:,} rows were read, {seconds:.1f} s for all three questions.")
        return found

    def _stream(self, spark: SparkSession, options: dict[str, str]) -> int:
        """Print a stream's counts while rows arrive; return how many did."""
        self._say(f"""
    spark.readStream.format("pulsar")
        .option("service.url", "{options["service.url"]}")
        .option("topic", "{options["topic"]}").load()
        .writeStream.foreachBatch(count).start()
    """)
        expected = _STREAM_ROUNDS * _STREAM_ROWS
        seen = 0

        def count(frame: DataFrame, number: int) -> None:
            nonlocal seen
            rows = frame.count()
            seen += rows
            self._say(f"micro-batch {number}: {rows:,} rows, {seen:,} in all")

        stream = spark.readStream.format("pulsar").options(**options).load()
        with tempfile.TemporaryDirectory() as checkpoint:
            query = (
                stream.writeStream.foreachBatch(count)
                .option("checkpointLocation", checkpoint)
                .start()
            )
            try:
                deadline = time.monotonic() + _STREAM_SECONDS
                # Without startingOffsets a stream starts at the topic's end as of its own start.
                _wait(query, deadline, lambda: query.lastProgress is not None)
                for _ in range(_STREAM_ROUNDS):
                    more = spark.range(_STREAM_ROWS).selectExpr("CAST(id AS STRING) AS value")
                    more.write.format("pulsar").mode("append").options(**options).save()
                _wait(query, deadline, lambda: seen >= expected)
            finally:
                query.stop()
        missing = expected - seen
        self._say(f"{missing:,} rows did not arrive." if missing else "All of them arrived.")
        return seen

    def _progress(self, what: str) -> contextlib.AbstractContextManager[Bar]:
        return progress(what, quiet=self._quiet)

    def _say(self, text: str) -> None:
        if not self._quiet:
            print(text, flush=True)


def _reason(error: Exception) -> str:
    """Return an error of Spark without its calls: our own error within it, if there is one."""
    text = str(error).strip()
    ours = re.findall(r"^pulsar_spark\.errors\.\w+: (.+)$", text, re.MULTILINE)
    return redact(ours[-1] if ours else text.partition("\n")[0]) or type(error).__name__


def _wait(query: StreamingQuery, deadline: float, arrived: Callable[[], bool]) -> None:
    while not arrived() and query.isActive and time.monotonic() < deadline:
        time.sleep(0.1)
    if (error := query.exception()) is not None:
        raise error
