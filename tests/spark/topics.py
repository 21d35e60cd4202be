"""Topics on the embedded broker, and reads without Spark, for tests of the Spark layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.types import StructType

from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import encode_payload_command
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.protocol.outgoing_messages import MessageFields
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.spark.options.read import parse_read_options
from pulsar_spark.spark.reading.batch_reader import PulsarBatchReader, infer_schema
from pulsar_spark.testing import EmbeddedBroker
from tests.protocol.batch_bodies import encode_batch

NOW = 1_800_000_000_000
"""Publish time of entries that are stored without another one, in milliseconds."""


def full(name: str) -> str:
    """Return the full name of a topic of public/default."""
    return f"persistent://public/default/{name}"


def store(
    broker: EmbeddedBroker,
    topic: str,
    payloads: Sequence[bytes | None],
    *,
    publish_time: int = NOW,
    batched: bool = True,
    **fields: Any,
) -> MessageIdAdv:
    """Store one entry with these messages, without a producer; returns its id."""
    metadata = pb.MessageMetadata(
        producer_name="test", sequence_id=0, publish_time=publish_time, **fields
    )
    if batched:
        metadata.num_messages_in_batch = len(payloads)
        body = encode_batch([MessageFields(payload) for payload in payloads], 0)
    else:
        (payload,) = payloads
        metadata.null_value = payload is None
        body = payload or b""
    frame = b"".join(
        encode_payload_command(
            commands.send(0, 0, len(payloads)), metadata.SerializeToString(), body
        )
    )
    # The broker stores the bytes after the command.
    size = int.from_bytes(frame[4:8], "big")
    return broker.append(topic, frame[8 + size :])


def store_many(
    broker: EmbeddedBroker, topic: str, count: int, batch_size: int = 10, first: int = 0
) -> list[bytes]:
    """Store `count` messages in batches and return their payloads, numbered from `first`."""
    payloads = [b"%s:%d" % (topic.encode(), number) for number in range(first, first + count)]
    for start in range(0, count, batch_size):
        store(broker, topic, payloads[start : start + batch_size], publish_time=NOW + start)
    return payloads


def set_schema(broker: EmbeddedBroker, topic: str, schema: SchemaInfo) -> None:
    """Give a topic a schema."""
    with ClientContext(ClientOptions(broker.service_url)) as context:
        context.pool.service().request(
            commands.request(pb.CommandGetOrCreateSchema, topic=full(topic), schema=schema.to_pb())
        )


class Serves(Protocol):
    """A broker, embedded or real."""

    @property
    def service_url(self) -> str:
        """Its service URL."""


def reader(
    broker: Serves, options: dict[str, str], schema: StructType | None = None
) -> PulsarBatchReader:
    """Return the reader that Spark would get."""
    parsed = parse_read_options({"service.url": broker.service_url, **options})
    return PulsarBatchReader(parsed, schema or infer_schema(parsed))


def read(
    broker: Serves, options: dict[str, str], schema: StructType | None = None
) -> list[dict[str, Any]]:
    """Read as Spark does, task after task, and return the rows."""
    source = reader(broker, options, schema)
    batches = [batch for part in source.partitions() for batch in source.read(part)]
    return rows_of(batches)


def values(broker: Serves, options: dict[str, str]) -> list[Any]:
    """Read and return the values."""
    return [row["value"] for row in read(broker, options)]


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Return the rows of record batches."""
    return [row for batch in batches for row in batch.to_pylist()]
