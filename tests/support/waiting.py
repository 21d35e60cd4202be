"""How tests wait for a condition, with a deadline that even a busy machine meets.

To check that nothing happens, a test waits for something that would come after it (a barrier, like
`WireClient.nothing_came`): no length of a pause fits every machine.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

# Long enough for a busy machine: only failing tests wait for so long.
PATIENCE = 60.0


def wait_until(condition: Callable[[], T], what: str = "it", seconds: float = PATIENCE) -> T:
    """Wait for a condition and return its value; fail the test with `what` if it does not hold.

    Errors of `condition` are errors of the test.
    """
    deadline = time.monotonic() + seconds
    pause = 0.001
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return found


def finish(*threads: threading.Thread, seconds: float = PATIENCE) -> None:
    """Wait until threads have ended; fail the test if one does not."""
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    assert not _alive(threads), f"{_alive(threads)}: not at an end within {seconds:g} s"


def is_in(thread: threading.Thread, function: str) -> bool:
    """Whether a thread is inside a Python function of this name; "wait": it waits for another one.

    So a test need not hope that a thread has got somewhere after a pause.
    """
    # The number of a thread that has ended may be another one's.
    frame = sys._current_frames().get(thread.ident or 0) if thread.is_alive() else None
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


class Clock:
    """Stands in for a module's `time`: it stands still until a test, or who sleeps, moves it on."""

    def __init__(self) -> None:
        self._now = time.monotonic()

    def monotonic(self) -> float:
        """The time, in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds

    sleep = advance


def _alive(threads: Sequence[threading.Thread]) -> list[str]:
    return [thread.name for thread in threads if thread.is_alive()]
