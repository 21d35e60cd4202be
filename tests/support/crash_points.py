"""The points at which an exactly-once write can be killed (`spark/writing/crash_points.py`)."""

from __future__ import annotations

TASK_POINTS = (
    "task-begun",
    "task-announced",
    "task-midway",
    "task-sent",
    "task-flushed",
    "task-left",
)
"""When its transaction has begun, before the first row is sent, after some, after all, when all are
acknowledged, at the end."""

DRIVER_POINTS = (
    "records-fenced",
    "attempts-fenced",
    "attempts-aborted",
    "before-decision",
    "after-decision",
    "after-markers",
    "between-ends",
    "after-ends",
    "after-done",
)
"""When it has fenced other drivers, and their tasks, and aborted what these left open; before and
after a sink's records, and each end of a transaction."""

POINTS = TASK_POINTS + DRIVER_POINTS
