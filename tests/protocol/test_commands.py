"""Commands: each has the type of its body, and what the interface lacks is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message

from pulsar_spark.errors import LocalProtocolError
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb

FIELDS = [field for field in pb.BaseCommand.DESCRIPTOR.fields if field.message_type is not None]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_every_body_has_its_type_and_its_field(field: Any) -> None:
    command = commands.build(getattr(pb, field.message_type.name))
    assert command.type == field.number
    assert command.HasField(field.name)


def test_a_request_gets_its_id_when_it_is_sent() -> None:
    builder = commands.request(pb.CommandLookupTopic, topic="t")
    for number in (1, 2):
        wanted = commands.build(pb.CommandLookupTopic, topic="t", request_id=number)
        assert builder(number) == wanted


@pytest.mark.parametrize(
    "body, fields, why",
    [
        (pb.CommandFlow, {"permits": 1}, 'FLOW cannot be built.*no "permits" field'),
        (pb.CommandFlow, {"messagePermits": "many"}, "FLOW cannot be built"),
        (pb.CommandFlow, {"messagePermits": -1}, "FLOW cannot be built.*-1"),
        (pb.CommandLookupTopic, {"topic": 5}, "LOOKUP cannot be built"),
        (pb.CommandError, {"request_id": -1}, "ERROR cannot be built.*-1"),
    ],
)
def test_a_command_that_the_interface_does_not_have_is_a_local_error(
    body: Callable[..., Message], fields: dict[str, Any], why: str
) -> None:
    with pytest.raises(LocalProtocolError, match=why):
        commands.build(body, **fields)


def test_absent_fields_are_not_put_on_the_wire() -> None:
    command = commands.build(pb.CommandAck, consumer_id=1, request_id=None, message_id=[])
    assert command.ack == pb.CommandAck(consumer_id=1)
    command = commands.send(1, 5)
    assert not command.send.HasField("highest_sequence_id")
    assert not command.send.HasField("txnid_most_bits")
    command = commands.send(1, 5, 3, highest_sequence_id=7, txn=commands.TxnId(1, 2))
    assert (command.send.highest_sequence_id, command.send.txnid_least_bits) == (7, 2)
