"""``python -m benchmarks``: measures, prints tables, writes the numbers and a chart."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import logging
import os
import platform
import shutil
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import (
    codecs,
    codecs_arrivals,
    contenders,
    exactly_once,
    official,
    report,
    streams,
    typed,
)
from benchmarks.contenders import Bench, Contender, Run
from benchmarks.kafka import Kafka, KafkaBroker, connector_settings
from benchmarks.measure import Measurement, on_one_core
from benchmarks.results import Result, Results
from benchmarks.spark_process import SparkProcess
from benchmarks.tls import TlsPort
from benchmarks.topics import fill, kept_in_memory, make_topic, temporary_topic
from benchmarks.workloads import ARRIVING, BACKLOG, WORKLOADS, Workload
from pulsar_spark.cli.arguments import key_and_value
from tests.support.pulsar_distribution import VERSION as PULSAR_VERSION
from tests.support.real_broker import MEMORY_FOR_SPEED, OwnBroker, prepare

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "docs" / "benchmarks.md", ROOT / "README.md")
"""Pages with a short table."""
FULL_PAGE = ROOT / "docs" / "contenders.md"
OPERATIONS = ("read", "write", "typed", "client", "stream", "guarantee", "codec")
QUICK = "batch10"
PLANNED = 1_000
RESULTS = "results.json"
# In addition to the checked rounds: at least and at most. For many rounds JVMs compile Spark's code
# for planning and for columns, now more and now less: up to half of the CPU of short reads.
WARM_UPS = {"read": (4, 20), "write": (3, 10), "stream": (2, 6)}
COMPILING = 0.1
"""A JVM is warm once its compilers need no more than this part of its CPU."""
# The shapes for comparing our client with the official one.
OF_CLIENTS = ("batch1000", "batch10", "unbatched100", "unbatched1k")

log = logging.getLogger("benchmarks")


def implementations() -> list[str]:
    """Our installed implementations."""
    native = importlib.util.find_spec("pulsar_spark._kernel")
    return ["python"] if native is None else ["native", "python"]


def alternate(
    operation: str, workload: Workload, named: dict[Contender, Run], runs: int
) -> list[Result]:
    """Run all contenders in turn: rounds until all JVMs are warm, then `runs` counted ones."""
    results = {contender: Result(operation, workload, contender) for contender in named}

    def round_of(what: str, contenders: Iterable[Contender]) -> dict[Contender, Measurement]:
        found = {}
        for contender in contenders:
            found[contender] = measured = named[contender]()
            log.info(
                "%s %s · %s · %s: %.2f s, CPU %.2f s, %.2f s of it compiling",
                operation, workload.title, contender.name, what,
                measured.seconds, measured.cpu_seconds, measured.compile_seconds,
            )  # fmt: skip
        return found

    least, most = WARM_UPS.get(operation, (0, 0))
    cold = [contender for contender in named if contender.needs_warming_up]
    for number in range(1, most + 1):
        warmed = round_of(f"warm-up {number}", cold).values()
        if number >= least and all(map(_is_warm, warmed)):
            break
    for number in range(1, runs + 1):
        for contender, measured in round_of(f"run {number}", named).items():
            results[contender].runs.append(measured)
    return list(results.values())


def _is_warm(measured: Measurement) -> bool:
    return measured.compile_seconds <= COMPILING * measured.cpu_seconds


def measure_streams(bench: Bench, runs: int, scale: float) -> dict[str, dict[str, Any]]:
    """Measure how long rows take to arrive and how fast a backlog is read."""
    # One small topic for all: with transactions enabled, Pulsar 4.0.8 delays readers of a new topic
    # by 30 s after an earlier topic was deleted.
    topic = make_topic(bench.broker, ARRIVING)
    rows = ARRIVING.scaled(scale).messages
    answer = bench.any.ask("latency", service_url=bench.broker.service_url, topic=topic, rows=rows)
    latency = streams.Latency(**answer)
    kafka = None if bench.kafka is None else streams.Latency(**bench.kafka.latency(rows))
    topics = {
        count: make_topic(bench.broker, Workload("idle", 0, 0, partitions=count))
        for count in streams.IDLE_PARTITIONS
    }
    answer = bench.any.ask("idle", service_url=bench.broker.service_url, topics=topics)
    by_count = {int(count): part for count, part in answer["by_partitions"].items()}
    idle = streams.Idle(answer["trivial"], by_count)
    workload = BACKLOG.scaled(scale)
    with temporary_topic(bench.broker, workload) as topic:
        fill(bench.broker, workload, topic)
        sums = contenders.expected(workload)
        backlog = streams.Backlog.of(
            bench.any.ask(
                "backlog", options=bench.options(topic), expected=(sums.count, sums.values),
                runs=runs,
            )
        )  # fmt: skip
    seconds = planning(bench, runs)
    planned = f"A read of {PLANNED:,} partitions is planned in {seconds:.2f} s."
    return {
        "latency": {
            "table": streams.latency_table(latency, kafka),
            **latency.numbers(),
            "kafka": None if kafka is None else kafka.numbers(),
        },
        "idle": {"table": streams.idle_table(idle), **answer},
        "backlog": {"table": streams.backlog_table(backlog, workload), **asdict(backlog)},
        "micro_batches": typed.measure_streams(bench, runs, alternate),
        "planning": {"table": planned, "seconds": seconds},
    }


def measure_guarantees(bench: Bench, runs: int, scale: float) -> dict[str, dict[str, Any]]:
    """Measure the cost of exactly-once writing."""
    workload = exactly_once.WORKLOAD.scaled(scale)
    with contextlib.ExitStack() as stack:
        topics = [
            stack.enter_context(temporary_topic(bench.broker, workload)) for _ in range(runs + 1)
        ]
        answer = bench.any.ask(
            "guarantees", options=bench.options(topics[0]), topics=topics,
            columns=workload.columns_sql(), rows=workload.messages,
        )  # fmt: skip
    found = exactly_once.Guarantees(**answer)
    return {"guarantees": {"table": exactly_once.table(found), **answer}}


def planning(bench: Bench, runs: int) -> float:
    """Measure the seconds to plan a read of many partitions that the broker has already loaded."""
    topic = bench.broker.create_topic(f"bench-plan-{uuid.uuid4().hex[:8]}", PLANNED)
    options = bench.options(topic)
    took: list[float] = [bench.any.ask("plan", options=options) for _ in range(runs + 1)]
    return statistics.median(took[1:])


def settings(results: Results) -> str:
    """Describe the machine and the versions."""
    import pulsar
    import pyspark

    runs = sorted({len(result.runs) for result in results.all})
    counts = f"{runs[0]} to {runs[-1]}" if len(runs) > 1 else "".join(map(str, runs))
    sentences = [
        f"Medians of {counts} alternating runs after warm-ups, ratios run by run, on "
        f"{os.cpu_count()} cores shared with the broker; Python {platform.python_version()}, "
        f"PySpark {pyspark.__version__}, pulsar-client {pulsar.__version__}, Pulsar "
        f"{PULSAR_VERSION} standalone with {MEMORY_FOR_SPEED}.",
        "CPU is that of everything but the broker: driver, JVM and Python workers together.",
        "What is read goes to Spark's noop sink, with every column of every row converted.",
        f"The official client reads with a queue of {official.QUEUE_SIZE:,} in the fastest of its "
        f"ways, and sends without callbacks, {official.MAX_PENDING:,} pending, batches after "
        f"{official.PUBLISH_DELAY_MS} ms.",
        "The trivial source yields ready-made batches of the same columns, keys and nulls from a "
        "file in memory, the trivial sink counts the rows that it is given, the raw pump sends "
        "frames that were made beforehand and counts receipts; the ceiling of what Spark reads is "
        "that source, of what Spark writes the slower of that sink and the raw pump, of what is "
        "handed to Spark the raw drain.",
        "Entries have exactly the named number of messages. Sums of counts, values, keys, event "
        "times and properties were checked once for each contender, counts in every run.",
    ]
    return " ".join(sentences)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each contender")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the messages")
    names = [workload.name for workload in WORKLOADS]
    parser.add_argument("--only", nargs="*", choices=names, default=names, help="some shapes")
    parser.add_argument(
        "--operations", nargs="*", choices=OPERATIONS, default=OPERATIONS,
        help="what is measured; nothing with --keep --docs to write the page anew",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help=f"read and write {QUICK} alone")
    parser.add_argument("--alone", action="store_true", help="leave out others than ours")
    parser.add_argument(
        "--conf", action="append", default=[], type=key_and_value("a setting"),
        metavar="KEY=VALUE",
        help="a setting of Spark for our source and the trivial one; can be repeated",
    )  # fmt: skip
    parser.add_argument("--scala", help="Python of an environment with the Scala connector")
    parser.add_argument("--kafka", help="Python of an environment with Spark, to read Kafka with")
    parser.add_argument("--kafka-jars", type=Path, help="folder of jars; see benchmarks/kafka.py")
    parser.add_argument("--output", type=Path, help="folder for results.json and the picture")
    parser.add_argument("--keep", action="store_true", help="what --output has besides stays")
    parser.add_argument("--docs", action="store_true", help="put the tables into the docs")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.only, arguments.operations = [QUICK], ["read", "write"]
    return arguments


@dataclass
class Setup:
    """The brokers, and how Spark is started on the same machine."""

    broker: OwnBroker
    tls: TlsPort
    arguments: argparse.Namespace
    kafka: KafkaBroker | None = None

    @contextlib.contextmanager
    def bench(self, *, others: bool = False) -> Iterator[Bench]:
        """Fresh Spark processes: code that a JVM compiled for one shape may slow the next down."""
        conf = json.dumps(dict(self.arguments.conf))
        with contextlib.ExitStack() as stack:
            ours = {
                name: stack.enter_context(SparkProcess(implementation=name, conf=conf))
                for name in implementations()
            }
            bench = Bench(self.broker, ours, self.tls, alone=self.arguments.alone)
            stack.callback(shutil.rmtree, bench.folder, ignore_errors=True)
            if others and self.arguments.scala:
                bench.scala = stack.enter_context(SparkProcess(self.arguments.scala))
            if others and self.kafka is not None:
                jars = connector_settings(self.arguments.kafka_jars)
                spark = stack.enter_context(SparkProcess(self.arguments.kafka, conf=jars))
                bench.kafka = Kafka(self.kafka, spark)
            yield bench


@contextlib.contextmanager
def started(arguments: argparse.Namespace) -> Iterator[Setup]:
    """Start the brokers that are needed."""
    with contextlib.ExitStack() as stack:
        tls = TlsPort(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        broker = OwnBroker(prepare(), tls.broker_settings, for_speed=True)
        stack.enter_context(contextlib.closing(broker))
        broker.start()
        setup = Setup(broker, tls, arguments)
        if arguments.kafka:
            kafka = KafkaBroker(arguments.kafka_jars)
            setup.kafka = stack.enter_context(contextlib.closing(kafka))
        yield setup


@contextlib.contextmanager
def kept(broker: OwnBroker, workload: Workload, topic: str) -> Iterator[None]:
    """Keep a topic in memory and the broker on one core, if the workload says so."""
    with contextlib.ExitStack() as stack:
        if not workload.stored:
            stack.enter_context(kept_in_memory(broker, topic))
        if workload.one_core:
            stack.enter_context(on_one_core(broker.pid))
        yield


def measure_shapes(setup: Setup, results: Results) -> None:
    """Read and write each requested shape; keep each result, in case a later one fails."""
    arguments = setup.arguments
    for workload in (w for w in WORKLOADS if w.name in arguments.only):
        scaled = workload.scaled(arguments.scale)
        if "read" in arguments.operations:
            with (
                setup.bench(others=True) as bench,
                temporary_topic(bench.broker, scaled) as topic,
                kept(setup.broker, scaled, topic),
            ):
                fill(bench.broker, scaled, topic)
                for name, value in contenders.decoding(bench, scaled, topic).items():
                    results.decoding[workload.name, name] = value
                named = contenders.readers(bench, scaled, topic)
                results.put(alternate("read", scaled, named, arguments.runs))
                save(arguments, results)
        # For writing, these would be different shapes.
        if "write" in arguments.operations and not scaled.stored:
            with setup.bench() as bench:
                named = contenders.writers(bench, scaled)
                results.put(alternate("write", scaled, named, arguments.runs))
                save(arguments, results)


def measure_clients(setup: Setup, results: Results) -> None:
    """Receive and send shapes with our client and with the official one."""
    arguments, names = setup.arguments, implementations()
    for workload in (w for w in WORKLOADS if w.name in OF_CLIENTS and w.name in arguments.only):
        scaled = workload.scaled(arguments.scale)
        with (
            temporary_topic(setup.broker, scaled) as topic,
            kept_in_memory(setup.broker, topic),
        ):
            fill(setup.broker, scaled, topic)
            for way in contenders.RECEIVES:
                named = contenders.receivers(setup.broker, scaled, topic, way, names)
                results.put(alternate(way, scaled, named, arguments.runs))
        for way in contenders.SENDS:
            part = scaled.scaled(contenders.PART_OF_MESSAGES.get(way, 1.0))
            named = contenders.senders(setup.broker, part, way, names)
            results.put(alternate(way, part, named, arguments.runs))
        save(arguments, results)


def save(arguments: argparse.Namespace, results: Results) -> None:
    """Save the results so far, if requested."""
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / RESULTS).write_text(results.as_json() + "\n", "utf-8")


def main() -> None:
    """Run the requested benchmarks."""
    arguments = parse()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    begun = time.monotonic()
    results = Results()
    if arguments.keep:
        results.load(arguments.output / RESULTS)
    if set(arguments.operations) - {"codec"}:
        with started(arguments) as setup:
            measure_shapes(setup, results)
            if "typed" in arguments.operations:
                with setup.bench(others=True) as bench:
                    found = typed.measure(bench, arguments.runs, arguments.scale, alternate)
                    results.others["typed"] = found
                save(arguments, results)
            if "client" in arguments.operations:
                measure_clients(setup, results)
            if "stream" in arguments.operations:
                with setup.bench(others=True) as bench:
                    results.others |= measure_streams(bench, arguments.runs, arguments.scale)
            if "guarantee" in arguments.operations:
                with setup.bench() as bench:
                    results.others |= measure_guarantees(bench, arguments.runs, arguments.scale)
    if "codec" in arguments.operations:
        compared = codecs.measure(int(codecs.RECORDS * arguments.scale))
        results.others["codecs"] = {
            "table": codecs.table(compared), "formats": list(map(asdict, compared)),
        }  # fmt: skip
        arrivals = codecs_arrivals.measure(int(codecs_arrivals.RECORDS * arguments.scale))
        results.others["arrivals"] = {
            "table": codecs_arrivals.table(arrivals), "arrivals": list(map(asdict, arrivals)),
        }  # fmt: skip
    tables = report.sections(results) if results.all else []
    if results.others:
        tables += ["## Streams and schemas", *(each["table"] for each in results.others.values())]
    text = "\n\n".join([settings(results), *tables])
    print(text)
    log.info("took %.0f s", time.monotonic() - begun)
    save(arguments, results)
    if arguments.output:
        report.picture(results, arguments.output / "benchmarks.png")
        report.overview(results, arguments.output / "overview.png")
    if arguments.docs:
        report.put_between_markers(FULL_PAGE, text)
        for page in PAGES:
            report.put_between_markers(page, report.short(results))


if __name__ == "__main__":
    main()
