"""The results as tables, JSON and charts."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.contenders import (
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
    TRIVIAL_SINK,
    Contender,
)
from benchmarks.results import Figure, Result, Results
from benchmarks.targets import Target, targets
from benchmarks.workloads import Workload

OTHERS = (OFFICIAL, SCALA, KAFKA, TRIVIAL)

USUAL = ("batch10", "batch1000", "unbatched1k", "four")
SHOWN = 5
"""Shapes in the README."""
_COLORS = ("#1f77b4", "#8fbfe0", "#b0b0b0", "#707070")

_WIDTH = 100
"""Characters of a line of prose on the pages."""

MARKERS = ("<!-- benchmark:start -->", "<!-- benchmark:end -->")


def worst_first(results: Results) -> list[Workload]:
    """The shapes, starting with the one furthest below its own target."""

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
            for operation in ("read", "write", *RECEIVES, *SENDS)
            if results.of(operation, shape.name)
        ],
    ]


def reading_table(
    results: Results, shapes: Iterable[Workload], others: Sequence[str] = OTHERS
) -> str:
    """Rows per second and µs of CPU per row with all columns, ours and others'."""
    kinds = [*(f"{OURS} {name}" for name in results.implementations), *others]
    lines = [
        "| rows/s · CPU µs per row | " + " | ".join(kinds) + " |",
        "|---|" + "---:|" * len(kinds),
    ]
    for shape in shapes:
        found = figures_of(results, shape, others)
        if any(isinstance(each, Result) for each in found):
            lines.append(f"| {shape.title} | {' | '.join(map(_cell, found))} |")
    return "\n".join(lines)


def figures_of(
    results: Results, shape: Workload, others: Sequence[str]
) -> list[Result | Figure | None]:
    """Our results for reading a shape with all columns, by implementation, and others'."""
    ours = (results.find("read", shape.name, OURS, "all", name) for name in results.implementations)
    return [
        *ours,
        *(
            results.peer(kind, shape.name)
            if kind in (SCALA, KAFKA)
            else results.find("read", shape.name, kind, "all")
            for kind in others
        ),
    ]


def _cell(figure: Result | Figure | None) -> str:
    if figure is None:
        return "–"
    return f"{figure.rows_per_second:,.0f} · {_digits(figure.cpu)}"


def _digits(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def peers_table(results: Results, shapes: Iterable[Workload]) -> str:
    """Earlier results of others, used if they were not measured now."""
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
    """Each target with its result; within a shape the worst comes first."""
    lines = ["| shape | what | is | must be | |", "|---|---|---:|---:|---|"]
    for shape in shapes:
        for target in sorted(targets(results, shape.name), key=lambda each: each.margin):
            lines.append(_target_line(target, shape))
    return "\n".join(lines)


def _target_line(target: Target, shape: Workload) -> str:
    sign = "≤" if target.at_most else "≥"
    verdict = "held" if target.margin >= 1 else "**missed**"
    if target.note:
        verdict += f", {target.note}"
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
        ceilings = [by_key.get(each) for each in _ceilings(operation, result.contender)]
        ceiling = min(filter(None, ceilings), key=lambda each: each.rows_per_second, default=None)
        part = f"{result.times_as_fast_as(ceiling):.0%}" if ceiling is not None else ""
        peak = result.median("peak_python_bytes") / 1e6
        lines.append(
            f"| {result.contender.name} | {result.rows_per_second:,.0f} "
            f"| {result.megabytes_per_second:,.0f} | {_digits(result.cpu)} "
            f"| {f'{peak:,.0f} MB' if peak else ''} | {compared} | {part} |"
        )
    return "\n".join(lines)


def _ceilings(operation: str, contender: Contender) -> list[tuple[str, str]]:
    """The upper bounds of a contender: less work of the same kind."""
    if contender.kind == HANDED:
        return [(DRAIN, "")]
    if contender.kind == OURS and operation == "read":
        return [(TRIVIAL, contender.columns)]
    # Rows come from Spark and go to a broker: the slower of both is the limit.
    if operation == "write" and contender.kind in (OURS, OFFICIAL):
        return [(PUMP, ""), *([(TRIVIAL_SINK, "")] if contender.kind == OURS else [])]
    return []


def shown_first(results: Results) -> list[Workload]:
    """The README's shapes: the one furthest below its target, and the usual ones."""
    read = [shape for shape in worst_first(results) if results.of("read", shape.name)]
    return [shape for shape in read if shape is read[0] or shape.name in USUAL][:SHOWN]


def short(results: Results) -> str:
    """Reading these shapes, compared with the clients that people come from, for the README."""
    shapes = shown_first(results)
    return reading_table(results, shapes, [OFFICIAL, SCALA]) if shapes else ""


def overview(results: Results, path: Path) -> None:
    """Bars of rows per second, grouped by the README's shapes."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    shapes = shown_first(results)
    kinds = [*(f"{OURS} {name}" for name in results.implementations), OFFICIAL, SCALA]
    if not shapes:
        return
    figure, axis = plt.subplots(figsize=(9, 1 + 0.75 * len(shapes)))
    height = 0.8 / len(kinds)
    for number, (kind, color) in enumerate(zip(kinds, _COLORS, strict=False)):
        found = [figures_of(results, shape, [OFFICIAL, SCALA])[number] for shape in shapes]
        speeds = [each.rows_per_second / 1e6 if each else 0.0 for each in found]
        places = [row + number * height for row in range(len(shapes))]
        axis.barh(places, speeds, height=height, label=kind, color=color)
    axis.set_yticks(
        [row + 0.4 - height / 2 for row in range(len(shapes))], [shape.title for shape in shapes]
    )
    axis.invert_yaxis()
    axis.set_xlabel("million rows a second")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def picture(results: Results, path: Path) -> None:
    """Bars of MB/s, one panel per operation and workload; no chart without results."""
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
        colors = ["#1f77b4" if kind in (OURS, OVER_TLS, HANDED) else "#b0b0b0" for kind in kinds]
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
    """Replace the text between a file's markers, with its prose in lines as the pages have them."""
    start, end = MARKERS
    whole = path.read_text("utf-8")
    pattern = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(whole):
        raise ValueError(f"{path} has no {start} … {end}")
    body = "\n".join(map(_wrapped, text.split("\n")))
    path.write_text(pattern.sub(lambda _: f"{start}\n{body}\n{end}", whole), "utf-8")


def _wrapped(line: str) -> str:
    """Wrap a paragraph; a line of a table stays whole."""
    if line.startswith("|"):
        return line
    return textwrap.fill(line, _WIDTH, break_long_words=False, break_on_hyphens=False)
