"""The processes of a Spark, found by `ps`, to be killed."""

from __future__ import annotations

import os
import signal
import subprocess

WORKER = "pyspark.daemon pyspark.worker"
"""Daemons and what they fork: processes that run tasks, and parts of the driver's work."""

SOURCE = "pyspark.sql.streaming.python_streaming_source_runner"
"""The driver's part of a stream's source."""


def python_processes(root: int, kind: str) -> list[int]:
    """Return the processes below `root` of a kind; daemons are not among those they fork."""
    parents, found = _listing(kind)
    return [
        pid
        for pid in found
        if (kind != WORKER or parents.get(pid) in found) and _is_below(pid, root, parents)
    ]


def _listing(kind: str) -> tuple[dict[int, int], set[int]]:
    done = subprocess.run(
        ["ps", "-axwwo", "pid=,ppid=,command="], capture_output=True, text=True, check=True
    )
    parents: dict[int, int] = {}
    found: set[int] = set()
    for line in done.stdout.splitlines():
        pid, parent, command = line.split(None, 2)
        parents[int(pid)] = int(parent)
        if kind in command:
            found.add(int(pid))
    return parents, found


def _is_below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != root:
        pid = parents[pid]
    return pid == root


def kill(pids: list[int]) -> int:
    """Kill processes; returns how many were still there."""
    killed = 0
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        killed += 1
    return killed
