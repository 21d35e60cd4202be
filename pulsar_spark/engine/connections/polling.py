"""Waiting for sockets that do not block."""

from __future__ import annotations

import errno
import select
from collections.abc import Callable, Mapping

from pulsar_spark.engine.deadline import Deadline

_SLICE = 0.25
"""A wait checks this often whether it is still wanted."""
_LONGEST = 2**31 / 1000 - 1
"""A longer wait, which the system call cannot count, has no end."""


def poll(wanted: Mapping[int, int], timeout: float) -> dict[int, int]:
    """Wait for events of file descriptors; return those that came, none after `timeout` seconds."""
    poller = select.poll()
    for descriptor, events in wanted.items():
        poller.register(descriptor, events)
    milliseconds = None if timeout > _LONGEST else max(int(timeout * 1000 + 0.999), 0)
    return dict(poller.poll(milliseconds))


def wait_connecting(
    descriptor: int, events: int, deadline: Deadline, cancelled: Callable[[], bool], what: str
) -> None:
    """Wait for events of a socket that is connecting.

    Raises OSError: ECANCELED if it was cancelled, ETIMEDOUT at the deadline; the latter names
    `what` was waited for.
    """
    while not poll({descriptor: events}, min(deadline.remaining(), _SLICE)):
        if cancelled():
            raise OSError(errno.ECANCELED, "closed while connecting")
        if deadline.expired():
            raise OSError(errno.ETIMEDOUT, f"no {what} within {deadline.seconds:.1f} s")
