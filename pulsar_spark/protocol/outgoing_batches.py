"""Batches to send: the messages of one entry, as columns or one by one.

`batches.py` describes the format and reads it. `encode_uniform_batch` writes whole columns,
`encode_batch` messages with any fields, `batch_body` does whichever is faster.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from struct import Struct
from typing import Any, TypeAlias

from pulsar_spark.errors import LocalProtocolError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.byte_column import ByteColumn, edges_of
from pulsar_spark.protocol.single_metadata import (
    HEADS,
    KEY_HEADS,
    METADATA_SIZES,
    PAYLOAD_SIZES,
    encode_metadata,
)
from pulsar_spark.protocol.varints import number_runs

_U32 = Struct(">I")


@dataclass(slots=True)
class MessageFields:
    """A message to write. A message with a delivery time is never batched.

    `payload` None is a null value, `event_time` 0 (milliseconds) means none. With
    `key_is_base64`, `key` is the base64 text of a bytes key. `null_key` marks the missing key of a
    KEY_VALUE message with separate encoding. `sequence_id` is a user's own.
    """

    payload: bytes | None
    key: str | None = None
    key_is_base64: bool = False
    ordering_key: bytes | None = None
    properties: Sequence[tuple[str, str]] = ()
    event_time: int = 0
    sequence_id: int | None = None
    null_key: bool = False


@dataclass(slots=True)
class UniformMessages:
    """Messages as columns: payloads, perhaps string keys in UTF-8, and no rarer fields.

    Columns are lists, or a ByteColumn of what is not extended.
    `fields` are for messages with properties, event times or null values, or where some have no
    key: each one's batch metadata up to the digits of the sequence id, including the key; if they
    are `unbatched`, each one's entry metadata from behind the publish time up to the schema
    version. A null value's payload is empty; None stands for no key. `callbacks` are the sender's
    own.
    """

    payloads: Sequence[bytes]
    keys: Sequence[bytes | None] | None = None
    fields: Sequence[bytes] | None = None
    callbacks: list[Any] | None = None
    unbatched: bool = False
    _edges: Sequence[int] = field(default=(), init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.payloads)

    def part(self, start: int, stop: int) -> UniformMessages:
        """Return a range of the messages."""
        if start == 0 and stop >= len(self.payloads):
            return self
        return self._with_each(lambda column: column[start:stop])

    def take(self, rows: Sequence[int]) -> UniformMessages:
        """Return some of the messages."""

        def take(column: Sequence[Any]) -> list[Any]:
            if isinstance(column, ByteColumn):
                return column.take(rows)
            return list(map(column.__getitem__, rows))

        return self._with_each(take)

    def _with_each(self, change: Callable[[Sequence[Any]], Sequence[Any]]) -> UniformMessages:
        return UniformMessages(
            change(self.payloads),
            None if self.keys is None else change(self.keys),
            None if self.fields is None else change(self.fields),
            None if self.callbacks is None else list(change(self.callbacks)),
            self.unbatched,
        )

    def is_like(self, other: UniformMessages) -> bool:
        """Whether `other` has the same columns, callbacks aside."""
        missing = [column is None for column in self._columns()]
        others = [column is None for column in other._columns()]
        return missing == others and self.unbatched == other.unbatched

    def _columns(self) -> tuple[Sequence[bytes | None] | None, ...]:
        return self.payloads, self.keys, self.fields

    def append(self, payload: bytes, key: bytes | None) -> None:
        """Append a message without a callback; the columns are lists."""
        self.payloads.append(payload)  # type: ignore[attr-defined]
        if self.keys is not None and key is not None:
            self.keys.append(key)  # type: ignore[attr-defined]

    def extend(self, other: UniformMessages) -> None:
        """Append messages with the same columns, callbacks aside; this one's are lists."""
        if self.callbacks is not None or other.callbacks is not None:
            mine = self.callbacks or [None] * len(self)
            self.callbacks = mine + (other.callbacks or [None] * len(other))
        for column, more in zip(self._columns(), other._columns(), strict=True):
            if column is not None and more is not None:
                assert isinstance(column, list)
                column += more

    def edges(self) -> Sequence[int]:
        """Return where messages would start one after the other, and where the last one ends.

        Of each its payload counts, and its key or fields. The first need not start at 0.
        """
        # There are only ever more messages.
        if len(self._edges) != len(self.payloads) + 1:
            beside = self.keys if self.fields is None else self.fields
            self._edges = edges_of(self.payloads, beside)  # type: ignore[arg-type]
        return self._edges

    def size(self, start: int, stop: int) -> int:
        """Return the size of a range of messages: payloads, and keys or fields."""
        edges = self.edges()
        return edges[stop] - edges[start]

    def messages(self) -> list[MessageFields]:
        """Return the messages as objects."""
        if self.fields is not None:
            return list(map(message_of, self.payloads, self.fields, repeat(self.unbatched)))
        messages = [MessageFields(payload) for payload in self.payloads]
        for message, key in zip(messages, self.keys or (), strict=False):
            message.key = None if key is None else key.decode()
        return messages


# Empty name, sequence id and publish time, without which protobuf takes no metadata.
_REQUIRED = b"\x0a\0\x10\0\x18\0"


def message_of(payload: bytes, fields: bytes, unbatched: bool) -> MessageFields:
    """Return one message of `UniformMessages`, without a sequence id."""
    metadata: pb.SingleMessageMetadata | pb.MessageMetadata
    if unbatched:
        metadata = pb.MessageMetadata.FromString(_REQUIRED + fields)
    else:
        # After its tag, the sequence id's digits are missing.
        metadata = pb.SingleMessageMetadata.FromString(fields + b"\0")
    return fields_of(metadata, payload)


def fields_of(
    metadata: pb.SingleMessageMetadata | pb.MessageMetadata, payload: bytes
) -> MessageFields:
    """Return a message with the fields of its metadata, without a sequence id."""
    return MessageFields(
        None if metadata.null_value else payload,
        key=metadata.partition_key if metadata.HasField("partition_key") else None,
        key_is_base64=metadata.partition_key_b64_encoded,
        ordering_key=metadata.ordering_key if metadata.HasField("ordering_key") else None,
        properties=[(pair.key, pair.value) for pair in metadata.properties],
        event_time=metadata.event_time,
        null_key=metadata.null_partition_key,
    )


@dataclass(frozen=True, slots=True)
class BatchBody:
    """A batch before compression, with its values for MessageMetadata."""

    payload: bytes
    num_messages: int
    first_sequence_id: int
    highest_sequence_id: int


def encode_uniform_batch(
    payloads: Sequence[bytes],
    first_sequence_id: int,
    keys: Sequence[bytes | None] | None = None,
    fields: Sequence[bytes] | None = None,
) -> bytes:
    """Return a batch's body, for messages without rarer fields, given as columns.

    Sequence ids count up from `first_sequence_id`. `keys` are string keys in UTF-8, one per
    message, and ignored with `fields` (see `UniformMessages`). Raises
    LocalProtocolError for an empty batch, a wrong number of keys, or a sequence id out of range.
    """
    return b"".join(uniform_parts(payloads, first_sequence_id, keys, fields))


def uniform_parts(
    payloads: Sequence[bytes],
    first_sequence_id: int,
    keys: Sequence[bytes | None] | None = None,
    fields: Sequence[bytes] | None = None,
) -> list[bytes]:
    """Return the parts that `encode_uniform_batch` joins; each message has equally many.

    So one column can be cut into many batches.
    """
    count = len(payloads)
    if count == 0:
        raise LocalProtocolError("a batch has at least one message")
    _check_sequence_id(first_sequence_id)
    _check_sequence_id(first_sequence_id + count - 1)
    if fields is not None:
        if len(fields) != count:
            raise LocalProtocolError(f"fields of {len(fields)} of {count} messages were given")
    elif keys is not None and len(keys) != count:
        raise LocalProtocolError(f"{len(keys)} keys were given for {count} messages")
    parts: list[bytes] = []
    start = 0
    for digits in number_runs(first_sequence_id, count):
        stop = start + len(digits)
        run = list(payloads[start:stop])
        if fields is not None:
            columns = _columns_behind(digits, run, list(fields[start:stop]))
        elif keys is not None:
            columns = _keyed_columns(digits, run, list(keys[start:stop]))  # type: ignore[arg-type]
        else:
            columns = _plain_columns(digits, run)
        parts += _interleaved(columns)
        start = stop
    return parts


_PartColumns: TypeAlias = "tuple[Sequence[bytes], ...]"


def _interleaved(columns: _PartColumns) -> list[bytes]:
    """Return the first of each column, then the second of each, and so on."""
    parts = [b""] * (len(columns) * len(columns[0]))
    for place, column in enumerate(columns):
        parts[place :: len(columns)] = column
    return parts


def encode_batch(messages: Iterable[MessageFields], first_sequence_id: int) -> BatchBody:
    """Return a batch of one or more messages of any kind.

    Sequence ids that are missing count up from the previous message's, the first from
    `first_sequence_id`. Raises LocalProtocolError for no messages or for sequence ids that do not
    increase, InvalidRow for a value out of range.
    """
    parts: list[bytes] = []
    first = last = -1
    count = 0
    following = first_sequence_id
    for message in messages:
        sequence_id = following if message.sequence_id is None else message.sequence_id
        _check_sequence_id(sequence_id)
        if sequence_id <= last:
            raise LocalProtocolError(f"sequence id {sequence_id} comes after {last} in one batch")
        metadata = encode_metadata(
            message.payload,
            sequence_id,
            message.properties,
            message.key,
            message.event_time,
            message.key_is_base64,
            message.ordering_key,
            message.null_key,
        )
        parts += (_U32.pack(len(metadata)), metadata, message.payload or b"")
        first = sequence_id if count == 0 else first
        last, following = sequence_id, sequence_id + 1
        count += 1
    if count == 0:
        raise LocalProtocolError("a batch has at least one message")
    return BatchBody(b"".join(parts), count, first, last)


def batch_body(messages: Sequence[MessageFields], first_sequence_id: int) -> bytes:
    """Return a batch's body as `encode_batch`, as columns if its messages have no rarer fields."""
    keys = [message.key for message in messages if message.key is not None]
    if len(keys) in (0, len(messages)) and all(map(_is_plain, messages)):
        payloads = [message.payload or b"" for message in messages]
        with contextlib.suppress(UnicodeEncodeError):
            encoded = [key.encode() for key in keys] if keys else None
            return encode_uniform_batch(payloads, first_sequence_id, encoded)
    return encode_batch(messages, first_sequence_id).payload


def _is_plain(message: MessageFields) -> bool:
    return (
        message.payload is not None
        and not message.key_is_base64
        and message.ordering_key is None
        and not message.properties
        and not message.event_time
        and message.sequence_id is None
        and not message.null_key
    )


_MAX_LONG = 2**63 - 1


def _check_sequence_id(sequence_id: int) -> None:
    if not 0 <= sequence_id <= _MAX_LONG:
        raise LocalProtocolError(f"{sequence_id} cannot be a sequence id (0 to 2^63-1)")


def _plain_columns(digits: list[bytes], payloads: Sequence[bytes]) -> _PartColumns:
    head = HEADS[len(digits[0])].__getitem__
    return list(map(head, map(len, payloads))), digits, payloads


def _columns_behind(
    digits: list[bytes], payloads: Sequence[bytes], fields: Sequence[bytes]
) -> _PartColumns:
    sizes = map(METADATA_SIZES[len(digits[0])].__getitem__, map(len, fields))
    return list(sizes), fields, digits, payloads


def _keyed_columns(
    digits: list[bytes], payloads: Sequence[bytes], keys: Sequence[bytes]
) -> _PartColumns:
    number = len(digits[0])
    behind = list(map(PAYLOAD_SIZES.__getitem__, map(len, payloads)))
    widths = set(map(len, behind))
    if len(widths) == 1:
        heads = list(map(KEY_HEADS[number + widths.pop()].__getitem__, map(len, keys)))
    else:
        heads = [
            KEY_HEADS[number + len(size)][len(key)] for key, size in zip(keys, behind, strict=True)
        ]
    return heads, keys, behind, digits, payloads
