"""What the broker delivers to one consumer of a reader, in a queue of bounded memory."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias

from google.protobuf.message import Message

from pulsar_spark.engine.permits import ENTRY_OVERHEAD
from pulsar_spark.errors import PulsarError, UnsupportedFeature
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.events import MessageReceived


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing more comes from this consumer.

    `error` tells of a lost connection; `moved_to` is what the broker said when it closed the
    consumer; with `overrun` the reader closed it, because more came than it has memory for.
    """

    error: PulsarError | None = None
    moved_to: pb.CommandCloseConsumer | None = None
    overrun: bool = False


@dataclass(frozen=True, slots=True)
class LastId:
    """The answer to GET_LAST_MESSAGE_ID, in its place among the entries."""

    answer: Future[Any]


Item: TypeAlias = MessageReceived | Ended | LastId


class Delivery:
    """A ConsumerHandler that queues entries, undecoded, for the one thread that reads.

    What is queued never exceeds `budget` bytes, but for a single entry that alone is larger.
    When more comes, `stop` is called on the receive thread, to close the consumer, and all
    that follows is dropped: what was queued before stays, and `Ended` comes behind it.
    """

    def __init__(self, budget: int, stop: Callable[[], None]) -> None:
        self._budget = budget
        self._stop = stop
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        # Bytes put and taken: each is written by one thread only.
        self._put = 0
        self._taken = 0
        self._ended = False

    @property
    def queued_bytes(self) -> int:
        """Bytes of the entries in the queue."""
        return self._put - self._taken

    def get(self, timeout: float) -> Item | None:
        """Return what came next, or None if nothing does in `timeout` seconds."""
        try:
            if timeout <= 0:
                item = self._items.get_nowait()
            else:
                item = self._items.get(timeout=min(timeout, threading.TIMEOUT_MAX))
        except queue.Empty:
            return None
        if isinstance(item, MessageReceived):
            self._taken += _size(item)
        return item

    def put_last_id(self, answer: Future[Any]) -> None:
        """Queue the answer to a question for the last message."""
        self._items.put(LastId(answer))

    def on_message(self, message: MessageReceived) -> None:
        """Queue an entry, or end if there is no room for it."""
        if self._ended:
            return
        size = _size(message)
        queued = self._put - self._taken
        if queued and queued + size > self._budget:
            self._end(Ended(overrun=True))
            self._stop()
            return
        self._put += size
        self._items.put(message)

    def on_close(self, command: pb.CommandCloseConsumer) -> None:
        """End: the broker closed the consumer."""
        self._end(Ended(moved_to=command))

    def on_command(self, body: Message) -> None:
        """End if the topic has moved to another cluster; the rest is of no concern."""
        if isinstance(body, pb.CommandTopicMigrated):
            error = UnsupportedFeature(
                "the topic was migrated to another cluster",
                "Set service.url to that cluster.",
            )
            self._end(Ended(error=error))

    def on_disconnect(self, error: PulsarError) -> None:
        """End: the connection is lost."""
        self._end(Ended(error=error))

    def _end(self, item: Ended) -> None:
        if not self._ended:
            self._ended = True
            self._items.put(item)


def _size(message: MessageReceived) -> int:
    return len(message.payload) + ENTRY_OVERHEAD
