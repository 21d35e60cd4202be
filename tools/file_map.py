"""Keep docs/modules.md up to date: each module's first docstring line, by layer.

``python -m tools.file_map`` writes the map between its markers, ``--check`` compares.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from tools.pages import keep_current

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "modules.md"
START, END = "<!-- map:start -->", "<!-- map:end -->"

LAYERS = ("protocol", "engine", "schema", "client", "spark", "testing", "cli")


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.partition("\n")[0].replace("``", "`").replace("|", "\\|")


def file_map() -> str:
    """Return the map: a table for each layer, a row for each module."""
    package = ROOT / "pulsar_spark"
    parts = [_table("The package", sorted(package.glob("*.py")), package)]
    for layer in LAYERS:
        folder = package / layer
        parts.append(_table(f"`{layer}/`", sorted(folder.rglob("*.py")), folder))
    return "\n\n".join(parts)


def _table(title: str, paths: list[Path], folder: Path) -> str:
    rows = [
        f"| `{path.relative_to(folder)}` | {first_line(path)} |"
        for path in paths
        if path.name != "__init__.py" or path.parent == ROOT / "pulsar_spark"
    ]
    return "\n".join([f"## {title}", "", "| file | what it is |", "|---|---|", *rows])


def page() -> str:
    """Return the page with the current map."""
    text = PAGE.read_text()
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{file_map()}\n{END}{after}"


def main() -> int:
    """Write the map, or check it."""
    return keep_current("tools.file_map", __doc__, {PAGE: page})


if __name__ == "__main__":
    sys.exit(main())
