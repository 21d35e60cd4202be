"""Counts lines of code: ``python -m tools.code_lines [COMMIT]``.

Blank lines, comments, docstrings and generated code do not count, nor do Rust's tests. Without a
commit it counts the working tree.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PRODUCT = ("pulsar_spark/", "pyspark_pulsar.py", "native/src/")
GENERATED = ("_pb2.py", "_pb2.pyi")


def python_lines(source: str) -> int:
    """Return how many lines of a Python module have code."""
    lines: set[int] = set()
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                docstrings.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
        if isinstance(node, ast.stmt | ast.expr):
            lines.update(range(node.lineno, (node.end_lineno or 0) + 1))
    texts = source.splitlines()
    empty = {n for n, text in enumerate(texts, 1) if not text.strip() or text.strip()[0] == "#"}
    return len(lines - docstrings - empty)


def rust_lines(source: str) -> int:
    """Return how many lines of a Rust module have code, without its tests."""
    lines = source.partition("#[cfg(test)]")[0].splitlines()
    return sum(1 for line in lines if line.strip() and not line.strip().startswith("//"))


def sources(commit: str | None) -> Iterator[tuple[str, str]]:
    """Yield path and text of each module of the product."""
    if commit is None:
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    else:
        command = ["git", "ls-tree", "-r", "--name-only", commit]
    for path in _run(*command, "--", *PRODUCT).splitlines():
        if path.endswith((".py", ".rs")) and not path.endswith(GENERATED):
            if commit is not None:
                yield path, _run("git", "show", f"{commit}:{path}")
            elif (ROOT / path).exists():
                yield path, (ROOT / path).read_text()


def _run(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Print the lines of each package, and of all."""
    count: Counter[str] = Counter()
    for path, text in sources(sys.argv[1] if len(sys.argv) > 1 else None):
        parts = Path(path).parts
        package = "native" if parts[0] == "native" else "/".join(parts[:2])
        count[package] += python_lines(text) if path.endswith(".py") else rust_lines(text)
    for package, lines in sorted(count.items()):
        print(f"{lines:7,} {package}")
    print(f"{count.total():7,} in all")


if __name__ == "__main__":
    main()
