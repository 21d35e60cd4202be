"""Attaches a consumer to its topic's broker, and reattaches it after each disconnect.

Attaching is an operation, so thousands of consumers can reattach at once without a thread for
each. Subclasses choose the subscription and handle deliveries; see `subscription` and
`consumer`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from google.protobuf.message import Message

from pulsar_spark.engine.connections.addresses import BrokerAddress
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.consumers.consumer_session import ConsumerSession, SubscribeRequest
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.operations import Operation
from pulsar_spark.engine.retry import Deadline, Pause, is_retryable
from pulsar_spark.errors import (
    ClosedError,
    ConnectionLost,
    ConsumerBusy,
    NotAllowed,
    OperationTimeout,
    PulsarError,
)
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import MessageBlock
from pulsar_spark.protocol.message_id import MessageIdAdv, Position

logger = get_logger(__name__)

BUSY_SECONDS = 10.0
"""Wait this long for another consumer to go: it may be ours, on a connection the broker keeps."""

_BUSY_PAUSE = 0.5
# A broker forgets the non-durable subscription of `durable_exists` only after it has
# answered that the consumer is closed.
_NON_DURABLE = "NonDurable subscription with the same name"
# Finding nothing is not suspicious at first: most such topics are empty. Don't check thousands of
# them at once.
_DOUBT_SECONDS = 5.0
_DOUBT_SPREAD = 25.0


class Attachment:
    """One attachment of a consumer: its session, and the ConsumerHandler of its events."""

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
        self._doubt_at = time.monotonic() + _DOUBT_SECONDS + random.uniform(0, _DOUBT_SPREAD)
        self.session = ConsumerSession(connection, wanted, self)

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
        self._consumer.on_detached(self, command)

    def on_command(self, body: Message) -> None:
        """Pass on other commands."""
        self._consumer.on_notification(self, body)

    def on_disconnect(self, error: PulsarError) -> None:
        """The connection ended."""
        self._consumer.on_detached(self, None)


class AttachedConsumer:
    """A consumer of one topic partition. Thread-safe.

    `on_lost` is called, on any thread, when it is detached. The operations raise the broker's
    error.
    """

    def __init__(
        self, context: ClientContext, topic: str, on_lost: Callable[[], None] | None = None
    ) -> None:
        self.topic = topic
        self._context = context
        self._on_lost = on_lost
        self._lock = threading.Lock()
        # The following are guarded by _lock.
        self._attachment: Attachment | None = None
        self._attachments = 0
        self._attaching: Future[Attachment] | None = None
        self._moved_to: BrokerAddress | None = None
        self._closed = False

    @property
    def attached(self) -> bool:
        """Whether the consumer is attached to a broker, as far as is known."""
        attachment = self._attachment
        return attachment is not None and attachment.subscribed

    @property
    def was_attached(self) -> bool:
        """Whether the consumer is or was attached."""
        return self._attachments > 0

    # --- for subclasses -------------------------------------------------------------------------

    def _subscribe_request(
        self, connection: ClientConnection, deadline: Deadline
    ) -> Operation[SubscribeRequest]:
        """Return an operation that returns the current SUBSCRIBE request, given a connection."""
        raise NotImplementedError

    def _busy_seconds(self) -> float:
        """Return how long to wait for another consumer that holds the subscription."""
        return BUSY_SECONDS

    def _on_subscribed(self, attachment: Attachment) -> None:
        """Reset the state of the previous attachment; called with _lock held."""

    def _on_attached(self, attachment: Attachment) -> None:
        """Continue after an attachment; never raises."""

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

    def attach_operation(self, deadline: Deadline) -> Operation[Attachment]:
        """Return an operation that attaches the consumer, unless it is attached; one attempt."""
        with self._lock:
            if self._closed:
                raise ClosedError("the consumer is closed", topic=self.topic)
            if self._attachment is not None and self._attachment.subscribed:
                return self._attachment
            other = self._attaching
            mine: Future[Attachment] = Future()
            if other is None:
                mine.set_running_or_notify_cancel()
                self._attaching = mine
        if other is not None:
            attachment: Attachment = yield other
            return attachment
        try:
            attachment = yield from self._attach(deadline)
        except BaseException as error:
            with self._lock:
                self._attaching = None
            mine.set_exception(
                error if isinstance(error, PulsarError) else _closed_by_broker(self.topic)
            )
            raise
        with self._lock:
            self._attaching = None
        mine.set_result(attachment)
        self._on_attached(attachment)
        return attachment

    def _attach(self, deadline: Deadline) -> Operation[Attachment]:
        with self._lock:
            moved_to, self._moved_to = self._moved_to, None
        if moved_to is not None:
            connection: ClientConnection = yield self._context.pool.get_async(moved_to)
        else:
            connection = yield from self._context.lookup.connection_operation(self.topic, deadline)
        wanted = yield from self._subscribe_request(connection, deadline)
        attachment = Attachment(self, connection, wanted)
        with self._lock:
            # Set before SUBSCRIBE is sent: deliveries can arrive before its answer.
            self._attachment = attachment
        try:
            yield from self._subscribe(attachment.session, deadline)
        except BaseException:
            self._give_up(attachment)
            raise
        with self._lock:
            if self._attachment is attachment and not self._closed:
                attachment.subscribed = True
                self._attachments += 1
                self._on_subscribed(attachment)
                return attachment
        attachment.session.close()
        raise _closed_by_broker(self.topic)

    def _subscribe(self, session: ConsumerSession, deadline: Deadline) -> Operation[None]:
        busy = Deadline(min(self._busy_seconds(), deadline.remaining()))
        while True:
            try:
                yield from session.subscribe(deadline)
                return
            except (ConsumerBusy, NotAllowed) as error:
                # Perhaps it is our own, on a connection that the broker has not given up yet.
                if not _is_busy(error) or busy.remaining() <= _BUSY_PAUSE:
                    raise
            yield Pause(_BUSY_PAUSE)

    # --- questions ----------------------------------------------------------------------------

    def _ask(
        self,
        attachment: Attachment,
        command: Callable[[int, int], pb.BaseCommand],
        deadline: Deadline,
    ) -> Operation[Any]:
        try:
            return (yield attachment.session.ask(command, deadline))
        except PulsarError as error:
            # A broker that no longer knows the consumer has said so, or soon will.
            if is_retryable(error) or isinstance(error, OperationTimeout):
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
                self._moved_to = self._context.assigned_broker(
                    command, attachment.session.connection
                )
            lost = attachment.subscribed and not self._closed
        if lost and self._on_lost is not None:
            self._on_lost()

    def _give_up(self, attachment: Attachment) -> None:
        with self._lock:
            if self._attachment is attachment:
                self._attachment = None
        attachment.session.close()

    def close(self) -> Future[Any] | None:
        """Leave the broker; the subscription stays. Returns the future of the answer, if any."""
        with self._lock:
            self._closed = True
            attachment, self._attachment = self._attachment, None
        return None if attachment is None else attachment.session.close()


def _closed_by_broker(topic: str) -> PulsarError:
    return ConnectionLost("the broker closed the consumer", topic=topic)


def _is_busy(error: PulsarError) -> bool:
    return isinstance(error, ConsumerBusy) or _NON_DURABLE in error.what
