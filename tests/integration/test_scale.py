"""Thousands of topic partitions on many brokers: the cost of planning and of starting tasks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
BROKERS = 20
TOPICS = 10
PARTITIONS = 1000
TASKS = 250
MIB = 1024 * 1024


class Program:
    """A module run in a process of its own, which answers each line with a line."""

    def __init__(self, module: str, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(60)
            finally:
                process.kill()

    def line(self) -> str:
        """Return its next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process ended"
        return line.strip()

    def answer(self) -> dict[str, Any]:
        """Return its next line, parsed as JSON."""
        found: dict[str, Any] = json.loads(self.line())
        return found

    def tell(self, text: object = "") -> None:
        """Send a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()


@pytest.fixture
def cluster() -> Iterator[Program]:
    with Program("tests.integration.scale_broker", BROKERS, TOPICS, PARTITIONS) as program:
        yield program


@pytest.mark.slow
@pytest.mark.fault(10)
@pytest.mark.timeout(600)
def test_ten_thousand_partitions_on_twenty_brokers_are_planned_and_read(cluster: Program) -> None:
    """One connection to each broker from each process, and 64 lookups under way at most."""

    def seen() -> dict[str, Any]:
        cluster.tell()
        return cluster.answer()

    url = cluster.line()
    topics = ",".join(f"scale-{number}" for number in range(TOPICS))
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Program("tests.integration.scale_job", url, topics))
            for _ in range(2)
        ]
        for worker in workers:
            plan = worker.answer()
            print(f"\nplanned: {plan}")
            assert plan["partitions"] == TOPICS * PARTITIONS
            assert plan["connections"] == BROKERS
            # An idle machine with two cores needs a quarter of the time for both processes.
            assert plan["seconds"] < 120
            assert plan["memory"] < 200 * MIB
        after_plans = seen()
        assert after_plans["LOOKUP"] == len(workers) * TOPICS * PARTITIONS
        assert after_plans["most lookups at once"] <= 64
        assert after_plans["CONNECT"] == len(workers) * BROKERS

        for worker in workers:
            worker.tell(TASKS)
        for worker in workers:
            ran = worker.answer()
            print(f"ran: {ran}")
            assert ran["rows"] == TASKS
            assert ran["connections"] == BROKERS
        after_tasks = seen()
        assert after_tasks["most lookups at once"] <= 64
        assert after_tasks.get("CONNECT", 0) == 0
