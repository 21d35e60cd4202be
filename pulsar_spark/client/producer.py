"""The producer that `PulsarClient.create_producer` returns: the official client's methods."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

from pulsar_spark.client.arguments import check_type
from pulsar_spark.client.callbacks import CallbackThread, call_logged
from pulsar_spark.client.enums import Result, result_of
from pulsar_spark.client.exceptions import interruptible, receipt_of
from pulsar_spark.client.message import Message, MessageId
from pulsar_spark.client.schema import Schema
from pulsar_spark.client.transaction import Transaction
from pulsar_spark.client.values import MessageValues
from pulsar_spark.engine.closing import Closing
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.lookups.topic_discovery import TopicDiscovery
from pulsar_spark.engine.operations import Steps, in_steps
from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.inflight_window import (
    DeferredCallback,
    MessageCallback,
    Runner,
    log_failure,
)
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.errors import (
    InvalidRow,
    OptionError,
    ProducerQueueFull,
    PulsarError,
    WrongType,
)
from pulsar_spark.protocol import message_id as wire
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import ReceivedEntry
from pulsar_spark.protocol.outgoing_messages import LOCAL_ONLY, MessageFields, encode_fields

SendCallback = Callable[[Result, MessageId], object]
"""Callback of `send_async`: it gets the result and the message id."""

SentCallback = Callable[[PulsarError | None, MessageId], object]
"""Callback of `send_soon`: it gets the error, if there is one, and the message id."""

MessageRouter = Callable[[Message, int], int]
"""Chooses a partition for a message, given the number of partitions."""

_GRACE = 5.0
# In place of no timeout, in seconds.
_VERY_LONG = 86_400.0
# Brokers count in signed numbers of 64 bits.
_MAX_SEQUENCE_ID = 2**63 - 1


class PulsarProducer(Closing):
    """Publishes messages to a topic. Made by `PulsarClient.create_producer`.

    Thread-safe. If one message gets no receipt in time, or the topic's policy does not allow its
    size (NotAllowed), only that message fails: its caller gets the error, and so does the next
    `flush` or `close`. Other errors are permanent: from then on `send`, `flush` and `close` raise
    the error, and `send_async` passes it to every callback. Batches that the policy does not allow
    are divided.
    """

    def __init__(
        self,
        writer: PartitionedProducer,
        callbacks: CallbackThread,
        schema: Schema,
        options: ProducerOptions,
        waits_for_room: bool,
        router: MessageRouter | None,
        on_close: Callable[[PulsarProducer], None],
        growth: TopicDiscovery | None = None,
    ) -> None:
        self._writer = writer
        self._callbacks = callbacks
        self._schema = schema
        self._values = MessageValues(schema)
        self._send_timeout = options.send_timeout or _VERY_LONG
        self._max_pending = options.max_pending_messages
        # Whether it was made with `block_if_queue_full`.
        self._waits_for_room = waits_for_room
        self._router = router
        self._on_close = on_close
        self._growth = growth
        self._most_pending = 0 if self._waits_for_room else self._max_pending
        # Whether messages with only a value and a key can take the short path.
        is_usual = self._router is None and type(schema).message_of is Schema.message_of
        self._encode = schema.encode if is_usual else None

    def topic(self) -> str:
        """The full name of the topic."""
        return self._writer.topic

    def producer_name(self) -> str:
        """The name that was given, or that the broker chose; with partitions, the first one's."""
        names = (producer.name for producer in self._writer.producers)
        return next(names, "")

    def last_sequence_id(self) -> int:
        """That of the message that was stored last; with partitions, the highest of theirs.

        Before any it is `initial_sequence_id`, else what the broker knows of the name, else -1.
        """
        producers = self._writer.producers
        return max((producer.last_sequence_id for producer in producers), default=-1)

    def is_connected(self) -> bool:
        """Whether all partitions that were opened are connected at this moment."""
        producers = self._writer.producers
        return bool(producers) and all(producer.is_connected for producer in producers)

    def send(
        self,
        content: Any,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        txn: Transaction | None = None,
    ) -> MessageId:
        """Publish a message (None is a null value), and return its id when it is stored.

        Within `txn` it becomes visible at commit, and is not batched. Times are milliseconds since
        the epoch. The current batch is sent with it. Raises MessageTooLarge, InvalidRow (WrongType
        for a value of another type than the schema's), ProducerQueueFull, OperationTimeout without
        a receipt in time, and the broker's error.
        """
        message = self._message(
            content, properties, partition_key, ordering_key, sequence_id, event_timestamp
        )
        set_entry_fields(
            message, replication_clusters, disable_replication, deliver_at, deliver_after, txn
        )
        partition = self._route(message)
        if (full := self._queue_full(partition)) is not None:
            raise full
        stored: Future[MessageId] = Future()

        def complete(error: PulsarError | None, message_id: wire.MessageIdAdv | None) -> None:
            if error is not None:
                stored.set_exception(error.with_context())
            else:
                stored.set_result(_wrap(message_id))

        self._send(message, complete, partition, txn, at_once=True)
        return receipt_of(stored, "a message", self._send_timeout, self.topic(), _GRACE)

    def send_async(
        self,
        content: Any,
        callback: SendCallback | None,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        txn: Transaction | None = None,
    ) -> None:
        """Publish a message, then call ``callback(Result.Ok, message_id)``.

        Callbacks run in order on a thread of the client. If the queue is full, the call waits if
        the producer was made with `block_if_queue_full`; otherwise the callback gets
        ProducerQueueIsFull. Raises InvalidRow and OptionError for an invalid message, and
        ProducerQueueFull if callbacks lag behind for longer than the send timeout. Without a
        callback, failures are logged. While others are in flight, full batches and messages
        outside of batches may wait 5 ms to be written together.
        """
        is_plain = (
            self._encode is not None
            and content is not None
            and sequence_id is None
            and deliver_after is None
            and txn is None
            and not (properties or ordering_key or replication_clusters or disable_replication)
            and not (event_timestamp or deliver_at)
        )
        if is_plain and (not partition_key or type(partition_key) is str):
            self._send_plain(content, callback, partition_key or None)
            return
        message = self._message(
            content, properties, partition_key, ordering_key, sequence_id, event_timestamp
        )
        set_entry_fields(
            message, replication_clusters, disable_replication, deliver_at, deliver_after, txn
        )
        complete = log_failure if callback is None else self._deferred(callback)
        try:
            partition = self._route(message)
            if (full := self._queue_full(partition)) is not None:
                complete(full, None)
                return
            self._send(message, complete, partition, txn)
        except (OptionError, WrongType):
            raise
        except PulsarError as error:
            complete(error, None)

    def _send_plain(self, content: Any, callback: SendCallback | None, key: str | None) -> None:
        """Send a message that has only a value and maybe a key, as `send_async`."""
        assert self._encode is not None
        payload = self._encode(content)
        complete = log_failure if callback is None else self._deferred(callback)
        try:
            waiting = self._writer.send_plain(payload, key, complete, self._most_pending)
            if waiting:
                complete(self._too_many(waiting), None)
        except (OptionError, InvalidRow):
            raise
        except PulsarError as error:
            complete(error, None)

    def _deferred(self, callback: SendCallback) -> MessageCallback:
        """Return a function that queues a callback; waits while callbacks lag far behind."""

        def tell(error: PulsarError | None, message_id: wire.MessageIdAdv | None) -> None:
            call_logged("the callback of a message", callback, result_of(error), _wrap(message_id))

        self._callbacks.wait_for_room(self._send_timeout)
        return DeferredCallback(tell, self._callbacks.run)

    def _send_soon(
        self, message: MessageFields, partition: int, callback: SentCallback, run: Runner
    ) -> None:
        """Publish a message without ever waiting; the callback runs where `run` has it run.

        Raises ProducerQueueFull, also with `block_if_queue_full`, and the producer's error.
        """

        def tell(error: PulsarError | None, message_id: wire.MessageIdAdv | None) -> None:
            callback(error, _wrap(message_id))

        waiting = self._writer.unacknowledged(partition)
        if 0 < self._max_pending <= waiting:
            raise self._too_many(waiting)
        self._writer.send(message, DeferredCallback(tell, run), partition, waits=False)

    @interruptible
    def flush(self) -> None:
        """Wait until all messages are stored and their callbacks have run.

        Raises the error of any message that could not be delivered.
        """
        try:
            self._writer.flush()
        finally:
            self._callbacks.drain(Deadline(self._send_timeout + _GRACE))

    @interruptible
    def close(self) -> None:
        """Flush, and leave the topic. Raises as `flush`, and frees the resources even then."""
        self._leave()
        try:
            self._writer.close()
        finally:
            self._callbacks.drain(Deadline(self._send_timeout + _GRACE))

    def abort(self) -> None:
        """Close the producer without waiting for receipts."""
        in_steps(self._aborting())

    def _aborting(self) -> Steps[None]:
        """Return the steps of `abort`."""
        self._leave()
        yield from self._writer.aborting()

    def _leaving(self) -> Steps[None]:
        """Return steps that leave the topic when all messages are stored."""
        self._leave()
        yield from self._writer.leaving()

    def _leave(self) -> None:
        self._on_close(self)
        if self._growth is not None:
            self._growth.close()

    def _give_up(self) -> None:
        self.abort()

    # --- messages -----------------------------------------------------------------------------

    def _message(
        self,
        content: Any,
        properties: dict[str, str] | None,
        partition_key: str | None,
        ordering_key: str | None,
        sequence_id: int | None,
        event_timestamp: int | None,
    ) -> MessageFields:
        message = MessageFields(None) if content is None else self._schema.message_of(content)
        # As in the official client, an empty text is no key, and 0 is no time.
        if partition_key:
            check_type(str, partition_key, "partition_key")
            if message.key is not None or message.null_key:
                raise OptionError("the schema has the key in its values: leave partition_key out")
            message.key = partition_key
        if ordering_key:
            check_type(str, ordering_key, "ordering_key")
            message.ordering_key = _ordering_key(ordering_key)
        if properties:
            check_type(dict, properties, "properties")
            message.properties = list(properties.items())
        if sequence_id is not None:
            message.sequence_id = _sequence_id(sequence_id)
        if event_timestamp:
            check_type(int, event_timestamp, "event_timestamp")
            message.event_time = event_timestamp
        return message

    def _send(
        self,
        message: MessageFields,
        callback: MessageCallback,
        partition: int,
        txn: Transaction | None,
        *,
        at_once: bool = False,
    ) -> None:
        if txn is None:
            self._writer.send(message, callback, partition, at_once=at_once)
            return
        self._writer.announce_transactions(partition)
        txn.engine.add_partition(self._writer.partition_name(partition))
        under_way = txn.engine.begin_operation()

        def complete(error: PulsarError | None, message_id: wire.MessageIdAdv | None) -> None:
            # The transaction first: a caller who commits it next must not be ahead of this.
            under_way.end(error)
            callback(error, message_id)

        try:
            self._writer.send(message, complete, partition, at_once=at_once)
        except PulsarError as error:
            under_way.end(error)
            raise

    def _route(self, message: MessageFields) -> int:
        router = self._router
        partitions = self._writer.partitions
        if router is None or partitions <= 1:
            return self._writer.route(message)
        partition = int(router(self._as_received(message), partitions))
        if not 0 <= partition < partitions:
            raise OptionError(
                f"message_router chose partition {partition} of {partitions}",
                topic=self._writer.topic,
            )
        return partition

    def _as_received(self, message: MessageFields) -> Message:
        own = pb.MessageMetadata(producer_name=self.producer_name())
        key, fields = encode_fields(message)
        own.MergeFromString(fields)
        if key is not None:
            own.partition_key = key.decode()
        entry = ReceivedEntry(own, message.payload or b"")
        entry.topic = self._writer.topic
        return Message(entry, -1, self._values)

    def _queue_full(self, partition: int) -> ProducerQueueFull | None:
        if not self._most_pending:
            return None
        waiting = self._writer.unacknowledged(partition)
        return self._too_many(waiting) if waiting >= self._most_pending else None

    def _too_many(self, waiting: int) -> ProducerQueueFull:
        return ProducerQueueFull(
            f"{waiting} messages are not acknowledged, which is the limit",
            "Raise max_pending_messages, or set block_if_queue_full.",
            topic=self._writer.topic,
        )


def set_entry_fields(
    message: MessageFields,
    replication_clusters: list[str] | None,
    disable_replication: bool,
    deliver_at: int | None,
    deliver_after: timedelta | None,
    txn: Transaction | None,
) -> None:
    """Check and set what a message has only outside of a batch."""
    if txn is not None:
        check_type(Transaction, txn, "txn")
        message.txn = txn.engine.txn_id
    if replication_clusters is not None:
        check_type((list, tuple), replication_clusters, "replication_clusters")
    check_type(bool, disable_replication, "disable_replication")
    message.replicate_to = LOCAL_ONLY if disable_replication else replication_clusters or ()
    if deliver_at is not None:
        check_type(int, deliver_at, "deliver_at")
    if deliver_after is not None:
        check_type(timedelta, deliver_after, "deliver_after")
        deliver_at = int((time.time() + deliver_after.total_seconds()) * 1000)
    message.deliver_at = deliver_at or 0


def _ordering_key(given: str) -> bytes:
    try:
        return given.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise OptionError(f"ordering_key cannot be sent: {error}") from None


def _sequence_id(given: int) -> int:
    check_type(int, given, "sequence_id")
    if not 0 <= given <= _MAX_SEQUENCE_ID:
        raise OptionError(f"sequence_id is {given}, it must be from 0 to {_MAX_SEQUENCE_ID}")
    # True is a number too.
    return int(given)


def _wrap(message_id: wire.MessageIdAdv | None) -> MessageId:
    return MessageId() if message_id is None else MessageId.wrap(message_id)


# The official client's name.
Producer = PulsarProducer
