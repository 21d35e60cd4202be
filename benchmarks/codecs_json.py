"""JSON: `json.loads` and `json.dumps` for each message, and our codec."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from benchmarks.codecs_ways import ROWS_PER_BATCH, Way
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.json import codec as json_codec


def _nullable(kind: Any) -> Any:
    return ["null", kind]


def _record(name: str, fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    named = [{"name": field, "type": kind} for field, kind in fields]
    return {"type": "record", "name": name, "fields": named}


_PLACE = _record("Place", [("lat", "double"), ("lon", "double")])
_STATE = {"type": "enum", "name": "State", "symbols": ["OK", "WARN", "DOWN"]}
MIXED: Sequence[tuple[str, Any]] = [
    ("id", "long"),
    ("device", "string"),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}),
    ("temperature", _nullable("double")),
    ("count", "int"),
    ("active", "boolean"),
    ("state", _nullable(_STATE)),
    ("tags", {"type": "array", "items": "string"}),
    ("attributes", _nullable({"type": "map", "values": "string"})),
    ("place", _nullable(_PLACE)),
]
"""The ten fields."""


def schema_of(fields: Sequence[tuple[str, Any]]) -> SchemaInfo:
    """Return the schema of a JSON topic with these fields."""
    return SchemaInfo(pb.Schema.Json, "Reading", json.dumps(_record("Reading", fields)).encode())


def records(count: int) -> list[dict[str, Any]]:
    """Return records of the ten fields, the same with each call."""
    rng = random.Random(7)
    return [
        {
            "id": number,
            "device": f"device-{number % 997}",
            "at": 1_700_000_000_000 + number,
            "temperature": None if number % 17 == 0 else round(rng.uniform(-40, 60), 3),
            "count": rng.randrange(100_000),
            "active": number % 3 == 0,
            "state": ("OK", "OK", "WARN", "DOWN")[number % 4],
            "tags": ["indoor", f"floor-{number % 9}"],
            "attributes": {"vendor": "acme", "model": f"m{number % 31}"},
            "place": {"lat": rng.uniform(-90, 90), "lon": rng.uniform(-180, 180)},
        }
        for number in range(count)
    ]


def ways(count: int) -> list[Way]:
    """Return reading and writing of `count` records."""
    info = schema_of(MIXED)
    values = [json.dumps(row, separators=(",", ":")).encode() for row in records(count)]
    return [_reading(info, values), _writing(info, values)]


def _in_batches(values: Sequence[bytes]) -> list[pa.Array]:
    starts = range(0, len(values), ROWS_PER_BATCH)
    return [pa.array(values[start : start + ROWS_PER_BATCH], pa.binary()) for start in starts]


def _reading(info: SchemaInfo, values: Sequence[bytes]) -> Way:
    schema = json_codec.arrow_schema(info)
    # The obvious way leaves times as numbers.
    at = schema.get_field_index("at")
    millis = schema.set(at, pa.field("at", pa.timestamp("ms", tz="UTC")))
    decoder = json_codec.decoder(info, info, schema.names)
    raw = _in_batches(values)

    def by_rows() -> list[pa.Table]:
        return [
            pa.Table.from_pylist([json.loads(value) for value in array.to_pylist()], millis)
            for array in raw
        ]

    def in_columns() -> list[pa.Table]:
        return [pa.table(list(decoder.decode(array).columns), schema=schema) for array in raw]

    for ours, obvious in zip(in_columns()[:1], by_rows()[:1], strict=True):
        # Map entries have another order.
        assert ours.cast(millis).to_pylist(maps_as_pydicts="strict") == obvious.to_pylist(
            maps_as_pydicts="strict"
        )
    return Way("JSON, read (json.loads)", by_rows, in_columns)


def _writing(info: SchemaInfo, values: Sequence[bytes]) -> Way:
    schema = json_codec.arrow_schema(info)
    decoder = json_codec.decoder(info, info, schema.names)
    batches = [
        pa.RecordBatch.from_arrays(list(decoder.decode(array).columns), schema=schema)
        for array in _in_batches(values)
    ]
    encoder = json_codec.encoder(info, schema)
    at = schema.get_field_index("at")

    def by_rows() -> list[list[bytes]]:
        written = []
        for batch in batches:
            times = batch.column(at).cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
            rows = batch.set_column(at, "at", times).to_pylist(maps_as_pydicts="strict")
            written.append([json.dumps(row).encode() for row in rows])
        return written

    def in_columns() -> list[pa.Array]:
        return [encoder.encode(batch) for batch in batches]

    for ours, obvious in zip(in_columns()[:1], by_rows()[:1], strict=True):
        assert [json.loads(value) for value in ours.to_pylist()] == [*map(json.loads, obvious)]
    return Way("JSON, write (json.dumps)", by_rows, in_columns)
