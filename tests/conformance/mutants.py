"""Processes that run tests while one field is cleared."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import pulsar_spark.client  # noqa: F401  (here, so that no process takes time for it)
from tests.conformance.taps import Clearing, install

TIMEOUT = 30.0
"""Seconds for one test. A field that is missing may well leave everybody waiting."""


@dataclass
class Job:
    """Tests to run while `cleared` is, or with all fields if that is empty."""

    cleared: str
    tests: Sequence[str]
    until_failure: bool = True


@dataclass
class Outcome:
    """What came of a job: how often there was something to clear, and which tests failed."""

    job: Job
    status: int
    count: int = 0
    failed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    output: str = ""


class _Failures:
    """A plugin of pytest that notes the tests that fail, in whatever part."""

    def __init__(self) -> None:
        self.failed: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = None


def run(jobs: Iterable[Job], workers: int) -> Iterator[Outcome]:
    """Carry out jobs in as many processes at a time, and give their outcomes as they come.

    They are forked from this process, which has imported what all of them need and has no other
    threads.
    """
    left = iter(jobs)
    running: dict[int, tuple[Job, Path, float]] = {}
    try:
        while True:
            while len(running) < workers and (job := next(left, None)) is not None:
                folder = Path(tempfile.mkdtemp(prefix="conformance-"))
                running[_fork(job, folder)] = (job, folder, time.monotonic())
            if not running:
                return
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                _end_late(running)
                time.sleep(0.05)
                continue
            job, folder, since = running.pop(pid)
            yield _outcome(job, folder, os.waitstatus_to_exitcode(status), since)
    finally:
        for pid in running:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _end_late(running: dict[int, tuple[Job, Path, float]]) -> None:
    for pid, (job, _, since) in running.items():
        if time.monotonic() - since > 2 * TIMEOUT * len(job.tests) + TIMEOUT:
            os.killpg(pid, signal.SIGKILL)


def _outcome(job: Job, folder: Path, status: int, since: float) -> Outcome:
    said: dict[str, Any] = {}
    if (folder / "said.json").exists():
        said = json.loads((folder / "said.json").read_text())
    output = (folder / "output").read_text() if (folder / "output").exists() else ""
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    return Outcome(job, status, **said, seconds=time.monotonic() - since, output=output)


def _fork(job: Job, folder: Path) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        status = 70
        try:
            os.setsid()
            status = _work(job, folder)
        finally:
            # Threads of a test that waits in vain must not keep the process.
            os._exit(status)
    return pid


def _work(job: Job, folder: Path) -> int:
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    clearing = None
    if job.cleared:
        clearing = Clearing(job.cleared)
        install(clearing.edit)
    failures = _Failures()
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", f"--timeout={TIMEOUT:g}"]
    options += ["-x"] if job.until_failure else []
    status = int(pytest.main([*options, *job.tests], plugins=[failures]))
    said = {"count": clearing.count if clearing else 0, "failed": list(failures.failed)}
    (folder / "said.json").write_text(json.dumps(said))
    sys.stdout.flush()
    return status
