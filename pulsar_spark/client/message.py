"""Messages and their ids as users of `PulsarClient` see them, as in the official client."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from functools import total_ordering
from typing import Any, ClassVar

from pulsar_spark.client.encryption import EncryptionContext
from pulsar_spark.client.values import AnyMetadata, MessageValues, checked, key_of
from pulsar_spark.engine.consumers.rows import ReceivedRows
from pulsar_spark.errors import CorruptMessage, InvalidMessageId, PulsarError
from pulsar_spark.protocol import message_id as wire
from pulsar_spark.protocol.frame_parts import ReceivedEntry
from pulsar_spark.protocol.validation import as_text


@total_ordering
class MessageId:
    """Where a message is stored. Ids of one topic partition are ordered as its messages are.

    `earliest` and `latest` stand for the ends of a topic. Raises InvalidMessageId for numbers that
    no id can have.
    """

    __slots__ = ("_id", "_topic")

    earliest: ClassVar[MessageId]
    latest: ClassVar[MessageId]

    def __init__(
        self, partition: int = -1, ledger_id: int = -1, entry_id: int = -1, batch_index: int = -1
    ) -> None:
        given = ledger_id, entry_id, partition, batch_index
        try:
            ledger_id, entry_id, partition, batch_index = map(operator.index, given)
        except TypeError:
            raise InvalidMessageId(f"{given} are not the whole numbers of a message id") from None
        self._id = wire.MessageIdAdv(ledger_id, entry_id, partition, batch_index)
        # Refuses numbers that are out of range.
        self._id.to_pb()
        self._topic: str | None = None

    @classmethod
    def wrap(cls, msg_id: MessageId | wire.MessageIdAdv, topic: str | None = None) -> MessageId:
        """Wrap a message id, of a message or of the protocol; `topic` is its topic partition."""
        made = cls.__new__(cls)
        if isinstance(msg_id, MessageId):
            made._id = msg_id._id
            made._topic = msg_id._topic if topic is None else topic
        else:
            made._id = msg_id
            made._topic = topic
        return made

    def unwrap(self) -> wire.MessageIdAdv:
        """Return the protocol's id."""
        return self._id

    def topic_name(self) -> str | None:
        """The full name of the topic partition, None if unknown."""
        return self._topic

    def ledger_id(self) -> int:
        """The ledger in which the message is stored."""
        return self._id.ledger_id

    def entry_id(self) -> int:
        """The entry within the ledger."""
        return self._id.entry_id

    def batch_index(self) -> int:
        """The index within the batch, -1 if the message is not in a batch."""
        return self._id.batch_index

    def partition(self) -> int:
        """The partition's number, -1 if the topic is not partitioned."""
        return self._id.partition

    def serialize(self) -> bytes:
        """Return bytes that every Pulsar client's `deserialize` turns back into this id."""
        return self._id.serialize()

    @staticmethod
    def deserialize(message_id_bytes: bytes, topic: str | None = None) -> MessageId:
        """Return the id that `serialize` encoded; raises InvalidMessageId for other bytes."""
        if not isinstance(message_id_bytes, bytes | bytearray | memoryview):
            raise InvalidMessageId(
                f"a message id is in bytes, not in a {type(message_id_bytes).__name__}",
                "Give what serialize() returned.",
            )
        made = MessageId.wrap(wire.MessageIdAdv.deserialize(message_id_bytes))
        made._topic = topic
        return made

    def _key(self) -> tuple[int, int, int, int]:
        found = self._id
        return found.ledger_id, found.entry_id, found.batch_index, found.partition

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, MessageId) else NotImplemented

    def __lt__(self, other: MessageId) -> bool:
        return self._key() < other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        found = self._id
        return f"({found.ledger_id},{found.entry_id},{found.partition},{found.batch_index})"

    __repr__ = __str__


MessageId.earliest = MessageId.wrap(wire.EARLIEST)
MessageId.latest = MessageId.wrap(wire.LATEST)


class Message:
    """A received message. A missing key is empty, a missing time 0.

    Bytes of a producer's text that are not UTF-8 become replacement characters.
    """

    __slots__ = ("_entry", "_index", "_values")

    def __init__(
        self, entry: ReceivedEntry, index: int, values: MessageValues | _SharedValues
    ) -> None:
        self._entry = entry
        # Its index in a batch, -1 outside of one.
        self._index = index
        self._values = values

    def fields(self) -> AnyMetadata:
        """The message's own metadata."""
        return self._entry.fields(self._index)

    def data(self) -> bytes:
        """The payload, empty for a null value."""
        entry, index = self._entry, self._index
        return bytes(entry.payload if index < 0 else entry.unpack().payload(index))

    def value(self) -> Any:
        """The value, decoded with the schema version that it was written with.

        With a definition, None for a null value. Raises CorruptMessage that names the field that
        cannot be decoded, and SchemaMismatch if that version cannot be read with the schema.
        """
        return self._values.of(self)

    def has_null_value(self) -> bool:
        """Whether the value is null: a tombstone on a compacted topic."""
        return self.fields().null_value

    def properties(self) -> dict[str, str]:
        """The properties; if a name occurs twice, its first value."""
        found: dict[str, str] = {}
        for pair in self.fields().properties:
            found.setdefault(as_text(pair.key), as_text(pair.value))
        return found

    def partition_key(self) -> str:
        """The key; a binary key as base64 text."""
        return as_text(self.fields().partition_key)

    def ordering_key(self) -> str:
        """The ordering key as text; bytes that are not UTF-8 become lone surrogates."""
        return self.fields().ordering_key.decode("utf-8", "surrogateescape")

    def publish_timestamp(self) -> int:
        """When the producer sent it, in milliseconds since the epoch."""
        return self._entry.metadata.publish_time

    def event_timestamp(self) -> int:
        """The event time, in milliseconds since the epoch."""
        return self.fields().event_time

    def message_id(self) -> MessageId:
        """Where it is stored."""
        return MessageId.wrap(self._entry.message_id(self._index), self._entry.topic)

    def topic_name(self) -> str:
        """The full name of the topic or partition."""
        return self._entry.topic

    def redelivery_count(self) -> int:
        """How often it was delivered before."""
        return self._entry.redelivery_count

    def schema_version(self) -> str:
        """The schema version that it was written with, one character per byte."""
        return self.version_bytes().decode("latin-1")

    def version_bytes(self) -> bytes:
        """The schema version as the broker encodes it, empty if there is none."""
        return self._entry.metadata.schema_version

    def producer_name(self) -> str:
        """The producer's name."""
        return as_text(self._entry.metadata.producer_name)

    def encryption_context(self) -> EncryptionContext | None:
        """How it was encrypted, None if it was not."""
        metadata = self._entry.metadata
        if not metadata.encryption_keys:
            return None
        return EncryptionContext(metadata, failed=self._entry.undecrypted)

    def _place(self) -> int:
        """Its place among those that were received together."""
        return self._index

    def __repr__(self) -> str:
        place = self.message_id().unwrap()
        return f"Message({self.topic_name()!r}, {place}, {len(self.data())} bytes)"


class _RowMessage(Message):
    """A message received together with others: its fields are read from their columns.

    Fields without a column are read from its entry.
    """

    __slots__ = ("_row", "_rows")

    def __init__(self, rows: ReceivedRows, row: int, values: MessageValues | _SharedValues) -> None:
        self._rows = rows
        self._row = row
        self._values = values

    @property
    def _entry(self) -> ReceivedEntry:  # type: ignore[override]
        return self._rows.entry(self._row)

    @property
    def _index(self) -> int:  # type: ignore[override]
        return self._rows.batch_index(self._row)

    def _place(self) -> int:
        return self._row

    def data(self) -> bytes:
        """The payload, empty for a null value."""
        rows, row = self._rows, self._row
        offsets = rows.offsets
        return rows.payloads[offsets[row] : offsets[row + 1]]

    def message_id(self) -> MessageId:
        """Where it is stored."""
        return _RowMessageId(self._rows, self._row)

    def topic_name(self) -> str:
        """The full name of the topic or partition."""
        return self._rows.topic

    def has_null_value(self) -> bool:
        """Whether the value is null: a tombstone on a compacted topic."""
        return self._rows.is_null(self._row)

    def properties(self) -> dict[str, str]:
        """The properties; if a name occurs twice, its first value."""
        # Of two values of a name, columns have the last one.
        return super().properties() if self._row in self._rows.with_properties else {}

    def partition_key(self) -> str:
        """The key; a binary key as base64 text."""
        key = self._rows.keys[self._row]
        return super().partition_key() if key is None else key

    def publish_timestamp(self) -> int:
        """When the producer sent it, in milliseconds since the epoch."""
        time = self._rows.publish_times[self._row]
        return super().publish_timestamp() if time is None else time

    def event_timestamp(self) -> int:
        """The event time, in milliseconds since the epoch."""
        time = self._rows.event_times[self._row]
        return super().event_timestamp() if time is None else time

    def version_bytes(self) -> bytes:
        """The schema version as the broker encodes it, empty if there is none."""
        return self._rows.schema_version(self._row)


class _RowMessageId(MessageId):
    """The id of a message received together with others."""

    __slots__ = ("_row", "_rows")

    def __init__(self, rows: ReceivedRows, row: int) -> None:
        self._rows = rows
        self._row = row

    @property
    def _id(self) -> wire.MessageIdAdv:  # type: ignore[override]
        return self._rows.message_id(self._row)

    @property
    def _topic(self) -> str | None:  # type: ignore[override]
        return self._rows.topic

    def serialize(self) -> bytes:
        """Return bytes that every Pulsar client's `deserialize` turns back into this id."""
        return self._rows.serialized_ids[self._row]

    def __reduce__(self) -> tuple[Any, ...]:
        return MessageId.wrap, (self._id, self._topic)


class _SharedValues:
    """The values of messages received together.

    All of one version are decoded when the first is accessed.
    """

    __slots__ = ("_found", "_source", "_values")

    def __init__(self, source: ReceivedEntry | ReceivedRows, values: MessageValues) -> None:
        self._source = source
        self._values = values
        self._found: dict[bytes, dict[int, Any]] = {}

    def of(self, message: Message) -> Any:
        """As `MessageValues.of`, for one of the messages."""
        version = message.version_bytes()
        try:
            if (found := self._found.get(version)) is None:
                # Two threads at the same time may both decode it.
                found = self._found[version] = self._decoded(version)
            return checked(found[message._place()])
        except PulsarError as error:
            place = message.message_id()
            raise error.with_context(topic=self._source.topic, message_id=place) from None

    def _decoded(self, version: bytes) -> dict[int, Any]:
        source = self._source
        own: Sequence[int]
        if isinstance(source, ReceivedRows):
            own = [row for row in range(source.rows) if source.schema_version(row) == version]
            payloads = [None if source.is_null(row) else source.payload(row) for row in own]
        else:
            batch = source.unpack()
            own = range(batch.count)
            payloads = [None if value is None else bytes(value) for value in batch.values()]
        found = self._values.decode(
            source.topic, version, payloads, lambda: [key_of(source.fields(each)) for each in own]
        )
        return dict(zip(own, found, strict=True))


def messages_of_rows(rows: ReceivedRows, values: MessageValues) -> list[Message]:
    """Return the messages of some rows."""
    shared = _SharedValues(rows, values) if values.decodes else values
    return [_RowMessage(rows, row, shared) for row in range(rows.rows)]


def messages_of(
    entry: ReceivedEntry, values: MessageValues, left: int | None = None
) -> Iterator[Message]:
    """Yield an entry's messages whose bits are set in `left`.

    Raises CorruptBatch if a batch does not hold as many messages as it claims.
    """
    if not entry.is_batch:
        # A view would keep all that was received with it.
        entry.payload = bytes(entry.payload)
        yield Message(entry, -1, values)
        return
    try:
        batch = entry.unpack()
    except CorruptMessage as error:
        place = f"{entry.ledger_id}:{entry.entry_id}"
        raise error.with_context(message_id=place) from error.__cause__
    shared = _SharedValues(entry, values) if values.decodes else values
    gone = set(batch.compacted)
    for index in entry.wanted:
        if index not in gone and (left is None or left >> index & 1):
            yield Message(entry, index, shared)
