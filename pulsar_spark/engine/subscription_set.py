"""One durable subscription on each of many topic partitions: attached, asked and acknowledged.

Whatever is asked is asked of all at once (see `operations`). Consumers that lose their place come
back in the background, ever more slowly while that fails; a question brings them back at once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any, TypeVar

from pulsar_spark.engine.consumer import DurableConsumer, TopicEnd
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.operations import OperationFactory, run_many
from pulsar_spark.engine.retry import Backoff, Deadline, is_retryable, retrying
from pulsar_spark.errors import ClosedError, PulsarError
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_RECONNECT_DELAY = 30.0
_CLOSE_SECONDS = 2.0


class SubscriptionSet:
    """The consumers of one subscription name on many topic partitions; close it at the end.

    `timeout` is how many seconds a question may take with all its attempts. For use by one
    thread. Results hold an error in the place of what could not be had.
    """

    def __init__(
        self, context: ClientContext, name: str, timeout: float, *, read_compacted: bool = False
    ) -> None:
        self.name = name
        self._context = context
        self._timeout = timeout
        self._read_compacted = read_compacted
        self._consumers: dict[str, DurableConsumer] = {}
        self._backoff = Backoff(maximum=_MAX_RECONNECT_DELAY)
        self._lock = threading.Lock()
        # The following are guarded by _lock.
        self._reviving = False
        self._closed = False

    def __contains__(self, topic: str) -> bool:
        return topic in self._consumers

    @property
    def topics(self) -> list[str]:
        """The topic partitions that there are consumers for."""
        return list(self._consumers)

    def add(self, topic: str, initial: int) -> None:
        """Have a consumer for a topic partition, attached by the next question.

        `initial` (EARLIEST or LATEST) is where a subscription begins that does not exist yet.
        """
        self._consumers[topic] = DurableConsumer(
            self._context,
            topic,
            self.name,
            initial,
            read_compacted=self._read_compacted,
            on_lost=self._on_lost,
        )

    def remove(self, topic: str) -> None:
        """Leave a topic partition; the subscription stays as it is."""
        consumer = self._consumers.pop(topic, None)
        if consumer is not None:
            consumer.close()

    def set_initial(self, topic: str, initial: int) -> None:
        """Say anew where the subscription begins if it has to be created again."""
        self._consumers[topic].initial = initial

    def create_partitions(self, topics: Iterable[str]) -> dict[str, TopicEnd | PulsarError]:
        """As `ends`, for partitions that are to be created where the broker has none yet.

        For partitions of topics that exist: brokers make partitions when they are first used.
        """
        names = list(topics)
        for name in names:
            self._consumers[name].create = True
        try:
            return self.ends(names)
        finally:
            # Whatever is deleted later must not come into being again by our coming back.
            for name in names:
                self._consumers[name].create = False

    # --- questions ----------------------------------------------------------------------------

    def ends(
        self,
        topics: Iterable[str] | None = None,
        known: Mapping[str, Position] | None = None,
    ) -> dict[str, TopicEnd | PulsarError]:
        """Return where topic partitions and their subscriptions stand, of all for None.

        `known` is how far they are known to have reached: an answer that they do not, or that
        they are empty, is made sure of.
        """
        reached = known or {}

        def operation(consumer: DurableConsumer) -> OperationFactory[TopicEnd]:
            upto = reached.get(consumer.topic, EARLIEST_POSITION)
            return lambda deadline: consumer.end_operation(deadline, upto)

        return self._ask(topics, operation)

    def backlogs(self) -> dict[str, int | PulsarError]:
        """Return the entries of each topic partition that are not acknowledged."""
        answers = self._ask(None, lambda consumer: consumer.stats_operation)
        return {
            topic: answer if isinstance(answer, PulsarError) else int(answer.msgBacklog)
            for topic, answer in answers.items()
        }

    def seek(self, positions: Mapping[str, Position]) -> dict[str, PulsarError | None]:
        """Move subscriptions, also backwards."""
        return self._ask(
            positions,
            lambda consumer: lambda end: consumer.seek_operation(positions[consumer.topic], end),
        )

    def unsubscribe(self) -> dict[str, PulsarError | None]:
        """Remove the subscriptions from the brokers."""
        return self._ask(None, lambda consumer: consumer.unsubscribe_operation)

    def _ask(
        self,
        topics: Iterable[str] | None,
        operation: Callable[[DurableConsumer], OperationFactory[T]],
    ) -> dict[str, T | PulsarError]:
        names = list(self._consumers if topics is None else topics)
        factories = [self._retried(operation(self._consumers[name])) for name in names]
        results = run_many(factories, self._timeout)
        return {
            name: result.with_context(topic=name) if isinstance(result, PulsarError) else result
            for name, result in zip(names, results, strict=True)
        }

    @staticmethod
    def _retried(attempt: OperationFactory[T]) -> OperationFactory[T]:
        return lambda deadline: retrying(attempt, deadline)

    # --- acknowledgements -----------------------------------------------------------------------

    def acknowledge(self, topic: str, position: Position, batch_size: int = 0) -> None:
        """Have everything before a position acknowledged, as `DurableConsumer.acknowledge`."""
        self._consumers[topic].acknowledge(position, batch_size)

    @property
    def acks_pending(self) -> int:
        """Topic partitions whose acknowledgement is not confirmed yet."""
        return sum(consumer.ack_pending for consumer in self._consumers.values())

    # --- coming back --------------------------------------------------------------------------

    def _on_lost(self) -> None:
        with self._lock:
            if self._reviving or self._closed:
                return
            self._reviving = True
        with contextlib.suppress(ClosedError):
            self._context.timers.call_later(self._backoff.next(), self._revive)

    def _revive(self) -> None:
        """Attach all consumers that lost their place; in the background."""
        with self._lock:
            self._reviving = False
            if self._closed:
                return
        lost = [consumer for consumer in list(self._consumers.values()) if not consumer.attached]
        results = run_many(
            [consumer.attach_operation for consumer in lost],
            self._context.options.operation_timeout,
        )
        again = False
        for consumer, result in zip(lost, results, strict=True):
            if not isinstance(result, PulsarError):
                continue
            # What cannot pass by itself is told by the next question.
            again = again or is_retryable(result)
            logger.info("%s: cannot subscribe again yet: %s", consumer.topic, result.what)
        if again:
            self._on_lost()
        else:
            self._backoff.reset()

    # --- the end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave all topics, waiting at most two seconds for acknowledgements and answers."""
        with self._lock:
            self._closed = True
        deadline = Deadline(_CLOSE_SECONDS)
        while self.acks_pending and not deadline.expired():
            if not any(consumer.attached for consumer in self._consumers.values()):
                break
            threading.Event().wait(0.005)
        answers: list[Future[Any]] = []
        for consumer in self._consumers.values():
            answer = consumer.close()
            if answer is not None:
                answers.append(answer)
        wait_for(answers, deadline.remaining())
        self._consumers.clear()
