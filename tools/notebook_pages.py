"""Run the notebooks and turn them into pages of the site, with their outputs and charts."""

from __future__ import annotations

import base64
import os
import sys
import tempfile
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

_SECONDS = 240
_SAID_BYTES = 20_000

_QUICK_START = (
    "--driver-java-options '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC' "
    "--conf spark.sql.codegen.wholeStage=false --conf spark.sql.codegen.factoryMode=NO_CODEGEN "
    "pyspark-shell"
)
"""Spark's arguments for running small queries with little CPU: compiling would cost more."""


def read(path: Path) -> nbformat.NotebookNode:
    """Return a notebook as stored."""
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call,no-any-return]


def execute(
    notebooks: Sequence[nbformat.NotebookNode], pulsar_url: str | None = None
) -> list[nbformat.NotebookNode]:
    """Return notebooks with their outputs, run on the broker at `pulsar_url` or embedded ones.

    They run one after the other in one kernel, with empty namespaces, and share a JVM. If a cell
    fails, raises nbclient's CellExecutionError, and prints what Spark said last. Otherwise that is
    not shown: some cells make tasks fail, to show what happens then.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PULSAR_URL"}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment["PYTHONPATH"] = path
    environment.setdefault("PYSPARK_SUBMIT_ARGS", _QUICK_START)
    if pulsar_url is not None:
        environment["PULSAR_URL"] = pulsar_url
    # Each on its own: one that is there twice has to become two.
    ran = [deepcopy(notebook) for notebook in notebooks]
    cells = []
    for notebook in ran:
        cells += [new_code_cell("%reset -f"), *notebook.cells]  # type: ignore[no-untyped-call]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    together = new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    client = NotebookClient(
        together, timeout=_SECONDS, startup_timeout=_SECONDS, kernel_name="python3"
    )
    with tempfile.TemporaryFile() as said:
        try:
            client.execute(env=environment, stdout=said, stderr=said)
        except Exception:
            said.seek(max(said.tell() - _SAID_BYTES, 0))
            print(said.read().decode("utf-8", "replace"), file=sys.stderr)
            raise
    return ran


def page(notebook: nbformat.NotebookNode, name: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its images by file name."""
    parts: list[str] = []
    images: dict[str, bytes] = {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                image = f"{name}-{len(images)}.png"
                images[image] = base64.b64decode(data["image/png"])
                parts.append(f"![Chart that the cell above draws]({image})")
            elif text := _text(output, data).strip("\n"):
                parts.append(f"```text\n{text}\n```")
    source = f"*This page is the notebook `notebooks/{name}.ipynb`, run when the site was built.*"
    title, _, rest = "\n\n".join(parts).partition("\n")
    return f"{title}\n\n{source}\n{rest}\n", images


def _text(output: Any, data: Any) -> str:
    # The content of stderr, such as warnings, depends on the machine that builds the site.
    if output.output_type == "stream":
        return str(output.text) if output.name == "stdout" else ""
    return str(data.get("text/plain", ""))
