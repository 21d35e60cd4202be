"""The results as a table, as JSON and as a picture."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measure import Measurement
from benchmarks.workloads import Workload

CEILINGS = {
    "pulsar_spark, value": "trivial Arrow source, value",
    "pulsar_spark, all columns": "trivial Arrow source, all columns",
    "pulsar_spark, handed to Spark": "raw drain",
    "pulsar_spark": "trivial Arrow sink",
}
"""Contenders, and what they cannot be faster than: less work of the same kind."""

MARKERS = ("<!-- benchmark:start -->", "<!-- benchmark:end -->")


@dataclass
class Result:
    """All runs of one contender on one workload."""

    operation: str
    workload: Workload
    contender: str
    runs: list[Measurement] = field(default_factory=list)

    def median(self, attribute: str) -> float:
        """The median of a figure over the runs."""
        return statistics.median(float(getattr(run, attribute)) for run in self.runs)

    @property
    def rows_per_second(self) -> float:
        """Messages a second, from the median time."""
        return self.workload.messages / self.median("seconds")

    @property
    def megabytes_per_second(self) -> float:
        """Megabytes (10^6) of values a second."""
        return self.rows_per_second * self.workload.size / 1e6


def ratio(result: Result, base: Result) -> float:
    """How many times faster `result` was, run by run, as a median."""
    pairs = zip(result.runs, base.runs, strict=True)
    return statistics.median(b.seconds / a.seconds for a, b in pairs)


def table(results: list[Result], base: str) -> str:
    """A Markdown table, with the speeds compared to the contender named `base` and to ceilings."""
    lines = [
        f"| | rows/s | MB/s | CPU s per million rows | peak Python memory | × {base} "
        "| of the ceiling |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.operation, result.workload.title), []).append(result)
    for (operation, title), group in groups.items():
        lines.append(f"| **{operation}: {title}** | | | | | | |")
        bases = [result for result in group if result.contender.startswith(base)]
        by_name = {result.contender: result for result in group}
        for result in group:
            cpu = result.median("cpu_seconds") / result.workload.messages * 1e6
            peak = result.median("peak_python_bytes") / 1e6
            compared = f"{ratio(result, bases[0]):.2f}" if bases else ""
            ceiling = by_name.get(CEILINGS.get(result.contender, ""))
            part = f"{ratio(result, ceiling):.0%}" if ceiling is not None else ""
            lines.append(
                f"| {result.contender} | {result.rows_per_second:,.0f} "
                f"| {result.megabytes_per_second:,.0f} | {cpu:.2f} | {peak:,.0f} MB "
                f"| {compared} | {part} |"
            )
    return "\n".join(lines)


def as_json(results: list[Result], more: list[dict[str, object]]) -> str:
    """Every run of every contender, and `more` rows."""
    rows: list[dict[str, object]] = [
        {
            "operation": result.operation,
            "workload": result.workload.title,
            "contender": result.contender,
            "runs": [
                {
                    "seconds": round(run.seconds, 4),
                    "cpu_seconds": round(run.cpu_seconds, 3),
                    "peak_python_bytes": run.peak_python_bytes,
                }
                for run in result.runs
            ],
        }
        for result in results
    ]
    return json.dumps([*rows, *more], indent=1)


def picture(results: list[Result], path: Path) -> None:
    """Bars of MB/s, one panel per operation and workload; no picture of nothing."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    titles = list(dict.fromkeys((r.operation, r.workload.title) for r in results))
    if not titles:
        return
    columns = 3
    rows = -(-len(titles) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(16, 3.2 * rows), squeeze=False)
    flat = [axis for row in axes for axis in row]
    for axis, key in zip(flat, titles, strict=False):
        group = [r for r in results if (r.operation, r.workload.title) == key]
        names = [result.contender for result in group]
        speeds = [result.megabytes_per_second for result in group]
        colors = ["#1f77b4" if name.startswith("pulsar_spark") else "#b0b0b0" for name in names]
        axis.barh(names, speeds, color=colors)
        axis.invert_yaxis()
        axis.set_title(f"{key[0]}: {key[1]}", fontsize=9)
        axis.set_xlabel("MB/s", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in flat[len(titles) :]:
        axis.set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def put_between_markers(path: Path, text: str) -> None:
    """Replace what stands between the markers of a file."""
    start, end = MARKERS
    whole = path.read_text()
    pattern = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(whole):
        raise ValueError(f"{path} has no {start} … {end}")
    path.write_text(pattern.sub(lambda _: f"{start}\n{text}\n{end}", whole))
