"""The client for asyncio: the classes of the official package's `pulsar.asyncio`.

It is `PulsarClient` with awaitable methods. What they wait for is brought to the event loop by the
threads that the client has anyway, whatever the number of calls. Each error is a PulsarException.
A client and what it has made belong to one event loop at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

from pulsar_spark.client.client import PulsarClient
from pulsar_spark.client.consumer import PulsarConsumer
from pulsar_spark.client.consumer_policies import (
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
)
from pulsar_spark.client.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
    Result,
    result_of,
)
from pulsar_spark.client.event_loop import Turns, finish, run_on
from pulsar_spark.client.message import Message, MessageId
from pulsar_spark.client.producer import MessageRouter, PulsarProducer, set_entry_fields
from pulsar_spark.client.reader import PulsarReader
from pulsar_spark.client.schema import BytesSchema, Schema
from pulsar_spark.client.service_info import AutoClusterFailover, ServiceInfoProvider
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.encryption import KeyReader
from pulsar_spark.engine.operations import Steps, settled
from pulsar_spark.errors import (
    ClosedError,
    OperationTimeout,
    OptionError,
    ProducerQueueFull,
    PulsarError,
)
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.outgoing_messages import MessageFields

logger = get_logger(__name__)

T = TypeVar("T")

# The memory that a message waits for may be held by other producers.
_LOOK_FOR_ROOM_SECONDS = 0.1


class PulsarException(Exception):
    """An error of the asyncio client; `__cause__` is the one of `pulsar_spark.errors`."""

    def __init__(self, result: Result, msg: str | None = None) -> None:
        super().__init__(result, msg)
        self._result = result
        self._msg = msg

    def error(self) -> Result:
        """Return the result code."""
        return self._result

    def __str__(self) -> str:
        """Return the result's number and name, and the message."""
        named = f"{self._result.value} {self._result.name}"
        return f"{named}: {self._msg}" if self._msg else named


class _InvalidArgument(PulsarException, ValueError):
    """What was given cannot be meant."""


class _WrongType(_InvalidArgument, TypeError):
    """A value has another type than the producer's schema takes, or a message can have."""


def _exception_of(error: PulsarError) -> PulsarException:
    kind = PulsarException
    if isinstance(error, ValueError):
        kind = _WrongType if isinstance(error, TypeError) else _InvalidArgument
    raised = kind(result_of(error), str(error))
    raised.__cause__ = error
    return raised


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Raise errors of the package as PulsarException."""
    try:
        yield
    except PulsarError as error:
        raise _exception_of(error) from error


class _Core(PulsarClient):
    """The client that all is made with; what its methods would return, they return awaitable."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # There are no listeners that it could keep waiting.
        self._fetch_on = self._listener_threads[0].run

    def _finish(self, steps: Steps[T]) -> T:
        self._begin_checks()
        return cast(T, self.finish(steps))

    async def finish(self, steps: Steps[T]) -> T:
        """Take steps to their end on the event loop. Raises PulsarException."""
        with _told():
            return await finish(steps, self._context.timers)

    @property
    def operation_timeout(self) -> float:
        """Seconds."""
        return self._context.options.operation_timeout


class AsyncProducer:
    """Publishes messages to a topic. Made by `AsyncClient.create_producer`."""

    def __init__(self, producer: PulsarProducer, core: _Core) -> None:
        self._producer = producer
        self._core = core
        # Results of messages that have no receipt, in the order of the sends.
        self._pending: dict[asyncio.Future[MessageId], None] = {}
        self._room = Turns()

    async def send(
        self,
        content: Any,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> MessageId:
        """Publish a message, and return its id when it is stored.

        It waits for its batch, at most `batching_max_publish_delay_ms`. If the queue is full, this
        waits if the producer was made with `block_if_queue_full`, and raises ProducerQueueIsFull
        otherwise. A task that is cancelled takes no message back that was not waiting for room.
        """
        with _told():
            message = self._producer._message(
                content, properties, partition_key, ordering_key, sequence_id, event_timestamp
            )
            stays = False if disable_replication is None else disable_replication
            set_entry_fields(message, replication_clusters, stays, deliver_at, deliver_after, None)
            partition = self._producer._route(message)
            if self._producer._waits_for_room:
                stored = await self._begin_in_turn(message, partition)
            else:
                stored = self._begin(message, partition)
        return await asyncio.shield(stored)

    async def _begin_in_turn(
        self, message: MessageFields, partition: int
    ) -> asyncio.Future[MessageId]:
        deadline = Deadline(self._producer._send_timeout)

        def look() -> asyncio.Future[MessageId] | None:
            try:
                return self._begin(message, partition)
            except ProducerQueueFull as full:
                if deadline.expired():
                    raise OperationTimeout(
                        f"there was no room for a message within {deadline.seconds:g} s",
                        topic=self._producer.topic(),
                    ) from full
                return None

        return await self._room.until(look, lambda: _LOOK_FOR_ROOM_SECONDS)

    def _begin(self, message: MessageFields, partition: int) -> asyncio.Future[MessageId]:
        """Send a message; return the future of its id. Raises ProducerQueueFull."""
        loop = asyncio.get_running_loop()
        stored: asyncio.Future[MessageId] = loop.create_future()

        def complete(error: PulsarError | None, message_id: MessageId) -> None:
            self._pending.pop(stored, None)
            if error is None:
                stored.set_result(message_id)
            else:
                stored.set_exception(_exception_of(error.with_context()))
            self._room.wake()

        self._producer._send_soon(message, partition, complete, partial(run_on, loop))
        self._pending[stored] = None
        return stored

    async def flush(self) -> None:
        """Send what waits for its batch, and wait until all messages are stored.

        Raises the error of the first one that could not be delivered.
        """
        with _told():
            self._producer._writer.flush_batches_soon()
        await self._settle()

    async def _settle(self) -> None:
        # The results of a loop that has ended never come.
        loop = asyncio.get_running_loop()
        pending = [each for each in self._pending if each.get_loop() is loop]
        self._pending = dict.fromkeys(pending)
        if pending:
            await asyncio.wait(pending)
        errors = [error for each in pending if (error := each.exception()) is not None]
        if errors:
            raise errors[0]

    async def close(self) -> None:
        """Flush, and leave the topic. May be called twice.

        Raises as `flush`, and frees the resources even then; if the task is cancelled, messages
        without a receipt fail.
        """
        try:
            with contextlib.suppress(ClosedError):
                self._producer._writer.flush_batches_soon()
            await self._settle()
        except BaseException:
            await self._core.finish(self._producer._aborting())
            raise
        await self._core.finish(self._producer._leaving())

    def topic(self) -> str:
        """The full name of the topic."""
        return self._producer.topic()

    def producer_name(self) -> str:
        """The name that was given, or that the broker chose."""
        return self._producer.producer_name()

    def last_sequence_id(self) -> int:
        """That of the message that was stored last, as the sync client's."""
        return self._producer.last_sequence_id()

    def is_connected(self) -> bool:
        """Whether all partitions that were opened are connected at this moment."""
        return self._producer.is_connected()


class AsyncConsumer:
    """Receives a subscription's messages and acknowledges them. Made by `AsyncClient.subscribe`."""

    def __init__(self, consumer: PulsarConsumer, core: _Core) -> None:
        self._consumer = consumer
        self._core = core
        self._receiving = Turns()
        consumer._wake_with(self._receiving.wake)

    async def receive(self) -> Message:
        """Return the next message. Tasks that wait get messages in the order of their calls.

        A task that is cancelled while it waits has taken no message. Raises AlreadyClosed when the
        consumer is closed, and as the sync client's for messages that cannot be read.
        """
        with _told():
            return await self._receiving.until(self._consumer._try_receive)

    async def acknowledge(self, message: Message | MessageId) -> None:
        """Acknowledge one message."""
        with _told():
            receipt = self._consumer._begin_acknowledge(message)
        await self._receipt(receipt)

    async def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledge a message and all earlier ones of its topic partition."""
        with _told():
            receipt = self._consumer._begin_acknowledge_cumulative(message)
        await self._receipt(receipt)

    async def _receipt(self, receipt: Future[Any] | None) -> None:
        if receipt is None:
            return
        await self._core.finish(settled([receipt], self._core.operation_timeout))
        with _told():
            if not receipt.done():
                raise OperationTimeout(
                    f"an acknowledgement had no receipt within {self._core.operation_timeout:g} s",
                    topic=self._consumer.topic(),
                )
            receipt.result()

    async def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Have a message redelivered after `negative_ack_redelivery_delay_ms`."""
        with _told():
            self._consumer.negative_acknowledge(message)

    async def unsubscribe(self) -> None:
        """Remove the subscription with its cursor, and close the consumer."""
        await self._core.finish(self._consumer._unsubscribing())

    async def seek(self, messageid: MessageId | int) -> None:
        """Move the subscription to after a message, or to a publish time in ms since the epoch."""
        await self._core.finish(self._consumer._seeking(messageid))

    async def close(self) -> None:
        """Send pending acknowledgements and leave; the subscription stays. May be called twice."""
        await self._core.finish(self._consumer._closing())

    async def get_last_message_id(self) -> MessageId:
        """Return the id of the topic's last message."""
        return await self._core.finish(self._consumer._asking_last_message_id())

    def redeliver_unacknowledged_messages(self) -> None:
        """Have all unacknowledged messages redelivered. Returns at once."""
        with _told():
            self._consumer.redeliver_unacknowledged_messages()

    def topic(self) -> str:
        """The full name of the topic; with several topics, all their names."""
        return self._consumer.topic()

    def subscription_name(self) -> str:
        """The name of the subscription."""
        return self._consumer.subscription_name()

    def consumer_name(self) -> str:
        """The name that was given, or that the client chose."""
        return self._consumer.consumer_name()


class AsyncReader:
    """Reads a topic from a position on, for one task at a time. Made by `create_reader`."""

    def __init__(self, reader: PulsarReader, core: _Core) -> None:
        self._reader = reader
        self._core = core
        self._reading = Turns()
        reader._wake_with(self._reading.wake)

    async def read_next(self) -> Message:
        """Return the next message. A task that is cancelled while it waits has taken none."""
        with _told():
            return await self._reading.until(self._reader._try_read)

    async def has_message_available(self) -> bool:
        """Whether the topic has a message that `read_next` has not returned yet."""
        deadline = Deadline(self._core.operation_timeout)

        def look() -> bool | None:
            if self._reader._finds_message():
                return True
            if not self._reader._is_behind():
                return False
            deadline.check("reading to the end of the topic")
            return None

        with _told():
            for is_fresh in (False, True):
                if await self._reading.until(look, lambda: max(deadline.remaining(), 0.0)):
                    return True
                if not is_fresh:
                    # All that is known is read: only the broker knows of more.
                    await self._core.finish(self._reader._asking_ends())
            return False

    async def seek(self, messageid: MessageId | int) -> None:
        """Continue after a message, or at a publish time in milliseconds since the epoch."""
        await self._core.finish(self._reader._seeking(messageid))

    async def close(self) -> None:
        """Stop reading. May be called twice."""
        await self._core.finish(self._reader._closing())

    def topic(self) -> str:
        """The full name of the topic."""
        return self._reader.topic()

    def is_connected(self) -> bool:
        """Whether the reader is open; it reconnects automatically."""
        return self._reader.is_connected()


class AsyncClient:
    """A client of a Pulsar cluster for asyncio, with the parameters of `PulsarClient`."""

    def __init__(
        self, service_url: str | AutoClusterFailover | ServiceInfoProvider, **kwargs: Any
    ) -> None:
        self._core = _Core(service_url, **kwargs)
        self._producers: weakref.WeakSet[AsyncProducer] = weakref.WeakSet()

    async def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: Schema | None = None,
        initial_sequence_id: int | None = None,
        send_timeout_millis: float = 30000,
        compression_type: CompressionType = CompressionType.NONE,
        max_pending_messages: int = 1000,
        max_pending_messages_across_partitions: int = 50000,
        block_if_queue_full: bool = False,
        batching_enabled: bool = True,
        batching_max_messages: int = 1000,
        batching_max_allowed_size_in_bytes: int = 128 * 1024,
        batching_max_publish_delay_ms: float = 10,
        chunking_enabled: bool = False,
        message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution,
        lazy_start_partitioned_producers: bool = False,
        properties: dict[str, str] | None = None,
        batching_type: BatchingType = BatchingType.Default,
        encryption_key: str | None = None,
        crypto_key_reader: KeyReader | None = None,
        access_mode: ProducerAccessMode = ProducerAccessMode.Shared,
        message_router: MessageRouter | None = None,
    ) -> AsyncProducer:
        """Create a producer on a topic, as `PulsarClient` does, but with batches by default."""
        making = partial(self._core.create_producer, **_given(locals()))
        producer = AsyncProducer(await self._made(making), self._core)
        self._producers.add(producer)
        return producer

    async def subscribe(
        self,
        topic: str | list[str],
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: Schema | None = None,
        receiver_queue_size: int = 1000,
        max_total_receiver_queue_size_across_partitions: int = 50000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: float | None = None,
        broker_consumer_stats_cache_time_ms: float = 30000,
        negative_ack_redelivery_delay_ms: float = 60000,
        is_read_compacted: bool = False,
        properties: dict[str, str] | None = None,
        initial_position: InitialPosition = InitialPosition.Latest,
        crypto_key_reader: KeyReader | None = None,
        replicate_subscription_state_enabled: bool = False,
        max_pending_chunked_message: int = 10,
        auto_ack_oldest_chunked_message_on_queue_full: bool = False,
        start_message_id_inclusive: bool = False,
        batch_receive_policy: ConsumerBatchReceivePolicy | None = None,
        key_shared_policy: ConsumerKeySharedPolicy | None = None,
        batch_index_ack_enabled: bool = False,
        regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly,
        dead_letter_policy: ConsumerDeadLetterPolicy | None = None,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        is_pattern_topic: bool = False,
    ) -> AsyncConsumer:
        """Subscribe to a topic, to several, or to all that match a pattern.

        With `is_pattern_topic` the topic is a regular expression for full names.
        """
        given = _given(locals())
        if given.pop("is_pattern_topic"):
            with _told():
                given["topic"] = _pattern(topic)
        making = partial(self._core.subscribe, **given)
        return AsyncConsumer(await self._made(making), self._core)

    async def create_reader(
        self,
        topic: str,
        start_message_id: MessageId,
        schema: Schema | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: KeyReader | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
    ) -> AsyncReader:
        """Create a reader of a topic, as `PulsarClient` does."""
        making = partial(self._core.create_reader, **_given(locals()))
        return AsyncReader(await self._made(making), self._core)

    async def get_topic_partitions(self, topic: str) -> list[str]:
        """Return the full names of a topic's partitions, or of the topic if it has none."""
        return await self._made(partial(self._core.get_topic_partitions, topic))

    async def _made(self, making: Callable[[], T]) -> T:
        with _told():
            return await cast("Awaitable[T]", making())

    def shutdown(self) -> None:
        """Close everything without waiting for pending sends; the calling thread is blocked.

        It waits for the brokers, but not for long.
        """
        self._core.shutdown()

    async def close(self) -> None:
        """Close all producers, consumers and readers, then the connections. May be called twice.

        Calls that wait end with AlreadyClosed. Messages that could not be delivered are told to
        their senders; this only logs them.
        """
        closing = (producer.close() for producer in list(self._producers))
        try:
            for error in await asyncio.gather(*closing, return_exceptions=True):
                if error is not None:
                    logger.warning("a producer was closed with messages undelivered: %s", error)
        finally:
            await self._core.finish(self._core._ending(waits=False))


def _given(own: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a method of AsyncClient, from its locals, for the sync client's."""
    given = {name: value for name, value in own.items() if name != "self"}
    return {**given, "schema": BytesSchema() if given["schema"] is None else given["schema"]}


def _pattern(topic: object) -> re.Pattern[str]:
    if not isinstance(topic, str):
        raise OptionError("topic is a regular expression in a text if is_pattern_topic is set")
    try:
        return re.compile(topic)
    except re.error as error:
        raise OptionError(f"topic is no regular expression: {error}") from None


# The official client's names.
Client = AsyncClient
Producer = AsyncProducer
Consumer = AsyncConsumer
Reader = AsyncReader
