"""Output of commands: tables, JSON, and progress on a terminal, with `rich` if it is installed.

Names, properties and payloads are other people's text: escape what a terminal would obey.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from pulsar_spark.errors import UNPRINTABLE, printable

_COLOURS = {"ok": "green", "failed": "bold red", "skipped": "yellow"}
# Characters in a table's cell; JSON is never cut.
_MAX_CELL = 1_000


def print_error(text: str) -> None:
    """Print an error."""
    print(f"error: {printable(text)}", file=sys.stderr)


def print_note(text: str) -> None:
    """Print to stderr what a person should know beside the result."""
    print(f"note: {printable(text)}", file=sys.stderr)


def print_json(value: object) -> None:
    """Print a value as JSON, for programs and people."""
    print(_json(value, indent=2), flush=True)


def print_json_line(value: object, default: Callable[[object], object] | None = None) -> None:
    """Print a value as one line of JSON; `default` converts values that JSON has no form for."""
    print(_json(value, default=default), flush=True)


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, header: bool = True
) -> None:
    """Print rows under their column names, unless those were printed already.

    Numbers are right-aligned.
    """
    if (console := _console(sys.stdout)) is not None:
        console.print(_rich_table(columns, rows, header=header))
        return
    columns, texts, numeric = _texts(columns, rows)
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    for row in (columns, *texts) if header else texts:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        print("  ".join(cells).rstrip(), flush=True)


def print_rows(
    rows: Sequence[Mapping[str, object]], columns: Sequence[str], *, as_json: bool
) -> None:
    """Print rows as JSON, or their values as a table under these column names."""
    if as_json:
        print_json(rows)
    else:
        print_table(columns, [tuple(row.values()) for row in rows])


class About(int):
    """An estimated number: a table shows it with ~ before it."""

    def __str__(self) -> str:
        return f"~{int(self)}"


@contextlib.contextmanager
def live_table(
    columns: Sequence[str], *, quiet: bool = False
) -> Iterator[Callable[[Sequence[Sequence[object]]], None]]:
    """Yield a function that shows a table's rows, in place of those before on a terminal.

    Elsewhere the tables follow each other, with an empty line between them. Shows nothing with
    `quiet`.
    """
    console = None if quiet else _console(sys.stdout)
    if console is None:
        shown = False

        def show(rows: Sequence[Sequence[object]]) -> None:
            nonlocal shown
            if quiet:
                return
            if shown:
                print()
            print_table(columns, rows)
            shown = True

        yield show
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False, redirect_stderr=False) as live:
        yield lambda rows: live.update(_rich_table(columns, rows), refresh=True)


class Bar:
    """A progress bar; without a terminal it does nothing."""

    def tell(self, what: str) -> None:
        """Show what happens now."""

    def advance(self, number: float = 1) -> None:
        """Count progress."""


class _RichBar(Bar):
    def __init__(self, shown: Any, task: Any) -> None:
        self._shown = shown
        self._task = task

    def tell(self, what: str) -> None:
        self._shown.update(self._task, description=printable(what))

    def advance(self, number: float = 1) -> None:
        self._shown.advance(self._task, number)


@contextlib.contextmanager
def progress(what: str, total: float | None = None, *, quiet: bool = False) -> Iterator[Bar]:
    """Show progress on a terminal until the block ends; `total` if it is known.

    Shows nothing with `quiet`, or if stdout or stderr is not a terminal.
    """
    console = _console(sys.stderr) if not quiet and sys.stdout.isatty() else None
    if console is None:
        yield Bar()
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False)]
    shown = Progress(
        *columns,
        *([] if total is None else [BarColumn(), TextColumn("{task.percentage:>3.0f}%")]),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        # Other output keeps its own stream.
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with shown:
        yield _RichBar(shown, shown.add_task(printable(what), total=total))


def _console(stream: TextIO) -> Any:
    """Return rich's console; None if it is not installed or there is no terminal."""
    if not stream.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream, highlight=False, markup=False)


def _texts(
    columns: Sequence[str], rows: Sequence[Sequence[object]]
) -> tuple[list[str], list[list[str]], list[bool]]:
    """Return a table's columns and cells as text, and which columns are numbers."""
    texts = [[_cell(cell) for cell in row] for row in rows]
    numeric = [_is_numeric([row[at] for row in rows]) for at in range(len(columns))]
    return [printable(name) for name in columns], texts, numeric


def _rich_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, header: bool = True
) -> Any:
    from rich.table import Table
    from rich.text import Text

    names, texts, numeric = _texts(columns, rows)
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=header)
    for name, right in zip(names, numeric, strict=True):
        # As Text, so that brackets are not read as markup.
        table.add_column(Text(name), justify="right" if right else "left", overflow="fold")
    for row in texts:
        table.add_row(*(Text(cell, _COLOURS.get(cell, "")) for cell in row))
    return table


def _is_numeric(cells: Sequence[object]) -> bool:
    known = [cell for cell in cells if cell is not None]
    return bool(known) and all(
        isinstance(cell, int | float) and not isinstance(cell, bool) for cell in known
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    if len(text) <= _MAX_CELL:
        return printable(text)
    return f"{printable(text[:_MAX_CELL])}… ({len(text):,} characters)"


def _json(
    value: object,
    *,
    indent: int | None = None,
    default: Callable[[object], object] | None = None,
) -> str:
    """Return JSON that every parser accepts and that is safe for a terminal."""
    try:
        text = json.dumps(
            value, indent=indent, default=default, ensure_ascii=False, allow_nan=False
        )
    except ValueError:
        text = json.dumps(_without_nan(value), indent=indent, default=default, ensure_ascii=False)
    # Outside of strings, line ends are the only control characters of JSON.
    return "\n".join(
        UNPRINTABLE.sub(lambda found: json.dumps(found[0])[1:-1], line) for line in text.split("\n")
    )


def _without_nan(value: object) -> object:
    """Replace floats that JSON lacks by text, as Spark writes them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, list | tuple) else value
