"""The examples of a page of docs/, unchanged except for addresses and folders."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pulsar_spark.spark.compat import streams_are_arrow

DOCS = Path(__file__).resolve().parents[2] / "docs"


def examples(page: str, section: str, language: str = "python") -> list[str]:
    """Return the blocks of a language in a section (`## …`) of a page."""
    text = (DOCS / page).read_text("utf-8")
    heading = re.escape(section)
    (found,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    # Match all blocks, so that the end of one is not taken for the start of another.
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", found, re.MULTILINE | re.DOTALL)
    return [text for kind, text in blocks if kind == language]


def here(example: str, service_url: str, folder: Path) -> str:
    """Return an example for a broker at `service_url` that stores its files under `folder`."""
    moved = re.sub(r"(?<=[\"'/ ])/(?:data|etc/pulsar)/", f"{folder}/", example)
    return moved.replace("pulsar://localhost:6650", service_url)


def fills_up_with_nulls() -> bool:
    """Whether INSERT INTO … (…) sets omitted columns to null: from Spark 4.1."""
    return streams_are_arrow()


OUTPUT = "<!-- output -->"
"""Before a block with what the example above it prints."""
WRITES_OUTPUTS = os.environ.get("PULSAR_SPARK_TEST_OUTPUTS") == "write"
"""Whether these blocks are written anew instead of being compared."""

_OUTPUTS = re.compile(rf"^{OUTPUT}\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def outputs(path: Path) -> list[str]:
    """Return what a page says that its examples print."""
    return _OUTPUTS.findall(path.read_text("utf-8"))


def keep_output(path: Path, number: int, printed: str) -> None:
    """Compare what an example printed with the page's block of that number, or write the block."""
    lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
    now = "".join(f"{line}\n" for line in lines)
    if not WRITES_OUTPUTS:
        said = outputs(path)[number]
        assert said == now, f"{path.name} is not current: PULSAR_SPARK_TEST_OUTPUTS=write"
        return
    text = path.read_text("utf-8")
    found = list(_OUTPUTS.finditer(text))[number]
    path.write_text(text[: found.start(1)] + now + text[found.end(1) :], "utf-8")
