"""Time, CPU and memory of a run, for this process and all its descendants.

Reads ``/proc``, so Linux only: a driver, its JVM and its Python workers are one tree. Nothing is
sampled during a run: the kernel itself records each process's peak memory.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
# The kernel knows 15 characters of a thread's name.
_COMPILERS = ("C1 CompilerThre", "C2 CompilerThre")
# Seconds without CPU after which nothing is busy, and the longest wait for that.
_IDLE = 0.1
_MOST_IDLE = 2.0
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


@dataclass
class Measurement:
    """One run: wall clock and CPU seconds, and the peak memory of the largest Python process.

    `compile_seconds` are the part of the CPU in which JVMs compiled their own code.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_python_bytes: int = 0
    compile_seconds: float = 0.0


@dataclass(frozen=True)
class _Process:
    parent: int
    name: str
    cpu_seconds: float


def _processes() -> dict[int, _Process]:
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text()
        except OSError:
            continue
        name, fields = _parsed(text)
        # Fields 14-17 of proc(5): the process's times, and those of finished children.
        ticks = sum(int(number) for number in fields[11:15])
        found[int(entry.name)] = _Process(int(fields[1]), name, ticks / _TICK)
    return found


def _parsed(stat: str) -> tuple[str, list[str]]:
    """Return the name in a file `stat`, and the fields behind it."""
    return stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()


def _tree() -> dict[int, _Process]:
    processes = _processes()
    members = {os.getpid()}
    grown = True
    while grown:
        found = {pid for pid, process in processes.items() if process.parent in members}
        grown = not found <= members
        members |= found
    return {pid: processes[pid] for pid in members if pid in processes}


def _cpu_seconds() -> float:
    return sum(process.cpu_seconds for process in _tree().values())


def _compile_seconds() -> float:
    jvms = (pid for pid, process in _tree().items() if process.name == "java")
    return sum(compile_seconds_of(Path(f"/proc/{pid}")) for pid in jvms)


def compile_seconds_of(process: Path) -> float:
    """Return the CPU seconds of a JVM's compilers so far; `process` is its folder in /proc."""
    ticks = 0
    with suppress(OSError):
        for task in (process / "task").iterdir():
            # Threads may end meanwhile.
            with suppress(OSError):
                name, fields = _parsed((task / "stat").read_text())
                if name.startswith(_COMPILERS):
                    ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICK


def _python_processes() -> list[Path]:
    # This process is one, whatever its command is called.
    return [
        Path(f"/proc/{pid}")
        for pid, process in _tree().items()
        if pid == os.getpid() or process.name.startswith("python")
    ]


def _peak(process: Path) -> int:
    with suppress(OSError):
        found = _PEAK.search((process / "status").read_text())
        if found:
            return int(found[1]) * 1024
    return 0


def wait_until_idle() -> None:
    """Wait until this process and its children need no CPU, but not for long.

    Python workers collect garbage after each job, and JVMs compile.
    """
    end = time.monotonic() + _MOST_IDLE
    used = _cpu_seconds()
    while time.monotonic() < end:
        time.sleep(_IDLE)
        before, used = used, _cpu_seconds()
        if used == before:
            return


@contextmanager
def measured() -> Iterator[Measurement]:
    """Measure the block."""
    result = Measurement()
    for process in _python_processes():
        with suppress(OSError):
            (process / "clear_refs").write_text("5")  # Forget the peak so far; see proc(5).
    before, compiled_before = _cpu_seconds(), _compile_seconds()
    started = time.perf_counter()
    try:
        yield result
    finally:
        result.seconds = time.perf_counter() - started
        result.cpu_seconds = _cpu_seconds() - before
        # A JVM ends compilers that it does not need.
        result.compile_seconds = max(_compile_seconds() - compiled_before, 0.0)
        result.peak_python_bytes = max(map(_peak, _python_processes()))


@contextmanager
def on_one_core(pid: int) -> Iterator[None]:
    """Keep all threads of a process on one core.

    To wake a thread on another core of a virtual machine takes the hypervisor. A broker does so
    many times for each small entry that it fetches from its bookie, and for each few that it has in
    memory: chance would decide whether that takes more time than all else.
    """
    cores = os.sched_getaffinity(pid)
    _keep_on(pid, {max(cores)})
    try:
        yield
    finally:
        _keep_on(pid, cores)


def _keep_on(pid: int, cores: set[int]) -> None:
    moved = True
    # Threads start on the cores of those that start them, even meanwhile.
    while moved:
        moved = False
        for name in os.listdir(f"/proc/{pid}/task"):
            with suppress(ProcessLookupError):
                if os.sched_getaffinity(int(name)) != cores:
                    os.sched_setaffinity(int(name), cores)
                    moved = True
