"""Clears one field of the protocol in every frame that this process reads or writes.

A frame is taken apart, the field is cleared wherever it occurs (also in what SEND and MESSAGE
carry: metadata, and that of single messages in a batch, compressed or not), and the frame is put
together again with the right sizes and checksum. So it does not matter whether the field was
written by protobuf, by a template or by the compiled implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from struct import Struct
from struct import error as StructError
from typing import Any, TypeAlias

from crc32c import crc32c
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from pulsar_spark.engine.codecs import compress, decompress
from pulsar_spark.errors import PulsarError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.frame_parts import (
    BODY_FIELDS,
    MAGIC_BROKER_ENTRY_METADATA,
    MAGIC_CHECKSUM,
)
from pulsar_spark.protocol.frames import DEFAULT_MAX_MESSAGE_SIZE
from tests.conformance.interface import name_of, required

Visit: TypeAlias = Callable[[Message], bool]
"""Changes a message, but not those inside it; returns whether there was something to change."""

_U16 = Struct(">H")
_U32 = Struct(">I")
_CARRIERS = (pb.BaseCommand.SEND, pb.BaseCommand.MESSAGE)
_CARRIED = (pb.BrokerEntryMetadata, pb.MessageMetadata, pb.SingleMessageMetadata)
# Larger frames are a test's deliberate damage: the stream passes unchanged.
_LARGEST = 64 * 1024 * 1024
_MOST_UNCOMPRESSED = 16 * DEFAULT_MAX_MESSAGE_SIZE


def clear(message: Message, field: FieldDescriptor) -> bool:
    """Remove a field from a message; return whether that changed the message.

    Required fields get an empty or zero value instead: any parser would reject a command without
    them, which says nothing about who needs the field.
    """
    before = message.SerializePartialToString()
    message.ClearField(field.name)
    if name_of(field) in required():
        _empty(message, field)
    return message.SerializePartialToString() != before


def _empty(message: Message, field: FieldDescriptor) -> None:
    if field.message_type is None:
        value = 0 if field.enum_type is None else field.enum_type.values[0].number
        kind = type(getattr(message, field.name))
        setattr(message, field.name, value if kind in (int, bool, float) else kind())
        return
    inner = getattr(message, field.name)
    inner.SetInParent()
    for its in field.message_type.fields:
        if name_of(its) in required():
            _empty(inner, its)


def walk(message: Message, visit: Visit) -> bool:
    """Visit a message and all inside it; return whether any was changed."""
    changed = False
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in (value,) if isinstance(value, Message) else value:
                changed |= walk(inner, visit)
    return visit(message) or changed


@cache
def _inside(kind: Any) -> frozenset[str]:
    """Return the names of a message type and of all types that it can contain."""
    found: dict[str, None] = {}
    left = [kind]
    while left:
        kind = left.pop()
        if kind.name not in found:
            found[kind.name] = None
            left += [field.message_type for field in kind.fields if field.message_type is not None]
    return frozenset(found)


class FrameEditor:
    """Applies a `Visit` to all messages in frames that may contain a field to change.

    `kinds` are the names of the messages that it looks at; None for all of them.
    """

    def __init__(self, visit: Visit, kinds: frozenset[str] | None = None) -> None:
        self._visit = visit
        self._kinds = kinds
        self._commands = {
            number
            for number, name in BODY_FIELDS.items()
            if self._looks_at(pb.BaseCommand.DESCRIPTOR.fields_by_name[name].message_type)
            or (number in _CARRIERS and any(self._looks_at(it.DESCRIPTOR) for it in _CARRIED))
        }
        self._all = kinds is None or "BaseCommand" in kinds
        self._in_batches = self._looks_at(pb.SingleMessageMetadata.DESCRIPTOR)

    def _looks_at(self, kind: Any) -> bool:
        return self._kinds is None or bool(self._kinds & _inside(kind))

    def frame(self, frame: bytes) -> bytes:
        """Return a whole frame, changed if there is anything to change."""
        # The type comes first, and its number takes one byte.
        if not self._all and len(frame) > 9 and frame[8] == 8 and frame[9] not in self._commands:
            return frame
        try:
            return self._edited(frame)
        except (DecodeError, PulsarError, StructError):
            # A test's deliberate damage.
            return frame

    def _edited(self, frame: bytes) -> bytes:
        size: int = _U32.unpack_from(frame, 4)[0]
        end = 8 + size
        if end > len(frame):
            return frame
        command = pb.BaseCommand.FromString(frame[8:end])
        kind, rest = command.type, frame[end:]
        edited = rest
        if kind in _CARRIERS and rest:
            edited = self._payload(rest)
        changed = walk(command, self._visit)
        if not changed and edited is rest:
            return frame
        body = command.SerializePartialToString() if changed else frame[8:end]
        return _U32.pack(4 + len(body) + len(edited)) + _U32.pack(len(body)) + body + edited

    def _payload(self, data: bytes) -> bytes:
        at, front, changed = 0, b"", False
        if _U16.unpack_from(data)[0] == MAGIC_BROKER_ENTRY_METADATA:
            at = 6 + int(_U32.unpack_from(data, 2)[0])
            broker = pb.BrokerEntryMetadata.FromString(data[6:at])
            changed = walk(broker, self._visit)
            own = broker.SerializePartialToString()
            front = data[:2] + _U32.pack(len(own)) + own
        checked = _U16.unpack_from(data, at)[0] == MAGIC_CHECKSUM
        begin = at + 6 if checked else at
        if checked and _U32.unpack_from(data, at + 2)[0] != crc32c(data[begin:]):
            return data
        size: int = _U32.unpack_from(data, begin)[0]
        metadata = pb.MessageMetadata.FromString(data[begin + 4 : begin + 4 + size])
        payload = data[begin + 4 + size :]
        inner = self._batch(metadata, payload) if self._in_batches else payload
        changed = walk(metadata, self._visit) or changed or inner is not payload
        if not changed:
            return data
        own = metadata.SerializePartialToString()
        rest = _U32.pack(len(own)) + own + inner
        if checked:
            rest = _U16.pack(MAGIC_CHECKSUM) + _U32.pack(crc32c(rest)) + rest
        return front + rest

    def _batch(self, metadata: pb.MessageMetadata, payload: bytes) -> bytes:
        if not metadata.HasField("num_messages_in_batch") or metadata.encryption_keys:
            return payload
        codec, size = metadata.compression, metadata.uncompressed_size
        body = bytes(decompress(codec, payload, size, _MOST_UNCOMPRESSED))
        parts, at, changed = [], 0, False
        for _ in range(metadata.num_messages_in_batch):
            end = at + 4 + int(_U32.unpack_from(body, at)[0])
            single = pb.SingleMessageMetadata.FromString(body[at + 4 : end])
            at, end = end, end + single.payload_size
            changed |= walk(single, self._visit)
            own = single.SerializePartialToString()
            parts += [_U32.pack(len(own)), own, body[at:end]]
            at = end
        if not changed:
            return payload
        body = b"".join(parts)
        if codec != pb.NONE:
            metadata.uncompressed_size = len(body)
        return bytes(compress(codec, body))


class Stream:
    """One direction of a connection: bytes in any pieces go in, whole edited frames come out."""

    def __init__(self, edit: Callable[[bytes], bytes]) -> None:
        self._edit = edit
        self._rest = b""
        self._lost = False

    def feed(self, data: Buffer) -> bytes:
        """Take bytes and return those to pass on."""
        self._rest += bytes(data)
        out = []
        while len(self._rest) >= 4 and not self._lost:
            end = 4 + int(_U32.unpack_from(self._rest)[0])
            if end > _LARGEST:
                self._lost = True
            elif end > len(self._rest):
                break
            else:
                out.append(self._edit(self._rest[:end]))
                self._rest = self._rest[end:]
        if self._lost:
            out.append(self._rest)
            self._rest = b""
        return b"".join(out)
