"""Rows are joined to objects; a row that cannot be written is found and named."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.avro.definition import parse_definition
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.column_encoder import ColumnEncoder, WritingPlan
from pulsar_spark.schema.json.types import Dialect
from pulsar_spark.schema.json.value_writing import row_writer
from pulsar_spark.schema.json.writing import text_plan
from tests.schema.json.cases import nullable, record

pytestmark = pytest.mark.usefixtures("way")


def encoder(definition: Any, columns: pa.Schema) -> ColumnEncoder:
    node = parse_definition(json.dumps(definition).encode())
    return ColumnEncoder(
        columns, WritingPlan("json", text_plan(node, columns, Dialect()), row_writer)
    )


def encode(definition: Any, batch: pa.RecordBatch) -> list[Any]:
    found = encoder(definition, batch.schema).encode(batch)
    assert found.type == pa.binary()
    return list(found.to_pylist())


def test_fields_without_a_column_are_left_out_if_the_schema_allows_it() -> None:
    fields = record([("a", "int"), ("b", nullable("int")), ("c", "int")])
    fields["fields"][2]["default"] = 7
    batch = pa.RecordBatch.from_pydict({"a": pa.array([1, 2], pa.int32())})
    assert encode(fields, batch) == [b'{"a":1}', b'{"a":2}']


def test_columns_are_found_by_name_in_any_order() -> None:
    fields = record([("a", "int"), ("b", "string")])
    batch = pa.RecordBatch.from_pydict({"b": ["x"], "a": pa.array([1], pa.int32())})
    assert list(map(json.loads, encode(fields, batch))) == [{"a": 1, "b": "x"}]


@pytest.mark.parametrize("bad", [0, 1, 37, 99])
def test_the_first_row_that_cannot_be_written_is_named(bad: int) -> None:
    fields = record([("a", {"type": "array", "items": "int"})])
    rows = [[i, i] if i < bad else [i, None] for i in range(100)]
    batch = pa.RecordBatch.from_pydict({"a": pa.array(rows, pa.list_(pa.int32()))})
    with pytest.raises(Mismatch, match=rf"row {bad}: a\[\]: it is null"):
        encode(fields, batch)


def test_a_batch_without_rows_or_columns() -> None:
    batch = pa.RecordBatch.from_pydict({"a": pa.array([], pa.int32())})
    assert encode(record([("a", "int")]), batch) == []
    with pytest.raises(SchemaMismatch, match="a is missing"):
        encoder(record([("a", "int")]), pa.schema([]))
