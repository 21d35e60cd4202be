"""Each shape's targets, and how near the results are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.contenders import (
    CLIENT,
    DRAIN,
    HANDED,
    KAFKA,
    OFFICIAL,
    OURS,
    OVER_TLS,
    PUMP,
    RECEIVES,
    SCALA,
    SENDS,
    TRIVIAL,
)
from benchmarks.results import Results

CPU_OF_SCALA = {
    "batch1000": 0.5, "batch10": 0.5, "unbatched100": 0.6, "unbatched1k": 0.6,
    "four": 0.6, "lz4": 0.7, "turns": 0.6, "properties": 0.5, "large": 1.0,
    "unbatched_properties": 0.6, "stored1000": 0.5, "stored10": 0.5, "stored1k": 0.6,
}  # fmt: skip
TIMES_SCALA = {
    "batch1000": 2.0,
    "batch10": 2.0,
    "four": 1.5,
    "lz4": 1.3,
    "properties": 2.0,
    "large": 1.0,
}
TIMES_SCALA_UNBATCHED = 1.2
OF_DRAIN_STORED = 0.85
OF_TRIVIAL = {"batch1000": 0.85}
CPU_OVER_TLS = 1.25
HANDED_OF_DRAIN = 0.6
WRITE_MICROSECONDS = 5.0
TIMES_OFFICIAL_WRITE = 3.0
# Pure Python is the plain reference: it is held against the official client only.
PYTHON_CPU_OF_OFFICIAL, PYTHON_CPU_OF_OFFICIAL_UNBATCHED = 1.0, 1.5
PYTHON_TIMES_OFFICIAL_WRITE, PYTHON_TIMES_OFFICIAL_WRITE_UNBATCHED = 1.0, 0.7
LARGE_TIMES_OFFICIAL = 0.95


@dataclass(frozen=True)
class Target:
    """A result and its bound."""

    shape: str
    what: str
    value: float
    bound: float
    at_most: bool = False
    note: str = ""

    @property
    def margin(self) -> float:
        """How far it is within the bound; below 1 it misses the target."""
        return self.bound / self.value if self.at_most else self.value / self.bound


def targets(results: Results, shape: str) -> list[Target]:
    """All results that targets are computed from."""
    return [
        *_whole_reads(results, shape),
        *_parts(results, shape),
        *_writes(results, shape),
        *_clients(results, shape),
    ]


def _whole_reads(results: Results, shape: str) -> Iterator[Target]:
    for name in results.implementations:
        ours = results.find("read", shape, OURS, "all", name)
        if ours is None:
            continue
        scala, kafka = results.peer(SCALA, shape), results.peer(KAFKA, shape)
        fastest = name == "native"
        if kafka is not None and fastest:
            what = f"{name}: CPU per row, of Spark's Kafka source"
            yield Target(shape, what, ours.cpu / kafka.cpu, 1.0, at_most=True)
        if scala is not None and fastest:
            what = f"{name}: CPU per row, of the Scala connector"
            yield Target(shape, what, ours.cpu / scala.cpu, CPU_OF_SCALA[shape], at_most=True)
            yield _wall(results, shape, name, ours.rows_per_second / scala.rows_per_second)
        trivial = results.find("read", shape, TRIVIAL, "all")
        if trivial is not None and fastest and shape in OF_TRIVIAL:
            what = f"{name}: speed, of the trivial Arrow source"
            yield Target(shape, what, ours.times_as_fast_as(trivial), OF_TRIVIAL[shape])
        over_tls = results.find("read", shape, OVER_TLS, "all", name)
        if over_tls is not None:
            what = f"{name}: CPU per row over TLS, of that without"
            yield Target(shape, what, over_tls.cpu / ours.cpu, CPU_OVER_TLS, at_most=True)
        official = results.find("read", shape, OFFICIAL, "all")
        # Spark's own cost for large messages is less than what the official client needs without
        # it.
        if official is not None and fastest and shape != "large":
            what = f"{name}: speed of reading, of the official client"
            times = Target(shape, what, ours.times_as_fast_as(official), 1.0)
            if _by_the_drain(results, shape, name, times) is times:
                yield times
        if official is not None and not fastest and shape != "large":
            what = f"{name}: CPU per row, of the official client"
            batched = ours.workload.batch > 1
            bound = PYTHON_CPU_OF_OFFICIAL if batched else PYTHON_CPU_OF_OFFICIAL_UNBATCHED
            yield Target(shape, what, ours.cpu / official.cpu, bound, at_most=True)


def _wall(results: Results, shape: str, name: str, times_scala: float) -> Target:
    """Speed relative to the Scala connector, or to the raw drain if the broker is the limit."""
    bound = TIMES_SCALA.get(shape, TIMES_SCALA_UNBATCHED)
    scala = Target(shape, f"{name}: speed, of the Scala connector", times_scala, bound)
    return _by_the_drain(results, shape, name, scala)


def _by_the_drain(results: Results, shape: str, name: str, target: Target) -> Target:
    """Return `target`, or that of the raw drain's speed, whichever is reached by more.

    A stored topic comes as fast as the broker fetches it, whoever reads it.
    """
    ours = results.find("read", shape, OURS, "all", name)
    drain = results.find("read", shape, DRAIN)
    if ours is None or drain is None or not ours.workload.stored:
        return target
    what = f"{name}: speed, of the raw drain"
    of_drain = Target(shape, what, ours.times_as_fast_as(drain), OF_DRAIN_STORED)
    return max(target, of_drain, key=lambda each: each.margin)


def _parts(results: Results, shape: str) -> Iterator[Target]:
    drain = results.find("read", shape, DRAIN)
    official = results.find("read", shape, OFFICIAL, "all")
    for name in results.implementations:
        handed = results.find("read", shape, HANDED, "all", name)
        if handed is None:
            continue
        # From memory a broker delivers more than any reader can take.
        if name == "native" and handed.workload.stored and drain is not None:
            what = f"{name}: handed to Spark, of the raw drain"
            yield Target(shape, what, handed.times_as_fast_as(drain), HANDED_OF_DRAIN)
        if shape == "large" and official is not None:
            what = f"{name}: handed to Spark, of the official client"
            yield Target(shape, what, handed.times_as_fast_as(official), LARGE_TIMES_OFFICIAL)


def _writes(results: Results, shape: str) -> Iterator[Target]:
    for name in results.implementations:
        ours = results.find("write", shape, OURS, implementation=name)
        official = results.find("write", shape, OFFICIAL)
        if ours is None or official is None:
            continue
        times = ours.times_as_fast_as(official)
        what = f"{name}: speed of writing, of the official client"
        pump = results.find("write", shape, PUMP)
        note = "" if pump is None else f"{ours.times_as_fast_as(pump):.0%} of the raw pump"
        if shape == "large":
            yield Target(shape, what, times, LARGE_TIMES_OFFICIAL, note=note)
        elif name == "python":
            batched = ours.workload.batch > 1
            bound = (
                PYTHON_TIMES_OFFICIAL_WRITE if batched else PYTHON_TIMES_OFFICIAL_WRITE_UNBATCHED
            )
            yield Target(shape, what, times, bound, note=note)
        elif ours.workload.batch > 1:
            yield Target(shape, what, times, TIMES_OFFICIAL_WRITE, note=note)
        else:
            what = f"{name}: µs of CPU to write a row"
            yield Target(shape, what, ours.cpu, WRITE_MICROSECONDS, at_most=True)


def _clients(results: Results, shape: str) -> Iterator[Target]:
    for operation in (*RECEIVES, *SENDS):
        columns = "" if operation in SENDS else "value"
        official = results.find(operation, shape, OFFICIAL, columns)
        ours = results.find(operation, shape, CLIENT, columns, "native")
        if ours is not None and official is not None:
            what = f"native: speed of {operation}, of the official client"
            yield Target(shape, what, ours.times_as_fast_as(official), 1.0)
