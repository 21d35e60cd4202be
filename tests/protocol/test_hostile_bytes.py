"""Any bytes give a result or a documented error in every parser of the protocol."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

from pulsar_spark.engine.codecs import compress, decompress
from pulsar_spark.errors import (
    CorruptMessage,
    InvalidMessageId,
    InvalidTopicName,
    MessageTooLarge,
    ProtocolError,
    PulsarError,
    RemoteProtocolError,
    from_server_error,
    redact,
)
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.batches import message_key, unpack_batch
from pulsar_spark.protocol.chunks import ChunkAssembler
from pulsar_spark.protocol.compression import codec_of
from pulsar_spark.protocol.connection import Connection
from pulsar_spark.protocol.events import ConnectionFailed
from pulsar_spark.protocol.frame_parts import parse_payload, parser_of
from pulsar_spark.protocol.frames import MessageBlock
from pulsar_spark.protocol.message_id import MessageIdAdv, Position
from pulsar_spark.protocol.outgoing_messages import MessageFields
from pulsar_spark.protocol.schema_info import SchemaInfo, join_key_value, split_key_value
from pulsar_spark.protocol.states import Role
from pulsar_spark.protocol.topic_name import TopicName
from tests.protocol import golden, hostile
from tests.protocol.batch_bodies import encode_batch

LIMIT = 64 * 1024


class Parser(NamedTuple):
    """A parser, its documented errors, and bytes that it accepts."""

    parse: Callable[[bytes], object]
    errors: tuple[type[PulsarError], ...]
    good: list[bytes]


def _batch() -> list[bytes]:
    plain = [MessageFields(b"value %d" % index) for index in range(20)]
    rich = [
        MessageFields(
            None if index == 3 else b"v" * index,
            key="a2V5",
            key_is_base64=True,
            ordering_key=b"o",
            properties=[("a", "1"), ("b", "ä")],
            event_time=5,
        )
        for index in range(6)
    ]
    return [encode_batch(messages, 126) for messages in (plain, rich)]


def _unpack(data: bytes) -> None:
    count = data[0] if data else 0
    found = unpack_batch(data[1:], count)
    assert (len(found.payloads()), found.end(count - 1)) == (count, len(data) - 1)
    assert len(found.metadata()) == count


def _decompress(data: bytes) -> None:
    codec, size = data[0] % 6, int.from_bytes(data[1:3], "big")
    output = decompress(codec, data[3:], size, LIMIT)
    assert codec == pb.NONE or len(output) == size


def _compressed() -> list[bytes]:
    text = random.Random(1).randbytes(200) * 3
    return [
        bytes([codec]) + len(text).to_bytes(2, "big") + bytes(compress(codec, text))
        for codec in range(5)
    ]


def _chunks(data: bytes) -> None:
    assembler = ChunkAssembler(max_bytes=10_000)
    for at in range(0, len(data), 60):
        metadata = parser_of(pb.MessageMetadata)(data[at : at + 50])
        assembler.add(metadata, MessageIdAdv(1, at), data[at + 50 : at + 60])


def _chunked() -> list[bytes]:
    parts = []
    for index in range(3):
        metadata = pb.MessageMetadata(
            producer_name="p",
            sequence_id=1,
            publish_time=1,
            uuid="u",
            chunk_id=index,
            num_chunks_from_msg=3,
            total_chunk_msg_size=30,
        ).SerializeToString()
        parts.append(
            metadata + b"\xa2\x1f" + bytes([47 - len(metadata)]) + bytes(47 - len(metadata))
        )
    return [b"".join(part + b"0123456789" for part in parts)]


def _metadata(data: bytes) -> None:
    metadata = parser_of(pb.MessageMetadata)(data)
    codec_of(metadata)
    message_key(metadata)


def _payload(data: bytes) -> None:
    parts = parse_payload(memoryview(data), verify=False)
    codec_of(parts.metadata)


def _entries() -> list[bytes]:
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, partition_key="k", num_messages_in_batch=2
    ).SerializeToString()
    plain = len(metadata).to_bytes(4, "big") + metadata + b"payload"
    stamp = pb.BrokerEntryMetadata(broker_timestamp=9, index=3).SerializeToString()
    checked = b"\x0e\x01" + bytes(4) + plain
    return [plain, checked, b"\x0e\x02" + len(stamp).to_bytes(4, "big") + stamp + checked]


def _schema(data: bytes) -> None:
    info = SchemaInfo.from_pb(parser_of(pb.Schema)(data))
    info.to_pb()
    split_key_value(info)


def _schemas() -> list[bytes]:
    part = SchemaInfo(pb.Schema.String, "String", b"", {"a": "b"})
    joined = join_key_value(part, part, separated=True)
    return [joined.to_pb().SerializeToString()]


def _text(data: bytes) -> None:
    for text in (data, data.decode("latin-1"), data.decode("utf-8", "surrogateescape")):
        redact(text, [text[:5], text[2:4]]).encode()
        str(from_server_error(len(data) % 30, text)).encode()
    TopicName.parse(data.decode("latin-1")).partition(3)


def _id_text(data: bytes) -> None:
    text = data.decode("latin-1")
    Position.after(MessageIdAdv.parse(text))
    Position.parse(text)


PARSERS = {
    "batches": Parser(_unpack, (CorruptMessage,), [b"\x14" + _batch()[0], b"\x06" + _batch()[1]]),
    "compression": Parser(_decompress, (CorruptMessage,), _compressed()),
    "chunks": Parser(_chunks, (CorruptMessage, MessageTooLarge, RemoteProtocolError), _chunked()),
    "metadata": Parser(
        _metadata,
        (RemoteProtocolError, CorruptMessage),
        [entry[4 : 4 + entry[3]] for entry in _entries()[:1]],
    ),
    "payloads": Parser(_payload, (RemoteProtocolError,), _entries()),
    "schemas": Parser(_schema, (ProtocolError,), _schemas()),
    "ids": Parser(
        MessageIdAdv.deserialize,
        (InvalidMessageId,),
        [
            MessageIdAdv(5, 6, 1, 2, 3).serialize(),
            MessageIdAdv(9, 8, first_chunk=MessageIdAdv(9, 6)).serialize(),
        ],
    ),
    "texts of ids": Parser(_id_text, (InvalidMessageId,), [b"5:6:1", b"9223372036854775807:1:2"]),
    "names": Parser(
        _text, (InvalidTopicName,), [b"persistent://a/b/c", b"t", b"a token: eyJhbGciOiJ.eyJz.c2ln"]
    ),
}


@pytest.mark.fault(26, 27, 28, 29, 30, 31, 34, 35, 36, 37, 38, 39, 44)
@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize(
    "cases", [5_000, pytest.param(50_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_every_parser_gives_a_result_or_a_documented_error(name: str, cases: int) -> None:
    parser = PARSERS[name]
    rng = random.Random(name)
    for good in parser.good:
        parser.parse(good)
    refused = 0
    for number in range(cases):
        data = rng.randbytes(rng.randrange(200))
        if number % 10:
            data = hostile.mutated(rng, rng.choice(parser.good))
        try:
            parser.parse(data or b"\0\0\0")
        except parser.errors:
            refused += 1
    assert refused > cases // 10


def recorded(side: str) -> list[bytes]:
    """Return one side's streams of all recorded conversations, without very long ones."""
    streams = (
        golden.stream(connection, side)
        for name in golden.names()
        for connection in golden.manifest(name)["connections"]
    )
    return sorted(data for data in streams if len(data) < 50_000)


@pytest.mark.fault(26, 27, 28, 29, 30, 31, 32, 34, 42)
@pytest.mark.parametrize("role", [Role.CLIENT, Role.BROKER], ids=lambda role: role.name)
@pytest.mark.parametrize(
    "cases", [4_000, pytest.param(50_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_no_bytes_of_a_peer_make_a_connection_raise(role: Role, cases: int) -> None:
    rng = random.Random(cases)
    streams = recorded("broker" if role is Role.CLIENT else "client")
    failed = 0
    for _ in range(cases):
        end = Connection(role)
        if role is Role.CLIENT:
            end.send(commands.connect("test"))
        stream = rng.choice(streams)
        at = rng.randrange(len(stream))
        # The bytes before are intact, so that the conversation has begun.
        data = stream[:at] + hostile.mutated(rng, stream[at : at + 300])
        cut = rng.randrange(len(data) + 1)
        end.receive_data(data[:cut])
        end.receive_data(data[cut:])
        end.receive_eof()
        for event in end.events_received():
            failed += isinstance(event, ConnectionFailed)
            if isinstance(event, MessageBlock):
                look_at(event)
    assert failed > cases // 5


def look_at(block: MessageBlock) -> None:
    try:
        for frame in block.frames():
            parse_payload(frame.payload)
    except (RemoteProtocolError, CorruptMessage):
        pass
