"""Dead letters and retries: messages sent to another topic and then acknowledged.

A dead letter was delivered more often than its policy allows. A retry goes, with a delivery
time, to a topic that the consumer is subscribed to as well. Topics and properties have the Java
client's names, so each client can read the other's letters.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pulsar_spark.client.callbacks import CallbackThread
from pulsar_spark.client.consumer_policies import ConsumerDeadLetterPolicy
from pulsar_spark.client.message import Message
from pulsar_spark.client.values import MessageValues
from pulsar_spark.engine.consumers.acknowledgments import EntryKey
from pulsar_spark.engine.consumers.consumer import TopicConsumer
from pulsar_spark.engine.consumers.delivery import Delivery
from pulsar_spark.engine.consumers.rows import ReceivedRows
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.operations import Steps, settled
from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.errors import ClosedError, PulsarError
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.protocol.outgoing_messages import MessageFields
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.protocol.topic_name import TopicName, topic_of

logger = get_logger(__name__)

REAL_TOPIC = "REAL_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIMES = "RECONSUMETIMES"
DELAY_TIME = "DELAY_TIME"

MAX_RECONSUME_TIMES = 16
"""How often a message is retried if no dead-letter policy says so."""

# Entries on their last delivery that are kept until they are acknowledged or dead letters.
_MAX_KEPT = 10_000
# How many producers of letters a consumer has at a time: one for each topic and schema.
_MAX_WRITERS = 50
_CLOSE_SECONDS = 5.0

Done = Callable[[PulsarError | None], object]

# The topic and the schema of letters.
_Writing = tuple[str, SchemaInfo | None]


class LetterProducer:
    """Sends letters on a thread of its own, because creating a producer takes time.

    Each letter keeps the schema that it was written with, so each topic and schema needs its own
    producer. Senders learn, on any thread, when their letter is stored or why it could not be.
    """

    def __init__(self, context: ClientContext, values: MessageValues, initial: str = "") -> None:
        self._context = context
        self._values = values
        self._options = ProducerOptions(
            batching_enabled=False, chunking_enabled=True, initial_subscription=initial or None
        )
        self._worker = CallbackThread("pulsar-spark-letters")
        self._lock = threading.Lock()
        # The following are guarded by _lock.
        self._closed = False
        self._used = False
        # Used by the worker only.
        self._left = False
        self._writers: OrderedDict[_Writing, PartitionedProducer] = OrderedDict()

    def send(
        self, topic: str, message: Message, more: dict[str, str], done: Done, deliver_at: int = 0
    ) -> None:
        """Send a message to a topic with `more` properties. Never waits.

        It is delivered at the time `deliver_at` in milliseconds if that is given.
        """
        with self._lock:
            self._used = True
        self._worker.run(partial(self._send, topic, message, more, done, deliver_at))

    def _send(
        self, topic: str, message: Message, more: dict[str, str], done: Done, deliver_at: int
    ) -> None:
        def complete(error: PulsarError | None, message_id: MessageIdAdv | None) -> None:
            done(error)

        if self._left:
            done(ClosedError("the consumer is closed"))
            return
        schema = None
        try:
            schema = self._values.written_with(message)
            copy = copy_for(message, more)
            copy.deliver_at = deliver_at
            self._opened(topic, schema).send(copy, complete, at_once=True)
        except PulsarError as error:
            # If sending fails now, the next letter tries again.
            writer = self._writers.pop((topic, schema), None)
            if writer is not None:
                writer.abort()
            done(error)

    def _opened(self, topic: str, schema: SchemaInfo | None) -> PartitionedProducer:
        found = self._writers.get((topic, schema))
        if found is None:
            options = replace(self._options, schema=schema)
            found = PartitionedProducer(self._context, topic, options, survives_timeouts=True)
            try:
                found.open()
            except PulsarError:
                found.abort()
                raise
            self._writers[topic, schema] = found
            if len(self._writers) > _MAX_WRITERS:
                self._close_writer(self._writers.popitem(last=False)[1])
        self._writers.move_to_end((topic, schema))
        return found

    def _close_writer(self, writer: PartitionedProducer) -> None:
        try:
            writer.close()
        except PulsarError as error:
            logger.warning("%s: dead letters were not stored: %s", writer.topic, error)

    def closing(self) -> Steps[None]:
        """Return steps that close the producer after everything sent is stored."""
        with self._lock:
            if self._closed:
                return
            self._closed, used = True, self._used
            # A first letter that comes now is refused.
            self._left = not used
        try:
            if used:
                self._worker.run(self._leave)
                yield from settled([self._worker.reached()], _CLOSE_SECONDS)
        finally:
            self._worker.close(0.0)

    def _leave(self) -> None:
        # What the consumer still refuses comes again to the next one.
        self._left = True
        while self._writers:
            self._close_writer(self._writers.popitem()[1])


class DeadLetterProducers:
    """Sends messages to the dead-letter or retry topic, as the consumer's policy says.

    Topics that the policy does not name are named after the subscription and one of the `topics` of
    the consumer: the first with `retries`, otherwise that of each message.
    """

    def __init__(
        self,
        context: ClientContext,
        topics: Sequence[str],
        subscription: str,
        policy: ConsumerDeadLetterPolicy,
        values: MessageValues,
        *,
        retries: bool,
    ) -> None:
        self.policy = policy
        self._topics = topics
        self._subscription = subscription
        self.retry_topic = policy.retry_letter_topic
        self._dead_letter_topic = policy.dead_letter_topic
        if retries and topics:
            named = f"{topics[0]}-{subscription}"
            self.retry_topic = self.retry_topic or f"{named}-RETRY"
            self._dead_letter_topic = self._dead_letter_topic or f"{named}-DLQ"
        if self.retry_topic:
            self.retry_topic = str(TopicName.parse(self.retry_topic))
        self._dead_letters = LetterProducer(context, values, policy.initial_subscription_name)
        self._retries = LetterProducer(context, values)

    def _dead_letter_topic_of(self, message: Message) -> str:
        if self._dead_letter_topic:
            return self._dead_letter_topic
        topic = message.topic_name()
        if topic not in self._topics:
            topic = topic_of(topic)
        return f"{topic}-{self._subscription}-DLQ"

    def send_to_dead_letter_topic(self, messages: Sequence[Message], done: Done) -> None:
        """Send an entry's messages to the dead-letter topic; `done` is called once for all."""
        stored = _AllStored(len(messages), done)
        for message in messages:
            self._dead_letters.send(self._dead_letter_topic_of(message), message, {}, stored.done)

    def retry_later(
        self, message: Message, deliver_at: int, delay_ms: int, more: dict[str, str], done: Done
    ) -> None:
        """Have a message redelivered through the retry topic, or make it a dead letter."""
        times = _number(message.properties().get(RECONSUME_TIMES)) + 1
        more = {**more, RECONSUME_TIMES: str(times), DELAY_TIME: str(delay_ms)}
        if times > self.policy.max_redeliver_count:
            self._dead_letters.send(self._dead_letter_topic_of(message), message, more, done)
        else:
            self._retries.send(self.retry_topic, message, more, done, deliver_at)

    def closing(self) -> Steps[None]:
        """Return steps that close the producers after everything sent is stored."""
        try:
            yield from self._dead_letters.closing()
        finally:
            yield from self._retries.closing()


class LastDeliveries:
    """Entries on their last delivery: if they are refused again, they become dead letters.

    An entry that came more often than that is a dead letter at once. Thread-safe.
    """

    def __init__(self, dead_letters: DeadLetterProducers) -> None:
        self._dead_letters = dead_letters
        self._lock = threading.Lock()
        # The following are guarded by _lock.
        self._kept: OrderedDict[tuple[str, EntryKey], list[Message]] = OrderedDict()
        self._closed = False

    def may_be_last(self, rows: ReceivedRows) -> bool:
        """Whether some of these messages may be on their last delivery."""
        return rows.redelivered or not self._dead_letters.policy.max_redeliver_count

    def takes(self, delivery: Delivery, messages: list[Message]) -> bool:
        """Inspect an entry and its messages; return whether they are dead letters."""
        entry, most = delivery.content, self._dead_letters.policy.max_redeliver_count
        if isinstance(entry, ReceivedRows) or entry.redelivery_count < most:
            return False
        consumer, key = delivery.consumer, (entry.ledger_id, entry.entry_id)
        assert isinstance(consumer, TopicConsumer)
        with self._lock:
            self._kept[consumer.topic, key] = messages
            if len(self._kept) > _MAX_KEPT:
                # If it is refused, the next delivery makes it a dead letter.
                self._kept.popitem(last=False)
        if entry.redelivery_count <= most:
            return False
        self.route(consumer, [key])
        return True

    def route(self, consumer: TopicConsumer, keys: list[EntryKey]) -> list[EntryKey]:
        """Send away entries whose last delivery was refused; return the others."""
        others: list[EntryKey] = []
        for key in keys:
            with self._lock:
                messages = self._kept.pop((consumer.topic, key), None)
            if messages is None:
                others.append(key)
            else:
                self._send_away(consumer, key, messages)
        return others

    def forget(self, consumer: TopicConsumer, key: EntryKey) -> None:
        """Forget an entry that was acknowledged."""
        with self._lock:
            self._kept.pop((consumer.topic, key), None)

    def forget_all(self, consumer: TopicConsumer) -> None:
        """Forget all entries of a consumer, which are delivered for the first time again."""
        with self._lock:
            for place in [place for place in self._kept if place[0] == consumer.topic]:
                del self._kept[place]

    def _send_away(self, consumer: TopicConsumer, key: EntryKey, messages: list[Message]) -> None:
        """Send an entry's unacknowledged messages to the dead-letter topic and acknowledge them."""
        ids = [message.message_id().unwrap() for message in messages]
        left = [at for at, found in enumerate(ids) if not consumer.acks.is_done(found)]

        def done(error: PulsarError | None) -> None:
            if error is None:
                for at in left:
                    consumer.acknowledge(ids[at])
            elif not self._closed:
                logger.warning("%s: a dead letter cannot be sent: %s", consumer.topic, error)
                consumer.negative_acknowledge(MessageIdAdv(*key))

        if left:
            self._dead_letters.send_to_dead_letter_topic([messages[at] for at in left], done)

    def closing(self) -> Steps[None]:
        """Return steps that close the producers after all that was sent is stored."""
        with self._lock:
            self._closed = True
        yield from self._dead_letters.closing()


class _AllStored:
    """Calls back once: when all of some letters are stored, or with the first error."""

    def __init__(self, count: int, done: Done) -> None:
        self._left = count
        self._done = done
        self._error: PulsarError | None = None
        self._lock = threading.Lock()

    def done(self, error: PulsarError | None) -> None:
        with self._lock:
            self._left -= 1
            self._error = self._error or error
            over = not self._left
        if over:
            self._done(self._error)


def copy_for(message: Message, more: dict[str, str]) -> MessageFields:
    """Return a copy of a message to send elsewhere; properties say where it was received first."""
    fields: Any = message.fields()
    properties = {
        **message.properties(),
        **more,
    }
    properties.setdefault(REAL_TOPIC, message.topic_name())
    properties.setdefault(ORIGIN_MESSAGE_ID, str(message.message_id()))
    return MessageFields(
        None if fields.null_value else message.data(),
        message.partition_key() if fields.HasField("partition_key") else None,
        key_is_base64=fields.partition_key_b64_encoded,
        ordering_key=fields.ordering_key if fields.HasField("ordering_key") else None,
        properties=tuple(properties.items()),
        event_time=fields.event_time,
    )


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0
