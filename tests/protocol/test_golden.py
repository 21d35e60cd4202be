"""Recorded conversations of official clients decode to what their manifests say."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.connection import Connection
from pulsar_spark.protocol.events import ConnectionFailed
from pulsar_spark.protocol.frame_parts import BODY_FIELDS, Frame, parse_payload
from pulsar_spark.protocol.states import Role, State
from tests.protocol import golden
from tests.support.frames import SingleFrames

STREAMS = list(golden.streams())
# Longer recordings have a few huge frames, for which single bytes test nothing more.
BYTEWISE_LIMIT = 200_000


def decode(pieces: Iterator[bytes]) -> list[Frame]:
    decoder = SingleFrames()
    frames = []
    for piece in pieces:
        decoder.receive_data(piece)
        while (frame := decoder.next_frame()) is not None:
            frames.append(frame)
    assert decoder.buffered == 0
    return frames


def cut(data: bytes, positions: list[int]) -> Iterator[bytes]:
    edges = [0, *positions, len(data)]
    return (data[a:b] for a, b in itertools.pairwise(edges))


def recorded_stream(name: str, connection: int, side: str) -> tuple[bytes, list[golden.Manifest]]:
    manifest = golden.manifest(name)
    data = golden.stream(manifest["connections"][connection], side)
    return data, golden.frames(manifest, connection, side)


def summary(frames: list[Frame]) -> list[tuple[bytes, bytes]]:
    return [(f.command.SerializeToString(), bytes(f.payload)) for f in frames]


def test_there_are_recordings() -> None:
    assert len(STREAMS) > 200


@pytest.mark.parametrize("name, connection, side", STREAMS)
def test_every_frame_is_what_the_manifest_says(name: str, connection: int, side: str) -> None:
    data, recorded = recorded_stream(name, connection, side)
    frames = decode(iter([data]))
    assert len(frames) == len(recorded)
    for frame, expected in zip(frames, recorded, strict=True):
        assert pb.BaseCommand.Type.Name(frame.command.type) == expected["type"]
        body = getattr(frame.command, BODY_FIELDS[frame.command.type])
        golden.check_message(body, expected.get("command", {}))
        if "message" not in expected:
            assert not frame.payload
            continue
        check_parts(frame.payload, expected["message"])


def check_parts(payload: memoryview, expected: golden.Manifest) -> None:
    parts = parse_payload(payload)
    assert parts.checksum == int(expected["crc32c"], 16)
    golden.check_message(parts.metadata, expected["metadata"])
    golden.check_payload(bytes(parts.payload), expected["payload"])
    if "broker_entry_metadata" in expected:
        assert parts.broker_entry_metadata is not None
        golden.check_message(parts.broker_entry_metadata, expected["broker_entry_metadata"])
    else:
        assert parts.broker_entry_metadata is None


@pytest.mark.parametrize("name, connection, side", STREAMS)
def test_a_stream_decodes_alike_however_it_is_cut(name: str, connection: int, side: str) -> None:
    data, _ = recorded_stream(name, connection, side)
    whole = summary(decode(iter([data])))
    if len(data) <= BYTEWISE_LIMIT:
        assert summary(decode(bytes([byte]) for byte in data)) == whole
    seed = random.Random(f"{name} {connection} {side}")
    for _ in range(3):
        positions = sorted(seed.choices(range(len(data)), k=min(50, len(data))))
        assert summary(decode(cut(data, positions))) == whole


@pytest.mark.parametrize("name", golden.names())
def test_both_ends_find_every_recorded_command_legal(name: str) -> None:
    """Each end sends and receives the same as in the recording, in the same order."""
    manifest = golden.manifest(name)
    for recorded in manifest["connections"]:
        data = {side: golden.stream(recorded, side) for side in golden.SIDES}
        ends = {"client": Connection(Role.CLIENT), "broker": Connection(Role.BROKER)}
        for frame in manifest["frames"]:
            if frame["conn"] != recorded["id"]:
                continue
            start, stop = frame["offset"], frame["offset"] + frame["size"]
            piece = data[frame["from"]][start:stop]
            sender, receiver = golden.SIDES if frame["from"] == "client" else golden.SIDES[::-1]
            resend(ends[sender], piece)
            ends[receiver].receive_data(piece)
            failed = [
                e for e in ends[receiver].events_received() if isinstance(e, ConnectionFailed)
            ]
            assert not failed
        assert {end.state for end in ends.values()} <= {State.READY, State.CLOSED}


def resend(end: Connection, piece: bytes) -> None:
    """Make `end` send the frame that it sent in the recording, and compare the bytes."""
    [frame] = decode(iter([piece]))
    assert frame.command.type in BODY_FIELDS
    if frame.command.type in (pb.BaseCommand.PING, pb.BaseCommand.PONG):
        end.data_to_send()
    if not frame.payload:
        assert end.send(frame.command)
    else:
        assert end.send_raw_payload(frame.command, frame.payload)
    sent = b"".join(end.data_to_send())
    assert decode(iter([sent]))[0].command == frame.command
    assert sent[len(sent) - len(frame.payload or b"") :] == (frame.payload or b"")
