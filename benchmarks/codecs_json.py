"""The JSON codec against the obvious way: CPU time for each record of ten mixed fields.

    python -m benchmarks.codecs_json [records]

The obvious way is `json.loads` for each message and `pa.Table.from_pylist`, and `to_pylist` and
`json.dumps` for each row. Both sides get the same binary array, or record batch, of ten thousand
messages at a time; the best of several rounds counts.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema import json_codec

_ROUNDS = 5
_BATCH = 10_000


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


def _best(run: Callable[[], object]) -> float:
    found = []
    for _ in range(_ROUNDS):
        start = time.process_time()
        run()
        found.append(time.process_time() - start)
    return min(found)


def _report(what: str, count: int, ours: float, theirs: float) -> None:
    print(
        f"{what:<42} {ours / count * 1e6:7.2f} µs {theirs / count * 1e6:7.2f} µs "
        f"{theirs / ours:6.2f} ×"
    )


def _compact(rows: Sequence[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(row, separators=(",", ":")).encode() for row in rows]


def _in_batches(values: Sequence[bytes]) -> list[pa.Array]:
    starts = range(0, len(values), _BATCH)
    return [pa.array(values[start : start + _BATCH], pa.binary()) for start in starts]


def _compare_reading(
    what: str,
    values: Sequence[bytes],
    fields: Sequence[tuple[str, Any]],
    names: Sequence[str],
) -> None:
    info = schema_of(fields)
    schema = json_codec.arrow_schema(info)
    # The obvious way takes numbers for times as they are.
    naive = pa.schema(
        [
            pa.field(name, pa.timestamp("ms", tz="UTC"))
            if pa.types.is_timestamp(schema.field(name).type)
            else schema.field(name)
            for name in names
        ]
    )
    batches = _in_batches(values)
    decoder = json_codec.decoder(info, info, names)

    def obvious(raw: pa.Array) -> pa.Table:
        rows = [json.loads(value) for value in raw.to_pylist()]
        return pa.Table.from_pylist(rows, schema=naive)

    for raw in batches[:1]:
        decoded = decoder.decode(raw)
        assert not decoded.bad
        found = pa.Table.from_arrays(decoded.columns, names=list(names))
        rows = found.cast(naive).to_pylist(maps_as_pydicts="strict")
        assert rows == obvious(raw).to_pylist(maps_as_pydicts="strict")
    ours = _best(lambda: [decoder.decode(raw) for raw in batches])
    theirs = _best(lambda: [obvious(raw) for raw in batches])
    _report(what, len(values), ours, theirs)


def _compare_writing(what: str, values: Sequence[bytes], fields: Sequence[tuple[str, Any]]) -> None:
    info = schema_of(fields)
    schema = json_codec.arrow_schema(info)
    decoder = json_codec.decoder(info, info, schema.names)
    batches = [
        pa.RecordBatch.from_arrays(decoder.decode(raw).columns, schema=schema)
        for raw in _in_batches(values)
    ]
    encoder = json_codec.encoder(info, schema)

    def millis(value: datetime) -> int:
        return round(value.timestamp() * 1000)

    def obvious(batch: pa.RecordBatch) -> list[bytes]:
        rows = batch.to_pylist(maps_as_pydicts="strict")
        return [json.dumps(row, default=millis).encode() for row in rows]

    written = [json.loads(value) for value in encoder.encode(batches[0]).to_pylist()]
    assert written == [json.loads(value) for value in obvious(batches[0])]
    ours = _best(lambda: [encoder.encode(batch) for batch in batches])
    theirs = _best(lambda: [obvious(batch) for batch in batches])
    _report(what, len(values), ours, theirs)


def main() -> None:
    """Compare and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    rows = records(count)
    compact = _compact(rows)
    spaced = [json.dumps(row, indent=1).encode() for row in rows]
    flat = [field for field in MIXED if field[0] != "attributes"]
    names = [name for name, _ in MIXED]
    print(f"{count} records, CPU time of each       here    the obvious way")
    _compare_reading("read, compact", compact, MIXED, names)
    _compare_reading("read, indented as Python's client does", spaced, MIXED, names)
    _compare_reading("read, without the map", compact, flat, [name for name, _ in flat])
    _compare_reading("read, one field of the ten", compact, MIXED, ["device"])
    others = [{**row, "attributes": {f"key-{row['id']}": "x"}} for row in rows]
    _compare_reading("read, a key of its own in each map", _compact(others), MIXED, names)
    odd = [{**row, "count": float(row["count"])} for row in rows]
    _compare_reading("read, integers with a point", _compact(odd), MIXED, names)
    _compare_writing("write", compact, MIXED)
    info = schema_of(MIXED)
    decoder = json_codec.decoder(info, info, names)
    batches = _in_batches([b"{" if i % 1000 == 0 else v for i, v in enumerate(compact)])
    spent = _best(lambda: [decoder.decode(raw) for raw in batches])
    print(f"{'read, with one broken in a thousand':<42} {spent / count * 1e6:7.2f} µs")


if __name__ == "__main__":
    main()
