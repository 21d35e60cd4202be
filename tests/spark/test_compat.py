"""Differences between versions of Spark."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructType, TimestampType

from pulsar_spark.spark import compat


def test_timestamps_of_the_arrow_schema_are_utc_microseconds() -> None:
    schema = StructType().add("value", BinaryType()).add("t", TimestampType())
    expected = pa.schema([("value", pa.binary()), ("t", pa.timestamp("us", tz="UTC"))])
    assert compat.arrow_schema(schema) == expected


def test_the_arrow_schema_is_had_from_a_spark_that_takes_no_timezone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = inspect.signature(to_arrow_schema).parameters
    utc: dict[str, Any] = {"timezone": "UTC"} if "timezone" in known else {}
    monkeypatch.setattr(compat, "to_arrow_schema", lambda schema: to_arrow_schema(schema, **utc))
    assert compat.arrow_schema(StructType().add("t", TimestampType())).field("t").type.tz == "UTC"


WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def test_filters_are_offered_only_by_the_worker_that_pushes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compat, "keeps_scans_apart", lambda: True)
    assert not compat.filters_are_pushed()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, WORKER, ModuleType(WORKER))
        assert compat.filters_are_pushed()
    main = ModuleType("__main__")
    main.__spec__ = SimpleNamespace(name=WORKER)  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert compat.filters_are_pushed()


def test_no_filter_is_taken_where_it_would_hold_for_other_scans_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, WORKER, ModuleType(WORKER))
    monkeypatch.delattr(DataSourceReader, "pushLimit", raising=False)
    assert not compat.filters_are_pushed()
    monkeypatch.setattr(DataSourceReader, "pushLimit", lambda self, limit: False, raising=False)
    assert compat.filters_are_pushed()
