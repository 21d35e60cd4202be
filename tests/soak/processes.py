"""Finds the processes of a Spark with `ps`, to kill them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

WORKER = "pyspark.daemon pyspark.worker"
"""Daemons and what they fork: processes that run tasks, and parts of the driver's work."""

SOURCE = "pyspark.sql.streaming.python_streaming_source_runner"
"""The driver's part of a stream's source."""


def python_processes(root: int, kind: str) -> list[int]:
    """Return the processes of a kind below `root`; daemons do not count as workers."""
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


def connected(pids: list[int], port: int) -> list[int]:
    """Return the processes that have a connection to a port, according to /proc."""
    peers = f":{port:04X}"
    try:
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return []
    # For each socket: its number, local and remote address, …, the inode as the tenth field.
    sockets = {f"socket:[{fields[9]}]" for fields in map(str.split, lines) if peers in fields[2]}
    return [pid for pid in pids if not sockets.isdisjoint(_open_files(pid))]


def _open_files(pid: int) -> set[str]:
    found: set[str] = set()
    # The process may have ended, or belong to another user.
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def kill(pids: list[int]) -> int:
    """Kill processes; return how many were still running."""
    killed = 0
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        killed += 1
    return killed
