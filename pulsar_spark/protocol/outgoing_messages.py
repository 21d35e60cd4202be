"""Messages to send: one with all that it can have, and columns of many.

A message's fields become bytes when it joins a column: `encode_fields`. They are fields of
MessageMetadata, in the order of their tags; `send_encoder` gives them to entries and batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from pulsar_spark.errors import InvalidRow, WrongType
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.byte_column import ByteColumn, edges_of
from pulsar_spark.protocol.commands import TxnId

T = TypeVar("T")

BROKERS_OWN = frozenset({"__MSG_PROP_REPL_SOURCE_POSITION"})
"""Names of properties that are never sent: brokers put them into replicated messages.

Where a broker replicates a message that has one already, the other cluster takes its value for the
message's place, and drops the message as a duplicate.
"""

LOCAL_ONLY = ("__local__",)
"""What brokers read as "replicate to no other cluster"."""

_MAX_LONG = 2**63 - 1
# Roughly what a message needs in a batch besides payload, key and fields.
_PER_MESSAGE = 16


@dataclass(slots=True)
class MessageFields:
    """A message to write.

    `payload` None is a null value, properties in `BROKERS_OWN` are not sent, `event_time` and
    `deliver_at` 0 (milliseconds) mean none. With `key_is_base64`, `key` is the base64 text of a
    bytes key. `null_key` marks the missing key of a KEY_VALUE message with separate encoding.
    `sequence_id` is a user's own.
    """

    payload: bytes | None
    key: str | None = None
    key_is_base64: bool = False
    ordering_key: bytes | None = None
    properties: Sequence[tuple[str, str]] = ()
    event_time: int = 0
    sequence_id: int | None = None
    null_key: bool = False
    deliver_at: int = 0
    replicate_to: Sequence[str] = ()
    txn: TxnId | None = None

    @property
    def has_fields(self) -> bool:
        """Whether it has more than a payload and a key that is text."""
        return bool(
            self.properties
            or self.event_time
            or self.key_is_base64
            or self.ordering_key is not None
            or self.payload is None
            or self.null_key
            or self.goes_alone
        )

    @property
    def goes_alone(self) -> bool:
        """Whether it has what only an entry can have, so that it is not batched."""
        return bool(self.deliver_at or self.replicate_to or self.txn)


def encode_fields(message: MessageFields) -> tuple[bytes | None, bytes]:
    """Return a message's key and its fields for columns.

    Raises InvalidRow for a value out of range or text that is not valid Unicode, and WrongType.
    """
    try:
        key = None if message.key is None else message.key.encode()
        if message.sequence_id is not None:
            _check_long(message.sequence_id, "sequence id")
        if not message.has_fields:
            return key, b""
        metadata = pb.MessageMetadata()
        _add_properties(metadata, message.properties)
        if message.event_time:
            _check_long(message.event_time, "time in milliseconds")
            metadata.event_time = message.event_time
        if message.key_is_base64 and key is not None:
            metadata.partition_key_b64_encoded = True
        if message.ordering_key is not None:
            metadata.ordering_key = message.ordering_key
        if message.payload is None:
            metadata.null_value = True
        if message.null_key:
            metadata.null_partition_key = True
        if message.goes_alone:
            metadata.replicate_to.extend(message.replicate_to)
            if message.deliver_at:
                _check_long(message.deliver_at, "time in milliseconds")
                metadata.deliver_at_time = message.deliver_at
            if message.txn is not None:
                metadata.txnid_least_bits = message.txn.least_bits
                metadata.txnid_most_bits = message.txn.most_bits
        return key, metadata.SerializePartialToString()
    except (AttributeError, TypeError, ValueError) as error:
        kind = InvalidRow if isinstance(error, ValueError) else WrongType
        raise kind(
            f"a message's key, property, time or id cannot be sent: {error}",
            "Keys and properties are text that UTF-8 can express, times and ids are not negative.",
        ) from None


def _add_properties(metadata: pb.MessageMetadata, properties: Sequence[tuple[str, str]]) -> None:
    for name, value in properties:
        # protobuf would leave it out, and nobody could read the message.
        if None in (name, value):
            raise TypeError(f"the property {name!r} is {value!r}")
        if name not in BROKERS_OWN:
            metadata.properties.add(key=name, value=value)


def _check_long(value: int, what: str) -> None:
    if not 0 <= value <= _MAX_LONG:
        raise ValueError(f"{value} is no {what}")


def fields_in_batch(fields: bytes) -> pb.SingleMessageMetadata:
    """Return a message's fields as those that it has in a batch."""
    metadata = pb.SingleMessageMetadata()
    _copy_fields(pb.MessageMetadata.FromString(fields), metadata)
    return metadata


def fields_outside(metadata: pb.SingleMessageMetadata) -> tuple[bytes | None, bytes]:
    """Return the key and the fields of a message in a batch: the other way round."""
    own = pb.MessageMetadata()
    _copy_fields(metadata, own)
    key = metadata.partition_key.encode() if metadata.HasField("partition_key") else None
    return key, own.SerializePartialToString()


_Metadata: TypeAlias = pb.MessageMetadata | pb.SingleMessageMetadata


def _copy_fields(metadata: _Metadata, into: _Metadata) -> None:
    into.properties.extend(metadata.properties)
    if metadata.HasField("event_time"):
        into.event_time = metadata.event_time
    if metadata.HasField("ordering_key"):
        into.ordering_key = metadata.ordering_key
    for flag in ("partition_key_b64_encoded", "null_value", "null_partition_key"):
        if getattr(metadata, flag):
            setattr(into, flag, True)


# Fields that decide, beside the key, to which consumer of a Key_Shared subscription a message goes,
# begin so: a flag with its value, and a tag.
_IS_BASE64, _ORDERING_KEY = b"\x88\x01\x01", b"\x92\x01"


@dataclass(slots=True)
class OutgoingMessages:
    """Messages as columns: payloads, and perhaps keys, fields, users' own ids.

    Columns are lists, or a ByteColumn of what is not extended. A key is text in UTF-8, None if
    there is none; see `encode_fields` for `fields`. A null value's payload is empty. Messages whose
    `alone` is true are not batched. `callbacks` are the sender's own.
    """

    payloads: Sequence[bytes]
    keys: Sequence[bytes | None] | None = None
    fields: Sequence[bytes] | None = None
    sequence_ids: Sequence[int] | None = None
    alone: Sequence[bool] | None = None
    callbacks: list[Any] | None = None
    _edges: Sequence[int] = field(default=(), init=False, repr=False, compare=False)

    @classmethod
    def of(cls, messages: Sequence[MessageFields]) -> OutgoingMessages:
        """Return messages as columns; raises as `encode_fields`. All or none have own ids."""
        columns = cls([])
        for message in messages:
            columns.append(message.payload or b"", *encode_fields(message), message.sequence_id)
        if any(message.goes_alone for message in messages):
            columns.alone = [message.goes_alone for message in messages]
        return columns

    def __len__(self) -> int:
        return len(self.payloads)

    def part(self, start: int, stop: int) -> OutgoingMessages:
        """Return a range of the messages."""
        if start == 0 and stop >= len(self.payloads):
            return self
        return self.copy(start, stop)

    def copy(self, start: int, stop: int) -> OutgoingMessages:
        """Return a range of the messages, in columns that do not grow with these."""
        return self._with_each(lambda column: column[start:stop])

    def take(self, rows: Sequence[int]) -> OutgoingMessages:
        """Return some of the messages."""

        def take(column: Sequence[Any]) -> list[Any]:
            if isinstance(column, ByteColumn):
                return column.take(rows)
            return list(map(column.__getitem__, rows))

        return self._with_each(take)

    def _with_each(self, change: Callable[[Sequence[Any]], Sequence[Any]]) -> OutgoingMessages:
        columns = (self.keys, self.fields, self.sequence_ids, self.alone, self.callbacks)
        others: list[Any] = [None if column is None else change(column) for column in columns]
        return OutgoingMessages(change(self.payloads), *others)

    def append(
        self, payload: bytes, key: bytes | None, fields: bytes, sequence_id: int | None
    ) -> None:
        """Append a message without a callback; the columns are lists, all or none have own ids."""
        if key is not None and self.keys is None:
            self.keys = [None] * len(self)
        if fields and self.fields is None:
            self.fields = [b""] * len(self)
        if sequence_id is not None and self.sequence_ids is None:
            self.sequence_ids = []
        self.payloads.append(payload)  # type: ignore[attr-defined]
        if self.keys is not None:
            self.keys.append(key)  # type: ignore[attr-defined]
        if self.fields is not None:
            self.fields.append(fields)  # type: ignore[attr-defined]
        if self.sequence_ids is not None:
            self.sequence_ids.append(sequence_id)  # type: ignore[attr-defined]

    def extend(self, other: OutgoingMessages) -> None:
        """Append messages without own ids; this one's columns are lists."""
        counts = len(self), len(other)
        self.callbacks = _joined(self.callbacks, other.callbacks, counts, None)
        self.keys = _joined(self.keys, other.keys, counts, None)
        self.fields = _joined(self.fields, other.fields, counts, b"")
        self.payloads += other.payloads  # type: ignore[operator]

    def groups(self, start: int, stop: int) -> Sequence[object]:
        """Return what each message shares with those of its batch, with batching by key.

        It decides to which consumer of a Key_Shared subscription the message goes.
        """
        keys = [None] * (stop - start) if self.keys is None else self.keys[start:stop]
        if self.fields is None:
            return keys
        return list(map(_group, keys, self.fields[start:stop]))

    def edges(self) -> Sequence[int]:
        """Return where messages would start one after the other, and where the last one ends.

        Of each its payload counts, its key and its fields. The first need not start at 0.
        """
        # There are only ever more messages.
        if len(self._edges) != len(self.payloads) + 1:
            columns = (self.payloads, self.keys, self.fields)
            self._edges = edges_of([column for column in columns if column is not None])
        return self._edges

    def size(self, start: int, stop: int) -> int:
        """Return the size of a range of messages: payloads, keys and fields."""
        edges = self.edges()
        return edges[stop] - edges[start]

    def batch_size(self, start: int, stop: int) -> int:
        """Return roughly the size of a batch of a range of messages, before compression."""
        return self.size(start, stop) + _PER_MESSAGE * (stop - start)

    def fitting(self, start: int, stop: int, most: int) -> int:
        """Return where the messages from `start` on end that fit into a batch of `most` bytes.

        There is at least one, however large.
        """
        if self.batch_size(start, stop) <= most:
            return stop
        sizes = range(start + 1, stop + 1)
        found = bisect_right(sizes, most, key=lambda end: self.batch_size(start, end))
        return start + max(found, 1)

    def alike(self, start: int) -> tuple[int, bool]:
        """Return where messages that are alone, or are not, end from `start` on, and which."""
        if self.alone is None:
            return len(self), False
        is_alone = self.alone[start]
        others = (at for at in range(start, len(self)) if self.alone[at] is not is_alone)
        return next(others, len(self)), is_alone


def _group(key: bytes | None, fields: bytes) -> object:
    if _ORDERING_KEY not in fields and _IS_BASE64 not in fields:
        return key
    metadata = pb.MessageMetadata.FromString(fields)
    if metadata.HasField("ordering_key"):
        return "ordering key", metadata.ordering_key
    return ("bytes", key) if metadata.partition_key_b64_encoded else key


def _joined(
    column: Sequence[T] | None, more: Sequence[T] | None, counts: tuple[int, int], missing: T
) -> list[T] | None:
    """Return a list, extended by another column; either may be missing."""
    if column is None and more is None:
        return None
    mine: list[T] = [missing] * counts[0] if column is None else column  # type: ignore[assignment]
    mine += [missing] * counts[1] if more is None else more
    return mine


def message_size(payload: bytes, key: bytes | None, fields: bytes) -> int:
    """Return what a message adds to `batch_size`."""
    return len(payload) + len(fields) + _PER_MESSAGE + (0 if key is None else len(key))
