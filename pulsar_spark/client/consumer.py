"""The consumer that `PulsarClient.subscribe` returns: the official client's methods."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeAlias

from pulsar_spark.client.arguments import check_texts, long_values, publish_time, seconds
from pulsar_spark.client.callbacks import CallbackThread
from pulsar_spark.client.consumer_policies import DEFAULT_BATCH, ConsumerBatchReceivePolicy
from pulsar_spark.client.consumer_stats import BrokerConsumerStats, sum_of
from pulsar_spark.client.dead_letters import DeadLetterProducers, LastDeliveries
from pulsar_spark.client.exceptions import (
    CumulativeAcknowledgementNotAllowedError,
    interruptible,
    receipt_of,
)
from pulsar_spark.client.incoming import IncomingMessages
from pulsar_spark.client.listening import Listening, ReceiveCallback
from pulsar_spark.client.message import Message, MessageId
from pulsar_spark.client.topic_consumers import TopicConsumers
from pulsar_spark.client.transaction import Transaction
from pulsar_spark.client.values import MessageValues
from pulsar_spark.engine.closing import Closing, weakly
from pulsar_spark.engine.consumers.chunk_fetcher import FetchOn
from pulsar_spark.engine.consumers.consumer import TopicConsumer
from pulsar_spark.engine.consumers.inbox import Inbox
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.forks import fork_count, used_after_fork
from pulsar_spark.engine.lookups.topic_discovery import TopicDiscovery
from pulsar_spark.engine.memory import ReceiverBudget
from pulsar_spark.engine.operations import Steps, in_steps, run
from pulsar_spark.engine.options import ConsumerOptions
from pulsar_spark.errors import (
    ClosedError,
    OperationTimeout,
    OptionError,
    PulsarError,
    UnsupportedFeature,
)
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.protocol.topic_name import TopicName

MessageListener: TypeAlias = "Callable[[PulsarConsumer, Message], object]"
"""The type of `subscribe`'s `message_listener`."""


class ConsumerEventListener(Protocol):
    """Told when a consumer of a Failover subscription becomes active or inactive."""

    def became_active(self, consumer: PulsarConsumer, partition_id: int) -> object:
        """The consumer gets a partition's messages (-1: the topic's) from now on."""

    def became_inactive(self, consumer: PulsarConsumer, partition_id: int) -> object:
        """Another consumer gets them."""


class PulsarConsumer(Closing):
    """Receives a subscription's messages and acknowledges them. Made by `subscribe`.

    Thread-safe. Iterating yields messages until the consumer is closed.
    """

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        options: ConsumerOptions,
        values: MessageValues,
        given: Any,
        dead_letters: DeadLetterProducers | None,
        fetch_on: FetchOn | None,
        budget: ReceiverBudget,
        callbacks: CallbackThread,
        on_close: Callable[[PulsarConsumer], None],
    ) -> None:
        self._context = context
        self._options = options
        # What does not belong to the subscription; `given` has the arguments of `subscribe`.
        self._batch: ConsumerBatchReceivePolicy = given.batch_receive_policy or DEFAULT_BATCH
        self._listener: MessageListener | None = given.message_listener
        self._events: ConsumerEventListener | None = given.consumer_event_listener
        self._stats_cache_seconds: float = given.broker_consumer_stats_cache_time_ms / 1000
        self._dead_letters = dead_letters
        self._callbacks = callbacks
        self._on_close = on_close
        self._topic = topic
        self._last_deliveries = LastDeliveries(dead_letters) if dead_letters else None
        self._inbox = Inbox(weakly(self._on_ready))
        self._incoming = IncomingMessages(
            self._inbox, values, self._last_deliveries, discard_corrupt=options.discard_corrupt
        )
        listener = None if self._listener is None else partial(self._listener, self)
        self._listening = Listening(topic, self._incoming, listener, callbacks, self._pull)
        make = partial(
            TopicConsumer,
            context,
            inbox=self._inbox,
            budget=budget,
            on_active=weakly(self._on_active),
            dead_letter_router=self._last_deliveries,
            fetch_on=fetch_on,
        )
        most: int = given.max_total_receiver_queue_size_across_partitions
        self._consumers = TopicConsumers(context, topic, options, most, make)
        # Told when there may be a message, and at the end.
        self._wake: Callable[[], None] | None = None
        self._forks = fork_count()
        self._close_lock = threading.Lock()
        # Guarded by _close_lock.
        self._closed = False
        self._stats: tuple[float, BrokerConsumerStats] | None = None

    def __iter__(self) -> Iterator[Message]:
        """Yield messages as they arrive, until the consumer is closed."""
        while True:
            try:
                message = self.receive()
            except ClosedError:
                return
            yield message

    # --- attributes ---------------------------------------------------------------------------

    def topic(self) -> str:
        """The full name of the topic; with several topics, all their names."""
        return self._topic

    def subscription_name(self) -> str:
        """The name of the subscription."""
        return self._options.subscription

    def consumer_name(self) -> str:
        """The name that was given, or that the client chose."""
        return self._options.consumer_name or ""

    def is_connected(self) -> bool:
        """Whether all topic partitions are connected at this moment."""
        return not self._closed and all(consumer.attached for consumer in self._consumers)

    def has_reached_end_of_topic(self) -> bool:
        """Whether all topics are terminated and all their messages acknowledged."""
        consumers = list(self._consumers)
        return bool(consumers) and all(consumer.end_reached for consumer in consumers)

    # --- receiving ----------------------------------------------------------------------------

    def receive(self, timeout_millis: int | None = None) -> Message:
        """Return the next message; wait for it, at most `timeout_millis`.

        Raises OperationTimeout if no message arrived, ClosedError after `close`, and the error that
        ended the consumer. Raises CorruptMessage for a message that cannot be read, and
        IncompleteMessage for one without all of its chunks; it stays unacknowledged, and the next
        call returns the message after it. It may wait longer to read chunks that are missing.
        Interrupted is what Ctrl-C raises.
        """
        self._check_receiving()
        deadline = Deadline(seconds(timeout_millis))
        if timeout_millis is not None and not self._options.receiver_queue_size:
            raise OptionError("a consumer with no receiver queue cannot wait with a timeout")
        while (message := self._try_receive()) is None:
            if not self._wait_for_messages(deadline) and deadline.expired():
                raise OperationTimeout(
                    f"no message arrived within {timeout_millis} ms", topic=self._topic
                )
        return message

    def _wake_with(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, on any thread, when `_try_receive` may return or raise something."""
        self._wake = wake

    def _try_receive(self) -> Message | None:
        """Return the next message, None if there is none now. Raises as `receive`."""
        self._check_receiving()
        message = self._incoming.next()
        if message is None:
            self._pull()
        return message

    def receive_async(self, callback: ReceiveCallback) -> None:
        """Pass the next message to `callback`, on a thread of the client.

        The callback gets ``(Result.Ok, message)``, or another result and None.
        """
        self._check_receiving()
        self._listening.add(callback)

    def batch_receive(self) -> list[Message]:
        """Return messages once the policy's count or size is reached, or its time is up."""
        self._check_receiving()
        policy = self._batch
        deadline = Deadline(policy.timeout_ms / 1000 if policy.timeout_ms > 0 else None)
        most = policy.max_num_message if policy.max_num_message > 0 else None
        found: list[Message] = []
        left = policy.max_num_bytes if policy.max_num_bytes > 0 else None
        while most is None or len(found) < most:
            left, full = self._incoming.collect(found, most, left)
            if full:
                break
            self._pull()
            if not self._wait_for_messages(deadline) and deadline.expired():
                break
        return found

    @interruptible
    def _wait_for_messages(self, deadline: Deadline) -> bool:
        return self._inbox.wait(deadline)

    def _check_receiving(self) -> None:
        self._check_open()
        if self._listener is not None:
            raise OptionError("a consumer with a message_listener cannot call receive")

    def _check_open(self) -> None:
        if fork_count() != self._forks:
            # It has messages that its parent receives, too.
            raise used_after_fork("consumer", topic=self._topic)
        if self._closed:
            raise ClosedError("the consumer is closed", topic=self._topic)

    def _pull(self) -> None:
        if not self._options.receiver_queue_size:
            for consumer in self._consumers:
                consumer.pull()

    # --- callbacks ----------------------------------------------------------------------------

    def pause_message_listener(self) -> None:
        """Stop calling the listener, until `resume_message_listener`."""
        self._listening.pause()

    def resume_message_listener(self) -> None:
        """Call the listener again."""
        self._listening.resume()

    def _on_ready(self) -> None:
        if self._wake is not None:
            self._wake()
        self._listening.on_ready()

    def _on_active(self, consumer: TopicConsumer, is_active: bool) -> None:
        if (events := self._events) is not None:
            self._callbacks.run(partial(self._tell_events, events, consumer.partition, is_active))

    def _tell_events(self, events: ConsumerEventListener, partition: int, is_active: bool) -> None:
        tell = events.became_active if is_active else events.became_inactive
        tell(self, partition)

    # --- acknowledging ------------------------------------------------------------------------

    def acknowledge(
        self,
        message: Message | MessageId,
        *,
        properties: Mapping[str, int] | None = None,
        txn: Transaction | None = None,
    ) -> None:
        """Acknowledge one message; nothing happens if its topic is gone from among several.

        Nothing happens either for an id that names no message, as `earliest`, `latest` and the last
        one of an empty topic.
        Acknowledgements are sent together, after 100 ms at the latest. With receipts, this waits
        for the broker's confirmation, and raises its error, or ConnectionLost if the broker may
        have the acknowledgement or not. With `properties` it is sent at once; of a batch, they go
        with the last message. Brokers keep those of cumulative ones only.
        Within `txn` the acknowledgement takes effect at commit; raises TransactionConflict if
        another transaction has acknowledged the message.
        """
        if txn is not None:
            self._acknowledge_in(txn, message, properties, cumulative=False)
        else:
            self._wait(self._begin_acknowledge(message, properties))

    def _begin_acknowledge(
        self, message: Message | MessageId, properties: Mapping[str, int] | None = None
    ) -> Future[Any] | None:
        """As `acknowledge`, without waiting: return the future of its receipt, if there is one."""
        consumer, message_id = self._find(message)
        noted = long_values(properties, "properties")
        return None if consumer is None else consumer.acknowledge(message_id, noted)

    def acknowledge_cumulative(
        self,
        message: Message | MessageId,
        *,
        properties: Mapping[str, int] | None = None,
        txn: Transaction | None = None,
    ) -> None:
        """Acknowledge a message and all earlier ones of its topic partition.

        As `acknowledge`; raises NotAllowed on Shared and Key_Shared subscriptions.
        """
        if txn is not None:
            self._check_cumulative()
            self._acknowledge_in(txn, message, properties, cumulative=True)
        else:
            self._wait(self._begin_acknowledge_cumulative(message, properties))

    def _begin_acknowledge_cumulative(
        self, message: Message | MessageId, properties: Mapping[str, int] | None = None
    ) -> Future[Any] | None:
        """As `acknowledge_cumulative` and `_begin_acknowledge`."""
        self._check_cumulative()
        consumer, message_id = self._find(message)
        noted = long_values(properties, "properties")
        return None if consumer is None else consumer.acknowledge_upto(message_id, noted)

    def _check_cumulative(self) -> None:
        if self._options.shared:
            raise CumulativeAcknowledgementNotAllowedError(
                "cumulative acknowledgements are for Exclusive and Failover subscriptions only",
                "Acknowledge each message.",
                topic=self._topic,
            )

    @interruptible
    def _acknowledge_in(
        self,
        txn: Transaction,
        message: Message | MessageId,
        properties: Mapping[str, int] | None,
        *,
        cumulative: bool,
    ) -> None:
        consumer, message_id = self._find(message)
        if not isinstance(txn, Transaction):
            raise OptionError("txn is not a Transaction of this package")
        if properties:
            raise OptionError("an acknowledgement in a transaction has no properties")
        if consumer is None or not message_id.names_message:
            return
        txn.engine.add_subscription(consumer.topic, self._options.subscription)
        under_way = txn.engine.begin_operation()
        error: PulsarError | None = None
        try:
            run(
                lambda deadline: consumer.acknowledge_in_operation(
                    txn.engine.txn_id, message_id, deadline, cumulative=cumulative
                ),
                self._context.options.operation_timeout,
            )
        except PulsarError as failed:
            error = failed
            raise
        finally:
            under_way.end(error)

    def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Have a message redelivered after `negative_ack_redelivery_delay_ms`.

        All messages of a batch are redelivered together. Returns at once.
        """
        consumer, message_id = self._find(message)
        if consumer is None:
            return
        redeliveries = message.redelivery_count() if isinstance(message, Message) else 0
        consumer.negative_acknowledge(message_id, redeliveries)

    def reconsume_later(
        self, message: Message, delay_millis: int, properties: dict[str, str] | None = None
    ) -> None:
        """Have a message redelivered after a delay, through the retry topic.

        Returns when the retry topic has stored it and it is acknowledged here. Once a message has
        been retried as often as the dead-letter policy allows, it goes to the dead-letter topic
        instead. Raises OptionError unless the consumer was made with `enable_retry`.
        """
        dead = self._dead_letters
        if dead is None or dead.retry_topic not in self._consumers.topics:
            raise OptionError(
                "the consumer has no retry topic", "Subscribe with enable_retry=True."
            )
        check_texts(properties or {}, "properties")
        consumer, message_id = self._find(message)
        stored: Future[None] = Future()

        def done(error: PulsarError | None) -> None:
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(error)

        at = int(time.time() * 1000) + delay_millis
        dead.retry_later(message, at, delay_millis, properties or {}, done)
        self._wait(stored)
        if consumer is not None:
            self._wait(consumer.acknowledge(message_id))

    def redeliver_unacknowledged_messages(self) -> None:
        """Have all unacknowledged messages redelivered. Returns at once."""
        self._check_open()
        for consumer in self._consumers:
            consumer.redeliver_all()

    def _wait(self, receipt: Future[Any] | bool | None) -> None:
        if isinstance(receipt, Future):
            timeout = self._context.options.operation_timeout
            receipt_of(receipt, "an acknowledgement", timeout, self._topic)

    def _find(self, message: Message | MessageId) -> tuple[TopicConsumer | None, MessageIdAdv]:
        """Return a message's consumer, None if its topic is not among several, and its id."""
        self._check_open()
        if isinstance(message, Message):
            found = message.message_id()
        elif isinstance(message, MessageId):
            found = message
        else:
            raise OptionError(f"a {type(message).__name__} is neither a Message nor a MessageId")
        return self._consumers.of(found), found.unwrap()

    # --- questions and position ---------------------------------------------------------------

    @interruptible
    def seek(self, messageid: MessageId | int) -> None:
        """Move the subscription to after a message, or to a publish time in ms since the epoch.

        The message itself is delivered too if the consumer was made with
        `start_message_id_inclusive`. With several topic partitions, a message id moves its own
        partition; `earliest`, `latest` and a time move all.
        """
        in_steps(self._seeking(messageid))

    def _seeking(self, messageid: MessageId | int) -> Steps[None]:
        """Return the steps of `seek`."""
        self._check_open()
        if isinstance(messageid, MessageId):
            everywhere = messageid in (MessageId.earliest, MessageId.latest)
            target: MessageIdAdv | int = messageid.unwrap()
            chosen = list(self._consumers) if everywhere else [self._consumer_of(messageid)]
        else:
            target, chosen = publish_time(messageid), list(self._consumers)
        yield from self._consumers.asking([partial(one.seek_operation, target) for one in chosen])

    def _consumer_of(self, message_id: MessageId) -> TopicConsumer:
        consumer = self._consumers.of(message_id)
        if consumer is None:
            raise UnsupportedFeature(
                "the message id is of a topic that the consumer does not have, or no longer",
                topic=message_id.topic_name(),
                message_id=message_id,
            )
        return consumer

    @interruptible
    def get_last_message_id(self) -> MessageId:
        """Return the id of the topic's last message.

        Raises UnsupportedFeature for several topic partitions, and for a non-persistent topic.
        """
        return in_steps(self._asking_last_message_id())

    def _asking_last_message_id(self) -> Steps[MessageId]:
        """Return the steps of `get_last_message_id`."""
        self._check_open()
        if len(self._consumers) != 1:
            raise UnsupportedFeature(
                "a consumer of several topic partitions has several last messages",
                "Make a consumer of one partition; get_topic_partitions names them.",
                topic=self._topic,
            )
        consumer = next(iter(self._consumers))
        if not TopicName.parse(consumer.topic).is_persistent:
            raise UnsupportedFeature(
                "a non-persistent topic keeps nothing, and so has no last message",
                topic=consumer.topic,
            )
        (found,) = yield from self._consumers.asking([consumer.last_id_operation])
        return MessageId.wrap(found, consumer.topic)

    @interruptible
    def get_broker_consumer_stats(self) -> BrokerConsumerStats:
        """Return the brokers' statistics of the consumer, cached for a while."""
        self._check_open()
        if self._stats is not None and self._stats[0] > time.monotonic():
            return self._stats[1]
        found = in_steps(self._consumers.asking([one.stats_operation for one in self._consumers]))
        stats = sum_of(found)
        self._stats = (time.monotonic() + self._stats_cache_seconds, stats)
        return stats

    @interruptible
    def unsubscribe(self, force: bool = False) -> None:
        """Remove the subscription with its cursor, and close the consumer.

        Raises the broker's error, for example if other consumers are connected and `force` is
        false.
        """
        in_steps(self._unsubscribing(force))

    def _unsubscribing(self, force: bool = False) -> Steps[None]:
        """Return the steps of `unsubscribe`."""
        self._check_open()
        operations = [partial(one.unsubscribe_operation, force) for one in self._consumers]
        yield from self._consumers.asking(operations)
        yield from self._closing()

    # --- opening and closing --------------------------------------------------------------------

    def _opening(self, topics: Sequence[str], discovery: TopicDiscovery | None) -> Steps[None]:
        """Return steps that subscribe to topic partitions, and to those discovered later.

        If one of them is refused, they close all and raise.
        """
        try:
            yield from self._consumers.opening(topics, discovery)
        except BaseException:
            yield from self._closing()
            raise
        # Without a receiver queue, somebody must ask for the first message.
        self._on_ready()

    def on_topics(self, found: set[str]) -> None:
        """Consume exactly these topic partitions. Discovery calls this, on any thread."""
        self._consumers.on_topics(found)

    @interruptible
    def close(self) -> None:
        """Send pending acknowledgements and leave; the subscription stays. May be called twice."""
        in_steps(self._closing())

    def _closing(self) -> Steps[None]:
        """Return the steps of `close`."""
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        # Whatever interrupts a wait, the consumer leaves the brokers: nobody closes it again.
        try:
            self._on_close(self)
            self._inbox.close()
            self._listening.close()
            if self._wake is not None:
                self._wake()
            if self._last_deliveries is not None:
                yield from self._last_deliveries.closing()
        finally:
            yield from self._consumers.closing()


# The official client's name.
Consumer = PulsarConsumer
