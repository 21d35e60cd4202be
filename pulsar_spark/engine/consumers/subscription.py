"""Durable subscriptions of a stream, on thousands of topic partitions at once.

The durable consumer of a topic partition is attached to the topic's broker by operations, so
thousands of them reattach at once after a disconnect. It has no permits, so nothing is delivered to
it. Acknowledgements only move forward, and survive a disconnect: the next attachment sends them
again. To acknowledge everything before a position, name the last entry before it (Pulsar binary
protocol, "Acks").

SUBSCRIBE creates a subscription that is missing, and the answer does not say so. Then nothing has
retained the messages until then. So a consumer whose subscription must exist asks for it first.

An answer that a broker might give to a consumer without a topic is only believed after the broker
has confirmed the consumer (see `consumer_session`).

Questions go to all consumers of a set at once. Detached consumers reattach in the background,
with growing pauses while that fails; a question reattaches them at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.consumers.acknowledgments import cumulative_ack
from pulsar_spark.engine.consumers.attachment import AttachedConsumer, Attachment
from pulsar_spark.engine.consumers.consumer_session import (
    ConsumerSession,
    SubscribeRequest,
    durable_exists,
    probe_request,
)
from pulsar_spark.engine.consumers.gaps import cursor_of
from pulsar_spark.engine.consumers.news_watch import NewsWatch
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.operations import Operation, OperationFactory, ask_all
from pulsar_spark.engine.retry import retried
from pulsar_spark.errors import PulsarError, SubscriptionNotFound
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import (
    EARLIEST_POSITION,
    LATEST_POSITION,
    MessageIdAdv,
    Position,
)

logger = get_logger(__name__)

T = TypeVar("T")

_CLOSE_SECONDS = 2.0

EARLIEST = pb.CommandSubscribe.Earliest
LATEST = pb.CommandSubscribe.Latest


@dataclass(frozen=True, slots=True)
class TopicEnd:
    """Where a topic partition ends, and its subscription's position.

    `last` is the last readable message, -1:-1 if there is none; everything before `done` is
    acknowledged, None if the broker does not tell. `attachment` counts attachments of the consumer.
    `unread` is the first later end that was seen since the last answer. `reached` is
    where a topic ended whose ledgers were all deleted; entry 0 if the broker does not know.
    """

    last: MessageIdAdv
    done: Position | None
    attachment: int
    unread: Position | None = None
    reached: Position | None = None


class HeldSubscription(AttachedConsumer):
    """An Exclusive consumer on a durable subscription.

    `initial` (EARLIEST or LATEST) is where a new subscription starts. If it `must_exist`, it is not
    created: a missing one is SubscriptionNotFound. If it is `guarded`, it must exist once it does,
    and is attached again in the background. `on_news` is called on a receive thread when a quiet
    one may be so no longer. The operations raise the broker's error: TopicNotFound, or ConsumerBusy
    after BUSY_SECONDS.
    """

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        subscription: str,
        initial: int,
        *,
        read_compacted: bool = False,
        create: bool = False,
        must_exist: bool = False,
        guarded: bool = False,
        on_news: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(context, topic)
        self.initial = initial
        self.create = create
        self.must_exist = must_exist
        self._guarded = guarded
        self._subscription = subscription
        self._read_compacted = read_compacted
        # The following are guarded by _lock.
        self._wanted: tuple[Position, int] | None = None
        self._sent: Position | None = None
        self.acked: Position | None = None
        """The position before which the broker has confirmed all acknowledgements."""
        # The end that was known at the last answer, where the subscription was when last seen, and
        # the first end after both that was seen since the answer.
        self._known = EARLIEST_POSITION
        self._done = EARLIEST_POSITION
        self._unread: Position | None = None
        self._on_news = on_news
        self._news: NewsWatch[TopicEnd] = NewsWatch(topic, on_news)

    @property
    def is_quiet(self) -> bool:
        """Whether the broker reports news, and there is none."""
        return self.attached and self._news.is_on

    @property
    def connection(self) -> ClientConnection | None:
        """The connection to the topic's broker, None if it is not attached."""
        attachment = self._current()
        return None if attachment is None else attachment.connection

    @property
    def ack_pending(self) -> bool:
        """Whether an acknowledgement is pending or waits to be sent."""
        with self._lock:
            if self._wanted is None or cumulative_ack(*self._wanted) is None:
                return False
            return self.acked is None or self.acked < self._wanted[0]

    def _subscribe_request(
        self, connection: ClientConnection, deadline: Deadline
    ) -> Operation[SubscribeRequest]:
        yield from self._check_exists(connection, deadline)
        return SubscribeRequest(
            self.topic,
            self._subscription,
            None,
            initial=self.initial,
            read_compacted=self._read_compacted,
            create=self.create,
        )

    def _check_exists(self, connection: ClientConnection, deadline: Deadline) -> Operation[None]:
        if self.must_exist and not (
            yield from durable_exists(connection, self.topic, self._subscription, deadline)
        ):
            raise SubscriptionNotFound(
                f"the subscription {self._subscription} does not exist any more", topic=self.topic
            )

    def _on_subscribed(self, attachment: Attachment) -> None:
        self._sent = self.acked = None
        self.must_exist = self.must_exist or self._guarded

    def _on_attached(self, attachment: Attachment) -> None:
        self._send_ack()

    def _on_lost(self) -> None:
        self._news.close()
        self._on_news()
        if self._guarded:
            self._reattach()

    def close(self) -> Future[Any] | None:
        """Leave the broker; the subscription stays. Returns the future of the answer, if any."""
        self._news.close()
        return super().close()

    def _on_ended(self, error: PulsarError) -> None:
        logger.info("%s: the next question attaches: %s", self.topic, error.what)

    def _come_back(self, deadline: Deadline) -> Operation[Any]:
        if not self.attached:
            # A broker that unloads a topic soon forgets how far the deleted ledgers went.
            yield from self.look_operation(deadline)

    # --- questions ----------------------------------------------------------------------------

    def quiet_end(self, known: Position) -> TopicEnd | None:
        """Return the last answer about the topic's end while it is quiet; None if it is not.

        `known` is a position that the topic has reached. An answer before it is verified.
        """
        with self._lock:
            self._known = known
            return self._news.last() if self._current() is not None else None

    def end_operation(self, deadline: Deadline) -> Operation[TopicEnd]:
        """Return an operation for the topic's end, attaching first if necessary; one attempt."""
        found = yield from self.look_operation(deadline)
        attachment = self._current()
        if attachment is not None:
            end = Position.after(MessageIdAdv(found.last.ledger_id, found.last.entry_id))
            found = yield from self._news.settle(
                found,
                attachment.connection,
                end if found.done is not None and found.done >= end else None,
                lambda: self.look_operation(deadline),
                deadline,
            )
        with self._lock:
            unread, self._unread = self._unread, None
        return found if unread == found.unread else replace(found, unread=unread)

    def check_operation(self, deadline: Deadline) -> Operation[None]:
        """Return an operation that asks whether there is news after all; one attempt."""
        if not self._news.check((yield from self.look_operation(deadline))):
            self._on_news()

    def look_operation(self, deadline: Deadline) -> Operation[TopicEnd]:
        """As `end_operation`, for nobody who asks: what it sees is part of the next answer."""
        known = self._known
        attachment = yield from self.attach_operation(deadline)
        number = self._attachments
        answer: pb.CommandGetLastMessageIdResponse = yield from self._ask(
            attachment, pb.CommandGetLastMessageId, deadline
        )
        done = cursor_of(answer)
        last = MessageIdAdv.from_pb(answer.last_message_id)
        if not attachment.confirmed and attachment.is_doubtful(last, known):
            yield from self._confirm(attachment, deadline)
        before = max(known, self._done)
        if attachment.reached is None and _hides_deleted(last, done, before):
            attachment.reached = yield from self._reached(attachment, deadline)
        # Of an empty topic, the subscription itself may tell how far it went; until it is moved.
        end = done if last.entry_id < 0 else Position(last.ledger_id, last.entry_id + 1)
        later = [at for at in (attachment.reached, end) if at and at.entry_id > 0 and at > before]
        with self._lock:
            self._done = done or self._done
            if self._unread is None:
                self._unread = min(later, default=None)
        return TopicEnd(last, done, number, reached=attachment.reached)

    def _reached(self, attachment: Attachment, deadline: Deadline) -> Operation[Position]:
        """Return an operation for where the topic ended, deleted entries included.

        A subscription that starts at the end has acknowledged the last entry there ever was, as
        long as the broker that wrote or found it has the topic loaded.
        """
        wanted = probe_request(self.topic, LATEST_POSITION)
        with ConsumerSession(attachment.connection, wanted) as session:
            yield from session.subscribe(deadline)
            answer: pb.CommandGetLastMessageIdResponse = yield session.last_message_id(deadline)
        return cursor_of(answer) or EARLIEST_POSITION

    def _confirm(self, attachment: Attachment, deadline: Deadline) -> Operation[None]:
        """Return an operation that raises ConnectionLost unless the broker holds the consumer."""
        try:
            yield from self._check_exists(attachment.connection, deadline)
            yield from attachment.confirm(deadline)
        except BaseException as error:
            # The topic is leaving this broker: look it up again.
            logger.info("%s: a consumer must be attached again: %s", self.topic, error)
            self._give_up(attachment)
            raise
        attachment.confirmed = True

    def seek_operation(self, position: Position, deadline: Deadline) -> Operation[None]:
        """Return an operation that moves the subscription, forward or back; one attempt.

        The broker closes the consumer for it, so it reattaches. Earlier positions to acknowledge
        are forgotten.
        """
        attachment = yield from self.attach_operation(deadline)
        target = MessageIdAdv(position.ledger_id, position.entry_id).to_pb()
        yield from self._ask(attachment, pb.CommandSeek, deadline, message_id=target)
        with self._lock:
            self._wanted = None
        self._give_up(attachment)
        yield from self.attach_operation(deadline)

    def unsubscribe_operation(self, deadline: Deadline) -> Operation[None]:
        """Return an operation that removes the subscription and ends the consumer."""
        attachment = yield from self.attach_operation(deadline)
        self._stop()
        yield from self._ask(attachment, pb.CommandUnsubscribe, deadline)
        self._give_up(attachment)

    # --- acknowledging ------------------------------------------------------------------------

    def acknowledge(self, position: Position, batch_size: int = 0) -> None:
        """Acknowledge everything before `position`; returns at once, and never raises.

        Positions before an earlier one change nothing. `batch_size` is the size of the entry that
        contains the position, if known.
        """
        with self._lock:
            if self._wanted is not None and position <= self._wanted[0]:
                position, batch_size = self._wanted
            self._wanted = (position, batch_size)
        self._send_ack()

    def _send_ack(self) -> None:
        with self._lock:
            attachment = self._current()
            if attachment is None or self._wanted is None:
                return
            position, batch_size = self._wanted
            target = cumulative_ack(position, batch_size)
            if target is None or position == self._sent:
                return
            self._sent = position
        answer = attachment.connection.request_async(
            commands.request(
                pb.CommandAck,
                consumer_id=attachment.consumer_id,
                ack_type=pb.CommandAck.Cumulative,
                message_id=[target],
            )
        )
        answer.add_done_callback(
            lambda done: self._on_receipt(attachment, position, done.exception())
        )

    def _on_receipt(
        self, attachment: Attachment, position: Position, error: BaseException | None
    ) -> None:
        with self._lock:
            if self._attachment is not attachment:
                # The next attachment sends it again.
                return
            if error is None:
                self.acked = max(self.acked or position, position)
                return
            if self._sent == position:
                self._sent = None
        logger.warning(
            "%s: the committed position %s could not be acknowledged on the subscription %s; the "
            "next micro-batch tries again: %s",
            self.topic,
            position,
            self._subscription,
            error,
        )


class SubscriptionSet:
    """The consumers of one subscription on many topic partitions; close it at the end.

    `timeout` limits a question with all its attempts, in seconds. For one thread. Results have
    errors in place of missing answers.
    """

    def __init__(
        self, context: ClientContext, name: str, timeout: float, *, read_compacted: bool = False
    ) -> None:
        self.name = name
        self._context = context
        self._timeout = timeout
        self._read_compacted = read_compacted
        self._consumers: dict[str, HeldSubscription] = {}
        # The quiet topic partitions of each connection, the one that was asked last in front.
        self._turns: list[deque[HeldSubscription]] = []
        self.news = threading.Event()
        """Set when a quiet topic partition may have news; clear it before asking for ends."""

    def named(self, name: str) -> SubscriptionSet:
        """Return an empty set for another subscription."""
        read_compacted = self._read_compacted
        return SubscriptionSet(self._context, name, self._timeout, read_compacted=read_compacted)

    def __contains__(self, topic: str) -> bool:
        return topic in self._consumers

    @property
    def topics(self) -> list[str]:
        """The topic partitions that have consumers."""
        return list(self._consumers)

    def add(self, topic: str, initial: int, *, must_exist: bool = False) -> None:
        """Add a consumer for a topic partition; the next question attaches it.

        `initial` (EARLIEST or LATEST) is where a new subscription starts. With `must_exist`, and
        once it exists, a missing one is SubscriptionNotFound until `create_again`.
        """
        self._consumers[topic] = HeldSubscription(
            self._context,
            topic,
            self.name,
            initial,
            read_compacted=self._read_compacted,
            must_exist=must_exist,
            guarded=True,
            on_news=self.news.set,
        )

    def begin_rest(self) -> bool:
        """Return whether brokers report news of all topic partitions, and there is none."""
        self._take_turns()
        watched = sum(len(turn) for turn in self._turns)
        return watched == len(self._consumers) and not self.news.is_set()

    def rests(self) -> bool:
        """Return whether there is no news since `begin_rest`."""
        if not self.news.is_set():
            self._check_in_turn()
        return not self.news.is_set()

    def _take_turns(self) -> None:
        by_connection: dict[object, deque[HeldSubscription]] = {}
        for held in self._consumers.values():
            if held.is_quiet:
                by_connection.setdefault(held.connection, deque()).append(held)
        self._turns = list(by_connection.values())

    def _check_in_turn(self) -> None:
        """Ask about one quiet topic partition on each connection, another one each time.

        What the broker has reported before it answers is known then.
        """
        questions = []
        for turn in self._turns:
            turn.rotate(-1)
            questions.append((turn[0].topic, turn[0].check_operation))
        for found in ask_all(questions, self._timeout):
            if isinstance(found, PulsarError):
                # Who asks all of them gets it too.
                self.news.set()

    def guards(self, topic: str) -> bool:
        """Whether the subscription of a topic partition must exist."""
        return self._consumers[topic].must_exist

    def remove(self, topic: str) -> None:
        """Leave a topic partition; the subscription stays as it is."""
        consumer = self._consumers.pop(topic, None)
        if consumer is not None:
            consumer.close()

    def create_again(self, topics: Iterable[str]) -> dict[str, TopicEnd | PulsarError]:
        """As `ends`, for subscriptions that are missing: they start at the earliest message."""
        names = list(topics)
        for name in names:
            self._consumers[name].initial = EARLIEST
            self._consumers[name].must_exist = False
        results = self.ends(names)
        # Some may have waited for an attempt to attach that was under way, and knew nothing of it.
        late = [name for name in names if isinstance(results[name], SubscriptionNotFound)]
        return {**results, **self.ends(late)}

    def create_partitions(self, topics: Iterable[str]) -> dict[str, TopicEnd | PulsarError]:
        """As `ends`, for partitions that the broker may have to create.

        The topics must exist: brokers create partitions when they are first used.
        """
        names = list(topics)
        for name in names:
            consumer = self._consumers[name]
            consumer.create = True
            consumer.must_exist = consumer.must_exist and consumer.was_attached
        try:
            return self.ends(names)
        finally:
            # Our reattaching must not recreate a partition that is deleted later.
            for name in names:
                self._consumers[name].create = False

    # --- questions ----------------------------------------------------------------------------

    def ends(
        self,
        topics: Iterable[str] | None = None,
        known: Mapping[str, Position] | None = None,
    ) -> dict[str, TopicEnd | PulsarError]:
        """Return the ends of topic partitions and their subscriptions; None for all.

        `known` are positions that the topics have reached: an answer before them, or an empty
        topic, is verified.
        """
        reached = known or {}
        names = list(self._consumers if topics is None else topics)
        self._take_turns()
        self._check_in_turn()
        quiet: dict[str, TopicEnd | PulsarError] = {}
        for name in names:
            end = self._consumers[name].quiet_end(reached.get(name, EARLIEST_POSITION))
            if end is not None:
                quiet[name] = end
        others = [name for name in names if name not in quiet]
        return {**quiet, **self._ask(others, lambda consumer: consumer.end_operation)}

    def seek(self, positions: Mapping[str, Position]) -> dict[str, PulsarError | None]:
        """Move subscriptions, forward or back."""
        return self._ask(
            positions,
            lambda consumer: lambda end: consumer.seek_operation(positions[consumer.topic], end),
        )

    def unsubscribe(
        self, seconds: float | None = None, topics: Iterable[str] | None = None
    ) -> dict[str, PulsarError | None]:
        """Remove the subscriptions, or those of some topic partitions, within some seconds."""
        return self._ask(topics, lambda consumer: consumer.unsubscribe_operation, seconds)

    def _ask(
        self,
        topics: Iterable[str] | None,
        operation: Callable[[HeldSubscription], OperationFactory[T]],
        seconds: float | None = None,
    ) -> dict[str, T | PulsarError]:
        names = list(self._consumers if topics is None else topics)
        questions = [(name, retried(operation(self._consumers[name]))) for name in names]
        return dict(zip(names, ask_all(questions, seconds or self._timeout), strict=True))

    # --- acknowledgements -----------------------------------------------------------------------

    def acknowledge(self, topic: str, position: Position, batch_size: int = 0) -> None:
        """Acknowledge everything before a position, as `HeldSubscription.acknowledge`."""
        self._consumers[topic].acknowledge(position, batch_size)

    @property
    def acks_pending(self) -> int:
        """How many topic partitions have unconfirmed acknowledgements."""
        return sum(consumer.ack_pending for consumer in self._consumers.values())

    # --- the end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave all topics, waiting at most two seconds for acknowledgements and answers."""
        deadline = Deadline(_CLOSE_SECONDS)
        while self.acks_pending and not deadline.expired():
            if not any(consumer.attached for consumer in self._consumers.values()):
                break
            threading.Event().wait(0.005)
        answers: list[Future[Any]] = []
        for consumer in self._consumers.values():
            answer = consumer.close()
            if answer is not None:
                answers.append(answer)
        wait_for(answers, deadline.remaining())
        self._consumers.clear()


# --- positions --------------------------------------------------------------------------------


def _hides_deleted(last: MessageIdAdv, done: Position | None, before: Position) -> bool:
    """Whether deleted ledgers may have had entries after a position, for all that is told.

    The topic is empty, and the subscription at the beginning of a later ledger.
    """
    return (
        last.entry_id < 0
        and done is not None
        and done.entry_id == 0
        and before != EARLIEST_POSITION
        and before.ledger_id < done.ledger_id
    )
