"""The topic partitions of one consumer: initial ones, new ones and deleted ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from pulsar_spark.client.message import MessageId
from pulsar_spark.engine.consumers.consumer import TopicConsumer
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.lookups.topic_discovery import TopicDiscovery
from pulsar_spark.engine.operations import AllOf, Steps, settled, start
from pulsar_spark.engine.options import ConsumerOptions
from pulsar_spark.engine.retry import retried
from pulsar_spark.errors import PulsarError, UnsupportedFeature
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import EARLIEST_POSITION
from pulsar_spark.protocol.topic_name import TopicName, topic_of

logger = get_logger(__name__)

_CLOSE_SECONDS = 2.0


class TopicConsumers:
    """One consumer per topic partition, all with the same inbox. Thread-safe.

    `title` is their common name. Together they prefetch at most `max_queue_sizes` messages. `make`
    makes one of a topic, with options; see `TopicConsumer`.
    """

    def __init__(
        self,
        context: ClientContext,
        title: str,
        options: ConsumerOptions,
        max_queue_sizes: int,
        make: Callable[..., TopicConsumer],
    ) -> None:
        self._context = context
        self._title = title
        self._options = options
        self._max_queue_sizes = max_queue_sizes
        self._make_consumer = make
        # By topic partition; replaced, never changed, when partitions come or go.
        self._consumers: dict[str, TopicConsumer] = {}
        # Whether it is a topic without partitions, and stays the only one.
        self._is_one = False
        self._lock = threading.Lock()
        # The following are guarded by _lock.
        self._discovery: TopicDiscovery | None = None
        self._closed = False

    def __iter__(self) -> Iterator[TopicConsumer]:
        return iter(list(self._consumers.values()))

    def __len__(self) -> int:
        return len(self._consumers)

    @property
    def topics(self) -> set[str]:
        """The full names of the topics, without partitions."""
        return {topic_of(topic) for topic in self._consumers}

    def of(self, message_id: MessageId) -> TopicConsumer | None:
        """Return the consumer of a message, None if its topic is not, or no longer, among several.

        Raises UnsupportedFeature if the id does not say of which of them it is.
        """
        consumers = self._consumers
        topic = message_id.topic_name()
        if topic is not None and topic in consumers:
            return consumers[topic]
        # What is left of a pattern's topics may be another one than the id's.
        if len(consumers) == 1 and (topic is None or self._is_one):
            return next(iter(consumers.values()))
        if topic is not None:
            name, partition = TopicName.parse(topic), message_id.partition()
            part = name.partitioned.partition(partition) if partition >= 0 else name
            return consumers.get(str(part))
        own = [one for one in consumers.values() if one.partition == message_id.partition()]
        if len(own) == 1 and message_id.partition() >= 0:
            return own[0]
        raise UnsupportedFeature(
            "the message id does not say which of the consumer's topics it belongs to",
            "Give the message, or MessageId.deserialize(bytes, topic=NAME).",
            message_id=message_id,
        )

    def asking(self, operations: Sequence[Callable[[Deadline], Any]]) -> Steps[list[Any]]:
        """Return steps that run operations for their answers; they raise the first error."""
        timeout = self._context.options.operation_timeout
        results = yield AllOf([retried(operation) for operation in operations], timeout)
        for result in results:
            if isinstance(result, PulsarError):
                raise result.with_context(topic=self._title) from result.__cause__
        return results

    # --- topics that come and go ----------------------------------------------------------------

    def opening(self, topics: Sequence[str], discovery: TopicDiscovery | None) -> Steps[None]:
        """Return steps that subscribe to topic partitions, and to those discovered later.

        They raise if one of them is refused; the caller closes then. Brokers may create missing
        topics.
        """
        self._is_one = discovery is None and len(topics) == 1
        consumers = [self._make(topic, len(topics), self._options, create=True) for topic in topics]
        self._consumers = {one.topic: one for one in consumers}
        timeout = self._context.options.operation_timeout
        results = yield AllOf([one.open_operation for one in consumers], timeout)
        for consumer, result in zip(consumers, results, strict=True):
            if isinstance(result, PulsarError):
                raise result.with_context(topic=consumer.topic) from result.__cause__
        with self._lock:
            closed, self._discovery = self._closed, discovery
        if discovery is not None and not closed:
            discovery.begin()

    def _make(
        self, topic: str, of: int, options: ConsumerOptions, *, create: bool = False
    ) -> TopicConsumer:
        queue_size = min(options.receiver_queue_size, max(self._max_queue_sizes // of, 1))
        return self._make_consumer(topic, options, queue_size=queue_size, create=create)

    def on_topics(self, found: set[str]) -> None:
        """Consume exactly these topic partitions: open new ones, close those that are gone.

        New partitions are read from their beginning: their messages were published to this
        subscription. Discovery calls this, on any thread.
        """
        options = replace(
            self._options, initial=pb.CommandSubscribe.Earliest, start=EARLIEST_POSITION
        )
        with self._lock:
            if self._closed:
                return
            before = self._consumers
            gone = (
                []
                if self._discovery is None or self._discovery.pattern is None
                else [before[topic] for topic in before.keys() - found]
            )
            new = [self._make(topic, len(found), options) for topic in found - before.keys()]
            kept = {topic: one for topic, one in before.items() if one not in gone}
            self._consumers = kept | {one.topic: one for one in new}
        timeout = self._context.options.operation_timeout
        for consumer in new:
            opened = start(consumer.open_operation, timeout, self._context.timers)
            opened.add_done_callback(partial(self._on_opened, consumer))
        for consumer in gone:
            consumer.close()

    def _on_opened(self, consumer: TopicConsumer, opened: Future[None]) -> None:
        error = None if opened.cancelled() else opened.exception()
        if error is not None:
            # The next discovery finds it again and retries.
            logger.warning("%s: cannot subscribe yet: %s", consumer.topic, error)
            self._drop(consumer)

    def _drop(self, consumer: TopicConsumer) -> None:
        with self._lock:
            self._consumers = {
                topic: one for topic, one in self._consumers.items() if one is not consumer
            }
        consumer.close()

    def closing(self) -> Steps[None]:
        """Return steps that send pending acknowledgements, leave the brokers, stop the discovery.

        They wait for the brokers' answers, but not for long. All leave before an error of one is
        raised.
        """
        with self._lock:
            self._closed = True
            discovery = self._discovery
        if discovery is not None:
            discovery.close()
        answers: list[Future[Any] | None] = []
        failed: Exception | None = None
        for consumer in self:
            try:
                answers.append(consumer.close())
            except Exception as error:
                failed = failed or error
        yield from settled(answers, _CLOSE_SECONDS)
        if failed is not None:
            raise failed
