"""The parts of a frame: the layout of commands and messages on a connection.

Pulsar binary protocol, section "Framing". All integers are big endian.

Simple command::

    u32 totalSize      bytes that follow this field
    u32 commandSize    bytes of the command
    BaseCommand

Payload command (SEND, MESSAGE) continues after the command::

    [u16 0x0e02, u32 size, BrokerEntryMetadata]     only from brokers that expose it
    [u16 0x0e01, u32 CRC32C of all that follows]    absent from peers older than version 6
    u32 metadataSize, MessageMetadata
    payload                                         the rest of the frame
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from pulsar_spark.errors import ChecksumMismatch, RemoteProtocolError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.checksum import crc32c

MAGIC_CHECKSUM = 0x0E01
MAGIC_BROKER_ENTRY_METADATA = 0x0E02

_U16 = Struct(">H")
_U32 = Struct(">I")
_MAGIC_AND_U32 = Struct(">HI")

_PAYLOAD_TYPES = frozenset((pb.BaseCommand.SEND, pb.BaseCommand.MESSAGE))

# BaseCommand's field numbers equal its type numbers, so a type names its body.
BODY_FIELDS: dict[int, str] = {
    number: pb.BaseCommand.DESCRIPTOR.fields_by_number[number].name
    for number in pb.BaseCommand.Type.values()
}


M = TypeVar("M", bound=Message)


def parse(kind: type[M], data: Buffer) -> M:
    """Parse a peer's protobuf message; raises RemoteProtocolError if it is invalid."""
    try:
        message = kind.FromString(bytes(data))
    except (DecodeError, RecursionError, ValueError) as error:
        raise RemoteProtocolError(f"{kind.DESCRIPTOR.name} cannot be parsed: {error}") from None
    if not message.IsInitialized():
        raise RemoteProtocolError(f"{kind.DESCRIPTOR.name} lacks a required field")
    return message


class Frame:
    """One frame: its command, and for SEND and MESSAGE the undecoded bytes after it."""

    __slots__ = ("command", "payload")

    def __init__(self, command: pb.BaseCommand, payload: memoryview | None) -> None:
        self.command = command
        self.payload = payload


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """An entry that a broker delivered; `payload` is what follows the command, undecoded."""

    command: pb.CommandMessage
    payload: memoryview


def parse_frame(body: memoryview) -> Frame:
    """Parse what follows the size of a frame. Raises RemoteProtocolError."""
    command_size: int = _U32.unpack_from(body)[0]
    end = _U32.size + command_size
    if command_size == 0 or end > len(body):
        raise RemoteProtocolError(
            f"a command of {command_size} bytes does not fit its frame of {len(body)} bytes"
        )
    command = parse(pb.BaseCommand, body[_U32.size : end])
    kind = command.type
    field = BODY_FIELDS.get(kind)
    if field is None or not command.HasField(field):
        raise RemoteProtocolError(f"a command of type {kind} lacks its body")
    if kind in _PAYLOAD_TYPES:
        return Frame(command, body[end:])
    if end != len(body):
        raise RemoteProtocolError(
            f"{len(body) - end} bytes follow a {pb.BaseCommand.Type.Name(kind)} command"
        )
    return Frame(command, None)


class PayloadParts:
    """What follows the command of a SEND or MESSAGE, parsed; the payload is a view."""

    __slots__ = ("broker_entry_metadata", "checksum", "metadata", "metadata_bytes", "payload")

    def __init__(
        self,
        broker_entry_metadata: pb.BrokerEntryMetadata | None,
        checksum: int | None,
        metadata: pb.MessageMetadata,
        metadata_bytes: memoryview,
        payload: memoryview,
    ) -> None:
        self.broker_entry_metadata = broker_entry_metadata
        self.checksum = checksum
        self.metadata = metadata
        self.metadata_bytes = metadata_bytes
        self.payload = payload


def parse_payload(data: memoryview, *, verify: bool = True) -> PayloadParts:
    """Parse what follows the command of a SEND or MESSAGE.

    With `verify`, a checksum is verified. Raises ChecksumMismatch if it differs,
    RemoteProtocolError if sizes or metadata are invalid.
    """
    broker_entry_metadata, position = _broker_entry_metadata(data)
    checksum = None
    if _magic(data, position) == MAGIC_CHECKSUM:
        _require(data, position, _MAGIC_AND_U32.size, "checksum")
        checksum = _MAGIC_AND_U32.unpack_from(data, position)[1]
        position += _MAGIC_AND_U32.size
        if verify and (actual := crc32c(data[position:])) != checksum:
            raise ChecksumMismatch(
                f"the message's checksum is {actual:08x}, {checksum:08x} was stored with it",
                "The message is damaged; it was not acknowledged.",
            )
    _require(data, position, _U32.size, "metadata size")
    metadata_size: int = _U32.unpack_from(data, position)[0]
    position += _U32.size
    _require(data, position, metadata_size, "metadata")
    metadata_bytes = data[position : position + metadata_size]
    metadata = parse(pb.MessageMetadata, metadata_bytes)
    payload = data[position + metadata_size :]
    return PayloadParts(broker_entry_metadata, checksum, metadata, metadata_bytes, payload)


def _broker_entry_metadata(data: memoryview) -> tuple[pb.BrokerEntryMetadata | None, int]:
    if _magic(data, 0) != MAGIC_BROKER_ENTRY_METADATA:
        return None, 0
    _require(data, 0, _MAGIC_AND_U32.size, "broker entry metadata")
    size: int = _MAGIC_AND_U32.unpack_from(data)[1]
    position = _MAGIC_AND_U32.size
    _require(data, position, size, "broker entry metadata")
    return parse(pb.BrokerEntryMetadata, data[position : position + size]), position + size


def _magic(data: memoryview, position: int) -> int:
    # A metadata size never starts with these bytes: it would exceed every frame's limit.
    if len(data) - position < _U16.size:
        return 0
    magic: int = _U16.unpack_from(data, position)[0]
    return magic


def _require(data: memoryview, position: int, size: int, what: str) -> None:
    if size > len(data) - position:
        raise RemoteProtocolError(
            f"the {what} needs {size} bytes where the frame has {len(data) - position} left"
        )
