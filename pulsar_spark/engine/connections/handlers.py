"""The consumers, producers and watchers of a connection, to which broker events are dispatched."""

from __future__ import annotations

import itertools
import threading
from array import array
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message

from pulsar_spark.errors import PulsarError, UnsupportedFeature
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import MessageBlock, ReceiptBlock
from pulsar_spark.protocol.message_id import as_signed

_T = pb.BaseCommand

H = TypeVar("H", bound="Handler")

# One counter per process, so that ids are never reused and a producer can keep its id on another
# connection.
_ids = itertools.count()


class Handler(Protocol):
    """What consumers and producers have in common.

    `on_disconnect` is called last, and once. A subclass's `on_close` is final too, but for late
    receipts; the handler is removed before it.
    """

    def on_command(self, body: Message) -> None:
        """A command without a method of its own: an active state, a topic's end or move."""

    def on_disconnect(self, error: PulsarError) -> None:
        """The connection ended."""


class ConsumerHandler(Handler, Protocol):
    """Events for a consumer, on the receive thread."""

    def on_messages(self, block: MessageBlock) -> int:
        """The broker delivered entries. Return how many bytes the next read may wait for."""

    def on_close(self, command: pb.CommandCloseConsumer) -> None:
        """The broker closed the consumer; it may name the topic's new broker."""


class ProducerHandler(Handler, Protocol):
    """Events for a producer, on the receive thread.

    Receipts can come after `on_close`, until the producer is forgotten.
    """

    @property
    def waits_for_receipts(self) -> bool:
        """Whether the broker owes receipts."""

    def on_receipts(self, receipts: array[int]) -> None:
        """Entries are stored: sequence id, highest sequence id, ledger and entry of each."""

    def on_send_error(self, error: pb.CommandSendError) -> None:
        """The broker refused an entry."""

    def on_close(self, command: pb.CommandCloseProducer) -> None:
        """The broker closed the producer; it may name the topic's new broker."""


class HandlerTable:
    """A connection's consumers, producers and watchers of topics, by id. Thread-safe.

    Each is added before its first command is sent, and what arrives for it after it was removed is
    dropped. `check` raises if this process must not use the connection.
    """

    def __init__(self, check: Callable[[], object] = lambda: None) -> None:
        self._check = check
        self._lock = threading.Lock()
        # The following are guarded by _lock; single reads need no lock.
        self._consumers: dict[int, ConsumerHandler] = {}
        self._producers: dict[int, ProducerHandler] = {}
        self._closed_producers: dict[int, ProducerHandler] = {}
        self._watchers: dict[int, Handler] = {}
        # Why no handler is taken any more.
        self._over: PulsarError | None = None

    def add_consumer(self, handler: ConsumerHandler) -> int:
        """Register a consumer and return its new id; raises why the connection has ended."""
        return self._add(self._consumers, handler)

    def add_producer(self, handler: ProducerHandler, producer_id: int | None = None) -> int:
        """As `add_consumer`; a producer that reconnects passes its old id."""
        return self._add(self._producers, handler, producer_id)

    def add_watcher(self, handler: Handler) -> int:
        """As `add_consumer`, for a watcher of topics."""
        return self._add(self._watchers, handler)

    def _add(self, handlers: dict[int, H], handler: H, old_id: int | None = None) -> int:
        self._check()
        with self._lock:
            if self._over is not None:
                raise self._over.with_context()
            found = next(_ids) if old_id is None else old_id
            handlers[found] = handler
            return found

    def remove_watcher(self, watcher_id: int) -> None:
        """Remove a watcher."""
        with self._lock:
            self._watchers.pop(watcher_id, None)

    def has_consumer(self, consumer_id: int) -> bool:
        """Whether there is a consumer of this id."""
        return consumer_id in self._consumers

    def remove_consumer(self, consumer_id: int) -> ConsumerHandler | None:
        """Remove a consumer and return it."""
        with self._lock:
            return self._consumers.pop(consumer_id, None)

    def remove_producer(self, producer_id: int) -> None:
        """Remove a producer."""
        with self._lock:
            self._producers.pop(producer_id, None)

    def _close_producer(self, producer_id: int) -> ProducerHandler | None:
        """Remove a producer but for its receipts, and return it."""
        with self._lock:
            producer = self._producers.pop(producer_id, None)
            if producer is not None:
                # One that had no time to send has no receipts to come.
                self._closed_producers.setdefault(producer_id, producer)
            return producer

    def forget_producer(self, producer_id: int, handler: ProducerHandler) -> None:
        """Drop receipts that still come for a handler whose producer the broker has closed."""
        with self._lock:
            if self._closed_producers.get(producer_id) is handler:
                del self._closed_producers[producer_id]

    def wait_for_receipts(self) -> bool:
        """Whether any producer waits for receipts."""
        return any(found.waits_for_receipts for found in tuple(self._producers.values()))

    def end(self, error: PulsarError) -> list[Handler]:
        """Remove all handlers and return them; who adds one from now on gets the error."""
        with self._lock:
            self._over = error
            handlers: list[Handler] = [
                *self._consumers.values(),
                *self._producers.values(),
                *self._watchers.values(),
            ]
            self._consumers.clear()
            self._producers.clear()
            self._closed_producers.clear()
            self._watchers.clear()
            return handlers

    def on_messages(self, block: MessageBlock) -> int:
        """Dispatch entries, as `ConsumerHandler`; drop those for a removed consumer."""
        consumer = self._consumers.get(block.consumer_id)
        return 0 if consumer is None else consumer.on_messages(block)

    def on_receipts(self, block: ReceiptBlock) -> None:
        """Dispatch receipts; drop those for a removed or forgotten producer."""
        producer = self._producers.get(block.producer_id)
        if producer is None:
            producer = self._closed_producers.get(block.producer_id)
        if producer is not None:
            producer.on_receipts(block.receipts)

    def on_command(self, kind: int, body: Any) -> None:
        """Dispatch a command that is not an answer to a request."""
        if kind == _T.SEND_RECEIPT:
            # Brokers send no such receipt, but it is complete.
            stored = body.message_id
            numbers = (
                body.sequence_id,
                body.highest_sequence_id,
                stored.ledgerId,
                stored.entryId,
            )
            self.on_receipts(ReceiptBlock(body.producer_id, array("q", map(as_signed, numbers))))
        elif kind == _T.SEND_ERROR:
            if (producer := self._producers.get(body.producer_id)) is not None:
                producer.on_send_error(body)
        elif kind == _T.CLOSE_CONSUMER:
            if (consumer := self.remove_consumer(body.consumer_id)) is not None:
                consumer.on_close(body)
        elif kind == _T.CLOSE_PRODUCER:
            if (producer := self._close_producer(body.producer_id)) is not None:
                producer.on_close(body)
        else:
            handler = self._find(kind, body)
            if handler is not None:
                handler.on_command(body)

    def _find(self, kind: int, body: Any) -> Handler | None:
        if kind == _T.WATCH_TOPIC_UPDATE:
            return self._watchers.get(body.watcher_id)
        if kind != _T.TOPIC_MIGRATED:
            return self._consumers.get(getattr(body, "consumer_id", -1))
        if body.resource_type == pb.CommandTopicMigrated.Consumer:
            return self._consumers.get(body.resource_id)
        return self._producers.get(body.resource_id)


def topic_migrated(broker: str | None = None) -> UnsupportedFeature:
    """Return the error for a topic that moved to another cluster; following it loses messages."""
    return UnsupportedFeature(
        "the topic was migrated to another cluster",
        "Set service.url to the cluster that has it now.",
        broker=broker,
    )
