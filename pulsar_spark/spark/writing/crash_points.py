"""Crash points for tests: a variable kills a writing process at a named point.

`PULSAR_SPARK_CRASH_AT` names a folder. A process that reaches a point of which a file in it bears
the name takes that file away and dies. What the file says is which time the point is reached
(1, if nothing) and, behind that, `hold`: then the process leaves its id in `POINT.held` and waits
to be killed, with all that belongs to it.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

VARIABLE = "PULSAR_SPARK_CRASH_AT"

TASK_POINTS = ("task-begun", "task-midway", "task-sent", "task-flushed", "task-left")
"""Before the first row is sent, after some, after all, when all are acknowledged, at the end."""

DRIVER_POINTS = (
    "before-decision",
    "after-decision",
    "after-markers",
    "between-ends",
    "after-ends",
    "after-done",
)
"""Around the records of a sink, and around each end of a transaction."""

POINTS = TASK_POINTS + DRIVER_POINTS

_HELD_SECONDS = 600.0

_reached: dict[str, int] = {}


def armed(point: str) -> bool:
    """Whether a process that reaches this point is to die."""
    folder = os.environ.get(VARIABLE)
    return folder is not None and Path(folder, point).exists()


def reach(point: str) -> None:
    """Die here, if a test wants it."""
    if not armed(point):
        return
    file = Path(os.environ[VARIABLE], point)
    try:
        wanted = file.read_text().split()
        _reached[point] = _reached.get(point, 0) + 1
        if _reached[point] != int(wanted[0] if wanted else 1):
            return
        # Whoever removes it is the one that dies.
        file.unlink()
    except FileNotFoundError:
        return
    if "hold" in wanted:
        file.with_suffix(".held").write_text(str(os.getpid()))
        time.sleep(_HELD_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
