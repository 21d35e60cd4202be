"""Rows as values in the kernel, and by the reference what it refuses."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from pulsar_spark.errors import InvalidRow
from pulsar_spark.schema import column_encoder
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.column_encoder import ColumnEncoder, Write, WritingPlan
from tests.schema.kernel import choose

COLUMNS = pa.schema([("f", pa.int32())])


SEEN: list[Any] = []
"""The rows that the reference has written or refused."""


def writer(_description: tuple[Any, ...]) -> Write:
    """The kernel takes numbers from 0 to 9; the reference writes others as text, but for 13."""

    def write(cells: Sequence[Any]) -> bytes:
        SEEN.extend(cells)
        if cells[0] == 13:
            raise Mismatch("unlucky", "f")
        return str(cells[0]).encode()

    return write


PLAN = WritingPlan("avro", ("record", [(0, ("whole", 1, 1, 10), "f")]), writer)


def batch(*values: int | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.int32())], schema=COLUMNS)


def test_what_the_kernel_refuses_is_written_by_the_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choose(monkeypatch, kernel=True)
    SEEN.clear()
    encoder = ColumnEncoder(COLUMNS, PLAN)
    found = encoder.encode(batch(1, 10, 2, None, 3))
    assert found.to_pylist() == [b"\2", b"10", b"\4", b"None", b"\6"]
    assert SEEN == [10, None]
    assert encoder.encode(batch(11, 12)).to_pylist() == [b"11", b"12"]


def test_an_error_names_the_row_among_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in (True, False):
        choose(monkeypatch, kernel=kernel)
        with pytest.raises(Mismatch) as caught:
            ColumnEncoder(COLUMNS, PLAN).encode(batch(*[12] * 2000, 1, 13, 13))
        assert (caught.value.row, caught.value.field) == (2001, "f")


def test_values_of_more_than_an_array_holds_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, kernel=False)
    name = "pulsar_spark.schema.column_encoder.binaries"
    with mock.patch(name, side_effect=OverflowError), pytest.raises(InvalidRow, match="2 GiB"):
        ColumnEncoder(COLUMNS, PLAN).encode(batch(1))


def test_bytes_that_are_no_batch_of_the_columns_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choose(monkeypatch, kernel=True)
    encoder = ColumnEncoder(COLUMNS, PLAN)
    kernel: Any = encoder._kernel
    whole = batch(1, 2).serialize().to_pybytes()
    assert kernel.encode(whole)[2] == []
    for damaged in (b"", whole[:8], whole[:60], whole[: len(whole) - 8], b"\0" * 200):
        with pytest.raises(ValueError, match="no record batch"):
            kernel.encode(damaged)
    two = pa.RecordBatch.from_pydict({"f": ["a"], "g": [1]})
    with pytest.raises(ValueError, match="is not known"):
        type(kernel)(["fixed7"], (PLAN.format, PLAN.description))
    assert kernel.encode(two.serialize().to_pybytes())[2] == []


def test_threads_can_share_an_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, kernel=True)
    encoder = pickle.loads(pickle.dumps(ColumnEncoder(COLUMNS, PLAN)))
    rows = batch(*[number % 10 for number in range(20_000)])
    wanted = encoder.encode(rows)
    found: list[bool] = []
    threads = [
        threading.Thread(target=lambda: found.append(encoder.encode(rows) == wanted))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [True] * 4


def test_few_of_many_encoders_keep_memory_for_values(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, kernel=True)
    encoders = [ColumnEncoder(COLUMNS, PLAN) for _ in range(200)]
    for _ in range(2):
        for encoder in encoders:
            assert encoder.encode(batch(1)).to_pylist() == encoders[0].encode(batch(1)).to_pylist()
    assert len(column_encoder._kernels) <= 32


def test_an_encoder_that_is_used_again_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, kernel=True)
    encoder = ColumnEncoder(COLUMNS, PLAN)
    assert encoder._kernel is encoder._kernel
