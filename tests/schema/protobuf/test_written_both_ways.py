"""Columns written as protobuf in the kernel, by the reference, and by protobuf itself."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.protobuf import codec
from tests.schema import random_columns
from tests.schema.protobuf.cases import class_of, expected_row
from tests.schema.protobuf.test_both_ways import Case
from tests.schema.random_columns import Columns


def both(info: SchemaInfo, batch: pa.RecordBatch) -> Any:
    """Return what the kernel makes of a batch, which is what the reference makes of it."""
    return random_columns.both(lambda: codec.encoder(info, batch.schema), batch)


def random_batches(seed: int, rows: int, count: int) -> None:
    case = Case(seed)
    columns = codec.arrow_schema(case.info)
    for _ in range(count):
        nulls = case.rng.choice((0.0, 0.02, 0.3))
        both(case.info, Columns(case.rng, nulls=nulls).batch(columns, rows))


@pytest.mark.parametrize("seed", range(36))
def test_the_kernel_writes_any_columns_as_the_reference_does(seed: int) -> None:
    random_batches(seed, rows=1, count=20)
    random_batches(seed, rows=30, count=2)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_a_hundred_thousand_rows_are_written_as_the_reference_does(part: int) -> None:
    for seed in range(1000 + 20 * part, 1020 + 20 * part):
        random_batches(seed, rows=1, count=100)
        random_batches(seed, rows=900, count=1)


@pytest.mark.parametrize("seed", [seed for seed in range(36) if seed % 4 < 3])
def test_messages_of_protobuf_are_written_as_they_were(seed: int) -> None:
    case = Case(seed)
    raw = pa.array([case.well_formed() for _ in range(50)], pa.binary())
    columns = codec.arrow_schema(case.info)
    decoder = codec.decoder(case.info, case.info, columns.names)
    decoded = decoder.decode(raw)
    rows = pa.array([row not in {bad.row for bad in decoded.bad} for row in range(50)])
    batch = pa.RecordBatch.from_arrays(list(decoded.columns), schema=columns).filter(rows)
    written = both(case.info, batch)
    read = class_of(case.file).FromString
    for data, given in zip(written, raw.filter(rows).to_pylist(), strict=True):
        # Protobuf has the same, but for the order of maps, and what is finer than microseconds.
        assert expected_row(read(data)) == expected_row(read(given))
