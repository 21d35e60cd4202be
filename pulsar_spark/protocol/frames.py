"""Frames on a connection: a stream of bytes is cut into them, and commands are encoded as them.

Their layout is in `frame_parts.py`. Every size is checked against the limit and the enclosing size
before anything is sliced or allocated.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c
from google.protobuf.message import EncodeError

from pulsar_spark.errors import LocalProtocolError, RemoteProtocolError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.frame_parts import (
    MAGIC_BROKER_ENTRY_METADATA,
    MAGIC_CHECKSUM,
    Frame,
    parse_frame,
)
from pulsar_spark.protocol.implementation import scan_messages, scan_receipts

DEFAULT_MAX_MESSAGE_SIZE = 5 * 1024 * 1024
"""A broker's limit for metadata and payload, unless CONNECTED has another."""

FRAME_PADDING = 10 * 1024
"""How much longer than the largest message a frame may be: sizes, command, broker metadata."""

_U32 = Struct(">I")
_SIZES = Struct(">II")
_MAGIC_AND_U32 = Struct(">HI")

_OTHER_PROTOCOLS = (
    (b"\x16\x03", "TLS", "Use a pulsar+ssl:// service URL, or the broker's plain port."),
    (b"\x15\x03", "TLS", "Use a pulsar+ssl:// service URL, or the broker's plain port."),
    (b"HTTP", "HTTP", "Use the broker's binary port (6650), not its web port (8080)."),
    (b"GET ", "HTTP", "Speak Pulsar's binary protocol to this port."),
    (b"POST", "HTTP", "Speak Pulsar's binary protocol to this port."),
    (b"<!DO", "HTTP", "Use the broker's binary port (6650), not a web port."),
    (b"<htm", "HTTP", "Use the broker's binary port (6650), not a web port."),
    (b"SSH-", "SSH", "Use the broker's binary port (6650)."),
)


class MessageBlock:
    """Complete MESSAGE frames of one consumer, consecutive as they were received.

    The frames are `data[start:stop]`, `count` of them. The last one starts at `last` (by default
    there is one). Only sizes and the consumer were checked; `frame` parses one.
    """

    __slots__ = ("consumer_id", "count", "data", "last", "start", "stop")

    def __init__(
        self,
        consumer_id: int,
        data: bytes,
        start: int,
        stop: int,
        count: int,
        last: int | None = None,
    ) -> None:
        self.consumer_id = consumer_id
        self.data = data
        self.start = start
        self.stop = stop
        self.count = count
        self.last = start if last is None else last

    @property
    def size(self) -> int:
        """Bytes of the frames."""
        return self.stop - self.start

    def alone(self) -> MessageBlock:
        """Return the same frames in a block that keeps little other data in memory."""
        if 2 * self.size >= len(self.data):
            return self
        data = self.data[self.start : self.stop]
        last = self.last - self.start
        return MessageBlock(self.consumer_id, data, 0, len(data), self.count, last=last)

    def end(self, at: int) -> int:
        """Return the end of the frame that starts at `at`."""
        return at + _U32.size + int(_U32.unpack_from(self.data, at)[0])

    def frame(self, at: int) -> tuple[Frame, int]:
        """Return the frame that starts at `at`, and its end.

        Raises RemoteProtocolError for a command that cannot be parsed.
        """
        end = self.end(at)
        frame = parse_frame(memoryview(self.data)[at + _U32.size : end])
        if frame.command.type != pb.BaseCommand.MESSAGE:
            raise RemoteProtocolError("a frame among MESSAGE frames is not a MESSAGE")
        return frame, end

    def places(self, at: int, stop: int) -> list[int]:
        """Return where the frames of `data[at:stop]` start."""
        places = []
        while at < stop:
            places.append(at)
            at = self.end(at)
        return places

    def frames(self) -> Iterator[Frame]:
        """Yield all frames; raises as `frame`."""
        return (self.frame(at)[0] for at in self.places(self.start, self.stop))


class ReceiptBlock(NamedTuple):
    """One producer's receipts, consecutive as they were received.

    Each has sequence id, highest sequence id, ledger and entry, signed as in Java.
    """

    producer_id: int
    receipts: array[int]


class FrameDecoder:
    """Cuts a stream of bytes into frames.

    Frames that arrive in one piece are not copied: they are views of the received data. A frame
    that was cut is copied once, with the data after it. Memory is allocated for received bytes,
    never for a size that the peer claims.
    """

    def __init__(self, max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE) -> None:
        self.max_message_size = max_message_size
        self._data = b""
        self._at = 0
        # Data received after `_data`, and how many bytes complete a frame.
        self._parts: list[Buffer] = []
        self._buffered = 0
        self._wanted = _U32.size
        self._failure: RemoteProtocolError | None = None

    @property
    def buffered(self) -> int:
        """Bytes received that were not returned in a frame yet."""
        return self._buffered

    def receive_data(self, data: Buffer) -> None:
        """Add the next bytes of the stream, which may be changed afterwards."""
        if not len(data):
            return
        self._parts.append(data)
        self._buffered += len(data)
        if not isinstance(data, bytes):
            # It is copied once: with the frame that it completes, or here.
            self._gather()
            if self._parts:
                self._parts[-1] = bytes(data)

    def next_block_or_frame(self) -> MessageBlock | ReceiptBlock | Frame | None:
        """Return the next complete frame, or a run of MESSAGE or SEND_RECEIPT frames.

        The frames of a run have one consumer or producer. None until more data is received. Raises
        RemoteProtocolError for bytes that are no frame; then the stream is useless, and every
        further call raises the same error.
        """
        try:
            end = self._next_end()
            if end is None:
                return None
            limit = self.max_message_size + FRAME_PADDING
            stop, consumer_id, count, last = scan_messages(self._data, self._at, limit)
            if not count:
                stop, producer_id, receipts = scan_receipts(self._data, self._at, limit)
                if receipts:
                    self._advance(stop)
                    return ReceiptBlock(producer_id, receipts)
                frame = self._parse(end)
                if frame.command.type != pb.BaseCommand.MESSAGE:
                    self._advance(end)
                    return frame
                stop, consumer_id, count = end, frame.command.message.consumer_id, 1
                last = self._at
        except RemoteProtocolError as error:
            self._fail(error)
            raise
        block = MessageBlock(consumer_id, self._data, self._at, stop, count, last)
        self._advance(stop)
        return block

    def _parse(self, end: int) -> Frame:
        return parse_frame(memoryview(self._data)[self._at + _U32.size : end])

    def _next_end(self) -> int | None:
        """Return where the next frame in `_data` ends, None while it is incomplete."""
        if self._failure is not None:
            raise self._failure
        if not self._gather():
            return None
        self._wanted = _U32.size + self._checked_size()
        return self._at + self._wanted if self._gather() else None

    def _gather(self) -> bool:
        """Join the wanted bytes; return whether they have arrived."""
        if self._buffered < self._wanted:
            return False
        if len(self._data) - self._at < self._wanted:
            rest = [self._data[self._at :]] if self._at < len(self._data) else []
            self._data = b"".join([*rest, *self._parts])
            self._at = 0
            self._parts.clear()
        return True

    def _advance(self, end: int) -> None:
        self._buffered -= end - self._at
        self._at = end
        self._wanted = _U32.size
        if end == len(self._data):
            self._data, self._at = b"", 0

    def _fail(self, error: RemoteProtocolError) -> None:
        self._failure = error
        self._data, self._at, self._buffered = b"", 0, 0
        self._parts.clear()

    def _checked_size(self) -> int:
        size: int = _U32.unpack_from(self._data, self._at)[0]
        limit = self.max_message_size + FRAME_PADDING
        if size > limit:
            start = self._data[self._at : self._at + _U32.size]
            for magic, name, remedy in _OTHER_PROTOCOLS:
                if start.startswith(magic):
                    raise RemoteProtocolError(f"the peer speaks {name}, not Pulsar", remedy)
            if start.isascii() and start.decode().isprintable():
                raise RemoteProtocolError(
                    f"the peer sent {start.decode()!r}…, which is not Pulsar's protocol",
                    "Check the host and the port: 6650, or 6651 with pulsar+ssl://.",
                )
            raise RemoteProtocolError(f"a frame of {size} bytes exceeds the limit of {limit}")
        if size <= _U32.size:
            raise RemoteProtocolError(f"a frame of {size} bytes has no command")
        return size


def encode_command(command: pb.BaseCommand) -> bytes:
    """Return the frame of a simple command."""
    body = _serialize(command)
    return _SIZES.pack(len(body) + _U32.size, len(body)) + body


def encode_payload_command(
    command: pb.BaseCommand,
    metadata: bytes,
    payload: Buffer,
    *,
    broker_entry_metadata: bytes | None = None,
) -> list[Buffer]:
    """Return the frame of a SEND or MESSAGE as buffers to write in order.

    The payload is not copied.
    """
    sized_metadata = _U32.pack(len(metadata)) + metadata
    prefix = _broker_prefix(broker_entry_metadata)
    prefix += _MAGIC_AND_U32.pack(MAGIC_CHECKSUM, crc32c(payload, crc32c(sized_metadata)))
    head = _payload_head(command, len(prefix) + len(sized_metadata) + len(payload))
    return [head + prefix + sized_metadata, payload]


def encode_raw_payload_command(
    command: pb.BaseCommand, data: Buffer, *, broker_entry_metadata: bytes | None = None
) -> list[Buffer]:
    """Return a MESSAGE frame; `data` is checksum, metadata and payload as stored."""
    prefix = _broker_prefix(broker_entry_metadata)
    return [_payload_head(command, len(prefix) + len(data)) + prefix, data]


def _broker_prefix(metadata: bytes | None) -> bytes:
    if metadata is None:
        return b""
    return _MAGIC_AND_U32.pack(MAGIC_BROKER_ENTRY_METADATA, len(metadata)) + metadata


def _payload_head(command: pb.BaseCommand, rest: int) -> bytes:
    body = _serialize(command)
    return _SIZES.pack(len(body) + _U32.size + rest, len(body)) + body


def _serialize(command: pb.BaseCommand) -> bytes:
    try:
        return command.SerializeToString()
    except EncodeError as error:
        raise LocalProtocolError(f"the command is not complete: {error}") from None
