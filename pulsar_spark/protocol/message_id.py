"""Message ids and positions on a topic.

A message id names a message. A position is just before a message; ranges of messages are half-open
ranges of positions, and positions have the topic's order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from google.protobuf.message import DecodeError

from pulsar_spark.errors import InvalidMessageId
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.varints import varint

_MAX_LONG = 2**63 - 1
_MAX_INT = 2**31 - 1
_UNSIGNED = 2**64 - 1
# A serialized id with a first chunk and all fields at maximum length has 84 bytes.
_MAX_SERIALIZED = 1024
_SHOWN = 100

_NUMBER = r"(-1|0|[1-9][0-9]{0,18})"
_ID = re.compile(rf"{_NUMBER}:{_NUMBER}(?::{_NUMBER})?(?::{_NUMBER})?")
_POSITION = re.compile(rf"{_NUMBER}:{_NUMBER}:(0|[1-9][0-9]{{0,9}})")


def as_signed(value: int) -> int:
    """Return an unsigned 64-bit number as the signed one with the same bits."""
    return value - 2**64 if value > _MAX_LONG else value


def as_signed_int(value: int) -> int:
    """Return an unsigned 32-bit number as the signed one with the same bits, as Java reads it."""
    return value - 2**32 if value > _MAX_INT else value


@dataclass(frozen=True, slots=True)
class MessageIdAdv:
    """Where a message is stored: ledger, entry, and its index inside a batch.

    The name is Java's for an id whose fields are public; users of `PulsarClient` get the official
    client's MessageIdAdv. `partition` is -1 if the topic is not partitioned, `batch_index` -1
    outside of a batch. `batch_size` is 0 if unknown. `first_chunk` is set for a chunked message,
    whose own id is the last chunk's. Numbers are signed: the wire's 2^64-1 is -1 here. `cluster` is
    which of the clusters that a client has used delivered the message, if that is known.
    """

    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1
    batch_size: int = 0
    first_chunk: MessageIdAdv | None = None
    cluster: int | None = field(default=None, compare=False, repr=False)

    @property
    def names_message(self) -> bool:
        """Whether it can be a message's: EARLIEST, LATEST, an empty topic's last id cannot."""
        return self.ledger_id >= 0 and 0 <= self.entry_id < _MAX_LONG

    @classmethod
    def from_pb(cls, data: pb.MessageIdData) -> MessageIdAdv:
        """Convert a MessageIdData, without acknowledgement bits."""
        first = data.first_chunk_message_id if data.HasField("first_chunk_message_id") else None
        return cls(
            as_signed(data.ledgerId),
            as_signed(data.entryId),
            data.partition,
            data.batch_index,
            data.batch_size,
            # A first chunk is a plain entry: anything nested deeper is meaningless.
            None
            if first is None
            else cls(as_signed(first.ledgerId), as_signed(first.entryId), first.partition),
        )

    def to_pb(self) -> pb.MessageIdData:
        """Convert to MessageIdData; fields with default values are left out.

        Raises InvalidMessageId if a number is out of range.
        """
        if (
            max(self.ledger_id, self.entry_id) > _MAX_LONG
            or max(self.partition, self.batch_index, self.batch_size) > _MAX_INT
            or min(self.ledger_id, self.entry_id) < -1
        ):
            raise InvalidMessageId(f"{self} has a number that is not valid in a message id")
        data = pb.MessageIdData(
            ledgerId=self.ledger_id & _UNSIGNED, entryId=self.entry_id & _UNSIGNED
        )
        if self.partition >= 0:
            data.partition = self.partition
        if self.batch_index >= 0:
            data.batch_index = self.batch_index
        if self.batch_size > 0:
            data.batch_size = self.batch_size
        if self.first_chunk is not None:
            data.first_chunk_message_id.CopyFrom(self.first_chunk.to_pb())
        return data

    def serialize(self) -> bytes:
        """Return the id in official clients' serialized form."""
        return self.to_pb().SerializeToString()

    @classmethod
    def deserialize(cls, data: bytes) -> MessageIdAdv:
        """Read an id that `serialize` of this or an official client wrote.

        Raises InvalidMessageId for anything else.
        """
        if len(data) > _MAX_SERIALIZED:
            raise InvalidMessageId(f"{len(data)} bytes are too many for a message id")
        try:
            parsed = pb.MessageIdData.FromString(bytes(data))
        except DecodeError:
            parsed = pb.MessageIdData()
        # The parser accepts missing required fields.
        if not parsed.IsInitialized():
            raise InvalidMessageId(
                f"the bytes {bytes(data[:_SHOWN]).hex()} are not a message id",
                "Give what MessageId.serialize() returned, or the __messageId column.",
            )
        message_id = cls.from_pb(parsed)
        for each in (message_id, message_id.first_chunk or message_id):
            if each.ledger_id < -1 or each.entry_id < -1:
                raise InvalidMessageId(f"{each} has a negative ledger or entry")
        return message_id

    @classmethod
    def parse(cls, text: str) -> MessageIdAdv:
        """Parse "ledger:entry", "…:partition" or "…:partition:batchIndex".

        Raises InvalidMessageId for any other text or a number out of range.
        """
        expected = "ledger:entry[:partition[:batchIndex]]"
        ledger_id, entry_id, partition, batch_index = _numbers(text, _ID, expected)
        return cls(ledger_id, entry_id, partition, batch_index)

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}:{self.partition}:{self.batch_index}"


def id_tails(indexes: Iterable[int], batch_size: int = 0) -> list[bytes]:
    """Return the ends of the serialized ids of a batch's messages, after ledger, entry and
    partition: batch index, and batch size unless it is 0.
    """
    size = b"\x30" + varint(batch_size) if batch_size else b""
    return [b"\x20" + varint(index) + size for index in indexes]


def _numbers(text: str, form: re.Pattern[str], expected: str) -> list[int]:
    """Return the numbers of a text, -1 for those that are left out; raises InvalidMessageId."""
    match = form.fullmatch(text)
    if match is not None:
        numbers = [int(part or -1) for part in match.groups()]
        if max(numbers[:2]) <= _MAX_LONG and max(numbers[2:]) <= _MAX_INT:
            return numbers
        expected = "numbers of 63 bits (ledger, entry) and 31 bits"
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    raise InvalidMessageId(f"{shown!r} is not a message id", f"Expected {expected}.")


EARLIEST = MessageIdAdv(-1, -1)
LATEST = MessageIdAdv(_MAX_LONG, _MAX_LONG)


class Position(NamedTuple):
    """The place just before message `batch_index` of entry `entry_id` of `ledger_id`.

    Positions compare as tuples, in the topic's order. They have no partition: compare only
    positions of one topic partition.
    """

    ledger_id: int
    entry_id: int
    batch_index: int = 0

    @classmethod
    def before(cls, message_id: MessageIdAdv) -> Position:
        """Return the position just before `message_id`.

        For a chunked message it is before its first chunk.
        """
        first = message_id.first_chunk or message_id
        return cls(first.ledger_id, first.entry_id, max(message_id.batch_index, 0))

    @classmethod
    def after(cls, message_id: MessageIdAdv) -> Position:
        """Return the position just after `message_id`, in the same entry if it is batched.

        EARLIEST (also the last id of an empty topic) and LATEST name no message; their positions
        are EARLIEST_POSITION and LATEST_POSITION.
        """
        ledger_id, entry_id = message_id.ledger_id, message_id.entry_id
        if message_id.batch_index >= 0:
            return cls(ledger_id, entry_id, message_id.batch_index + 1)
        if ledger_id < 0 or entry_id == _MAX_LONG:
            return cls(ledger_id, entry_id, 0)
        return cls(ledger_id, entry_id + 1, 0)

    @property
    def begins_ledger(self) -> bool:
        """Whether nothing of its ledger is before it; true for EARLIEST_POSITION too."""
        return self.entry_id <= 0 and self.batch_index <= 0

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parse "ledger:entry:batchIndex", as written by `str()`.

        Raises InvalidMessageId for any other text or a number out of range.
        """
        return cls(*_numbers(text, _POSITION, "ledger:entry:batchIndex"))

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}:{self.batch_index}"


EARLIEST_POSITION = Position(-1, -1, 0)
LATEST_POSITION = Position(_MAX_LONG, _MAX_LONG, 0)
