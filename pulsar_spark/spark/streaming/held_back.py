"""Logs why a stream makes no progress: an open transaction holds its topics back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial

from pulsar_spark.engine.consumers.probe import Held, Probe
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.operations import start
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.message_id import Position

logger = get_logger(__name__)

_LOOK_SECONDS = 10.0
_ANSWER_SECONDS = 10.0
# How many topic partitions are checked together, least recently checked ones first.
_AT_ONCE = 16


class HeldWatch:
    """Warns of topic partitions whose end does not move while entries cannot be read.

    It asks brokers in the background: nobody waits for it or gets its errors.
    """

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._probe = Probe(context.pool)
        # Per topic partition: its end, since when, and when it was checked.
        self._ends: dict[str, tuple[Position, float]] = {}
        self._looked: dict[str, float] = {}
        self._next = 0.0

    def on_ends(self, ends: Mapping[str, Position]) -> None:
        """Record the ends of topic partitions; check some that do not move."""
        now = time.monotonic()
        for topic in set(self._ends).difference(ends):
            del self._ends[topic]
            self._looked.pop(topic, None)
        for topic, end in ends.items():
            if topic not in self._ends or self._ends[topic][0] != end:
                self._ends[topic] = end, now
        if now < self._next:
            return
        self._next = now + _LOOK_SECONDS
        resting = [
            topic for topic, (_, since) in self._ends.items() if now - since >= _LOOK_SECONDS
        ]
        resting.sort(key=lambda topic: self._looked.get(topic, 0.0))
        for topic in resting[:_AT_ONCE]:
            self._looked[topic] = now
            attempt = partial(self._probe.held_operation, topic, self._ends[topic][0])
            answer = start(attempt, _ANSWER_SECONDS, self._context.timers)
            answer.add_done_callback(partial(_log_held, topic))


def _log_held(topic: str, answer: Future[Held | None]) -> None:
    if not answer.cancelled() and answer.exception() is None and (held := answer.result()):
        logger.warning("%s: %s", topic, held)
