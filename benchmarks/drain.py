"""A raw drain: subscribe, then read the socket as fast as possible, without decoding."""

from __future__ import annotations

import socket
import struct
import time
import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import EARLIEST

_CHUNK = 1024 * 1024
_PERMITS = 2**31 - 1
_TIMEOUT = 30.0
_SIZES = struct.Struct(">II")
_MESSAGE_HEAD = struct.Struct(">HII")  # Magic number, checksum, size of the metadata.


class RawConnection:
    """A connection to a broker, which knows commands and sizes alone."""

    def __init__(self, service_url: str, name: str) -> None:
        address = urlsplit(service_url)
        assert address.hostname is not None
        self._socket = socket.create_connection((address.hostname, address.port or 6650), _TIMEOUT)
        self._received = bytearray()
        self._send(commands.connect(name))
        self._wait(pb.BaseCommand.CONNECTED)

    def _send(self, command: pb.BaseCommand) -> None:
        data = command.SerializeToString()
        self._socket.sendall(_SIZES.pack(len(data) + 4, len(data)) + data)

    def _frame(self) -> bytes:
        """Receive one frame, without its leading size."""
        while len(self._received) < 4 or len(self._received) < 4 + self._frame_size():
            self._received += self._socket.recv(_CHUNK)
        end = 4 + self._frame_size()
        frame = bytes(self._received[4:end])
        del self._received[:end]
        return frame

    def _frame_size(self) -> int:
        return int.from_bytes(self._received[:4], "big")

    def _wait(self, kind: int) -> pb.BaseCommand:
        while (command := _command(self._frame())[0]).type != kind:
            pass
        return command

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class Drain(RawConnection):
    """One connection with a non-durable consumer at the start of a topic partition."""

    def __init__(self, service_url: str, topic: str) -> None:
        super().__init__(service_url, "drain")
        self._send(
            commands.build(
                pb.CommandSubscribe,
                topic=topic,
                subscription=f"drain-{uuid.uuid4().hex}",
                subType=pb.CommandSubscribe.Exclusive,
                consumer_id=1,
                request_id=1,
                durable=False,
                start_message_id=EARLIEST.to_pb(),
                force_topic_creation=False,
            )
        )
        self._wait(pb.BaseCommand.SUCCESS)

    def count_bytes(self, messages: int) -> int:
        """Receive the first `messages` messages, and return their size in bytes."""
        return sum(map(len, self.frames(messages)))

    def frames(self, messages: int) -> Iterator[bytes]:
        """Yield the frames of the first `messages` messages."""
        self._send(commands.build(pb.CommandFlow, consumer_id=1, messagePermits=_PERMITS))
        while messages > 0:
            frame = self._frame()
            command, end = _command(frame)
            if command.type == pb.BaseCommand.MESSAGE:
                messages -= _messages(frame, end)
                yield len(frame).to_bytes(4, "big") + frame

    def run(self, total: int) -> tuple[float, float]:
        """Read `total` bytes; return the seconds, and the CPU seconds."""
        buffer = bytearray(_CHUNK)
        cpu = time.process_time()
        started = time.perf_counter()
        self._send(commands.build(pb.CommandFlow, consumer_id=1, messagePermits=_PERMITS))
        while total > 0:
            count = self._socket.recv_into(buffer)
            if count == 0:
                raise ConnectionError("the broker closed the connection")
            total -= count
        return time.perf_counter() - started, time.process_time() - cpu


def _command(frame: bytes) -> tuple[pb.BaseCommand, int]:
    """Return a frame's command and its end."""
    end = 4 + int.from_bytes(frame[:4], "big")
    return pb.BaseCommand.FromString(frame[4:end]), end


def _messages(frame: bytes, at: int) -> int:
    """Return the number of messages of the entry at `at` of a frame."""
    _, _, size = _MESSAGE_HEAD.unpack_from(frame, at)
    start = at + _MESSAGE_HEAD.size
    return pb.MessageMetadata.FromString(frame[start : start + size]).num_messages_in_batch
