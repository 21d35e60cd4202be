"""Deadlines, and waits of users' threads that signals end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TypeVar

from pulsar_spark.errors import ConnectError, OperationTimeout

T = TypeVar("T")

ATTEMPT_SECONDS = 10.0
"""A broker that unloads a topic may never answer a request about it.

It answers the next attempt, so no attempt waits longer than this.
"""


SIGNAL_SECONDS = 0.2
"""How long the main thread waits at a time.

Python handles signals on the main thread, whose waits end only if the system sends the signal to
it. One that another thread raises (`signal.raise_signal`, `_thread.interrupt_main`) does not.
"""


class Deadline:
    """A point in time `seconds` from its creation, on the monotonic clock; None means never."""

    __slots__ = ("at", "seconds")

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.at = float("inf") if seconds is None else time.monotonic() + seconds

    def remaining(self) -> float:
        """Remaining seconds, never negative; infinite without a deadline."""
        return max(self.at - time.monotonic(), 0.0)

    def attempt(self, at_most: float = ATTEMPT_SECONDS) -> float:
        """Seconds that one of several attempts may take, more than 0."""
        return max(min(self.remaining(), at_most, ATTEMPT_SECONDS), 0.001)

    def expired(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self.at

    def check(self, what: str) -> None:
        """Raise OperationTimeout, saying that `what` took too long, if the time is up."""
        if self.expired():
            raise OperationTimeout(f"{what} did not end within {self.seconds:g} s")


def is_interrupt(error: BaseException) -> bool:
    """Whether an error is Ctrl-C: Python raises that on the main thread.

    On another thread a user's function has raised it, and its text may quote a secret.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and isinstance(error, KeyboardInterrupt)


def at_a_time(seconds: float) -> float:
    """Return how long a thread may wait before it looks again whether it has to."""
    is_main = threading.current_thread() is threading.main_thread()
    return min(seconds, SIGNAL_SECONDS if is_main else threading.TIMEOUT_MAX)


def wait_until(
    changed: threading.Condition, condition: Callable[[], object], deadline: Deadline
) -> bool:
    """Wait until a condition holds, whose changes `changed` tells; false at the deadline."""
    while not condition():
        if deadline.expired():
            return False
        changed.wait(at_a_time(deadline.remaining()))
    return True


def result_within(future: Future[T], seconds: float) -> T:
    """Return a future's result; raises its error, or concurrent.futures' TimeoutError."""
    deadline = Deadline(seconds)
    while True:
        try:
            return future.result(at_a_time(deadline.remaining()))
        except FutureTimeout:
            # It may be the future's own error, or have come only now.
            if future.done():
                return future.result()
            if deadline.expired():
                raise


def call_apart(call: Callable[[], T], seconds: float, name: str) -> T:
    """Return what a call returns or raises, on a thread that is abandoned after `seconds`.

    For what has no deadline of its own. Raises concurrent.futures' TimeoutError, and ConnectError
    without a thread.
    """
    answer: Future[T] = Future()
    try:
        threading.Thread(target=complete, args=(answer, call), name=name, daemon=True).start()
    except RuntimeError as error:
        raise ConnectError(f"no thread could be started ({error})") from None
    try:
        return answer.result(min(seconds, threading.TIMEOUT_MAX))
    finally:
        # The traceback of its error must not keep it.
        del answer


def complete(future: Future[T], call: Callable[[], T]) -> None:
    """Complete a future with what a call returns or raises."""
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)
