"""Contenders: everything that reads or writes a topic, each with a name and a way to run it."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks import official, pump
from benchmarks.drain import Drain
from benchmarks.kafka import Kafka
from benchmarks.measure import Measurement
from benchmarks.spark_process import SparkProcess
from benchmarks.tls import TlsPort
from benchmarks.topics import (
    WrongResult,
    check_count,
    partitions,
    run_official,
    temporary_topic,
)
from benchmarks.workloads import Sums, Workload
from tests.support.real_broker import RealBroker

SCHEMAS = {
    "all": "value binary, __key binary, __topic string, __messageId binary, "
    "__publishTime timestamp, __eventTime timestamp, __messageProperties map<string,string>",
    "value": "value binary",
}
_DECODED_BYTES = 10_000_000
_DECODINGS = 5

Run = Callable[[], Measurement]


@dataclass(frozen=True)
class Contender:
    """Which program, with which columns ("all", "value"), and for ours which implementation."""

    kind: str
    columns: str = ""
    implementation: str = ""
    note: str = ""

    @property
    def needs_warming_up(self) -> bool:
        """Whether it has a JVM, whose first rounds compile."""
        return self.kind not in (OFFICIAL, CLIENT, DRAIN, PUMP)

    @property
    def name(self) -> str:
        """The name in tables."""
        implementation = f" {self.implementation}" if self.implementation else ""
        note = f" ({self.note})" if self.note else ""
        columns = {"all": ", seven columns", "value": ", value alone", "": ""}[self.columns]
        return f"{self.kind}{implementation}{note}{columns}"


OFFICIAL = "official client"
OURS = "pulsar_spark"
OVER_TLS = "pulsar_spark over TLS"
CLIENT = "PulsarClient"
HANDED = "handed to Spark by"
DRAIN = "raw drain"
PUMP = "raw pump"
TRIVIAL = "trivial Arrow source"
TRIVIAL_SINK = "trivial Arrow sink"
SCALA = "Scala connector"
KAFKA = "Spark's Kafka source"


@dataclass
class Bench:
    """The broker, and the Spark processes: one per implementation, and for other connectors."""

    broker: RealBroker
    ours: dict[str, SparkProcess]
    tls: TlsPort
    scala: SparkProcess | None = None
    kafka: Kafka | None = None
    alone: bool = False
    """Only run our own contenders, the raw drain and the raw pump."""
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="pulsar-bench-")))

    @property
    def any(self) -> SparkProcess:
        """A Spark process for jobs that do not depend on the implementation."""
        return next(iter(self.ours.values()))

    def options(self, topic: str) -> dict[str, str]:
        """The options of our source and sink."""
        return {"service.url": self.broker.service_url, "topic": topic}


@cache
def expected(workload: Workload) -> Sums:
    """The sums over all messages of a workload."""
    return workload.sums()


def check(workload: Workload, found: Mapping[str, int], only: tuple[str, ...] = ()) -> None:
    """Raise WrongResult unless these are the sums of the workload's messages."""
    wanted = asdict(expected(workload))
    for name in only or wanted:
        if found[name] != wanted[name]:
            text = f"{name} is {found[name]} instead of {wanted[name]}"
            raise WrongResult(f"{workload.title}: {text}")


# --- reading ----------------------------------------------------------------------------------


def readers(bench: Bench, workload: Workload, topic: str) -> dict[Contender, Run]:
    """Return all contenders that read a topic; of a `stored` one only those that need Pulsar."""
    found: dict[Contender, Run] = {}
    if not bench.alone:
        found |= _official(bench, workload, topic)
    for name, process in bench.ours.items():
        found |= _ours(bench, name, process, workload, topic)
    found |= _scala(bench, workload, topic)
    if not workload.stored:
        if not bench.alone:
            found |= _trivial(bench, workload, topic)
        found |= _kafka(bench, workload)
    names = partitions(topic, workload)
    sizes = wire_bytes(bench, workload, topic)
    found[Contender(DRAIN)] = partial(drain, bench.broker.service_url, names, sizes)
    return found


def _official(bench: Bench, workload: Workload, topic: str) -> dict[Contender, Run]:
    way = best_way(bench, workload, topic)
    url = bench.broker.service_url
    return {
        Contender(OFFICIAL, columns, note=way): partial(
            run_official, url, way, workload, topic, columns
        )
        for columns in SCHEMAS
    }


def best_way(bench: Bench, workload: Workload, topic: str) -> str:
    """The official client's fastest way to read this topic."""

    def seconds(way: str) -> float:
        url = bench.broker.service_url
        return run_official(url, way, workload, topic).seconds

    return min(official.ways(workload), key=seconds)


def _ours(
    bench: Bench, name: str, process: SparkProcess, workload: Workload, topic: str
) -> dict[Contender, Run]:
    frames: dict[str, dict[str, Any]] = {
        "all": {"source": "pulsar", "options": bench.options(topic)},
        "value": {
            "source": "pulsar", "options": bench.options(topic), "schema": SCHEMAS["value"],
        },
    }  # fmt: skip
    check(workload, process.ask("sums", **frames["all"]))
    found: dict[Contender, Run] = {
        Contender(OURS, columns, name): partial(process.measure, "read", **frame)
        for columns, frame in frames.items()
    }
    if workload.over_tls:
        frame = {"source": "pulsar", "options": {"topic": topic, **bench.tls.options}}
        found[Contender(OVER_TLS, "all", name)] = partial(process.measure, "read", **frame)
    found[Contender(HANDED, "all", name)] = partial(handed, bench, process, workload, topic)
    return found


def handed(bench: Bench, process: SparkProcess, workload: Workload, topic: str) -> Measurement:
    """Our source up to the point where record batches are passed to Spark."""
    answer = process.ask("handed", options=bench.options(topic), schema=SCHEMAS["all"])
    rows = answer.pop("rows")
    if rows != workload.messages:
        raise WrongResult(f"{workload.title}: {rows:,} rows were handed on")
    return Measurement(**answer)


def _trivial(bench: Bench, workload: Workload, topic: str) -> dict[Contender, Run]:
    found: dict[Contender, Run] = {}
    for columns, schema in SCHEMAS.items():
        path = str(bench.folder / f"{workload.name}-{columns}.arrow")
        bench.any.ask("handed", options=bench.options(topic), schema=schema, keep=path)
        frame = {
            "source": "trivial",
            "options": {"file": path, "tasks": str(workload.partitions)},
            "schema": schema,
        }
        check(workload, bench.any.ask("sums", **frame), ("count", "values"))
        found[Contender(TRIVIAL, columns)] = partial(bench.any.measure, "read", **frame)
    return found


def _scala(bench: Bench, workload: Workload, topic: str) -> dict[Contender, Run]:
    if bench.scala is None:
        return {}
    frame = scala_frame(bench, topic)
    check(workload, bench.scala.ask("sums", **frame), ("count", "values", "keys"))
    return {Contender(SCALA, "all"): partial(bench.scala.measure, "read", **frame)}


def scala_frame(bench: Bench, topic: str) -> dict[str, Any]:
    """How the Scala connector reads a topic."""
    options = {
        **bench.options(topic),
        "admin.url": bench.broker.admin_url,
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
        "pulsar.reader.receiverQueueSize": "10000",
    }
    return {"source": "pulsar", "options": options}


def _kafka(bench: Bench, workload: Workload) -> dict[Contender, Run]:
    if bench.kafka is None or not bench.kafka.has(workload):
        return {}
    frame = bench.kafka.frame(bench.kafka.fill(workload))
    check(workload, bench.kafka.spark.ask("sums", **frame), ("count", "values"))
    return {Contender(KAFKA, "all"): partial(bench.kafka.spark.measure, "read", **frame)}


def decoding(bench: Bench, workload: Workload, topic: str) -> dict[str, float]:
    """Return the µs of CPU per decoded message, by implementation. Raises WrongResult.

    The first partition's first messages suffice.
    """
    name = partitions(topic, workload)[0]
    path = bench.folder / f"{workload.name}.frames"
    connection = Drain(bench.broker.service_url, name)
    try:
        count = min(workload.messages // workload.partitions // 2, _DECODED_BYTES // workload.size)
        path.write_bytes(b"".join(connection.frames(count)))
    finally:
        connection.close()
    found = {}
    for implementation, process in bench.ours.items():
        runs = [process.ask("decode", topic=name, frames=str(path)) for _ in range(_DECODINGS)]
        if any(run["slow_frames"] for run in runs):
            raise WrongResult(f"{workload.title}: {implementation} gave frames back as rare ones")
        found[implementation] = statistics.median(r["cpu_seconds"] / r["rows"] * 1e6 for r in runs)
    return found


def wire_bytes(bench: Bench, workload: Workload, topic: str) -> list[int]:
    """Return each partition's size on the wire."""
    sizes = []
    for name in partitions(topic, workload):
        count = bench.broker.admin("GET", f"{name.replace('://', '/')}/stats")["msgInCounter"]
        connection = Drain(bench.broker.service_url, name)
        try:
            sizes.append(connection.count_bytes(count))
        finally:
            connection.close()
    return sizes


def drain(service_url: str, names: list[str], sizes: list[int]) -> Measurement:
    """A raw drain of a topic's partitions, one after the other, as our source reads them."""
    result = Measurement()
    for name, size in zip(names, sizes, strict=True):
        connection = Drain(service_url, name)
        try:
            seconds, cpu_seconds = connection.run(size)
        finally:
            connection.close()
        result.seconds += seconds
        result.cpu_seconds += cpu_seconds
    return result


# --- clients ----------------------------------------------------------------------------------

RECEIVES = ("receive", "batch_receive")
SENDS = {"send_async": "write", "send_async with a callback": "write_with_callback"}
# The official client needs over a minute for a million callbacks.
PART_OF_MESSAGES = {"send_async with a callback": 0.1}
"""Ways to send, and what the program of both clients calls them."""


def receivers(
    broker: RealBroker, workload: Workload, topic: str, way: str, implementations: Iterable[str]
) -> dict[Contender, Run]:
    """Our client and the official one, which receive a topic's messages in one way."""
    named = [(OFFICIAL, ""), *((CLIENT, name) for name in implementations)]
    url = broker.service_url
    return {
        Contender(kind, columns, name): partial(
            run_official, url, way, workload, topic, columns, implementation=name
        )
        for columns in SCHEMAS
        for kind, name in named
    }


def senders(
    broker: RealBroker, workload: Workload, way: str, implementations: Iterable[str]
) -> dict[Contender, Run]:
    """Our client and the official one, which send messages one way, each time to a new topic."""

    def run(name: str) -> Measurement:
        with temporary_topic(broker, workload) as topic:
            url = broker.service_url
            measurement = run_official(url, SENDS[way], workload, topic, implementation=name)
            check_count(broker, workload, topic)
        return measurement

    named = [(OFFICIAL, ""), *((CLIENT, name) for name in implementations)]
    return {Contender(kind, implementation=name): partial(run, name) for kind, name in named}


# --- writing ----------------------------------------------------------------------------------

SPARK_BATCH_ROWS = 10_000
"""Spark's default."""
RECORD_BATCH_BYTES = 16_000_000


def writers(bench: Bench, workload: Workload) -> dict[Contender, Run]:
    """Return all contenders that write a workload, each time to a new topic."""

    def counted(write: Callable[[str], Measurement]) -> Run:
        def run() -> Measurement:
            with temporary_topic(bench.broker, workload) as topic:
                measurement = write(topic)
                check_count(bench.broker, workload, topic)
            return measurement

        return run

    found: dict[Contender, Run] = {}
    if not bench.alone:
        found[Contender(OFFICIAL, note="send_async")] = counted(
            lambda topic: run_official(bench.broker.service_url, "write", workload, topic)
        )
        found[Contender(TRIVIAL_SINK)] = partial(
            bench.any.measure, "write", **_rows(workload), source="trivial",
            options={"rows": str(workload.messages)},
        )  # fmt: skip
    for name, process in bench.ours.items():
        write = partial(_write, bench, process, workload)
        with temporary_topic(bench.broker, workload) as topic:
            write(topic)
            frame = {"source": "pulsar", "options": bench.options(topic)}
            check(workload, process.ask("sums", **frame))
        found[Contender(OURS, implementation=name)] = counted(write)
    if not workload.properties:
        found[Contender(PUMP)] = counted(
            lambda topic: pump.run(bench.broker.service_url, workload, partitions(topic, workload))
        )
    return found


def _write(bench: Bench, process: SparkProcess, workload: Workload, topic: str) -> Measurement:
    options = {
        **bench.options(topic),
        "pulsar.producer.batchingEnabled": str(workload.batch > 1).lower(),
        "pulsar.producer.batchingMaxMessages": str(workload.batch),
        "pulsar.producer.batchingMaxBytes": str(official.MAX_BATCH_BYTES),
        "pulsar.producer.compressionType": workload.compression,
    }
    return process.measure("write", **_rows(workload), source="pulsar", options=options)


def _rows(workload: Workload) -> dict[str, Any]:
    """Rows made by Spark, in one task for each partition and producer.

    As docs/sizing.md advises, large rows come in smaller record batches than Spark's default.
    """
    return {
        "messages": workload.messages,
        "tasks": workload.partitions * workload.producers,
        "columns": workload.columns_sql(),
        "batch_rows": min(SPARK_BATCH_ROWS, RECORD_BATCH_BYTES // workload.size),
    }
