"""The consumer that `PulsarClient.subscribe` gives: the official client's methods."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeAlias

from pulsar_spark.client.callbacks import CallbackThread
from pulsar_spark.client.consumer_policies import DEFAULT_BATCH, ConsumerBatchReceivePolicy
from pulsar_spark.client.consumer_stats import BrokerConsumerStats, sum_of
from pulsar_spark.client.dead_letters import DeadLetterOffice
from pulsar_spark.client.enums import Result, result_of
from pulsar_spark.client.message import Message, MessageId, messages_of
from pulsar_spark.client.schema import Schema
from pulsar_spark.client.transaction import Transaction
from pulsar_spark.engine.closing import Closing
from pulsar_spark.engine.consumers.acknowledgments import EntryKey
from pulsar_spark.engine.consumers.consumer import Delivery, TopicConsumer, ask
from pulsar_spark.engine.consumers.inbox import Inbox
from pulsar_spark.engine.consumers.receiver_queue import ReceiverBudget
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.lookups.topic_discovery import TopicDiscovery
from pulsar_spark.engine.operations import run, run_many, start
from pulsar_spark.engine.options import ConsumerOptions
from pulsar_spark.engine.retry import Deadline, retrying
from pulsar_spark.errors import (
    ClosedError,
    CorruptMessage,
    NotAllowed,
    OperationTimeout,
    OptionError,
    PulsarError,
    TopicNotFound,
    UnsupportedFeature,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, MessageIdAdv
from pulsar_spark.protocol.topic_name import TopicName

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 2.0
# Entries that came for the last time and are kept until they are acknowledged or dead letters.
_MAX_SUSPECTS = 10_000

MessageListener: TypeAlias = "Callable[[PulsarConsumer, Message], object]"
"""What `subscribe` takes as `message_listener`."""

ReceiveCallback: TypeAlias = "Callable[[Result, Message | None], object]"
"""What `receive_async` takes: it is told the result, and the message if there is one."""


class ConsumerEventListener(Protocol):
    """Who wants to know when a consumer of a Failover subscription is the active one."""

    def became_active(self, consumer: PulsarConsumer, partition_id: int) -> object:
        """The consumer gets the messages of a partition (-1: of the topic) from now on."""

    def became_inactive(self, consumer: PulsarConsumer, partition_id: int) -> object:
        """Another consumer gets them."""


@dataclass(frozen=True, slots=True)
class ReceivingRules:
    """How a consumer treats its callers, besides the options of its subscription."""

    batch: ConsumerBatchReceivePolicy = DEFAULT_BATCH
    listener: MessageListener | None = None
    events: ConsumerEventListener | None = None
    stats_cache_seconds: float = 30.0
    max_queue_sizes: int = 50_000
    dead_letters: DeadLetterOffice | None = None


class PulsarConsumer(Closing):
    """Receives the messages of a subscription, and acknowledges them. Made by `subscribe`.

    Thread-safe. An iteration yields messages until the consumer is closed.
    """

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        options: ConsumerOptions,
        schema: Schema,
        rules: ReceivingRules,
        budget: ReceiverBudget,
        callbacks: CallbackThread,
        on_close: Callable[[PulsarConsumer], None],
    ) -> None:
        self._context = context
        self._options = options
        self._schema = schema
        self._rules = rules
        self._budget = budget
        self._callbacks = callbacks
        self._on_close = on_close
        self._topic = topic
        self._inbox = Inbox(self._on_ready)
        self._discovery: TopicDiscovery | None = None
        # By topic partition; another one takes its place when there are more or fewer.
        self._consumers: dict[str, TopicConsumer] = {}
        self._lock = threading.Lock()
        # The following are guarded by _lock: an entry that was taken, and what is left of it.
        self._delivery: Delivery | None = None
        self._messages: deque[Message] = deque()
        self._failed: PulsarError | None = None
        # The following are guarded by _calls.
        self._calls = threading.Lock()
        self._waiting: deque[ReceiveCallback] = deque()
        self._suspects: OrderedDict[tuple[str, EntryKey], list[Message]] = OrderedDict()
        self._scheduled = False
        self._paused = False
        self._closed = False
        self._stats: tuple[float, BrokerConsumerStats] | None = None

    def __iter__(self) -> Iterator[Message]:
        """Yield messages as they come, until the consumer is closed."""
        while True:
            try:
                message = self.receive()
            except ClosedError:
                return
            yield message

    # --- what it is ---------------------------------------------------------------------------

    def topic(self) -> str:
        """The full name of the topic; of several, all of them."""
        return self._topic

    def subscription_name(self) -> str:
        """The name of the subscription."""
        return self._options.subscription

    def consumer_name(self) -> str:
        """The name that was given, or that the client made up."""
        return self._options.consumer_name or ""

    def is_connected(self) -> bool:
        """Whether all topic partitions are connected at this moment."""
        consumers = list(self._consumers.values())
        return not self._closed and all(consumer.attached for consumer in consumers)

    def has_reached_end_of_topic(self) -> bool:
        """Whether all topics are terminated and everything in them is acknowledged."""
        consumers = list(self._consumers.values())
        return bool(consumers) and all(consumer.end_reached for consumer in consumers)

    # --- receiving ----------------------------------------------------------------------------

    def receive(self, timeout_millis: int | None = None) -> Message:
        """Return the next message; waits for it, at most `timeout_millis`.

        Raises OperationTimeout if there was none, ClosedError after `close`, what ended the
        consumer, and CorruptMessage for a message that cannot be read: it is not acknowledged, and
        the next call goes on behind it.
        """
        self._check_receiving()
        seconds = None
        if timeout_millis is not None:
            if not self._options.receiver_queue_size:
                raise OptionError("a consumer with no receiver queue cannot wait with a timeout")
            seconds = timeout_millis / 1000
        deadline = Deadline(seconds)
        while (message := self._next()) is None:
            self._pull()
            if not self._inbox.wait(deadline) and deadline.expired():
                raise OperationTimeout(
                    f"there was no message within {timeout_millis} ms", topic=self._topic
                )
        return message

    def receive_async(self, callback: ReceiveCallback) -> None:
        """Have the next message given to `callback` on a thread of the client.

        It is told ``(Result.Ok, message)``, or another result and None.
        """
        self._check_receiving()
        with self._calls:
            self._waiting.append(callback)
        self._pull()
        self._on_ready()

    def batch_receive(self) -> list[Message]:
        """Return messages when there are as many as the policy says, or its time is up."""
        self._check_receiving()
        policy = self._rules.batch
        deadline = Deadline(policy.timeout_ms / 1000 if policy.timeout_ms > 0 else None)
        most = policy.max_num_message if policy.max_num_message > 0 else None
        found: list[Message] = []
        left = policy.max_num_bytes if policy.max_num_bytes > 0 else None
        while most is None or len(found) < most:
            try:
                left, full = self._collect(found, most, left)
            except PulsarError as error:
                if not found:
                    raise
                self._failed = error
                break
            if full:
                break
            self._pull()
            if not self._inbox.wait(deadline) and deadline.expired():
                break
        return found

    def _check_receiving(self) -> None:
        self._check_open()
        if self._rules.listener is not None:
            raise OptionError("a consumer with a message_listener cannot receive otherwise")

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the consumer is closed", topic=self._topic)

    def _next(self) -> Message | None:
        """Return the next message, None if there is none now; raises as `receive`."""
        with self._lock:
            if not self._fill():
                return None
            return self._take_one()

    def _collect(
        self, found: list[Message], most: int | None, left: int | None
    ) -> tuple[int | None, bool]:
        """Add messages; return the bytes that there may be more, and whether these are enough."""
        with self._lock:
            while (most is None or len(found) < most) and self._fill():
                if left is None and self._take_all(found, most):
                    continue
                messages = self._messages
                while messages and (most is None or len(found) < most):
                    if left is not None:
                        size = len(messages[0].data())
                        if found and size > left:
                            return left, True
                        left -= size
                    found.append(self._take_one())
        return left, (left is not None and left <= 0) or len(found) == most

    def _take_all(self, found: list[Message], most: int | None) -> bool:
        """Take all that is left of an entry, if there is room for it; _lock is held."""
        delivery, messages = self._delivery, self._messages
        assert delivery is not None
        if delivery.consumer.keeps_books or (
            most is not None and len(found) + len(messages) > most
        ):
            return False
        found.extend(messages)
        messages.clear()
        delivery.consumer.finish(delivery)
        return True

    def _fill(self) -> bool:
        """Make sure that there are messages to take, if there are any; _lock is held."""
        delivery = self._delivery
        if self._messages and delivery is not None and delivery.current:
            return True
        self._messages.clear()
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error
        while True:
            delivery = self._delivery = self._inbox.next()
            if delivery is None:
                return False
            if self._open(delivery):
                return True

    def _open(self, delivery: Delivery) -> bool:
        """Make messages of an entry; return whether there are any."""
        entry = delivery.entry
        try:
            self._messages.extend(messages_of(entry, self._schema, delivery.left))
        except CorruptMessage as error:
            self._messages.clear()
            delivery.consumer.finish(delivery)
            if not self._options.discard_corrupt:
                raise error.with_context(topic=entry.topic) from error.__cause__
            delivery.consumer.discard((entry.ledger_id, entry.entry_id), error)
            return False
        if (dead := self._rules.dead_letters) is not None:
            self._suspect(dead, delivery)
        if not self._messages:
            # Compaction left nothing of it, or it is a dead letter.
            delivery.consumer.finish(delivery)
        return bool(self._messages)

    # --- dead letters -------------------------------------------------------------------------

    def _suspect(self, dead: DeadLetterOffice, delivery: Delivery) -> None:
        """Keep an entry that comes for the last time; one that came too often is a dead letter."""
        entry, most = delivery.entry, dead.policy.max_redeliver_count
        if entry.redelivery_count < most:
            return
        consumer, key = delivery.consumer, (entry.ledger_id, entry.entry_id)
        with self._calls:
            self._suspects[consumer.topic, key] = list(self._messages)
            if len(self._suspects) > _MAX_SUSPECTS:
                # If it is refused it is delivered once more, and is known then.
                self._suspects.popitem(last=False)
        if entry.redelivery_count > most:
            self._messages.clear()
            self.divert(consumer, [key])

    def divert(self, consumer: TopicConsumer, keys: list[EntryKey]) -> list[EntryKey]:
        """Send entries that came for the last time to the topic of dead letters."""
        dead = self._rules.dead_letters
        others: list[EntryKey] = []
        for key in keys:
            with self._calls:
                messages = self._suspects.pop((consumer.topic, key), None)
            if dead is None or messages is None:
                others.append(key)
            else:
                self._bury(dead, consumer, key, messages)
        return others

    def forget(self, consumer: TopicConsumer, key: EntryKey) -> None:
        """Forget an entry that is acknowledged."""
        with self._calls:
            self._suspects.pop((consumer.topic, key), None)

    def _bury(
        self,
        dead: DeadLetterOffice,
        consumer: TopicConsumer,
        key: EntryKey,
        messages: list[Message],
    ) -> None:
        """Send what is not acknowledged of an entry away, and acknowledge it then."""
        ids = [message.message_id().unwrap() for message in messages]
        left = [at for at, found in enumerate(ids) if not consumer.acks.is_done(found)]

        def done(error: PulsarError | None) -> None:
            if error is None:
                for at in left:
                    consumer.acknowledge(ids[at])
            elif not self._closed:
                logger.warning("%s: a dead letter cannot be sent: %s", consumer.topic, error)
                consumer.refuse(MessageIdAdv(*key))

        if left:
            dead.bury([messages[at] for at in left], done)

    def _take_one(self) -> Message:
        delivery = self._delivery
        assert delivery is not None
        message = self._messages.popleft()
        if delivery.consumer.keeps_books:
            delivery.consumer.given_out(delivery, message.message_id().batch_index())
        if not self._messages:
            delivery.consumer.finish(delivery)
        # Another thread may have something now.
        self._inbox.wake()
        return message

    def _pull(self) -> None:
        if not self._options.receiver_queue_size:
            for consumer in list(self._consumers.values()):
                consumer.pull()

    # --- callbacks ----------------------------------------------------------------------------

    def _on_ready(self) -> None:
        """Have whoever waits for a callback served, on the thread for that."""
        with self._calls:
            wanted = self._waiting or (self._rules.listener is not None and not self._paused)
            if not wanted or self._scheduled:
                return
            self._scheduled = True
        self._callbacks.run(self._serve)

    def _serve(self) -> None:
        """Give one message out; others have their turn before the next one."""
        with self._calls:
            self._scheduled = False
            if self._closed or (self._paused and not self._waiting):
                return
            callback = self._waiting.popleft() if self._waiting else None
        try:
            message = self._next()
        except PulsarError as error:
            self._tell(callback, error)
            return
        if message is None:
            if callback is not None:
                with self._calls:
                    self._waiting.appendleft(callback)
            self._pull()
            return
        try:
            if callback is not None:
                callback(Result.Ok, message)
            elif self._rules.listener is not None:
                self._rules.listener(self, message)
        finally:
            self._on_ready()

    def _tell(self, callback: ReceiveCallback | None, error: PulsarError) -> None:
        if callback is not None:
            try:
                callback(result_of(error), None)
            finally:
                self._on_ready()
        elif not isinstance(error, ClosedError):
            logger.error("%s: a message cannot be given to the listener: %s", self._topic, error)
            if isinstance(error, CorruptMessage):
                self._on_ready()

    def pause_message_listener(self) -> None:
        """Give the listener no more messages, until `resume_message_listener`."""
        self._check_listener()
        with self._calls:
            self._paused = True

    def resume_message_listener(self) -> None:
        """Give the listener messages again."""
        self._check_listener()
        with self._calls:
            self._paused = False
        self._on_ready()

    def _check_listener(self) -> None:
        if self._rules.listener is None:
            raise OptionError("the consumer was made without a message_listener")

    def _on_active(self, consumer: TopicConsumer, is_active: bool) -> None:
        events = self._rules.events
        if events is None:
            return
        tell = events.became_active if is_active else events.became_inactive
        self._callbacks.run(partial(tell, self, consumer.partition))

    # --- acknowledging ------------------------------------------------------------------------

    def acknowledge(
        self,
        message: Message | MessageId,
        *,
        properties: Mapping[str, int] | None = None,
        txn: Transaction | None = None,
    ) -> None:
        """Acknowledge one message.

        It is sent with others, after 100 ms at the latest. With receipts, returns when the broker
        has confirmed it, and raises what it is refused with. With `properties`, for the broker to
        keep, the whole entry is acknowledged at once. Within `txn` it counts when that is
        committed; raises TransactionConflict if another one has acknowledged the message.
        """
        consumer, message_id = self._find(message)
        if txn is not None:
            self._acknowledge_in(txn, consumer, message_id, cumulative=False)
        elif properties:
            self._wait(consumer.acknowledge_with(message_id, dict(properties), cumulative=False))
        else:
            self._wait(consumer.acknowledge(message_id))

    def acknowledge_cumulative(
        self,
        message: Message | MessageId,
        *,
        properties: Mapping[str, int] | None = None,
        txn: Transaction | None = None,
    ) -> None:
        """Acknowledge a message, and all before it of the same topic partition.

        As `acknowledge`; raises NotAllowed on Shared and Key_Shared subscriptions.
        """
        if self._options.shared:
            raise NotAllowed(
                "cumulative acknowledgements are for Exclusive and Failover subscriptions only",
                "Acknowledge each message.",
                topic=self._topic,
            )
        consumer, message_id = self._find(message)
        if txn is not None:
            self._acknowledge_in(txn, consumer, message_id, cumulative=True)
        elif properties:
            self._wait(consumer.acknowledge_with(message_id, dict(properties), cumulative=True))
        else:
            self._wait(consumer.acknowledge_upto(message_id))

    def _acknowledge_in(
        self,
        txn: Transaction,
        consumer: TopicConsumer,
        message_id: MessageIdAdv,
        *,
        cumulative: bool,
    ) -> None:
        if not isinstance(txn, Transaction):
            raise OptionError("txn is not a Transaction of this package")
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
        """Have a message delivered again, after `negative_ack_redelivery_delay_ms`.

        The messages of a batch are delivered again together. Returns at once.
        """
        consumer, message_id = self._find(message)
        redeliveries = message.redelivery_count() if isinstance(message, Message) else 0
        consumer.refuse(message_id, redeliveries)

    def reconsume_later(
        self, message: Message, delay_millis: int, properties: dict[str, str] | None = None
    ) -> None:
        """Have a message delivered again after a delay, from the topic of retries.

        Returns when it is stored there and acknowledged here. One that was put off more often than
        the dead letter policy allows is a dead letter instead. Raises OptionError unless the
        consumer was made with `enable_retry`.
        """
        dead = self._rules.dead_letters
        if dead is None or dead.retry_topic not in self._topics_with_retries():
            raise OptionError(
                "the consumer has no topic of retries", "Subscribe with enable_retry=True."
            )
        consumer, message_id = self._find(message)
        stored: Future[None] = Future()

        def done(error: PulsarError | None) -> None:
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(error)

        at = int(time.time() * 1000) + delay_millis
        dead.put_off(message, at, delay_millis, properties or {}, done)
        self._wait(stored)
        self._wait(consumer.acknowledge(message_id))

    def _topics_with_retries(self) -> set[str]:
        return {str(TopicName.parse(topic).partitioned) for topic in self._consumers}

    def redeliver_unacknowledged_messages(self) -> None:
        """Have all messages delivered again that are not acknowledged. Returns at once."""
        self._check_open()
        for consumer in list(self._consumers.values()):
            consumer.redeliver_all()

    def _wait(self, receipt: Future[Any] | bool | None) -> None:
        if not isinstance(receipt, Future):
            return
        timeout = self._context.options.operation_timeout
        try:
            receipt.result(timeout)
        except FutureTimeout as error:
            if isinstance(error, PulsarError):
                raise
            raise OperationTimeout(
                f"an acknowledgement had no receipt within {timeout:g} s", topic=self._topic
            ) from None

    def _find(self, message: Message | MessageId) -> tuple[TopicConsumer, MessageIdAdv]:
        """Return which consumer a message belongs to, and its id."""
        self._check_open()
        if isinstance(message, Message):
            found = message.message_id()
        elif isinstance(message, MessageId):
            found = message
        else:
            raise OptionError(f"a {type(message).__name__} is neither a Message nor a MessageId")
        return self._consumer_of(found), found.unwrap()

    def _consumer_of(self, message_id: MessageId) -> TopicConsumer:
        consumers = self._consumers
        topic = message_id.topic_name()
        if topic is not None and topic in consumers:
            return consumers[topic]
        if len(consumers) == 1:
            return next(iter(consumers.values()))
        own = [one for one in consumers.values() if one.partition == message_id.partition()]
        if topic is None and len(own) == 1 and message_id.partition() >= 0:
            return own[0]
        raise UnsupportedFeature(
            "the message id does not say which of the consumer's topics it belongs to",
            "Give the message, or MessageId.deserialize(bytes, topic=NAME).",
            topic=topic,
            message_id=message_id,
        )

    # --- asking and moving --------------------------------------------------------------------

    def seek(self, messageid: MessageId | int) -> None:
        """Move the subscription behind a message, or to a publish time in ms since the epoch.

        The message itself comes too if the consumer was made with `start_message_id_inclusive`.
        Of several topic partitions, a message id moves its own; `earliest`, `latest` and a time
        move all.
        """
        self._check_open()
        if isinstance(messageid, MessageId):
            everywhere = messageid in (MessageId.earliest, MessageId.latest)
            target: MessageIdAdv | int = messageid.unwrap()
            chosen = (
                list(self._consumers.values()) if everywhere else [self._consumer_of(messageid)]
            )
        elif isinstance(messageid, int):
            target, chosen = messageid, list(self._consumers.values())
        else:
            raise OptionError("seek takes a MessageId or a time in milliseconds")
        self._ask_all([partial(one.seek_operation, target) for one in chosen])

    def get_last_message_id(self) -> MessageId:
        """Return the id of the topic's last message; raises UnsupportedFeature for several."""
        self._check_open()
        if len(self._consumers) != 1:
            raise UnsupportedFeature(
                "a consumer of several topic partitions has several last messages",
                "Make a consumer of one partition; get_topic_partitions names them.",
                topic=self._topic,
            )
        consumer = next(iter(self._consumers.values()))
        return MessageId.wrap(ask(self._context, consumer.last_id_operation), consumer.topic)

    def get_broker_consumer_stats(self) -> BrokerConsumerStats:
        """Return what the brokers say of the consumer; asked for anew when the cache is old."""
        self._check_open()
        if self._stats is not None and self._stats[0] > time.monotonic():
            return self._stats[1]
        found = self._ask_all([one.stats_operation for one in self._consumers.values()])
        stats = sum_of(found)
        self._stats = (time.monotonic() + self._rules.stats_cache_seconds, stats)
        return stats

    def unsubscribe(self, force: bool = False) -> None:
        """Remove the subscription, with all that it has acknowledged, and close the consumer.

        Raises what the broker refuses with: where others are connected, unless by `force`.
        """
        self._check_open()
        self._ask_all(
            [partial(one.unsubscribe_operation, force) for one in self._consumers.values()]
        )
        self.close()

    def _ask_all(self, operations: Sequence[Callable[[Deadline], Any]]) -> list[Any]:
        timeout = self._context.options.operation_timeout
        results = run_many([_retried(operation) for operation in operations], timeout)
        for result in results:
            if isinstance(result, PulsarError):
                raise result.with_context(topic=self._topic) from result.__cause__
        return results

    # --- the beginning and the end --------------------------------------------------------------

    def open(self, topics: Sequence[str], discovery: TopicDiscovery | None) -> None:
        """Subscribe to topic partitions, and to those that are found later.

        Where one of them is refused, closes what was opened and raises. Brokers may create topics
        that are missing.
        """
        consumers = [self._make(topic, len(topics), self._options, create=True) for topic in topics]
        self._consumers = {one.topic: one for one in consumers}
        timeout = self._context.options.operation_timeout
        results = run_many([one.open_operation for one in consumers], timeout)
        for consumer, result in zip(consumers, results, strict=True):
            if isinstance(result, PulsarError):
                self.close()
                raise result.with_context(topic=consumer.topic) from result.__cause__
        with self._calls:
            closed, self._discovery = self._closed, discovery
        if discovery is not None and not closed:
            discovery.begin()

    def _make(
        self, topic: str, of: int, options: ConsumerOptions, *, create: bool = False
    ) -> TopicConsumer:
        queue_size = min(options.receiver_queue_size, max(self._rules.max_queue_sizes // of, 1))
        return TopicConsumer(
            self._context,
            topic,
            options,
            self._inbox,
            self._budget,
            queue_size=queue_size,
            create=create,
            on_active=self._on_active,
            suspects=None if self._rules.dead_letters is None else self,
            on_failed=self._on_failed,
        )

    def on_topics(self, found: set[str]) -> None:
        """Have consumers of these topic partitions, and of those that are gone no more.

        What is new is read from its beginning: it was published to this subscription. For
        discoveries, on any thread.
        """
        options = replace(
            self._options, initial=pb.CommandSubscribe.Earliest, start=EARLIEST_POSITION
        )
        with self._calls:
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
        for consumer in gone:
            consumer.close()
        timeout = self._context.options.operation_timeout
        for consumer in new:
            opened = start(consumer.open_operation, timeout, self._context.timers)
            opened.add_done_callback(partial(self._on_opened, consumer))

    def _on_failed(self, consumer: TopicConsumer, error: PulsarError) -> None:
        """End by an error of one topic; one that is gone leaves the others as they are."""
        found = self._discovery
        many = len(self._consumers) > 1 or (found is not None and found.pattern is not None)
        if isinstance(error, TopicNotFound) and many:
            logger.warning("%s: the topic is gone, and so is its consumer", consumer.topic)
            self._drop(consumer)
        else:
            self._inbox.fail(error)

    def _drop(self, consumer: TopicConsumer) -> None:
        with self._calls:
            self._consumers = {
                topic: one for topic, one in self._consumers.items() if one is not consumer
            }
        consumer.close()

    def _on_opened(self, consumer: TopicConsumer, opened: Future[None]) -> None:
        error = None if opened.cancelled() else opened.exception()
        if error is not None:
            # It is found again, and tried again then.
            logger.warning("%s: cannot subscribe yet: %s", consumer.topic, error)
            self._drop(consumer)

    def close(self) -> None:
        """Send what is acknowledged, and leave; the subscription stays. May be called twice."""
        with self._calls:
            if self._closed:
                return
            self._closed = True
            waiting = list(self._waiting)
            self._waiting.clear()
        self._on_close(self)
        if self._discovery is not None:
            self._discovery.close()
        self._inbox.close()
        if self._rules.dead_letters is not None:
            self._rules.dead_letters.close()
        answers = [consumer.close() for consumer in self._consumers.values()]
        wait_for([answer for answer in answers if answer is not None], _CLOSE_SECONDS)
        for callback in waiting:
            self._callbacks.run(partial(callback, Result.AlreadyClosed, None))


def _retried(operation: Callable[[Deadline], Any]) -> Callable[[Deadline], Any]:
    return lambda deadline: retrying(operation, deadline)


# The official client's name.
Consumer = PulsarConsumer
