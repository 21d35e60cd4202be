"""Processes that each run tests while one field is cleared.

The tests are collected once. For each job the process forks, and the child runs its tests, clears
its field, and ends with everything that a test may have left behind.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.conformance.taps import Clearing, install

TIMEOUT = 10.0
"""Seconds for one test, with all fields too: one that is missing may leave everybody waiting."""

Items: TypeAlias = "Mapping[str, pytest.Item]"


@dataclass(frozen=True)
class Job:
    """Tests to run while the field `cleared` is missing; none is if that is empty."""

    cleared: str
    tests: Sequence[str]


@dataclass
class Outcome:
    """The result of a job: how often there was something to clear, and which tests failed.

    `status` is the process's: 0 if no test failed, 1 if one did, negative if it had to be killed.
    """

    job: Job
    status: int
    count: int = 0
    failed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    output: str = ""


def with_tests(tests: Sequence[str], conduct: Callable[[Items], int]) -> int:
    """Collect tests, and return the result of `conduct`; without tests pytest's own status."""
    plugin = _Plugin(conduct)
    options = ["-qq", "--capture=no", "--tb=short", "-p", "no:cacheprovider", "--no-header"]
    status = int(pytest.main([*options, f"--timeout={TIMEOUT:g}", *tests], plugins=[plugin]))
    return status if plugin.status is None else plugin.status


class _Plugin:
    """Replaces pytest's loop over the tests, and records which fail in child processes."""

    def __init__(self, conduct: Callable[[Items], int]) -> None:
        self.status: int | None = None
        self.failed: dict[str, str] = {}
        self._conduct = conduct

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("some tests cannot be collected")
        session.config.stash[_FAILED] = self.failed
        self.status = self._conduct({item.nodeid: item for item in session.items})
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = report.longreprtext


_FAILED = pytest.StashKey[dict[str, str]]()


def run(jobs: Iterable[Job], items: Items, workers: int) -> Iterator[Outcome]:
    """Run jobs in this many processes at a time, and yield outcomes as they come."""
    left = iter(jobs)
    running: dict[int, tuple[Job, Path, float]] = {}
    try:
        while True:
            while len(running) < workers and (job := next(left, None)) is not None:
                folder = Path(tempfile.mkdtemp(prefix="conformance-"))
                running[_fork(job, items, folder)] = (job, folder, time.monotonic())
            if not running:
                return
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid:
                job, folder, since = running.pop(pid)
                yield _outcome(job, folder, os.waitstatus_to_exitcode(status), since)
                continue
            for pid, (job, _, since) in running.items():
                if time.monotonic() - since > (len(job.tests) + 1) * 2 * TIMEOUT:
                    os.killpg(pid, signal.SIGKILL)
            time.sleep(0.02)
    finally:
        for pid, (_, folder, _) in running.items():
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            shutil.rmtree(folder, ignore_errors=True)


def _outcome(job: Job, folder: Path, status: int, since: float) -> Outcome:
    said: dict[str, Any] = {}
    if (folder / "said.json").exists():
        said = json.loads((folder / "said.json").read_text())
    output = (folder / "output").read_text(errors="replace")
    shutil.rmtree(folder)
    return Outcome(job, status, **said, seconds=time.monotonic() - since, output=output)


def _fork(job: Job, items: Items, folder: Path) -> int:
    sys.stdout.flush()
    (folder / "output").touch()
    pid = os.fork()
    if not pid:
        status = 70
        try:
            os.setsid()
            status = _work(job, [items[test] for test in job.tests], folder)
        finally:
            # Threads of a test that waits in vain must not keep the process alive.
            os._exit(status)
    return pid


def _work(job: Job, items: Sequence[pytest.Item], folder: Path) -> int:
    output = os.open(folder / "output", os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    clearing = None
    if job.cleared:
        clearing = Clearing(job.cleared)
        install(clearing.edit)
    for number, item in enumerate(items, 1):
        following = items[number] if number < len(items) else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    failed = items[0].config.stash[_FAILED]
    said = {"count": clearing.count if clearing else 0, "failed": list(failed)}
    (folder / "said.json").write_text(json.dumps(said))
    print(*failed.values(), sep="\n", flush=True)
    return 1 if failed else 0
