"""Attaches a consumer to its topic's broker, and again after each disconnect.

Attaching is an operation, so that thousands of consumers come back at once and no thread waits for
any of them. What a consumer is for (which subscription, what becomes of what is delivered) is
told by its subclass; see `subscription` and `consumer`.
"""

from __future__ import annotations

import logging
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
    OperationTimeout,
    PulsarError,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import MessageBlock
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, MessageIdAdv, Position

logger = logging.getLogger(__name__)

BUSY_SECONDS = 10.0
"""How long a consumer in the way may be one whose connection broke without the broker's knowing."""

_BUSY_PAUSE = 0.5
# That nothing is there is no reason for doubt at once: most topics that are empty are just that.
# Thousands of them are not looked at all together.
_DOUBT_SECONDS = 5.0
_DOUBT_SPREAD = 25.0


class Place:
    """One attachment of a consumer: its session, and the ConsumerHandler that is told of it."""

    def __init__(
        self,
        consumer: AttachedConsumer,
        connection: ClientConnection,
        wanted: SubscribeRequest,
    ) -> None:
        self._consumer = consumer
        self.taken = False
        # Whether it is certain that the broker has a topic behind it.
        self.sure = False
        self._doubt_at = time.monotonic() + _DOUBT_SECONDS + random.uniform(0, _DOUBT_SPREAD)
        self.session = ConsumerSession(connection, wanted, self)

    def is_doubtful(self, last: MessageIdAdv, known: Position) -> bool:
        """Whether a last message may be told of no topic: one that is behind what is known.

        Where nothing is known and nothing is there it is so after a while.
        """
        if known != EARLIEST_POSITION:
            return Position(last.ledger_id, last.entry_id + 1) < Position(*known[:2])
        return last.entry_id < 0 and time.monotonic() >= self._doubt_at

    def on_messages(self, block: MessageBlock) -> None:
        """Pass on what was delivered."""
        self._consumer.on_delivered(self, block)

    def on_close(self, command: pb.CommandCloseConsumer) -> None:
        """The broker sent the consumer away."""
        self._consumer.on_place_lost(self, command)

    def on_command(self, body: Message) -> None:
        """Pass on what is no entry."""
        self._consumer.on_told(self, body)

    def on_disconnect(self, error: PulsarError) -> None:
        """The connection ended."""
        self._consumer.on_place_lost(self, None)


class AttachedConsumer:
    """A consumer of one topic partition. Thread-safe.

    `on_lost` is called, on any thread, when it loses its place. The operations raise what the
    broker refuses with.
    """

    def __init__(
        self, context: ClientContext, topic: str, on_lost: Callable[[], None] | None = None
    ) -> None:
        self.topic = topic
        self._context = context
        self._on_lost = on_lost
        self._lock = threading.Lock()
        # The following are guarded by _lock.
        self._place: Place | None = None
        self._attachments = 0
        self._attaching: Future[Place] | None = None
        self._moved_to: BrokerAddress | None = None
        self._closed = False

    @property
    def attached(self) -> bool:
        """Whether the consumer has its place at the broker, as far as is known."""
        place = self._place
        return place is not None and place.taken

    # --- what subclasses say --------------------------------------------------------------------

    def _wish(
        self, connection: ClientConnection, deadline: Deadline
    ) -> Operation[SubscribeRequest]:
        """Return an operation for what is to be subscribed now, on a connection."""
        raise NotImplementedError

    def _busy_seconds(self) -> float:
        """Return how long another consumer in the way is waited for."""
        return BUSY_SECONDS

    def _on_taken(self, place: Place) -> None:
        """Forget what was true of the place before; called with _lock held."""

    def _on_attached(self, place: Place) -> None:
        """Go on in a place that was taken; never raises."""

    def on_delivered(self, place: Place, block: MessageBlock) -> None:
        """Entries were delivered; on the receive thread."""

    def on_told(self, place: Place, body: Message) -> None:
        """The broker told something else; on the receive thread."""
        if isinstance(body, pb.CommandTopicMigrated):
            logger.error(
                "%s: the topic was migrated to another cluster; set service.url to that cluster",
                self.topic,
            )

    # --- attaching ----------------------------------------------------------------------------

    def attach_operation(self, deadline: Deadline) -> Operation[Place]:
        """Return an operation that attaches the consumer, if it is not, in one attempt."""
        with self._lock:
            if self._closed:
                raise ClosedError("the consumer is closed", topic=self.topic)
            if self._place is not None and self._place.taken:
                return self._place
            other = self._attaching
            mine: Future[Place] = Future()
            if other is None:
                mine.set_running_or_notify_cancel()
                self._attaching = mine
        if other is not None:
            place: Place = yield other
            return place
        try:
            place = yield from self._attach(deadline)
        except BaseException as error:
            with self._lock:
                self._attaching = None
            mine.set_exception(error if isinstance(error, PulsarError) else _sent_away(self.topic))
            raise
        with self._lock:
            self._attaching = None
        mine.set_result(place)
        self._on_attached(place)
        return place

    def _attach(self, deadline: Deadline) -> Operation[Place]:
        with self._lock:
            moved_to, self._moved_to = self._moved_to, None
        if moved_to is not None:
            connection: ClientConnection = yield self._context.pool.get_async(moved_to)
        else:
            connection = yield from self._context.lookup.connection_operation(self.topic, deadline)
        wanted = yield from self._wish(connection, deadline)
        place = Place(self, connection, wanted)
        with self._lock:
            # Known before it is asked for: what is said of it can come before the answer.
            self._place = place
        try:
            yield from self._subscribe(place.session, deadline)
        except BaseException:
            self._give_up(place)
            raise
        with self._lock:
            if self._place is place and not self._closed:
                place.taken = True
                self._attachments += 1
                self._on_taken(place)
                return place
        place.session.close()
        raise _sent_away(self.topic)

    def _subscribe(self, session: ConsumerSession, deadline: Deadline) -> Operation[None]:
        busy = Deadline(min(self._busy_seconds(), deadline.remaining()))
        while True:
            try:
                yield from session.subscribe(deadline)
                return
            except ConsumerBusy:
                # Perhaps our own, of a connection that the broker has not given up yet.
                if busy.remaining() <= _BUSY_PAUSE:
                    raise
            yield Pause(_BUSY_PAUSE)

    # --- asking -------------------------------------------------------------------------------

    def _ask(
        self,
        place: Place,
        command: Callable[[int, int], pb.BaseCommand],
        deadline: Deadline,
    ) -> Operation[Any]:
        try:
            return (yield place.session.ask(command, deadline))
        except PulsarError as error:
            # A broker that no longer knows the consumer has said so, or is about to.
            if is_retryable(error) or isinstance(error, OperationTimeout):
                self._give_up(place)
            raise

    # --- the end of an attachment ---------------------------------------------------------------

    def on_place_lost(self, place: Place, command: pb.CommandCloseConsumer | None) -> None:
        """Take note that the broker (by `command`) or the connection ended an attachment."""
        with self._lock:
            if self._place is not place:
                return
            self._place = None
            if command is not None:
                self._moved_to = self._context.assigned_broker(
                    command, place.session.connection.address
                )
            tell = place.taken and not self._closed
        if tell and self._on_lost is not None:
            self._on_lost()

    def _give_up(self, place: Place) -> None:
        with self._lock:
            if self._place is place:
                self._place = None
        place.session.close()

    def close(self) -> Future[Any] | None:
        """Leave the broker; the subscription stays. Returns the future of the answer, if any."""
        with self._lock:
            self._closed = True
            place, self._place = self._place, None
        return None if place is None else place.session.close()


def _sent_away(topic: str) -> PulsarError:
    return ConnectionLost("the broker closed the consumer", topic=topic)
