"""Which test covers a field, or why none does: the table in `evidence.tsv`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.conformance.interface import fields

TABLE = Path(__file__).parent / "evidence.tsv"

NO_TEST = "no test yet"

REASONS: dict[str, str] = {
    "deprecated": r"CommandConnect\.auth_method",
    "between brokers": r"CommandEndTxnOn.*|BaseCommand\.endTxnOn.*",
    "scalable topics": (
        r"(Command)?(Watch)?Scalable.*|Segment.*|.*\.scalable|.*\.supports_scalable_topics"
        r"|MessageMetadata\.entry_hash_(min|max)|BaseCommand\.(watchS|s)calable.*"
    ),
}
"""The reasons for which a field has no test, each with the fields that may give it."""


class Evidence(NamedTuple):
    """A field's row in the table: the id of a test, or a reason."""

    field: str
    test: str
    reason: str


def read() -> list[Evidence]:
    """Return the table in its order; raises ValueError for an invalid line."""
    found = []
    for line in TABLE.read_text().splitlines():
        if line.startswith("#") or not line:
            continue
        field, separator, shown = line.partition("\t")
        if not separator or not shown:
            raise ValueError(f"not a field and what shows it: {line!r}")
        is_test = shown.startswith("tests/")
        found.append(Evidence(field, shown if is_test else "", "" if is_test else shown))
    return found


def faults(table: list[Evidence]) -> list[str]:
    """Return the problems of a table: missing fields, reasons that are not allowed."""
    wanted = fields()
    listed = [row.field for row in table]
    wrong = [f"{name} is missing" for name in wanted if name not in listed]
    wrong += [f"{name} is no field" for name in listed if name not in wanted]
    wrong += [f"{name} is there twice" for name in set(listed) if listed.count(name) > 1]
    for row in table:
        if row.reason and row.reason != NO_TEST:
            allowed = REASONS.get(row.reason)
            if allowed is None or not re.fullmatch(allowed, row.field):
                wrong.append(f"{row.field} may not say: {row.reason}")
    return wrong
