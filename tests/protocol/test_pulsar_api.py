"""The generated messages match the field tables, and are current."""

from __future__ import annotations

import csv
import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import Message

from pulsar_spark.protocol import pulsar_api_pb2 as pb

TABLES = Path(__file__).resolve().parent.parent / "data" / "protocol"

# Commands without fields, which the table of fields cannot contain.
EMPTY_MESSAGES = {"CommandPing", "CommandPong"}

COMMANDS = [
    (field.name, field.number) for field in pb.BaseCommand.DESCRIPTOR.fields if field.number > 1
]


def rows(name: str) -> list[dict[str, str]]:
    with open(TABLES / f"{name}.tsv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def all_messages() -> Iterator[Descriptor]:
    yield from pb.DESCRIPTOR.message_types_by_name.values()


def all_enums() -> Iterator[tuple[str, EnumDescriptor]]:
    yield from pb.DESCRIPTOR.enum_types_by_name.items()
    for message in all_messages():
        for enum in message.enum_types:
            yield f"{message.name}.{enum.name}", enum


def labels(message: Descriptor) -> dict[str, str]:
    """Return label by field; read from the serialized form, as runtimes differ in offering it."""
    file = FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
    (proto,) = (m for m in file.message_type if m.name == message.name)
    names = {1: "optional", 2: "required", 3: "repeated"}
    return {field.name: names[field.label] for field in proto.field}


def type_name(field: FieldDescriptor) -> str:
    if field.message_type is not None:
        return field.message_type.full_name.removeprefix("pulsar.proto.")
    if field.enum_type is not None:
        return field.enum_type.full_name.removeprefix("pulsar.proto.")
    kinds: dict[int, str] = {value: name for name, value in FieldDescriptorProto.Type.items()}
    return kinds[field.type].removeprefix("TYPE_").lower()


def default_text(field: FieldDescriptor) -> str:
    """Return the default as the table writes it; empty where none is declared."""
    if not field.has_default_value:
        return ""
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[field.default_value].name)
    return str(field.default_value).lower()


def test_every_field_is_as_the_table_says_and_no_field_is_missing() -> None:
    expected = sorted(
        (
            row["message"],
            int(row["number"]),
            row["field"],
            row["label"],
            row["type"],
            row["default"] or "",
        )
        for row in rows("messages")
    )
    actual = sorted(
        (
            message.name,
            field.number,
            field.name,
            labels(message)[field.name],
            type_name(field),
            default_text(field),
        )
        for message in all_messages()
        for field in message.fields
    )
    assert actual == expected


def test_no_field_has_an_option() -> None:
    assert not any(row["option"] for row in rows("messages"))
    file = FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
    assert not any(f.HasField("options") for m in file.message_type for f in m.field)


def test_only_ping_and_pong_have_no_fields() -> None:
    assert {message.name for message in all_messages() if not message.fields} == EMPTY_MESSAGES


def test_every_enum_value_is_as_the_table_says() -> None:
    expected = sorted((row["enum"], int(row["number"]), row["value"]) for row in rows("enums"))
    actual = sorted(
        (name, value.number, value.name) for name, enum in all_enums() for value in enum.values
    )
    assert actual == expected


def test_the_file_is_proto2_of_the_package_of_pulsar() -> None:
    file = FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
    assert file.package == "pulsar.proto"
    assert file.syntax in ("", "proto2")
    assert not file.dependency


@pytest.mark.parametrize("name, number", COMMANDS)
def test_a_commands_type_has_the_number_of_its_field(name: str, number: int) -> None:
    assert number in pb.BaseCommand.Type.values()


def test_messages_enums_and_values_are_names_of_the_module() -> None:
    for message in all_messages():
        assert getattr(pb, message.name).DESCRIPTOR is message
    for enum in pb.DESCRIPTOR.enum_types_by_name.values():
        assert getattr(pb, enum.name).DESCRIPTOR is enum
        for value in enum.values:
            assert getattr(pb, value.name) == value.number


def test_nested_enums_and_values_are_names_of_their_message() -> None:
    assert pb.CommandSubscribe.Key_Shared == 3
    assert pb.CommandSubscribe.SubType.Name(3) == "Key_Shared"
    assert pb.BaseCommand.Type.Value("CONNECT") == pb.BaseCommand.CONNECT == 2
    assert pb.Schema.KeyValue == 15
    assert pb.ServerError.Name(pb.TopicNotFound) == "TopicNotFound"


def test_a_message_survives_the_wire_and_pickle() -> None:
    identifier = pb.MessageIdData(ledgerId=2**64 - 1, entryId=7, ack_set=[-1, 5])
    command = pb.BaseCommand(
        type=pb.BaseCommand.SEEK,
        seek=pb.CommandSeek(consumer_id=1, request_id=2, message_id=identifier),
    )
    assert pb.BaseCommand.FromString(command.SerializeToString()) == command
    assert pickle.loads(pickle.dumps(command)) == command
    assert command.seek.message_id.batch_index == -1
    assert not command.seek.message_id.HasField("batch_index")


def test_the_messages_are_not_registered_for_the_whole_process() -> None:
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("pulsar.proto.BaseCommand")


def test_another_library_can_bring_the_same_messages() -> None:
    file = FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
    del file.message_type[0].field[0]
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    assert pool.FindMessageTypeByName("pulsar.proto.Schema") is not pb.Schema.DESCRIPTOR


@pytest.mark.parametrize("order", ["pulsar, pb", "pb, pulsar"])
def test_goes_together_with_the_official_client_in_one_process(order: str) -> None:
    if importlib.util.find_spec("pulsar") is None:
        pytest.skip("pulsar-client is not installed")
    names = {"pulsar": "pulsar", "pb": "pulsar_spark.protocol.pulsar_api_pb2"}
    script = "; ".join(f"import {names[name]}" for name in order.split(", "))
    run_python(script)


def test_works_on_the_runtime_in_pure_python() -> None:
    script = (
        "from google.protobuf.internal import api_implementation as api\n"
        "from pulsar_spark.protocol import pulsar_api_pb2 as pb\n"
        "assert api.Type() == 'python', api.Type()\n"
        "data = pb.KeyValue(key='k', value='v').SerializeToString()\n"
        "assert pb.KeyValue.FromString(data).value == 'v'\n"
        "assert pb.CommandSubscribe.SubType.Name(pb.CommandSubscribe.Shared) == 'Shared'\n"
    )
    run_python(script, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python")


def run_python(script: str, **environment: str) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_the_generated_files_are_current() -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    from tools import generate_proto

    file = generate_proto.compile_proto()
    assert generate_proto.MODULE.read_text("utf-8") == generate_proto.render_module(file)
    assert generate_proto.STUB.read_text("utf-8") == generate_proto.render_stub(file)


def test_the_stub_has_the_messages_of_the_module() -> None:
    text = Path(str(pb.__file__)).with_suffix(".pyi").read_text("utf-8")
    classes = {line[6:].partition("(")[0] for line in text.splitlines() if line[:6] == "class "}
    assert classes == {message.name for message in all_messages()}
    for name in classes:
        assert issubclass(getattr(pb, name), Message)
