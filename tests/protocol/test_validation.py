"""Commands that are valid protobuf but not valid in Pulsar."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from pulsar_spark.errors import RemoteProtocolError
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.connection import Connection
from pulsar_spark.protocol.events import CommandReceived, ConnectionFailed
from pulsar_spark.protocol.frame_parts import BODY_FIELDS, parser_of
from pulsar_spark.protocol.states import Role
from pulsar_spark.protocol.validation import ANSWERS, check_body, check_id
from tests import brief
from tests.protocol import hostile

NOT_UTF_8 = b"\xff\xfe"
EMPTY_TOPIC = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)


def check(command: pb.BaseCommand) -> None:
    check_body(command.type, getattr(command, BODY_FIELDS[command.type]))


def with_field(command: pb.BaseCommand, name: str, content: bytes) -> pb.BaseCommand:
    """Return a command with the bytes of one field inserted, at a path of names."""
    field = command.DESCRIPTOR.fields_by_name[BODY_FIELDS[command.type]]
    body = getattr(command, field.name)

    def encoded(message: Any, path: str) -> bytes:
        first, _, rest = path.partition(".")
        found = message.fields_by_name[first]
        inner = encoded(found.message_type, rest) if rest else content
        return (
            hostile.number(found.number << 3 | hostile.LENGTH) + hostile.number(len(inner)) + inner
        )

    body.MergeFromString(encoded(field.message_type, name))
    return command


SCHEMA = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")
TEXTS = [
    (brief.connected("v"), "server_version"),
    (brief.auth_challenge("v", "token", b""), "challenge.auth_method_name"),
    (brief.lookup_response(1, 1), "brokerServiceUrl"),
    (brief.lookup_response(1, 1), "brokerServiceUrlTls"),
    (commands.build(pb.CommandGetSchemaResponse, request_id=1, schema=SCHEMA), "schema.name"),
    (
        commands.build(pb.CommandGetSchemaResponse, request_id=1, schema=SCHEMA),
        "schema.properties.key",
    ),
    (brief.producer_success(1, "p"), "producer_name"),
    (brief.close_producer(1, 1), "assignedBrokerServiceUrl"),
    (commands.build(pb.CommandTopicMigrated, resource_id=1, resource_type=1), "brokerServiceUrl"),
    (commands.build(pb.CommandLookupTopic, topic="t", request_id=1), "topic"),
    (brief.subscribe("t", "s", 1, 1), "subscription"),
    (commands.build(pb.CommandProducer, topic="t", producer_id=1, request_id=1), "metadata.value"),
]


@pytest.mark.fault(31)
@pytest.mark.parametrize("command, name", TEXTS, ids=lambda value: str(value)[:30])
def test_text_that_is_not_utf_8_is_refused(command: pb.BaseCommand, name: str) -> None:
    check(command)
    with pytest.raises(
        RemoteProtocolError, match=f"{name.rsplit('.', maxsplit=1)[-1]} of .* is not text"
    ):
        check(with_field(command, name, NOT_UTF_8))


@pytest.mark.fault(31)
@pytest.mark.parametrize(
    "command, name",
    [
        (brief.error(1, 1, ""), "message"),
        (commands.build(pb.CommandGetSchemaResponse, request_id=1), "error_message"),
        (
            commands.build(pb.CommandGetTopicsOfNamespaceResponse, request_id=1, topics=["good"]),
            "topics",
        ),
    ],
)
def test_text_that_affects_nothing_else_may_be_invalid(command: pb.BaseCommand, name: str) -> None:
    check(with_field(command, name, NOT_UTF_8))


def producer_success(last_sequence_id: int) -> pb.BaseCommand:
    return brief.producer_success(1, "p", last_sequence_id=last_sequence_id)


def stored_at(fields: dict[str, Any]) -> pb.MessageIdData:
    return pb.MessageIdData(**fields)


def receipt(**fields: Any) -> pb.BaseCommand:
    return brief.send_receipt(1, 1, stored_at({"ledgerId": 1, "entryId": 1, **fields}))


def last_id(**fields: Any) -> pb.BaseCommand:
    message_id = stored_at({"ledgerId": 1, "entryId": 1, **fields})
    return brief.last_id_response(1, message_id)


@pytest.mark.fault(30)
@pytest.mark.parametrize(
    "command",
    [
        producer_success(-2),
        producer_success(-(2**63)),
        receipt(ledgerId=2**63),
        receipt(entryId=2**64 - 2),
        last_id(ledgerId=2**63),
        last_id(entryId=2**63),
        brief.last_id_response(1, EMPTY_TOPIC, pb.MessageIdData(ledgerId=2**63, entryId=0)),
    ],
)
def test_numbers_that_no_broker_means_are_refused(command: pb.BaseCommand) -> None:
    with pytest.raises(RemoteProtocolError, match=r"last sequence id|is not a valid position"):
        check(command)


@pytest.mark.parametrize(
    "command",
    [
        producer_success(-1),
        producer_success(2**63 - 1),
        receipt(ledgerId=2**64 - 1, entryId=2**64 - 1),  # a message that is stored already
        last_id(ledgerId=2**63 - 1, entryId=2**63 - 1),
        brief.last_id_response(1, EMPTY_TOPIC, EMPTY_TOPIC),
    ],
)
def test_numbers_at_the_bounds_are_taken(command: pb.BaseCommand) -> None:
    check(command)


def test_a_message_that_is_stored_has_no_negative_id_and_something_can_be_after_it() -> None:
    for message_id in (EMPTY_TOPIC, pb.MessageIdData(ledgerId=1, entryId=2**63 - 1)):
        check_id(message_id)
        with pytest.raises(RemoteProtocolError):
            check_id(message_id, is_stored=True)
    check_id(pb.MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 2), is_stored=True)


@pytest.mark.fault(30, 31)
def test_a_connection_fails_by_such_a_command_before_anybody_sees_it() -> None:
    client, broker = Connection(Role.CLIENT), Connection(Role.BROKER)
    client.send(commands.connect("test"))
    broker.receive_data(b"".join(client.data_to_send()))
    broker.send(brief.connected("test"))
    broker.send(
        with_field(
            commands.build(pb.CommandTopicMigrated, resource_id=1, resource_type=1),
            "brokerServiceUrl",
            NOT_UTF_8,
        )
    )
    broker.send(commands.build(pb.CommandSuccess, request_id=2))
    client.receive_data(b"".join(broker.data_to_send()))
    connected, failed = client.events_received()
    assert isinstance(connected, CommandReceived)
    assert isinstance(failed, ConnectionFailed)
    assert isinstance(failed.error, RemoteProtocolError)


def test_an_answer_is_left_to_who_asked() -> None:
    client, broker = Connection(Role.CLIENT), Connection(Role.BROKER)
    client.send(commands.connect("test"))
    broker.receive_data(b"".join(client.data_to_send()))
    broker.send(brief.connected("test"))
    broker.send(with_field(brief.lookup_response(1, 1), "brokerServiceUrl", NOT_UTF_8))
    client.receive_data(b"".join(broker.data_to_send()))
    _, answered = client.events_received()
    assert isinstance(answered, CommandReceived)
    assert answered.kind in ANSWERS


def texts(message: Message) -> list[Any]:
    """Return all texts within a message except for errors and lists of topics."""
    found: list[Any] = []
    for field, value in message.ListFields():
        if field.name in ("message", "error_message", "topics"):
            continue
        values = value if not isinstance(value, (str, bytes, Message, int, float)) else [value]
        if field.message_type is not None:
            found += [text for part in cast(Any, values) for text in texts(part)]
        elif field.type == field.TYPE_STRING:
            found += values
    return found


@pytest.mark.fault(28, 30, 31)
def test_what_passes_has_only_text_and_ids_that_can_be_meant() -> None:
    rng = random.Random(3)
    passed = 0
    for _ in range(40_000):
        kind = rng.choice(list(BODY_FIELDS))
        if kind == pb.BaseCommand.ACK:
            continue
        body = getattr(pb.BaseCommand(), BODY_FIELDS[kind])
        command = pb.BaseCommand(type=kind)
        try:
            found = parser_of(type(body))(hostile.fields(rng, body.DESCRIPTOR))
            getattr(command, BODY_FIELDS[kind]).CopyFrom(found)
            check(command)
        except RemoteProtocolError:
            continue
        passed += 1
        assert all(isinstance(text, str) for text in texts(getattr(command, BODY_FIELDS[kind])))
    assert passed > 5_000
