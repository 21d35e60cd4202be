"""One connection of a client to the embedded broker."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from pulsar_spark.errors import InvalidTopicName
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.connection import Connection
from pulsar_spark.protocol.events import CommandReceived, ConnectionFailed, Event
from pulsar_spark.protocol.frame_parts import BODY_FIELDS, Frame
from pulsar_spark.protocol.frames import encode_command
from pulsar_spark.protocol.states import Role, State
from pulsar_spark.protocol.versions import KEEP_ALIVE
from pulsar_spark.testing.actions import Action, Incoming
from pulsar_spark.testing.entry_log import Entry
from pulsar_spark.testing.handlers.answers import refusal
from pulsar_spark.testing.handlers.table import HANDLERS
from pulsar_spark.testing.refusals import Refusal
from pulsar_spark.testing.rules import INCOMING, OUTGOING, Seen
from pulsar_spark.testing.topic_store import topic_name
from pulsar_spark.testing.versions import TOLD_SINCE, not_understood
from pulsar_spark.testing.wire import Wire

if TYPE_CHECKING:
    from pulsar_spark.testing.consumers import Consumer
    from pulsar_spark.testing.producers import Producer
    from pulsar_spark.testing.server import Server

_T = pb.BaseCommand
NAMES: dict[int, str] = {number: name for name, number in pb.BaseCommand.Type.items()}
# The field that names a command's topic: directly, or by producer or consumer.
_OWNER_FIELDS: dict[int, str] = {
    number: owner
    for number, name in BODY_FIELDS.items()
    # A command's last one: PRODUCER and SUBSCRIBE come before what they create exists.
    for owner in ("consumer_id", "producer_id", "topic")
    if hasattr(getattr(pb.BaseCommand(), name), owner) and not name.endswith("Response")
}
# Write the answers after this many commands, to notice whether the client reads them.
_FLUSH_EVERY = 32
# Stop reading when this many commands wait, because of a fault or of unread answers.
_MAX_WAITING = 64
_PONG = encode_command(commands.build(pb.CommandPong))


class Session(Wire):
    """A connection: bytes to the protocol core and back, commands to their handlers.

    Everything happens on the broker's thread. `listener` is the number of the broker that the
    client connected to.
    """

    def __init__(self, server: Server, listener: int) -> None:
        super().__init__(server.loop)
        self.server = server
        self.listener = listener
        self.number = next(server.session_numbers)
        self.core = Connection(Role.BROKER, server.options.max_message_size)
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.watchers: dict[int, Callable[[], None]] = {}
        self.connect: pb.CommandConnect | None = None
        self._own_version = server.options.protocol_version
        # The common version, once the client has sent its own.
        self.version = self._own_version
        self.exposes_metadata = False
        self.last_received = time.monotonic()
        self._ping_sent_at: float | None = None
        self._flush_scheduled = False
        # Commands not carried out yet; faults can delay them.
        self._input: deque[Event] = deque()
        self._input_holds = 0
        # Actions that wait for a request's answer, by request id, or by producer and sequence id.
        self._answer_actions: dict[tuple[int, ...], tuple[Seen, Action]] = {}

    # --- asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start, unless a fault is set for new connections."""
        super().connection_made(transport)
        self.server.session_opened(self)
        self.later(self.server.options.keep_alive_interval, self._keep_alive)
        matched = self.server.faults.match_rule(INCOMING, "CONNECTION", None, None, self.number)
        if matched is not None:
            seen, rule = matched
            rule.action.on_command(self, Incoming(0, None, None, lambda _: None), seen)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove everything that the client had."""
        super().connection_lost(exc)
        for producer in list(self.producers.values()):
            producer.topic.producers.remove(producer)
        self.producers.clear()
        consumers, self.consumers = self.consumers, {}
        for consumer in consumers.values():
            consumer.subscription.topic.release(consumer)
        for stop in self.watchers.values():
            stop()
        self.watchers.clear()
        self._input.clear()
        self.server.sessions.discard(self)

    def data_received(self, data: bytes) -> None:
        """Read bytes, and handle the commands that they complete."""
        if self.muted:
            return
        self.last_received = time.monotonic()
        self._ping_sent_at = None
        self.flush()
        self.core.receive_data(data)
        # The core itself only answers PINGs.
        pings = len(self.core.data_to_send())
        self._input += self.core.events_received()
        self._drain()
        for _ in range(pings):
            self._answer_ping()

    def resume_writing(self) -> None:
        """Deliver and read again."""
        super().resume_writing()
        self._drain()
        for consumer in self.consumers.values():
            consumer.subscription.wake()

    # --- commands in ---

    def _drain(self) -> None:
        """Carry out received commands, as long as the client reads its answers."""
        carried_out = 0
        while self._input and not self._input_holds and self.open and not self.backed_up:
            self._process(self._input.popleft())
            carried_out += 1
            if carried_out % _FLUSH_EVERY == 0:
                self.flush()
        self.set_reading(self.server.reading)

    def _process(self, event: Event) -> None:
        if isinstance(event, Frame):
            self._apply_faults(
                Incoming(_T.SEND, event.command.send, event.payload, self._carry_out)
            )
        elif isinstance(event, CommandReceived):
            self._apply_faults(Incoming(event.kind, event.body, None, self._carry_out))
        elif isinstance(event, ConnectionFailed):
            self.server.note(f"connection {self.number}: {event.error}")
            self.disconnect()

    def _apply_faults(self, command: Incoming) -> None:
        topic = self._topic_of(command.kind, command.body)
        name = NAMES[command.kind]
        matched = self.server.faults.match_rule(INCOMING, name, topic, command.body, self.number)
        if matched is None:
            self._carry_out(command)
            return
        seen, rule = matched
        if rule.answer:
            self._answer_actions[_answer_key(command.kind, command.body)] = (seen, rule.action)
            self._carry_out(command)
            return
        try:
            rule.action.on_command(self, command, seen)
        except Exception as error:
            self._report(command, error)

    def _carry_out(self, command: Incoming) -> None:
        if not self.open:
            return
        if (unknown := not_understood(command, self._own_version)) is not None:
            self.server.note(f"connection {self.number}: {unknown}")
            self.disconnect()
            return
        handler = HANDLERS.get(command.kind)
        try:
            if handler is None:
                raise Refusal(pb.NotAllowedError, f"{NAMES[command.kind]} is not supported here")
            payload = () if command.payload is None else (command.payload,)
            task = handler(self, command.body, *payload)
        except Refusal as error:
            self.refuse(command.kind, command.body, error.code, error.message)
        except Exception as error:
            self._report(command, error)
        else:
            if task is not None:
                self.server.start(self._finish(command, task))

    async def _finish(self, command: Incoming, task: Any) -> None:
        try:
            await task
        except Refusal as error:
            self.refuse(command.kind, command.body, error.code, error.message)
        except Exception as error:
            self._report(command, error)

    def _report(self, command: Incoming, error: Exception) -> None:
        """Record an error of the embedded broker itself, and tell the client."""
        self.server.note_internal_error(error)
        self.server.note(f"{NAMES[command.kind]} failed", error)
        self.refuse(command.kind, command.body, pb.UnknownError, f"{type(error).__name__}: {error}")

    def refuse(self, kind: int, body: Any, code: int, message: str) -> None:
        """Answer a command with an error, in its answer's form."""
        answer = refusal(kind, body, code, message)
        if answer is not None and self.core.state in (State.CONNECTING, State.READY):
            self.send(answer, self._topic_of(kind, body))
        if kind == _T.CONNECT:
            self.disconnect()

    def _topic_of(self, kind: int, body: Any) -> str | None:
        """Return the full name of a command's topic, if it has one."""
        owner = _OWNER_FIELDS.get(kind)
        if owner == "producer_id":
            producer = self.producers.get(body.producer_id)
            return None if producer is None else producer.topic.name
        if owner == "consumer_id":
            consumer = self.consumers.get(body.consumer_id)
            return None if consumer is None else consumer.subscription.topic.name
        if owner == "topic":
            try:
                return str(topic_name(body.topic))
            except InvalidTopicName:
                return None
        return None

    # --- commands out ---

    def answer(
        self, asked: Any, kind: Callable[..., Message], topic: str | None = None, /, **fields: Any
    ) -> None:
        """Send a command with the request id of what was asked, as `send`."""
        self.send(commands.build(kind, request_id=asked.request_id, **fields), topic)

    def send(self, command: pb.BaseCommand, topic: str | None = None) -> None:
        """Send a command, unless a fault applies or its producer or consumer is gone."""
        if not self.open or self.muted:
            return
        kind = command.type
        if self.version < TOLD_SINCE.get(kind, 0):
            if kind in (_T.CLOSE_PRODUCER, _T.CLOSE_CONSUMER):
                self.disconnect()
            return
        action = self._outgoing_action(kind, getattr(command, BODY_FIELDS[kind]), topic)
        self.core.send(command)
        self._pass_on(action)

    def deliver(self, command: pb.BaseCommand, entry: Entry, topic: str) -> None:
        """Send an entry as it is stored."""
        if not self.open or self.muted:
            return
        action = self._outgoing_action(_T.MESSAGE, command.message, topic)
        metadata = entry.broker_metadata if self.exposes_metadata else None
        self.core.send_raw_payload(command, entry.data, metadata)
        self._pass_on(action)

    def _outgoing_action(
        self, kind: int, body: Any, topic: str | None
    ) -> tuple[Seen, Action] | None:
        """Return what a fault does to a command, which then is the first one to be sent."""
        name = NAMES[kind]
        matched = self.server.faults.match_rule(OUTGOING, name, topic, body, self.number)
        if self._answer_actions and (key := _answer_key(kind, body)) in self._answer_actions:
            seen, action = self._answer_actions.pop(key)
            seen = Seen(time.monotonic(), self.number, OUTGOING, name, seen.topic, body)
        elif matched is not None:
            seen, action = matched[0], matched[1].action
        else:
            return None
        self.flush()
        return seen, action

    def _pass_on(self, action: tuple[Seen, Action] | None) -> None:
        if action is None:
            self._schedule_flush()
        elif frame := b"".join(self.core.data_to_send()):
            seen, what = action
            what.on_frame(self, frame, seen)

    def _answer_ping(self) -> None:
        if self.muted:
            return
        if self._own_version < KEEP_ALIVE:
            self.server.note(f"connection {self.number}: PING came with a later version")
            self.disconnect()
            return
        faults = self.server.faults
        matched = faults.match_rule(INCOMING, "PING", None, None, self.number)
        matched = faults.match_rule(OUTGOING, "PONG", None, None, self.number) or matched
        if matched is None:
            self.transmit(_PONG)
        else:
            matched[1].action.on_frame(self, _PONG, matched[0])

    def flush(self) -> None:
        """Write the protocol core's pending output."""
        self._flush_scheduled = False
        buffers = self.core.data_to_send()
        if buffers:
            # Not with writelines: some versions of asyncio do not call pause_writing after it.
            self.transmit(b"".join(buffers))

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.loop.call_soon(self.flush)

    # --- producers and consumers ---

    def check_owns(self, topic: str) -> None:
        """Raise Refusal (ServiceNotReady) if the client's broker is not the topic's owner."""
        if not self.owns(topic):
            raise Refusal(
                pb.ServiceNotReady,
                f"Namespace bundle for topic ({topic}) not served by this instance. "
                "Please redo the lookup.",
            )

    def owns(self, topic: str) -> bool:
        """Whether the client's broker serves a topic.

        With CONNECT.proxy_to_broker_url, the client's broker is the one named there.
        """
        broker = self.listener
        if self.connect is not None and self.connect.proxy_to_broker_url:
            broker = self.server.listener_of(self.connect.proxy_to_broker_url, default=broker)
        return self.server.topics.owner(topic) == broker

    def announce_producer(self, producer: Producer) -> None:
        """Tell a producer that it is registered, and whether it may write."""
        topic = producer.topic
        self.answer(
            producer,
            pb.CommandProducerSuccess,
            topic.name,
            producer_name=producer.name,
            last_sequence_id=topic.sequence_ids.get(producer.name, -1)
            if topic.deduplicates
            else -1,
            schema_version=producer.schema_version,
            topic_epoch=producer.topic_epoch if producer.ready else None,
            producer_ready=producer.ready,
        )

    def close_producer(self, producer: Producer, assigned_broker_url: str | None = None) -> None:
        """Close a producer that was removed from its topic."""
        if self.producers.get(producer.producer_id) is producer:
            del self.producers[producer.producer_id]
            command = commands.build(
                pb.CommandCloseProducer,
                producer_id=producer.producer_id,
                request_id=commands.NO_REQUEST_ID,
                **_assigned(assigned_broker_url),
            )
            self.send(command, producer.topic.name)

    def fence_producer(self, producer: Producer) -> None:
        """Take a producer's access away: one that waits for it is told, others are not."""
        if producer.ready:
            producer.fenced = True
        elif self.producers.pop(producer.producer_id, None) is producer:
            text = "org.apache.pulsar.broker.service.BrokerServiceException$ProducerFencedException"
            self.answer(
                producer,
                pb.CommandError,
                producer.topic.name,
                error=pb.ProducerFenced,
                message=f"{text}: Fenced out",
            )

    def close_consumer(self, consumer: Consumer, assigned_broker_url: str | None = None) -> None:
        """Close a consumer."""
        if self.consumers.get(consumer.consumer_id) is consumer:
            del self.consumers[consumer.consumer_id]
            command = commands.build(
                pb.CommandCloseConsumer,
                consumer_id=consumer.consumer_id,
                request_id=commands.NO_REQUEST_ID,
                **_assigned(assigned_broker_url),
            )
            self.send(command, consumer.subscription.topic.name)

    # --- liveness ---

    def _keep_alive(self) -> None:
        if self.muted or not self.server.reading:
            self._ping_sent_at = None
        elif self._ping_sent_at is not None or self.core.state is not State.READY:
            self.server.note(f"connection {self.number} is silent")
            self.disconnect()
            return
        else:
            self.ping()
        self.later(self.server.options.keep_alive_interval, self._keep_alive)

    def ping(self) -> None:
        """Send PING, which the first protocol version lacks."""
        if self.version < KEEP_ALIVE:
            self.last_received = time.monotonic()
            return
        self._ping_sent_at = time.monotonic()
        self.send(commands.build(pb.CommandPing))

    async def is_alive(self) -> bool:
        """Send PING and wait for a sign of life; close the connection if there is none."""
        asked = time.monotonic()
        self.ping()
        deadline = asked + self.server.options.liveness_timeout
        while self.open and self.last_received <= asked:
            if time.monotonic() >= deadline:
                self.disconnect(reset=True)
                return False
            await asyncio.sleep(0.001)
        return self.open

    # --- what faults do ---

    def disconnect(self, *, reset: bool = False) -> None:
        """Close the connection, normally or by a TCP reset."""
        if not reset:
            self.flush()
        super().disconnect(reset=reset)

    def mute(self) -> None:
        """Answer nothing any more, and ignore what is received."""
        self.flush()
        self.muted = True

    def hold_input(self, seconds: float) -> None:
        """Delay commands, in order."""
        self._input_holds += 1
        self.later(seconds, self._release_input)

    def _release_input(self) -> None:
        self._input_holds -= 1
        self._drain()

    def set_reading(self, reading: bool) -> None:
        """Read from the socket, or stop reading."""
        self.pause(not reading or self.backed_up or len(self._input) > _MAX_WAITING)


def _assigned(url: str | None) -> dict[str, Any]:
    """Return the field that names a topic's new broker."""
    tls = url is not None and url.startswith("pulsar+ssl:")
    return {"assignedBrokerServiceUrlTls" if tls else "assignedBrokerServiceUrl": url}


def _answer_key(kind: int, body: Any) -> tuple[int, ...]:
    """Return what a request and its answer have in common."""
    if kind in (_T.SEND, _T.SEND_RECEIPT, _T.SEND_ERROR):
        return body.producer_id, body.sequence_id
    return (getattr(body, "request_id", -1),)
