"""A deadline for all attempts of an operation."""

from __future__ import annotations

import time

from pulsar_spark.errors import OperationTimeout

ATTEMPT_SECONDS = 10.0
"""A broker that unloads a topic may never answer a request about it.

It answers the next attempt, so no attempt waits longer than this.
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
