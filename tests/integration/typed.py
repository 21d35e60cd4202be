"""Reads and writes of topics with schemas as Spark does them, but without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from pulsar_spark.spark.datasource import PulsarDataSource
from tests.integration.brokers import Broker


def plain(value: Any) -> Any:
    """Return a value of Spark or Arrow with binary values as bytes."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return bytes(value) if isinstance(value, bytearray) else value


class Reading:
    """A read planned as Spark does, but without Spark."""

    def __init__(
        self,
        broker: Broker,
        topic: str,
        options: dict[str, str] | None = None,
        schema: StructType | None = None,
    ) -> None:
        given = {"service.url": broker.service_url, "topic": topic, **(options or {})}
        source = PulsarDataSource(given)
        self.schema = schema or source.schema()
        self._reader: Any = source.reader(self.schema)

    def batches(self) -> list[pa.RecordBatch]:
        """Plan and read."""
        parts = self._reader.partitions()
        return [batch for part in parts for batch in self._reader.read(part)]

    def rows(self) -> list[dict[str, Any]]:
        """Plan and read; maps are dicts."""
        return [
            plain(row)
            for batch in self.batches()
            for row in batch.to_pylist(maps_as_pydicts="strict")
        ]


def read(
    broker: Broker,
    topic: str,
    options: dict[str, str] | None = None,
    schema: StructType | None = None,
) -> list[dict[str, Any]]:
    """Return the rows of a read, without Spark."""
    return Reading(broker, topic, options, schema).rows()


def write(
    broker: Broker,
    topic: str,
    schema: StructType,
    batches: list[pa.RecordBatch],
    options: dict[str, str] | None = None,
) -> None:
    """Write record batches with the columns of `schema`, without Spark."""
    given = {"service.url": broker.service_url, "topic": topic, **(options or {})}
    writer: Any = PulsarDataSource(given).writer(schema, False)
    writer.write(iter(batches))


def copy_rows(broker: Broker, source: str, target: str) -> None:
    """Read all of a topic, and write it to another one."""
    reading = Reading(broker, source)
    write(broker, target, reading.schema, reading.batches())
