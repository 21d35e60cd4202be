"""Avro: fastavro's schemaless reader and writer for each message, and our codec."""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Iterator
from random import Random
from typing import Any

import fastavro
import pyarrow as pa

from benchmarks.codecs_ways import ROWS_PER_BATCH, Way
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.avro import codec as avro_codec

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "count", "type": "int"},
        {"name": "id", "type": "long"},
        {"name": "score", "type": "double"},
        {"name": "active", "type": "boolean"},
        {"name": "user", "type": "string"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "digest", "type": "bytes"},
        {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}},
        {"name": "items", "type": {"type": "array", "items": "int"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
INFO = SchemaInfo(pb.Schema.Avro, "Event", json.dumps(SCHEMA).encode())
_START = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)


def records(count: int) -> Iterator[dict[str, Any]]:
    """Yield records of ten fields, the same ones in every run."""
    rng = Random(1)
    for number in range(count):
        yield {
            "count": rng.randrange(1000),
            "id": rng.randrange(10**12),
            "score": rng.random(),
            "active": number % 2 == 0,
            "user": f"user-{rng.randrange(10**6)}",
            "note": None if number % 3 == 0 else f"note {number}",
            "digest": rng.randbytes(16),
            "color": rng.choice(("RED", "BLUE")),
            "items": [rng.randrange(1000) for _ in range(rng.randrange(6))],
            "at": _START + datetime.timedelta(microseconds=rng.randrange(10**13)),
        }


def written_by_rows(rows: list[dict[str, Any]], schema: Any) -> list[bytes]:
    """Encode each row with fastavro."""
    out = []
    for row in rows:
        target = io.BytesIO()
        fastavro.schemaless_writer(target, schema, row)
        out.append(target.getvalue())
    return out


def ways(count: int) -> list[Way]:
    """Return reading and writing of `count` records."""
    schema = fastavro.parse_schema(SCHEMA)
    data = written_by_rows(list(records(count)), schema)
    parts = [data[at : at + ROWS_PER_BATCH] for at in range(0, len(data), ROWS_PER_BATCH)]
    arrays = [pa.array(part, pa.binary()) for part in parts]
    columns = avro_codec.arrow_schema(INFO)
    decoder = avro_codec.decoder(INFO, INFO, columns.names)
    encoder = avro_codec.encoder(INFO, columns)

    def by_rows() -> list[pa.Table]:
        return [
            pa.Table.from_pylist(
                [fastavro.schemaless_reader(io.BytesIO(item), schema) for item in part], columns
            )
            for part in parts
        ]

    def in_columns() -> list[pa.RecordBatch]:
        return [
            pa.RecordBatch.from_arrays(list(decoder.decode(part).columns), schema=columns)
            for part in arrays
        ]

    batches = in_columns()
    assert pa.Table.from_batches(batches) == pa.concat_tables(by_rows())
    assert [item for batch in batches for item in encoder.encode(batch).to_pylist()] == data
    return [
        Way("Avro, read (fastavro)", by_rows, in_columns),
        Way(
            "Avro, write (fastavro)",
            lambda: [written_by_rows(batch.to_pylist(), schema) for batch in batches],
            lambda: [encoder.encode(batch) for batch in batches],
        ),
    ]
