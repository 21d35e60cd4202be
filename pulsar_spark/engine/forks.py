"""Counts the forks that led to this process, so that a child can tell what it has inherited.

Objects that have threads, locks or sockets note the count when they are made, and compare it before
each use. `os.getpid` would do too, but it is a system call, too slow for every message.
"""

from __future__ import annotations

import os
from typing import Any

from pulsar_spark.errors import ClosedError

_counted = [0]


def fork_count() -> int:
    """Return a number that is another one in each fork of this process."""
    return _counted[0]


def used_after_fork(what: str, made_anew: str | None = None, **context: Any) -> ClosedError:
    """Return the error for the use of an object that another process has made."""
    return ClosedError(
        f"the {what} was made by another process and cannot be used after a fork",
        f"Make a {made_anew or what} of its own in each process.",
        **context,
    )


def _after_fork() -> None:
    _counted[0] += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
