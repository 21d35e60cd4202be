"""Crash points for tests: an environment variable kills a writing process at a named point.

`PULSAR_SPARK_CRASH_AT` is a folder. A process that reaches a point deletes the file of that name
in it and dies. The file says at which visit of the point (1 if empty). With `hold` after the
number, the process writes its id to `POINT.held` and waits until a test kills it, with all that
belongs to it.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

VARIABLE = "PULSAR_SPARK_CRASH_AT"

_HELD_SECONDS = 600.0

_reached: dict[str, int] = {}


def armed(point: str) -> bool:
    """Whether a process that reaches this point must die."""
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
        # Only the process that deletes the file dies.
        file.unlink()
    except FileNotFoundError:
        return
    if "hold" in wanted:
        file.with_suffix(".held").write_text(str(os.getpid()))
        time.sleep(_HELD_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
