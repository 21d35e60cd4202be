"""What commands print: tables and progress, by `rich` on a terminal, else as plain text."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_COLOURS = {"ok": "green", "failed": "bold red", "skipped": "yellow"}


def print_json(value: object) -> None:
    """Print a value as JSON, for programs and people."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, header: bool = True
) -> None:
    """Print rows under the names of their columns, unless those were shown already.

    Numbers are on the right of their columns.
    """
    texts = [[_text(cell) for cell in row] for row in rows]
    numeric = [_is_numeric([row[at] for row in rows]) for at in range(len(columns))]
    if (console := _console()) is not None:
        _print_rich(console, columns, texts, numeric, header=header)
        return
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    for row in (list(columns), *texts) if header else texts:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        print("  ".join(cells).rstrip(), flush=True)


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being done; gives the function that says what comes next."""
    console = _console()
    if console is None:
        yield lambda _: None
        return
    with console.status(what) as status:
        yield status.update


def _console() -> Any:
    """Return rich's console, None where it is not installed or nobody looks at it."""
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(highlight=False, markup=False)


def _print_rich(
    console: Any,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Sequence[bool],
    *,
    header: bool,
) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", show_header=header)
    for name, right in zip(columns, numeric, strict=True):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        # As texts: what stands in brackets is not markup.
        table.add_row(*(Text(cell, _COLOURS.get(cell, "")) for cell in row))
    console.print(table)


def _is_numeric(cells: Sequence[object]) -> bool:
    known = [cell for cell in cells if cell is not None]
    return bool(known) and all(
        isinstance(cell, int | float) and not isinstance(cell, bool) for cell in known
    )


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.3f}"
    # A cell is one line, and no terminal is to obey what a message holds.
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in str(cell)
    )
