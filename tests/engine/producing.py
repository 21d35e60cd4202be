"""A script for ScriptedBroker that plays a topic for producers, and keeps what they sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pulsar_spark.engine.codecs import decompress
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.operations import run
from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.errors import PulsarError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.batches import unpack_batch
from pulsar_spark.protocol.events import CommandReceived, Event
from pulsar_spark.protocol.frame_parts import Frame, parse_payload
from pulsar_spark.protocol.message_id import MessageIdAdv
from tests import brief
from tests.engine.scripted_broker import ScriptedBroker, Session

T = pb.BaseCommand
NO_ID = 2**64 - 1
TOPIC = "persistent://public/default/t"


@dataclass(frozen=True)
class Sent:
    """One SEND as the broker received it."""

    session: int
    command: pb.CommandSend
    metadata: pb.MessageMetadata
    payload: bytes

    @property
    def sequence_id(self) -> int:
        return self.command.sequence_id


class TopicScript:
    """Accepts producers and acknowledges their messages, unless a hook returns true.

    The hooks are `on_producer(session, command)` and `on_send(session, sent)`. `partitions` is the
    topic's number of partitions.
    """

    def __init__(self, partitions: int = 0, max_message_size: int | None = None) -> None:
        self.partitions = partitions
        self.max_message_size = max_message_size
        self.on_producer: Callable[[Session, pb.CommandProducer], bool] | None = None
        self.on_send: Callable[[Session, Sent], bool] | None = None
        self.success: dict[str, Any] = {}
        self.producers: list[tuple[Session, pb.CommandProducer]] = []
        self.sends: list[Sent] = []
        self.closed: list[int] = []
        self._entries = 0
        self._lock = threading.Lock()

    def __call__(self, session: Session, event: Event) -> bool:
        if isinstance(event, Frame):
            parts = parse_payload(event.payload)
            sent = Sent(session.number, event.command.send, parts.metadata, bytes(parts.payload))
            self.sends.append(sent)
            if self.on_send is None or not self.on_send(session, sent):
                self.acknowledge(session, sent)
            return True
        if not isinstance(event, CommandReceived):
            return False
        if event.kind == T.PRODUCER:
            self._admit(session, event.body)
            return True
        if event.kind == T.CLOSE_PRODUCER:
            assert isinstance(event.body, pb.CommandCloseProducer)
            self.closed.append(event.body.producer_id)
        if event.kind == T.PARTITIONED_METADATA:
            assert event.request_id is not None
            answer = brief.partitions_response(event.request_id, partitions=self.partitions)
            session.send(answer)
            return True
        if event.kind == T.CONNECT and self.max_message_size is not None:
            session.send(brief.connected("script", max_message_size=self.max_message_size))
            return True
        return False

    def _admit(self, session: Session, body: Any) -> None:
        self.producers.append((session, body))
        if self.on_producer is None or not self.on_producer(session, body):
            self.let_in(session, body)

    def let_in(self, session: Session, command: pb.CommandProducer, **fields: Any) -> None:
        """Answer PRODUCER with success."""
        name = command.producer_name or f"given-{command.producer_id}"
        fields = {**self.success, **fields}
        session.send(brief.producer_success(command.request_id, name, **fields))

    def acknowledge(self, session: Session, sent: Sent, *, duplicate: bool = False) -> None:
        """Send the receipt of a SEND."""
        with self._lock:
            entry = NO_ID if duplicate else self._entries
            self._entries += 0 if duplicate else 1
        stored = pb.MessageIdData(ledgerId=NO_ID if duplicate else 7, entryId=entry)
        highest = sent.command.highest_sequence_id or NO_ID
        session.send(
            brief.send_receipt(
                sent.command.producer_id,
                sent.command.sequence_id,
                stored,
                highest_sequence_id=highest,
            )
        )

    @property
    def sequence_ids(self) -> list[int]:
        """The sequence ids of all SENDs, in order of arrival."""
        return [sent.sequence_id for sent in self.sends]


def connection_for(context: ClientContext, topic: str = "t") -> ClientConnection:
    """Return a connection to the broker that serves a topic partition."""
    return run(lambda deadline: context.lookup.connection_operation(topic, deadline), 5)


@contextmanager
def topic(
    script: TopicScript | None = None, **options: Any
) -> Iterator[tuple[TopicScript, ClientContext, ScriptedBroker]]:
    """Run a scripted broker, and a client context for it."""
    script = script or TopicScript()
    with ScriptedBroker(script) as broker, ClientContext(broker.options(**options)) as context:
        yield script, context, broker


class Results:
    """The results that callbacks of sends got, in order."""

    def __init__(self) -> None:
        self.ids: list[MessageIdAdv | None] = []
        self.errors: list[PulsarError] = []

    def __call__(self, error: PulsarError | None, message_id: MessageIdAdv | None) -> None:
        if error is None:
            self.ids.append(message_id)
        else:
            self.errors.append(error)


def make(context: ClientContext, **options: Any) -> TopicProducer:
    """Return a producer of topic t."""
    return TopicProducer(context, "t", ProducerOptions(**{"send_timeout": 10.0, **options}))


def refuse(script: TopicScript, code: int, sequence_id: int = 1, times: int = 10**6) -> None:
    """Answer the SEND with this sequence id with an error, a number of times."""
    left = [times]

    def on_send(session: Session, sent: Sent) -> bool:
        if sent.sequence_id == sequence_id and left[0] > 0:
            left[0] -= 1
            session.send(brief.send_error(sent.command.producer_id, sequence_id, code, "no"))
            return True
        return False

    script.on_send = on_send


def drop_first_session(script: TopicScript, after: int) -> None:
    """End the first connection at its send number `after`, without a receipt for it."""

    def on_send(session: Session, sent: Sent) -> bool:
        if session.number == 0 and len(script.sends) >= after:
            session.drop()
            return True
        return False

    script.on_send = on_send


def unpack(sent: Sent) -> list[pb.SingleMessageMetadata]:
    """Return the metadata of all messages of a batch."""
    body, count = _body(sent), sent.metadata.num_messages_in_batch
    return unpack_batch(body, count).metadata()


def payloads_of(script: TopicScript) -> list[bytes]:
    """Return the payloads of all messages that were sent, in order."""
    found: list[bytes] = []
    for sent in script.sends:
        if sent.metadata.HasField("num_messages_in_batch"):
            count = sent.metadata.num_messages_in_batch
            batch = unpack_batch(_body(sent), count)
            found += [bytes(payload) for payload in batch.payloads()]
        else:
            found.append(_body(sent))
    return found


def _body(sent: Sent) -> bytes:
    codec, size = sent.metadata.compression, sent.metadata.uncompressed_size
    return bytes(decompress(codec, sent.payload, size, 2**30))
