"""Waiting: exponential back-off between attempts, and deadlines over all of them."""

from __future__ import annotations

import random
import time

from pulsar_spark.errors import OperationTimeout

_GROWTH = 2.0
_JITTER = 0.1


class Backoff:
    """Delays that double from `initial` to `maximum` seconds, each shortened by up to 10 %.

    The random part keeps many clients that lost the same broker from coming back at once.
    """

    def __init__(
        self, initial: float = 0.1, maximum: float = 60.0, rng: random.Random | None = None
    ) -> None:
        self._initial = initial
        self._maximum = maximum
        self._next = initial
        self._random = rng or random.Random()

    def next(self) -> float:
        """Return the seconds to wait before the next attempt."""
        delay = self._next
        self._next = min(delay * _GROWTH, self._maximum)
        return delay * (1 - _JITTER * self._random.random())

    def reset(self) -> None:
        """Begin again at `initial`, after an attempt that succeeded."""
        self._next = self._initial


ATTEMPT_SECONDS = 10.0
"""A broker that lets go of a topic can leave a question about it without an answer for good.

Asked again it answers, so no attempt waits longer than this.
"""


class Deadline:
    """A point on the monotonic clock, `seconds` from its creation; None means never."""

    __slots__ = ("at", "seconds")

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.at = float("inf") if seconds is None else time.monotonic() + seconds

    def remaining(self) -> float:
        """Seconds that are left, never negative; infinite without an end."""
        return max(self.at - time.monotonic(), 0.0)

    def attempt(self) -> float:
        """Seconds that one question of many attempts may take, more than 0."""
        return max(min(self.remaining(), ATTEMPT_SECONDS), 0.001)

    def expired(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self.at

    def check(self, what: str) -> None:
        """Raise OperationTimeout, saying that `what` took too long, if the time is up."""
        if self.expired():
            raise OperationTimeout(f"{what} did not end within {self.seconds:g} s")
