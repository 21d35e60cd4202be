"""All runs of all contenders, and statistics of them."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.contenders import CLIENT, OURS, Contender
from benchmarks.measure import Measurement
from benchmarks.workloads import ALL, Workload

PEERS = Path(__file__).parent / "peers.json"
"""Results of connectors that are not installed here; see docs/benchmarks.md."""


@dataclass
class Result:
    """All runs of one contender on one workload."""

    operation: str
    workload: Workload
    contender: Contender
    runs: list[Measurement] = field(default_factory=list)

    def median(self, attribute: str) -> float:
        """The median of a value over the runs."""
        return statistics.median(float(getattr(run, attribute)) for run in self.runs)

    @property
    def rows_per_second(self) -> float:
        """Messages per second, from the median time."""
        return self.workload.messages / self.median("seconds")

    @property
    def megabytes_per_second(self) -> float:
        """Megabytes (10^6) of values per second."""
        return self.rows_per_second * self.workload.size / 1e6

    @property
    def cpu(self) -> float:
        """Microseconds of CPU per row."""
        return self.median("cpu_seconds") / self.workload.messages * 1e6

    def times_as_fast_as(self, other: Result) -> float:
        """How many times faster this was: the median over runs."""
        pairs = zip(self.runs, other.runs, strict=True)
        return statistics.median(b.seconds / a.seconds for a, b in pairs)


@dataclass(frozen=True)
class Figure:
    """Another connector's results for all columns, measured earlier."""

    rows_per_second: float
    cpu: float


@dataclass
class Results:
    """The measurements, and the results of peers."""

    all: list[Result] = field(default_factory=list)
    decoding: dict[tuple[str, str], float] = field(default_factory=dict)
    """Microseconds to decode a message, by workload and implementation."""
    others: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Results that are not about shapes, by name: a table and its numbers."""

    def __post_init__(self) -> None:
        self._peers: dict[str, Any] = json.loads(PEERS.read_text("utf-8"))

    def find(
        self, operation: str, shape: str, kind: str, columns: str = "", implementation: str = ""
    ) -> Result | None:
        """A contender's result, whatever its note; None if it was not measured."""
        wanted = (operation, shape, kind, columns, implementation)
        return next((result for result in self.all if _key(result) == wanted), None)

    def peer(self, kind: str, shape: str) -> Figure | None:
        """The result of the Scala connector or Spark's Kafka source for a shape."""
        measured = self.find("read", shape, kind, "all")
        if measured is not None:
            return Figure(measured.rows_per_second, measured.cpu)
        return self.noted(kind)[1].get(shape)

    def noted(self, kind: str) -> tuple[str, dict[str, Figure]]:
        """How a peer's earlier results were measured, and the results by shape."""
        peer = self._peers[kind]
        return peer["measured"], {shape: Figure(**each) for shape, each in peer["shapes"].items()}

    @property
    def implementations(self) -> list[str]:
        """Our measured implementations, the faster one first."""
        names = {r.contender.implementation for r in self.all if r.contender.kind in (OURS, CLIENT)}
        return sorted(names)  # "native" comes before "python".

    def workloads(self) -> list[Workload]:
        """The shapes that were read or written."""
        found = {result.workload.name: result.workload for result in self.all}
        return [found[workload.name] for workload in ALL if workload.name in found]

    def of(self, operation: str, shape: str) -> list[Result]:
        """All results of a table."""
        return [r for r in self.all if (r.operation, r.workload.name) == (operation, shape)]

    def put(self, measured: list[Result]) -> None:
        """Add results of one operation on one shape, replacing earlier ones."""
        new = {(result.operation, result.workload.name) for result in measured}
        self.all = [r for r in self.all if (r.operation, r.workload.name) not in new] + measured

    def load(self, path: Path) -> None:
        """Read the results of an earlier run."""
        found = json.loads(path.read_text("utf-8"))
        self.all = [_result(row) for row in found["runs"]]
        self.others = found["others"]
        self.decoding = {
            (row["workload"], row["implementation"]): row["microseconds"]
            for row in found["decoding"]
        }

    def as_json(self) -> str:
        """Every run of every contender, and everything else."""
        decoding = [
            {"workload": shape, "implementation": name, "microseconds": value}
            for (shape, name), value in self.decoding.items()
        ]
        runs = [_row(result) for result in self.all]
        return json.dumps({"runs": runs, "decoding": decoding, "others": self.others}, indent=1)


def _key(result: Result) -> tuple[str, str, str, str, str]:
    who = result.contender
    return (result.operation, result.workload.name, who.kind, who.columns, who.implementation)


def _row(result: Result) -> dict[str, object]:
    return {
        "operation": result.operation,
        "workload": result.workload.name,
        "messages": result.workload.messages,
        "contender": asdict(result.contender),
        "runs": [
            {
                "seconds": run.seconds,
                "cpu_seconds": run.cpu_seconds,
                "peak_python_bytes": run.peak_python_bytes,
            }
            for run in result.runs
        ],
    }


def _result(row: dict[str, Any]) -> Result:
    (shape,) = (workload for workload in ALL if workload.name == row["workload"])
    return Result(
        row["operation"],
        replace(shape, messages=row["messages"]),
        Contender(**row["contender"]),
        [Measurement(**run) for run in row["runs"]],
    )
