"""Columns written as JSON in the kernel, by the reference, and read by Python's own parser."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.json import codec
from pulsar_spark.schema.json.value_writing import float_text
from tests.schema import random_columns
from tests.schema.avro.random_values import Schemas
from tests.schema.json.test_value_writing import VALUE, as_json
from tests.schema.random_columns import Columns

LEFT_OUT = {"__alwaysAllowNull": "false", "__jsr310ConversionEnabled": "false"}
CLIENTS = ("", "java", "python", "left out")
PAIR = {
    "type": "record",
    "name": "org.apache.avro.reflect.PairX",
    "fields": [{"name": "key", "type": ["null", "int"]}, VALUE],
}


def both(schema: SchemaInfo, batch: pa.RecordBatch) -> Any:
    """Return what the kernel makes of a batch, which is what the reference makes of it."""
    return random_columns.both(lambda: codec.encoder(schema, batch.schema), batch)


def random_batches(seed: int, rows: int, count: int) -> None:
    rng = Random(seed)
    tree = Schemas(rng).record()
    if seed % 3 == 0:
        tree["fields"].append({"name": "pairs", "type": {"type": "array", "items": PAIR}})
    client = CLIENTS[seed % len(CLIENTS)]
    schema = as_json(tree, client)
    if client == "left out":
        schema = replace(schema, properties=LEFT_OUT)
    columns = codec.arrow_schema(schema)
    for _ in range(count):
        found = both(schema, Columns(rng, nulls=rng.choice((0.0, 0.02, 0.3))).batch(columns, rows))
        for text in found if isinstance(found, list) else ():
            json.loads(text)


@pytest.mark.parametrize("seed", range(60))
def test_the_kernel_writes_any_columns_as_the_reference_does(seed: int) -> None:
    random_batches(seed, rows=1, count=20)
    random_batches(seed, rows=30, count=2)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_two_hundred_thousand_rows_are_written_as_the_reference_does(part: int) -> None:
    for seed in range(1000 + 20 * part, 1020 + 20 * part):
        random_batches(seed, rows=1, count=100)
        random_batches(seed, rows=900, count=1)


def times(kind: pa.DataType, numbers: Sequence[int]) -> pa.RecordBatch:
    width = pa.int32() if kind == pa.date32() else pa.int64()
    return pa.RecordBatch.from_arrays([pa.array(numbers, width).view(kind)], names=["f"])


DAYS = st.integers(-719_528, 2_932_896)


@given(st.lists(DAYS, min_size=1), st.integers(0, 86_399_999_999))
def test_dates_and_times_of_java_are_written_as_arrow_has_them(
    days: list[int], micros: int
) -> None:
    for kind, name, numbers in (
        (pa.date32(), {"type": "int", "logicalType": "date"}, days),
        (
            pa.timestamp("us"),
            {"type": "long", "logicalType": "local-timestamp-micros"},
            [86_400_000_000 * day + micros for day in days],
        ),
    ):
        schema = as_json(
            {"type": "record", "name": "R", "fields": [{"name": "f", "type": name}]}, "java"
        )
        batch = times(kind, numbers)
        wanted = pc.replace_substring(batch.column(0).cast(pa.string()), " ", "T").to_pylist()
        assert both(schema, batch) == [f'{{"f":"{text}"}}'.encode() for text in wanted]


HALVES = st.builds(
    lambda whole, places, sign: sign * whole * 2.0**-places,
    st.integers(2**52, 2**53 - 1),
    st.integers(0, 60),
    st.sampled_from((-1, 1)),
)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | HALVES, min_size=1))
def test_numbers_have_the_digits_that_arrow_gives_them(numbers: list[float]) -> None:
    column = pa.array(numbers, pa.float64())
    wanted = column.cast(pa.string()).to_pylist()
    assert [float_text(number) for number in numbers] == wanted
    for kind in ("double", "float"):
        column = column.cast(pa.float64() if kind == "double" else pa.float32(), safe=False)
        column = column.filter(pc.is_finite(column))
        wanted = ["-0.0" if t == "-0" else t for t in column.cast(pa.string()).to_pylist()]
        schema = as_json({"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]})
        batch = pa.RecordBatch.from_arrays([column], names=["f"])
        assert both(schema, batch) == [f'{{"f":{text}}}'.encode() for text in wanted]


@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1), min_size=1), st.integers(0, 38))
def test_decimals_are_written_as_arrow_has_them(numbers: list[int], scale: int) -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": scale}
    schema = as_json({"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]})
    data = b"".join(
        (number // 10 ** (number % 38)).to_bytes(16, "little", signed=True) for number in numbers
    )
    own = pa.decimal128(38, scale)
    column = pa.Array.from_buffers(own, len(numbers), [None, pa.py_buffer(data)])
    batch = pa.RecordBatch.from_arrays([column], names=["f"])
    wanted = column.cast(pa.string()).to_pylist()
    assert both(schema, batch) == [f'{{"f":{text}}}'.encode() for text in wanted]
