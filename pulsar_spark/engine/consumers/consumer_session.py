"""One registration of a consumer at a broker: subscribe, permits, requests, close.

Readers, probes and durable subscriptions all live through sessions, one after the other: whenever
broker or connection send one away, its owner begins another. A session is registered with its
connection before SUBSCRIBE is sent, so that nothing that the broker says of it is missed, and the
broker is told of its end whenever it may know of it: after a time-out, too.

A broker that lets go of a topic while a consumer comes can keep that consumer without a topic
behind it: it delivers nothing, answers that there is nothing, and never sends it away. `confirm`
tells whether that is so. Subscriptions are Exclusive: whoever asks for one that the broker holds
for this session is refused.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from pulsar_spark.engine.closing import Closing
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.connections.handlers import ConsumerHandler, topic_migrated
from pulsar_spark.engine.operations import Operation
from pulsar_spark.engine.options import ConsumerOptions, KeySharedRules
from pulsar_spark.engine.retry import Deadline
from pulsar_spark.errors import (
    BrokerError,
    ClosedError,
    ConnectionLost,
    ConsumerBusy,
    LocalProtocolError,
    PulsarError,
)
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import MessageBlock
from pulsar_spark.protocol.message_id import MessageIdAdv, Position
from pulsar_spark.protocol.schema_info import SchemaInfo

_CLOSE_TIMEOUT = 5.0


def unique_name(prefix: str) -> str:
    """Return a name for a subscription that nobody else uses."""
    return f"{prefix}-{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """What a consumer asks for by SUBSCRIBE.

    From `start` on it is not durable: nothing of it stays at the broker. With None it is, and
    `initial` (an InitialPosition) is where it begins if it does not exist yet. `create` lets the
    broker create the topic. It is Exclusive unless `options` say more. `epoch` counts how often it
    has asked for everything again; `age` are the seconds before now from which on it reads;
    `schema` is that of a consumer without options.
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

    def command(self, consumer_id: int, request_id: int) -> pb.BaseCommand:
        """Return the SUBSCRIBE command."""
        start = self.start
        schema = self.schema if self.options is None else self.options.schema
        return commands.subscribe(
            self.topic,
            self.name,
            consumer_id,
            request_id,
            durable=start is None,
            start_message_id=None
            if start is None
            else MessageIdAdv(start.ledger_id, start.entry_id).to_pb(),
            initial_position=self.initial,
            read_compacted=self.read_compacted,
            force_topic_creation=self.create,
            consumer_epoch=self.epoch,
            start_message_rollback_duration_sec=self.age,
            schema=None if schema is None else schema.to_pb(),
            **({} if self.options is None else _more(self.options)),
        )


def _more(options: ConsumerOptions) -> dict[str, Any]:
    """Return what else SUBSCRIBE says of a consumer."""
    return {
        "sub_type": options.kind,
        "consumer_name": options.consumer_name,
        "priority_level": options.priority_level,
        "metadata": dict(options.properties),
        "subscription_properties": dict(options.subscription_properties),
        "key_shared_meta": _key_shared(options),
        "replicate_subscription_state": options.replicated or None,
    }


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
    """One life of a consumer on a connection; a context manager, to be closed at the end.

    The `handler` is told on the receive thread what the broker sends, until the session ends;
    without one, that is dropped. Raises ConnectionLost if the connection is. Thread-safe.
    """

    def __init__(
        self,
        connection: ClientConnection,
        wanted: SubscribeRequest,
        handler: ConsumerHandler | None = None,
    ) -> None:
        self.connection = connection
        self.wanted = wanted
        self._handler = handler
        self._lock = threading.Lock()
        # The following are guarded by _lock: whether the broker may know of the consumer,
        # whether the session is over, why it cannot begin, and the question whether it may.
        self._known = False
        self._ended = False
        self._refusal: PulsarError | None = None
        self._asking: Future[Any] | None = None
        self.consumer_id = connection.add_consumer(self)

    @property
    def ended(self) -> bool:
        """Whether broker, connection or `close` ended the session."""
        return self._ended

    # --- the beginning ------------------------------------------------------------------------

    def subscribe(self, deadline: Deadline) -> Operation[None]:
        """Return an operation that subscribes, in one attempt.

        Raises what the broker refuses with, after which it can be tried again, ConnectionLost if
        it was sent away at once, ClosedError if it was closed meanwhile.
        """
        self._check()
        with self._lock:
            # The broker may carry out what it has not answered.
            self._known = True
        answer = self.ask(self.wanted.command, deadline)
        with self._lock:
            self._asking = answer
            over = ClosedError("the consumer is closed") if self._ended else self._refusal
        if over is not None:
            self._stop_asking(over)
        try:
            yield answer
        except BrokerError:
            with self._lock:
                self._known = False
            raise
        finally:
            with self._lock:
                self._asking = None
        self._check()

    def _check(self) -> None:
        if self._ended:
            raise _sent_away()

    def confirm(self, deadline: Deadline) -> Operation[None]:
        """Return an operation that raises ConnectionLost unless the broker holds the consumer.

        It raises what else hinders the broker from saying so, too.
        """
        with ConsumerSession(self.connection, self.wanted) as other:
            try:
                yield from other.subscribe(deadline)
            except ConsumerBusy:
                return
            # It must be gone before anyone can hold the subscription again.
            if (answer := other.close()) is not None:
                yield answer
        raise ConnectionLost("the broker had unloaded the topic of a consumer")

    # --- what can be asked --------------------------------------------------------------------

    def flow(self, permits: int) -> None:
        """Let the broker deliver so many messages more; raises ConnectionLost."""
        self.connection.send(commands.flow(self.consumer_id, permits))

    def ask(self, command: Callable[[int, int], pb.BaseCommand], deadline: Deadline) -> Future[Any]:
        """Send what `command` makes of consumer id and request id; the answer is in the future.

        One attempt at most is waited for. Raises nothing: it is ConnectionLost in the future if
        the broker has sent the consumer away.
        """
        answer: Future[Any] = self.connection.request_async(
            lambda request_id: command(self.consumer_id, request_id), deadline.attempt()
        )
        if answer.done() and isinstance(answer.exception(), LocalProtocolError):
            answer = Future()
            answer.set_exception(_sent_away())
        return answer

    def last_message_id(self, deadline: Deadline) -> Future[Any]:
        """Ask for the last message; the answer is a CommandGetLastMessageIdResponse."""
        return self.ask(commands.get_last_message_id, deadline)

    def stats(self, deadline: Deadline) -> Future[Any]:
        """Ask how the consumer does; the answer is a CommandConsumerStatsResponse."""
        return self.ask(commands.consumer_stats, deadline)

    # --- the end ------------------------------------------------------------------------------

    def close(self) -> Future[Any] | None:
        """End the session, and tell the broker if it may know of it; never raises.

        Returns the future of the broker's answer, if there will be one. Whoever subscribes at
        this moment is told ClosedError.
        """
        self.connection.remove_consumer(self.consumer_id)
        with self._lock:
            self._ended = True
            known, self._known = self._known, False
        self._stop_asking(ClosedError("the consumer is closed"))
        if not known or self.connection.closed:
            return None
        with contextlib.suppress(PulsarError):
            return self.connection.request_async(
                lambda request_id: commands.close_consumer(self.consumer_id, request_id),
                _CLOSE_TIMEOUT,
            )
        return None

    def _stop_asking(self, error: PulsarError) -> None:
        # A broker that is told to close what it is about to open answers that alone.
        asking = self._asking
        if asking is not None and self.connection.forget(asking):
            with contextlib.suppress(InvalidStateError):
                asking.set_exception(error)

    # --- what the receive thread tells ----------------------------------------------------------

    def on_messages(self, block: MessageBlock) -> None:
        """Pass entries on."""
        if self._handler is not None:
            self._handler.on_messages(block)

    def on_close(self, command: pb.CommandCloseConsumer) -> None:
        """End: the broker closed the consumer; it may name the topic's new broker."""
        self._on_end()
        if self._handler is not None:
            self._handler.on_close(command)

    def on_command(self, body: Message) -> None:
        """Pass on what is no entry."""
        if isinstance(body, pb.CommandTopicMigrated):
            # A broker can say so in the place of an answer to SUBSCRIBE.
            refusal = topic_migrated(self.connection.address.logical)
            with self._lock:
                self._refusal = refusal
            self._stop_asking(refusal)
        if self._handler is not None:
            self._handler.on_command(body)

    def on_disconnect(self, error: PulsarError) -> None:
        """End: the connection is lost."""
        self._on_end()
        if self._handler is not None:
            self._handler.on_disconnect(error)

    def _on_end(self) -> None:
        with self._lock:
            self._ended = True
            self._known = False


def _sent_away() -> PulsarError:
    return ConnectionLost("the broker closed the consumer")
