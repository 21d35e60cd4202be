"""The results as tables, as JSON and as a picture."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from benchmarks.contenders import (
    DRAIN,
    HANDED,
    KAFKA,
    OFFICIAL,
    OURS,
    SCALA,
    TRIVIAL,
    TRIVIAL_SINK,
    Contender,
)
from benchmarks.results import Figure, Result, Results
from benchmarks.targets import Target, targets
from benchmarks.workloads import Workload

MARKERS = ("<!-- benchmark:start -->", "<!-- benchmark:end -->")


def worst_first(results: Results) -> list[Workload]:
    """The shapes, beginning with the one that is furthest from a target of its own."""

    def worst(workload: Workload) -> float:
        found = targets(results, workload.name)
        return min((target.margin for target in found), default=float("inf"))

    return sorted(results.workloads(), key=worst)


def sections(results: Results) -> list[str]:
    """All tables about reading and writing, as Markdown."""
    shapes = worst_first(results)
    return [
        "## Reading, beside others\n\nAll seven columns.",
        reading_table(results, shapes),
        peers_table(results, shapes),
        "## What is to be reached",
        targets_table(results, shapes),
        "## Decoding alone",
        decoding_table(results, shapes),
        "## Every contender",
        *[
            contenders_table(results, operation, shape)
            for shape in shapes
            for operation in ("read", "write")
            if results.of(operation, shape.name)
        ],
    ]


def reading_table(results: Results, shapes: Iterable[Workload]) -> str:
    """Rows a second and µs of CPU for a row, ours and others', with all columns."""
    names = results.implementations
    kinds = [*(f"{OURS} {name}" for name in names), OFFICIAL, SCALA, KAFKA, TRIVIAL]
    lines = [
        "| rows/s · CPU µs per row | " + " | ".join(kinds) + " |",
        "|---|" + "---:|" * len(kinds),
    ]
    for shape in shapes:
        found: list[Result | Figure | None] = [
            *(results.find("read", shape.name, OURS, "all", name) for name in names),
            results.find("read", shape.name, OFFICIAL, "all"),
            results.peer(SCALA, shape.name),
            results.peer(KAFKA, shape.name),
            results.find("read", shape.name, TRIVIAL, "all"),
        ]
        if any(isinstance(each, Result) for each in found):
            lines.append(f"| {shape.title} | {' | '.join(map(_cell, found))} |")
    return "\n".join(lines)


def _cell(figure: Result | Figure | None) -> str:
    if figure is None:
        return "–"
    return f"{figure.rows_per_second:,.0f} · {_digits(figure.cpu)}"


def _digits(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def peers_table(results: Results, shapes: Iterable[Workload]) -> str:
    """What others needed at another time, which stands for them where they were not measured."""
    noted = {kind: results.noted(kind) for kind in (SCALA, KAFKA)}
    how = "; ".join(f"{kind}: {measured}" for kind, (measured, _) in noted.items())
    lines = [
        "The same, measured at another time on this kind of machine, for what was not measured "
        f"now ({how}):\n",
        f"| rows/s · CPU µs per row | {' | '.join(noted)} |",
        "|---|" + "---:|" * len(noted),
    ]
    for shape in shapes:
        found = [figures.get(shape.name) for _, figures in noted.values()]
        if any(found):
            lines.append(f"| {shape.title} | {' | '.join(map(_cell, found))} |")
    return "\n".join(lines)


def decoding_table(results: Results, shapes: Iterable[Workload]) -> str:
    """µs of CPU from MESSAGE frames in memory to the buffers of seven columns."""
    names = results.implementations
    lines = [f"| µs per message | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for shape in shapes:
        found = [results.decoding.get((shape.name, name)) for name in names]
        if any(found):
            cells = ["–" if value is None else f"{value:.2f}" for value in found]
            lines.append(f"| {shape.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def targets_table(results: Results, shapes: Iterable[Workload]) -> str:
    """Each target with what was reached; within a shape the worst comes first."""
    lines = ["| shape | what | is | must be | |", "|---|---|---:|---:|---|"]
    for shape in shapes:
        for target in sorted(targets(results, shape.name), key=lambda each: each.margin):
            lines.append(_target_line(target, shape))
    return "\n".join(lines)


def _target_line(target: Target, shape: Workload) -> str:
    sign = "≤" if target.at_most else "≥"
    verdict = "held" if target.margin >= 1 else "**missed**"
    return (
        f"| {shape.title} | {target.what} | {target.value:.2f} | {sign} {target.bound:g} "
        f"| {verdict} |"
    )


def contenders_table(results: Results, operation: str, shape: Workload) -> str:
    """All contenders of one operation on one shape."""
    group = results.of(operation, shape.name)
    messages = group[0].workload.messages
    lines = [
        f"| {operation}: {messages:,} × {shape.title} | rows/s | MB/s | CPU µs per row "
        "| peak Python memory | × official client | of the ceiling |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    by_key = {(r.contender.kind, r.contender.columns): r for r in group}
    for result in group:
        base = by_key.get((OFFICIAL, result.contender.columns or "value")) or by_key.get(
            (OFFICIAL, "")
        )
        compared = f"{result.times_as_fast_as(base):.2f}" if base is not None else ""
        ceiling = by_key.get(_ceiling(operation, result.contender))
        part = f"{result.times_as_fast_as(ceiling):.0%}" if ceiling is not None else ""
        peak = result.median("peak_python_bytes") / 1e6
        lines.append(
            f"| {result.contender.name} | {result.rows_per_second:,.0f} "
            f"| {result.megabytes_per_second:,.0f} | {_digits(result.cpu)} "
            f"| {f'{peak:,.0f} MB' if peak else ''} | {compared} | {part} |"
        )
    return "\n".join(lines)


def _ceiling(operation: str, contender: Contender) -> tuple[str, str]:
    """What a contender cannot be faster than: less work of the same kind."""
    if contender.kind == HANDED:
        return (DRAIN, "")
    if contender.kind == OURS:
        return (TRIVIAL, contender.columns) if operation == "read" else (TRIVIAL_SINK, "")
    return ("", "")


def short(results: Results) -> str:
    """The worst shape and the best, for the README."""
    read = [shape for shape in worst_first(results) if results.of("read", shape.name)]
    return reading_table(results, [read[0], read[-1]]) if read else ""


def picture(results: Results, path: Path) -> None:
    """Bars of MB/s, one panel per operation and workload; no picture of nothing."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    panels = [
        (operation, shape)
        for shape in worst_first(results)
        for operation in ("read", "write")
        if results.of(operation, shape.name)
    ]
    if not panels:
        return
    columns = 3
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(18, 3.2 * rows), squeeze=False)
    flat = [axis for row in axes for axis in row]
    for axis, (operation, shape) in zip(flat, panels, strict=False):
        group = results.of(operation, shape.name)
        names = [result.contender.name for result in group]
        speeds = [result.megabytes_per_second for result in group]
        kinds = [result.contender.kind for result in group]
        colors = ["#1f77b4" if kind in (OURS, HANDED) else "#b0b0b0" for kind in kinds]
        axis.barh(names, speeds, color=colors)
        axis.invert_yaxis()
        axis.set_title(f"{operation}: {shape.title}", fontsize=9)
        axis.set_xlabel("MB/s", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in flat[len(panels) :]:
        axis.set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def put_between_markers(path: Path, text: str) -> None:
    """Replace what stands between the markers of a file."""
    start, end = MARKERS
    whole = path.read_text("utf-8")
    pattern = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(whole):
        raise ValueError(f"{path} has no {start} … {end}")
    path.write_text(pattern.sub(lambda _: f"{start}\n{text}\n{end}", whole), "utf-8")
