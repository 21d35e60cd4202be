"""``python -m benchmarks.codecs_avro``: the Avro codec against fastavro and Arrow by rows.

The other side is what a program does without this package: fastavro's `schemaless_reader` for
each message and `pa.Table.from_pylist`; to write, `to_pylist` and `schemaless_writer`. Times are
those of the CPU, the best of some rounds that take turns; both sides' outcomes are compared.
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import fastavro
import pyarrow as pa

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema import avro_codec

# As large as the record batches of a read.
BATCH = 10_000

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


def measure(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the CPU seconds of each one's best round."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, run in contenders.items():
            started = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - started)
    return best


def report(title: str, best: dict[str, float], count: int) -> None:
    """Print the time of a record, and how many times faster than the first each one is."""
    first = next(iter(best.values()))
    print(title)
    for name, seconds in best.items():
        print(f"  {name:34} {seconds / count * 1e6:7.2f} µs/record  {first / seconds:5.1f} ×")


def main() -> None:
    """Measure reading and writing, and print both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    schema = fastavro.parse_schema(SCHEMA)
    data = written_by_rows(list(records(options.records)), schema)
    parts = [data[at : at + BATCH] for at in range(0, len(data), BATCH)]
    arrays = [pa.array(part, pa.binary()) for part in parts]
    columns = avro_codec.arrow_schema(INFO)
    decoder = avro_codec.decoder(INFO, INFO, columns.names)
    some = avro_codec.decoder(INFO, INFO, ["id", "at"])
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
    contenders = {
        "fastavro and from_pylist": by_rows,
        "pulsar_spark": in_columns,
        "pulsar_spark, 2 of the 10 fields": lambda: [some.decode(part) for part in arrays],
    }
    report("read", measure(contenders, options.rounds), len(data))
    contenders = {
        "to_pylist and fastavro": lambda: [
            written_by_rows(batch.to_pylist(), schema) for batch in batches
        ],
        "pulsar_spark": lambda: [encoder.encode(batch) for batch in batches],
    }
    report("write", measure(contenders, options.rounds), len(data))


if __name__ == "__main__":
    main()
