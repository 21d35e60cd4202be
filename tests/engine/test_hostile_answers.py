"""Answers of the right type with any values give a result or an error of ours, in time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from pulsar_spark.engine.consumers.probe import Probe
from pulsar_spark.engine.consumers.reader import EntryReader
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ProducerOptions, ReaderOptions
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.errors import PulsarError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.events import CommandReceived, Event
from pulsar_spark.protocol.frame_parts import BODY_FIELDS, Frame
from pulsar_spark.protocol.frames import encode_raw_payload_command
from pulsar_spark.protocol.message_id import EARLIEST_POSITION
from pulsar_spark.schema.registry import latest_schemas
from tests.engine.scripted_broker import ScriptedBroker, Session, T
from tests.engine.topics import stored_entry
from tests.outgoing import single
from tests.protocol import hostile
from tests.support.asking import broker_of

TOPIC = "persistent://public/default/t"

ANSWERS = {
    T.LOOKUP: T.LOOKUP_RESPONSE,
    T.PARTITIONED_METADATA: T.PARTITIONED_METADATA_RESPONSE,
    T.GET_TOPICS_OF_NAMESPACE: T.GET_TOPICS_OF_NAMESPACE_RESPONSE,
    T.GET_LAST_MESSAGE_ID: T.GET_LAST_MESSAGE_ID_RESPONSE,
    T.CONSUMER_STATS: T.CONSUMER_STATS_RESPONSE,
    T.GET_SCHEMA: T.GET_SCHEMA_RESPONSE,
    T.PRODUCER: T.PRODUCER_SUCCESS,
    T.SUBSCRIBE: T.SUCCESS,
}


def hostile_body(rng: random.Random, kind: int, **fields: Any) -> pb.BaseCommand | None:
    """Return a command with random fields except those given; None if it cannot be parsed."""
    command = pb.BaseCommand(type=kind)
    body = getattr(command, BODY_FIELDS[kind])
    required = type(body)()
    for field in required.DESCRIPTOR.fields:
        if field.message_type is None and field.name not in ("error", "error_code"):
            # Required fields must be set even if chance leaves them out.
            if isinstance(getattr(required, field.name), str):
                setattr(required, field.name, "t")
            elif field.type == field.TYPE_ENUM:
                setattr(required, field.name, field.enum_type.values[-1].number)
    for name in ("last_message_id", "message_id"):
        if name in required.DESCRIPTOR.fields_by_name:
            getattr(required, name).MergeFrom(pb.MessageIdData(ledgerId=1, entryId=1))
    try:
        body.MergeFromString(
            required.SerializePartialToString() + hostile.fields(rng, body.DESCRIPTOR, 3)
        )
    except DecodeError:
        return None
    for name in ("error", "error_code") if rng.random() < 0.8 else ():
        if name in body.DESCRIPTOR.fields_by_name:
            body.ClearField(name)
    for name, value in fields.items():
        setattr(body, name, value)
    return command if body.IsInitialized() else None


class HostileScript:
    """Answers like a broker, but with random values in every command of type `kind`."""

    def __init__(self, rng: random.Random, kind: int) -> None:
        self.rng = rng
        self.kind = kind
        self.sent = 0

    def __call__(self, session: Session, event: Event) -> bool:
        if isinstance(event, Frame):
            self._receipt(session, event)
            return True
        if not isinstance(event, CommandReceived):
            return False
        if event.kind == T.FLOW and self.kind == T.MESSAGE:
            return self._message(session, event.body)
        if event.kind != self.kind:
            # Requests without a usual answer get none.
            return event.kind in ANSWERS and event.kind not in _BY_THE_BOOK
        answer = hostile_body(self.rng, ANSWERS[event.kind], request_id=event.request_id)
        if answer is None:
            return False if event.kind in _BY_THE_BOOK else self(session, event)
        self.sent += 1
        session.send_unchecked(answer)
        return True

    def _receipt(self, session: Session, event: Frame) -> None:
        fields = {"producer_id": event.command.send.producer_id}
        if self.rng.random() < 0.7:
            fields["sequence_id"] = event.command.send.sequence_id
        answer = hostile_body(self.rng, T.SEND_RECEIPT, **fields)
        if self.kind != T.SEND_RECEIPT or answer is None:
            return
        self.sent += 1
        session.send_unchecked(answer)

    def _message(self, session: Session, body: Any) -> bool:
        command = hostile_body(self.rng, T.MESSAGE, consumer_id=body.consumer_id)
        if command is None:
            command = pb.BaseCommand(type=T.MESSAGE)
            command.message.consumer_id = body.consumer_id
            command.message.message_id.MergeFrom(pb.MessageIdData(ledgerId=1, entryId=1))
        self.sent += 1
        for part in encode_raw_payload_command(command, stored_entry(b"v")):
            session.send_bytes(bytes(part))
        return True


_BY_THE_BOOK = frozenset(
    {T.LOOKUP, T.PARTITIONED_METADATA, T.GET_LAST_MESSAGE_ID, T.SUBSCRIBE, T.PRODUCER}
)


def produce(context: ClientContext) -> None:
    options = ProducerOptions(send_timeout=0.3)
    producer = TopicProducer(context, TOPIC, options)
    try:
        producer.open(0.3)
        producer.send(single(b"x"))
        producer.flush(0.3)
    finally:
        producer.abort()


def read(context: ClientContext) -> None:
    reader = EntryReader(context.pool, TOPIC, EARLIEST_POSITION, None, ReaderOptions())
    try:
        reader.next_entry(0.3)
    finally:
        reader.close()


USES: dict[str, tuple[int, Callable[[ClientContext], object]]] = {
    "broker": (T.LOOKUP, lambda context: broker_of(context.lookup, TOPIC)),
    "partitions": (T.PARTITIONED_METADATA, lambda context: context.lookup.partitions(TOPIC)),
    "topics": (
        T.GET_TOPICS_OF_NAMESPACE,
        lambda context: context.lookup.topics_of_namespace("a/b"),
    ),
    "last id": (T.GET_LAST_MESSAGE_ID, lambda context: context.lookup.last_message_id(TOPIC)),
    "attach": (T.SUBSCRIBE, lambda context: context.lookup.last_message_id(TOPIC)),
    "schema": (T.GET_SCHEMA, lambda context: latest_schemas(context.lookup, [TOPIC])),
    "probe": (
        T.GET_LAST_MESSAGE_ID,
        lambda context: Probe(context.pool).first_entry_at(TOPIC, EARLIEST_POSITION),
    ),
    "producer": (T.PRODUCER, produce),
    "receipt": (T.SEND_RECEIPT, produce),
    "messages": (T.MESSAGE, read),
}


@pytest.mark.fault(24, 30, 31)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    "cases", [8, pytest.param(150, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_whatever_a_broker_answers_is_a_result_or_an_error_of_our_own(use: str, cases: int) -> None:
    kind, call = USES[use]
    rng = random.Random(f"{use} {cases}")
    script = HostileScript(rng, kind)
    with ScriptedBroker(script) as broker:
        for _ in range(cases):
            limits = {"operation_timeout": 0.2, "connection_timeout": 1.0}
            with ClientContext(broker.options(**limits)) as context:
                try:
                    call(context)
                except PulsarError as error:
                    str(error).encode()
    assert script.sent >= cases // 2
