"""The examples of a page of docs/, unchanged except for addresses and folders."""

from __future__ import annotations

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
