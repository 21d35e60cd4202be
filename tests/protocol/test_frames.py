"""Frames: sizes, checksums, and hostile bytes."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_spark.errors import ChecksumMismatch, LocalProtocolError, RemoteProtocolError
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import MAGIC_BROKER_ENTRY_METADATA, Frame, parse_payload
from pulsar_spark.protocol.frames import (
    DEFAULT_MAX_MESSAGE_SIZE,
    FRAME_PADDING,
    FrameDecoder,
    MessageBlock,
    encode_command,
    encode_payload_command,
    encode_raw_payload_command,
)
from pulsar_spark.protocol.versions import without_checksums
from tests import brief
from tests.support.frames import SingleFrames

METADATA = pb.MessageMetadata(
    producer_name="p", sequence_id=7, publish_time=1_700_000_000_000
).SerializeToString()
MESSAGE = brief.message(3, pb.MessageIdData(ledgerId=1, entryId=2))

# The bytes of the two smallest frames, written by hand from the layout of the module.
PING_FRAME = bytes.fromhex("00000009 00000005 0812 9201 00")
FLOW_FRAME = bytes.fromhex("0000000d 00000009 080b 5a05 080110e807")


def decode_one(data: bytes) -> Frame:
    decoder = SingleFrames()
    decoder.receive_data(data)
    frame = decoder.next_frame()
    assert frame is not None
    assert decoder.next_frame() is None
    return frame


def payload_frame(payload: bytes = b"hello", *, checksum: bool = True) -> bytes:
    frame = b"".join(encode_payload_command(MESSAGE, METADATA, payload))
    return frame if checksum else without_checksums(frame)


@pytest.mark.parametrize(
    "command, frame",
    [
        (commands.build(pb.CommandPing), PING_FRAME),
        (commands.build(pb.CommandFlow, consumer_id=1, messagePermits=1000), FLOW_FRAME),
    ],
    ids=["PING", "FLOW"],
)
def test_a_command_is_these_bytes(command: pb.BaseCommand, frame: bytes) -> None:
    assert encode_command(command) == frame
    assert decode_one(frame).command == command


@pytest.mark.fault(33)
@pytest.mark.parametrize("checksum", [True, False])
def test_a_message_with_or_without_checksum_comes_back(checksum: bool) -> None:
    frame = decode_one(payload_frame(checksum=checksum))
    parts = parse_payload(frame.payload)
    assert (parts.checksum is not None) is checksum
    assert parts.metadata.sequence_id == 7
    assert parts.metadata_bytes == METADATA
    assert bytes(parts.payload) == b"hello"


@pytest.mark.fault(33)
def test_broker_entry_metadata_stands_before_the_checksum_and_outside_of_it() -> None:
    stored = decode_one(payload_frame()).payload
    entry = pb.BrokerEntryMetadata(broker_timestamp=5, index=9)
    data = b"".join(
        encode_raw_payload_command(MESSAGE, stored, broker_entry_metadata=entry.SerializeToString())
    )
    frame = decode_one(data)
    parts = parse_payload(frame.payload)
    assert parts.broker_entry_metadata == entry
    assert bytes(parts.payload) == b"hello"


@pytest.mark.fault(33)
def test_a_changed_byte_anywhere_under_the_checksum_is_found() -> None:
    payload = decode_one(payload_frame()).payload
    for position in range(2, len(payload)):
        damaged = bytearray(payload)
        damaged[position] ^= 0x40
        with pytest.raises(ChecksumMismatch):
            parse_payload(memoryview(damaged))


@pytest.mark.fault(32)
def test_a_wrong_magic_is_read_as_a_metadata_size_and_refused() -> None:
    payload = decode_one(payload_frame()).payload
    damaged = b"\x0e\x07" + bytes(payload[2:])
    with pytest.raises(RemoteProtocolError):
        parse_payload(memoryview(damaged))


@pytest.mark.fault(26)
@pytest.mark.parametrize(
    "size",
    [0, 3, 4, DEFAULT_MAX_MESSAGE_SIZE + FRAME_PADDING + 1, 2**31 - 1, 2**31, 2**32 - 1],
)
def test_a_frame_of_impossible_size_is_refused_before_its_bytes_come(size: int) -> None:
    decoder = FrameDecoder()
    decoder.receive_data(struct.pack(">I", size))
    with pytest.raises(RemoteProtocolError):
        decoder.next_block_or_frame()
    assert decoder.buffered <= 4
    decoder.receive_data(PING_FRAME)
    with pytest.raises(RemoteProtocolError):
        decoder.next_block_or_frame()


@pytest.mark.fault(26)
def test_memory_is_taken_for_what_came_and_not_for_what_is_claimed() -> None:
    size = 256 * 1024 * 1024
    decoder = FrameDecoder(max_message_size=size)
    tracemalloc.start()
    decoder.receive_data(struct.pack(">I", size))
    for _ in range(100):
        assert decoder.next_block_or_frame() is None
        decoder.receive_data(bytes(1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert decoder.buffered == 100_004
    assert peak < 1024 * 1024


def test_a_frame_of_exactly_the_limit_is_taken() -> None:
    room = 1000
    decoder = FrameDecoder(max_message_size=room)
    overhead = len(payload_frame(b""))
    data = payload_frame(bytes(4 + room + FRAME_PADDING - overhead))
    decoder.receive_data(data)
    assert decoder.next_block_or_frame() is not None
    decoder.receive_data(payload_frame(bytes(4 + room + FRAME_PADDING - overhead + 1)))
    with pytest.raises(RemoteProtocolError):
        decoder.next_block_or_frame()


@pytest.mark.fault(27)
@pytest.mark.parametrize("difference", [-1, 1, 2**31, -5])
def test_a_command_size_that_does_not_fit_the_frame_is_refused(difference: int) -> None:
    total, size = struct.unpack_from(">II", PING_FRAME)
    data = struct.pack(">II", total, size + difference) + PING_FRAME[8:]
    with pytest.raises(RemoteProtocolError):
        decode_one(data)


BROKEN_COMMANDS = {
    "varint of 11 bytes": b"\x08" + b"\xff" * 10 + b"\x01",
    "truncated varint": b"\x08\x92\x01\x92",
    "tag 0": b"\x00\x01",
    "wire type 6": b"\x0e\x01",
    "wire type 7": b"\x0f\x01",
    "group without end": b"\x08\x12\xfb\x3f",
    "end of a group without start": b"\x08\x12\xfc\x3f",
    "wrong wire type for type": b"\x0a\x01a",
    "field longer than the rest": b"\x08\x12\x92\x01\x7f",
    "no type": b"\x92\x01\x00",
    "no body": b"\x08\x12",
    "unknown command": b"\x08\xc8\x01",
    "required field of the body missing": b"\x08\x0b\x5a\x02\x08\x01",
    "10 000 nested groups": b"\x08\x12" + b"\xfb\x3f" * 10_000 + b"\xfc\x3f" * 10_000,
}


@pytest.mark.fault(28, 29, 30, 31)
@pytest.mark.parametrize("body", BROKEN_COMMANDS.values(), ids=BROKEN_COMMANDS.keys())
def test_a_broken_command_is_a_protocol_error(body: bytes) -> None:
    data = struct.pack(">II", len(body) + 4, len(body)) + body
    with pytest.raises(RemoteProtocolError):
        decode_one(data)


@pytest.mark.fault(30, 31)
def test_unknown_fields_are_skipped_and_the_last_of_repeated_ones_wins() -> None:
    unknown = b"\xfa\x3f\x03abc"
    twice = b"\x08\x0b" + b"\x5a\x05\x08\x01\x10\xe8\x07" + b"\x5a\x04\x08\x01\x10\x05" + unknown
    frame = decode_one(struct.pack(">II", len(twice) + 4, len(twice)) + twice)
    assert frame.command.flow.messagePermits == 5


def test_a_negative_int32_of_ten_bytes_is_read() -> None:
    command = brief.message(1, pb.MessageIdData(ledgerId=1, entryId=2, partition=-1))
    data = b"".join(encode_raw_payload_command(command, b""))
    assert decode_one(data).command.message.message_id.partition == -1


@pytest.mark.fault(34)
@pytest.mark.parametrize("size", [2**32 - 1, 2**31, 1000])
def test_a_metadata_size_past_the_payload_is_refused(size: int) -> None:
    data = struct.pack(">I", size) + METADATA
    with pytest.raises(RemoteProtocolError):
        parse_payload(memoryview(data))


@pytest.mark.fault(34)
@pytest.mark.parametrize("length", range(12))
def test_a_payload_cut_inside_its_headers_is_refused(length: int) -> None:
    payload = decode_one(payload_frame()).payload
    with pytest.raises((RemoteProtocolError, ChecksumMismatch)):
        parse_payload(payload[:length])


@pytest.mark.fault(34)
def test_broker_entry_metadata_that_overlaps_the_end_is_refused() -> None:
    data = struct.pack(">HI", MAGIC_BROKER_ENTRY_METADATA, 50) + b"\x08\x01"
    with pytest.raises(RemoteProtocolError):
        parse_payload(memoryview(data))


@pytest.mark.fault(41)
@pytest.mark.parametrize(
    "greeting, name",
    [
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
        (b"\x15\x03\x03\x00\x02\x02", "TLS"),
        (b"HTTP/1.1 400 Bad Request\r\n", "HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"),
    ],
)
def test_another_protocol_is_named(greeting: bytes, name: str) -> None:
    decoder = FrameDecoder()
    for byte in greeting[:4]:
        decoder.receive_data(bytes([byte]))
    with pytest.raises(RemoteProtocolError, match=name):
        decoder.next_block_or_frame()


def test_bytes_after_a_simple_command_are_refused() -> None:
    body = PING_FRAME[8:]
    data = struct.pack(">II", len(body) + 5, len(body)) + body + b"x"
    with pytest.raises(RemoteProtocolError):
        decode_one(data)


def test_a_frame_in_one_piece_is_not_copied() -> None:
    data = payload_frame(bytes(100_000))
    frame = decode_one(data)
    assert frame.payload.obj is data


def test_an_incomplete_command_of_our_own_is_a_local_error() -> None:
    command = pb.BaseCommand(type=pb.BaseCommand.FLOW, flow=pb.CommandFlow(consumer_id=1))
    with pytest.raises(LocalProtocolError):
        encode_command(command)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=8), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_any_cut_gives_the_same_frames(payloads: list[bytes], seed: random.Random) -> None:
    data = b"".join(payload_frame(payload) for payload in payloads)
    decoder = SingleFrames()
    found = []
    position = 0
    reused = bytearray(500)
    while position < len(data):
        step = seed.choice((1, 2, 3, 5, 50, 500))
        part = data[position : position + step]
        if seed.random() < 0.5:
            reused[: len(part)] = part
            decoder.receive_data(memoryview(reused)[: len(part)])
        else:
            decoder.receive_data(part)
        reused[:] = bytes(len(reused))
        position += step
        while (frame := decoder.next_frame()) is not None:
            found.append(frame.payload)
    assert [bytes(parse_payload(payload).payload) for payload in found] == payloads


@pytest.mark.fault(28, 34)
@given(
    st.binary(max_size=20),
    st.integers(min_value=0, max_value=10**6),
    st.sampled_from(["flip", "insert", "delete", "truncate"]),
)
@settings(max_examples=2000, deadline=None)
def test_mutated_frames_give_only_documented_errors(
    noise: bytes, position: int, mutation: str
) -> None:
    """A decoder of mutated frames returns a frame, waits for more, or raises a documented error."""
    data = bytearray(payload_frame(b"some payload") + PING_FRAME)
    at = position % len(data)
    if mutation == "flip":
        data[at : at + len(noise)] = noise
    elif mutation == "insert":
        data[at:at] = noise
    elif mutation == "delete":
        del data[at : at + len(noise)]
    else:
        del data[at:]
    decoder = FrameDecoder()
    decoder.receive_data(bytes(data))
    try:
        while (found := decoder.next_block_or_frame()) is not None:
            for frame in found.frames() if isinstance(found, MessageBlock) else ():
                parse_payload(frame.payload)
    except (RemoteProtocolError, ChecksumMismatch):
        pass
    assert decoder.buffered <= DEFAULT_MAX_MESSAGE_SIZE + FRAME_PADDING
