"""AVRO values written in the kernel, by the reference, and by fastavro."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.schema.avro import codec as avro_codec
from tests.schema import random_columns
from tests.schema.avro.random_values import PLAIN, Schemas, Values, encoded, info
from tests.schema.random_columns import Columns

INTS = pa.int32()
NARROWER = {
    pa.int64(): (pa.int8(), pa.int16(), INTS),
    INTS: (pa.int8(), pa.int16()),
    pa.float64(): (pa.float32(), INTS, pa.int16()),
    pa.float32(): (pa.int16(), pa.int8()),
}


def both(tree: Any, batch: pa.RecordBatch) -> Any:
    """Return what the kernel makes of a batch, which is what the reference makes of it."""
    return random_columns.both(lambda: avro_codec.encoder(info(tree), batch.schema), batch)


def narrower(rng: Random, kind: pa.DataType, is_plain: bool) -> pa.DataType:
    """Return a column type that fits the same field, which may be of a plain type."""
    if pa.types.is_decimal(kind):
        return pa.decimal128(rng.choice((10, 18, 38)), rng.randint(0, 5))
    return rng.choice((kind, *NARROWER.get(kind, ()))) if is_plain else kind


def random_batches(seed: int, rows: int, count: int) -> None:
    rng = Random(seed)
    tree = Schemas(rng).record()
    columns = avro_codec.arrow_schema(info(tree))
    if seed % 2:
        plain = {f["name"] for f in tree["fields"] if f["type"] in PLAIN}
        columns = pa.schema([(f.name, narrower(rng, f.type, f.name in plain)) for f in columns])
    for _ in range(count):
        nulls = rng.choice((0.0, 0.02))
        both(tree, Columns(rng, nulls=nulls).batch(columns, rows))


@pytest.mark.parametrize("seed", range(60))
def test_the_kernel_writes_any_columns_as_the_reference_does(seed: int) -> None:
    random_batches(seed, rows=1, count=20)
    random_batches(seed, rows=30, count=2)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_two_hundred_thousand_rows_are_written_as_the_reference_does(part: int) -> None:
    for seed in range(1000 + 20 * part, 1020 + 20 * part):
        random_batches(seed, rows=1, count=50)
        random_batches(seed, rows=950, count=1)


@pytest.mark.parametrize("seed", range(60))
def test_values_are_written_as_fastavro_does(seed: int) -> None:
    rng = Random(seed)
    tree = Schemas(rng).record()
    values = Values(rng)
    data = encoded(tree, (values.of(tree) for _ in range(50)))
    columns = avro_codec.arrow_schema(info(tree))
    decoder = avro_codec.decoder(info(tree), info(tree), columns.names)
    found = decoder.decode(pa.array(data, pa.binary()))
    written = both(tree, pa.RecordBatch.from_arrays(list(found.columns), schema=columns))
    again = decoder.decode(pa.array(written, pa.binary()))
    assert again.columns == found.columns
    # Equal but for decimals that fastavro was given with needless bytes.
    assert sum(map(len, written)) <= sum(map(len, data))


@pytest.mark.parametrize(
    "tree,kind,values",
    [
        ("long", pa.int16(), [1, -300]),
        ("boolean", pa.bool_(), [True, False]),
        ("float", pa.float32(), [0.5, -1.0]),
        ("double", INTS, [1, -300]),
        ("string", pa.string(), ["a", "Zürich", "x" * 9000]),
        ("bytes", pa.binary(), [b"\xff", b""]),
        ("null", pa.null(), [None, None]),
        (["null", "int"], INTS, [1, None, 3]),
        (["int", "null"], INTS, [None, 2]),
        ({"type": "array", "items": "int"}, pa.list_(INTS), [[1, 2], [], [300]]),
        ({"type": "map", "values": "int"}, pa.map_(pa.string(), INTS), [{"a": 1, "b": 2}, {}]),
    ],
)
def test_each_type_is_written_as_fastavro_does(
    tree: Any, kind: pa.DataType, values: Sequence[Any]
) -> None:
    record = {"type": "record", "name": "R", "fields": [{"name": "f", "type": tree}]}
    given = [list(v.items()) if isinstance(v, dict) else v for v in values]
    batch = pa.RecordBatch.from_arrays([pa.array(given, kind)], names=["f"])
    wanted = encoded(record, [{"f": value} for value in values])
    assert both(record, batch) == wanted
    # A part of a column has an offset.
    assert both(record, batch.slice(1)) == wanted[1:]
    assert both(record, batch.slice(0, 0)) == []


def test_the_first_row_that_does_not_fit_is_named() -> None:
    tree = {"type": "record", "name": "R", "fields": [
        {"name": "a", "type": ["null", {"type": "array", "items": "int"}]},
        {"name": "b", "type": "int"},
    ]}  # fmt: skip
    lists = pa.array([[1, 2], None, [], [3, 4], [5, None]], pa.list_(INTS))
    batch = pa.RecordBatch.from_arrays(
        [lists, pa.array([1, 2, 3, None, 5], INTS)], names=["a", "b"]
    )
    assert both(tree, batch)[:2] == (3, "b")
    assert both(tree, batch.slice(4))[:2] == (0, "a[]")
