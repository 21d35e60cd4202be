"""Commands adapted to brokers of older versions."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_spark.errors import RemoteProtocolError, UnsupportedFeature
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import CLIENT_PROTOCOL_VERSION
from pulsar_spark.protocol.frame_parts import Frame
from pulsar_spark.protocol.frames import FrameDecoder
from pulsar_spark.protocol.send_encoder import PythonSendEncoder
from pulsar_spark.protocol.versions import FIRST_VERSIONS, for_peer, without_checksums
from tests import brief

_T = pb.BaseCommand


def ids(*entries: int) -> list[pb.MessageIdData]:
    return [pb.MessageIdData(ledgerId=1, entryId=entry) for entry in entries]


def test_commands_came_with_the_versions_that_the_interface_names() -> None:
    assert {_T.Type.Name(kind): version for kind, version in FIRST_VERSIONS.items()} == {
        "PING": 1,
        "PONG": 1,
        "REDELIVER_UNACKNOWLEDGED_MESSAGES": 2,
        "LOOKUP": 7,
        "PARTITIONED_METADATA": 7,
        "CONSUMER_STATS": 8,
        "GET_LAST_MESSAGE_ID": 12,
        "GET_TOPICS_OF_NAMESPACE": 12,
        "GET_SCHEMA": 13,
        "AUTH_RESPONSE": 14,
        "GET_OR_CREATE_SCHEMA": 15,
        "TC_CLIENT_CONNECT_REQUEST": 19,
    }


@pytest.mark.parametrize("kind", FIRST_VERSIONS, ids=_T.Type.Name)
def test_a_command_that_is_too_new_is_an_error_that_names_both(kind: int) -> None:
    needed = FIRST_VERSIONS[kind]
    command = pb.BaseCommand(type=kind)
    assert for_peer(command, needed) == [command]
    with pytest.raises(UnsupportedFeature, match=f"version {needed - 1} .* version {needed}"):
        for_peer(command, needed - 1)


def test_several_acknowledgements_go_one_by_one_before_version_12() -> None:
    def made() -> pb.BaseCommand:
        return commands.build(
            pb.CommandAck,
            consumer_id=5,
            ack_type=pb.CommandAck.Individual,
            message_id=ids(1, 2),
            validation_error=pb.CommandAck.ChecksumMismatch,
        )

    assert len(for_peer(made(), 12)) == 1
    found = for_peer(made(), 11)
    assert [one.ack.message_id[0].entryId for one in found] == [1, 2]
    assert all(one.ack.validation_error == pb.CommandAck.ChecksumMismatch for one in found)
    assert [one.ack.consumer_id for one in found] == [5, 5]


def test_nobody_asks_for_an_answer_to_an_acknowledgement_before_version_17() -> None:
    def made() -> pb.BaseCommand:
        return commands.build(
            pb.CommandAck,
            consumer_id=5,
            ack_type=pb.CommandAck.Individual,
            message_id=ids(1),
            request_id=7,
        )

    (newer,) = for_peer(made(), 17)
    assert newer.ack.request_id == 7
    (older,) = for_peer(made(), 16)
    assert not older.ack.HasField("request_id")


def test_key_shared_and_auto_consume_of_subscribe() -> None:
    def subscribe(**options: Any) -> pb.BaseCommand:
        return brief.subscribe("t", "s", 1, 2, **options)

    shared = pb.CommandSubscribe.Key_Shared
    for_peer(subscribe(subType=shared), 14)
    with pytest.raises(UnsupportedFeature, match="Subscribe as Shared"):
        for_peer(subscribe(subType=shared), 13)
    auto = pb.Schema(name="a", type=pb.Schema.AutoConsume, schema_data=b"")
    (newer,) = for_peer(subscribe(schema=auto), CLIENT_PROTOCOL_VERSION)
    assert newer.subscribe.HasField("schema")
    (older,) = for_peer(subscribe(schema=auto), 20)
    assert not older.subscribe.HasField("schema")
    text = pb.Schema(name="a", type=pb.Schema.String, schema_data=b"")
    (typed,) = for_peer(subscribe(schema=text), 1)
    assert typed.subscribe.HasField("schema")


def frames(*payloads: bytes) -> bytes:
    buffers, _ = PythonSendEncoder(3, "p").encode(payloads, None, None, 0, 1, 1)
    return b"".join(buffers)


def test_checksums_are_taken_out_of_frames() -> None:
    data = frames(b"one", b"", b"three" * 100)
    plain = without_checksums(data)
    assert len(plain) == len(data) - 3 * 6
    decoder = FrameDecoder(5_000_000)
    decoder.receive_data(plain)
    for payload in (b"one", b"", b"three" * 100):
        frame = decoder.next_block_or_frame()
        assert isinstance(frame, Frame)
        assert bytes(frame.payload).endswith(payload)
        assert bytes(frame.payload[:2]) != b"\x0e\x01"


@pytest.mark.parametrize("cut", [1, 10])
def test_what_is_no_whole_frame_with_a_checksum_is_refused(cut: int) -> None:
    data = frames(b"one")
    with pytest.raises(RemoteProtocolError):
        without_checksums(data[:-cut])
    with pytest.raises(RemoteProtocolError):
        without_checksums(without_checksums(data))
