"""Entries for tests, encoded message by message with protobuf itself."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from pulsar_spark.engine.codecs import decompress
from pulsar_spark.engine.consumers.reader import take_opened
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.block_columns import COLUMNS
from pulsar_spark.protocol.blocks import BlockOptions, Columns
from pulsar_spark.protocol.frame_parts import ReceivedEntry
from pulsar_spark.protocol.implementation import make_decoder
from pulsar_spark.protocol.message_id import Position
from pulsar_spark.schema.table.record_batches import RecordBatchBuilder

TOPIC = "persistent://public/default/t-partition-3"
PARTITION = 3


def message(payload: bytes | None = b"", **fields: Any) -> tuple[pb.SingleMessageMetadata, bytes]:
    """Return one message of a batch; a payload of None is a null value."""
    properties = fields.pop("properties", ())
    metadata = pb.SingleMessageMetadata(payload_size=len(payload or b""), **fields)
    for key, value in properties:
        metadata.properties.add(key=key, value=value)
    if payload is None:
        metadata.null_value = True
    return metadata, payload or b""


def body(messages: Sequence[tuple[pb.SingleMessageMetadata, bytes]]) -> bytes:
    """Return the body of a batch."""
    parts: list[bytes] = []
    for metadata, payload in messages:
        encoded = metadata.SerializeToString()
        parts += [struct.pack(">I", len(encoded)), encoded, payload]
    return b"".join(parts)


def batch(
    messages: Sequence[tuple[pb.SingleMessageMetadata, bytes]],
    *,
    entry_id: int = 0,
    wanted: range | None = None,
    **fields: Any,
) -> ReceivedEntry:
    """Return an entry with a batch."""
    fields.setdefault("num_messages_in_batch", len(messages))
    return _entry(body(messages), entry_id, wanted or range(len(messages)), True, fields)


def single(payload: bytes | None, *, entry_id: int = 0, **fields: Any) -> ReceivedEntry:
    """Return an entry with one message that is not in a batch."""
    if payload is None:
        fields["null_value"] = True
    return _entry(payload or b"", entry_id, range(1), False, fields)


def _entry(
    payload: bytes, entry_id: int, wanted: range, is_batch: bool, fields: dict[str, Any]
) -> ReceivedEntry:
    index = fields.pop("index", None)
    redelivery_count = fields.pop("redelivery_count", 0)
    first_chunk = fields.pop("first_chunk", None)
    properties = fields.pop("properties", ())
    fields.setdefault("producer_name", "p")
    fields.setdefault("sequence_id", 100)
    fields.setdefault("publish_time", 1_700_000_000_123)
    metadata = pb.MessageMetadata(**fields)
    for key, value in properties:
        metadata.properties.add(key=key, value=value)
    stamp = None if index is None else pb.BrokerEntryMetadata(index=index)
    entry = ReceivedEntry(metadata, payload, broker_entry_metadata=stamp)
    entry.topic, entry.wanted, entry.is_batch = TOPIC, wanted, is_batch
    entry.ledger_id, entry.entry_id, entry.partition = 7, entry_id, PARTITION
    entry.redelivery_count, entry.first_chunk = redelivery_count, first_chunk
    return entry


_LIMIT = 1 << 28


def columns_of(wanted: BlockOptions, *entries: ReceivedEntry) -> Iterator[Columns]:
    """Yield what a decoder makes of opened entries; one of which a part is wanted comes last."""
    if entries and entries[-1].is_batch:
        last = entries[-1]
        end = (last.ledger_id, last.entry_id, last.wanted.stop)
        wanted = BlockOptions(**{**_fields(wanted), "end": end})
    decoder = make_decoder(wanted, decompress)
    for entry in entries:
        start = Position(entry.ledger_id, entry.entry_id, entry.wanted.start)
        yield from take_opened(entry, start, decoder)
    if (found := decoder.take()) is not None:
        yield found


def _fields(options: BlockOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in BlockOptions.__dataclass_fields__}


def rows_of(*entries: ReceivedEntry) -> Columns:
    """Return the messages of entries."""
    wanted = BlockOptions(TOPIC, PARTITION, frozenset(COLUMNS), None, 10**6, 10**9, _LIMIT)
    (found,) = columns_of(wanted, *entries)
    return found


def batches_of(builder: RecordBatchBuilder, *entries: ReceivedEntry) -> list[pa.RecordBatch]:
    """Return the record batches of entries."""
    wanted = builder.block_options(None, _LIMIT)
    return [batch for found in columns_of(wanted, *entries) for batch in builder.build(found)]
