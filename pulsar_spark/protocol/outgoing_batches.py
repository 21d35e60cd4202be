"""Batches to send: the messages of one entry, as columns.

`batches.py` describes the format and reads it. A message's fields become bytes when it joins a
column: `encode_fields`. So there is one kind of batch, and `encode_uniform_batch` writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

from pulsar_spark.errors import InvalidRow, LocalProtocolError, WrongType
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.byte_column import ByteColumn, edges_of
from pulsar_spark.protocol.single_metadata import (
    HEADS,
    KEY_HEADS,
    METADATA_SIZES,
    PAYLOAD_SIZES,
    property_name,
)
from pulsar_spark.protocol.varints import NUMBERS, encode_number, number_runs, sized

_U32 = Struct(">I")

BatchKey: TypeAlias = "bytes | tuple[str, object] | None"
"""What messages of one batch share with batching by key: a string key in UTF-8, or what else
decides to which consumer of a Key_Shared subscription a message goes."""

Shape: TypeAlias = "tuple[bool, bool, bool, bool]"
"""Which columns there are: keys, fields, whether these are unbatched, and users' own ids."""


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
    own. Messages with `sequence_ids`, which are users' own, all have fields, and so do those that
    `have_other_keys`: some keys are in the fields alone, and `keys` has what they are grouped by.
    """

    payloads: Sequence[bytes]
    keys: Sequence[BatchKey] | None = None
    fields: Sequence[bytes] | None = None
    callbacks: list[Any] | None = None
    unbatched: bool = False
    sequence_ids: Sequence[int] | None = None
    have_other_keys: bool = False
    _edges: Sequence[int] = field(default=(), init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.payloads)

    def part(self, start: int, stop: int) -> UniformMessages:
        """Return a range of the messages."""
        if start == 0 and stop >= len(self.payloads):
            return self
        return self.copy(start, stop)

    def copy(self, start: int, stop: int) -> UniformMessages:
        """Return a range of the messages, in columns that do not grow with these."""
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
            None if self.sequence_ids is None else change(self.sequence_ids),
            self.have_other_keys,
        )

    @classmethod
    def of(cls, shape: Shape) -> UniformMessages:
        """Return columns of a shape, for messages to be appended."""
        keys, fields, unbatched, own_ids = shape
        return cls(
            [],
            [] if keys else None,
            [] if fields else None,
            unbatched=unbatched,
            sequence_ids=[] if own_ids else None,
        )

    @property
    def shape(self) -> Shape:
        """Messages of another shape share no columns with these."""
        own_ids = self.sequence_ids is not None
        return self.keys is not None, self.fields is not None, self.unbatched, own_ids

    def append(
        self,
        payload: bytes,
        key: BatchKey,
        fields: bytes | None = None,
        sequence_id: int | None = None,
    ) -> None:
        """Append a message without a callback, of the same shape; the columns are lists."""
        self.payloads.append(payload)  # type: ignore[attr-defined]
        if self.keys is not None:
            self.keys.append(key)  # type: ignore[attr-defined]
        if self.fields is not None:
            self.fields.append(fields)  # type: ignore[attr-defined]
            self.have_other_keys = self.have_other_keys or isinstance(key, tuple)
            if self.sequence_ids is not None:
                self.sequence_ids.append(sequence_id)  # type: ignore[attr-defined]

    def extend(self, other: UniformMessages) -> None:
        """Append messages of the same shape; this one's columns are lists."""
        if self.callbacks is not None or other.callbacks is not None:
            mine = self.callbacks or [None] * len(self)
            self.callbacks = mine + (other.callbacks or [None] * len(other))
        for column, more in (
            (self.payloads, other.payloads),
            (self.keys, other.keys),
            (self.fields, other.fields),
        ):
            if column is not None and more is not None:
                assert isinstance(column, list)
                column += more

    def add_fields(self) -> None:
        """Let any messages follow: those that have at most keys get fields."""
        keys = self.keys = list(self.keys or [None] * len(self))
        if self.fields is None:
            pairs = zip(self.payloads, keys, strict=True)
            self.fields = [key_field(payload, key, self.unbatched) for payload, key in pairs]

    def without_batch(self) -> UniformMessages:
        """Return messages that have a batch's fields with those of entries of their own."""
        if self.fields is not None:
            fields = list(map(_without_batch, self.fields))
        else:
            keys = self.keys or [None] * len(self)
            pairs = zip(self.payloads, keys, strict=True)
            fields = [key_field(payload, key, unbatched=True) for payload, key in pairs]
        return UniformMessages(self.payloads, None, fields, self.callbacks, unbatched=True)

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
            messages = list(map(message_of, self.payloads, self.fields, repeat(self.unbatched)))
        else:
            messages = [MessageFields(payload) for payload in self.payloads]
            for message, key in zip(messages, self.keys or (), strict=False):
                message.key = None if key is None else key.decode()  # type: ignore[union-attr]
        for message, sequence_id in zip(messages, self.sequence_ids or (), strict=False):
            message.sequence_id = sequence_id
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


class _Tags(NamedTuple):
    """The tags of a message's fields; `null_value` and what follows are whole fields."""

    properties: bytes
    key: bytes
    event_time: bytes
    ordering_key: bytes
    is_base64: bytes
    null_value: bytes
    null_key: bytes


_IN_BATCH = _Tags(b"\x0a", b"\x12", b"\x28", b"\x3a", b"\x30\x01", b"\x48\x01", b"\x50\x01")
_IN_ENTRY = _Tags(
    b"\x22", b"\x32", b"\x60", b"\x92\x01", b"\x88\x01\x01", b"\xc8\x01\x01", b"\xf0\x01\x01"
)


def encode_fields(message: MessageFields, *, unbatched: bool) -> tuple[BatchKey, bytes | None]:
    """Return a message's key and fields for columns; None if it has at most a string key.

    Raises InvalidRow for a value out of range or text that is not valid Unicode, and WrongType.
    """
    try:
        if message.sequence_id is None and _is_plain(message):
            return None if message.key is None else message.key.encode(), None
        key: BatchKey = None
        if message.ordering_key is not None:
            key = "ordering key", message.ordering_key
        elif message.key is not None:
            key = ("bytes", message.key) if message.key_is_base64 else message.key.encode()
        return key, _fields(message, unbatched)
    except (AttributeError, TypeError, ValueError) as error:
        kind = InvalidRow if isinstance(error, ValueError) else WrongType
        raise kind(
            f"a message's key, property or time cannot be sent: {error}",
            "Keys and properties are text that UTF-8 can express, times are not negative.",
        ) from None


def _fields(message: MessageFields, unbatched: bool) -> bytes:
    tags = _IN_ENTRY if unbatched else _IN_BATCH
    if not 0 <= message.event_time <= _MAX_LONG:
        raise ValueError(f"{message.event_time} is no time in milliseconds")
    data = b"".join(
        tags.properties + sized(property_name(name) + b"\x12" + sized(value.encode()))
        for name, value in message.properties
    )
    if message.key is not None:
        data += tags.key + sized(message.key.encode())
    if not unbatched:
        data += b"\x18" + encode_number(len(message.payload or b""))
    if message.event_time:
        data += tags.event_time + encode_number(message.event_time)
    if message.key_is_base64 and message.key is not None:
        data += tags.is_base64
    if message.ordering_key is not None:
        data += tags.ordering_key + sized(message.ordering_key)
    if message.payload is None:
        data += tags.null_value
    if message.null_key:
        data += tags.null_key
    return data if unbatched else data + b"\x40"


_ENTRY_TAGS = {mine[0]: its for mine, its in zip(_IN_BATCH, _IN_ENTRY, strict=True)}
_SIZED = frozenset(tag[0] for tag in (_IN_BATCH.properties, _IN_BATCH.key, _IN_BATCH.ordering_key))
_PAYLOAD_SIZE, _SEQUENCE_ID = 0x18, 0x40


def _without_batch(fields: bytes) -> bytes:
    """Return a message's fields in a batch as those of an entry of its own: with other tags."""
    parts: list[bytes] = []
    at = 0
    while (tag := fields[at]) != _SEQUENCE_ID:
        end = at + 2
        while fields[end - 1] & 128:
            end += 1
        number = fields[at + 1 : end]
        if tag in _SIZED:
            start, end = at + 1, end + NUMBERS[number]
            parts += [_ENTRY_TAGS[tag], fields[start:end]]
        elif tag == _IN_BATCH.event_time[0]:
            parts += [_ENTRY_TAGS[tag], number]
        elif tag != _PAYLOAD_SIZE:
            parts.append(_ENTRY_TAGS[tag])
        at = end
    return b"".join(parts)


def key_field(payload: bytes, key: BatchKey, unbatched: bool) -> bytes:
    """Return the fields of a message that has at most a string key."""
    if unbatched:
        return b"" if key is None else b"\x32" + sized(key)  # type: ignore[arg-type]
    in_key = b"" if key is None else b"\x12" + sized(key)  # type: ignore[arg-type]
    return in_key + b"\x18" + encode_number(len(payload)) + b"\x40"


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


def encode_numbered_batch(
    payloads: Sequence[bytes], fields: Sequence[bytes], sequence_ids: Sequence[int]
) -> bytes:
    """Return the body of a batch whose messages have sequence ids of their own.

    Raises LocalProtocolError for sequence ids that do not increase or are out of range.
    """
    parts: list[bytes] = []
    last = -1
    for payload, own, sequence_id in zip(payloads, fields, sequence_ids, strict=True):
        _check_sequence_id(sequence_id)
        if sequence_id <= last:
            raise LocalProtocolError(f"sequence id {sequence_id} comes after {last} in one batch")
        last = sequence_id
        digits = encode_number(sequence_id)
        parts += (_U32.pack(len(own) + len(digits)), own, digits, payload)
    return b"".join(parts)


def _is_plain(message: MessageFields) -> bool:
    return (
        message.payload is not None
        and not message.key_is_base64
        and message.ordering_key is None
        and not message.properties
        and not message.event_time
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
