"""Arrays made from buffers equal those that pyarrow makes itself."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.schema.arrow.arrays import (
    binaries,
    booleans,
    constant,
    integers,
    joined,
    offsets_of,
    strings,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


def check(found: pa.Array, values: list[Any], kind: pa.DataType) -> None:
    found.validate(full=True)
    assert found.equals(pa.array(values, kind))
    assert found.type == kind


@given(st.lists(st.none() | INT32), st.lists(st.none() | INT64))
def test_integers(small: list[int | None], large: list[int | None]) -> None:
    check(integers(small, pa.int32()), small, pa.int32())
    check(integers(large, pa.int64()), large, pa.int64())
    stamps = pa.timestamp("us", tz="UTC")
    check(integers(large, stamps), large, stamps)


@given(st.lists(st.none() | st.binary(max_size=20)))
def test_binaries(values: list[bytes | None]) -> None:
    check(binaries(values), values, pa.binary())
    views = [None if value is None else memoryview(value) for value in values]
    check(binaries(views), values, pa.binary())


@given(st.lists(st.none() | st.text(max_size=20)))
def test_strings(values: list[str | None]) -> None:
    check(strings(values), values, pa.string())


@given(st.lists(st.booleans()))
def test_booleans(values: list[bool]) -> None:
    check(booleans(values), values, pa.bool_())


def test_ranges_are_sequences_too() -> None:
    check(integers(range(0, 10, 3), pa.int32()), [0, 3, 6, 9], pa.int32())


def test_reading_does_not_import_pandas() -> None:
    script = """
import sys
import pyarrow as pa
from pulsar_spark.schema.table.metadata_columns import SOURCES
from pulsar_spark.schema.table.record_batches import Projection, RecordBatchBuilder
from tests.schema.table.entries import batch, batches_of, message, single
entries = [batch([message(b"x", partition_key="k", properties=[("a", "b")])] * 100), single(None)]
for name, (_, kind) in SOURCES.items():
    schema = pa.schema([("value", pa.binary()), (name, kind)])
    builder = RecordBatchBuilder(schema, Projection(("value", name)), "t", 3)
    assert [part.num_rows for part in batches_of(builder, *entries)] == [101]
print("pandas" in sys.modules)
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.stdout == "False\n", result.stderr


def test_bytes_are_joined_row_by_row() -> None:
    assert joined([], 2).to_pylist() == [b"", b""]
    assert joined([constant(b"x")], 2).to_pylist() == [b"x", b"x"]
    rows = pa.array([b"a", b""], pa.binary())
    assert joined([constant(b"<"), rows, constant(b">")], 2).to_pylist() == [b"<a>", b"<>"]


def test_offsets_are_those_of_sizes_or_of_parts_that_are_there() -> None:
    assert offsets_of(pa.array([2, 0, 3])).to_pylist() == [0, 2, 2, 5]
    assert offsets_of(pa.array([False, True, True])).to_pylist() == [0, 0, 1, 2]
    assert offsets_of(pa.array([], pa.int32())).to_pylist() == [0]
