"""``python -m benchmarks``: measure, print a table, write the numbers and a picture."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import platform
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from benchmarks import codecs, contenders, official, report, streams
from benchmarks.contenders import ALL_COLUMNS, VALUE_ONLY, Bench
from benchmarks.measure import Measurement
from benchmarks.report import Result
from benchmarks.trivial import TrivialSource
from benchmarks.workloads import BATCHING_MAX_BYTES, BATCHING_MAX_MESSAGES, WORKLOADS, Workload
from tests.support.real_broker import OwnBroker, RealBroker, prepare

ROOT = Path(__file__).parent.parent
OFFICIAL = "official client"
OPERATIONS = ("read", "write", "stream", "codec", "all")
CODECS = "codecs"
# Reads are so short that JVMs still compile in their first rounds.
WARM_UPS = {"read": 4, "write": 1}
Contender = Callable[[], Measurement]

log = logging.getLogger("benchmarks")


def session() -> SparkSession:
    """A Spark session on this machine's cores, its workers with the checkout on their path."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    )
    spark = (
        SparkSession.builder.master(f"local[{os.cpu_count()}]")
        .appName("pulsar-spark benchmarks")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(TrivialSource)
    return spark


def alternate(
    operation: str, workload: Workload, named: dict[str, Contender], runs: int
) -> list[Result]:
    """Run all contenders in turn: some rounds to warm up, then `runs` counted ones."""
    results = {name: Result(operation, workload, name) for name in named}
    for number in range(1 - WARM_UPS[operation], runs + 1):
        for name, contender in named.items():
            measurement = contender()
            log.info(
                "%s %s · %s · run %d: %.2f s",
                operation, workload.title, name, number, measurement.seconds,
            )  # fmt: skip
            if number > 0:
                results[name].runs.append(measurement)
    return list(results.values())


def best_reader(bench: Bench, workload: Workload, topic: str) -> str:
    """The fastest of the official client's ways to read this topic."""
    times = {
        name: contenders.official(bench, name, workload, topic).seconds for name in official.READERS
    }
    return min(times, key=lambda name: times[name])


def read_contenders(bench: Bench, workload: Workload, topic: str) -> dict[str, Contender]:
    """Everything that reads a topic."""
    way = best_reader(bench, workload, topic)
    named: dict[str, Contender] = {
        f"{OFFICIAL} ({way})": lambda: contenders.official(bench, way, workload, topic),
        "pulsar_spark, value": lambda: contenders.spark_read(bench, workload, topic, VALUE_ONLY),
        "pulsar_spark, all columns": lambda: contenders.spark_read(
            bench, workload, topic, ALL_COLUMNS
        ),
        "trivial Arrow source, value": lambda: contenders.trivial_read(bench, workload, VALUE_ONLY),
        "trivial Arrow source, all columns": lambda: contenders.trivial_read(
            bench, workload, ALL_COLUMNS
        ),
        "pulsar_spark, handed to Spark": lambda: contenders.handed(bench, workload, topic),
    }
    if workload.partitions == 1:
        total = contenders.wire_bytes(bench, workload, topic)
        named["raw drain"] = lambda: contenders.drain(bench, workload, topic, total)
    return named


def measure_reads(bench: Bench, broker: RealBroker, workload: Workload, runs: int) -> list[Result]:
    """Fill a topic by the official client, read it by everything, delete it."""
    topic = make_topic(broker, workload)
    contenders.official(bench, "write", workload, topic)
    results = alternate("read", workload, read_contenders(bench, workload, topic), runs)
    delete_topic(broker, workload, topic)
    return results


def measure_writes(bench: Bench, broker: RealBroker, workload: Workload, runs: int) -> list[Result]:
    """Write into fresh topics, and read each back to check it."""

    def checked(write: Callable[[str], Measurement]) -> Contender:
        def run() -> Measurement:
            topic = make_topic(broker, workload)
            measurement = write(topic)
            contenders.spark_read(bench, workload, topic, VALUE_ONLY)
            delete_topic(broker, workload, topic)
            return measurement

        return run

    named = {
        f"{OFFICIAL} (send_async)": checked(
            lambda topic: contenders.official(bench, "write", workload, topic)
        ),
        "pulsar_spark": checked(lambda topic: contenders.spark_write(bench, workload, topic)),
        "trivial Arrow sink": lambda: contenders.trivial_write(bench, workload),
    }
    return alternate("write", workload, named, runs)


def measure_streams(
    bench: Bench, broker: RealBroker, only: list[str] | None, runs: int, scale: float
) -> streams.Streams:
    """Measure what is asked for of streams."""
    found = streams.Streams()
    if not only or streams.LATENCY in only:
        topic = make_topic(broker, streams.ARRIVING)
        # It is small, and stays: with transactions enabled, Pulsar 4.0.8 lets whoever reads a new
        # topic wait for 30 s after a first one was deleted.
        found.latency = streams.measure_latency(bench, topic, scale)
    if not only or streams.BACKLOG.name in only:
        workload = streams.BACKLOG.scaled(scale)
        topic = make_topic(broker, workload)
        contenders.official(bench, "write", workload, topic)
        found.backlog = streams.measure_backlog(bench, workload, topic, runs)
        delete_topic(broker, workload, topic)
    return found


def make_topic(broker: RealBroker, workload: Workload) -> str:
    """A new topic with the workload's partitions."""
    topic = f"persistent://public/default/bench-{workload.name}-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, workload.partitions if workload.partitions > 1 else 0)
    return topic


def delete_topic(broker: RealBroker, workload: Workload, topic: str) -> None:
    """Remove a topic, so that the disk does not fill up."""
    path = topic.replace("://", "/")
    suffix = "/partitions" if workload.partitions > 1 else ""
    broker.admin("DELETE", f"/admin/v2/{path}{suffix}?force=true")


def settings(runs: int) -> str:
    """What the numbers were measured with."""
    import pulsar

    return (
        f"Medians of {runs} alternating runs after warm-ups, ratios run by run, on "
        f"{os.cpu_count()} cores shared with the broker; Python {platform.python_version()}, "
        f"PySpark {pyspark.__version__}, pulsar-client {pulsar.__version__}, Pulsar 4.0.8 "
        "standalone with 1 GB of heap. No compression; batches of at most "
        f"{BATCHING_MAX_MESSAGES:,} messages and {BATCHING_MAX_BYTES // 1024} KiB; "
        "the official client reads with a queue of "
        f"{official.QUEUE_SIZE:,} by the fastest of its three ways, and sends with 50,000 "
        "pending; the trivial source yields ready-made batches of the same values from a file in "
        "memory, the trivial sink counts the rows that it is given. The ceiling of what Spark "
        "reads is that source with the same columns, of what Spark writes that sink, of what is "
        "handed to Spark the raw drain. Row count and a checksum of the values were checked in "
        "every run."
    )


def main() -> None:
    """Run the benchmarks that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each contender")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the messages")
    parser.add_argument(
        "--only", nargs="*", help="names, such as small large-4 stream-latency codecs"
    )
    parser.add_argument("--operation", choices=OPERATIONS, default="all")
    parser.add_argument("--output", type=Path, help="folder for results.json and the picture")
    parser.add_argument("--readme", action="store_true", help="put the table into README.md")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for noisy in ("py4j", "pyspark", "pulsar_spark"):
        logging.getLogger(noisy).setLevel(logging.WARNING)

    chosen = [w for w in WORKLOADS if not arguments.only or w.name in arguments.only]
    results: list[Result] = []
    started = time.monotonic()
    with contextlib.closing(OwnBroker(prepare(), for_speed=True)) as broker:
        broker.start()
        bench = Bench(session(), broker.service_url, broker.pid)
        for workload in chosen:
            workload = workload.scaled(arguments.scale)
            if arguments.operation in ("read", "all"):
                results += measure_reads(bench, broker, workload, arguments.runs)
            if arguments.operation in ("write", "all"):
                results += measure_writes(bench, broker, workload, arguments.runs)
        found = streams.Streams()
        if arguments.operation in ("stream", "all"):
            found = measure_streams(bench, broker, arguments.only, arguments.runs, arguments.scale)
        bench.spark.stop()
    compared: list[codecs.Compared] = []
    if arguments.operation in ("codec", "all") and (not arguments.only or CODECS in arguments.only):
        compared = codecs.measure(int(codecs.RECORDS * arguments.scale))
    tables = [report.table(results, OFFICIAL)] if results else []
    tables += found.tables()
    tables += [codecs.table(compared)] if compared else []
    text = "\n\n".join([settings(arguments.runs), *tables])
    print(text)
    log.info("took %.0f s", time.monotonic() - started)
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "results.json").write_text(
            report.as_json(results, [*found.rows(), *map(asdict, compared)]) + "\n"
        )
        report.picture(results, arguments.output / "benchmarks.png")
    if arguments.readme:
        report.put_between_markers(ROOT / "README.md", text)


if __name__ == "__main__":
    main()
