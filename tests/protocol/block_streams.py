"""Streams of MESSAGE frames, and their rows from block decoders and opened one by one."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from pulsar_spark.engine.codecs import compress, decompress
from pulsar_spark.engine.consumers.entries import EntryDecoder
from pulsar_spark.engine.consumers.reader import take_opened
from pulsar_spark.errors import PulsarError
from pulsar_spark.protocol import block_columns
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.batches import message_key
from pulsar_spark.protocol.blocks import (
    DONE,
    END,
    FULL,
    SLOW,
    BlockDecoder,
    BlockOptions,
    Columns,
    Decompress,
)
from pulsar_spark.protocol.frame_parts import ReceivedEntry
from pulsar_spark.protocol.frames import MessageBlock
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, MessageIdAdv, Position
from pulsar_spark.protocol.validation import as_text
from pulsar_spark.schema.arrow.kernel_columns import arrow_buffer

TOPIC = "persistent://public/default/t-partition-3"
PARTITION = 3
LEDGER = 77
LIMIT = 1 << 20
TIME = 1_700_000_000_123

COLUMNS = frozenset(block_columns.COLUMNS)
USUAL = frozenset({"value", "key", "message_id", "publish_time", "event_time", "properties"})

MakeDecoder = Callable[[BlockOptions, Decompress], BlockDecoder]


def options(columns: Iterable[str] = COLUMNS, **fields: Any) -> BlockOptions:
    """Return options with usual limits."""
    fields = {
        "end": None,
        "max_rows": 10_000,
        "max_bytes": 4 << 20,
        "max_payload": LIMIT,
        "partition": PARTITION,
        **fields,
    }
    return BlockOptions(TOPIC, columns=frozenset(columns), **fields)


# --- streams ------------------------------------------------------------------------------


def metadata(payload: bytes | None = b"", **fields: Any) -> tuple[pb.SingleMessageMetadata, bytes]:
    """Return a message of a batch; None is a null value."""
    properties = fields.pop("properties", ())
    fields.setdefault("payload_size", len(payload or b""))
    found = pb.SingleMessageMetadata(**fields)
    for key, value in properties:
        found.properties.add(key=key, value=value)
    if payload is None:
        found.null_value = True
    return found, payload or b""


def body(messages: Sequence[tuple[pb.SingleMessageMetadata, bytes]]) -> bytes:
    """Return the body of a batch."""
    parts: list[bytes] = []
    for found, payload in messages:
        encoded = found.SerializeToString()
        parts += [struct.pack(">I", len(encoded)), encoded, payload]
    return b"".join(parts)


def entry(
    entry_id: int,
    content: bytes | Sequence[tuple[pb.SingleMessageMetadata, bytes]] | None,
    *,
    consumer_id: int = 3,
    ledger_id: int = LEDGER,
    partition: int | None = -1,
    redelivery_count: int | None = None,
    consumer_epoch: int | None = None,
    ack_set: Sequence[int] = (),
    index: int | None = None,
    broker_timestamp: int | None = None,
    codec: int = pb.NONE,
    **fields: Any,
) -> bytes:
    """Return the MESSAGE frame of an entry: a message, a null value (None), or a batch."""
    properties = fields.pop("properties", ())
    fields.setdefault("producer_name", "standalone-0-28")
    fields.setdefault("sequence_id", entry_id)
    fields.setdefault("publish_time", TIME)
    if content is None:
        fields["null_value"] = True
        content = b""
    if not isinstance(content, bytes):
        fields.setdefault("num_messages_in_batch", len(content))
        content = body(content)
    if codec != pb.NONE:
        fields.setdefault("uncompressed_size", len(content))
        fields["compression"] = codec
        content = bytes(compress(codec, content))
    found = pb.MessageMetadata(**fields)
    for key, value in properties:
        found.properties.add(key=key, value=value)
    command = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
    command.message.consumer_id = consumer_id
    message_id = command.message.message_id
    message_id.ledgerId, message_id.entryId = ledger_id, entry_id
    if partition is not None:
        message_id.partition = partition
    if redelivery_count is not None:
        command.message.redelivery_count = redelivery_count
    if consumer_epoch is not None:
        command.message.consumer_epoch = consumer_epoch
    command.message.ack_set.extend(ack_set)
    broker_metadata = None
    if index is not None or broker_timestamp is not None:
        broker_metadata = pb.BrokerEntryMetadata(index=index, broker_timestamp=broker_timestamp)
    return frame(
        command.SerializeToString(),
        found.SerializeToString(),
        content,
        None if broker_metadata is None else broker_metadata.SerializeToString(),
    )


def frame(
    command: bytes, found: bytes, payload: bytes, broker_metadata: bytes | None = None
) -> bytes:
    """Return a frame with the right sizes and checksum."""
    checked = struct.pack(">I", len(found)) + found + payload
    rest = struct.pack(">HI", 0x0E01, crc32c(checked)) + checked
    if broker_metadata is not None:
        rest = struct.pack(">HI", 0x0E02, len(broker_metadata)) + broker_metadata + rest
    return struct.pack(">II", len(command) + 4 + len(rest), len(command)) + command + rest


def frames(stream: bytes) -> list[bytes]:
    """Return the frames of a stream."""
    found: list[bytes] = []
    at = 0
    while at < len(stream):
        end = at + 4 + int.from_bytes(stream[at : at + 4], "big")
        found.append(stream[at:end])
        at = end
    return found


# --- what came of them --------------------------------------------------------------------


@dataclass
class Outcome:
    """The result of reading a stream: a table, errors by the offset of their frames, and more.

    `messages` is the permits of all frames, `slow` the offsets of those that are opened.
    """

    columns: frozenset[str]
    pieces: list[dict[str, pa.Array]] = field(default_factory=list)
    errors: list[tuple[int, str, str]] = field(default_factory=list)
    messages: int = 0
    position: Position = EARLIEST_POSITION
    ended: bool = False
    slow: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def table(self) -> dict[str, pa.Array]:
        """The rows, by column."""
        return {
            name: pa.concat_arrays([piece[name] for piece in self.pieces])
            for name in (sorted(self.columns) if self.pieces else ())
        }

    def rows(self) -> list[dict[str, Any]]:
        """The rows as Python objects."""
        table = {name: column.to_pylist() for name, column in self.table().items()}
        return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]

    def column(self, name: str) -> list[Any]:
        """The values of a column."""
        table = self.table()
        return table[name].to_pylist() if table else []

    def same_as(self, other: Outcome) -> None:
        """Assert that reading the stream in another way gave the same."""
        assert self.errors == other.errors
        assert self.messages == other.messages
        assert self.position == other.position
        assert self.ended == other.ended
        mine, theirs = self.table(), other.table()
        assert mine.keys() == theirs.keys()
        for name, column in mine.items():
            if not column.equals(theirs[name]):
                assert column.to_pylist() == theirs[name].to_pylist(), name
                assert column.type == theirs[name].type


class _Opener:
    """The reference for decoders: all entries one by one, all messages one by one."""

    def __init__(self, wanted: BlockOptions, start: Position, outcome: Outcome) -> None:
        end = None if wanted.end is None else Position(*wanted.end)
        self.decoder = EntryDecoder(TOPIC, start, end, wanted.max_payload)
        self._wanted = wanted
        self._outcome = outcome

    def open(self, data: bytes, at: int, end: int) -> ReceivedEntry | None:
        """Open a frame's entry, None if nothing of it is wanted; note an error, and the end."""
        outcome, decoder = self._outcome, self.decoder
        try:
            frame, _ = MessageBlock(3, data, at, end, 1).frame(at)
            found, place = decoder.decode(frame), frame.command.message.message_id
            if decoder.finished and ((place.ledgerId, place.entryId) >= decoder.position[:2]):
                outcome.ended = True
                return None
            outcome.messages += decoder.messages
            return found
        except PulsarError as error:
            outcome.errors.append((at, type(error).__name__, str(error)))
        return None

    def take(self, data: bytes, at: int, end: int) -> bool:
        """Take a frame; return False at the end of the range."""
        entry, wanted = self.open(data, at, end), self._wanted
        if entry is not None and _is_published_within(entry, wanted):
            try:
                rows = _rows(entry, wanted.columns)
            except PulsarError as error:
                place = MessageIdAdv(entry.ledger_id, entry.entry_id, entry.partition)
                found = error.with_context(topic=TOPIC, message_id=place)
                self._outcome.errors.append((at, type(error).__name__, str(found)))
            else:
                if rows:
                    self._outcome.pieces.append(
                        {
                            name: pa.array([row[name] for row in rows], TYPES[name])
                            for name in wanted.columns
                        }
                    )
        return not self._outcome.ended


def _is_published_within(entry: ReceivedEntry, wanted: BlockOptions) -> bool:
    time, since, before = (
        entry.metadata.publish_time,
        wanted.published_from,
        wanted.published_before,
    )
    return (since is None or time >= since) and (before is None or time < before)


def _rows(entry: ReceivedEntry, columns: Iterable[str]) -> list[dict[str, Any]]:
    """Return what each wanted message of an entry has in each column."""
    told = entry.metadata
    if not entry.is_batch:
        return [_row(entry, told, entry.payload, -1, told.sequence_id, columns)]
    batch = entry.unpack()
    if "key" in columns:
        # A key that cannot be read is an error of the whole batch.
        for own in batch.metadata():
            message_key(own)
    rows = []
    for index in entry.wanted:
        own = batch.metadata_of(index)
        if not own.compacted_out:
            has_own = own.HasField("sequence_id")
            sequence_id = own.sequence_id if has_own else told.sequence_id + index
            rows.append(_row(entry, own, batch.payload(index), index, sequence_id, columns))
    return rows


def _row(
    entry: ReceivedEntry,
    own: Any,
    payload: Any,
    index: int,
    sequence_id: int,
    columns: Iterable[str],
) -> dict[str, Any]:
    told, stamp = entry.metadata, entry.broker_entry_metadata
    count = told.num_messages_in_batch if entry.is_batch else 0
    place = MessageIdAdv(
        entry.ledger_id, entry.entry_id, PARTITION, index, count, entry.first_chunk
    )
    broker_index = None
    if stamp is not None and stamp.HasField("index"):
        broker_index = _signed(stamp.index - (count - 1 - index if count else 0))
    return {
        "value": None if own.null_value else bytes(payload),
        "key": message_key(own) if "key" in columns else None,
        "message_id": place.serialize(),
        "publish_time": min(told.publish_time, _LAST_MILLIS) * 1000,
        "event_time": min(own.event_time, _LAST_MILLIS) * 1000 or None,
        "properties": list({as_text(p.key): as_text(p.value) for p in own.properties}.items()),
        "ledger_id": entry.ledger_id,
        "entry_id": entry.entry_id,
        "batch_index": index,
        "producer_name": as_text(told.producer_name),
        "sequence_id": _signed(sequence_id),
        "ordering_key": own.ordering_key if own.HasField("ordering_key") else None,
        "schema_version": told.schema_version or None,
        "redelivery_count": entry.redelivery_count,
        "size": len(payload),
        "index": broker_index,
        "replicated_from": (
            as_text(told.replicated_from) if told.HasField("replicated_from") else None
        ),
    }


_LAST_MILLIS = 253_402_300_799_999


def _signed(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def opened(stream: bytes, wanted: BlockOptions, start: Position = EARLIEST_POSITION) -> Outcome:
    """Read a stream by opening each entry."""
    outcome = Outcome(wanted.columns)
    path = _Opener(wanted, start, outcome)
    at = 0
    while at < len(stream):
        end = at + 4 + int.from_bytes(stream[at : at + 4], "big")
        if not path.take(stream, at, end):
            break
        at = end
    outcome.position = path.decoder.position
    return outcome


def blockwise(
    make: MakeDecoder, stream: bytes, wanted: BlockOptions, start: Position = EARLIEST_POSITION
) -> Outcome:
    """Read a stream in blocks; SLOW frames are opened first."""
    outcome = Outcome(wanted.columns)
    path = _Opener(wanted, start, outcome)
    decoder = make(wanted, decompress)
    at, position = 0, start
    while True:
        before = position
        at, status, messages, place = decoder.decode(stream, at, len(stream), position)
        position = Position(*place)
        outcome.messages += messages
        if status == FULL:
            # Of messages that compaction has removed there are no rows.
            assert _take(decoder, outcome) or position > before
            continue
        if status != SLOW:
            assert status != DONE or at == len(stream)
            outcome.ended = status == END
            break
        outcome.slow.append(at)
        path.decoder.position = position
        end = at + 4 + int.from_bytes(stream[at : at + 4], "big")
        entry = path.open(stream, at, end)
        if outcome.ended:
            break
        if entry is not None:
            try:
                for columns in take_opened(entry, position, decoder):
                    _add(columns, outcome)
            except PulsarError as error:
                outcome.errors.append((at, type(error).__name__, str(error)))
        at, position = end, path.decoder.position
    _take(decoder, outcome)
    outcome.position = position
    return outcome


def _take(decoder: BlockDecoder, outcome: Outcome) -> bool:
    columns = decoder.take()
    assert decoder.rows == 0
    if columns is None:
        return False
    _add(columns, outcome)
    return True


def _add(columns: Columns, outcome: Outcome) -> None:
    outcome.sizes.append(columns.rows)
    outcome.pieces.append(arrays(columns, outcome.columns))
    if "message_id" in outcome.columns:
        _check_ids(columns, outcome.pieces[-1]["message_id"])


def _check_ids(columns: Columns, ids: pa.Array) -> None:
    for row in {0, columns.rows // 2, columns.rows - 1}:
        ledger_id, entry_id, index, count = columns.locate(row)
        expected = MessageIdAdv(ledger_id, entry_id, PARTITION, index, count).serialize()
        # The id of a message in chunks goes on.
        assert ids[row].as_py()[: len(expected)] == expected


# --- buffers as arrays --------------------------------------------------------------------

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_FIXED = {
    "publish_time": _TIMESTAMP,
    "event_time": _TIMESTAMP,
    "ledger_id": pa.int64(),
    "entry_id": pa.int64(),
    "batch_index": pa.int32(),
    "sequence_id": pa.int64(),
    "redelivery_count": pa.int32(),
    "size": pa.int32(),
    "index": pa.int64(),
}
_TEXT = {"producer_name", "replicated_from"}
TYPES: dict[str, pa.DataType] = {
    **dict.fromkeys(COLUMNS, pa.binary()),
    **dict.fromkeys(_TEXT, pa.string()),
    **_FIXED,
    "properties": pa.map_(pa.string(), pa.string()),
}


def arrays(columns: Columns, wanted: Iterable[str]) -> dict[str, pa.Array]:
    """Return the columns as fully validated Arrow arrays."""
    found: dict[str, pa.Array] = {}
    assert columns.columns.keys() == set(wanted)
    for name, column in columns.columns.items():
        if name in _FIXED:
            found[name] = _fixed(_FIXED[name], columns.rows, *column)
        elif name == "properties":
            offsets, keys, texts = column
            count = _int32(offsets)[-1]
            found[name] = pa.MapArray.from_arrays(
                _fixed(pa.int32(), columns.rows + 1, None, offsets, 0),
                _binary(pa.string(), count, *keys),
                _binary(pa.string(), count, *texts),
            )
        else:
            kind = pa.string() if name in _TEXT else pa.binary()
            found[name] = _binary(kind, columns.rows, *column)
        found[name].validate(full=True)
        assert len(found[name]) == columns.rows
    return found


def _int32(offsets: Any) -> memoryview[int]:
    return memoryview(offsets).cast("B").cast("i")


def _fixed(kind: pa.DataType, rows: int, validity: Any, data: Any, nulls: int) -> pa.Array:
    found = pa.Array.from_buffers(kind, rows, [_buffer(validity), _buffer(data)])
    assert found.null_count == nulls
    return found


def _binary(
    kind: pa.DataType, rows: int, validity: Any, offsets: Any, data: Any, nulls: int
) -> pa.Array:
    buffers = [_buffer(validity), _buffer(offsets), _buffer(data)]
    found = pa.Array.from_buffers(kind, rows, buffers)
    assert found.null_count == nulls
    return found


def _buffer(data: Any) -> pa.Buffer | None:
    return None if data is None else arrow_buffer(data)
