"""Clear each field on the wire in turn, and check that the test named for it fails.

``python -m tests.conformance`` takes all of `evidence.tsv`; with names of fields it takes those.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence

from tests.conformance import evidence
from tests.conformance.evidence import Evidence
from tests.conformance.interface import fields
from tests.conformance.mutants import Items, Job, Outcome, run, with_tests


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if every test failed without its field, and passed with it."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("fields", nargs="*", help="regular expressions for their names")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument("--every", type=int, default=1, help="take each n-th row only")
    parser.add_argument("--with", dest="tests", nargs="+", help="tests to try, all of them")
    chosen = parser.parse_args(arguments)
    names = [name for name in fields() if _wanted(name, chosen.fields)]
    if not names:
        parser.error("no field has such a name")
    if chosen.tests:
        return with_tests(chosen.tests, lambda items: _try(names, items, chosen.workers))
    rows = [row for row in evidence.read() if row.test and row.field in names][:: chosen.every]
    tests = list(dict.fromkeys(row.test for row in rows))
    return with_tests(tests, lambda items: _prove(rows, items, chosen.workers))


def _wanted(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(re.fullmatch(pattern, name) for pattern in patterns)


def _prove(rows: Sequence[Evidence], items: Items, workers: int) -> int:
    began = time.monotonic()
    print(f"{len(rows)} fields, {len(items)} tests; first the tests as they are", flush=True)
    wrong = [
        f"{outcome.job.tests[0]}:\n{outcome.output}"
        for outcome in run([Job("", [test]) for test in items], items, workers)
        if outcome.status
    ]
    if wrong:
        print("these fail with all fields there:", *wrong, sep="\n  ")
        return 1
    jobs = [Job(row.field, [row.test]) for row in rows]
    for number, outcome in enumerate(run(jobs, items, workers), 1):
        fault = verdict(outcome)
        if fault:
            wrong.append(f"{outcome.job.cleared}: {outcome.job.tests[0]} {fault}")
        shown = f"{outcome.seconds:.1f} s {outcome.job.cleared} {fault or 'ok'}"
        print(f"{number}/{len(jobs)} {shown}", flush=True)
    if wrong:
        print(f"{len(wrong)} of {len(rows)} fields are not shown:", *wrong, sep="\n  ")
    else:
        print(f"all {len(rows)} fields are shown by their tests")
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


def verdict(outcome: Outcome) -> str:
    """Return the problem of a test that ran with a cleared field; "" if it failed as it should."""
    if not outcome.status:
        return "passes without it" if outcome.count else "passes, and never has it on the wire"
    if outcome.status == 1 and outcome.failed:
        return "" if outcome.count else "fails, and never has it on the wire"
    # A process that had to be ended waited for what the field would have brought.
    return "" if outcome.status < 0 else f"cannot be run:\n{outcome.output}"


def _try(names: Sequence[str], items: Items, workers: int) -> int:
    """Show which of the tests fail without each of the fields."""
    for outcome in run([Job(name, list(items)) for name in names], items, workers):
        print(f"{outcome.job.cleared} (cleared {outcome.count} times)")
        print("".join(f"  {test}\n" for test in outcome.failed), end="", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
