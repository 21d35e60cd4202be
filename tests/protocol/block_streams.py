"""Streams of MESSAGE frames, and their rows from block decoders and from the careful path."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from pulsar_spark.engine.codecs import compress, decompress
from pulsar_spark.engine.consumers.entries import EntryDecoder, ReceivedEntry
from pulsar_spark.errors import PulsarError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import (
    COLUMNS,
    DONE,
    END,
    FULL,
    SLOW,
    BlockDecoder,
    BlockOptions,
    Columns,
    Decompress,
)
from pulsar_spark.protocol.frames import MessageBlock
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, MessageIdAdv, Position
from pulsar_spark.schema.table import names
from pulsar_spark.schema.table.columns import BUILDERS, NEED_METADATA, values
from pulsar_spark.schema.table.messages import arrow_buffer
from pulsar_spark.schema.table.runs import PublishTimes, Run, Runs, split_entry

TOPIC = "persistent://public/default/t-partition-3"
PARTITION = 3
LEDGER = 77
LIMIT = 1 << 20
TIME = 1_700_000_000_123

COLUMN_NAMES = {
    "value": names.VALUE,
    "key": names.KEY,
    "message_id": names.MESSAGE_ID,
    "publish_time": names.PUBLISH_TIME,
    "event_time": names.EVENT_TIME,
    "properties": names.PROPERTIES,
    "ledger_id": names.LEDGER_ID,
    "entry_id": names.ENTRY_ID,
    "batch_index": names.BATCH_INDEX,
    "producer_name": names.PRODUCER_NAME,
    "sequence_id": names.SEQUENCE_ID,
    "ordering_key": names.ORDERING_KEY,
    "schema_version": names.SCHEMA_VERSION,
    "redelivery_count": names.REDELIVERY_COUNT,
    "size": names.SIZE,
    "index": names.INDEX,
    "replicated_from": names.REPLICATED_FROM,
}
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

    `messages` is the permits of all frames, `slow` the offsets of those on the careful path.
    """

    columns: frozenset[str]
    pieces: list[dict[str, pa.Array]] = field(default_factory=list)
    errors: list[tuple[int, str, str]] = field(default_factory=list)
    messages: int = 0
    position: Position = EARLIEST_POSITION
    ended: bool = False
    slow: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    def table(self) -> dict[str, pa.Array]:
        """The rows, by column."""
        self.flush()
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

    def flush(self) -> None:
        """Build columns of the runs so far."""
        if not self.runs:
            return
        runs = Runs(TOPIC, PARTITION, self.runs)
        self.runs = []
        self.pieces.append(
            {
                name: values(runs) if name == "value" else BUILDERS[COLUMN_NAMES[name]](runs)
                for name in self.columns
            }
        )

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


class _Careful:
    """The careful path, for all entries: one by one, with protobuf."""

    def __init__(self, wanted: BlockOptions, start: Position, outcome: Outcome) -> None:
        end = None if wanted.end is None else Position(*wanted.end)
        self.decoder = EntryDecoder(TOPIC, start, end, wanted.max_payload)
        self._wanted = wanted
        self._outcome = outcome
        self._times = PublishTimes(wanted.published_from, wanted.published_before)
        needing = {COLUMN_NAMES[name] for name in wanted.columns} & NEED_METADATA
        self._with_metadata = bool(needing)

    def take(self, data: bytes, at: int, end: int) -> bool:
        """Take a frame; return False at the end of the range."""
        outcome, decoder = self._outcome, self.decoder
        try:
            message, _ = MessageBlock(3, data, at, end, 1).message(at)
            found = decoder.decode(message)
            if decoder.finished and (
                (message.command.message_id.ledgerId, message.command.message_id.entryId)
                >= decoder.position[:2]
            ):
                outcome.ended = True
                return False
            outcome.messages += decoder.messages
            if found is not None:
                self._add(found)
        except PulsarError as error:
            outcome.errors.append((at, type(error).__name__, str(error)))
        return True

    def _add(self, found: ReceivedEntry) -> None:
        if not self._times.takes(found.metadata.publish_time):
            return
        parts = split_entry(
            found, with_metadata=self._with_metadata, max_rows=10**9, max_bytes=1 << 31
        )
        for run, _ in parts:
            if run.batch is None and "key" in self._wanted.columns:
                run.single_key()
            self._outcome.runs.append(run)


def careful(stream: bytes, wanted: BlockOptions, start: Position = EARLIEST_POSITION) -> Outcome:
    """Read a stream on the careful path."""
    outcome = Outcome(wanted.columns)
    path = _Careful(wanted, start, outcome)
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
    """Read a stream in blocks, and SLOW frames on the careful path.

    The ends of the frames are known in every other stream, to judge by its last byte.
    """
    outcome = Outcome(wanted.columns)
    ends = array("I", _ends(stream)) if stream and stream[-1] % 2 else None
    path = _Careful(wanted, start, outcome)
    decoder = make(wanted, decompress)
    at, position = 0, start
    while True:
        at, status, messages, place = decoder.decode(stream, at, len(stream), position, ends)
        position = Position(*place)
        outcome.messages += messages
        if status == FULL:
            assert _take(decoder, outcome)
            continue
        if status != SLOW:
            assert status != DONE or at == len(stream)
            outcome.ended = status == END
            break
        outcome.slow.append(at)
        _take(decoder, outcome)
        path.decoder.position = position
        end = at + 4 + int.from_bytes(stream[at : at + 4], "big")
        if not path.take(stream, at, end):
            break
        outcome.flush()
        at, position = end, path.decoder.position
    _take(decoder, outcome)
    outcome.position = position
    assert decoder.slow_frames == len(outcome.slow)
    return outcome


def _ends(stream: bytes) -> Iterator[int]:
    at = 0
    while at < len(stream):
        at += 4 + int.from_bytes(stream[at : at + 4], "big")
        yield at


def _take(decoder: BlockDecoder, outcome: Outcome) -> bool:
    columns = decoder.take()
    assert decoder.rows == 0
    if columns is None:
        return False
    outcome.flush()
    outcome.sizes.append(columns.rows)
    outcome.pieces.append(arrays(columns, outcome.columns))
    if "message_id" in outcome.columns:
        _check_ids(columns, outcome.pieces[-1]["message_id"])
    return True


def _check_ids(columns: Columns, ids: pa.Array) -> None:
    for row in {0, columns.rows // 2, columns.rows - 1}:
        ledger_id, entry_id, index, count = columns.locate(row)
        expected = MessageIdAdv(ledger_id, entry_id, PARTITION, index, count).serialize()
        assert ids[row].as_py() == expected


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


def arrays(columns: Columns, wanted: Iterable[str]) -> dict[str, pa.Array]:
    """Return the columns as fully validated Arrow arrays."""
    found: dict[str, pa.Array] = {}
    for name in COLUMNS:
        column = getattr(columns, name)
        assert (column is not None) == (name in wanted), name
        if column is None:
            continue
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
