"""Builders: every command of the interface can be built, sent and read back."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_spark.errors import LocalProtocolError
from pulsar_spark.protocol import answers, commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import BODY_FIELDS
from pulsar_spark.protocol.frames import FrameDecoder, encode_command, encode_payload_command

SAMPLES: dict[str, Any] = {
    "topic": "t",
    "namespace": "public/default",
    "subscription": "s",
    "client_version": "v",
    "schema_version": bytes(8),
    "server_version": "v",
    "auth_method_name": "token",
    "producer_name": "p",
    "message": "m",
    "request_id": 1,
    "message_id": pb.MessageIdData(ledgerId=1, entryId=2),
    "last_message_id": pb.MessageIdData(ledgerId=1, entryId=2),
    "message_ids": [pb.MessageIdData(ledgerId=1, entryId=2)],
    "schema": pb.Schema(name="n", schema_data=b"", type=pb.Schema.String),
    "auth_data": b"a",
    "challenge": b"c",
    "txn": commands.TxnId(1, 2),
    "partitions": ["t-partition-0"],
    "subscriptions": [pb.Subscription(topic="t", subscription="s")],
    "topics": ["a", "b"],
    "is_active": True,
    "publish_time": 5,
}

BUILDERS: list[Callable[..., pb.BaseCommand]] = [
    function
    for module in (commands, answers)
    for name, function in vars(module).items()
    if inspect.isfunction(function)
    and function.__module__ == module.__name__
    and not name.startswith("_")
    and name not in ("build", "key_values", "txn_fields")
]


def sample_arguments(builder: Callable[..., pb.BaseCommand]) -> dict[str, Any]:
    arguments = {}
    for name, parameter in inspect.signature(builder).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        if parameter.default is inspect.Parameter.empty:
            arguments[name] = SAMPLES.get(name, 1)
    if builder is commands.seek:
        arguments["publish_time"] = 5
    return arguments


@pytest.mark.parametrize("builder", BUILDERS, ids=lambda builder: builder.__name__)
def test_what_a_builder_makes_is_read_back(builder: Callable[..., pb.BaseCommand]) -> None:
    command = builder(**sample_arguments(builder))
    if command.type in (pb.BaseCommand.SEND, pb.BaseCommand.MESSAGE):
        data = b"".join(encode_payload_command(command, b"", b""))
    else:
        data = encode_command(command)
    decoder = FrameDecoder()
    decoder.receive_data(data)
    frame = decoder.next_frame()
    assert frame is not None
    assert frame.command == command
    assert pb.BaseCommand.Type.Name(command.type).lower().startswith(builder.__name__[:4])


def test_every_command_that_a_recording_holds_has_a_builder() -> None:
    built = {builder(**sample_arguments(builder)).type for builder in BUILDERS}
    names = {pb.BaseCommand.Type.Name(number) for number in built}
    by_name_only = {
        name
        for name in pb.BaseCommand.Type.keys()  # noqa: SIM118 - an enum wrapper is no mapping
        if name.startswith(("WATCH_", "SCALABLE_", "END_TXN_ON_"))
        and name != "END_TXN_ON_PARTITION"
    }
    broker_to_client = {"NEW_TXN_RESPONSE", "ADD_PARTITION_TO_TXN_RESPONSE", "END_TXN_RESPONSE"}
    broker_to_client |= {"ADD_SUBSCRIPTION_TO_TXN_RESPONSE", "TC_CLIENT_CONNECT_RESPONSE"}
    everything = set(pb.BaseCommand.Type.keys())
    assert everything - by_name_only - broker_to_client == names


@pytest.mark.parametrize("kind", sorted(pb.BaseCommand.Type.keys()))
def test_build_makes_any_command_by_name(kind: str) -> None:
    command = commands.build(kind)
    assert command.HasField(BODY_FIELDS[command.type])


@pytest.mark.parametrize(
    "kind, fields",
    [
        ("NO_SUCH_COMMAND", {}),
        ("FLOW", {"permits": 1}),
        ("FLOW", {"messagePermits": "many"}),
        ("FLOW", {"messagePermits": -1}),
        ("LOOKUP", {"topic": 5}),
    ],
)
def test_a_command_that_the_interface_does_not_have_is_a_local_error(
    kind: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(LocalProtocolError):
        commands.build(kind, **fields)


def test_absent_arguments_are_not_put_on_the_wire() -> None:
    command = commands.send(1, 5)
    assert not command.send.HasField("highest_sequence_id")
    assert not command.send.HasField("txnid_most_bits")
    command = commands.send(1, 5, 3, highest_sequence_id=7, txn=commands.TxnId(1, 2))
    assert (command.send.highest_sequence_id, command.send.txnid_least_bits) == (7, 2)


def test_a_seek_names_one_target() -> None:
    with pytest.raises(LocalProtocolError):
        commands.seek(1, 1)
    with pytest.raises(LocalProtocolError):
        commands.seek(1, 1, message_id=SAMPLES["message_id"], publish_time=1)
