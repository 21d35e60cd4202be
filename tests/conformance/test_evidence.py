"""The table of evidence has every field, and the tests that it names exist."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.conformance import evidence
from tests.conformance.__main__ import verdict
from tests.conformance.evidence import NO_TEST, Evidence
from tests.conformance.interface import fields
from tests.conformance.mutants import Job, Outcome
from tools import protocol_table

ROOT = Path(__file__).parent.parent.parent
# A number of fields, spread over the interface.
SAMPLE = 10


@cache
def functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_field_of_the_interface_has_its_evidence_or_a_reason_that_it_may_give() -> None:
    assert evidence.faults(evidence.read()) == []


def test_what_is_missing_or_may_not_say_so_is_found() -> None:
    names = list(fields())
    table = [Evidence(name, "tests/x.py::test_x", "") for name in names]
    table[0] = Evidence(names[0], "", "deprecated")
    table.append(Evidence("CommandSend.nonsense", "", NO_TEST))
    del table[5]
    assert evidence.faults(table) == [
        f"{names[5]} is missing",
        "CommandSend.nonsense is no field",
        f"{names[0]} may not say: deprecated",
    ]


def test_every_test_that_is_named_exists() -> None:
    for row in evidence.read():
        if row.test:
            path, _, name = row.test.partition("::")
            assert name.partition("[")[0] in functions(ROOT / path), row


def test_the_page_is_current() -> None:
    assert protocol_table.PAGE.read_text() == protocol_table.page(), (
        "python -m tools.protocol_table"
    )


@pytest.mark.parametrize(
    "status,count,failed,expected",
    [
        (1, 2, ["t"], ""),
        (-9, 0, [], ""),
        (0, 2, [], "passes without it"),
        (0, 0, [], "passes, and never has it on the wire"),
        (1, 0, ["t"], "fails, and never has it on the wire"),
        (4, 0, [], "cannot be run"),
    ],
)
def test_a_test_is_evidence_if_it_fails_because_a_field_was_cleared(
    status: int, count: int, failed: list[str], expected: str
) -> None:
    outcome = Outcome(Job("CommandSend.sequence_id", ["t"]), status, count, failed)
    assert verdict(outcome).partition(":")[0] == expected


@pytest.mark.slow
def test_a_sample_of_the_fields_is_shown_by_their_tests() -> None:
    rows = [row for row in evidence.read() if row.test]
    done = subprocess.run(
        [sys.executable, "-m", "tests.conformance", "--every", str(len(rows) // SAMPLE)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
