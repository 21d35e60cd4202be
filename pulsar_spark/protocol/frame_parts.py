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

from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import TypeVar

from crc32c import crc32c
from google.protobuf.message import DecodeError, Message

from pulsar_spark.errors import ChecksumMismatch, RemoteProtocolError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.batches import UnpackedBatch, unpack_batch
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.message_id import MessageIdAdv

MAGIC_CHECKSUM = 0x0E01
MAGIC_BROKER_ENTRY_METADATA = 0x0E02

_U32 = Struct(">I")
_unpack_magic = Struct(">HI").unpack_from
_unpack_size = _U32.unpack_from

_PAYLOAD_TYPES = frozenset((pb.BaseCommand.SEND, pb.BaseCommand.MESSAGE))

# BaseCommand's field numbers equal its type numbers, so a type names its body.
BODY_FIELDS: dict[int, str] = {
    number: pb.BaseCommand.DESCRIPTOR.fields_by_number[number].name
    for number in pb.BaseCommand.Type.values()
}


M = TypeVar("M", bound=Message)


def parser_of(kind: type[M]) -> Callable[[bytes], M]:
    """Return what parses a peer's message; it raises RemoteProtocolError for an invalid one."""
    from_string, name = kind.FromString, kind.DESCRIPTOR.name

    def parse(data: bytes) -> M:
        try:
            message = from_string(data)
        except (DecodeError, RecursionError, ValueError) as error:
            raise RemoteProtocolError(f"{name} cannot be parsed: {error}") from None
        if not message.IsInitialized():
            raise RemoteProtocolError(f"{name} lacks a required field")
        return message

    return parse


_parse_command = parser_of(pb.BaseCommand)
_parse_stamp = parser_of(pb.BrokerEntryMetadata)
_parse_metadata = parser_of(pb.MessageMetadata)


class Frame:
    """One frame: its command, and the undecoded bytes after it; only SEND and MESSAGE have any."""

    __slots__ = ("command", "payload")

    def __init__(self, command: pb.BaseCommand, payload: memoryview) -> None:
        self.command = command
        self.payload = payload


def parse_frame(body: memoryview) -> Frame:
    """Parse what follows the size of a frame. Raises RemoteProtocolError."""
    command_size: int = _U32.unpack_from(body)[0]
    end = _U32.size + command_size
    if command_size == 0 or end > len(body):
        raise RemoteProtocolError(
            f"a command of {command_size} bytes does not fit its frame of {len(body)} bytes"
        )
    command = _parse_command(bytes(body[_U32.size : end]))
    kind = command.type
    field = BODY_FIELDS.get(kind)
    if field is None or not command.HasField(field):
        raise RemoteProtocolError(f"a command of type {kind} lacks its body")
    if end != len(body) and kind not in _PAYLOAD_TYPES:
        raise RemoteProtocolError(
            f"{len(body) - end} bytes follow a {pb.BaseCommand.Type.Name(kind)} command"
        )
    return Frame(command, body[end:])


class ReceivedEntry:
    """An entry: what follows the command of a SEND or MESSAGE, parsed.

    The `payload` is what was stored. When the entry is opened (`engine/consumers/entries.py`), it
    becomes the decompressed body: a batch's if `is_batch`, otherwise one message's, with its chunks
    joined. `size` is the number of bytes that were parsed. What the attributes with defaults say is
    known of entries that brokers deliver.
    """

    topic = ""
    ledger_id = -1
    entry_id = -1
    partition = -1
    redelivery_count = 0
    left: int | None = None
    """The bits of the rest if a part of the batch is already acknowledged."""
    first_chunk: MessageIdAdv | None = None
    """Set for a chunked message, whose own id is its last chunk's."""
    chunk_ids: tuple[MessageIdAdv, ...] = ()
    wanted = range(1)
    """The messages to take, by their indexes in the batch."""
    undecrypted = False
    """Whether it stays encrypted: one message, whose payload is what was stored."""
    batch: UnpackedBatch | None = None
    """The messages, once they are unpacked."""
    cluster: int | None = None
    """That of the message ids."""

    def __init__(
        self,
        metadata: pb.MessageMetadata,
        payload: Buffer,
        metadata_bytes: bytes = b"",
        size: int = 0,
        broker_entry_metadata: pb.BrokerEntryMetadata | None = None,
        checksum: int | None = None,
    ) -> None:
        self.metadata = metadata
        self.payload = payload
        self.metadata_bytes = metadata_bytes
        self.size = size
        self.broker_entry_metadata = broker_entry_metadata
        self.checksum = checksum
        self.is_batch = metadata.HasField("num_messages_in_batch")

    @property
    def batch_size(self) -> int:
        """How many messages its batch has, 0 for a single message."""
        return self.metadata.num_messages_in_batch if self.is_batch else 0

    @property
    def index(self) -> int | None:
        """The broker's number of its last message, None if the broker gives none."""
        stamp = self.broker_entry_metadata
        return stamp.index if stamp is not None and stamp.HasField("index") else None

    @property
    def broker_time(self) -> int | None:
        """When the broker stored it, in ms; None if the broker does not say so."""
        stamp = self.broker_entry_metadata
        has_time = stamp is not None and stamp.HasField("broker_timestamp")
        return stamp.broker_timestamp if stamp is not None and has_time else None

    def unpack(self) -> UnpackedBatch:
        """Return the messages of a batch; raises CorruptBatch."""
        if self.batch is None:
            self.batch = unpack_batch(self.payload, self.metadata.num_messages_in_batch)
        return self.batch

    def fields(self, batch_index: int) -> pb.MessageMetadata | pb.SingleMessageMetadata:
        """Return what a message has of its own; `batch_index` is -1 outside of a batch."""
        return self.unpack().metadata_of(batch_index) if self.is_batch else self.metadata

    def message_id(self, batch_index: int = -1) -> MessageIdAdv:
        """Return the id of the entry, or of a message of its batch."""
        return MessageIdAdv(
            self.ledger_id,
            self.entry_id,
            self.partition,
            batch_index,
            self.batch_size if batch_index >= 0 else 0,
            self.first_chunk,
            self.cluster,
        )


def parse_payload(
    data: bytes | memoryview, place: int = 0, stop: int | None = None, *, verify: bool = True
) -> ReceivedEntry:
    """Parse `data[place:stop]`, what follows the command of a SEND or MESSAGE.

    With `verify`, a checksum is verified. Raises ChecksumMismatch if it differs,
    RemoteProtocolError if sizes or metadata are invalid.
    """
    start, view, stop = place, memoryview(data), len(data) if stop is None else stop
    stamp, checksum = None, None
    try:
        # A metadata size never starts with these bytes: it would exceed every frame's limit. Nor
        # is metadata with its required fields shorter than a checksum.
        magic, number = _unpack_magic(data, place)
        if magic == MAGIC_BROKER_ENTRY_METADATA:
            place += 6 + number
            stamp = _parse_stamp(bytes(data[place - number : place]))
            magic, number = _unpack_magic(data, place)
        if magic == MAGIC_CHECKSUM:
            place, checksum = place + 6, number
            if verify and (actual := crc32c(view[place:stop])) != checksum:
                raise ChecksumMismatch(
                    f"the message's checksum is {actual:08x}, {checksum:08x} was stored with it",
                    "The message is damaged; it was not acknowledged.",
                )
        place += 4
        end = place + _unpack_size(data, place - 4)[0]
    except StructError:
        raise RemoteProtocolError(f"a message ends in its headers, after {stop - start}") from None
    if end > stop:
        raise RemoteProtocolError(
            f"the metadata needs {end - place} bytes where the frame has {stop - place} left"
        )
    metadata_bytes = bytes(data[place:end])
    metadata = _parse_metadata(metadata_bytes)
    return ReceivedEntry(metadata, view[end:stop], metadata_bytes, stop - start, stamp, checksum)
