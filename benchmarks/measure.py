"""Time, CPU and memory of one run, over a whole tree of processes.

Read from ``/proc``, so Linux only: the driver, the JVM and the Python workers are one tree.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SAMPLE_SECONDS = 0.05


@dataclass
class Measurement:
    """One run: wall clock and CPU seconds, and the peak memory of the largest Python process."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_python_bytes: int = 0


@dataclass(frozen=True)
class _Process:
    parent: int
    name: str
    cpu_seconds: float
    resident: int


def _processes() -> dict[int, _Process]:
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text()
        except OSError:
            continue
        name = text[text.index("(") + 1 : text.rindex(")")]
        fields = text[text.rindex(")") + 2 :].split()
        # Fields 14-17 of proc(5): its own times, and those of children that it has waited for.
        ticks = sum(int(number) for number in fields[11:15])
        found[int(entry.name)] = _Process(
            int(fields[1]), name, ticks / _TICK, int(fields[21]) * _PAGE
        )
    return found


def _tree(root: int, excluded: int) -> list[_Process]:
    processes = _processes()
    members = {root}
    grown = True
    while grown:
        grown = False
        for pid, process in processes.items():
            if process.parent in members and pid not in members and pid != excluded:
                members.add(pid)
                grown = True
    return [processes[pid] for pid in members if pid in processes]


@contextmanager
def measured(excluded: int = 0) -> Iterator[Measurement]:
    """Measure the block over this process and its children, without the tree of `excluded`."""
    result = Measurement()
    root = os.getpid()
    done = threading.Event()

    def sample() -> None:
        while not done.wait(_SAMPLE_SECONDS):
            sizes = [p.resident for p in _tree(root, excluded) if p.name.startswith("python")]
            result.peak_python_bytes = max(result.peak_python_bytes, *sizes)

    before = sum(process.cpu_seconds for process in _tree(root, excluded))
    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    started = time.perf_counter()
    try:
        yield result
    finally:
        result.seconds = time.perf_counter() - started
        result.cpu_seconds = sum(p.cpu_seconds for p in _tree(root, excluded)) - before
        done.set()
        sampler.join()
