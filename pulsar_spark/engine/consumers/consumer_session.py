"""One registration of a consumer at a broker: subscribe, permits, requests, close.

Readers, probes and durable subscriptions use one session after the other: when broker or connection
end one, its owner starts the next. A session registers with its connection before SUBSCRIBE is
sent, so that it misses no event. The broker is told of its end whenever it may know of it, even
after a timeout.

A broker that unloads a topic while a consumer subscribes can keep that consumer without a topic: it
delivers nothing, reports an empty topic, and never closes the consumer. `confirm` detects this:
subscriptions are Exclusive, so a second SUBSCRIBE is refused if the broker holds the session's.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, ParamSpec

from google.protobuf.message import Message

from pulsar_spark.engine.closing import Closing
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.connections.handlers import ConsumerHandler, topic_migrated
from pulsar_spark.engine.connections.requests import Opening
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.operations import Operation, Pause
from pulsar_spark.engine.options import ConsumerOptions, KeySharedRules
from pulsar_spark.engine.retry import Backoff
from pulsar_spark.errors import (
    AuthorizationError,
    BrokerError,
    ClosedError,
    ConnectionLost,
    ConsumerBusy,
    LocalProtocolError,
    NotAllowed,
    PulsarError,
    SubscriptionNotFound,
    TopicNotFound,
)
from pulsar_spark.policies import no_subscription, no_topic
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import MessageBlock
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, MessageIdAdv, Position
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.protocol.topic_name import TopicName, topic_of

_CLOSE_TIMEOUT = 5.0
# How long a question waits for its turn where a policy limits consumers or subscriptions. Another
# question takes milliseconds; whoever reads the topic keeps its place for longer than this anyway.
_TURN_SECONDS = 5.0
_TURN_PAUSE = 0.02
_MAX_TURN_PAUSE = 0.5
# How readers and probes subscribe.
_NO_OPTIONS = ConsumerOptions("none")
_PREFIX_WANTED = re.compile(
    r"needs to be prefixed by the authentication role, like (.{1,200}-)xxxx"
)
# Made once: most sessions close with nothing left to fail, and what fails gets a copy.
_LEFT = ClosedError("the consumer is closed")

P = ParamSpec("P")


# Asking the system for each of thousands of names lets other threads in, each time.
_RANDOM = random.Random()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_RANDOM.seed)


def unique_name(prefix: str) -> str:
    """Return a subscription name that nobody else uses."""
    return f"{prefix}-{_RANDOM.getrandbits(64):016x}"


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """The content of a SUBSCRIBE command.

    With `start` the subscription is non-durable and starts there. Without it the subscription is
    durable, and a new one starts at `initial` (an InitialPosition). `create` lets the broker create
    the topic. Exclusive unless `options` say otherwise. `epoch` counts requests to redeliver
    everything; `age` starts that many seconds ago; `schema` is for a consumer without options.

    With `in_turn`, for a name that nobody else uses, a refusal can only be a policy's: if it limits
    consumers or subscriptions, others like this one may leave soon, and it is asked again. If names
    have to begin with the role, as the broker says, this one does then.
    """

    topic: str
    name: str
    start: Position | None
    initial: int = pb.CommandSubscribe.Latest
    read_compacted: bool = False
    create: bool = False
    options: ConsumerOptions | None = None
    epoch: int | None = None
    age: int | None = None
    schema: SchemaInfo | None = None
    in_turn: bool = False

    def command(self, consumer_id: int) -> Callable[[int], pb.BaseCommand]:
        """Return what builds the SUBSCRIBE command."""
        start, options = self.start, self.options or _NO_OPTIONS
        schema = self.schema if self.options is None else options.schema
        return commands.request(
            pb.CommandSubscribe,
            topic=self.topic,
            subscription=self.name,
            subType=options.kind,
            consumer_id=consumer_id,
            consumer_name=options.consumer_name,
            priority_level=options.priority_level,
            durable=start is None,
            start_message_id=None
            if start is None
            else MessageIdAdv(start.ledger_id, start.entry_id).to_pb(),
            metadata=commands.key_values(options.properties),
            read_compacted=self.read_compacted,
            schema=None if schema is None else schema.to_pb(),
            initialPosition=self.initial,
            replicate_subscription_state=options.replicated or None,
            force_topic_creation=self.create,
            start_message_rollback_duration_sec=self.age,
            keySharedMeta=_key_shared(options),
            subscription_properties=commands.key_values(options.subscription_properties),
            consumer_epoch=self.epoch,
        )


def _key_shared(options: ConsumerOptions) -> pb.KeySharedMeta | None:
    if options.kind != pb.CommandSubscribe.Key_Shared:
        return None
    rules = options.key_shared or KeySharedRules()
    return pb.KeySharedMeta(
        keySharedMode=pb.STICKY if rules.ranges else pb.AUTO_SPLIT,
        hashRanges=[pb.IntRange(start=low, end=high) for low, high in rules.ranges],
        allowOutOfOrderDelivery=rules.out_of_order,
    )


class ConsumerSession(Closing):
    """One session of a consumer on a connection; a context manager.

    Until the session ends, its `handler` gets the broker's events on the receive thread; without
    a handler they are dropped. Raises ConnectionLost if the connection is lost. Thread-safe.
    """

    def __init__(
        self,
        connection: ClientConnection,
        wanted: SubscribeRequest,
        handler: ConsumerHandler | None = None,
    ) -> None:
        self.connection = connection
        self.wanted = wanted
        if wanted.in_turn and connection.name_prefix:
            self._begin_name_with(connection.name_prefix)
        self._handler = handler
        self._lock = threading.Lock()
        # Guarded by _lock, as is `ended`: whether the broker may know of the consumer.
        self._known = False
        self.ended = False
        """Whether broker, connection or `close` has ended the session."""
        self._opening = Opening(connection.abandon)
        self.consumer_id = connection.handlers.add_consumer(self)

    # --- subscribe ----------------------------------------------------------------------------

    def subscribe(self, deadline: Deadline) -> Operation[None]:
        """Return an operation that subscribes; one attempt, or for some seconds those `in_turn`.

        Raises the broker's error, after which it may be called again; ConnectionLost if the broker
        closed the consumer at once; ClosedError if `close` was called meanwhile.
        """
        # With less than the time left, so that the broker's refusal is said, not the timeout.
        wait = min(_TURN_SECONDS, deadline.remaining() / 2) if self.wanted.in_turn else 0.0
        patience, backoff = Deadline(wait), Backoff(_TURN_PAUSE, _MAX_TURN_PAUSE)
        is_renamed = False
        while True:
            try:
                return (yield from self._subscribe(deadline))
            except AuthorizationError as error:
                prefix = _wanted_prefix(error)
                if prefix is None or not self.wanted.in_turn or is_renamed:
                    raise
                is_renamed, self.connection.name_prefix = True, prefix
                self._begin_name_with(prefix)
                continue
            except (ConsumerBusy, NotAllowed):
                pause = backoff.next()
                if patience.remaining() <= pause:
                    raise
            yield Pause(pause)

    def _begin_name_with(self, prefix: str) -> None:
        self.wanted = replace(self.wanted, name=f"{prefix}{self.wanted.name}")

    def _subscribe(self, deadline: Deadline) -> Operation[None]:
        self._check()
        with self._lock:
            # The broker may have subscribed us even if its answer is missing.
            self._known = True
        answer = self._request(self.wanted.command(self.consumer_id), deadline)
        try:
            yield self._opening.begin(answer)
        except BrokerError as error:
            with self._lock:
                self._known = False
            raise self._explained(error) from error
        self._check()

    def _explained(self, error: BrokerError) -> BrokerError:
        """Return the broker's error; if nothing may be created, it names the policy."""
        topic = topic_of(self.wanted.topic)
        if isinstance(error, SubscriptionNotFound):
            why, remedy = no_subscription(topic, self.wanted.name)
        elif (prefix := _wanted_prefix(error)) is not None:
            remedy = (
                f"Begin the subscription's name with {prefix!r} (options subscription and "
                "subscriptionPrefix; an exactly-once sink's has a fixed name: set sinkStateTopic "
                "to a topic of another namespace), or allow any name: pulsar-admin namespaces "
                "set-subscription-auth-mode "
                f"{TopicName.parse(topic).namespace_name} --subscription-auth-mode None"
            )
            return type(error)(error.what, remedy, broker=error.broker)
        elif isinstance(error, TopicNotFound) and self.wanted.create:
            why, remedy = no_topic(topic, self.wanted.topic)
        else:
            return error
        return type(error)(f"{error.what}; {why}", remedy, broker=error.broker)

    def _check(self) -> None:
        if self.ended:
            raise _closed_by_broker()

    def confirm(self, deadline: Deadline) -> Operation[None]:
        """Return an operation that raises ConnectionLost unless the broker holds the consumer.

        It also raises other errors that prevent an answer.
        """
        with ConsumerSession(self.connection, replace(self.wanted, in_turn=False)) as other:
            try:
                yield from other.subscribe(deadline)
            except ConsumerBusy:
                return
            # It must be gone before the subscription can be used again.
            if (answer := other.close()) is not None:
                yield answer
        raise ConnectionLost("the broker had unloaded the topic of a consumer")

    # --- questions ----------------------------------------------------------------------------

    def flow(self, permits: int) -> None:
        """Give the broker more permits; raises ConnectionLost."""
        self.connection.send(
            commands.build(pb.CommandFlow, consumer_id=self.consumer_id, messagePermits=permits)
        )

    def ask(
        self,
        body: Callable[P, Message],
        deadline: Deadline,
        /,
        *_: P.args,
        **fields: P.kwargs,
    ) -> Future[Any]:
        """Send a command with these fields and the consumer's id; return the answer's future.

        Waits at most one attempt. Never raises: the future fails with ConnectionLost if the broker
        has closed the consumer.
        """
        kind: Callable[..., Message] = body
        command = commands.request(kind, consumer_id=self.consumer_id, **fields)
        return self._request(command, deadline)

    def _request(self, command: Callable[[int], pb.BaseCommand], deadline: Deadline) -> Future[Any]:
        answer: Future[Any] = self.connection.request_async(command, deadline.attempt())
        if answer.done() and isinstance(answer.exception(), LocalProtocolError):
            answer = Future()
            answer.set_exception(_closed_by_broker())
        return answer

    def last_message_id(self, deadline: Deadline) -> Future[Any]:
        """Ask for the last message; the answer is a CommandGetLastMessageIdResponse."""
        return self.ask(pb.CommandGetLastMessageId, deadline)

    def stats(self, deadline: Deadline) -> Future[Any]:
        """Ask for the consumer's statistics; the answer is a CommandConsumerStatsResponse."""
        return self.ask(pb.CommandConsumerStats, deadline)

    # --- the end ------------------------------------------------------------------------------

    def close(self) -> Future[Any] | None:
        """End the session, and tell the broker if it may know of it; never raises.

        Returns the future of the broker's answer, if there will be one. A pending `subscribe`
        raises ClosedError.
        """
        self.connection.handlers.remove_consumer(self.consumer_id)
        with self._lock:
            self.ended = True
            known, self._known = self._known, False
        # If a consumer is closed while it opens, the broker answers only CLOSE_CONSUMER.
        self._opening.end(_LEFT)
        if not known or self.connection.closed:
            return None
        with contextlib.suppress(PulsarError):
            return self.connection.request_async(
                commands.request(pb.CommandCloseConsumer, consumer_id=self.consumer_id),
                _CLOSE_TIMEOUT,
            )
        return None

    # --- events, on the receive thread ----------------------------------------------------------

    def on_messages(self, block: MessageBlock) -> int:
        """Pass entries on."""
        return 0 if self._handler is None else self._handler.on_messages(block)

    def on_close(self, command: pb.CommandCloseConsumer) -> None:
        """End: the broker closed the consumer; it may name the topic's new broker."""
        self._on_end()
        if self._handler is not None:
            self._handler.on_close(command)

    def on_command(self, body: Message) -> None:
        """Pass on other commands."""
        if isinstance(body, pb.CommandTopicMigrated):
            # A broker may send this instead of an answer to SUBSCRIBE.
            self._opening.end(topic_migrated(self.connection.address.logical))
        if self._handler is not None:
            self._handler.on_command(body)

    def on_disconnect(self, error: PulsarError) -> None:
        """End: the connection is lost."""
        self._on_end()
        if self._handler is not None:
            self._handler.on_disconnect(error)

    def _on_end(self) -> None:
        with self._lock:
            self.ended = True
            self._known = False


def _wanted_prefix(error: BrokerError) -> str | None:
    """Return what a subscription's name has to begin with, if a broker says so, else None.

    Only its text tells it (Pulsar, PulsarAuthorizationProvider.canConsumeAsync).
    """
    found = _PREFIX_WANTED.search(error.what) if isinstance(error, AuthorizationError) else None
    return None if found is None else found[1]


def visit(
    connection: ClientConnection, wanted: SubscribeRequest, deadline: Deadline
) -> Operation[None]:
    """Return an operation that subscribes and leaves: a non-durable subscription is gone then."""
    with ConsumerSession(connection, wanted) as session:
        yield from session.subscribe(deadline)
        if (answer := session.close()) is not None:
            yield answer


def probe_request(
    topic: str, position: Position, *, read_compacted: bool = False
) -> SubscribeRequest:
    """Return a request for a subscription at `position` that leaves no trace."""
    name = unique_name("pulsar-spark-probe")
    return SubscribeRequest(topic, name, position, read_compacted=read_compacted, in_turn=True)


def durable_exists(
    connection: ClientConnection, topic: str, name: str, deadline: Deadline
) -> Operation[bool]:
    """Return an operation for whether a topic has a durable subscription of that name.

    It leaves no trace. The name must not belong to a non-durable subscription. Brokers refuse a
    non-durable subscription with the same code if a durable one has its name, and if a policy
    allows no further one. So what was refused is asked again when they accept one of another name;
    NotAllowed is raised if they do not.
    """
    wanted = SubscribeRequest(topic, name, EARLIEST_POSITION)
    if (yield from _is_allowed(connection, wanted, deadline)):
        return False
    yield from visit(connection, probe_request(topic, EARLIEST_POSITION), deadline)
    return not (yield from _is_allowed(connection, wanted, deadline))


def _is_allowed(
    connection: ClientConnection, wanted: SubscribeRequest, deadline: Deadline
) -> Operation[bool]:
    """Return an operation for `visit`, and whether it was allowed."""
    try:
        yield from visit(connection, wanted, deadline)
    except NotAllowed:
        return False
    return True


def _closed_by_broker() -> PulsarError:
    return ConnectionLost("the broker closed the consumer")
