"""Where a test can kill a writing process: named points, off unless the environment names one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

VARIABLE = "PULSAR_SPARK_CRASH_AT"
"""``POINT``, ``POINT:N`` for the N-th time that it is reached, and with ``@FILE`` behind it only
where that file does not exist, which it does from then on."""

POINTS = (
    "task-begun",
    "task-sent",
    "task-flushed",
    "before-decision",
    "after-decision",
    "after-markers",
    "between-ends",
    "after-ends",
    "after-done",
)

_reached: dict[str, int] = {}


def reach(point: str) -> None:
    """Kill this process if the environment says so."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    named, _, once = wanted.partition("@")
    name, _, number = named.partition(":")
    if name != point:
        return
    _reached[point] = _reached.get(point, 0) + 1
    if _reached[point] != int(number or 1) or (once and Path(once).exists()):
        return
    if once:
        Path(once).touch()
    os.kill(os.getpid(), signal.SIGKILL)
