"""Retries: which errors are retried, and the pauses between attempts."""

from __future__ import annotations

import math
import random
import time
from typing import TypeVar

from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.operations import Operation, OperationFactory, Pause
from pulsar_spark.errors import (
    BrokerError,
    BrokerUnreachable,
    ConnectError,
    OperationTimeout,
    PulsarError,
    RemoteProtocolError,
    TlsError,
)
from pulsar_spark.logs import get_logger

logger = get_logger(__name__)

T = TypeVar("T")

_GROWTH = 2.0
_JITTER = 0.1
_RETRY_MAXIMUM = 5.0
# Has no state, so that processes may fork.
_RANDOM = random.SystemRandom()


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
        self._random = (rng or _RANDOM).random

    def next(self) -> float:
        """Return the seconds to wait before the next attempt."""
        delay = self._next
        self._next = min(delay * _GROWTH, self._maximum)
        return delay * (1 - _JITTER * self._random())

    def reset(self) -> None:
        """Begin again at `initial`, after an attempt that succeeded."""
        self._next = self._initial


# What passes, and what is final. The first row that fits an error counts; None is what the error's
# class says (`retryable`).
_PASSES: tuple[tuple[type[PulsarError], bool | None, bool | None], ...] = (
    # error                a client    a Spark task or stream; everyone's first attempt
    # Other attempts have used up the time, or would fail as this one did.
    (BrokerUnreachable, True, False),
    (OperationTimeout, True, True),
    # A server that is no broker stays so; but a balancer answers for brokers that are down.
    (RemoteProtocolError, True, False),
    # A certificate is renewed.
    (TlsError, True, False),
    # A permission, policy or quota changes, a topic is made again, another consumer leaves. What
    # ends a producer for good, its registrar knows.
    (BrokerError, True, None),
    (PulsarError, None, None),
)


def can_pass(error: PulsarError, *, lives: bool = False) -> bool:
    """Whether another attempt may succeed.

    What `lives`, a client's producer, consumer or reader after its first success, goes on wherever
    a broker may accept it later. Others fail promptly: Spark runs a task again, and a stream whose
    topic was made again must not go on as if it were the same.
    """
    _, client, task = next(row for row in _PASSES if isinstance(error, row[0]))
    passes = client if lives else task
    return error.retryable if passes is None else passes


def retrying(attempt: OperationFactory[T], deadline: Deadline) -> Operation[T]:
    """Return an operation that retries, with growing pauses, until an attempt succeeds.

    A temporary error, such as an attempt without an answer, is raised only if the deadline leaves
    no time for another attempt.
    """
    backoff = Backoff(maximum=_RETRY_MAXIMUM)
    attempts = 0
    before: PulsarError | None = None
    while True:
        try:
            return (yield from attempt(deadline))
        except PulsarError as error:
            attempts += 1
            delay = backoff.next()
            if not can_pass(error):
                raise
            if delay >= deadline.remaining():
                raise after_attempts(error, attempts, before) from error
            before = error
            if attempts == _TOLD_AFTER and isinstance(error, ConnectError):
                _tell(error, deadline.remaining())
        yield Pause(delay)


_TOLD_AFTER = 3
_TOLD_SECONDS = 30.0
_MAX_TOLD = 1000
_told: dict[str | None, float] = {}
"""When it was last said that a broker cannot be reached."""


def _tell(error: ConnectError, seconds: float) -> None:
    """Warn, once in a while, of a broker that cannot be reached: a wait is seen while it lasts."""
    now = time.monotonic()
    if now - _told.get(error.broker, -math.inf) < _TOLD_SECONDS:
        return
    if len(_told) >= _MAX_TOLD:
        _told.clear()
    _told[error.broker] = now
    logger.warning("%s; trying again for up to %.0f s", error.what, seconds)


def retried(attempt: OperationFactory[T]) -> OperationFactory[T]:
    """Return the factory of `retrying` operations."""
    return lambda deadline: retrying(attempt, deadline)


def after_attempts(error: PulsarError, attempts: int, before: PulsarError | None) -> PulsarError:
    """Return the error of the last attempt, with the number of attempts.

    The deadline of all attempts says only that it passed, so a timeout names the error before it.
    """
    told, sources, remedy = f"after {attempts} attempts", [error], error.remedy
    if before is not None and isinstance(error, OperationTimeout):
        told += f"; the one before: {before.what}"
        sources.append(before)
        remedy = remedy or before.remedy
    # Whoever waits for either finds it.
    is_unreachable = isinstance(error, ConnectError) and not isinstance(error, TlsError)
    kind = BrokerUnreachable if is_unreachable else type(error)
    tried = kind(f"{error.what} ({told})", remedy)
    for source in sources:
        tried = tried.with_context(
            topic=source.topic,
            partition=source.partition,
            message_id=source.message_id,
            broker=source.broker,
        )
    return tried
