"""Decoding as messages arrive: batched, or with alternating schema versions.

    python -m benchmarks.codecs_arrivals [--records N]

The same records go through the builder of record batches, with a read's limits:

- batched: full batches of one producer, all with the same schema version;
- alternating: two versions in turn, as two producers of different releases write them without
  batching (the older version lacks a field).

JSON is also measured in less usual forms: with times as text in all values, or in few.
"""

from __future__ import annotations

import argparse
import json
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from pulsar_spark.protocol.blocks import VersionRuns
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.codec import typed_columns
from pulsar_spark.schema.table.record_batches import MAX_ROWS, Projection, RecordBatchBuilder

BATCHED, ALTERNATING = "batched", "alternating"
LEAST_RATE = 0.7
"""What alternating versions may cost."""

RECORDS = 100_000
ROUNDS = 5

_OLD, _NEW = bytes(8), bytes(7) + b"\1"


@dataclass(frozen=True)
class Arrival:
    """CPU microseconds per record of a format; `rate` is relative to the batched ones."""

    format: str
    how: str
    micros: float
    rate: float


@dataclass(frozen=True)
class Records:
    """A format's records with a schema version, and with an older one that lacks a field."""

    name: str
    info: SchemaInfo
    values: Sequence[bytes]
    older_info: SchemaInfo
    older: Sequence[bytes]

    def parts(self, size: int, *, alternating: bool = False) -> list[Any]:
        """Return the columns of blocks of `size` values, as a block decoder returns them."""
        found = []
        values = list(self.values)
        if alternating:
            values[1::2] = self.older[1::2]
        for start in range(0, len(values), size):
            part = values[start : start + size]
            runs: VersionRuns = [_NEW], array("i", [0]), array("i", [0])
            if alternating:
                rows = range(len(part))
                runs = [_NEW, _OLD], array("i", rows), array("i", [row % 2 for row in rows])
            offsets = array("i", accumulate(map(len, part), initial=0))
            column = (None, offsets, b"".join(part), 0)
            found.append(
                SimpleNamespace(
                    rows=len(part),
                    nbytes=offsets[-1],
                    columns={"value": column},
                    version_runs=runs,
                )
            )
        return found

    def builder(self) -> RecordBatchBuilder:
        """Return a function that makes record batches of all fields."""
        fields = typed_columns(self.info).fields
        return RecordBatchBuilder(
            pa.schema(list(fields)),
            Projection(tuple(fields.names), self.info),
            "persistent://public/default/arrivals",
            -1,
            {_NEW: self.info, _OLD: self.older_info}.__getitem__,
        )


def measure(count: int = RECORDS) -> list[Arrival]:
    """Measure all formats in all cases."""
    found = []
    for records in _formats(count):
        ways = {
            BATCHED: records.parts(MAX_ROWS),
            ALTERNATING: records.parts(MAX_ROWS, alternating=True),
        }
        best = dict.fromkeys(ways, float("inf"))
        builders = {how: records.builder() for how in ways}
        for _ in range(ROUNDS):
            for how, parts in ways.items():
                started = time.process_time()
                rows = _decode(builders[how], parts)
                micros = (time.process_time() - started) * 1e6 / count
                assert rows == count
                best[how] = min(best[how], micros)
        found += [
            Arrival(records.name, how, micros, best[BATCHED] / micros)
            for how, micros in best.items()
        ]
    usual = next(each.micros for each in found if (each.format, each.how) == ("JSON", BATCHED))
    for every in (1, 100):
        records = _with_times_as_text(count, every)
        parts, builder = records.parts(MAX_ROWS), records.builder()
        best_time = float("inf")
        for _ in range(ROUNDS):
            started = time.process_time()
            assert _decode(builder, parts) == count
            best_time = min(best_time, (time.process_time() - started) * 1e6 / count)
        found.append(Arrival(records.name, BATCHED, best_time, usual / best_time))
    return found


def _decode(builder: RecordBatchBuilder, parts: Sequence[Any]) -> int:
    return sum(batch.num_rows for part in parts for batch in builder.build(part))


def table(found: Sequence[Arrival]) -> str:
    """Return the measurements as a Markdown table."""
    lines = [
        "| records | arriving | a record | of the batched rate | must be | |",
        "|---|---|---:|---:|---:|---|",
    ]
    for a in found:
        verdict = ""
        if a.how == ALTERNATING:
            verdict = f"≥ {LEAST_RATE:.0%} | {'held' if a.rate >= LEAST_RATE else '**missed**'}"
        lines.append(
            f"| {a.format} | {a.how} | {a.micros:.2f} µs | {a.rate:.0%} | {verdict or '|'} |"
        )
    return "\n".join(lines)


def _formats(count: int) -> list[Records]:
    # Each needs the format's own library, which is only installed for tests.
    import fastavro

    from benchmarks import codecs_avro, codecs_json, codecs_protobuf

    def avro(schema: dict[str, Any]) -> list[bytes]:
        rows = list(codecs_avro.records(count))
        return codecs_avro.written_by_rows(rows, fastavro.parse_schema(schema))

    fields = [f for f in codecs_avro.SCHEMA["fields"] if f["name"] != "note"]
    older = {**codecs_avro.SCHEMA, "fields": fields}
    older_info = SchemaInfo(codecs_avro.INFO.type, "Event", json.dumps(older).encode())

    def texts(without: str = "") -> list[bytes]:
        rows = codecs_json.records(count)
        chosen = ({name: row[name] for name in row if name != without} for row in rows)
        return [json.dumps(row, separators=(",", ":")).encode() for row in chosen]

    some = [field for field in codecs_json.MIXED if field[0] != "state"]
    new, old = codecs_protobuf.mixed(count), codecs_protobuf.mixed(count, with_note=False)
    return [
        Records("Avro", codecs_avro.INFO, avro(codecs_avro.SCHEMA), older_info, avro(older)),
        Records(
            "JSON",
            codecs_json.schema_of(codecs_json.MIXED),
            texts(),
            codecs_json.schema_of(some),
            texts("state"),
        ),
        Records("Protobuf", new.info, new.values, old.info, old.values),
    ]


def _with_times_as_text(count: int, every: int) -> Records:
    """Return JSON records, one in `every` of which has its time as ISO 8601 text."""
    from benchmarks import codecs_json

    info = codecs_json.schema_of(codecs_json.MIXED)
    rows = codecs_json.records(count)
    for row in rows[every // 2 :: every]:
        row["at"] = "2026-01-02T03:04:05.678Z"
    values = [json.dumps(row, separators=(",", ":")).encode() for row in rows]
    which = "all" if every == 1 else f"one in {every}"
    return Records(f"JSON, times as text in {which}", info, values, info, values)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    print(table(measure(parser.parse_args().records)))


if __name__ == "__main__":
    main()
