"""What the consumers have in common that are attached in the background: events and questions.

Subclasses choose the subscription and handle deliveries; see `subscription` and `consumer`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec

from google.protobuf.message import Message

from pulsar_spark.engine.attaching import Attaching
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.consumers.consumer_session import ConsumerSession, SubscribeRequest
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.operations import Operation
from pulsar_spark.engine.retry import can_pass
from pulsar_spark.errors import BrokerError, ConsumerNotFound, PulsarError
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import MessageBlock
from pulsar_spark.protocol.message_id import MessageIdAdv, Position

P = ParamSpec("P")

logger = get_logger(__name__)

# Finding nothing is not suspicious at first: most such topics are empty. Don't check thousands of
# them at once.
_DOUBT_SECONDS = 5.0
_DOUBT_SPREAD = 25.0
# What a broker answers about a consumer that it does not know, often with the code of other errors.
_UNKNOWN_CONSUMER = "Consumer not found"


def is_refusal(error: PulsarError) -> bool:
    """Whether a broker has answered this to a request of a consumer that it knows."""
    if isinstance(error, ConsumerNotFound):
        return False
    return isinstance(error, BrokerError) and _UNKNOWN_CONSUMER not in error.what


class Attachment(ConsumerSession):
    """A session of an attached consumer, which gets its events."""

    def __init__(
        self,
        consumer: AttachedConsumer,
        connection: ClientConnection,
        wanted: SubscribeRequest,
    ) -> None:
        self._consumer = consumer
        self.subscribed = False
        # Whether the broker is known to have loaded the topic.
        self.confirmed = False
        # See `TopicEnd.reached`.
        self.reached: Position | None = None
        spread = random.SystemRandom().uniform(0, _DOUBT_SPREAD)
        self._doubt_at = time.monotonic() + _DOUBT_SECONDS + spread
        super().__init__(connection, wanted)

    def is_doubtful(self, last: MessageIdAdv, known: Position) -> bool:
        """Whether this last message cannot be right: it is before one that is known.

        An empty topic is only suspicious after a while: that it has a ledger says nothing.
        """
        if not known.begins_ledger:
            return Position(last.ledger_id, last.entry_id + 1) < Position(*known[:2])
        return last.entry_id < 0 and time.monotonic() >= self._doubt_at

    def on_messages(self, block: MessageBlock) -> int:
        """Pass on delivered entries; someone may wait for the next."""
        self._consumer.on_delivered(self, block)
        return 0

    def on_close(self, command: pb.CommandCloseConsumer) -> None:
        """The broker closed the consumer."""
        super().on_close(command)
        self._consumer.on_detached(self, command)

    def on_command(self, body: Message) -> None:
        """Pass on other commands."""
        super().on_command(body)
        self._consumer.on_notification(self, body)

    def on_disconnect(self, error: PulsarError) -> None:
        """The connection ended."""
        super().on_disconnect(error)
        self._consumer.on_detached(self, None)


class AttachedConsumer(Attaching[Attachment]):
    """A consumer of one topic partition. Thread-safe. The operations raise the broker's error."""

    def __init__(self, context: ClientContext, topic: str, *, lives: bool = False) -> None:
        super().__init__(context.pool, topic, context.timers, lives=lives)
        self._context = context
        # Guarded by _lock.
        self._attachment: Attachment | None = None

    @property
    def attached(self) -> bool:
        """Whether the consumer is attached to a broker, as far as is known."""
        return self._current() is not None

    # --- for subclasses -------------------------------------------------------------------------

    def _subscribe_request(
        self, connection: ClientConnection, deadline: Deadline
    ) -> Operation[SubscribeRequest]:
        """Return an operation that returns the current SUBSCRIBE request, given a connection."""
        raise NotImplementedError

    def _on_subscribed(self, attachment: Attachment) -> None:
        """Reset the state of the previous attachment; called with _lock held."""

    def _on_attached(self, attachment: Attachment) -> None:
        """Continue after an attachment; never raises."""

    def _on_lost(self) -> None:
        """An attachment has ended."""

    def on_delivered(self, attachment: Attachment, block: MessageBlock) -> None:
        """Entries were delivered; on the receive thread."""

    def on_notification(self, attachment: Attachment, body: Message) -> None:
        """The broker sent another command; on the receive thread."""
        if isinstance(body, pb.CommandTopicMigrated):
            logger.error(
                "%s: the topic was migrated to another cluster; set service.url to that cluster",
                self.topic,
            )

    # --- attaching ----------------------------------------------------------------------------

    def _current(self) -> Attachment | None:
        attachment = self._attachment
        return attachment if attachment is not None and attachment.subscribed else None

    def _register(self, connection: ClientConnection, deadline: Deadline) -> Operation[Attachment]:
        wanted = yield from self._subscribe_request(connection, deadline)
        return (
            yield from self._while_busy(
                lambda: self._subscribe(connection, wanted, deadline), deadline
            )
        )

    def _subscribe(
        self, connection: ClientConnection, wanted: SubscribeRequest, deadline: Deadline
    ) -> Operation[Attachment]:
        attachment = Attachment(self, connection, wanted)
        with self._lock:
            # Set before SUBSCRIBE is sent: deliveries can arrive before its answer.
            self._attachment = attachment
        try:
            yield from attachment.subscribe(deadline)
        except BaseException:
            self._give_up(attachment)
            raise
        return attachment

    def _resume(self, session: Attachment) -> None:
        with self._lock:
            if stays := self._attachment is session and not self._closed:
                session.subscribed = True
                self._on_subscribed(session)
        if not stays:
            session.close()
            raise self._lost()
        self._backoff.reset()
        self._on_attached(session)

    # --- questions ----------------------------------------------------------------------------

    def _ask(
        self,
        attachment: Attachment,
        body: Callable[P, Message],
        deadline: Deadline,
        /,
        *args: P.args,
        **fields: P.kwargs,
    ) -> Operation[Any]:
        try:
            return (yield attachment.ask(body, deadline, *args, **fields))
        except PulsarError as error:
            # A broker that refuses a request keeps the consumer, and what it has delivered.
            if can_pass(error) and not is_refusal(error):
                self._give_up(attachment)
            raise

    # --- the end of an attachment ---------------------------------------------------------------

    def on_detached(self, attachment: Attachment, command: pb.CommandCloseConsumer | None) -> None:
        """The broker (by `command`) or the connection has ended an attachment."""
        with self._lock:
            if self._attachment is not attachment:
                return
            self._attachment = None
            if command is not None:
                self._moved_to = self._pool.assigned_broker(command, attachment.connection)
        if attachment.subscribed:
            self._on_lost()

    def _give_up(self, attachment: Attachment) -> None:
        attachment.close()
        self.on_detached(attachment, None)

    def close(self) -> Future[Any] | None:
        """Leave the broker; the subscription stays. Returns the future of the answer, if any."""
        self._stop()
        with self._lock:
            attachment, self._attachment = self._attachment, None
        return None if attachment is None else attachment.close()
