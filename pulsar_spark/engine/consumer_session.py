"""A consumer that asks a question about a topic partition and leaves no trace."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections import deque
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from google.protobuf.message import Message

from pulsar_spark.engine.connection import ClientConnection
from pulsar_spark.engine.retry import Deadline
from pulsar_spark.errors import BrokerError, ConnectionLost, PulsarError
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import MessageBlock, MessageReceived
from pulsar_spark.protocol.message_id import MessageId, Position

_CLOSE_TIMEOUT = 5.0
_MAX_ENTRIES = 1000


def unique_name(prefix: str) -> str:
    """Return a name for a subscription that nobody else uses."""
    return f"{prefix}-{secrets.token_hex(8)}"


class TemporaryConsumer:
    """A consumer on a non-durable subscription of its own; a context manager that closes it.

    The methods return futures, to be yielded by operations. It is a ConsumerHandler.
    """

    def __init__(self, connection: ClientConnection, topic: str, name: str | None = None) -> None:
        self.name = name or unique_name("pulsar-spark-probe")
        self._connection = connection
        self._topic = topic
        self._consumer_id = connection.add_consumer(self)
        self._subscribed = False
        self._lock = threading.Lock()
        # The following are guarded by _lock: entries nobody waits for yet, or who waits.
        self._entries: deque[MessageReceived] = deque()
        self._waiting: Future[MessageReceived] | None = None
        self._error: PulsarError | None = None

    def __enter__(self) -> TemporaryConsumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def subscribe(
        self, start: Position, deadline: Deadline, *, read_compacted: bool = False
    ) -> Future[Any]:
        """Subscribe so that the first entry delivered is the one at or after `start`."""
        self._subscribed = True
        answer = self._connection.request_async(
            lambda request_id: commands.subscribe(
                self._topic,
                self.name,
                self._consumer_id,
                request_id,
                durable=False,
                start_message_id=MessageId(start.ledger_id, start.entry_id).to_pb(),
                read_compacted=read_compacted,
                force_topic_creation=False,
            ),
            deadline.attempt(),
        )
        answer.add_done_callback(self._on_subscribed)
        return answer

    def _on_subscribed(self, answer: Future[Any]) -> None:
        # After a time-out the broker may still open the consumer; after a refusal there is none.
        if isinstance(answer.exception(), BrokerError):
            self._subscribed = False

    def last_message_id(self, deadline: Deadline) -> Future[Any]:
        """Ask for the last message; the answer is a CommandGetLastMessageIdResponse."""
        return self._connection.request_async(
            lambda request_id: commands.get_last_message_id(self._consumer_id, request_id),
            deadline.attempt(),
        )

    def stats(self, deadline: Deadline) -> Future[Any]:
        """Ask how the consumer does; the answer is a CommandConsumerStatsResponse."""
        return self._connection.request_async(
            lambda request_id: commands.consumer_stats(self._consumer_id, request_id),
            deadline.attempt(),
        )

    def seek(self, publish_time: int, deadline: Deadline) -> Future[Any]:
        """Move the subscription to a publish time; the broker closes this consumer for that."""
        return self._connection.request_async(
            lambda request_id: commands.seek(
                self._consumer_id, request_id, publish_time=publish_time
            ),
            deadline.attempt(),
        )

    def next_entry(self, permits: int) -> Future[MessageReceived]:
        """Return the future of the next entry, and let the broker deliver `permits` messages.

        A broker can send more entries than the permits cover: they come first, and nothing is
        asked for while there are any.
        """
        entry: Future[MessageReceived] = Future()
        entry.set_running_or_notify_cancel()
        with self._lock:
            if self._entries:
                entry.set_result(self._entries.popleft())
                return entry
            if self._error is not None:
                entry.set_exception(self._error)
                return entry
            self._waiting = entry
        try:
            self._connection.send(commands.flow(self._consumer_id, permits))
        except PulsarError as error:
            self._end(error)
        return entry

    def close(self) -> None:
        """Close the consumer without waiting for the broker's answer."""
        self._connection.remove_consumer(self._consumer_id)
        if not self._subscribed or self._connection.closed:
            return
        self._subscribed = False
        with contextlib.suppress(PulsarError):
            self._connection.request_async(
                lambda request_id: commands.close_consumer(self._consumer_id, request_id),
                _CLOSE_TIMEOUT,
            )

    def on_messages(self, block: MessageBlock) -> None:
        """Take entries."""
        for message in block.messages():
            if self._error is not None:
                break
            self._on_message(message)

    def _on_message(self, message: MessageReceived) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, None
            if waiting is None:
                self._entries.append(message)
        if waiting is not None:
            waiting.set_result(message)
        elif len(self._entries) > _MAX_ENTRIES:
            self._connection.remove_consumer(self._consumer_id)
            self._end(ConnectionLost("the broker sends far more than it was asked for"))

    def on_close(self, command: pb.CommandCloseConsumer) -> None:
        """Give up waiting for an entry."""
        self._subscribed = False
        self._end(ConnectionLost("the broker closed the consumer"))

    def on_command(self, body: Message) -> None:
        """Nothing else concerns a consumer of this kind."""

    def on_disconnect(self, error: PulsarError) -> None:
        """Give up waiting for an entry."""
        self._subscribed = False
        self._end(error)

    def _end(self, error: PulsarError) -> None:
        with self._lock:
            self._error = error
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.set_exception(error)
