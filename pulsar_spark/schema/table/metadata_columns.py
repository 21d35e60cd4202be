"""The columns of message metadata: one table, from which decoders, schemas and docs follow.

A new column is a row here, one of `protocol/block_columns.py:COLUMNS`, and one of `columns!` in
native/src/columns.rs.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from pulsar_spark.schema.table import names


@dataclass(frozen=True, slots=True)
class MetadataColumn:
    """A column of message metadata; `optional` ones can be null.

    `source` is the decoders' column, None for one that is the same for a topic partition's
    messages. `help` is its text in docs/columns.md.
    """

    name: str
    source: str | None
    type: pa.DataType
    optional: bool
    help: str


_TIME = pa.timestamp("us", tz="UTC")

METADATA_COLUMNS: tuple[MetadataColumn, ...] = (
    MetadataColumn(
        names.KEY,
        "key",
        pa.binary(),
        True,
        "The key as bytes, typed on KEY_VALUE topics. `CAST(__key AS STRING)` gives text.",
    ),
    MetadataColumn(
        names.TOPIC,
        None,
        pa.string(),
        False,
        "Full name of the topic partition: `persistent://public/default/orders-partition-3`.",
    ),
    MetadataColumn(
        names.MESSAGE_ID,
        "message_id",
        pa.binary(),
        False,
        "The message id as Pulsar's clients serialize it, with partition and batch index.",
    ),
    MetadataColumn(
        names.PUBLISH_TIME,
        "publish_time",
        _TIME,
        False,
        "When the producer sent the message, to the millisecond.",
    ),
    MetadataColumn(
        names.EVENT_TIME,
        "event_time",
        _TIME,
        True,
        "The time that the application gave the message, to the millisecond; null if it gave none. "
        "Times after the year 9999 (of producers that count in microseconds) are the last "
        "millisecond of that year, as they are in `__publishTime`.",
    ),
    MetadataColumn(
        names.PROPERTIES,
        "properties",
        pa.map_(pa.string(), pa.string()),
        False,
        "The message's properties; empty if there are none.",
    ),
)
"""The columns that every read has after those of the value, in this order."""

POSITION_COLUMNS: tuple[MetadataColumn, ...] = (
    MetadataColumn(
        names.PARTITION,
        None,
        pa.int32(),
        False,
        "Number of the topic partition; -1 for a topic without partitions.",
    ),
    MetadataColumn(
        "__ledgerId",
        "ledger_id",
        pa.int64(),
        False,
        "BookKeeper ledger that stores the message.",
    ),
    MetadataColumn(
        "__entryId",
        "entry_id",
        pa.int64(),
        False,
        "Entry within the ledger. A batch of messages is one entry.",
    ),
    MetadataColumn(
        "__batchIndex",
        "batch_index",
        pa.int32(),
        False,
        "Index within a batched entry; -1 for a message that is its own entry.",
    ),
    MetadataColumn(
        "__producerName",
        "producer_name",
        pa.string(),
        False,
        "Name of the producer.",
    ),
    MetadataColumn(
        names.SEQUENCE_ID,
        "sequence_id",
        pa.int64(),
        False,
        "The producer's number for the message, which deduplication goes by.",
    ),
    MetadataColumn(
        names.ORDERING_KEY,
        "ordering_key",
        pa.binary(),
        True,
        "Ordering key, which Key_Shared consumers go by instead of the key.",
    ),
    MetadataColumn(
        "__schemaVersion",
        "schema_version",
        pa.binary(),
        True,
        "Version of the schema that the message was written with, as the broker numbers it.",
    ),
    MetadataColumn(
        "__redeliveryCount",
        "redelivery_count",
        pa.int32(),
        False,
        "How often the broker delivered the message before; 0 for reads.",
    ),
    MetadataColumn(
        "__size",
        "size",
        pa.int32(),
        False,
        "Bytes of the payload, uncompressed.",
    ),
    MetadataColumn(
        "__index",
        "index",
        pa.int64(),
        True,
        "Consecutive number within the topic partition; null where brokers stamp none.",
    ),
    MetadataColumn(
        "__replicatedFrom",
        "replicated_from",
        pa.string(),
        True,
        "Cluster that the message was replicated from; null for local messages.",
    ),
)
"""The columns that includeMetadata adds after them."""

FIXED_NAMES = frozenset(column.name.lower() for column in METADATA_COLUMNS + POSITION_COLUMNS)
"""Their names in lower case: no other column has one of them in any case."""

SOURCES: dict[str, tuple[str, pa.DataType]] = {
    column.name: (column.source, column.type)
    for column in METADATA_COLUMNS + POSITION_COLUMNS
    if column.source is not None
}
"""Of the columns that decoders have, their names there and their types."""
